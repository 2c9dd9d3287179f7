// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest of the seats of programs, by the CPUs that the kernel reports for each of
//! their threads: disjoint seats, aligned to caches, and masks restored at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use usher_model::{CpuSet, Topology};

use crate::common::{World, children, signal, wait_for};

/// Programs that compute, and their launchers.
pub struct Programs {
    launchers: Vec<Child>,
    /// Pids of the programs.
    pub pids: Vec<i32>,
}

impl Programs {
    /// Starts `count` programs with `usher run`.
    pub fn run(world: &World, count: usize) -> Self {
        Self::of(world, &["run"], count)
    }

    /// Starts `count` programs by `usher` with these arguments.
    pub fn of(world: &World, words: &[&str], count: usize) -> Self {
        let words = [words, &["--", "sh", "-c", "while :; do :; done"]].concat();
        let launcher = |_| world.usher(&words).spawn().unwrap();
        let launchers: Vec<Child> = (0..count).map(launcher).collect();
        let program = |launcher: &Child| {
            wait_for("a program to run", || {
                children(launcher.id() as i32).into_iter().find(|pid| {
                    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                    line.starts_with(b"sh\0-c\0")
                })
            })
        };
        let pids = launchers.iter().map(program).collect();
        Self { launchers, pids }
    }

    /// Returns the affinity mask of each program; `None` while threads of one program differ.
    pub fn masks(&self) -> Option<Vec<CpuSet>> {
        self.pids.iter().map(|&pid| mask(pid)).collect()
    }

    /// Waits until each program may run on every CPU again.
    pub fn roam(&self, everywhere: &CpuSet) {
        wait_for("the programs to be released", || {
            self.masks()?
                .iter()
                .all(|mask| mask == everywhere)
                .then_some(())
        });
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for &pid in &self.pids {
            signal(pid, libc::SIGKILL);
        }
        for launcher in &mut self.launchers {
            let _ = launcher.wait();
        }
    }
}

/// Returns the affinity mask of all threads of a process; `None` while they differ.
pub fn mask(pid: i32) -> Option<CpuSet> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let mut masks = threads.map(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        line.trim().parse::<CpuSet>().ok()
    });
    let first = masks.next()??;
    masks
        .all(|mask| mask.as_ref() == Some(&first))
        .then_some(first)
}

/// Returns the machine, as the kernel describes it at the time of the call.
pub fn machine() -> Topology {
    usher_topology::load(usher_topology::Source::ThisMachine).unwrap()
}

/// Waits until every program has a seat: CPUs of the machine that no other program has. The seats
/// are whole domains if there are enough domains for all, else whole cores. Returns the seats.
pub fn seated(programs: &Programs, machine: &Topology) -> Vec<CpuSet> {
    let domains: Vec<&CpuSet> = machine.domains.iter().map(|domain| &domain.cpus).collect();
    let cores: Vec<&CpuSet> = machine.cores.iter().map(|core| &core.cpus).collect();
    let units = if domains.len() >= programs.pids.len() {
        domains
    } else {
        cores
    };
    let all = machine.all_cpus();
    let fit = |seat: &CpuSet| {
        let whole = |unit: &&CpuSet| !unit.intersects(seat) || unit.is_subset(seat);
        !seat.is_empty() && *seat != all && units.iter().all(whole)
    };
    wait_for("everybody to have a seat", || {
        let masks = programs.masks()?;
        // Offline CPUs are left out of the masks, although programs may run on these CPUs when they
        // come online.
        let seats: Vec<CpuSet> = masks.iter().map(|mask| mask.and(&all)).collect();
        let apart = |(at, seat): (usize, &CpuSet)| {
            !seats[at + 1..].iter().any(|other| other.intersects(seat))
        };
        let right = seats.iter().all(fit) && seats.iter().enumerate().all(apart);
        right.then_some(seats)
    })
}

/// Returns the cgroup of a process.
pub fn cgroup(pid: i32) -> Option<PathBuf> {
    let lines = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = lines
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))?
        .to_owned();
    Some(Path::new("/sys/fs/cgroup").join(path))
}

/// Returns the cgroups that Usher has made.
fn cgroups() -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("usher-"));
    ours.map(|entry| entry.path()).collect()
}

/// Waits until no cgroup made by Usher is left.
pub fn cleared() {
    wait_for("cgroups to be removed", || {
        cgroups().is_empty().then_some(())
    });
}

/// Checks the affinity masks of all threads of each program. Each program has a cgroup of its own,
/// whose CPUs stay unchanged.
pub fn are_disjoint_and_aligned_to_caches() {
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    assert_eq!(world.status()["acting"], "affinity masks");
    let machine = machine();
    let programs = Programs::run(&world, 3);
    let seats = seated(&programs, &machine);
    for (&pid, seat) in programs.pids.iter().zip(&seats) {
        let dir = cgroup(pid).unwrap();
        assert!(cgroups().contains(&dir), "{}", dir.display());
        let narrowed = fs::read_to_string(dir.join("cpuset.cpus")).unwrap_or_default();
        assert_eq!(narrowed.trim(), "", "{}", dir.display());
        let actual = wait_for("the daemon to tell of the seat", || {
            let all = world.status()["programs"].as_array()?.clone();
            let program = all.into_iter().find(|program| program["pid"] == pid)?;
            (program["mode"] == "seated").then_some(program)
        });
        assert_eq!(actual["cpus"], seat.to_string());
    }
    assert_eq!(world.end(daemon), Some(0));
    programs.roam(&machine.all_cpus());
    cleared();
}
