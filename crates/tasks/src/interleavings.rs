// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock-free parts in every interleaving that loom can find:
//! `cargo test -p usher-tasks --features loom --lib --release`.

use std::ptr::NonNull;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::at_work::AtWork;
use crate::dispatch::Groups;
use crate::job::{Chain, Job, JobRef, Kind};
use crate::pool::{Inbox, Shelf};
use crate::sleep::{Parked, Sleepers};
use crate::trace::Ring;
use crate::worker::Worker;

/// A job that is never run, but counted when it is taken.
fn job(number: u32) -> JobRef {
    unsafe fn never(_: JobRef, _: &Worker<'_>) {
        unreachable!("jobs of these tests are not run")
    }
    static NEVER: Kind = Kind { run: never };
    let kind = NonNull::from(&NEVER);
    let job = Box::new(Job::new(kind, Groups::new(0, number)));
    // SAFETY: leaked here and freed by `number`, once.
    unsafe { JobRef::new(NonNull::from(Box::leak(job))) }
}

/// Ends a job; its number.
fn number(job: JobRef) -> u32 {
    // SAFETY: made by `job`, and given up by its only holder.
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

/// The owner lays out three chains on two places while a thief takes.
#[test]
fn what_is_on_a_shelf_is_taken_once() {
    loom::model(|| {
        let shelf = Arc::new(Shelf::default());
        let thief = {
            let shelf = Arc::clone(&shelf);
            thread::spawn(move || {
                let takes = (0..2).filter_map(|_| shelf.take());
                takes.flat_map(numbers).collect::<Vec<_>>()
            })
        };
        let mut all = Vec::new();
        for first in [1, 3, 5] {
            let numbers = [first, first + 1];
            if !shelf.put(|_| chain(numbers)) {
                all.extend(numbers);
            }
        }
        all.extend(shelf.take().into_iter().flat_map(numbers));
        all.extend(thief.join().unwrap());
        all.extend(std::iter::from_fn(|| shelf.take()).flat_map(numbers));
        assert_eq!(sorted(all), [1, 2, 3, 4, 5, 6]);
    });
}

/// The owner takes a job back, and adds one, while a thief takes.
#[test]
fn what_is_taken_back_leaves_the_others_where_they_are() {
    loom::model(|| {
        let shelf = Arc::new(Shelf::default());
        let wanted = job(1);
        let place = wanted.as_ptr();
        let mut first = chain([2]);
        first.push(wanted);
        assert!(shelf.put(|_| first) && shelf.put(|_| chain([3])));
        let thief = {
            let shelf = Arc::clone(&shelf);
            thread::spawn(move || {
                let takes = [shelf.take(), shelf.take_added()].into_iter().flatten();
                takes.flat_map(numbers).collect::<Vec<_>>()
            })
        };
        let mut all = Vec::new();
        if shelf.take_out(place).was_there {
            // SAFETY: it is in no chain any more, and we are its holder.
            all.push(number(unsafe { JobRef::new(place) }));
        }
        shelf.add(job(4));
        all.extend(thief.join().unwrap());
        let left = std::iter::from_fn(|| shelf.take().or_else(|| shelf.take_added()));
        all.extend(left.flat_map(numbers));
        assert_eq!(sorted(all), [1, 2, 3, 4]);
    });
}

/// Two thieves and one chain.
#[test]
fn of_two_thieves_one_gets_it() {
    loom::model(|| {
        let shelf = Arc::new(Shelf::default());
        assert!(shelf.put(|_| chain([1])));
        let take = |shelf: Arc<Shelf>| move || shelf.take().map_or(vec![], numbers);
        let other = thread::spawn(take(Arc::clone(&shelf)));
        let mut all = take(shelf)();
        all.extend(other.join().unwrap());
        assert_eq!(all, [1]);
    });
}

/// Two put in, one takes out meanwhile and once more after.
#[test]
fn what_is_put_in_an_inbox_is_taken_once_and_in_order() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::default());
        let putter = |jobs: [u32; 2]| {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || jobs.into_iter().for_each(|number| inbox.push(job(number))))
        };
        let putters = [putter([1, 2]), putter([3, 4])];
        let mut all = numbers(inbox.take());
        putters
            .into_iter()
            .for_each(|putter| putter.join().unwrap());
        all.extend(numbers(inbox.take()));
        let at = |number: u32| all.iter().position(|one| *one == number).unwrap();
        assert!(at(1) < at(2) && at(3) < at(4), "{all:?}");
        assert_eq!(sorted(all), [1, 2, 3, 4]);
    });
}

/// A worker falls asleep while somebody has something to do for it.
#[test]
fn nobody_sleeps_beside_work() {
    loom::model(|| {
        let shared = Arc::new((Sleepers::new(1), AtomicUsize::new(0)));
        let worker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, work) = &*shared;
                sleepers.enrol(0);
                while work.load(Ordering::Relaxed) == 0 {
                    sleepers.park(0, || work.load(Ordering::Relaxed) != 0, || ());
                }
            })
        };
        let (sleepers, work) = &*shared;
        work.store(1, Ordering::Relaxed);
        sleepers.wake_one(0..1);
        // Should the worker sleep for ever, loom finds nobody who can go on.
        worker.join().unwrap();
    });
}

