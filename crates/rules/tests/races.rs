// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of races, on the host build of the scheduler: other CPUs advance a clock at the same time,
//! and the kernel disables the migration of a thread around a callback.

mod common;

use common::{MS, Machine, Program, SETTINGS, places, words};
use usher_rules::sched::{HostSched, Task};

/// A second CPU advances the clock between the first CPU's load and store of it. The advance is not
/// lost.
#[test]
fn clock_keeps_the_advance_of_another_cpu() {
    for races in [1, 3] {
        let mut machine = Machine::new(1, SETTINGS);
        for mm in 1..4 {
            machine.start(Program::new(mm, 1));
        }
        machine.run(20 * MS);
        let before = machine.sched.llc(0).clock;
        assert_eq!(machine.sched.race(races, 1_000 * MS), 0);
        machine.run(100 * MS);
        assert_eq!(
            machine.sched.race(0, 0),
            races - 1,
            "the clock was ahead already"
        );
        let clock = machine.sched.llc(0).clock;
        assert_eq!(clock.wrapping_sub(before), 1_000 * MS);
    }
}

/// After up to three lost races, which leave the clock behind the vtime to which it should advance,
/// the clock still reaches that vtime.
#[test]
fn clock_advances_after_a_lost_race() {
    let advance = |races| {
        let mut machine = Machine::new(1, SETTINGS);
        for mm in 1..4 {
            machine.start(Program::new(mm, 1));
        }
        machine.run(20 * MS);
        machine.sched.race(races, 1);
        machine.run(400 * MS);
        assert_eq!(machine.sched.race(0, 0), 0);
        machine.sched.llc(0).clock
    };
    assert_eq!(advance(3), advance(0));
}

/// The thread that enables the scheduler may have disabled its own migration. The scheduler then
/// attributes too large a part of migration_disabled to the callback, and later callbacks find a
/// smaller value.
#[test]
fn thread_is_movable_if_a_callback_alone_disabled_its_migration() {
    for (at_enable, later, moves) in [(1, 1, true), (2, 1, true), (1, 2, false)] {
        let mut sched = HostSched::new(&places(4, 2), &SETTINGS, 1);
        sched.set_now(MS);
        let mut start = |cpus, at_enable| {
            let task = sched.new_task(&Task {
                ran_ns: 1,
                cpus: words(cpus),
                migration_disabled: at_enable,
                ..Task::default()
            });
            sched.set_migration_disabled(task, 0);
            sched.wake_new(task, 0);
            while let Some(cpu) = sched.next_resched() {
                sched.schedule(cpu);
            }
            task
        };
        // A thread runs on each of the four CPUs of two cores. Then the threads of the second core
        // end.
        let [first, _, third, fourth] = [1, 2, 4, 8].map(|cpu| start(cpu, at_enable));
        sched.set_migration_disabled(first, later);
        sched.set_cpus(first, &words(0b1111));
        for task in [third, fourth] {
            sched.remove(task);
        }
        while let Some(cpu) = sched.next_resched() {
            sched.schedule(cpu);
        }
        sched.set_now(5 * MS);
        sched.tick(0);
        while let Some(cpu) = sched.next_resched() {
            sched.schedule(cpu);
        }
        let cpu = sched.task(first).cpu;
        assert_eq!(cpu >= 2, moves, "{at_enable}, then {later}: CPU {cpu}");
    }
}
