// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of fork storms, on the host build of the scheduler: programs that fork short-lived threads
//! without end, beside threads that compute.

mod common;

use common::{MS, Machine, Program, SETTINGS, State};

/// Simulated time before the measurement of CPU shares begins (warm-up), and length of the
/// measurement.
const WARM_UP_NS: u64 = 500 * MS;
const MEASURED_NS: u64 = 10_000 * MS;

/// A program that forks a child whenever fewer than `at_once` of its children live.
struct Storm {
    forker: usize,
    at_once: usize,
    child: Program,
    children: Vec<usize>,
    forked: u64,
}

impl Storm {
    fn new(machine: &mut Machine, number: u64, at_once: usize, child: Program) -> Self {
        // The test forks children on behalf of this thread, which is not young and uses almost no
        // CPU time itself.
        let forker = machine.start(Program {
            runs_ns: MS / 1000,
            sleeps_ns: 100 * MS,
            ran_ns: 1_000 * MS,
            ..Program::new(1_000 * number, u64::MAX)
        });
        Self {
            forker,
            at_once,
            child,
            children: Vec::new(),
            forked: 0,
        }
    }

    fn fork(&mut self, machine: &mut Machine) {
        let threads = &machine.threads;
        self.children
            .retain(|&child| threads[child].state != State::Ended);
        while self.children.len() < self.at_once {
            self.forked += 1;
            self.children.push(machine.start(Program {
                // Each child executes a program of its own.
                mm: self.child.mm + (self.forked << 20),
                ran_ns: 0,
                parent: Some(self.forker),
                ..self.child
            }));
        }
    }
}

fn child(runs_ns: u64, bursts: u32, sleeps_ns: u64) -> Program {
    Program {
        runs_ns,
        bursts,
        sleeps_ns,
        ..Program::new(500, u64::MAX)
    }
}

/// Runs threads that compute (loops) beside a fork storm. Returns the least CPU time of a loop,
/// relative to the fair share that the loop would have if the storm were one more thread.
fn least_loop(cpus: usize, loops: u64, at_once: usize, child: Program) -> f64 {
    let mut machine = Machine::new(cpus, SETTINGS);
    let all = (1 << cpus) - 1;
    let loops: Vec<usize> = (0..loops)
        .map(|number| machine.start(Program::new(number + 1, all)))
        .collect();
    let child = Program { cpus: all, ..child };
    let mut storm = Storm::new(&mut machine, 1, at_once, child);
    let mut run_until = |machine: &mut Machine, until_ns| {
        storm.fork(machine);
        while machine.step(until_ns) {
            storm.fork(machine);
        }
        machine.run(0);
    };
    let begun_ns = machine.now_ns + WARM_UP_NS;
    run_until(&mut machine, begun_ns);
    let before: Vec<u64> = loops.iter().map(|&at| machine.threads[at].ran_ns).collect();
    run_until(&mut machine, begun_ns + MEASURED_NS);
    let ran_ns = loops.iter().zip(before);
    let ran_ns = ran_ns.map(|(&at, before)| machine.threads[at].ran_ns - before);
    let fair_ns = (MEASURED_NS * cpus as u64) as f64 / (loops.len() as f64 + 1.0);
    ran_ns.min().map_or(0.0, |ran| ran as f64) / fair_ns.min(MEASURED_NS as f64)
}

#[test]
fn loops_keep_their_share_beside_a_fork_storm() {
    for (cpus, loops) in [(1, 1), (1, 4), (2, 2), (2, 6), (8, 8), (8, 20)] {
        for at_once in [1, 4, 16] {
            for child in [
                child(MS / 5, 1, 0),
                child(2 * MS, 1, 0),
                child(12 * MS, 1, 0),
                // Children that read from files: four bursts, with short sleeps between them.
                child(MS / 2, 4, MS / 10),
                Program {
                    weight: 1,
                    ..child(MS, 1, 0)
                },
            ] {
                let share = least_loop(cpus, loops, at_once, child);
                let case = format!("{cpus} CPUs, {loops} loops, {at_once} of {child:?}: {share}");
                assert!(share > 0.9, "{case}");
            }
        }
    }
}

/// A shell starts a program, beside loops and a fork storm by another program.
#[test]
fn new_program_of_another_family_starts_beside_a_storm() {
    let mut machine = Machine::new(2, SETTINGS);
    for number in 0..6 {
        machine.start(Program::new(number + 1, 0b11));
    }
    let storm_child = Program {
        cpus: 0b11,
        ..child(2 * MS, 1, 0)
    };
    let mut storm = Storm::new(&mut machine, 1, 16, storm_child);
    let mut shell = Storm::new(
        &mut machine,
        2,
        1,
        Program {
            mm: 700 << 12,
            ..storm_child
        },
    );
    for second in 1..10 {
        let until_ns = machine.now_ns + 100 * MS;
        storm.fork(&mut machine);
        while machine.step(until_ns) {
            storm.fork(&mut machine);
        }
        shell.fork(&mut machine);
        let started = shell.children[0];
        while machine.threads[started].state != State::Ended {
            machine.step(u64::MAX);
            storm.fork(&mut machine);
        }
        let waited_ns = machine.waited_ns(&machine.threads[started]);
        // Urgent threads wait for the end of the current slice, and for the urgent threads before
        // them in the queue.
        assert!(waited_ns <= 2 * SETTINGS.slice_ns, "{second}: {waited_ns}");
    }
}

#[test]
fn new_thread_starts_after_a_slice_beside_loops() {
    for loops in [1, 4, 20] {
        let mut machine = Machine::new(1, SETTINGS);
        for number in 0..loops {
            machine.start(Program::new(number + 1, 1));
        }
        let mut shell = Storm::new(
            &mut machine,
            1,
            1,
            Program {
                cpus: 1,
                ..child(2 * MS, 1, 0)
            },
        );
        for _ in 0..20 {
            // The shell pauses between two children for longer than a child runs.
            machine.run(200 * MS);
            shell.fork(&mut machine);
            let started = shell.children[0];
            while machine.threads[started].state != State::Ended {
                machine.step(u64::MAX);
            }
            let waited_ns = machine.waited_ns(&machine.threads[started]);
            assert!(waited_ns <= SETTINGS.slice_ns, "{loops}: {waited_ns}");
        }
    }
}
