// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random calls against a model of what they should return.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;
mod model;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use oorandom::Rand64;
use usher_tasks_capi::error::Code;
use usher_tasks_capi::graph::GraphHandle;
use usher_tasks_capi::here::{Entry, usher_tasks_fail};

use common::*;
use model::Machine;

#[test]
fn any_calls_return_what_they_should() {
    each_seed(300, |random| {
        let mut machine = Machine::new(random);
        for _ in 0..random.rand_range(5..120) {
            machine.call(random);
        }
        machine.end();
    });
}

#[test]
fn any_graph_is_refused_or_runs_in_order() {
    each_seed(300, |random| {
        let tasks = random.rand_range(0..40) as usize;
        let case = GraphCase::random(random, tasks);
        let owner = Owner::new(random.rand_range(1..4) as u32);
        case.check(&owner);
    });
}

/// What a task of a graph notes.
struct Step<'a> {
    clock: &'a AtomicU64,
    at: AtomicU64,
    ran: AtomicU32,
    fails: bool,
}

unsafe extern "C-unwind" fn step(arg: *mut c_void) {
    // SAFETY: given below, and outlives the run.
    let step = unsafe { &*arg.cast::<Step<'_>>() };
    step.at
        .store(step.clock.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
    step.ran.fetch_add(1, Ordering::SeqCst);
    if step.fails {
        // SAFETY: a text.
        assert_eq!(unsafe { usher_tasks_fail(c"told to".as_ptr()) }, OK);
    }
}

/// Which tasks fail, and who waits for whom; the latter maybe in a circle.
struct GraphCase {
    fails: Vec<bool>,
    after: Vec<(usize, usize)>,
}

impl GraphCase {
    fn random(random: &mut Rand64, tasks: usize) -> Self {
        let fails_one_in = [1_u64 << 60, 20][random.rand_range(0..2) as usize];
        let one = |random: &mut Rand64, below: usize| random.rand_range(0..below as u64) as usize;
        let mut after = Vec::new();
        for _ in 0..if tasks == 0 {
            0
        } else {
            random.rand_range(0..80)
        } {
            let (a, b) = (one(random, tasks), one(random, tasks));
            if a != b {
                after.push((a.max(b), a.min(b)));
            }
        }
        if tasks > 0 && random.rand_range(0..5) == 0 {
            after.push((one(random, tasks), one(random, tasks)));
        }
        if random.rand_range(0..10) == 0 {
            after.push((tasks + one(random, 3), 0));
        }
        let fails = (0..tasks).map(|_| random.rand_range(0..fails_one_in) == 0);
        Self {
            fails: fails.collect(),
            after,
        }
    }

    /// What building should come to: by going from every task, as far as one gets.
    fn expected(&self) -> c_int {
        let count = self.fails.len();
        if self.after.iter().any(|&(a, b)| a.max(b) >= count) {
            return Code::Range as c_int;
        }
        let comes_back = |start: usize| {
            let mut seen = vec![false; count];
            let mut next = vec![start];
            while let Some(task) = next.pop() {
                for &(after, before) in &self.after {
                    if before == task && !std::mem::replace(&mut seen[after], true) {
                        next.push(after);
                    }
                }
            }
            seen[start]
        };
        match (0..count).any(comes_back) {
            true => Code::Cycle as c_int,
            false => OK,
        }
    }

    fn check(&self, owner: &Owner) {
        let clock = AtomicU64::new(0);
        let step_of = |&fails: &bool| Step {
            clock: &clock,
            at: AtomicU64::new(0),
            ran: AtomicU32::new(0),
            fails,
        };
        let steps: Vec<Step<'_>> = self.fails.iter().map(step_of).collect();
        let task = |one: &Step<'_>| {
            let arg = ptr::from_ref(one).cast_mut().cast();
            (Some(step as Entry), arg, (0, 0))
        };
        let tasks: Vec<_> = steps.iter().map(task).collect();
        let (code, graph, circle) = graph(&tasks, &self.after);
        assert_eq!(code, self.expected(), "{:?}", self.after);
        if code != OK {
            let next = circle.iter().cycle().skip(1);
            for (one, other) in circle.iter().zip(next) {
                let edge = (other.1 as usize, one.1 as usize);
                assert!(self.after.contains(&edge), "{edge:?} of {circle:?}");
            }
            assert_eq!(code == Code::Cycle as c_int, !circle.is_empty());
            return;
        }
        for run in 1..4 {
            self.check_run(owner, graph, &steps, run);
        }
        free(graph);
    }

    fn check_run(&self, owner: &Owner, graph: *mut GraphHandle, steps: &[Step<'_>], run: u32) {
        let (code, told, skipped) = owner.run(graph);
        if !self.fails.contains(&true) {
            assert_eq!((code, told, skipped), (OK, vec![], 0));
            assert!(
                steps
                    .iter()
                    .all(|step| step.ran.load(Ordering::SeqCst) == run)
            );
            for &(task, before) in &self.after {
                let at = |task: usize| steps[task].at.load(Ordering::SeqCst);
                assert!(at(before) < at(task), "{task} ran before {before}");
            }
            return;
        }
        assert_eq!(code, Code::Failed as c_int);
        assert!(!told.is_empty());
        for line in &told {
            assert_eq!(*line, failed(line.1, "told to"));
            assert!(self.fails[line.1 as usize]);
        }
        let ran = steps
            .iter()
            .map(|step| step.ran.swap(run, Ordering::SeqCst) + 1 - run);
        assert_eq!(u64::from(ran.sum::<u32>()) + skipped, steps.len() as u64);
    }
}
