// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of join and scopes through the C API.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use usher_tasks_capi::current_task::*;
use usher_tasks_capi::error::ErrorCode;
use usher_tasks_capi::fork::*;

use common::*;

fn arg_of<T>(of: &T) -> *mut c_void {
    ptr::from_ref(of).cast_mut().cast()
}

/// The argument and the result of a Fibonacci function.
struct Fib(u32, AtomicU64);

/// Computes a Fibonacci number by nested joins.
unsafe extern "C-unwind" fn fib(arg: *mut c_void) {
    // SAFETY: the tests pass `Fib` as the argument.
    let Fib(n, result) = unsafe { &*arg.cast::<Fib>() };
    if *n < 2 {
        return result.store(u64::from(*n), Ordering::Relaxed);
    }
    let parts = [1, 2].map(|less| Fib(n - less, AtomicU64::new(0)));
    let [one, other] = parts.each_ref().map(arg_of);
    let own = usher_tasks_current();
    // SAFETY: the arguments exist until the call returns.
    let code = unsafe { usher_tasks_join(own, Some(fib), one, Some(fib), other) };
    assert_eq!(code, OK);
    let sum = parts.iter().map(|part| part.1.load(Ordering::Relaxed));
    result.store(sum.sum(), Ordering::Relaxed);
}

#[test]
fn joins_nest_under_all_policies() {
    for (workers, policy) in [(1, 0), (2, 0), (4, 0), (2, 1), (2, 2), (2, 3)] {
        let owner = OwnedRuntime::with(&options(workers, policy, (4, 4)));
        let parts = [Fib(15, AtomicU64::new(0)), Fib(16, AtomicU64::new(0))];
        let [one, other] = parts.each_ref().map(arg_of);
        // SAFETY: the arguments exist until the call returns.
        let code = unsafe { usher_tasks_join(owner.0, Some(fib), one, Some(fib), other) };
        assert_eq!(code, OK, "{}", last_error());
        assert_eq!(parts.map(|part| part.1.into_inner()), [610, 987]);
    }
}

unsafe extern "C-unwind" fn fails_with(arg: *mut c_void) {
    // SAFETY: the tests pass a string that ends with a 0.
    assert_eq!(unsafe { usher_tasks_fail(arg.cast()) }, OK);
}

#[test]
fn join_reports_which_function_failed() {
    let owner = OwnedRuntime::new(2);
    let counter = AtomicU32::new(0);
    let (text, other) = (c"no data".as_ptr(), c"no disk".as_ptr());
    let text = text.cast_mut().cast::<c_void>();
    let other = other.cast_mut().cast::<c_void>();
    let join = |first, first_arg, second, second_arg| {
        // SAFETY: each function gets the argument that it expects.
        unsafe { usher_tasks_join(owner.0, first, first_arg, second, second_arg) }
    };
    let (fail, add): (Option<Entry>, Option<Entry>) = (Some(fails_with), Some(count));
    let to = arg_of(&counter);
    let failed = ErrorCode::Failed;
    fails(
        join(fail, text, add, to),
        failed,
        "the first function failed: no data",
    );
    fails(
        join(add, to, fail, other),
        failed,
        "the second function failed: no disk",
    );
    fails(
        join(fail, text, fail, other),
        failed,
        "the first function failed: no data; the second function failed: no disk",
    );
    assert_eq!(join(add, to, add, to), OK);
    assert_eq!(
        counter.load(Ordering::Relaxed),
        4,
        "all other functions ran"
    );
    let null = ErrorCode::Null;
    fails(
        join(None, to, add, to),
        null,
        "the function pointer of the first function of a join is NULL",
    );
    fails(
        join(add, to, None, to),
        null,
        "the function pointer of the second function of a join is NULL",
    );
    // SAFETY: the call must return an error before it uses the arguments.
    let code = unsafe { usher_tasks_join(ptr::null_mut(), add, to, add, to) };
    fails(code, null, "runtime is NULL");
    assert_eq!(counter.into_inner(), 4);
}

/// The children of the nodes of one level of a tree, and the number of nodes that ran.
struct Level<'a>(Option<&'a Level<'a>>, &'a AtomicU32);

