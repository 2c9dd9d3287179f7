// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loom tests of the lock-free parts: steal slots, inboxes, sleeping, termination and trace
//! buffers. Each test explores all interleavings of two or three threads; tests with many
//! interleavings are limited to three preemptions ([`bounded`]). Run the tests by
//! `cargo test -p usher-tasks --features loom --lib --release`.

use std::ptr::NonNull;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::active_workers::ActiveWorkers;
use crate::dispatch::Groups;
use crate::job::{Chain, Job, JobRef};
use crate::pool::{Inbox, StealSlots};
use crate::sleep::{ParkResult, SleepFor, Sleepers};
use crate::trace::SpanRing;
use crate::worker::{JobVtable, Worker};

/// Creates a job that is never run, and is freed by [`number`].
fn job(number: u32) -> JobRef {
    unsafe fn never(_: JobRef, _: &Worker<'_>) {
        unreachable!("these tests never run a job")
    }
    static NEVER: JobVtable = JobVtable { run: never };
    let vtable = NonNull::from(&NEVER).cast();
    let job = Box::new(Job::new(vtable, Groups::new(0, number)));
    // SAFETY: the job is leaked, so it exists until `number` frees it, and this is its only holder.
    unsafe { JobRef::new(NonNull::from(Box::leak(job))) }
}

/// Frees a job and returns its number.
fn number(job: JobRef) -> u32 {
    // SAFETY: the function `job` created this job by leaking a box, and the caller is the job's
    // only holder.
    let job = unsafe { Box::from_raw(job.as_ptr().as_ptr()) };
    job.groups().s
}

fn numbers(mut chain: Chain) -> Vec<u32> {
    std::iter::from_fn(|| chain.pop().map(number)).collect()
}

fn chain(jobs: impl IntoIterator<Item = u32>) -> Chain {
    let mut chain = Chain::EMPTY;
    jobs.into_iter().for_each(|number| chain.push(job(number)));
    chain
}

fn sorted(mut all: Vec<u32>) -> Vec<u32> {
    all.sort_unstable();
    all
}

/// The owner publishes three chains in two slots while a thief takes chains from the slots. Each
/// task is taken exactly once.
#[test]
fn published_tasks_are_taken_once() {
    loom::model(|| {
        let slots = Arc::new(StealSlots::default());
        let thief = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || {
                let takes = (0..2).filter_map(|_| slots.steal());
                takes.flat_map(numbers).collect::<Vec<_>>()
            })
        };
        let mut all = Vec::new();
        for first in [1, 3, 5] {
            let numbers = [first, first + 1];
            if !slots.publish(|_| chain(numbers)) {
                all.extend(numbers);
            }
        }
        all.extend(slots.steal().into_iter().flat_map(numbers));
        all.extend(thief.join().unwrap());
        all.extend(std::iter::from_fn(|| slots.steal()).flat_map(numbers));
        assert_eq!(sorted(all), [1, 2, 3, 4, 5, 6]);
    });
}

/// The owner removes a published job and fills the overflow slot while a thief takes chains. All
/// other jobs are taken exactly once.
#[test]
fn removing_a_task_keeps_the_others_published() {
    loom::model(|| {
        let slots = Arc::new(StealSlots::default());
        let wanted = job(1);
        let pointer = wanted.as_ptr();
        let mut first = chain([2]);
        first.push(wanted);
        assert!(slots.publish(|_| first) && slots.publish(|_| chain([3])));
        let thief = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || {
                let takes = [slots.steal(), slots.take_overflow()].into_iter().flatten();
                takes.flat_map(numbers).collect::<Vec<_>>()
            })
        };
        let mut all = Vec::new();
        if slots.remove(pointer).found {
            // SAFETY: the job was removed from its chain, so this thread is its only holder.
            all.push(number(unsafe { JobRef::new(pointer) }));
        }
        slots.push_overflow(job(4));
        all.extend(thief.join().unwrap());
        let left = std::iter::from_fn(|| slots.steal().or_else(|| slots.take_overflow()));
        all.extend(left.flat_map(numbers));
        assert_eq!(sorted(all), [1, 2, 3, 4]);
    });
}

