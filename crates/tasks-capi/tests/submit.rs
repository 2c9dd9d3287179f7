// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of tasks that are submitted without a token, and of the index of the calling worker.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use usher_tasks_capi::current_task::*;
use usher_tasks_capi::error::ErrorCode;
use usher_tasks_capi::report::UnfinishedKind;
use usher_tasks_capi::runtime::*;
use usher_tasks_capi::submit::*;

use common::*;

/// Submits a task without groups. The argument must have the type that the entry expects.
fn submit(to: *mut RuntimeHandle, entry: Entry, arg: *mut c_void) -> c_int {
    // SAFETY: the caller passes the argument that the entry expects.
    unsafe { usher_tasks_submit(to, Some(entry), arg, 0, 0) }
}

fn arg_of<T>(of: &T) -> *mut c_void {
    ptr::from_ref(of).cast_mut().cast()
}

/// Stages that remain, and stages that ran on a valid worker.
struct Stages(AtomicU32, AtomicU32);

/// Runs a stage, and submits the next stage from inside.
unsafe extern "C-unwind" fn stage(arg: *mut c_void) {
    // SAFETY: the tests pass `Stages` as the argument.
    let stages = unsafe { &*arg.cast::<Stages>() };
    let own = usher_tasks_current();
    // SAFETY: the runtime is that of the calling task, so it exists.
    let (index, workers) = unsafe { (usher_tasks_worker_index(own), usher_tasks_workers(own)) };
    let is_valid = u32::try_from(index).is_ok_and(|index| index < workers);
    stages.1.fetch_add(is_valid.into(), Ordering::Relaxed);
    if stages.0.fetch_sub(1, Ordering::Relaxed) > 1 {
        assert_eq!(submit(own, stage, arg), OK);
    }
}

#[test]
fn tasks_submit_their_successors() {
    for (workers, policy) in [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3)] {
        let owner = OwnedRuntime::with(&options(workers, policy, (4, 4)));
        let chains: Vec<Stages> = (1..50)
            .map(|stages| Stages(AtomicU32::new(stages), AtomicU32::new(0)))
            .collect();
        for (at, chain) in chains.iter().enumerate() {
            let (t, s) = (at as u32 % 4, at as u32 / 4 % 4);
            // SAFETY: the chains outlive the runtime.
            let code = unsafe { usher_tasks_submit(owner.0, Some(stage), arg_of(chain), t, s) };
            assert_eq!(code, OK);
        }
        assert_eq!(owner.wait(), (OK, vec![]));
        for (at, chain) in chains.iter().enumerate() {
            assert_eq!(chain.0.load(Ordering::Relaxed), 0);
            assert_eq!(chain.1.load(Ordering::Relaxed), at as u32 + 1);
        }
    }
}

#[test]
fn failures_of_submitted_tasks_have_a_kind_of_their_own() {
    unsafe extern "C-unwind" fn fails(_: *mut c_void) {
        // SAFETY: the message is a string that ends with a 0.
        assert_eq!(unsafe { usher_tasks_fail(c"no frame".as_ptr()) }, OK);
    }
    let owner = OwnedRuntime::new(2);
    assert_eq!(submit(owner.0, fails, ptr::null_mut()), OK);
    let (code, lines) = owner.wait();
    assert_eq!(code, ErrorCode::Unfinished as c_int);
    assert_eq!(last_error(), "a submitted task failed: no frame");
    let [(kind, _, missing, message)] = &lines[..] else {
        panic!("one line: {lines:?}");
    };
    assert_eq!(*kind, UnfinishedKind::SubmittedFailed as u32);
    assert_eq!((*missing, message.as_deref()), (0, Some("no frame")));
    assert_eq!(owner.wait(), (OK, vec![]), "reported once");
}

