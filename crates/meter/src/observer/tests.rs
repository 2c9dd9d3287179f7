// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the content of the BPF maps: entries that BPF programs would add, their removal with a
//! program, and limits. If the kernel rejects BPF, the tests are skipped.

use std::net::UdpSocket;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use libbpf_rs::{MapCore, MapFlags};

use super::*;
use crate::layout::MapLayout;
use crate::table::Table;

/// Returns an observer. If the kernel rejects BPF, prints a skip and returns `None`.
fn observer(what: &str, config: &MeterConfig) -> Option<Observer> {
    match Observer::open(config) {
        Ok(observer) => Some(observer),
        Err(error) => {
            usher_skip::skip!("{what}: {error}");
            None
        }
    }
}

/// A process that waits for input until the value is dropped.
struct Waits(Child);

impl Waits {
    fn new() -> Self {
        let mut command = Command::new("cat");
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    fn id(&self) -> ProcessId {
        let pid = self.0.id() as i32;
        let start_ticks = proc_tree::process(Path::new("/proc"), pid)
            .unwrap()
            .start_ticks;
        ProcessId { pid, start_ticks }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// Adds an entry to a map, as a BPF program does at the first use.
fn put<K: MapLayout, V: MapLayout>(table: &Table<K, V>, words: &[u32]) {
    let key: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let value = vec![1; V::BYTES];
    if table.map().map_type().is_percpu() {
        let values = vec![value; libbpf_rs::num_possible_cpus().unwrap()];
        let map = table.map();
        map.update_percpu(&key, &values, MapFlags::ANY).unwrap();
    } else {
        table.map().update(&key, &value, MapFlags::ANY).unwrap();
    }
}

fn keys<K: MapLayout, V: MapLayout>(table: &mut Table<K, V>) -> Vec<K> {
    let mut keys = Vec::new();
    table.each(|key, _| keys.push(key)).unwrap();
    keys
}

#[test]
fn removing_a_program_frees_its_map_entries() {
    let Some(mut observer) = observer("forgetting", &MeterConfig::default()) else {
        return;
    };
    let [gone, stays] = [ProgramId(1), ProgramId(2)];
    let (first, second) = (Waits::new(), Waits::new());
    observer.manage(gone, None, first.id()).unwrap();
    observer.manage(stays, None, second.id()).unwrap();
    let owners = [gone, stays].map(|program| observer.managed[&program].owner);
    for owner in owners {
        let kernel = &observer.kernel;
        put(&kernel.cpu_uses, &[owner]);
        put(&kernel.disk_uses, &[owner, 8, 0]);
        // Entries of network use with an unknown route, and of use in another network namespace.
        put(&kernel.link_uses, &[owner, 0, 77]);
        put(&kernel.link_uses, &[owner, 3, 77]);
    }
    observer.sample(now_ns(), true);
    // Entries of devices that the program used after the sample.
    put(&observer.kernel.disk_uses, &[owners[0], 8, 16]);
    put(&observer.kernel.link_uses, &[owners[0], 4, 77]);
    observer.forget(gone);

    let kernel = &mut observer.kernel;
    let of = |used: Vec<u32>| -> Vec<u32> {
        let programs = used.into_iter().filter(|owner| *owner >= FIRST_PROGRAM);
        programs.collect()
    };
    assert_eq!(of(keys(&mut kernel.cpu_uses)), [owners[1]]);
    let disks = keys(&mut kernel.disk_uses);
    assert_eq!(of(disks.iter().map(|key| key.owner).collect()), [owners[1]]);
    let links = keys(&mut kernel.link_uses);
    let links = of(links.iter().map(|key| key.owner).collect());
    assert_eq!(links, [owners[1]; 2]);
    assert_eq!(keys(&mut kernel.pid_map), [second.id().pid as u32]);
    let usage = observer.usage(owners[1]);
    assert_eq!((usage.disks.len(), usage.links.len()), (1, 2));
    assert_eq!(observer.usage(owners[0]), Usage::default());

    // An entry that a CPU was still counting while its program was removed; the removal of the next
    // program removes the entry.
    put(&observer.kernel.cpu_uses, &[owners[0]]);
    observer.forget(stays);
    assert!(of(keys(&mut observer.kernel.cpu_uses)).is_empty());
}

#[test]
fn use_that_does_not_fit_into_the_full_map_is_reported() {
    let Some(mut observer) = observer("a full map", &MeterConfig::default()) else {
        return;
    };
    let waits = Waits::new();
    observer.manage(ProgramId(1), None, waits.id()).unwrap();
    let map = observer.kernel.cpu_uses.map();
    let mut owner = u32::MAX;
    let value = [0; size_of::<CpuUse>()];
    while (map.update(&owner.to_ne_bytes(), &value, libbpf_rs::MapFlags::ANY)).is_ok() {
        owner -= 1;
    }
    // The owners that already have an entry are counted further; the other owners have none.
    let known = keys(&mut observer.kernel.cpu_uses);
    assert!(known.len() > 1000, "{}", known.len());
    for owner in known.into_iter().filter(|owner| *owner <= FIRST_PROGRAM) {
        let map = observer.kernel.cpu_uses.map();
        map.delete(&owner.to_ne_bytes()).unwrap();
        let other = u32::MAX - 5_000 - owner;
        map.update(&other.to_ne_bytes(), &value, libbpf_rs::MapFlags::ANY)
            .unwrap();
    }
    observer.sample(now_ns(), true);
    let reasons = observer.reasons();
    let is_loss = |reason: &String| reason.contains("uses of CPUs were not counted");
    assert!(reasons.iter().any(is_loss), "{reasons:?}");
}

#[test]
fn an_ended_process_is_not_managed() {
    let Some(mut observer) = observer("errors", &MeterConfig::default()) else {
        return;
    };
    let waits = Waits::new();
    let mut gone = waits.id();
    gone.start_ticks += 1;
    assert!(observer.manage(ProgramId(1), None, gone).is_err());
    assert!(observer.managed.is_empty() && keys(&mut observer.kernel.pid_map).is_empty());
    assert_eq!(observer.kernel.config.programs, 0);
}

#[test]
fn an_unstacked_disk_is_removed_from_the_map() {
    const UPPER: DiskId = DiskId {
        major: 253,
        minor: 9,
    };
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    for (name, dev) in [("dm-9", "253:9"), ("sda", "8:0"), ("sdb", "8:16")] {
        fs::create_dir_all(at(name).join("slaves")).unwrap();
        fs::write(at(name).join("dev"), dev).unwrap();
        fs::create_dir_all(at("dev/block")).unwrap();
        symlink(at(name), at("dev/block").join(dev)).unwrap();
    }
    let config = MeterConfig {
        sys: dir.path().to_owned(),
        ..MeterConfig::default()
    };
    let Some(mut observer) = observer("stacked disks", &config) else {
        return;
    };
    let lower = |observer: &mut Observer| {
        let mut found = Vec::new();
        let seen = observer.kernel.lower_devices.each(|upper, lower| {
            found.extend(lower.next().map(|lower| (upper, lower)));
        });
        seen.unwrap();
        found
    };
    let on = |minor| {
        let lower = DiskId { major: 8, minor };
        vec![(Device::Disk(UPPER), Device::Disk(lower))]
    };
    for (name, expected) in [("sda", on(0)), ("sdb", on(16))] {
        symlink(at(name), at("dm-9/slaves").join(name)).unwrap();
        observer.read_stacks(vec![UPPER]);
        assert_eq!(lower(&mut observer), expected);
        fs::remove_file(at("dm-9/slaves").join(name)).unwrap();
    }
    observer.read_stacks(vec![UPPER]);
    assert_eq!(lower(&mut observer), []);
}

#[test]
fn loopback_is_not_counted() {
    let Some(mut observer) = observer("loopback", &MeterConfig::default()) else {
        return;
    };
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    near.connect(far.local_addr().unwrap()).unwrap();
    near.send(&[1; 64]).unwrap();
    let used = keys(&mut observer.kernel.link_uses);
    assert!(used.iter().all(|key| key.interface.index != 1), "{used:?}");
}
