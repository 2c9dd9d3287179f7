// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the functions of rayon-core that the crate rayon does not use itself.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use rayon_core::*;

fn pool(threads: usize) -> ThreadPool {
    let builder = ThreadPoolBuilder::new().num_threads(threads);
    builder.build().unwrap()
}

fn fib(n: u32) -> u64 {
    match n {
        0 | 1 => n.into(),
        _ => {
            let (a, b) = join(|| fib(n - 1), || fib(n - 2));
            a + b
        }
    }
}

#[test]
fn joins_nest() {
    for threads in [1, 2, 5] {
        assert_eq!(pool(threads).install(|| fib(18)), 2_584);
        assert_eq!(pool(threads).join(|| fib(10), || fib(11)), (55, 89));
    }
    assert_eq!(fib(18), 2_584, "from a thread in no pool");
    let migrated = pool(1).install(|| join_context(|a| a.migrated(), |b| b.migrated()));
    assert_eq!(migrated, (false, false));
}

#[test]
fn scopes_spawn_tasks_that_borrow() {
    for threads in [1, 3] {
        let pool = pool(threads);
        let mut squares = vec![0; 500];
        pool.scope(|scope| {
            for (n, square) in squares.iter_mut().enumerate() {
                scope.spawn(move |scope| scope.spawn(move |_| *square = n * n));
            }
        });
        assert!(
            squares
                .iter()
                .enumerate()
                .all(|(n, &square)| square == n * n)
        );
        let (local, count) = (Cell::new(0), AtomicUsize::new(0));
        pool.in_place_scope(|scope| {
            local.set(1);
            scope.spawn_broadcast(|_, context| {
                assert_eq!(context.num_threads(), threads);
                count.fetch_add(context.index() + 1, Ordering::Relaxed);
            });
        });
        assert_eq!(
            (local.get(), count.into_inner()),
            (1, threads * (threads + 1) / 2)
        );
    }
    let call = || scope(|scope| scope.spawn(|_| panic!("of a task")));
    let payload = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"of a task"));
}

/// With one thread, tasks of a FIFO scope run in the order in which they were spawned, and tasks of
/// an ordinary scope in the reverse order.
#[test]
fn the_order_of_tasks_depends_on_the_kind_of_the_scope() {
    let (in_order, reversed): (Vec<_>, Vec<_>) = ((0..100).collect(), (0..100).rev().collect());
    let pool = pool(1);
    let ran = Mutex::new(Vec::new());
    let record = |n| ran.lock().unwrap().push(n);
    let record = &record;
    let take = || std::mem::take(&mut *ran.lock().unwrap());
    pool.scope_fifo(|scope| {
        for n in 0..100 {
            scope.spawn_fifo(move |_| record(n));
        }
    });
    assert_eq!(take(), in_order);
    pool.in_place_scope_fifo(|scope| {
        for n in 0..100 {
            scope.spawn_fifo(move |_| record(n));
        }
        scope.spawn_broadcast(|_, _| ());
    });
    assert_eq!(take(), in_order);
    pool.scope(|scope| {
        for n in 0..100 {
            scope.spawn(move |_| record(n));
        }
    });
    assert_eq!(take(), reversed);
    let (sender, receiver) = mpsc::channel();
    pool.install(|| {
        for n in 0..100 {
            let sender = sender.clone();
            spawn_fifo(move || sender.send(n).unwrap());
        }
    });
    drop(sender);
    assert_eq!(receiver.iter().collect::<Vec<_>>(), in_order);
}

/// A thread spawns tasks in two pools alternately. Each task runs in its own pool.
#[test]
fn tasks_of_one_thread_run_in_their_pools() {
    let pools = [pool(1), pool(2)];
    let (sender, receiver) = mpsc::channel();
    for n in 0..100 {
        for (pool, threads) in pools.iter().zip([1, 2]) {
            let sender = sender.clone();
            pool.spawn_fifo(move || sender.send((n, threads, current_num_threads())).unwrap());
        }
    }
    drop(sender);
    let ran: Vec<_> = receiver.iter().collect();
    assert_eq!(ran.len(), 200);
    assert!(
        ran.iter().all(|&(_, own, current)| own == current),
        "{ran:?}"
    );
}

#[test]
fn spawned_tasks_run_also_after_the_drop_of_the_pool() {
    let (sender, receiver) = mpsc::channel();
    for threads in [1, 2] {
        let pool = pool(threads);
        for n in 0..50 {
            let sender = sender.clone();
            let fifo = sender.clone();
            pool.spawn(move || spawn(move || sender.send(n).unwrap()));
            pool.spawn_fifo(move || fifo.send(n + 50).unwrap());
        }
        let sender = sender.clone();
        pool.spawn_broadcast(move |context| sender.send(context.index() + 100).unwrap());
    }
    drop(sender);
    let mut received: Vec<_> = receiver.iter().collect();
    received.sort_unstable();
    let mut expected: Vec<_> = (0..100).chain(0..100).chain([100, 100, 101]).collect();
    expected.sort_unstable();
    assert_eq!(received, expected);
}

