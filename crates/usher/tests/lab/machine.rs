// SPDX-License-Identifier: GPL-2.0-only
//! Checks that the topology which `usher topo` reads from a guest's `/sys` equals the machine for
//! which the guest was started, and that the guest has the features that containers lack.

use usher_model::{CpuSet, Topology};
use usher_topology::Source;

use crate::common::World;

/// Returns packages, domains, cores and NUMA nodes as sets of CPUs.
fn parts(machine: &Topology) -> [Vec<CpuSet>; 4] {
    [
        machine
            .packages
            .iter()
            .map(|package| package.cpus.clone())
            .collect(),
        machine
            .domains
            .iter()
            .map(|domain| domain.cpus.clone())
            .collect(),
        machine.cores.iter().map(|core| core.cpus.clone()).collect(),
        machine.nodes.iter().map(|node| node.cpus.clone()).collect(),
    ]
}

/// Checks that `usher topo` finds the described machine in the guest's `/sys`.
pub fn matches_its_description(description: &str) {
    let found = World::new().json(&["topo"]).unwrap();
    let found: Topology = serde_json::from_value(found).unwrap();
    let described = usher_topology::load(Source::parse(description).unwrap()).unwrap();
    assert_eq!(parts(&found), parts(&described), "{description}");
    assert!(
        found
            .domains
            .iter()
            .all(|domain| domain.llc.is_some_and(|llc| llc.level == 3))
    );
}

/// Checks features that a guest has and no container has.
pub fn has_features_that_no_container_has() {
    let findings = World::new().json(&["doctor"]).unwrap();
    let items = findings["kernel"]["items"].as_array().unwrap();
    for name in ["sched_ext", "bpf", "cgroup-v2", "cpu.idle", "all-cpus"] {
        let item = items.iter().find(|item| item["name"] == name).unwrap();
        assert_eq!(item["available"], true, "{item}");
    }
    let refused = &findings["scheduler"]["refused"];
    assert!(refused.is_null(), "{refused}");
    let state = std::fs::read_to_string("/sys/kernel/sched_ext/state").unwrap();
    assert_eq!(state.trim(), "disabled");
    let release = findings["kernel"]["kernel"].as_str().unwrap();
    let config = std::fs::read_to_string(format!("/boot/config-{release}")).unwrap();
    assert!(
        config
            .lines()
            .any(|line| line == "CONFIG_SCHED_CLASS_EXT=y")
    );
}
