// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies that share CPUs: copies that wait, and exchanges between parts.

use usher_model::TreeProcess;
use usher_policy::copies::CopyState;

use crate::program::{MS, Program, SECOND};

/// Starts two copies (10 and 11) of which the first has a fork (20) and the second sleeps, as
/// Python's fork server and its resource tracker.
fn fork_server(cpus: usize) -> Program {
    let mut program = Program::new(cpus);
    program.start(10, 1, 2);
    program.start(11, 1, 2).cpu_ns = 80 * MS;
    program.step(5 * MS);
    program.start(20, 10, 2).executed = false;
    program.processes.get_mut(&11).unwrap().idle_since_ns = Some(program.at_ns);
    program
}

#[test]
fn forks_of_a_copy_get_the_parts_of_copies_that_wait() {
    let mut program = fork_server(4);
    program.step(15 * MS);
    assert_eq!(program.masks(&[10, 11, 20]), "0-1 2-3 0-1");
    program.step(5 * MS);
    assert_eq!(program.masks(&[10, 11, 20]), "0-3 2-3 0-3");
    assert_eq!(program.state(11), Some(CopyState::Waiting));
    program.start(21, 10, 2).executed = false;
    program.step(20 * MS);
    assert_eq!(program.masks(&[20, 21]), "0-1 2-3");
}

#[test]
fn short_bursts_of_a_waiting_copy_change_no_mask() {
    let mut program = fork_server(4);
    program.step(20 * MS);
    for _ in 0..100 {
        let copy = program.processes.get_mut(&11).unwrap();
        (copy.cpu_ns, copy.idle_since_ns) = (copy.cpu_ns + 20 * MS, None);
        program.step(20 * MS);
        assert_eq!(program.masks(&[10, 11]), "0-3 2-3");
        program.processes.get_mut(&11).unwrap().idle_since_ns = Some(program.at_ns);
        program.step(20 * MS);
    }
    assert_eq!(program.state(11), Some(CopyState::Waiting));
}

#[test]
fn a_waiting_copy_that_works_gets_its_part_for_itself() {
    let wakes: [fn(&mut Program); 3] = [
        |program| {
            let copy = program.processes.get_mut(&11).unwrap();
            (copy.cpu_ns, copy.idle_since_ns) = (copy.cpu_ns + 30 * MS, None);
        },
        |program| program.processes.get_mut(&11).unwrap().threads = 2,
        |program| {
            program.start(30, 11, 9);
        },
    ];
    for wake in wakes {
        let mut program = fork_server(4);
        program.step(20 * MS);
        assert_eq!(program.masks(&[10, 11]), "0-3 2-3");
        wake(&mut program);
        program.step(5 * MS);
        assert_eq!(program.masks(&[10, 11, 20]), "0-1 2-3 0-1");
        assert_eq!(program.state(11), Some(CopyState::Confined));
    }
}

#[test]
fn a_copy_that_works_or_has_worked_does_not_wait() {
    let change: [fn(&mut TreeProcess); 3] = [
        |copy| copy.idle_since_ns = None,
        |copy| (copy.cpu_ns, copy.mapped_at_cpu_ns) = (SECOND, Some(SECOND)),
        |copy| copy.threads = 2,
    ];
    for change in change {
        let mut program = fork_server(4);
        change(program.processes.get_mut(&11).unwrap());
        program.step(20 * MS);
        assert_eq!(program.masks(&[10, 11, 20]), "0-1 2-3 0-1");
    }
}

#[test]
fn sleeping_copies_without_a_launcher_among_them_keep_their_parts() {
    let mut program = Program::new(4);
    for pid in 10..12 {
        program.start(pid, 1, 2).idle_since_ns = Some(0);
    }
    program.step(20 * MS);
    program.step(20 * MS);
    assert_eq!(program.masks(&[10, 11]), "0-1 2-3");
    assert_eq!(program.state(10), Some(CopyState::Confined));
}

/// Four copies on two CPUs: two copies of one CPU run, those of the other CPU sleep.
#[test]
fn a_running_copy_is_exchanged_with_a_sleeping_copy_of_an_idle_part() {
    let mut program = Program::new(2);
    let pids = [10, 11, 12, 13];
    for pid in pids {
        program.start(pid, 1, 2);
    }
    program.step(10 * MS);
    assert_eq!(program.masks(&pids), "0 0 1 1");
    let run = |program: &mut Program, running: [i32; 2]| {
        for (pid, process) in &mut program.processes {
            process.is_runnable = running.contains(pid);
        }
        program.step(10 * MS);
    };
    run(&mut program, [10, 11]);
    run(&mut program, [10, 12]);
    run(&mut program, [10, 11]);
    program.step(MS);
    program.step(MS);
    assert_eq!(program.masks(&pids), "0 0 1 1", "never twice within 10 ms");
    run(&mut program, [10, 11]);
    assert_eq!(program.masks(&pids), "0 1 0 1");
    // A child process counts for its copy.
    program.start(20, 10, 3);
    run(&mut program, [20, 12]);
    run(&mut program, [20, 12]);
    assert_eq!(program.masks(&[10, 20, 11, 12, 13]), "0 0 0 1 1");
}

/// The main thread of a copy may wait while its other threads work.
#[test]
fn a_part_whose_copy_may_work_in_another_thread_is_not_idle() {
    let mut program = Program::new(2);
    for pid in [10, 11, 12, 13] {
        program.start(pid, 1, 2).is_runnable = pid < 12;
    }
    program.processes.get_mut(&12).unwrap().threads = 2;
    for _ in 0..4 {
        program.step(10 * MS);
    }
    assert_eq!(program.masks(&[10, 11, 12, 13]), "0 0 1 1");
    program.processes.get_mut(&12).unwrap().idle_since_ns = Some(program.at_ns);
    program.step(10 * MS);
    program.step(10 * MS);
    assert_eq!(program.masks(&[10, 11, 12, 13]), "0 1 0 1");
}

#[test]
fn copies_with_parts_of_their_own_are_not_exchanged() {
    let mut program = Program::new(4);
    program.start(10, 1, 2).is_runnable = true;
    program.start(11, 1, 2);
    program.step(5 * MS);
    program.step(5 * MS);
    program.step(5 * MS);
    assert_eq!(program.masks(&[10, 11]), "0-1 2-3");
}
