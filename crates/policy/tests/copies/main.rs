// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies inside a program: the division of a seat compared with brute force, and the recognition,
//! confinement and release of copies.

#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "../common/mod.rs"]
mod common;
mod division;
mod program;
mod sharing;

use proptest::prelude::*;
use usher_model::{CpuSet, TreeProcess};
use usher_policy::copies::CopyState;

use program::{MS, Program, SECOND};

#[test]
fn siblings_of_one_executable_are_copies() {
    let mut program = Program::new(4);
    program.start(10, 1, 2);
    program.step(0);
    assert_eq!(program.masks(&[1, 10]), "all all");
    program.start(11, 1, 2);
    program.start(12, 1, 3);
    program.step(5 * MS);
    assert_eq!(program.masks(&[1, 10, 11, 12]), "all 0-1 2-3 all");
    assert_eq!(program.planner.unrecognised(), 1);
    // Two more copies reduce the parts at once.
    program.start(13, 1, 2);
    program.start(14, 1, 2);
    program.step(5 * MS);
    assert_eq!(program.masks(&[10, 11, 13, 14]), "0 1 2 3");
}

#[test]
fn siblings_of_other_shapes_and_times_are_no_copies() {
    let mut program = Program::new(4);
    program.start(10, 1, 2);
    program.start(11, 1, 2).shape = "3 -c".to_owned();
    program.step(0);
    program.at_ns += 3 * SECOND;
    program.start(12, 1, 2);
    program.step(0);
    assert_eq!(program.masks(&[10, 11, 12]), "all all all");
    assert!(program.planner.report().is_empty());
}

#[test]
fn forks_are_copies_only_if_they_execute_nothing_for_a_while() {
    let mut program = Program::new(2);
    for pid in [10, 11] {
        program.start(pid, 1, 1).executed = false;
    }
    program.step(5 * MS);
    assert_eq!(program.masks(&[10, 11]), "all all");
    program.step(20 * MS);
    assert_eq!(program.masks(&[10, 11]), "0 1");
    assert!(program.planner.report()[0].forked);
    // One of them executes another program.
    let process = program.processes.get_mut(&11).unwrap();
    (process.executed, process.executable) = (true, Some((0, 5)));
    program.step(5 * MS);
    assert_eq!(program.mask(11), "all");
}

#[test]
fn the_parts_of_ended_copies_go_to_the_remaining_copies_after_a_while() {
    let mut program = Program::new(4);
    for pid in 10..14 {
        program.start(pid, 1, 2);
    }
    program.step(5 * MS);
    program.end(10);
    program.end(12);
    program.step(5 * MS);
    assert_eq!(program.masks(&[11, 13]), "1 3");
    // A new copy takes the place of an ended copy.
    program.start(14, 1, 2);
    program.step(5 * MS);
    assert_eq!(program.masks(&[11, 13, 14]), "1 3 0");
    program.end(14);
    program.step(5 * MS);
    program.step(260 * MS);
    assert_eq!(program.masks(&[11, 13]), "0-1 2-3");
}

#[test]
fn a_copy_is_widened_when_its_pools_exist() {
    let mut program = Program::new(2);
    for pid in 10..14 {
        program.start(pid, 1, 2);
    }
    program.step(5 * MS);
    assert_eq!(program.masks(&[10, 11, 12, 13]), "0 0 1 1");
    let mut at = |pid: i32, cpu_ns: u64, mapped_ns: u64, threads: u32| {
        let process = program.processes.get_mut(&pid).unwrap();
        (process.cpu_ns, process.mapped_at_cpu_ns) = (cpu_ns, Some(mapped_ns));
        process.working_threads = threads;
    };
    at(10, SECOND, SECOND / 2, 1);
    at(11, 3 * SECOND, 5 * SECOND / 2 + 1, 1);
    at(12, 3 * SECOND, SECOND, 2);
    at(13, SECOND - 1, 0, 1);
    program.step(15 * MS);
    assert_eq!(program.masks(&[10, 11, 12, 13]), "all 0 all 1");
    let states = [10, 11].map(|pid| program.state(pid).unwrap());
    assert_eq!(states, [CopyState::Widened, CopyState::Confined]);
    assert_eq!(program.state(12), Some(CopyState::Widened), "two threads");
}

#[test]
fn descendants_follow_their_copy_and_nested_copies_divide_its_part() {
    let mut program = Program::new(4);
    program.start(10, 1, 2);
    program.start(11, 1, 2);
    program.start(20, 10, 3);
    program.step(5 * MS);
    assert_eq!(program.masks(&[10, 11, 20]), "0-1 2-3 0-1");
    program.start(21, 10, 3);
    program.step(5 * MS);
    assert_eq!(program.masks(&[10, 20, 21]), "0-1 0 1");
}

#[test]
fn the_launcher_of_late_copies_is_narrowed_until_it_starts_no_more() {
    let mut program = Program::new(2);
    for pid in 10..14 {
        program.start(pid, 1, 2).working_threads = 2;
    }
    program.step(5 * MS);
    program.step(5 * MS);
    assert_eq!(
        program.masks(&[1, 10, 11, 12, 13]),
        "0 all all all all",
        "too many threads on one CPU would wait for one another"
    );
    // The next copy inherits its part, and a process of another executable gets the seat.
    program.end(13);
    program.start(14, 1, 2);
    program.start(15, 1, 9);
    assert_eq!(program.masks(&[14, 15]), "0 0");
    program.step(5 * MS);
    assert_eq!(program.masks(&[14, 15]), "1 all");
    (10..16).for_each(|pid| program.end(pid));
    program.step(5 * MS);
    assert_eq!(program.mask(1), "all");
}