/// Two thieves compete for one chain; exactly one gets it.
#[test]
fn one_of_two_thieves_gets_a_chain() {
    loom::model(|| {
        let slots = Arc::new(StealSlots::default());
        assert!(slots.publish(|_| chain([1])));
        let take = |slots: Arc<StealSlots>| move || slots.steal().map_or(vec![], numbers);
        let other = thread::spawn(take(Arc::clone(&slots)));
        let mut all = take(slots)();
        all.extend(other.join().unwrap());
        assert_eq!(all, [1]);
    });
}

/// Two threads add jobs to an inbox, one of them as a chain. A third thread takes all jobs while
/// the two threads add jobs, and once more after both threads have ended.
#[test]
fn inbox_tasks_are_taken_once_and_in_order() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::default());
        let (one, other) = (Arc::clone(&inbox), Arc::clone(&inbox));
        let putters = [
            thread::spawn(move || [1, 2].into_iter().for_each(|number| one.push(job(number)))),
            thread::spawn(move || other.push_all([3, 4].into_iter().map(job).collect())),
        ];
        let mut all = numbers(inbox.take());
        putters
            .into_iter()
            .for_each(|putter| putter.join().unwrap());
        all.extend(numbers(inbox.take()));
        let at = |number: u32| all.iter().position(|other| *other == number).unwrap();
        assert!(at(1) < at(2) && at(3) < at(4), "{all:?}");
        assert_eq!(sorted(all), [1, 2, 3, 4]);
    });
}

/// A worker goes to sleep while another thread enqueues a task. The worker must find the task or be
/// woken.
#[test]
fn no_worker_sleeps_beside_work() {
    loom::model(|| {
        let shared = Arc::new((Sleepers::new(1), AtomicUsize::new(0)));
        let worker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, work) = &*shared;
                sleepers.register_thread(0);
                while work.load(Ordering::Relaxed) == 0 {
                    sleepers.park(
                        0,
                        SleepFor::AnyTask,
                        || work.load(Ordering::Relaxed) != 0,
                        || (),
                    );
                }
            })
        };
        let (sleepers, work) = &*shared;
        work.store(1, Ordering::Relaxed);
        sleepers.wake_one(0..1);
        // If the worker slept forever, loom would report a deadlock.
        worker.join().unwrap();
    });
}

/// Two sleeping workers wait for one event. When the event occurs, both workers are woken.
#[test]
fn wake_all_wakes_every_sleeper() {
    bounded().check(|| {
        let shared = Arc::new((Sleepers::new(2), AtomicUsize::new(0)));
        let worker = |index: usize| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, done) = &*shared;
                sleepers.register_thread(index);
                sleepers.park(
                    index,
                    SleepFor::AnyTask,
                    || done.load(Ordering::Relaxed) > 0,
                    || (),
                );
            })
        };
        let workers = [worker(0), worker(1)];
        let (sleepers, done) = &*shared;
        done.fetch_add(1, Ordering::Relaxed);
        sleepers.wake_all();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    });
}

/// Returns a model that explores only interleavings with at most three preemptions. Switches at
/// blocking operations do not count as preemptions. Without this limit, the models have too many
/// interleavings.
fn bounded() -> loom::model::Builder {
    with_preemptions(3)
}

fn with_preemptions(count: usize) -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(count);
    model
}

/// Two tasks become ready one after the other, and one worker is woken for each task. Each of two
/// workers takes one task. A worker would sleep although the second task is ready if the first
/// wake-up had no effect on an awake worker, or if both wake-ups were sent to the same worker.
#[test]
fn two_tasks_do_not_wake_the_same_sleeper() {
    bounded().check(|| {
        let shared = Arc::new((Sleepers::new(2), AtomicUsize::new(0)));
        let worker = |index: usize| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, tasks) = &*shared;
                sleepers.register_thread(index);
                let take = || {
                    let less = |tasks: usize| tasks.checked_sub(1);
                    tasks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
                };
                while take().is_err() {
                    sleepers.park(
                        index,
                        SleepFor::AnyTask,
                        || tasks.load(Ordering::Relaxed) > 0,
                        || (),
                    );
                }
            })
        };
        let workers = [worker(0), worker(1)];
        let (sleepers, tasks) = &*shared;
        for _ in 0..2 {
            tasks.fetch_add(1, Ordering::Relaxed);
            sleepers.wake_one(0..2);
        }
        // If a worker slept forever, loom would report a deadlock.
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
        assert_eq!(tasks.load(Ordering::Relaxed), 0);
    });
}

