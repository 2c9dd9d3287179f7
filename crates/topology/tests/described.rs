// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of machines with unusual memory or CPUs (memory-side caches, CXL memory, offline and
//! disallowed CPUs), and of copies with files that must not be opened.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

#[path = "captures/mod.rs"]
mod captures;
mod common;

use std::fs;

use captures::{Capture, Cores};
use common::unpack;
use usher_model::CpuSet;
use usher_topology::{DescribedMachine, DrawOptions, Source, describe, draw, load};

fn four_cores() -> Capture {
    Capture::new(&[Cores {
        count: 4,
        l2_sharers: 1,
        has_l3: true,
        ..Cores::default()
    }])
}

fn read(capture: &Capture) -> DescribedMachine {
    describe(Source::Capture(capture.path().to_owned())).unwrap()
}

fn picture(machine: &DescribedMachine) -> String {
    let options = DrawOptions {
        width: 120,
        offline: machine.offline.clone(),
        disallowed: machine.disallowed.clone(),
        ..DrawOptions::default()
    };
    draw(&machine.topology, &options)
}

#[test]
fn memory_side_cache_of_sysfs_is_no_llc() {
    let capture = four_cores();
    let cache = "sys/devices/system/node/node0/memory_side_cache/index1";
    for (file, text) in [
        ("size", "17179869184\n"),
        ("line_size", "64\n"),
        ("indexing", "0\n"),
    ] {
        capture.write(&format!("{cache}/{file}"), text);
    }
    let machine = read(&capture).topology;
    assert_eq!(machine.domains.len(), 1);
    assert_eq!(machine.domains[0].llc.unwrap().bytes, 16 << 20);
}

#[test]
fn l3_of_subtype_memory_side_cache_is_no_llc() {
    for subtype in ["subtype=\"MemorySideCache\"", ""] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("knl.xml");
        fs::write(&path, knl(subtype)).unwrap();
        let machine = load(Source::Xml(path)).unwrap();
        let levels: Vec<u8> = machine
            .domains
            .iter()
            .map(|d| d.llc.unwrap().level)
            .collect();
        match subtype {
            "" => assert_eq!(levels, [3]),
            _ => assert_eq!(levels, [2, 2]),
        }
    }
}

/// A small Knights Landing: two tiles of two cores, with memory as a cache.
fn knl(subtype: &str) -> String {
    let object = |kind: &str, mask: u32, rest: &str, inside: &str| {
        let set = format!("0x{mask:08x}");
        format!(
            "<object type=\"{kind}\" cpuset=\"{set}\" complete_cpuset=\"{set}\" nodeset=\"0x1\" \
             complete_nodeset=\"0x1\" {rest}>{inside}</object>"
        )
    };
    let core = |cpu: u32| {
        let number = format!("os_index=\"{cpu}\" gp_index=\"{}\"", 20 + cpu);
        let pu = object("PU", 1 << cpu, &number, "");
        object(
            "Core",
            1 << cpu,
            &format!("os_index=\"{cpu}\" gp_index=\"{}\"", 30 + cpu),
            &pu,
        )
    };
    let cache = |level: u32, index: u32| {
        format!(
            "gp_index=\"{index}\" cache_size=\"1048576\" depth=\"{level}\" cache_linesize=\"64\" \
             cache_associativity=\"16\" cache_type=\"0\""
        )
    };
    let tile = |first: u32| {
        let inside = core(first) + &core(first + 1);
        object("L2Cache", 3 << first, &cache(2, 40 + first), &inside)
    };
    let l3 = object(
        "L3Cache",
        15,
        &format!("{} {subtype}", cache(3, 50)),
        &(tile(0) + &tile(2)),
    );
    let node = object(
        "NUMANode",
        15,
        "os_index=\"0\" gp_index=\"3\" local_memory=\"1048576\"",
        "",
    );
    let package = object(
        "Package",
        15,
        "os_index=\"0\" gp_index=\"2\"",
        &(node + &l3),
    );
    let sets = "os_index=\"0\" allowed_cpuset=\"0xf\" allowed_nodeset=\"0x1\" gp_index=\"1\"";
    let machine = object("Machine", 15, sets, &package);
    format!("<?xml version=\"1.0\"?>\n<topology version=\"2.0\">{machine}</topology>\n")
}

#[test]
fn cpus_outside_of_the_cgroup_are_not_usable() {
    let unpacked = unpack("opteron-cgroup-32.tar.gz");
    let machine = describe(Source::Capture(unpacked.path.clone())).unwrap();
    assert!(!machine.disallowed.is_empty());
    let usable = machine.usable().unwrap();
    assert!(!usable.all_cpus().intersects(&machine.disallowed));
    assert_eq!(
        usable.all_cpus().or(&machine.disallowed),
        CpuSet::range(0, 31)
    );
    let note = format!(
        "CPUs outside of the cgroup, not used: {}",
        machine.disallowed
    );
    assert!(picture(&machine).contains(&note));
}

