// SPDX-License-Identifier: GPL-2.0-only
//! SIGKILL for processes of Usher under systemd, in rounds, and the time until all changes are
//! undone. The unit is not restarted, so the keeper, the launchers or `ExecStopPost=` must undo.

use std::fs;
use std::time::{Duration, Instant};

use crate::shell::{Shell, root};
use crate::state::{Program, children, disjoint, everywhere, kill, start_service_with, wait_for};

const ROUNDS: usize = 10;
/// Number of busy threads: one more than there are CPUs.
const BUSY_THREADS: usize = 9;

/// Keeps background work stopped while all CPUs are busy. The default regulation does not stop
/// background work that gets nearly no CPU time because of its low priority.
const REGULATION: &str = "--policy ipd";

/// The processes that a round kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Killed {
    Daemon,
    Keeper,
    /// The daemon and its keeper.
    Both,
    /// The daemon, its keeper and the launchers.
    All,
}

impl Killed {
    const KINDS: [Self; 4] = [Self::Daemon, Self::Keeper, Self::Both, Self::All];

    fn name(self) -> &'static str {
        match self {
            Self::Daemon => "daemon",
            Self::Keeper => "keeper",
            Self::Both => "daemon and keeper",
            Self::All => "daemon, keeper and launchers",
        }
    }
}

/// Programs of alice and bob under the system's daemon. The first program of each pair is launched,
/// the second attached.
struct Workload {
    seated: [Program; 2],
    /// Background programs, which are stopped because busy threads need all CPUs.
    demoted: [Program; 2],
    busy: Vec<Program>,
}

impl Workload {
    fn new(alice: &mut Shell, bob: &mut Shell) -> Self {
        let seated = [
            Program::launch(alice, "usher run", 2),
            Program::start(bob, 2),
        ];
        bob.run(&format!("usher attach {}", seated[1].pid)).ok();
        let demoted = [
            Program::launch(alice, &format!("usher bg {REGULATION}"), 2),
            Program::start(bob, 1),
        ];
        bob.run(&format!(
            "usher bg {REGULATION} --attach {}",
            demoted[1].pid
        ))
        .ok();
        disjoint(&[&seated[0], &seated[1]]);
        let parent = bob.start(&format!(
            "exec bash -c 'for i in {{1..{BUSY_THREADS}}}; do while :; do :; done & done; wait'"
        ));
        let mut workload = Self {
            seated,
            demoted,
            busy: vec![Program { pid: parent }],
        };
        let busy = wait_for("busy threads", || {
            let busy = children(parent);
            (busy.len() == BUSY_THREADS).then_some(busy)
        });
        let busy = busy.into_iter().map(|pid| Program { pid });
        workload.busy.extend(busy);
        wait_for("background work to be stopped", || {
            let stopped = workload.demoted.iter().all(Program::is_stopped);
            stopped.then_some(())
        });
        workload
    }

    fn launchers(&self) -> [i32; 2] {
        [self.seated[0].launcher(), self.demoted[0].launcher()]
    }

    /// Ends the busy threads, which would slow down the undo in an emulated machine.
    fn end_busy_threads(&mut self) {
        self.busy.clear();
    }

    /// Waits until the programs have the affinity, priority and state that they had before.
    fn wait_until_undone(&self) {
        let all = Some(everywhere());
        wait_for("everything to be undone", || {
            let wide = self.seated.iter().all(|one| one.mask() == all);
            let stopped = self.demoted.iter().any(Program::is_stopped);
            let lowered = self.demoted.iter().any(|one| one.priority() != (0, 0));
            (wide && !stopped && !lowered).then_some(())
        });
    }

    fn lives(&self) -> bool {
        self.seated.iter().chain(&self.demoted).all(Program::lives)
    }
}

/// Returns the pid of the unit's daemon or keeper, by the name of the process.
fn process(name: &str) -> Option<i32> {
    let cgroup = "/sys/fs/cgroup/system.slice/usher.service/cgroup.procs";
    let found = fs::read_to_string(cgroup).unwrap_or_default();
    let mut pids = found.lines().filter_map(|line| line.parse().ok());
    pids.find(|pid| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        comm.trim_end() == name
    })
}

/// Runs one round. Returns the time from the first kill until all is undone or, if only the keeper
/// was killed, until another keeper runs.
pub fn round(killed: Killed, alice: &mut Shell, bob: &mut Shell) -> Duration {
    start_service_with("equal", "Restart=no\n");
    let mut workload = Workload::new(alice, bob);
    let daemon = process("usher").unwrap();
    let keeper = process("usher-keeper").unwrap();
    let launchers = workload.launchers();
    let pids = match killed {
        Killed::Daemon => vec![daemon],
        Killed::Keeper => vec![keeper],
        Killed::Both => vec![daemon, keeper],
        Killed::All => [&launchers[..], &[daemon, keeper]].concat(),
    };
    let begun = Instant::now();
    pids.into_iter().for_each(kill);
    workload.end_busy_threads();
    if killed == Killed::Keeper {
        wait_for("another keeper", || {
            process("usher-keeper").filter(|&pid| pid != keeper)
        });
    } else {
        workload.wait_until_undone();
    }
    let took = begun.elapsed();
    wait_for(
        "the end of the unit, unless the keeper alone was killed",
        || {
            let is_active = root("systemctl is-active --quiet usher").status == 0;
            (is_active == (killed == Killed::Keeper)).then_some(())
        },
    );
    root("systemctl stop usher; systemctl reset-failed usher");
    workload.wait_until_undone();
    assert!(workload.lives(), "{killed:?}: a program has ended");
    took
}

/// Prints the time of each round, and a table for `docs/hosts-bench.md`.
pub fn rounds_undo_all() {
    let (mut alice, mut bob) = (Shell::of("alice"), Shell::of("bob"));
    let mut table =
        String::from("| killed | rounds | median (ms) | worst (ms) |\n|---|---|---|---|\n");
    println!();
    for killed in Killed::KINDS {
        let name = killed.name();
        let mut measure = || {
            let took = round(killed, &mut alice, &mut bob).as_millis();
            println!("{name}: {took} ms");
            took
        };
        let mut took: Vec<u128> = (0..ROUNDS).map(|_| measure()).collect();
        took.sort_unstable();
        let median = (took[(ROUNDS - 1) / 2] + took[ROUNDS / 2]) / 2;
        let worst = took[ROUNDS - 1];
        table.push_str(&format!("| {name} | {ROUNDS} | {median} | {worst} |\n"));
    }
    print!("{table}");
}