/// A worker sleeps and waits for an event other than a task. One thread causes the event and wakes
/// the worker, while another thread wakes the same worker for a task.
#[test]
fn a_waiting_worker_is_woken_for_its_event() {
    bounded().check(|| {
        let shared = Arc::new((Sleepers::new(1), AtomicUsize::new(0), AtomicUsize::new(0)));
        let worker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, done, tasks) = &*shared;
                sleepers.register_thread(0);
                while done.load(Ordering::Acquire) == 0 {
                    if tasks.swap(0, Ordering::Relaxed) == 0 {
                        let has_work =
                            || done.load(Ordering::Acquire) + tasks.load(Ordering::Relaxed) > 0;
                        sleepers.park(0, SleepFor::AnyTask, has_work, || ());
                    }
                }
            })
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, _, tasks) = &*shared;
                tasks.store(1, Ordering::Relaxed);
                sleepers.wake_one(0..1);
            })
        };
        let (sleepers, done, _) = &*shared;
        done.store(1, Ordering::Release);
        sleepers.wake_worker(0);
        other.join().unwrap();
        worker.join().unwrap();
    });
}

/// A worker waits for an event and is woken for a task, just after the event has happened. The
/// worker does not run the task, and wakes another worker, which runs the task.
#[test]
fn an_unused_wakeup_is_passed_on() {
    bounded().check(|| {
        let shared = Arc::new((Sleepers::new(2), AtomicUsize::new(0), AtomicUsize::new(0)));
        let waits = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, done, tasks) = &*shared;
                sleepers.register_thread(0);
                let has_work = || done.load(Ordering::Acquire) + tasks.load(Ordering::Acquire) > 0;
                let mut parked = ParkResult::FoundWork;
                while done.load(Ordering::Acquire) == 0 {
                    parked = sleepers.park(0, SleepFor::AnyTask, has_work, || ());
                }
                if parked != ParkResult::FoundWork && tasks.load(Ordering::Relaxed) > 0 {
                    sleepers.wake_one(1..2);
                }
            })
        };
        let runs = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, _, tasks) = &*shared;
                sleepers.register_thread(1);
                let take = || {
                    let less = |tasks: usize| tasks.checked_sub(1);
                    tasks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
                };
                while take().is_err() {
                    sleepers.park(
                        1,
                        SleepFor::AnyTask,
                        || tasks.load(Ordering::Relaxed) > 0,
                        || (),
                    );
                }
            })
        };
        let (sleepers, done, tasks) = &*shared;
        done.store(1, Ordering::Release);
        sleepers.wake_worker(0);
        tasks.fetch_add(1, Ordering::Release);
        sleepers.wake_one(0..2);
        // If no worker ran the task, loom would report a deadlock.
        runs.join().unwrap();
        waits.join().unwrap();
        assert_eq!(sleepers.running().count(), 2);
    });
}

/// The shared state of the tests with a limit of one running worker: tasks that are ready, and
/// tasks that have run.
struct Limited {
    sleepers: Sleepers,
    ready: AtomicUsize,
    run: AtomicUsize,
}

impl Limited {
    fn new(workers: usize) -> Arc<Self> {
        let sleepers = Sleepers::new(workers);
        sleepers.running().set_limit(1);
        Arc::new(Self {
            sleepers,
            ready: AtomicUsize::new(0),
            run: AtomicUsize::new(0),
        })
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed) > 0
    }

    fn submit(&self, order: std::ops::Range<usize>) {
        self.ready.fetch_add(1, Ordering::Relaxed);
        self.sleepers.wake_one(order);
    }

    /// Runs a task if one is ready.
    fn run_one(&self) -> bool {
        let less = |ready: usize| ready.checked_sub(1);
        let order = Ordering::Relaxed;
        let found = self.ready.fetch_update(order, order, less).is_ok();
        if found {
            self.run.fetch_add(1, Ordering::Relaxed);
        }
        found
    }
}

