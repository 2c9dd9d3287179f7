// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that idle workers find ready tasks, and that no task starves while a long chain of other
//! tasks runs.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use usher_tasks::{
    Counters, Graph, GraphBuilder, Groups, Handle, Policy, Runtime, RuntimeBuilder, TaskError,
};

/// A deadline that is longer than any wait of these tests.
const LONG: Duration = Duration::from_secs(60);

/// A barrier with a deadline: all of a number of tasks must arrive before any of them continues.
struct Rendezvous {
    arrived: AtomicUsize,
    all: usize,
}

impl Rendezvous {
    fn of(all: usize) -> Self {
        let arrived = AtomicUsize::new(0);
        Self { arrived, all }
    }

    /// Waits until all tasks of the round have arrived at the barrier. Returns false if the
    /// deadline has passed before.
    fn wait(&self) -> bool {
        let arrived = self.arrived.fetch_add(1, Ordering::AcqRel) + 1;
        let until = arrived.div_ceil(self.all) * self.all;
        let begun = Instant::now();
        while self.arrived.load(Ordering::Acquire) < until {
            if begun.elapsed() > LONG {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

/// Creates a graph in which task `i` depends on the tasks in `waits[i]`.
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

/// Starts workers that all run at the same time, whatever the number of CPUs is.
fn runtime(workers: usize, policy: Policy) -> Runtime {
    let builder = RuntimeBuilder::new(workers).policy(policy);
    builder.follow_cpus(false).build().unwrap()
}

/// Waits until all workers except the calling worker sleep.
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
fn tasks_that_the_running_one_waits_for_are_published() {
    for workers in 2..=6 {
        let runtime = runtime(workers, Policy::Usher);
        let rendezvous = Rendezvous::of(workers);
        let mut waits: Vec<&[usize]> = vec![&[0]; workers + 1];
        waits[0] = &[];
        let mut graph = graph(&waits, |task| {
            if task > 0 {
                assert!(rendezvous.wait(), "{workers} workers");
            }
        });
        (0..50).for_each(|_| runtime.run(&mut graph).unwrap());
    }
}

#[test]
fn every_sleeper_is_woken_for_published_tasks() {
    for workers in [3, 5, 8, 16, 40] {
        let runtime = runtime(workers, Policy::Usher);
        let rendezvous = Rendezvous::of(workers);
        let mut waits: Vec<&[usize]> = vec![&[0]; workers + 1];
        waits[0] = &[];
        let mut graph = graph(&waits, |task| match task {
            0 => others_sleep(&runtime),
            _ => assert!(rendezvous.wait(), "{workers} workers"),
        });
        (0..5).for_each(|_| runtime.run(&mut graph).unwrap());
    }
}

/// Task 0 is followed by tasks 1 and 2, and task 1 by 2 or 3 further tasks. All but tasks 0 and 1
/// wait for one another, so they must run at the same time on different workers. Task 1 ends at
/// once, while a worker that was woken for task 2 may not have found it yet.
#[test]
fn new_tasks_are_published_for_sleeping_workers() {
    for children in [2, 3] {
        let workers = children + 1;
        let runtime = runtime(workers, Policy::Usher);
        let rendezvous = Rendezvous::of(workers);
        let mut waits: Vec<&[usize]> = vec![&[], &[0], &[0]];
        waits.resize(3 + children, &[1]);
        let mut graph = graph(&waits, |task| match task {
            0 => others_sleep(&runtime),
            1 => (),
            _ => assert!(rendezvous.wait(), "{workers} workers"),
        });
        (0..20).for_each(|_| runtime.run(&mut graph).unwrap());
    }
}

/// A running task makes several tasks ready by token, and then waits for all of them at a barrier.
#[test]
fn tasks_made_ready_by_a_running_task_are_visible() {
    for policy in [Policy::Usher, Policy::Fcfs] {
        for workers in [2, 3, 4, 6, 9, 40] {
            let runtime = Arc::new(runtime(workers, policy));
            let rendezvous = Arc::new(Rendezvous::of(workers));
            let (sender, receiver) = mpsc::channel();
            let (inside, other) = (Arc::clone(&runtime), Arc::clone(&rendezvous));
            let parent = move || {
                others_sleep(&inside);
                for token in 1..workers as u64 {
                    let (other, sender) = (Arc::clone(&rendezvous), sender.clone());
                    let child = move || sender.send(other.wait()).unwrap();
                    inside.register(token, 0, Groups::NONE, child).unwrap();
                }
                let all_arrived = rendezvous.wait();
                drop(inside);
                sender.send(all_arrived).unwrap();
            };
            runtime.register(0, 0, Groups::NONE, parent).unwrap();
            drop(other);
            for _ in 0..workers {
                assert_eq!(receiver.recv(), Ok(true), "{policy:?}, {workers} workers");
            }
            runtime.wait().unwrap();
        }
    }
}

/// Registers tasks that each send their token when they run.
fn register_sending(runtime: &Runtime, tokens: std::ops::Range<u64>, sender: &mpsc::Sender<u64>) {
    for token in tokens {
        let sender = sender.clone();
        let child = move || sender.send(token).unwrap();
        runtime.register(token, 0, Groups::NONE, child).unwrap();
    }
}

/// Returns whether `count` tokens arrive before the deadline, in any order.
fn all_received(receiver: &mpsc::Receiver<u64>, count: usize) -> bool {
    (0..count).all(|_| receiver.recv_timeout(LONG).is_ok())
}

#[test]
fn a_worker_that_becomes_idle_later_sees_tasks_of_a_running_one() {
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
        let (sender, receiver) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let parent = move || {
            register_sending(&inside, 2..2 + children, &sender);
            drop((hold, inside));
            end.send(all_received(&receiver, children as usize))
                .unwrap();
        };
        runtime.register(0, 0, Groups::NONE, parent).unwrap();
        assert_eq!(ended.recv(), Ok(true), "{children} children");
        runtime.wait().unwrap();
    }
}

#[test]
fn join_does_not_hide_the_overflow_slot() {
    let runtime = Arc::new(Runtime::new(2).unwrap());
    for _ in 0..300 {
        let inside = Arc::clone(&runtime);
        let (end, ended) = mpsc::channel();
        let parent = move || {
            let (sender, receiver) = mpsc::channel();
            register_sending(&inside, 1..3, &sender);
            let ((), all) = inside.join(|| (), move || all_received(&receiver, 2));
            drop(inside);
            end.send(all).unwrap();
        };
        runtime.register(0, 0, Groups::NONE, parent).unwrap();
        assert_eq!(ended.recv(), Ok(true));
        runtime.wait().unwrap();
    }
}

/// Registers tasks from outside until the runtime rejects them because it is being dropped.
fn until_closing(handle: &Handle) {
    let no_op = || ();
    let register = || handle.register(1, 0, Groups::NONE, no_op);
    while !matches!(register(), Err(TaskError::Ended { .. })) {
        std::thread::yield_now();
    }
}

#[test]
fn workers_stay_while_a_task_may_make_others_ready() {
    for policy in [Policy::Usher, Policy::Fcfs] {
        for workers in [2, 2, 5, 5] {
            let runtime = runtime(workers, policy);
            let (inside, outside) = (runtime.handle(), runtime.handle());
            let (close, closing) = mpsc::channel();
            let (begin, begun) = mpsc::channel();
            let (end, ended) = mpsc::channel();
            let root = move || {
                begin.send(()).unwrap();
                closing.recv().unwrap();
                // Gives the other workers time to end too early, which would be an error that this
                // test detects.
                (0..1000).for_each(|_| std::thread::yield_now());
                let rendezvous = Arc::new(Rendezvous::of(workers));
                for token in 2..=workers as u64 {
                    let other = Arc::clone(&rendezvous);
                    let child = move || {
                        other.wait();
                    };
                    inside.register(token, 0, Groups::NONE, child).unwrap();
                }
                end.send(rendezvous.wait()).unwrap();
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
            let runtime = Arc::new(runtime(workers, policy));
            let inside = Arc::clone(&runtime);
            let (go, started) = mpsc::channel();
            let (end, ended) = mpsc::channel();
            let last = move || {
                started.recv().unwrap();
                let handle = inside.handle();
                drop(inside);
                let child = move || end.send(()).unwrap();
                // While the runtime closes, tasks that its own tasks register still run.
                handle.register(1, 0, Groups::NONE, child).unwrap();
            };
            runtime.register(0, 0, Groups::NONE, last).unwrap();
            drop(runtime);
            go.send(()).unwrap();
            assert_eq!(ended.recv_timeout(LONG), Ok(()), "{policy:?}, {workers}");
        }
    }
}

/// Returns how many tasks of a long chain run before another task, which `begin` makes ready while
/// the first task of the chain runs. All other workers are busy.
fn ran_before(workers: usize, begin: impl Fn(&Runtime, Box<dyn FnOnce() + Send>) + Sync) -> usize {
    let runtime = runtime(workers, Policy::Usher);
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
    let (sender, receiver) = mpsc::channel();
    let mut chain = GraphBuilder::new();
    for task in 0..100_000 {
        chain.task();
        if task > 0 {
            chain.after(task, task - 1);
        }
    }
    let body = |task: usize| {
        if task == 0 {
            let (ran, sender) = (Arc::clone(&ran), sender.clone());
            let probe = move || sender.send(ran.load(Ordering::Relaxed)).unwrap();
            begin(&runtime, Box::new(probe));
        }
        ran.fetch_add(1, Ordering::Relaxed);
    };
    runtime.run(&mut chain.build(body).unwrap()).unwrap();
    drop(hold);
    runtime.wait().unwrap();
    receiver.recv().unwrap()
}

#[test]
fn a_long_chain_does_not_starve_other_tasks() {
    for workers in [1, 2] {
        let from_outside = ran_before(workers, |runtime, probe| {
            std::thread::scope(|scope| {
                let register = || runtime.register(1, 0, Groups::NONE, probe).unwrap();
                scope.spawn(register);
            });
        });
        assert!(from_outside <= 64, "{from_outside} ran before");
        let beside = ran_before(workers, |runtime, probe| {
            runtime.register(1, 0, Groups::NONE, probe).unwrap();
        });
        assert!(beside <= 1024 * workers, "{beside} ran before");
    }
}

#[test]
fn ready_tasks_run_when_a_runtime_is_dropped() {
    for policy in [Policy::Usher, Policy::Lcfs] {
        for workers in [1, 2] {
            let ran = Arc::new(AtomicUsize::new(0));
            for _ in 0..300 {
                let runtime = runtime(workers, policy);
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
