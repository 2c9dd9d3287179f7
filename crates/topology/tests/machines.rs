// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of captured machines: the topology and the drawing of each against golden files.
//!
//! `UPDATE_EXPECT=1 cargo test -p usher-topology --test machines` rewrites the golden files beside
//! the fixtures.

// Test helpers: clippy exempts only the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fmt::Write;

use common::{fixtures, machine, machines};
use usher_model::{CpuSet, Topology};
use usher_topology::{DrawOptions, draw};

/// All facts of the topology, one line each.
fn summary(topology: &Topology) -> String {
    let mut text = String::from("{\n");
    let list = |text: &mut String, name: &str, lines: Vec<serde_json::Value>, last: bool| {
        let lines: Vec<String> = lines.iter().map(|line| format!("    {line}")).collect();
        let end = if last { "]" } else { "]," };
        writeln!(text, "  \"{name}\": [\n{}\n  {end}", lines.join(",\n")).unwrap();
    };
    writeln!(text, "  \"name\": \"{}\",", topology.name).unwrap();
    writeln!(text, "  \"cpus\": \"{}\",", topology.all_cpus()).unwrap();
    let value = |thing: serde_json::Result<serde_json::Value>| thing.unwrap();
    let packages = topology.packages.iter().map(serde_json::to_value);
    list(&mut text, "packages", packages.map(value).collect(), false);
    let nodes = topology.nodes.iter().map(serde_json::to_value);
    list(&mut text, "nodes", nodes.map(value).collect(), false);
    let domains = topology.domains.iter().map(serde_json::to_value);
    list(&mut text, "domains", domains.map(value).collect(), false);
    let cores = topology.cores.iter().map(serde_json::to_value);
    list(&mut text, "cores", cores.map(value).collect(), true);
    text + "}\n"
}

#[test]
fn topologies_and_drawings_match_the_golden_files() {
    for (file, topology) in machines() {
        topology.check().unwrap();
        let name = file.split('.').next().unwrap();
        let golden = fixtures().join("golden");
        let text = draw(
            topology,
            &DrawOptions {
                width: 100,
                ..DrawOptions::default()
            },
        );
        expect_test::expect_file![golden.join(format!("{name}.txt"))].assert_eq(&text);
        let json = summary(topology);
        expect_test::expect_file![golden.join(format!("{name}.json"))].assert_eq(&json);
    }
}

/// Checks the numbers of packages, domains, cores, CPUs and NUMA nodes against those that the
/// makers and capturers of the machines published, counted by hand.
#[test]
fn counts_match_the_machines() {
    for (name, counts) in [
        ("altix-256", [128, 128, 256, 256, 64]),
        ("arm-2", [1, 1, 2, 2, 1]),
        ("core-i9-12900k", [1, 1, 16, 24, 1]),
        ("dunnington-96", [16, 16, 96, 96, 4]),
        ("epyc-9965-768", [2, 24, 384, 768, 2]),
        ("haswell-cod-28-v1", [2, 4, 28, 28, 4]),
        ("interlagos-64", [4, 8, 64, 64, 8]),
        ("knl-snc4-64", [1, 8, 16, 64, 8]),
        ("kunpeng920-128", [2, 4, 128, 128, 4]),
        ("magny-cours-48", [4, 8, 48, 48, 8]),
        ("opteron-cgroup-32", [4, 8, 32, 32, 8]),
        ("power7-256", [64, 64, 64, 256, 8]),
        ("rk3399", [1, 2, 6, 6, 1]),
        ("skylake-32", [2, 2, 16, 32, 2]),
        ("ultraviolet-384", [24, 24, 192, 384, 24]),
        ("vm-1", [1, 1, 1, 1, 1]),
        ("xeon-offline-16", [4, 4, 7, 12, 1]),
    ] {
        let t = machine(name);
        let seen = [
            t.packages.len(),
            t.domains.len(),
            t.cores.len(),
            t.cpus.len(),
            t.nodes.len(),
        ];
        assert_eq!(seen, counts, "{name}");
    }
}

#[test]
fn die_of_magny_cours_is_a_domain_with_its_own_memory() {
    let t = machine("magny-cours");
    for (id, domain) in t.domains.iter().enumerate() {
        let first = id as u32 * 6;
        assert_eq!(domain.cpus, CpuSet::range(first, first + 5));
        assert_eq!(domain.llc.unwrap().level, 3);
        assert_eq!(domain.nodes, [id]);
    }
    let nodes: Vec<u32> = t.nodes.iter().map(|node| node.os).collect();
    assert_eq!(nodes, [0, 1, 2, 33, 34, 45, 72, 73]);
}

#[test]
fn offline_cpus_are_excluded() {
    let t = machine("xeon-offline-16");
    assert_eq!(t.cpus.len(), 12);
    assert_eq!(
        t.cores.iter().filter(|core| core.cpus.len() == 1).count(),
        2
    );
    assert!(t.cpu(0).is_some());
    assert!(machine("haswell-offline-20").cpu(0).is_none());
}

#[test]
fn cpus_outside_the_cgroup_are_included() {
    let t = machine("opteron-cgroup-32");
    assert_eq!(t.all_cpus(), CpuSet::range(0, 31));
    let kept = t.restrict(&CpuSet::range(6, 9)).unwrap();
    assert_eq!((kept.packages.len(), kept.domains.len()), (2, 2));
}

#[test]
fn slower_cores_have_less_capacity() {
    let alder = machine("core-i9-12900k");
    let efficient = 3.9 / 5.1 * 0.787;
    for core in &alder.cores {
        let expected = if core.cpus.len() == 2 { 1.0 } else { efficient };
        assert!((core.capacity - expected).abs() < 1e-9, "{core:?}");
    }
    let rock = machine("rk3399");
    let capacities: Vec<f64> = rock.cores.iter().map(|core| core.capacity).collect();
    let little = 381.0 / 1024.0;
    assert_eq!(capacities, [little, little, little, little, 1.0, 1.0]);
    for (file, topology) in machines() {
        if !file.starts_with("core-i9") && !file.starts_with("rk3399") {
            let alike = topology.cores.iter().all(|core| core.capacity == 1.0);
            assert!(alike, "{file}");
        }
    }
}

#[test]
fn memory_only_nodes_belong_to_neighbouring_domains() {
    let t = machine("knl-snc4");
    for domain in &t.domains {
        let [own, fast] = domain.nodes[..] else {
            panic!("{domain:?}");
        };
        assert!(domain.cpus.is_subset(&t.nodes[own].cpus));
        assert!(t.nodes[fast].cpus.is_empty());
    }
}

#[test]
fn next_larger_unit_is_the_domain_without_a_shared_cache() {
    // Haswell's capture contains no caches: the machine's cluster-on-die nodes form the domains.
    let haswell = machine("haswell-cod");
    for (id, domain) in haswell.domains.iter().enumerate() {
        assert_eq!(domain.llc, None);
        assert_eq!(domain.cpus, haswell.nodes[id].cpus);
    }
    let s390 = machine("s390");
    assert!(s390.domains.iter().all(|domain| domain.llc.is_none()));
    assert_eq!(s390.domains.len(), s390.packages.len());
}