#[test]
fn offline_cpus_are_listed() {
    let unpacked = unpack("xeon-offline-16.tar.gz");
    let machine = describe(Source::Capture(unpacked.path.clone())).unwrap();
    assert_eq!(machine.offline.len(), 4);
    assert!(!machine.topology.all_cpus().intersects(&machine.offline));
    let note = format!("offline CPUs: {}", machine.offline);
    assert!(picture(&machine).contains(&note));
}

#[test]
fn memory_without_cpus_and_cpus_without_memory_are_drawn() {
    let capture = four_cores();
    capture.node(0, &CpuSet::range(0, 2), 1 << 20);
    capture.node(1, &CpuSet::new(), 1 << 22);
    let machine = read(&capture);
    let nodes = &machine.topology.nodes;
    assert_eq!((nodes[0].cpus.len(), nodes[1].cpus.len()), (3, 0));
    let picture = picture(&machine);
    assert!(picture.contains("CPUs without a NUMA node: 3"), "{picture}");
    assert!(picture.contains("4 GiB"), "{picture}");
}

#[test]
fn nodes_that_the_title_has_no_room_for_are_drawn_below() {
    let capture = four_cores();
    for node in 0..3 {
        capture.node(node, &CpuSet::single(node), 1 << 27);
    }
    let topology = read(&capture).topology;
    let options = DrawOptions {
        width: 60,
        ..DrawOptions::default()
    };
    let picture = draw(&topology, &options);
    assert!(!picture.contains('\u{2026}'), "{picture}");
    for node in ["node 0, 128 GiB", "node 1, 128 GiB", "node 2"] {
        assert!(picture.contains(node), "{picture}");
    }
}

#[test]
fn files_that_block_or_are_too_large_are_rejected() {
    let refusal = |capture: &Capture| {
        let error = load(Source::Capture(capture.path().to_owned())).unwrap_err();
        let error = error.to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    let capacity = "sys/devices/system/cpu/cpu0/cpu_capacity";
    let fifo = four_cores();
    let path = fifo.path().join(capacity);
    let status = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(status.unwrap().success());
    assert!(refusal(&fifo).contains(&format!("{capacity} is neither a regular file")));
    let device = four_cores();
    std::os::unix::fs::symlink("/dev/zero", device.path().join(capacity)).unwrap();
    assert!(refusal(&device).contains(&format!("{capacity} is neither a regular file")));
    let folder = four_cores();
    std::os::unix::fs::symlink("/proc/self", folder.path().join("sys/out")).unwrap();
    assert!(refusal(&folder).contains("sys/out is neither"));
    let file = four_cores();
    std::os::unix::fs::symlink("/proc/kmsg", file.path().join(capacity)).unwrap();
    assert!(refusal(&file).contains(&format!("{capacity} is a symbolic link that leads out")));
    let socket = four_cores();
    std::os::unix::net::UnixListener::bind(socket.path().join("sys/socket")).unwrap();
    assert!(refusal(&socket).contains("sys/socket is neither a regular file"));
    let large = four_cores();
    let file = fs::File::create(large.path().join(capacity)).unwrap();
    file.set_len(10 << 30).unwrap();
    assert!(refusal(&large).contains(&format!("{capacity} has 10737418240 bytes")));
    let xml = large.path().join("large.xml");
    fs::File::create(&xml).unwrap().set_len(10 << 30).unwrap();
    let error = load(Source::Xml(xml)).unwrap_err().to_string();
    assert!(error.contains("the file has 10737418240 bytes"), "{error}");
    let links = four_cores();
    std::os::unix::fs::symlink("nowhere", links.path().join("sys/dangling")).unwrap();
    std::os::unix::fs::symlink("devices", links.path().join("sys/inside")).unwrap();
    read(&links);
}

#[test]
fn control_bytes_of_names_are_not_drawn() {
    let machine = "<topology version=\"3.0\"><object type=\"Machine\" cpuset=\"0x1\"><object \
                   type=\"Package\" cpuset=\"0x1\"><info name=\"CPUModel\" value=\"&#27;[31mred\u{9b}m\"/>\
                   <object type=\"PU\" os_index=\"0\"/></object></object></topology>";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a\u{1b}[2Jb.xml");
    fs::write(&path, machine).unwrap();
    let text = picture(&describe(Source::Xml(path)).unwrap());
    let control = |c: char| c.is_control() && c != '\n';
    assert!(!text.contains(control), "{text:?}");
    assert!(text.contains("red"), "{text}");
}
