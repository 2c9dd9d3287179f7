// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of metered disks and interfaces with real programs, checked per request and per byte, and
//! of notifications when foreground and background use the same device.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::fs;
use std::path::PathBuf;

use common::{Cgroup, Program, is_notified, meter, now_ns, sample, turn, wait_until};
use usher_meter::{Meter, OwnerClass, ProcessShare};
use usher_model::{DiskUse, LinkId, LinkUse, Metering, ProgramId, Resource};

const PROGRAM: ProgramId = ProgramId(7);
const FILE_BYTES: u64 = 4 << 20;

/// Returns a file of 4 MiB that has been written to a disk.
fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    fs::write(&path, vec![5; FILE_BYTES as usize]).unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    (dir, path)
}

fn background_disks(metering: &Metering) -> DiskUse {
    let disks = metering.background[&PROGRAM].disks.values();
    disks.fold(DiskUse::default(), |sum, uses| DiskUse {
        requests: sum.requests + uses.requests,
        sync_sectors: sum.sync_sectors + uses.sync_sectors,
        async_sectors: sum.async_sectors + uses.async_sectors,
        last_ns: sum.last_ns.max(uses.last_ns),
    })
}

/// Starts a program of the rig as background work in a new cgroup.
fn background(args: &[&str], meter: &mut Meter) -> Option<(Program, Cgroup)> {
    let cgroup = Cgroup::make(args[0])?;
    let program = Program::start(args, Some(&cgroup.0));
    meter
        .manage(PROGRAM, Some(&cgroup.0), program.id())
        .unwrap();
    Some((program, cgroup))
}

#[test]
fn direct_reads_are_counted_to_the_sector() {
    let _turn = turn();
    let Some(mut meter) = meter("disks") else {
        return;
    };
    let (_dir, path) = file();
    let args = ["direct", path.to_str().unwrap(), "50", "4096"];
    let Some((mut program, _cgroup)) = background(&args, &mut meter) else {
        return;
    };
    let before = sample(&mut meter);
    let began_ns = now_ns();
    let sectors = program.number();
    let after = meter.sample(now_ns(), false);
    assert_eq!(sectors, 50 * 8);
    if after.background[&PROGRAM].disks.is_empty() {
        usher_skip::skip!("disks: the tests' files are on none");
        return;
    }
    let (before, now) = (background_disks(&before), background_disks(&after));
    assert_eq!(now.sync_sectors - before.sync_sectors, sectors);
    assert_eq!(now.requests - before.requests, 50);
    assert_eq!(now.async_sectors, before.async_sectors);
    assert!(now.last_ns.unwrap() >= began_ns && now.last_ns.unwrap() <= now_ns());
    let disk = *after.background[&PROGRAM].disks.keys().next().unwrap();
    assert!(meter.names().disks.contains_key(&disk));
    let processes = meter.top_processes(Resource::Disk(disk));
    assert_used(&processes);
    assert!(
        after.cpu_read_ns < began_ns,
        "a cheap sample reads no CPU time"
    );
}

#[test]
fn writeback_is_not_a_request() {
    let _turn = turn();
    let Some(mut meter) = meter("write-back") else {
        return;
    };
    let (_dir, path) = file();
    let args = ["buffered", path.to_str().unwrap(), "8388608"];
    let Some((mut program, _cgroup)) = background(&args, &mut meter) else {
        return;
    };
    let before = sample(&mut meter);
    let sectors = program.number();
    let after = sample(&mut meter);
    let written = |metering: &Metering| -> u64 {
        let services = metering.ignored.disks.values();
        let all = |uses: &DiskUse| uses.async_sectors + uses.sync_sectors;
        services.map(all).sum::<u64>() + background_disks(metering).async_sectors
    };
    if after.background[&PROGRAM].disks.is_empty() && after.ignored.disks.is_empty() {
        usher_skip::skip!("write-back: the tests' files lie on no disk");
        usher_skip::skip!("write-back: the tests' files are on no disk");
    }
    assert!(written(&after) - written(&before) >= sectors);
    let own = background_disks(&after).sync_sectors - background_disks(&before).sync_sectors;
    assert!(own < sectors / 8, "{own} of {sectors} sectors as requests");
}

