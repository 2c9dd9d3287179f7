// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes random calls from many threads and from tasks at the same time. Checks that each call
//! returns one of its allowed error codes, and that each argument of a task is used once.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use oorandom::Rand64;
use usher_tasks_capi::current_task::{Entry, usher_tasks_current};
use usher_tasks_capi::error::ErrorCode;
use usher_tasks_capi::graph::usher_tasks_run;
use usher_tasks_capi::runtime::*;
use usher_tasks_capi::submit::usher_tasks_submit_owned;

use common::{OK, OwnedRuntime, count, each_seed, free, graph, last_error, options};

const TOKENS: u64 = 16;
/// Maximum depth of tasks that register further tasks.
const DEPTH_MAX: u32 = 6;

/// The numbers of created, run and discarded arguments of tasks.
#[derive(Default)]
struct StormCounters {
    made: AtomicU32,
    refused: AtomicU32,
    ran: AtomicU32,
    discarded: AtomicU32,
}

/// The argument of a task.
struct StormTask<'a> {
    storm: &'a StormCounters,
    seed: u64,
    depth: u32,
}

fn allowed(code: c_int, errors: &[ErrorCode]) {
    let known = errors.iter().any(|&error| error as c_int == code);
    assert!(code == OK || known, "{code}: {}", last_error());
}

unsafe extern "C-unwind" fn run_and_call(arg: *mut c_void) {
    // SAFETY: the argument was created for this task only, and the task runs once.
    let gust = unsafe { Box::from_raw(arg.cast::<StormTask<'_>>()) };
    gust.storm.ran.fetch_add(1, Ordering::Relaxed);
    let mut random = Rand64::new(u128::from(gust.seed));
    for _ in 0..random.rand_range(0..3) {
        call(
            gust.storm,
            usher_tasks_current(),
            &mut random,
            gust.depth + 1,
        );
    }
}

unsafe extern "C-unwind" fn discard_and_call(arg: *mut c_void) {
    // SAFETY: the argument was created for this task only, and the task never runs.
    let gust = unsafe { Box::from_raw(arg.cast::<StormTask<'_>>()) };
    gust.storm.discarded.fetch_add(1, Ordering::Relaxed);
    // This function does not call `usher_tasks_fail`, because no wait reports a failure during the
    // destruction of a runtime.
    let mut random = Rand64::new(u128::from(gust.seed));
    let token = random.rand_range(0..TOKENS);
    // SAFETY: the runtime is that of the calling task, so it exists.
    let code = unsafe { usher_tasks_resolve(usher_tasks_current(), token) };
    allowed(code, &[ErrorCode::ResolvedTooOften, ErrorCode::Ended]);
}

fn call(storm: &StormCounters, runtime: *mut RuntimeHandle, random: &mut Rand64, depth: u32) {
    let token = random.rand_range(0..TOKENS);
    let kinds = if depth < DEPTH_MAX { 15 } else { 6 };
    match random.rand_range(0..kinds) {
        0..6 => {
            // SAFETY: the runtime is valid.
            let code = unsafe { usher_tasks_resolve(runtime, token) };
            allowed(code, &[ErrorCode::ResolvedTooOften]);
        }
        6..11 => add(storm, runtime, Some(token), random, depth),
        11..13 => add(storm, runtime, None, random, depth),
        13 => {
            // SAFETY: the runtime is valid.
            let code = unsafe { usher_tasks_wait(runtime, ptr::null_mut()) };
            allowed(code, &[ErrorCode::Unfinished, ErrorCode::Inside]);
        }
        _ => run(runtime),
    }
}

/// Registers a task with this token, or submits a task without a token.
fn add(
    storm: &StormCounters,
    runtime: *mut RuntimeHandle,
    token: Option<u64>,
    random: &mut Rand64,
    depth: u32,
) {
    let seed = random.rand_u64();
    let arg = Box::into_raw(Box::new(StormTask { storm, seed, depth }));
    storm.made.fetch_add(1, Ordering::Relaxed);
    let times = random.rand_range(0..3) as u32;
    let (t, s) = (
        random.rand_range(0..4) as u32,
        random.rand_range(0..4) as u32,
    );
    let (entry, discard) = (Some(run_and_call as Entry), Some(discard_and_call as Entry));
    // SAFETY: the runtime is valid, and only this code owns the argument.
    let code = unsafe {
        let arg = arg.cast();
        match token {
            Some(token) => {
                usher_tasks_register_owned(runtime, token, times, entry, arg, discard, t, s)
            }
            None => usher_tasks_submit_owned(runtime, entry, arg, discard, t, s),
        }
    };
    match token {
        Some(_) => allowed(code, &[ErrorCode::Registered, ErrorCode::ResolvedTooOften]),
        None => allowed(code, &[]),
    }
    if code != OK {
        storm.refused.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the call failed, so the argument still belongs to this code.
        drop(unsafe { Box::from_raw(arg) });
    }
}

/// Runs a graph of three tasks.
fn run(runtime: *mut RuntimeHandle) {
    let counter = AtomicU32::new(0);
    let task = (
        Some(count as Entry),
        (&raw const counter).cast_mut().cast(),
        (0, 1),
    );
    let (_, graph, _) = graph(&[task; 3], &[(2, 0), (2, 1)]);
    // SAFETY: the runtime is valid.
    let code = unsafe { usher_tasks_run(runtime, graph, ptr::null_mut()) };
    assert_eq!((code, counter.into_inner()), (OK, 3), "{}", last_error());
    free(graph);
}

#[test]
fn every_argument_is_used_once() {
    each_seed(40, |random| {
        let workers = random.rand_range(1..5) as u32;
        let policy = random.rand_range(0..4) as u32;
        let owner = OwnedRuntime::with(&options(workers, policy, (4, 4)));
        let storm = StormCounters::default();
        let cancels = random.rand_range(0..2) == 1;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let mut own = Rand64::new(u128::from(random.rand_u64()));
                let (storm, owner) = (&storm, &owner);
                scope.spawn(move || {
                    for _ in 0..own.rand_range(10..150) {
                        call(storm, owner.0, &mut own, 0);
                    }
                    if cancels {
                        // SAFETY: the runtime is valid.
                        let code = unsafe { usher_tasks_cancel(owner.0, ptr::null_mut()) };
                        assert_eq!(code, OK);
                    }
                });
            }
        });
        drop(owner);
        let now = |counter: AtomicU32| counter.into_inner();
        let used = now(storm.refused) + now(storm.ran) + now(storm.discarded);
        assert_eq!(now(storm.made), used);
    });
}
