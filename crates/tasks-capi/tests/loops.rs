// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of parallel loops and reductions through the C API: each item runs once, reductions equal
//! sequential ones, and failures and wrong calls return errors.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use usher_tasks_capi::current_task::{usher_tasks_current, usher_tasks_fail};
use usher_tasks_capi::error::ErrorCode;
use usher_tasks_capi::loops::*;
use usher_tasks_capi::runtime::*;

use common::*;

/// Returns runtimes under all policies, with different numbers of workers.
fn runtimes() -> Vec<OwnedRuntime> {
    let all = (0..4).flat_map(|policy| [1, 2, 8].map(|workers| (workers, policy)));
    all.map(|(workers, policy)| OwnedRuntime::with(&options(workers, policy, (2, 2))))
        .collect()
}

fn arg_of<T>(of: &T) -> *mut c_void {
    ptr::from_ref(of).cast_mut().cast()
}

/// Runs a loop. The argument must have the type that the body expects.
fn run_for(on: *mut RuntimeHandle, begin: u64, end: u64, body: Block, arg: *mut c_void) -> c_int {
    // SAFETY: the caller passes the argument that the body expects.
    unsafe { usher_tasks_for(on, begin, end, Some(body), arg) }
}

/// Marks the calling task as failed.
fn fail() {
    // SAFETY: the message is a string that ends with a 0.
    assert_eq!(unsafe { usher_tasks_fail(c"no such item".as_ptr()) }, OK);
}

/// Counts how often each item runs, on a worker of the current runtime.
unsafe extern "C-unwind" fn counts_items(begin: u64, end: u64, arg: *mut c_void) {
    assert!(begin < end);
    // SAFETY: the tests pass a vector of counters as the argument.
    let counters = unsafe { &*arg.cast::<Vec<AtomicU32>>() };
    // SAFETY: the runtime is that of the calling task, so it exists.
    let index = unsafe { usher_tasks_worker_index(usher_tasks_current()) };
    for item in begin..end {
        counters[item as usize].fetch_add(u32::from(index >= 0), Ordering::Relaxed);
    }
}

/// The argument of [`runs_loop`]: a runtime, and the counters of its items.
struct Inner(*mut RuntimeHandle, Vec<AtomicU32>, AtomicI32);

impl Inner {
    fn new(runtime: *mut RuntimeHandle, items: usize) -> Self {
        let zeros = std::iter::repeat_with(AtomicU32::default);
        Self(runtime, zeros.take(items).collect(), AtomicI32::new(-1))
    }

    fn run(&self) -> c_int {
        let items = self.1.len() as u64;
        run_for(self.0, 0, items, counts_items, arg_of(&self.1))
    }

    fn is_each(&self, times: u32) -> bool {
        let mut counters = self.1.iter();
        counters.all(|counter| counter.load(Ordering::Relaxed) == times)
    }
}

/// Runs the loop of an [`Inner`] inside a task, and stores the error code.
unsafe extern "C-unwind" fn runs_loop(arg: *mut c_void) {
    // SAFETY: the tests pass an `Inner` as the argument.
    let inner = unsafe { &*arg.cast::<Inner>() };
    inner.2.store(inner.run(), Ordering::Relaxed);
}

#[test]
fn each_item_runs_once_from_inside_and_outside() {
    for owner in runtimes() {
        let inner = Inner::new(owner.0, 3_000);
        assert_eq!(inner.run(), OK);
        assert!(inner.is_each(1));
        assert_eq!(register(&owner, 1, 0, runs_loop, arg_of(&inner)), OK);
        assert_eq!(owner.wait(), (OK, vec![]));
        assert_eq!(inner.2.load(Ordering::Relaxed), OK);
        assert!(inner.is_each(2));
    }
}

#[test]
fn a_task_of_another_runtime_runs_a_loop() {
    for owner in runtimes() {
        let other = OwnedRuntime::new(2);
        let inner = Inner::new(owner.0, 500);
        assert_eq!(register(&other, 1, 0, runs_loop, arg_of(&inner)), OK);
        assert_eq!(other.wait(), (OK, vec![]));
        assert_eq!(inner.2.load(Ordering::Relaxed), OK);
        assert!(inner.is_each(1));
    }
}

/// Runs a loop of another runtime for each block.
unsafe extern "C-unwind" fn runs_outer(_: u64, _: u64, arg: *mut c_void) {
    // SAFETY: the caller passes an `Inner` as the argument.
    unsafe { runs_loop(arg) };
}