#[test]
fn a_busy_or_multi_threaded_launcher_is_not_narrowed() {
    for (threads, cpu_ns) in [(2, 0), (1, SECOND)] {
        let mut program = Program::new(2);
        for pid in 10..12 {
            program.start(pid, 1, 2).working_threads = 2;
        }
        let launcher = program.processes.get_mut(&1).unwrap();
        (launcher.threads, launcher.cpu_ns) = (threads, cpu_ns);
        program.step(5 * MS);
        program.step(5 * MS);
        assert_eq!(program.masks(&[1, 10, 11]), "all all all");
    }
}

#[test]
fn forks_with_the_pool_of_their_parent_stay_confined() {
    let mut program = Program::new(2);
    for pid in 10..12 {
        let fork = program.start(pid, 1, 2);
        (fork.executed, fork.working_threads) = (false, 2);
    }
    program.step(25 * MS);
    program.step(25 * MS);
    for pid in 10..12 {
        program.processes.get_mut(&pid).unwrap().cpu_ns = 5 * SECOND;
    }
    program.step(25 * MS);
    assert_eq!(program.masks(&[1, 10, 11]), "all 0 1");
}

#[test]
fn copies_of_an_executable_that_uses_one_thread_are_not_confined_for_long() {
    let mut program = Program::new(2);
    let start = |program: &mut Program, pid, cpu_ns| {
        program.start(pid, 1, 2).cpu_ns = cpu_ns;
        program.step(5 * MS);
        program.end(pid - 2);
    };
    // Copies that use no CPU time show nothing.
    (10..30).for_each(|pid| start(&mut program, pid, 0));
    assert_eq!(program.state(29), Some(CopyState::Confined));
    (30..40).for_each(|pid| start(&mut program, pid, 10 * MS));
    program.start(38, 1, 2);
    program.step(5 * MS);
    assert_eq!(program.masks(&[38, 39]), "all all");
    assert_eq!(program.state(39), Some(CopyState::Serial));
    // Then a copy works with two threads.
    program.processes.get_mut(&39).unwrap().working_threads = 2;
    program.step(5 * MS);
    assert_eq!(program.state(39), Some(CopyState::Widened));
    program.end(38);
    program.start(40, 1, 2);
    program.step(5 * MS);
    assert_eq!(program.state(40), Some(CopyState::Confined));
}

#[test]
fn a_copy_that_chose_its_cpus_is_left_alone() {
    let mut program = Program::new(2);
    program.start(10, 1, 2);
    program.start(11, 1, 2);
    program.step(5 * MS);
    program.planner.leave_alone(program.processes[&10].id);
    program.masks.insert(10, CpuSet::single(1));
    program.step_with(&CpuSet::single(0), 5 * MS);
    assert_eq!(program.masks(&[10, 11]), "1 0");
    assert_eq!(program.state(10), Some(CopyState::LeftAlone));
}

#[test]
fn masks_are_set_again_after_a_change_of_the_whole_program() {
    let mut program = Program::new(2);
    program.start(10, 1, 2);
    program.start(11, 1, 2);
    program.step(5 * MS);
    program.masks.clear();
    program.step(5 * MS);
    assert_eq!(program.masks(&[10, 11]), "all all");
    program.planner.masks_changed();
    program.step(5 * MS);
    assert_eq!(program.masks(&[10, 11]), "0 1");
}

proptest! {
    /// After the end of all copies, no process keeps a mask, whichever processes started and ended
    /// before, and every mask is within the seat.
    #[test]
    fn no_mask_outlives_the_copies(
        steps in prop::collection::vec((0u8..8, 2i32..20, 1i32..8, 1u64..3, 0u64..400), 1..80),
    ) {
        let mut program = Program::new(3);
        for (action, pid, parent, executable, after_ms) in steps {
            let has_parent = program.processes.contains_key(&parent);
            match action {
                0..=2 if has_parent && parent < pid && !program.processes.contains_key(&pid) => {
                    program.start(pid, parent, executable);
                }
                3 => {
                    let below = |one: &TreeProcess| one.parent == pid;
                    if pid != 1 && !program.processes.values().any(below) {
                        program.end(pid);
                    }
                }
                4 => if let Some(process) = program.processes.get_mut(&pid) {
                    process.working_threads = 3;
                },
                5 => if let Some(process) = program.processes.get_mut(&pid) {
                    process.cpu_ns += 3 * SECOND;
                    process.idle_since_ns = None;
                },
                6 => if let Some(process) = program.processes.get_mut(&pid) {
                    process.idle_since_ns = Some(program.at_ns);
                },
                7 => if let Some(process) = program.processes.get_mut(&pid) {
                    process.is_runnable = !process.is_runnable;
                },
                _ => {}
            }
            let seat = CpuSet::range(0, after_ms as u32 % 3);
            program.step_with(&seat, after_ms * MS);
            for mask in program.masks.values() {
                prop_assert!(!mask.is_empty() && mask.is_subset(&seat), "{mask} {seat}");
            }
        }
        let others: Vec<i32> = program.processes.keys().copied().filter(|&pid| pid != 1).collect();
        others.into_iter().for_each(|pid| program.end(pid));
        program.step(300 * MS);
        prop_assert!(program.masks.is_empty(), "{:?}", program.masks);
    }
}
