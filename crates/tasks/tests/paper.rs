// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the dispatchers with paper 5: with an implementation of the listing in section 4.2, and
//! with figure 4.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use usher_tasks::dispatch::{Dispatcher, Fcfs, Groups, Lcfs, Paper};

/// The listing of paper 5, section 4.2, implemented line by line with sets. The numbers in comments
/// are lines of the listing.
struct Listing {
    /// The queues of ready tasks, by temporal and spatial group. Empty queues are removed.
    pool: BTreeMap<(u32, u32), VecDeque<usize>>,
    /// The spatial groups associated with each core.
    cores: Vec<BTreeSet<u32>>,
    /// The active temporal group, T' in the listing.
    active: Option<u32>,
}

impl Listing {
    fn groups_ready_in(&self, t: u32) -> BTreeSet<u32> {
        let of_t = self.pool.keys().filter(|(of, _)| *of == t);
        of_t.map(|(_, s)| *s).collect()
    }

    fn dispatch(&mut self, core: usize) -> Option<usize> {
        let target = 'found: {
            // Label HEAD of the listing.
            loop {
                if let Some(t) = self.active {
                    let ready = self.groups_ready_in(t);
                    // lines 2, 3
                    if let Some(s) = ready.intersection(&self.cores[core]).next() {
                        break 'found (t, *s);
                    }
                    // lines 4, 5
                    if ready.contains(&0) {
                        break 'found (t, 0);
                    }
                    // lines 6, 7, 8
                    if let Some(&s) = ready.first() {
                        self.associate(s, core);
                        break 'found (t, s);
                    }
                }
                // lines 9, 10, 11
                let others: BTreeSet<u32> = self.pool.keys().map(|(t, _)| *t).collect();
                let mut others = others.into_iter();
                match others.find(|t| *t != 0 && Some(*t) != self.active) {
                    Some(other) => self.active = Some(other),
                    None => break,
                }
            }
            let ready = self.groups_ready_in(0);
            // lines 12, 13
            if let Some(s) = ready.intersection(&self.cores[core]).next() {
                break 'found (0, *s);
            }
            // lines 14, 15
            if ready.contains(&0) {
                break 'found (0, 0);
            }
            // lines 16, 17, 18
            if let Some(&s) = ready.first() {
                self.associate(s, core);
                break 'found (0, s);
            }
            // line 20
            return None;
        };
        // line 22
        let queue = self.pool.get_mut(&target).unwrap();
        let task = queue.pop_front().unwrap();
        if queue.is_empty() {
            self.pool.remove(&target);
        }
        Some(task)
    }

    fn associate(&mut self, s: u32, core: usize) {
        self.cores.iter_mut().for_each(|of| {
            of.remove(&s);
        });
        self.cores[core].insert(s);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Ready(u32, u32),
    Next(usize),
}

const T_COUNT: u32 = 4;
const S_COUNT: u32 = 5;
const CORES: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..T_COUNT, 0..S_COUNT).prop_map(|(t, s)| Step::Ready(t, s)),
        (0..CORES).prop_map(Step::Next),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_dispatcher_matches_the_listing(steps in prop::collection::vec(step(), 0..200)) {
        let mut ours = Paper::new(CORES, T_COUNT as usize, S_COUNT as usize);
        let mut listing = Listing {
            pool: BTreeMap::new(),
            cores: vec![BTreeSet::new(); CORES],
            active: None,
        };
        for (task, step) in steps.into_iter().enumerate() {
            match step {
                Step::Ready(t, s) => {
                    ours.ready(task, Groups::new(t, s));
                    listing.pool.entry((t, s)).or_default().push_back(task);
                }
                Step::Next(core) => {
                    let next = ours.next(core).map(|dispatch| dispatch.item);
                    prop_assert_eq!(next, listing.dispatch(core));
                }
            }
            let ready: usize = listing.pool.values().map(VecDeque::len).sum();
            prop_assert_eq!(ours.len(), ready);
            for s in 1..S_COUNT {
                let owner = listing.cores.iter().position(|of| of.contains(&s));
                prop_assert_eq!(ours.owner(s), owner);
            }
        }
    }
}

/// Runs tasks of one time unit each, with all cores in lockstep, and returns the number of time
/// units.
fn units(dispatcher: &mut dyn Dispatcher<usize>, cores: usize, tasks: &[Vec<usize>]) -> usize {
    let mut waits: Vec<usize> = vec![0; tasks.len()];
    tasks.iter().flatten().for_each(|&after| waits[after] += 1);
    for (task, _) in waits.iter().enumerate().filter(|(_, count)| **count == 0) {
        dispatcher.ready(task, Groups::NONE);
    }
    let mut unit = 0;
    while !dispatcher.is_empty() {
        let running: Vec<usize> = (0..cores)
            .filter_map(|core| Some(dispatcher.next(core)?.item))
            .collect();
        for after in running.iter().flat_map(|&task| &tasks[task]) {
            waits[*after] -= 1;
            if waits[*after] == 0 {
                dispatcher.ready(*after, Groups::NONE);
            }
        }
        unit += 1;
    }
    assert!(waits.iter().all(|count| *count == 0), "a task never ran");
    unit
}

/// Returns the successors of each task in a graph that consists of chains of these lengths.
fn chains(lengths: &[usize]) -> Vec<Vec<usize>> {
    let mut tasks = Vec::new();
    for &length in lengths {
        let last = tasks.len() + length - 1;
        tasks.extend((tasks.len()..=last).map(|task| match task == last {
            true => vec![],
            false => vec![task + 1],
        }));
    }
    tasks
}

/// Figure 4 of paper 5 shows 24 tasks of one time unit each, of which at most four run at a time.
/// The order LCFS delays one task until only its successors are left, which then run alone. The
/// figure does not show the dependencies; the chains of this test have the described behaviour. The
/// cores of this test run in lockstep. `usher_chip::figure4` runs the same tasks on a simulated
/// chip with a clock.
#[test]
fn in_lockstep_the_order_lcfs_takes_two_units_more_on_three_cores_and_none_on_four() {
    let tasks = chains(&[3, 7, 7, 7]);
    assert_eq!(tasks.len(), 24);
    let fcfs = |cores| units(&mut Fcfs::default(), cores, &tasks);
    let lcfs = |cores| units(&mut Lcfs::default(), cores, &tasks);
    assert_eq!((fcfs(3), lcfs(3)), (8, 10));
    assert_eq!((fcfs(4), lcfs(4)), (7, 7));
}

/// Without groups, the dispatcher of paper 5 has the same order as the paper's baseline, first
/// come, first served.
#[test]
fn without_groups_it_is_first_come_first_served() {
    let (mut paper, mut fcfs) = (Paper::new(2, 1, 1), Fcfs::default());
    for task in 0..10 {
        paper.ready(task, Groups::NONE);
        fcfs.ready(task, Groups::NONE);
    }
    for worker in [0, 1].repeat(6) {
        let ours = paper.next(worker).map(|dispatch| dispatch.item);
        assert_eq!(ours, fcfs.next(worker).map(|dispatch| dispatch.item));
    }
}