/// Spawns three tasks in the scope and one in a scope of its own, for each level of a tree.
unsafe extern "C-unwind" fn tree(scope: *mut ScopeHandle, arg: *mut c_void) {
    // SAFETY: the tests pass `Level` as the argument.
    let Level(children, ran) = unsafe { &*arg.cast::<Level<'_>>() };
    ran.fetch_add(1, Ordering::Relaxed);
    let own = usher_tasks_current();
    assert!(!own.is_null());
    let Some(children) = children else { return };
    for _ in 0..3 {
        // SAFETY: the scope has not ended, and the levels outlive it.
        let code = unsafe { usher_tasks_scope_spawn(scope, Some(tree), arg_of(*children)) };
        assert_eq!(code, OK);
    }
    // SAFETY: the levels outlive the call.
    let code = unsafe { usher_tasks_scope_run(own, Some(tree), arg_of(*children)) };
    assert_eq!(code, OK);
}

#[test]
fn scopes_nest_under_all_policies() {
    for (workers, policy) in [(1, 0), (2, 0), (4, 0), (2, 1), (2, 2), (2, 3)] {
        let owner = OwnedRuntime::with(&options(workers, policy, (4, 4)));
        let ran = AtomicU32::new(0);
        let leaves = Level(None, &ran);
        let third = Level(Some(&leaves), &ran);
        let second = Level(Some(&third), &ran);
        let root = Level(Some(&second), &ran);
        // SAFETY: the levels outlive the call.
        let code = unsafe { usher_tasks_scope_run(owner.0, Some(tree), arg_of(&root)) };
        assert_eq!(code, OK, "{}", last_error());
        assert_eq!(ran.load(Ordering::Relaxed), 1 + 4 + 16 + 64);
    }
}

/// Spawns ten tasks that fail, and one that does not.
unsafe extern "C-unwind" fn spawns_failures(scope: *mut ScopeHandle, arg: *mut c_void) {
    unsafe extern "C-unwind" fn fails(_: *mut ScopeHandle, _: *mut c_void) {
        // SAFETY: the message is a string that ends with a 0.
        assert_eq!(unsafe { usher_tasks_fail(c"no frame".as_ptr()) }, OK);
    }
    unsafe extern "C-unwind" fn counts(_: *mut ScopeHandle, arg: *mut c_void) {
        // SAFETY: the test passes a counter.
        unsafe { count(arg) };
    }
    for at in 0..11 {
        let entry: ScopeEntry = if at == 5 { counts } else { fails };
        // SAFETY: the scope has not ended, and the argument outlives it.
        let code = unsafe { usher_tasks_scope_spawn(scope, Some(entry), arg) };
        assert_eq!(code, OK);
    }
}

#[test]
fn scopes_report_failures_after_all_tasks_have_ended() {
    let owner = OwnedRuntime::new(2);
    let counter = AtomicU32::new(0);
    let run = |to, body| -> c_int {
        // SAFETY: the argument exists until the call returns.
        unsafe { usher_tasks_scope_run(to, body, arg_of(&counter)) }
    };
    fails(
        run(owner.0, Some(spawns_failures)),
        ErrorCode::Failed,
        "a task of the scope failed: no frame (and 9 more failed)",
    );
    assert_eq!(counter.load(Ordering::Relaxed), 1);
    assert_eq!(
        owner.wait(),
        (OK, vec![]),
        "the runtime reports no failure again"
    );
    fails(
        run(owner.0, None),
        ErrorCode::Null,
        "the body of a scope is NULL",
    );
    fails(
        run(ptr::null_mut(), Some(spawns_failures)),
        ErrorCode::Null,
        "runtime is NULL",
    );
    // SAFETY: a scope handle may be null.
    let code = unsafe { usher_tasks_scope_spawn(ptr::null_mut(), Some(tree), ptr::null_mut()) };
    fails(code, ErrorCode::Null, "scope is NULL");
    unsafe extern "C-unwind" fn spawns_nothing(scope: *mut ScopeHandle, _: *mut c_void) {
        // SAFETY: the scope has not ended.
        let code = unsafe { usher_tasks_scope_spawn(scope, None, ptr::null_mut()) };
        let text = "the function pointer of a scope's task is NULL";
        fails(code, ErrorCode::Null, text);
    }
    assert_eq!(run(owner.0, Some(spawns_nothing)), OK);
}