/// A loop device on a file, which is detached when the value is dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn on(file: &std::path::Path) -> Option<Self> {
        let mut command = std::process::Command::new("losetup");
        let made = command.args(["--find", "--show"]).arg(file).output();
        match made {
            Ok(made) if made.status.success() => {
                let device = String::from_utf8(made.stdout).unwrap();
                Some(Self(device.trim().to_owned()))
            }
            other => {
                usher_skip::skip!("loop devices: {other:?}");
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let mut command = std::process::Command::new("losetup");
        let _ = command.args(["--detach", &self.0]).status();
    }
}

#[test]
fn use_of_a_loop_device_is_use_of_the_disk_below() {
    let _turn = turn();
    let Some(mut meter) = meter("loop devices") else {
        return;
    };
    let (_dir, path) = file();
    let Some(device) = LoopDevice::on(&path) else {
        return;
    };
    let Some((mut program, _cgroup)) = background(&["direct", &device.0, "20", "4096"], &mut meter)
    else {
        return;
    };
    sample(&mut meter);
    let sectors = program.number();
    let after = sample(&mut meter);
    program.end();
    let names = meter.names().disks;
    let disks = &after.background[&PROGRAM].disks;
    let (loops, under): (Vec<_>, Vec<_>) = disks
        .iter()
        .partition(|(disk, _)| device.0.ends_with(&names[disk]));
    assert_eq!(loops[0].1.sync_sectors, sectors, "{disks:?}");
    match under.as_slice() {
        [] => usher_skip::skip!("loop devices: the tests' files are on no disk"),
        [(_, uses)] => assert_eq!(
            (uses.sync_sectors, uses.last_ns),
            (sectors, loops[0].1.last_ns)
        ),
        more => panic!("{more:?}"),
    }
}

#[test]
fn sends_are_counted_by_interface() {
    let _turn = turn();
    let Some(mut meter) = meter("interfaces") else {
        return;
    };
    let Some(cgroup) = Cgroup::make("send") else {
        return;
    };
    if !has_networks("interfaces") {
        return;
    }
    let mut program = Program::start(&["send", "100", "1000"], Some(&cgroup.0));
    meter
        .manage(PROGRAM, Some(&cgroup.0), program.id())
        .unwrap();
    let began_ns = now_ns();
    let answer = program.numbers();
    let (sent, received) = (answer[0], answer[1]);
    let after = meter.sample(now_ns(), false);
    let links = &after.background[&PROGRAM].links;
    let names = meter.names().links;
    // The near interface sent the data and the far interface received the data.
    let of = |pick: &dyn Fn(&LinkUse) -> u64| -> Vec<(LinkId, LinkUse)> {
        let used = links.iter().filter(|(_, uses)| pick(uses) > 0);
        used.map(|(link, uses)| (*link, *uses)).collect()
    };
    let senders = of(&|uses| uses.sends);
    assert_eq!(senders.len(), 1, "{links:?}");
    assert_eq!((senders[0].1.sends, senders[0].1.sent_bytes), (100, sent));
    let index = format!("{} of network", answer[2]);
    assert!(names[&senders[0].0].starts_with(&index), "{names:?}");
    let receivers = of(&|uses| uses.receives);
    let bytes: u64 = receivers.iter().map(|(_, uses)| uses.received_bytes).sum();
    assert_eq!((bytes, received), (sent, sent), "{links:?}");
    // The data flows in one direction; the packets of acknowledgements and of the connection setup
    // flow in both directions.
    assert!(senders[0].1.packets > 1, "{links:?}");
    assert!(receivers.iter().all(|(_, uses)| uses.packets > 0));
    assert!(senders[0].1.last_ns.is_some_and(|ns| ns >= began_ns));
    let processes = meter.top_processes(Resource::Link(senders[0].0));
    assert_used(&processes);
}

