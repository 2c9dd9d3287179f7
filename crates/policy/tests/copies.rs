// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies inside a program: the division of a seat compared with brute force, and the recognition,
//! confinement and release of copies.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::machine;
use proptest::prelude::*;
use usher_model::{CpuSet, ProcessId, Topology, TreeProcess};
use usher_policy::copies::{CopyPlanner, CopyState, divide};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// Builds a machine with these numbers of cores per cache.
fn caches(cores: &[usize], smt: u32) -> Topology {
    let domains = cores.iter().map(|&count| vec![1.0; count]).collect();
    machine(&vec![vec![domains]], smt, 1 << 20)
}

/// Returns the number of groups (caches or cores) of a part, minus one.
fn splits(part: &CpuSet, group: impl Fn(u32) -> usize) -> usize {
    let groups: BTreeSet<usize> = part.iter().map(group).collect();
    usize::from(groups.len() > 1)
}

/// Returns the least number of split parts over all orders of larger and smaller consecutive parts.
fn least_splits(groups: &[usize], copies: usize) -> usize {
    let (least, larger) = (groups.len() / copies, groups.len() % copies);
    (0u32..1 << copies)
        .filter(|order| order.count_ones() as usize == larger)
        .map(|order| {
            let mut begin = 0;
            let mut split = 0;
            for copy in 0..copies {
                let end = begin + least + usize::from(order & (1 << copy) != 0);
                split += usize::from(groups[begin] != groups[end - 1]);
                begin = end;
            }
            split
        })
        .min()
        .unwrap()
}

proptest! {
    #[test]
    fn a_division_is_even_complete_and_splits_as_few_groups_as_possible(
        cores in prop::collection::vec(1usize..5, 1..4),
        smt in 1u32..3,
        copies in 1usize..14,
        without in prop::collection::btree_set(0u32..16, 0..4),
    ) {
        let machine = caches(&cores, smt);
        let removed: CpuSet = without.into_iter().collect();
        let seat = machine.all_cpus().minus(&removed);
        prop_assume!(!seat.is_empty());
        let parts = divide(&machine, &seat, copies);
        prop_assert_eq!(parts.len(), copies);
        let all = parts.iter().fold(CpuSet::new(), |all, part| all.or(part));
        prop_assert_eq!(&all, &seat);
        let core = |cpu: u32| machine.cpu(cpu).unwrap().core;
        let cache = |cpu: u32| machine.cores[core(cpu)].domain;
        let count = machine.cores_in(&seat).len();
        let sizes = |of: &dyn Fn(&CpuSet) -> usize| {
            let sizes: Vec<usize> = parts.iter().map(of).collect();
            (*sizes.iter().min().unwrap(), *sizes.iter().max().unwrap())
        };
        let (least, most) = if copies <= count {
            let groups: Vec<usize> =
                machine.cores_in(&seat).iter().map(|&c| machine.cores[c].domain).collect();
            let split: usize = parts.iter().map(|part| splits(part, cache)).sum();
            prop_assert_eq!(split, least_splits(&groups, copies));
            // No core is divided.
            let cores: usize = parts.iter().map(|part| machine.cores_in(part).len()).sum();
            prop_assert_eq!(cores, count);
            sizes(&|part| machine.cores_in(part).len())
        } else if copies <= seat.len() {
            let groups: Vec<usize> = machine
                .cores_in(&seat)
                .iter()
                .flat_map(|&c| machine.cores[c].cpus.and(&seat).iter().map(move |_| c).collect::<Vec<_>>())
                .collect();
            let split: usize = parts.iter().map(|part| splits(part, core)).sum();
            prop_assert_eq!(split, least_splits(&groups, copies));
            prop_assert_eq!(parts.iter().map(CpuSet::len).sum::<usize>(), seat.len());
            sizes(&CpuSet::len)
        } else {
            prop_assert!(parts.iter().all(|part| part.len() == 1));
            let mut load: BTreeMap<u32, usize> = BTreeMap::new();
            for part in &parts {
                *load.entry(part.first().unwrap()).or_default() += 1;
            }
            (*load.values().min().unwrap(), *load.values().max().unwrap())
        };
        prop_assert!(most - least <= 1, "{parts:?}");
    }
}

