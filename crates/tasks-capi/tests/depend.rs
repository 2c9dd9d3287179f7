// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of tasks that are ordered by the data that they use, through the C API.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use usher_tasks_capi::current_task::*;
use usher_tasks_capi::depend::*;
use usher_tasks_capi::error::ErrorCode;
use usher_tasks_capi::runtime::{RuntimeHandle, usher_tasks_cancel};

use common::*;

/// A table, destroyed when dropped.
struct Dependencies(*mut DependenciesHandle);

impl Dependencies {
    fn new(runtime: *mut RuntimeHandle) -> Self {
        let mut table = ptr::dangling_mut();
        // SAFETY: the tests pass a runtime that exists.
        let code = unsafe { usher_tasks_dependencies_new(runtime, &raw mut table) };
        assert_eq!(code, OK, "{}", last_error());
        Self(table)
    }

    /// Submits a task that gets `task`, and reads and writes the data with these numbers.
    fn submit(&self, entry: Entry, task: &Task, read: &[usize], written: &[usize]) -> c_int {
        let pointers = |of: &[usize]| -> Vec<*const c_void> {
            of.iter().map(|&at| ptr::without_provenance(at)).collect()
        };
        let (read, written) = (pointers(read), pointers(written));
        let arg = ptr::from_ref(task).cast_mut().cast();
        // SAFETY: the entries of the tests expect a task, which outlives the runtime.
        unsafe {
            usher_tasks_dependencies_submit(
                self.0,
                Some(entry),
                arg,
                Some(discard),
                0,
                0,
                read.as_ptr(),
                read.len(),
                written.as_ptr(),
                written.len(),
            )
        }
    }
}

impl Drop for Dependencies {
    fn drop(&mut self) {
        // SAFETY: the table was created by this value, and is not used after this call.
        unsafe { usher_tasks_dependencies_destroy(self.0) };
    }
}

/// How often a task has run and was discarded, and the number of tasks that ran before it.
#[derive(Default)]
struct Task {
    run: AtomicUsize,
    discarded: AtomicUsize,
    before: AtomicUsize,
}

impl Task {
    fn counts(&self) -> (usize, usize) {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        (load(&self.run), load(&self.discarded))
    }
}

static RUN: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C-unwind" fn run(arg: *mut c_void) {
    // SAFETY: the tests pass a task as the argument.
    let task = unsafe { &*arg.cast::<Task>() };
    task.before
        .store(RUN.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    task.run.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C-unwind" fn fail(_: *mut c_void) {
    // SAFETY: the message is a string that ends with a 0.
    assert_eq!(unsafe { usher_tasks_fail(c"no data".as_ptr()) }, OK);
}

unsafe extern "C-unwind" fn discard(arg: *mut c_void) {
    // SAFETY: the tests pass a task as the argument.
    let task = unsafe { &*arg.cast::<Task>() };
    task.discarded.fetch_add(1, Ordering::Relaxed);
}

fn tasks(count: usize) -> Vec<Task> {
    (0..count).map(|_| Task::default()).collect()
}

#[test]
fn tasks_run_in_the_order_of_their_data() {
    for workers in [1, 4] {
        let tasks = tasks(300);
        let owner = OwnedRuntime::new(workers);
        let table = Dependencies::new(owner.0);
        for (at, task) in tasks.iter().enumerate() {
            // The tasks 3 N + 1 and 3 N + 2 read what the task 3 N has written.
            let code = match at % 3 {
                0 => table.submit(run, task, &[], &[7]),
                _ => table.submit(run, task, &[7], &[]),
            };
            assert_eq!(code, OK);
        }
        assert_eq!(owner.wait(), (OK, vec![]));
        assert!(tasks.iter().all(|task| task.counts() == (1, 0)));
        let before = |at: usize| tasks[at].before.load(Ordering::Relaxed);
        for at in (0..297).step_by(3) {
            assert!(before(at) < before(at + 1) && before(at) < before(at + 2));
            assert!(before(at + 3) > before(at + 1) && before(at + 3) > before(at + 2));
        }
    }
}

/// Tasks that depend on a failed one are discarded once, also those that are submitted later.
#[test]
fn dependents_of_a_failed_task_are_discarded() {
    let tasks = tasks(50);
    let owner = OwnedRuntime::new(2);
    let table = Dependencies::new(owner.0);
    assert_eq!(table.submit(fail, &tasks[0], &[], &[1]), OK);
    for task in &tasks[1..40] {
        assert_eq!(table.submit(run, task, &[1], &[1]), OK);
    }
    assert_eq!(owner.wait().0, ErrorCode::Unfinished as c_int);
    for task in &tasks[40..] {
        assert_eq!(table.submit(run, task, &[], &[1]), OK);
    }
    assert_eq!(owner.wait(), (OK, vec![]));
    assert!(tasks[1..].iter().all(|task| task.counts() == (0, 1)));
}