/// Checks that the program is among the processes that used the resource. The program is found by
/// its owner class, because its pid in a container differs from its pid in the initial namespace.
/// The result does not depend on the speed of the machine: only a thorough sample starts a new
/// epoch, and the test takes no thorough sample before this check.
fn assert_used(processes: &[ProcessShare]) {
    let is_ours = |process: &ProcessShare| process.owner == OwnerClass::Background(PROGRAM);
    assert!(processes.iter().any(is_ours), "{processes:?}");
}

/// Returns whether a test can create a network namespace. If this is impossible here, prints a
/// skip.
fn has_networks(what: &str) -> bool {
    let able = std::process::Command::new("ip").arg("-V").output().is_ok();
    let able = able && rustix::process::geteuid().is_root();
    if !able {
        usher_skip::skip!("{what}: needs `ip` and root");
    }
    able
}

#[test]
fn a_new_socket_does_not_inherit_the_owner_of_an_old_socket() {
    let _turn = turn();
    let Some(mut meter) = meter("sockets") else {
        return;
    };
    if !has_networks("sockets") {
        return;
    }
    let Some((mut bg, _cgroup)) = background(&["datagrams", "3000"], &mut meter) else {
        return;
    };
    let mut fg = Program::start(&["datagrams", "3000"], None);
    let (own, others) = (bg.number(), fg.number());
    let after = sample(&mut meter);
    let used = &after.background[&PROGRAM].links;
    let sends: Vec<u64> = used.values().map(|uses| uses.sends).collect();
    assert_eq!(
        sends,
        [own],
        "an interface that only foreground uses: {used:?}"
    );
    let links = after.foreground.links.values();
    assert!(links.map(|uses| uses.sends).any(|sends| sends == others));
}

#[test]
fn foreground_use_of_a_device_used_by_background_notifies() {
    let _turn = turn();
    let config = usher_meter::MeterConfig {
        // This time is long enough for a slow machine.
        recent_ns: common::DEADLINE.as_nanos() as u64,
        ..Default::default()
    };
    let mut meter = Meter::open(&config);
    if meter.notify_fd().is_none() {
        usher_skip::skip!("notification: {:?}", meter.reasons());
        return;
    }
    let (_dir, path) = file();
    let path = path.to_str().unwrap();
    let Some((mut bg, _cgroup)) = background(&["direct", path, "4", "4096"], &mut meter) else {
        return;
    };
    let mut fg = Program::start(&["direct", path, "4", "4096"], None);
    let mut later = Program::start(&["direct", path, "4", "4096"], None);
    sample(&mut meter);
    bg.number();
    if sample(&mut meter).background[&PROGRAM].disks.is_empty() {
        usher_skip::skip!("notification: the tests' files are on no disk");
        return;
    }
    fg.number();
    wait_until("the notification", || is_notified(&meter));
    // There is no other notification until the next sample. The test checks only that notification
    // can be armed again, because other programs on this machine may also use the disk.
    sample(&mut meter);
    later.number();
    wait_until("the second notification", || is_notified(&meter));
    meter.forget(PROGRAM);
    sample(&mut meter);
    let mut last = Program::start(&["direct", path, "4", "4096"], None);
    last.number();
    assert!(!is_notified(&meter), "no background work, no notification");
}

#[test]
fn no_bpf_program_is_left_behind() {
    let _turn = turn();
    let Some(meter) = meter("programs left behind") else {
        return;
    };
    let ids = meter.program_ids();
    assert!(ids.len() >= 7, "{ids:?}");
    let is_listed = |id: u32| {
        // SAFETY: `bpf_prog_get_fd_by_id` takes a number and returns a new descriptor or an error.
        let fd = unsafe { libbpf_rs::libbpf_sys::bpf_prog_get_fd_by_id(id) };
        if fd >= 0 {
            // SAFETY: the descriptor has just been created and has no other owner.
            unsafe { libc::close(fd) };
        }
        fd >= 0
    };
    assert!(ids.iter().all(|id| is_listed(*id)));
    drop(meter);
    wait_until("the programs to be gone", || {
        !ids.iter().any(|id| is_listed(*id))
    });
}