/// Something happens that all are to see, and two sleep: both are woken.
#[test]
fn all_that_sleep_are_woken_at_once() {
    loom::model(|| {
        let shared = Arc::new((Sleepers::new(2), AtomicUsize::new(0)));
        let worker = |index: usize| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, done) = &*shared;
                sleepers.enrol(index);
                sleepers.park(index, || done.load(Ordering::Relaxed) > 0, || ());
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

/// For what has more interleavings than can be gone through: all of those in which
/// threads are interrupted so often at most, beside where they wait.
fn bounded() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model
}

/// Two tasks come one after the other, each of which wakes one, and two workers take
/// one each: nobody sleeps beside the second task because the first one's waking was
/// meant for somebody who was awake, or the same was woken twice.
#[test]
fn two_tasks_do_not_wake_the_same_sleeper() {
    bounded().check(|| {
        let shared = Arc::new((Sleepers::new(2), AtomicUsize::new(0)));
        let worker = |index: usize| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, tasks) = &*shared;
                sleepers.enrol(index);
                let take = || {
                    let less = |tasks: usize| tasks.checked_sub(1);
                    tasks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
                };
                while take().is_err() {
                    sleepers.park(index, || tasks.load(Ordering::Relaxed) > 0, || ());
                }
            })
        };
        let workers = [worker(0), worker(1)];
        let (sleepers, tasks) = &*shared;
        for _ in 0..2 {
            tasks.fetch_add(1, Ordering::Relaxed);
            sleepers.wake_one(0..2);
        }
        // Should one sleep for ever, loom finds nobody who can go on.
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
        assert_eq!(tasks.load(Ordering::Relaxed), 0);
    });
}

/// A worker waits for something that is no task, and sleeps: whoever makes it so wakes
/// it, while somebody else wakes it for a task.
#[test]
fn who_waits_for_something_else_is_woken_for_it() {
    bounded().check(|| {
        let shared = Arc::new((Sleepers::new(1), AtomicUsize::new(0), AtomicUsize::new(0)));
        let worker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, done, tasks) = &*shared;
                sleepers.enrol(0);
                while done.load(Ordering::Acquire) == 0 {
                    if tasks.swap(0, Ordering::Relaxed) == 0 {
                        let look =
                            || done.load(Ordering::Acquire) + tasks.load(Ordering::Relaxed) > 0;
                        sleepers.park(0, look, || ());
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
        sleepers.wake_for(0);
        other.join().unwrap();
        worker.join().unwrap();
    });
}

/// A worker waits for something, and is woken for a task when it has just come about: it
/// wakes another in its place, so that the task is run.
#[test]
fn who_is_woken_and_has_something_else_to_do_passes_it_on() {
    bounded().check(|| {
        let shared = Arc::new((Sleepers::new(2), AtomicUsize::new(0), AtomicUsize::new(0)));
        let waits = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, done, tasks) = &*shared;
                sleepers.enrol(0);
                let look = || done.load(Ordering::Acquire) + tasks.load(Ordering::Acquire) > 0;
                let mut parked = Parked::Stayed;
                while done.load(Ordering::Acquire) == 0 {
                    parked = sleepers.park(0, look, || ());
                }
                if parked != Parked::Stayed && tasks.load(Ordering::Relaxed) > 0 {
                    sleepers.wake_one(1..2);
                }
            })
        };
        let runs = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleepers, _, tasks) = &*shared;
                sleepers.enrol(1);
                let take = || {
                    let less = |tasks: usize| tasks.checked_sub(1);
                    tasks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
                };
                while take().is_err() {
                    sleepers.park(1, || tasks.load(Ordering::Relaxed) > 0, || ());
                }
            })
        };
        let (sleepers, done, tasks) = &*shared;
        done.store(1, Ordering::Release);
        sleepers.wake_for(0);
        tasks.fetch_add(1, Ordering::Release);
        sleepers.wake_one(0..2);
        // Should the task be left, loom finds nobody who can go on.
        runs.join().unwrap();
        waits.join().unwrap();
        assert!(!sleepers.is_any_idle());
    });
}

/// Of two workers of a runtime that closes one has a task, which makes another ready:
/// nobody leaves before that has run, and both do then.
#[test]
fn nobody_leaves_while_another_may_make_something_ready() {
    bounded().check(|| {
        let shared = Arc::new((AtWork::default(), Sleepers::new(2), Inbox::default()));
        let (at_work, ..) = &*shared;
        at_work.begins();
        at_work.begins();
        let worker = |index: usize| {
            let shared = Arc::clone(&shared);
            move || {
                let (at_work, sleepers, inbox) = &*shared;
                sleepers.enrol(index);
                if index == 0 {
                    inbox.push(job(1));
                    sleepers.wake_one(0..2);
                }
                let parks = |has_ended: &dyn Fn() -> bool| {
                    sleepers.park(index, || !inbox.is_empty() || has_ended(), || ());
                };
                let mut all = Vec::new();
                loop {
                    all.extend(numbers(inbox.take()));
                    if inbox.is_empty() && at_work.rests(parks, || sleepers.wake_all()) {
                        return all;
                    }
                }
            }
        };
        let other = thread::spawn(worker(1));
        let mut all = worker(0)();
        let (_, _, inbox) = &*shared;
        // Both have left, or the other one still runs it.
        assert!(inbox.is_empty());
        all.extend(other.join().unwrap());
        assert_eq!(all, [1]);
    });
}

/// A reader never gets words of two spans in one.
#[test]
fn spans_that_are_read_are_whole() {
    loom::model(|| {
        let ring = Arc::new(Ring::try_new(1).unwrap());
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