/// The runtime of a loop, and the argument of the loop.
struct Outer<'a>(*mut RuntimeHandle, &'a Inner);

unsafe extern "C-unwind" fn runs_loop_of_other(arg: *mut c_void) {
    // SAFETY: the test passes an `Outer` as the argument.
    let outer = unsafe { &*arg.cast::<Outer<'_>>() };
    assert_eq!(run_for(outer.0, 0, 1, runs_outer, arg_of(outer.1)), OK);
}

#[test]
fn loops_of_two_runtimes_that_wait_for_each_other_return_deadlock() {
    let (one, two) = (OwnedRuntime::new(2), OwnedRuntime::new(2));
    let inner = Inner::new(one.0, 10);
    let outer = Outer(two.0, &inner);
    assert_eq!(register(&one, 1, 0, runs_loop_of_other, arg_of(&outer)), OK);
    assert_eq!(one.wait(), (OK, vec![]));
    let code = inner.2.load(Ordering::Relaxed);
    assert_eq!(code, ErrorCode::Deadlock as c_int);
    assert!(inner.is_each(0));
}

unsafe extern "C-unwind" fn adds_length(begin: u64, end: u64, arg: *mut c_void) {
    assert!(begin < end);
    // SAFETY: the test passes a counter as the argument.
    let length = unsafe { &*arg.cast::<AtomicU64>() };
    length.fetch_add(end - begin, Ordering::Relaxed);
}

#[test]
fn empty_and_huge_ranges_are_valid() {
    for owner in runtimes() {
        for (begin, end) in [
            (0, 0),
            (7, 7),
            (9, 3),
            (0, u64::MAX),
            (u64::MAX - 2, u64::MAX),
        ] {
            let length = AtomicU64::new(0);
            let code = run_for(owner.0, begin, end, adds_length, arg_of(&length));
            assert_eq!(code, OK);
            let expected = end.saturating_sub(begin);
            assert_eq!(length.load(Ordering::Relaxed), expected);
        }
    }
}

/// Fails in the block with item 5,000.
unsafe extern "C-unwind" fn fails_at_5000(begin: u64, end: u64, _: *mut c_void) {
    if (begin..end).contains(&5_000) {
        fail();
    }
}

#[test]
fn a_failure_ends_a_loop_and_names_the_items() {
    for owner in runtimes() {
        // Without an early end, some runs of this loop would take centuries.
        let code = run_for(owner.0, 5_000, u64::MAX, fails_at_5000, ptr::null_mut());
        assert_eq!(code, ErrorCode::Failed as c_int);
        let text = last_error();
        let is_named = text.starts_with("item 5000 ") || text.starts_with("items 5000 to ");
        assert!(
            is_named && text.ends_with(" failed: no such item"),
            "{text}"
        );
        let (code, lines) = owner.wait();
        assert_eq!(
            (code, lines),
            (OK, vec![]),
            "the call has returned the failure"
        );
    }
}

/// The number of accumulators with text that exist.
static ALIVE: AtomicU32 = AtomicU32::new(0);

/// Whether a function of the reduction fails, by its argument.
fn fails_in(arg: *mut c_void, function: &str) -> bool {
    // SAFETY: the tests pass a string as the argument.
    let failing = unsafe { &*arg.cast::<String>() };
    failing == function
}

/// Initialises an accumulator, which owns a string.
unsafe extern "C-unwind" fn init_text(accumulator: *mut c_void, arg: *mut c_void) {
    ALIVE.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the accumulator has the size of a string.
    unsafe { accumulator.cast::<String>().write(String::new()) };
    if fails_in(arg, "init") {
        fail();
    }
}

unsafe extern "C-unwind" fn fold_text(
    accumulator: *mut c_void,
    begin: u64,
    end: u64,
    arg: *mut c_void,
) {
    // SAFETY: `init_text` has initialised the accumulator.
    let text = unsafe { &mut *accumulator.cast::<String>() };
    for item in begin..end {
        text.push_str(&item.to_string());
    }
    if fails_in(arg, "fold") && (begin..end).contains(&300) {
        fail();
    }
}

unsafe extern "C-unwind" fn combine_text(left: *mut c_void, right: *mut c_void, arg: *mut c_void) {
    // SAFETY: `init_text` has initialised both accumulators, and `right` is not used any more.
    unsafe { (*left.cast::<String>()).push_str(&right.cast::<String>().read()) };
    ALIVE.fetch_sub(1, Ordering::Relaxed);
    if fails_in(arg, "combine") {
        fail();
    }
}

/// Reduces items to a text. Returns the error code and the text.
fn text_of(on: *mut RuntimeHandle, items: u64, failing: &str) -> (c_int, String) {
    let failing = failing.to_owned();
    let mut result = std::mem::MaybeUninit::<String>::uninit();
    // SAFETY: the result has the size and the alignment of an accumulator of these functions, and
    // the functions initialise it.
    unsafe {
        let code = usher_tasks_reduce(
            on,
            0,
            items,
            size_of::<String>(),
            Some(init_text),
            Some(fold_text),
            Some(combine_text),
            arg_of(&failing),
            result.as_mut_ptr().cast(),
        );
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        (code, result.assume_init())
    }
}

#[test]
fn reductions_combine_in_order_and_lose_no_accumulator() {
    for owner in runtimes() {
        for items in [0, 1, 2_000] {
            let expected: String = (0..items).map(|item: u64| item.to_string()).collect();
            assert_eq!(text_of(owner.0, items, ""), (OK, expected));
        }
        for failing in ["init", "fold", "combine"] {
            let (code, text) = text_of(owner.0, 1_000, failing);
            assert_eq!(code, ErrorCode::Failed as c_int, "{failing}");
            let named = match failing {
                "fold" => "item",
                "init" => "the init function of a reduction failed: no such item",
                _ => "the combine function of a reduction failed: no such item",
            };
            assert!(last_error().starts_with(named), "{}", last_error());
            assert!(failing != "init" || text.is_empty());
        }
        assert_eq!(ALIVE.load(Ordering::Relaxed), 0, "each is combined once");
    }
}

#[test]
fn wrong_calls_return_errors_that_name_the_argument() {
    let owner = OwnedRuntime::new(2);
    let none: *mut c_void = ptr::null_mut();
    let null = ErrorCode::Null;
    let code = run_for(ptr::null_mut(), 0, 9, fails_at_5000, none);
    fails(code, null, "runtime is NULL");
    let mut result = 0_u64;
    let result = (&raw mut result).cast();
    let reduce = |bytes, init, fold, combine, result| {
        // SAFETY: each call has an invalid argument, so the functions are not called.
        unsafe { usher_tasks_reduce(owner.0, 0, 9, bytes, init, fold, combine, none, result) }
    };
    let (init, fold, combine) = (
        Some(init_text as Init),
        Some(fold_text as Fold),
        Some(combine_text as Combine),
    );
    // SAFETY: the runtime is valid.
    let code = unsafe { usher_tasks_for(owner.0, 0, 9, None, none) };
    fails(code, null, "the function pointer of a loop is NULL");
    let code = reduce(8, None, fold, combine, result);
    fails(code, null, "the init function of a reduction is NULL");
    let code = reduce(8, init, None, combine, result);
    fails(code, null, "the fold function of a reduction is NULL");
    let code = reduce(8, init, fold, None, result);
    fails(code, null, "the combine function of a reduction is NULL");
    let code = reduce(8, init, fold, combine, none);
    fails(code, null, "the result of a reduction is NULL");
    let code = reduce(usize::MAX, init, fold, combine, result);
    let text = format!("out of memory for an accumulator of {} bytes", usize::MAX);
    fails(code, ErrorCode::Memory, &text);
}

/// Sets the accumulator, which has only its first byte in the memory of the caller.
unsafe extern "C-unwind" fn init_byte(accumulator: *mut c_void, _: *mut c_void) {
    // SAFETY: an accumulator has at least one byte.
    unsafe { accumulator.cast::<u8>().write(7) };
}

unsafe extern "C-unwind" fn never_fold(_: *mut c_void, _: u64, _: u64, _: *mut c_void) {
    panic!("there is no memory for an accumulator");
}

unsafe extern "C-unwind" fn never_combine(_: *mut c_void, _: *mut c_void, _: *mut c_void) {
    panic!("there is no memory for a second accumulator");
}

#[test]
fn lack_of_memory_for_an_accumulator_is_an_error() {
    for owner in runtimes() {
        let mut result = 0_u8;
        let bytes = 1_usize << 60;
        // SAFETY: the functions use only the first byte of an accumulator.
        let code = unsafe {
            usher_tasks_reduce(
                owner.0,
                0,
                1_000,
                bytes,
                Some(init_byte),
                Some(never_fold),
                Some(never_combine),
                ptr::null_mut(),
                (&raw mut result).cast(),
            )
        };
        let text = format!("out of memory for an accumulator of {bytes} bytes");
        fails(code, ErrorCode::Memory, &text);
        assert_eq!(result, 7, "the result is initialised");
    }
}