#[test]
fn copies_get_whole_cores_before_hardware_threads() {
    let machine = caches(&[2, 2], 2);
    let parts = |copies| {
        let parts = divide(&machine, &machine.all_cpus(), copies);
        parts
            .iter()
            .map(CpuSet::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(parts(2), "0-3 4-7");
    assert_eq!(parts(4), "0-1 2-3 4-5 6-7");
    assert_eq!(parts(6), "0-1 2-3 4 5 6 7");
    assert_eq!(parts(0), "");
}

/// A program whose processes the test adds and ends, and its planner.
struct Program {
    machine: Topology,
    planner: CopyPlanner,
    processes: BTreeMap<i32, TreeProcess>,
    masks: BTreeMap<i32, CpuSet>,
    at_ns: u64,
}

impl Program {
    fn new(cpus: usize) -> Self {
        let mut program = Self {
            machine: caches(&[cpus], 1),
            planner: CopyPlanner::default(),
            processes: BTreeMap::new(),
            masks: BTreeMap::new(),
            at_ns: SECOND,
        };
        program.start(1, 0, 1);
        program
    }

    /// Starts a process with an executable; it inherits the mask of its parent.
    fn start(&mut self, pid: i32, parent: i32, executable: u64) -> &mut TreeProcess {
        if let Some(mask) = self.masks.get(&parent).cloned() {
            self.masks.insert(pid, mask);
        }
        let process = TreeProcess {
            id: ProcessId {
                pid,
                start_ticks: self.at_ns,
            },
            parent,
            name: format!("exe{executable}"),
            executable: Some((0, executable)),
            shape: String::new(),
            executed: true,
            threads: 1,
            working_threads: 1,
            is_runnable: false,
            cpu_ns: 0,
            idle_since_ns: None,
            found_ns: self.at_ns,
            mapped_at_cpu_ns: Some(0),
        };
        self.processes.insert(pid, process);
        self.processes.get_mut(&pid).unwrap()
    }

    fn end(&mut self, pid: i32) {
        self.processes.remove(&pid);
        self.masks.remove(&pid);
    }

    fn step_with(&mut self, seat: &CpuSet, after_ns: u64) {
        self.at_ns += after_ns;
        let processes: Vec<TreeProcess> = self.processes.values().cloned().collect();
        let changes = self
            .planner
            .step(self.at_ns, &self.machine, seat, &processes);
        for change in changes {
            match change.cpus {
                Some(cpus) => self.masks.insert(change.process.pid, cpus),
                None => self.masks.remove(&change.process.pid),
            };
        }
    }

    fn step(&mut self, after_ns: u64) {
        self.step_with(&self.machine.all_cpus(), after_ns);
    }

    fn mask(&self, pid: i32) -> String {
        self.masks
            .get(&pid)
            .map_or("all".to_owned(), CpuSet::to_string)
    }

    fn masks(&self, pids: &[i32]) -> String {
        let masks: Vec<String> = pids.iter().map(|&pid| self.mask(pid)).collect();
        masks.join(" ")
    }

    fn state(&self, pid: i32) -> Option<CopyState> {
        let groups = self.planner.report();
        let mut copies = groups.iter().flat_map(|group| &group.copies);
        copies
            .find(|copy| copy.process.pid == pid)
            .map(|copy| copy.state)
    }
}

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

/// Four copies on two CPUs: two copies of one CPU run, those of the other CPU sleep.
#[test]
fn a_running_copy_is_exchanged_with_a_sleeping_copy_of_an_idle_part() {
    let mut program = Program::new(2);
    let pids = [10, 11, 12, 13];
    for pid in pids {
        program.start(pid, 1, 2);
    }
    program.step(5 * MS);
    assert_eq!(program.masks(&pids), "0 0 1 1");
    let run = |program: &mut Program, running: [i32; 2]| {
        for (pid, process) in &mut program.processes {
            process.is_runnable = running.contains(pid);
        }
        program.step(5 * MS);
    };
    run(&mut program, [10, 11]);
    run(&mut program, [10, 12]);
    run(&mut program, [10, 11]);
    assert_eq!(program.masks(&pids), "0 0 1 1", "never twice in succession");
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
        program.step(5 * MS);
    }
    assert_eq!(program.masks(&[10, 11, 12, 13]), "0 0 1 1");
    program.processes.get_mut(&12).unwrap().idle_since_ns = Some(program.at_ns);
    program.step(5 * MS);
    program.step(5 * MS);
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
