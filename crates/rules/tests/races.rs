// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads with migration disabled.

mod common;

use common::{MS, SETTINGS, places, words};
use usher_rules::sched::{HostSched, Task};

/// The thread that enables the scheduler may have disabled its migration, which counts as done by
/// the callback. A later callback then finds a smaller number than that.
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
        // Two threads on each core; then those of the second core end.
        let [first, _, third, fourth] = [1, 2, 4, 8].map(|cpu| start(cpu, at_enable));
        sched.set_cpus(first, &words(0b1111));
        for task in [third, fourth] {
            sched.remove(task);
        }
        while let Some(cpu) = sched.next_resched() {
            sched.schedule(cpu);
        }
        sched.set_migration_disabled(first, later);
        sched.set_now(5 * MS);
        sched.tick(0);
        while let Some(cpu) = sched.next_resched() {
            sched.schedule(cpu);
        }
        let cpu = sched.task(first).cpu;
        assert_eq!(cpu >= 2, moves, "{at_enable}, then {later}: CPU {cpu}");
    }
}