#[test]
fn wrong_calls_return_errors_that_name_the_argument() {
    let owner = OwnedRuntime::with(&options(1, 1, (2, 2)));
    let none: *mut c_void = ptr::null_mut();
    fails(
        submit(ptr::null_mut(), nothing, none),
        ErrorCode::Null,
        "runtime is NULL",
    );
    // SAFETY: the runtime is valid, and the entries ignore the argument.
    unsafe {
        fails(
            usher_tasks_submit(owner.0, None, none, 0, 0),
            ErrorCode::Null,
            "the function pointer of a submitted task is NULL",
        );
        fails(
            usher_tasks_submit(owner.0, Some(nothing), none, 2, 0),
            ErrorCode::Groups,
            "a submitted task has invalid groups: T is 2 and S is 0, but T must be less than 2 and \
             S less than 2",
        );
        let owned =
            |entry, discard, s| usher_tasks_submit_owned(owner.0, entry, none, discard, 0, s);
        fails(
            owned(Some(nothing), None, 0),
            ErrorCode::Null,
            "the discard function of a submitted task is NULL",
        );
        assert_eq!(owned(None, Some(nothing), 0), ErrorCode::Null as c_int);
        assert_eq!(
            owned(Some(nothing), Some(nothing), 2),
            ErrorCode::Groups as c_int
        );
        assert_eq!(usher_tasks_worker_index(ptr::null()), -1);
        assert_eq!(usher_tasks_worker_index(owner.0), -1, "a thread outside");
    }
    assert_eq!(owner.wait(), (OK, vec![]));
}

/// Counts the runs and the discards of an argument, and stores the index of the discarding worker.
struct Owned(AtomicU32, AtomicU32, AtomicI32);

unsafe extern "C-unwind" fn runs(arg: *mut c_void) {
    // SAFETY: the tests pass an `Owned` as the argument.
    unsafe { &*arg.cast::<Owned>() }
        .0
        .fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C-unwind" fn discards(arg: *mut c_void) {
    // SAFETY: the tests pass an `Owned` as the argument.
    let owned = unsafe { &*arg.cast::<Owned>() };
    owned.1.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the runtime is that of the calling task, so it exists.
    let index = unsafe { usher_tasks_worker_index(usher_tasks_current()) };
    owned.2.store(index, Ordering::Relaxed);
}

#[test]
fn owned_arguments_run_or_are_discarded_once() {
    let own = Owned(AtomicU32::new(0), AtomicU32::new(0), AtomicI32::new(-2));
    let now = || {
        let count = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        (count(&own.0), count(&own.1), own.2.load(Ordering::Relaxed))
    };
    let owner = OwnedRuntime::with(&options(1, 1, (2, 2)));
    let submit = |t| {
        let (entry, discard) = (Some(runs as Entry), Some(discards as Entry));
        // SAFETY: the counters outlive the runtime.
        unsafe { usher_tasks_submit_owned(owner.0, entry, arg_of(&own), discard, t, 0) }
    };
    assert_eq!(submit(1), OK);
    assert_eq!(owner.wait(), (OK, vec![]));
    assert_eq!(now(), (1, 0, -2));
    assert_eq!(submit(2), ErrorCode::Groups as c_int);
    assert_eq!(
        now(),
        (1, 0, -2),
        "a rejected argument stays with the caller"
    );
    // SAFETY: the runtime is valid.
    assert_eq!(unsafe { usher_tasks_cancel(owner.0, ptr::null_mut()) }, OK);
    assert_eq!(submit(1), OK, "and the worker drops the task");
    assert_eq!(owner.wait(), (OK, vec![]));
    assert_eq!(now(), (1, 1, 0));
}

#[test]
fn a_discard_outside_of_the_workers_has_no_index() {
    let own = Owned(AtomicU32::new(0), AtomicU32::new(0), AtomicI32::new(-2));
    let owner = OwnedRuntime::new(1);
    let (entry, discard) = (Some(runs as Entry), Some(discards as Entry));
    // SAFETY: the counters outlive the runtime, and the runtime is valid.
    unsafe {
        let code = usher_tasks_register_owned(owner.0, 7, 1, entry, arg_of(&own), discard, 0, 0);
        assert_eq!(code, OK);
        assert_eq!(usher_tasks_cancel(owner.0, ptr::null_mut()), OK);
    }
    assert_eq!(own.1.load(Ordering::Relaxed), 1);
    assert_eq!(own.2.load(Ordering::Relaxed), -1);
}
