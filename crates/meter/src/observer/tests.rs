// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel's maps hold.

use std::net::UdpSocket;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use libbpf_rs::{MapCore, MapFlags};

use super::*;
use crate::layout::Layout;
use crate::table::Table;

/// `None`, and a word about it, where BPF is refused.
fn observer(what: &str, config: &MeterConfig) -> Option<Observer> {
    match Observer::open(config) {
        Ok(observer) => Some(observer),
        Err(error) => {
            usher_skip::skip!("{what}: {error}");
            None
        }
    }
}

/// A process that waits.
struct Waits(Child);

impl Waits {
    fn new() -> Self {
        let mut command = Command::new("cat");
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    fn id(&self) -> ProcessId {
        let pid = self.0.id() as i32;
        let start_ticks = kin::process(Path::new("/proc"), pid).unwrap().start_ticks;
        ProcessId { pid, start_ticks }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// As a program in the kernel would on its first use.
fn put<K: Layout, V: Layout>(table: &Table<K, V>, words: &[u32]) {
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

fn keys<K: Layout, V: Layout>(table: &mut Table<K, V>) -> Vec<K> {
    let mut keys = Vec::new();
    table.each(|key, _| keys.push(key)).unwrap();
    keys
}

#[test]
fn nothing_of_a_forgotten_program_stays_in_the_kernel() {
    let Some(mut observer) = observer("forgetting", &MeterConfig::default()) else {
        return;
    };
    let [gone, stays] = [ProgramId(1), ProgramId(2)];
    let (first, second) = (Waits::new(), Waits::new());
    observer.manage(gone, None, first.id()).unwrap();
    observer.manage(stays, None, second.id()).unwrap();
    let parties = [gone, stays].map(|program| observer.managed[&program].party);
    for party in parties {
        let kernel = &observer.kernel;
        put(&kernel.cpu_uses, &[party]);
        put(&kernel.disk_uses, &[party, 8, 0]);
        // A route that is not known, in a network of another's.
        put(&kernel.link_uses, &[party, 0, 77]);
        put(&kernel.link_uses, &[party, 3, 77]);
    }
    observer.sample(now_ns(), true);
    // First seen since the look.
    put(&observer.kernel.disk_uses, &[parties[0], 8, 16]);
    put(&observer.kernel.link_uses, &[parties[0], 4, 77]);
    observer.forget(gone);

    let kernel = &mut observer.kernel;
    let of = |used: Vec<u32>| -> Vec<u32> {
        let programs = used.into_iter().filter(|party| *party >= FIRST_PROGRAM);
        programs.collect()
    };
    assert_eq!(of(keys(&mut kernel.cpu_uses)), [parties[1]]);
    let disks = keys(&mut kernel.disk_uses);
    assert_eq!(
        of(disks.iter().map(|key| key.party).collect()),
        [parties[1]]
    );
    let links = keys(&mut kernel.link_uses);
    let links = of(links.iter().map(|key| key.party).collect());
    assert_eq!(links, [parties[1]; 2]);
    assert_eq!(keys(&mut kernel.kin), [second.id().pid as u32]);
    let usage = observer.usage(parties[1]);
    assert_eq!((usage.disks.len(), usage.links.len()), (1, 2));
    assert_eq!(observer.usage(parties[0]), Usage::default());

    // What a CPU was just counting goes with the next program.
    put(&observer.kernel.cpu_uses, &[parties[0]]);
    observer.forget(stays);
    assert!(of(keys(&mut observer.kernel.cpu_uses)).is_empty());
}

#[test]
fn who_cannot_be_listed_is_no_program() {
    let Some(mut observer) = observer("errors", &MeterConfig::default()) else {
        return;
    };
    let waits = Waits::new();
    let mut gone = waits.id();
    gone.start_ticks += 1;
    assert!(observer.manage(ProgramId(1), None, gone).is_err());
    assert!(observer.managed.is_empty() && keys(&mut observer.kernel.kin).is_empty());
    assert_eq!(observer.kernel.orders.programs, 0);
}

#[test]
fn what_lies_on_nothing_any_more_is_told_so() {
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
        let seen = observer.kernel.beneath.each(|upper, lower| {
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
        observer.look_at_stacks(vec![UPPER]);
        assert_eq!(lower(&mut observer), expected);
        fs::remove_file(at("dm-9/slaves").join(name)).unwrap();
    }
    observer.look_at_stacks(vec![UPPER]);
    assert_eq!(lower(&mut observer), []);
}

#[test]
fn loopback_has_no_place_in_the_kernel() {
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
