// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is ready is not kept from those who have nothing to do; and everybody's turn
//! comes, also where tasks hand on to one another for long.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use usher_tasks::{Counters, Graph, GraphBuilder, Groups, Handle, Policy, Runtime, TaskError};

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
        for workers in [2, 3, 4, 6, 9, 40] {
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

/// So many tasks of which each tells when it runs.
fn register_telling(runtime: &Runtime, tokens: std::ops::Range<u64>, tell: &mpsc::Sender<u64>) {
    for token in tokens {
        let tell = tell.clone();
        let child = move || tell.send(token).unwrap();
        runtime.register(token, 0, Groups::NONE, child).unwrap();
    }
}

/// Whether that many have been told of, in any order.
fn all_told(told: &mpsc::Receiver<u64>, count: usize) -> bool {
    (0..count).all(|_| told.recv_timeout(LONG).is_ok())
}

#[test]
fn who_comes_to_be_free_later_sees_all_that_a_running_task_has_made_ready() {
    for children in [1, 4, 5, 40, 300] {
        let runtime = Arc::new(Runtime::new(2).unwrap());
        let (hold, held) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let busy = move || {
            begun.send(()).unwrap();
            let _ = held.recv();
        };
        runtime.register(1, 0, Groups::NONE, busy).unwrap();
        begins.recv().unwrap();
        let inside = Arc::clone(&runtime);
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let parent = move || {
            register_telling(&inside, 2..2 + children, &tell);
            drop((hold, inside));
            end.send(all_told(&told, children as usize)).unwrap();
        };
        runtime.register(0, 0, Groups::NONE, parent).unwrap();
        assert_eq!(ended.recv(), Ok(true), "{children} children");
        runtime.wait().unwrap();
    }
}

#[test]
fn a_join_does_not_hide_what_lies_beside_it() {
    let runtime = Arc::new(Runtime::new(2).unwrap());
    for _ in 0..300 {
        let inside = Arc::clone(&runtime);
        let (end, ended) = mpsc::channel();
        let parent = move || {
            let (tell, told) = mpsc::channel();
            register_telling(&inside, 1..3, &tell);
            let ((), all) = inside.join(|| (), move || all_told(&told, 2));
            drop(inside);
            end.send(all).unwrap();
        };
        runtime.register(0, 0, Groups::NONE, parent).unwrap();
        assert_eq!(ended.recv(), Ok(true));
        runtime.wait().unwrap();
    }
}

/// Registers tasks from outside until the runtime takes none, as it is being dropped.
fn until_closing(handle: &Handle) {
    let none_of_it = || ();
    let register = || handle.register(1, 0, Groups::NONE, none_of_it);
    while !matches!(register(), Err(TaskError::Ended { .. })) {
        std::thread::yield_now();
    }
}

#[test]
fn workers_stay_while_somebody_may_make_something_ready() {
    for policy in [Policy::Usher, Policy::Fcfs] {
        for workers in [2, 2, 5, 5] {
            let runtime = Runtime::with_policy(workers, policy).unwrap();
            let (inside, outside) = (runtime.handle(), runtime.handle());
            let (close, closing) = mpsc::channel();
            let (begin, begun) = mpsc::channel();
            let (end, ended) = mpsc::channel();
            let root = move || {
                begin.send(()).unwrap();
                closing.recv().unwrap();
                // Time to leave, for those who would.
                (0..1000).for_each(|_| std::thread::yield_now());
                let meeting = Arc::new(Meeting::of(workers));
                for token in 2..=workers as u64 {
                    let met = Arc::clone(&meeting);
                    let child = move || {
                        met.wait();
                    };
                    inside.register(token, 0, Groups::NONE, child).unwrap();
                }
                end.send(meeting.wait()).unwrap();
            };
            runtime.register(0, 0, Groups::NONE, root).unwrap();
            begun.recv().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    until_closing(&outside);
                    close.send(()).unwrap();
                });
                drop(runtime);
            });
            assert_eq!(ended.recv(), Ok(true), "{policy:?}, {workers} workers");
        }
    }
}

#[test]
fn a_runtime_may_be_dropped_last_by_its_own_task() {
    for policy in [Policy::Usher, Policy::Fcfs] {
        for workers in [1, 2, 5] {
            let runtime = Arc::new(Runtime::with_policy(workers, policy).unwrap());
            let inside = Arc::clone(&runtime);
            let (go, gone) = mpsc::channel();
            let (end, ended) = mpsc::channel();
            let last = move || {
                gone.recv().unwrap();
                let handle = inside.handle();
                drop(inside);
                let child = move || end.send(()).unwrap();
                // What its tasks register runs all the same.
                handle.register(1, 0, Groups::NONE, child).unwrap();
            };
            runtime.register(0, 0, Groups::NONE, last).unwrap();
            drop(runtime);
            go.send(()).unwrap();
            assert_eq!(ended.recv_timeout(LONG), Ok(()), "{policy:?}, {workers}");
        }
    }
}

/// How many tasks of a long chain had run when something else did, that `begin` makes
/// ready when the first one runs; other workers are busy.
fn ran_before(workers: usize, begin: impl Fn(&Runtime, Box<dyn FnOnce() + Send>) + Sync) -> usize {
    let runtime = Runtime::new(workers).unwrap();
    let busy = (1..workers).map(|_| mpsc::channel::<()>());
    let (hold, held): (Vec<_>, Vec<_>) = busy.unzip();
    for (token, held) in (100..).zip(held) {
        let (begun, begins) = mpsc::channel();
        let busy = move || {
            begun.send(()).unwrap();
            let _ = held.recv();
        };
        runtime.register(token, 0, Groups::NONE, busy).unwrap();
        begins.recv().unwrap();
    }
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
    drop(hold);
    runtime.wait().unwrap();
    told.recv().unwrap()
}

#[test]
fn a_graph_that_is_one_chain_lets_others_have_their_turn() {
    for workers in [1, 2] {
        let from_outside = ran_before(workers, |runtime, look| {
            std::thread::scope(|scope| {
                let register = || runtime.register(1, 0, Groups::NONE, look).unwrap();
                scope.spawn(register);
            });
        });
        assert!(from_outside <= 64, "{from_outside} ran before");
        let beside = ran_before(workers, |runtime, look| {
            runtime.register(1, 0, Groups::NONE, look).unwrap();
        });
        assert!(beside <= 1024 * workers, "{beside} ran before");
    }
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