#[test]
fn a_cancellation_discards_the_tasks_that_have_not_run() {
    let tasks = tasks(2_000);
    let owner = OwnedRuntime::new(2);
    let table = Dependencies::new(owner.0);
    for (at, task) in tasks.iter().enumerate() {
        assert_eq!(table.submit(run, task, &[at % 3], &[at % 5]), OK);
    }
    // SAFETY: the runtime exists.
    unsafe { usher_tasks_cancel(owner.0, ptr::null_mut()) };
    assert_eq!(owner.wait(), (OK, vec![]));
    assert!(
        tasks
            .iter()
            .all(|task| matches!(task.counts(), (1, 0) | (0, 1)))
    );
}

unsafe extern "C-unwind" fn failing_discard(arg: *mut c_void) {
    // SAFETY: the arguments are those of `discard` and `fail`.
    unsafe {
        discard(arg);
        fail(arg);
    }
}

/// If the discard function fails, the wait reports it, whether the task was dropped before or after
/// the call that submits it has returned.
#[test]
fn a_failing_discard_is_reported_by_the_wait() {
    let tasks = tasks(3);
    let owner = OwnedRuntime::new(1);
    let table = Dependencies::new(owner.0);
    let data = ptr::without_provenance::<c_void>(1);
    let submit = |task: &Task| {
        let arg = ptr::from_ref(task).cast_mut().cast();
        let (discard, out) = (Some(failing_discard as Entry), &raw const data);
        // SAFETY: the array has one element, and the task outlives the runtime.
        unsafe {
            usher_tasks_dependencies_submit(
                table.0,
                Some(run),
                arg,
                discard,
                0,
                0,
                ptr::null(),
                0,
                out,
                1,
            )
        }
    };
    assert_eq!(table.submit(fail, &tasks[0], &[], &[1]), OK);
    assert_eq!(submit(&tasks[1]), OK);
    assert_eq!(owner.wait().0, ErrorCode::Unfinished as c_int);
    assert_eq!(submit(&tasks[2]), OK, "{}", last_error());
    assert_eq!(owner.wait().0, ErrorCode::Unfinished as c_int);
    assert!(tasks[1..].iter().all(|task| task.counts() == (0, 1)));
}

#[test]
fn invalid_calls_are_errors_without_effects() {
    let task = Task::default();
    let owner = OwnedRuntime::new(1);
    let table = Dependencies::new(owner.0);
    let arg = ptr::from_ref(&task).cast_mut().cast();
    let call =
        |table: *mut DependenciesHandle, entry: Option<Entry>, counts: [usize; 2], t: u32| {
            // SAFETY: the arrays are null or empty.
            unsafe {
                usher_tasks_dependencies_submit(
                    table,
                    entry,
                    arg,
                    Some(discard),
                    t,
                    0,
                    ptr::null(),
                    counts[0],
                    ptr::null(),
                    counts[1],
                )
            }
        };
    let null = ErrorCode::Null as c_int;
    assert_eq!(call(ptr::null_mut(), Some(run), [0, 0], 0), null);
    assert_eq!(last_error(), "dependencies is NULL");
    assert_eq!(call(table.0, None, [0, 0], 0), null);
    assert_eq!(
        last_error(),
        "the function pointer of a task with dependencies is NULL"
    );
    assert_eq!(call(table.0, Some(run), [1, 0], 0), null);
    assert_eq!(last_error(), "the array in is NULL");
    assert_eq!(call(table.0, Some(run), [0, 1], 0), null);
    assert_eq!(last_error(), "the array out is NULL");
    assert_eq!(
        call(table.0, Some(run), [0, 0], u32::MAX),
        ErrorCode::Groups as c_int
    );
    let mut made = ptr::dangling_mut();
    // SAFETY: the pointers are null, or refer to a local variable.
    unsafe {
        assert_eq!(
            usher_tasks_dependencies_new(ptr::null_mut(), &raw mut made),
            null
        );
        assert!(made.is_null());
        assert_eq!(usher_tasks_dependencies_new(owner.0, ptr::null_mut()), null);
        usher_tasks_dependencies_destroy(ptr::null_mut());
    }
    assert_eq!(owner.destroy(), OK);
    assert_eq!(
        call(table.0, Some(run), [0, 0], 0),
        ErrorCode::Ended as c_int
    );
    std::mem::forget(owner);
    assert_eq!(task.counts(), (0, 0));
}

#[test]
fn a_count_that_no_array_can_have_is_an_error() {
    let owner = OwnedRuntime::new(1);
    let table = Dependencies::new(owner.0);
    let data = ptr::null::<c_void>();
    // SAFETY: the call rejects the count before it reads the array.
    let code = unsafe {
        let (array, count) = (&raw const data, usize::MAX / 8 + 1);
        usher_tasks_dependencies_submit(
            table.0,
            Some(run),
            ptr::null_mut(),
            None,
            0,
            0,
            array,
            count,
            ptr::null(),
            0,
        )
    };
    assert_eq!(code, ErrorCode::Range as c_int);
}