/// The workers of a runtime, of which one may run, sleep as surplus workers or for lack of tasks
/// while a task becomes ready and the limit rises. The task runs.
#[test]
fn a_task_runs_while_surplus_workers_sleep() {
    for rises in [false, true] {
        with_preemptions(2).check(move || {
            let limited = Limited::new(2);
            let worker = |index: usize| {
                let limited = Arc::clone(&limited);
                thread::spawn(move || {
                    let sleepers = &limited.sleepers;
                    sleepers.register_thread(index);
                    let all_run = || limited.run.load(Ordering::Relaxed) == 1;
                    while !all_run() {
                        let is_needed =
                            || sleepers.running().is_below_limit() && limited.is_ready();
                        if sleepers.running().is_above_limit() {
                            sleepers.park_surplus(index, || all_run() || is_needed(), || ());
                        } else if limited.run_one() {
                            sleepers.wake_all();
                        } else {
                            let has_work = || all_run() || limited.is_ready();
                            sleepers.park(index, SleepFor::AnyTask, has_work, || ());
                        }
                    }
                })
            };
            let workers = [worker(0), worker(1)];
            if rises {
                limited.sleepers.running().set_limit(2);
                limited.sleepers.wake_if(|| limited.is_ready(), 0..2);
            }
            limited.submit(0..2);
            // If a task were left, loom would report a deadlock.
            for worker in workers {
                worker.join().unwrap();
            }
        });
    }
}

/// The only running worker waits for a task that it may not run itself. Another worker is woken for
/// the task, whether the task becomes ready before or after the worker sleeps.
#[test]
fn a_waiting_worker_lets_another_run() {
    bounded().check(|| {
        let limited = Limited::new(2);
        let has_run = |limited: &Limited| limited.run.load(Ordering::Acquire) > 0;
        let runs = {
            let limited = Arc::clone(&limited);
            thread::spawn(move || {
                let sleepers = &limited.sleepers;
                sleepers.register_thread(1);
                while !limited.run_one() {
                    sleepers.park(1, SleepFor::AnyTask, || limited.is_ready(), || ());
                }
                sleepers.wake_worker(0);
            })
        };
        let waits = {
            let limited = Arc::clone(&limited);
            thread::spawn(move || {
                let sleepers = &limited.sleepers;
                sleepers.register_thread(0);
                let leave = || {
                    sleepers.wake_if(|| limited.is_ready(), 1..2);
                };
                while !has_run(&limited) {
                    sleepers.park(0, SleepFor::SomeTasks, || has_run(&limited), leave);
                }
            })
        };
        limited.submit(1..2);
        runs.join().unwrap();
        waits.join().unwrap();
    });
}

/// A runtime with two workers closes while one worker has a task that makes another task ready.
/// Neither worker ends before that task has run, and both end afterwards.
#[test]
fn no_worker_ends_while_another_may_make_tasks_ready() {
    bounded().check(|| {
        let shared = Arc::new((ActiveWorkers::default(), Sleepers::new(2), Inbox::default()));
        let (active_workers, ..) = &*shared;
        active_workers.begin();
        active_workers.begin();
        let worker = |index: usize| {
            let shared = Arc::clone(&shared);
            move || {
                let (active_workers, sleepers, inbox) = &*shared;
                sleepers.register_thread(index);
                if index == 0 {
                    inbox.push(job(1));
                    sleepers.wake_one(0..2);
                }
                let parks = |all_inactive: &dyn Fn() -> bool| {
                    sleepers.park(
                        index,
                        SleepFor::AnyTask,
                        || !inbox.is_empty() || all_inactive(),
                        || (),
                    );
                };
                let mut all = Vec::new();
                loop {
                    all.extend(numbers(inbox.take()));
                    if inbox.is_empty() && active_workers.deactivate(parks, || sleepers.wake_all())
                    {
                        return all;
                    }
                }
            }
        };
        let other = thread::spawn(worker(1));
        let mut all = worker(0)();
        let (_, _, inbox) = &*shared;
        // At this point both workers have ended, or the other worker is still running the task.
        assert!(inbox.is_empty());
        all.extend(other.join().unwrap());
        assert_eq!(all, [1]);
    });
}

/// A reader of the trace buffer never gets a span that consists of words of two spans.
#[test]
fn spans_read_are_never_torn() {
    loom::model(|| {
        let ring = Arc::new(SpanRing::try_new(1).unwrap());
        ring.write([1; 4]);
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || (2..4).for_each(|number| ring.write([number; 4])))
        };
        let read = ring.try_read(0, 1).unwrap();
        for words in &read.spans {
            assert!(words.iter().all(|&word| word == words[0]), "{words:?}");
        }
        assert!(read.lost + read.spans.len() as u64 <= ring.written());
        writer.join().unwrap();
    });
}
