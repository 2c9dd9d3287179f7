// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is ready is not kept from those who have nothing to do; and everybody's turn
//! comes, also where tasks hand on to one another for long.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use usher_tasks::{Counters, Graph, GraphBuilder, Groups, Policy, Runtime};

/// Longer than anything here takes; who waits for so long waits in vain.
const LONG: Duration = Duration::from_secs(60);

/// So many tasks that wait for one another.
struct Meeting {
    come: AtomicUsize,
    all: usize,
}

impl Meeting {
    fn of(all: usize) -> Self {
        let come = AtomicUsize::new(0);
        Self { come, all }
    }

    /// One has come, and waits for the others: for those of this round, where there are
    /// several. Whether they come.
    fn wait(&self) -> bool {
        let come = self.come.fetch_add(1, Ordering::AcqRel) + 1;
        let until = come.div_ceil(self.all) * self.all;
        let begun = Instant::now();
        while self.come.load(Ordering::Acquire) < until {
            if begun.elapsed() > LONG {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

/// Tasks of which each waits for those named.
fn graph<B: Fn(usize) + Sync>(waits: &[&[usize]], body: B) -> Graph<B> {
    let mut builder = GraphBuilder::new();
    for _ in waits {
        builder.task();
    }
    for (task, before) in waits.iter().enumerate() {
        for &before in *before {
            builder.after(task, before);
        }
    }
    builder.build(body).unwrap()
}

/// Waits until all workers but one sleep, who calls.
fn others_sleep(runtime: &Runtime) {
    let counters = || runtime.counters().0;
    loop {
        let before = counters();
        std::thread::yield_now();
        let now = counters();
        let is_asleep = |(now, before): &(&Counters, &Counters)| {
            now.asleep_ns > before.asleep_ns && now.sleeps == before.sleeps
        };
        let asleep = now.iter().zip(&before).filter(is_asleep);
        if asleep.count() == runtime.workers() - 1 {
            return;
        }
    }
}

#[test]
fn a_worker_keeps_nothing_back_that_waits_for_what_it_runs() {
    for workers in 2..=6 {
        let runtime = Runtime::new(workers).unwrap();
        let meeting = Meeting::of(workers);
        let mut waits: Vec<&[usize]> = vec![&[0]; workers + 1];
        waits[0] = &[];
        let mut graph = graph(&waits, |task| {
            if task > 0 {
                assert!(meeting.wait(), "{workers} workers");
            }
        });
        (0..50).for_each(|_| runtime.run(&mut graph).unwrap());
    }
}

#[test]
fn one_after_the_other_is_woken_for_what_was_laid_out_at_once() {
    for workers in [3, 5, 8, 16, 40] {
        let runtime = Runtime::new(workers).unwrap();
        let meeting = Meeting::of(workers);
        let mut waits: Vec<&[usize]> = vec![&[0]; workers + 1];
        waits[0] = &[];
        let mut graph = graph(&waits, |task| match task {
            0 => others_sleep(&runtime),
            _ => assert!(meeting.wait(), "{workers} workers"),
        });
        (0..5).for_each(|_| runtime.run(&mut graph).unwrap());
    }
}

/// After the first task come a short and a long one, after the short one two long ones.
#[test]
fn children_are_not_hidden_behind_what_was_laid_out_before() {
    for children in [2, 3] {
        let workers = children + 1;
        let runtime = Runtime::new(workers).unwrap();
        let meeting = Meeting::of(workers);
        let mut waits: Vec<&[usize]> = vec![&[], &[0], &[0]];
        waits.resize(3 + children, &[1]);
        let mut graph = graph(&waits, |task| match task {
            0 => others_sleep(&runtime),
            1 => (),
            _ => assert!(meeting.wait(), "{workers} workers"),
        });
        (0..20).for_each(|_| runtime.run(&mut graph).unwrap());
    }
}

/// A task that makes several ready and then waits for all of them.
#[test]
fn all_tasks_that_a_running_one_makes_ready_are_seen() {
    for policy in [Policy::Usher, Policy::Fcfs] {
        for workers in [2, 3, 4, 6, 9] {
            let runtime = Arc::new(Runtime::with_policy(workers, policy).unwrap());
            let meeting = Arc::new(Meeting::of(workers));
            let (tell, told) = mpsc::channel();
            let (inside, met) = (Arc::clone(&runtime), Arc::clone(&meeting));
            let parent = move || {
                others_sleep(&inside);
                for token in 1..workers as u64 {
                    let (met, tell) = (Arc::clone(&meeting), tell.clone());
                    let child = move || tell.send(met.wait()).unwrap();
                    inside.register(token, 0, Groups::NONE, child).unwrap();
                }
                let all_come = meeting.wait();
                drop(inside);
                tell.send(all_come).unwrap();
            };
            runtime.register(0, 0, Groups::NONE, parent).unwrap();
            drop(met);
            for _ in 0..workers {
                assert_eq!(told.recv(), Ok(true), "{policy:?}, {workers} workers");
            }
            runtime.wait().unwrap();
        }
    }
}

/// How many tasks of a long chain had run when something else did, that `begin` makes
/// ready when the first one runs.
fn ran_before(begin: impl Fn(&Runtime, Box<dyn FnOnce() + Send>) + Sync) -> usize {
    let runtime = Runtime::new(1).unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let (tell, told) = mpsc::channel();
    let mut chain = GraphBuilder::new();
    for task in 0..100_000 {
        chain.task();
        if task > 0 {
            chain.after(task, task - 1);
        }
    }
    let body = |task: usize| {
        if task == 0 {
            let (ran, tell) = (Arc::clone(&ran), tell.clone());
            let look = move || tell.send(ran.load(Ordering::Relaxed)).unwrap();
            begin(&runtime, Box::new(look));
        }
        ran.fetch_add(1, Ordering::Relaxed);
    };
    runtime.run(&mut chain.build(body).unwrap()).unwrap();
    runtime.wait().unwrap();
    told.recv().unwrap()
}

#[test]
fn a_graph_that_is_one_chain_lets_others_have_their_turn() {
    let from_outside = ran_before(|runtime, look| {
        std::thread::scope(|scope| {
            let register = || runtime.register(1, 0, Groups::NONE, look).unwrap();
            scope.spawn(register);
        });
    });
    assert!(from_outside <= 64, "{from_outside} ran before");
    let beside = ran_before(|runtime, look| {
        runtime.register(1, 0, Groups::NONE, look).unwrap();
    });
    assert!(beside <= 1024, "{beside} ran before");
}

#[test]
fn what_is_ready_when_a_runtime_is_dropped_runs() {
    for policy in [Policy::Usher, Policy::Lcfs] {
        for workers in [1, 2] {
            let ran = Arc::new(AtomicUsize::new(0));
            for _ in 0..300 {
                let runtime = Runtime::with_policy(workers, policy).unwrap();
                for token in 0..3 {
                    let ran = Arc::clone(&ran);
                    let count = move || {
                        ran.fetch_add(1, Ordering::Relaxed);
                    };
                    runtime.register(token, 0, Groups::NONE, count).unwrap();
                }
                drop(runtime);
            }
            assert_eq!(ran.load(Ordering::Relaxed), 900, "{policy:?}");
        }
    }
}