#[test]
fn the_panic_handler_gets_panics_of_spawned_tasks() {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let handler = move |payload: Box<dyn std::any::Any + Send>| {
        let text = *payload.downcast::<&str>().unwrap();
        sender.lock().unwrap().send(text).unwrap();
    };
    let pool = ThreadPoolBuilder::new()
        .num_threads(2)
        .panic_handler(handler)
        .build()
        .unwrap();
    pool.spawn(|| panic!("first"));
    assert_eq!(receiver.recv(), Ok("first"));
    pool.spawn_broadcast(|_| panic!("second"));
    assert_eq!([receiver.recv(), receiver.recv()], [Ok("second"); 2]);
    drop(pool);
    assert!(
        receiver.recv().is_err(),
        "the threads drop the handler when they end"
    );
}

#[test]
fn handlers_run_at_the_start_and_the_end_of_each_thread() {
    let (sender, receiver) = mpsc::channel();
    let (started, ended) = (Mutex::new(sender.clone()), Mutex::new(sender));
    let builder = ThreadPoolBuilder::new()
        .num_threads(2)
        .thread_name(|index| format!("worker {index}"))
        .stack_size(1 << 20)
        .start_handler(move |index| started.lock().unwrap().send((index, false)).unwrap())
        .exit_handler(move |index| ended.lock().unwrap().send((index, true)).unwrap());
    let pool = builder.build().unwrap();
    let names = pool.broadcast(|_| thread::current().name().map(str::to_owned));
    assert_eq!(
        names,
        [Some("worker 0".to_owned()), Some("worker 1".to_owned())]
    );
    drop(pool);
    let mut events: Vec<_> = receiver.iter().collect();
    events.sort_unstable();
    assert_eq!(events, [(0, false), (0, true), (1, false), (1, true)]);
}

#[test]
fn programs_can_start_the_threads_themselves() {
    let started = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&started);
    let builder = ThreadPoolBuilder::new()
        .num_threads(2)
        .spawn_handler(|worker| {
            let count = Arc::clone(&count);
            thread::Builder::new().spawn(move || {
                count.fetch_add(worker.index() + 1, Ordering::Relaxed);
                worker.run();
            })?;
            Ok(())
        });
    let pool = builder.build().unwrap();
    assert_eq!(pool.broadcast(|context| context.index()), [0, 1]);
    assert_eq!(started.load(Ordering::Relaxed), 3);

    let wrapped = AtomicUsize::new(0);
    let in_scope = ThreadPoolBuilder::new().num_threads(2).build_scoped(
        |worker| {
            wrapped.fetch_add(1, Ordering::Relaxed);
            worker.run();
        },
        |pool| pool.install(|| fib(10)),
    );
    assert_eq!((in_scope.unwrap(), wrapped.into_inner()), (55, 2));
    let fails = |_: ThreadBuilder| Err(std::io::ErrorKind::OutOfMemory.into());
    assert!(
        ThreadPoolBuilder::new()
            .spawn_handler(fails)
            .build()
            .is_err()
    );
}

#[test]
fn the_current_thread_cannot_join_a_pool() {
    let error = ThreadPoolBuilder::new()
        .use_current_thread()
        .build()
        .unwrap_err();
    assert!(
        error.to_string().contains("use_current_thread()"),
        "{error}"
    );
}

#[test]
fn threads_yield_to_their_tasks() {
    assert_eq!((yield_now(), yield_local()), (None, None));
    let (other, pool) = (pool(1), pool(1));
    pool.install(|| {
        assert_eq!(
            (yield_now(), yield_local()),
            (Some(Yield::Idle), Some(Yield::Idle))
        );
        assert_eq!((other.yield_now(), other.yield_local()), (None, None));
        assert_eq!(current_thread_has_pending_tasks(), Some(false));
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let ran = Arc::clone(&ran);
            spawn(move || drop(ran.fetch_add(1, Ordering::Relaxed).to_string()));
        }
        assert_eq!(pool.current_thread_has_pending_tasks(), Some(true));
        assert_eq!(
            (yield_local(), pool.yield_now()),
            (Some(Yield::Executed), Some(Yield::Executed))
        );
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn the_global_pool_is_created_once() {
    assert!(current_num_threads() >= 1);
    assert_eq!(current_thread_index(), None);
    let error = ThreadPoolBuilder::new().build_global().unwrap_err();
    assert_eq!(
        error.to_string(),
        "The global thread pool has already been initialized."
    );
    assert_eq!(
        broadcast(|context| context.index()).len(),
        current_num_threads()
    );
    // No thread is started, so the pool is quickly created.
    let mut requested = 0;
    let count = |_| {
        requested += 1;
        Ok(())
    };
    let builder = ThreadPoolBuilder::new().num_threads(usize::MAX);
    let pool = builder.spawn_handler(count).build().unwrap();
    assert_eq!(pool.current_num_threads(), max_num_threads());
    assert_eq!(pool.current_thread_index(), None);
    assert_eq!(requested, max_num_threads());
}
