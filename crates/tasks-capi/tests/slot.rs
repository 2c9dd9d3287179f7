// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of tasks with result slots through the C API.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::thread;

use usher_tasks_capi::current_task::*;
use usher_tasks_capi::error::ErrorCode;
use usher_tasks_capi::fork::{ScopeHandle, usher_tasks_isolate, usher_tasks_scope_run};
use usher_tasks_capi::graph::*;
use usher_tasks_capi::runtime::{RuntimeHandle, usher_tasks_cancel};
use usher_tasks_capi::slot::*;

use common::*;

fn arg_of<T>(of: &T) -> *mut c_void {
    ptr::from_ref(of).cast_mut().cast()
}

/// A slot, destroyed when dropped.
struct Slot(*mut SlotHandle);

impl Slot {
    fn submit(runtime: *mut RuntimeHandle, entry: ValueEntry, arg: *mut c_void) -> Self {
        let mut slot = ptr::dangling_mut();
        // SAFETY: the tests pass a runtime that exists, and an argument that the function expects.
        let code = unsafe {
            usher_tasks_submit_slot(runtime, Some(entry), arg, None, 0, 0, &raw mut slot)
        };
        assert_eq!(code, OK, "{}", last_error());
        Self(slot)
    }

    fn wait(&self) -> (c_int, usize) {
        let mut value = ptr::dangling_mut();
        // SAFETY: the slot exists.
        let code = unsafe { usher_tasks_slot_wait(self.0, &raw mut value) };
        (code, value.addr())
    }

    fn status(&self) -> c_int {
        // SAFETY: the slot exists.
        unsafe { usher_tasks_slot_status(self.0) }
    }

    fn task(&self) -> u64 {
        // SAFETY: the slot exists.
        unsafe { usher_tasks_slot_task(self.0) }
    }

    fn cancel(&self) -> c_int {
        // SAFETY: the slot exists.
        unsafe { usher_tasks_slot_cancel(self.0) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: this value owns the slot.
        unsafe { usher_tasks_slot_destroy(self.0) };
    }
}

/// Computes a Fibonacci number by nested waits.
unsafe extern "C-unwind" fn fib(arg: *mut c_void) -> *mut c_void {
    let n = arg.addr();
    if n < 2 {
        return arg;
    }
    let own = usher_tasks_current();
    let parts = [1, 2].map(|less| Slot::submit(own, fib, ptr::without_provenance_mut(n - less)));
    let slots = parts.each_ref().map(|part| part.0);
    if n.is_multiple_of(2) {
        // SAFETY: the slots exist.
        assert_eq!(unsafe { usher_tasks_slot_wait_all(slots.as_ptr(), 2) }, OK);
    }
    let sum = parts.map(|part| {
        let (code, value) = part.wait();
        assert_eq!(code, OK, "{}", last_error());
        value
    });
    ptr::without_provenance_mut(sum.iter().sum())
}

#[test]
fn values_reach_the_waiting_tasks_under_all_policies() {
    for (workers, policy) in [(1, 0), (2, 0), (4, 0), (2, 1), (2, 2), (2, 3)] {
        let owner = OwnedRuntime::with(&options(workers, policy, (4, 4)));
        let root = Slot::submit(owner.0, fib, ptr::without_provenance_mut(14));
        assert_eq!(root.wait(), (OK, 377));
        assert_eq!(root.wait(), (OK, 377), "again");
        assert_eq!(root.status(), 2);
        assert_eq!(owner.wait(), (OK, vec![]));
    }
}

unsafe extern "C-unwind" fn fails_with(arg: *mut c_void) -> *mut c_void {
    // SAFETY: the tests pass a string that ends with a 0.
    assert_eq!(unsafe { usher_tasks_fail(arg.cast()) }, OK);
    arg
}

#[test]
fn failures_reach_the_waiting_threads() {
    let owner = OwnedRuntime::new(2);
    let text = c"no frame".as_ptr().cast_mut().cast();
    let failed = Slot::submit(owner.0, fails_with, text);
    let expected = format!("the submitted task {} failed: no frame", failed.task());
    for _ in 0..2 {
        let (code, value) = failed.wait();
        fails(code, ErrorCode::Failed, &expected);
        assert_eq!(value, 0);
    }
    let good = Slot::submit(owner.0, fib, ptr::without_provenance_mut(5));
    let slots = [good.0, failed.0, good.0];
    // SAFETY: the slots exist.
    let code = unsafe { usher_tasks_slot_wait_all(slots.as_ptr(), 3) };
    fails(code, ErrorCode::Failed, &expected);
    assert_eq!((failed.status(), good.status()), (3, 2));
    assert_eq!(owner.wait(), (OK, vec![]), "the failure was reported");
    drop(Slot::submit(owner.0, fails_with, text));
    let (code, lines) = owner.wait();
    assert_eq!((code, lines.len()), (ErrorCode::Unfinished as c_int, 1));
}

/// A flag by which a test keeps a worker busy.
struct Blocker(AtomicBool, AtomicBool);

unsafe extern "C-unwind" fn waits_for_blocker(arg: *mut c_void) -> *mut c_void {
    // SAFETY: the test passes a blocker.
    let Blocker(begun, is_open) = unsafe { &*arg.cast::<Blocker>() };
    begun.store(true, Ordering::Release);
    while !is_open.load(Ordering::Acquire) {
        thread::yield_now();
    }
    arg
}

unsafe extern "C-unwind" fn counts(arg: *mut c_void) -> *mut c_void {
    // SAFETY: the test passes a counter.
    unsafe { count(arg) };
    arg
}

#[test]
fn cancelled_tasks_do_not_run() {
    let owner = OwnedRuntime::new(1);
    let blocker = Blocker(AtomicBool::new(false), AtomicBool::new(false));
    let counter = AtomicU32::new(0);
    let blocks = Slot::submit(owner.0, waits_for_blocker, arg_of(&blocker));
    while !blocker.0.load(Ordering::Acquire) {
        thread::yield_now();
    }
    let slots = [(); 3].map(|()| Slot::submit(owner.0, counts, arg_of(&counter)));
    assert_eq!((blocks.status(), slots[0].status()), (1, 0));
    let late = |slot: &Slot| {
        let text = format!(
            "the submitted task {} has begun or ended, or was cancelled before",
            slot.task()
        );
        fails(slot.cancel(), ErrorCode::TooLate, &text);
    };
    late(&blocks);
    assert_eq!(slots[0].cancel(), OK);
    late(&slots[0]);
    let cancelled = |slot: &Slot| {
        let text = format!(
            "the submitted task {} was cancelled before it began",
            slot.task()
        );
        fails(slot.wait().0, ErrorCode::Cancelled, &text);
        assert_eq!(slot.status(), 4);
    };
    cancelled(&slots[0]);
    // SAFETY: the runtime exists.
    assert_eq!(unsafe { usher_tasks_cancel(owner.0, ptr::null_mut()) }, OK);
    blocker.1.store(true, Ordering::Release);
    assert_eq!(blocks.wait(), (OK, arg_of(&blocker).addr()));
    slots.iter().for_each(cancelled);
    assert_eq!(counter.into_inner(), 0);
    late(&blocks);
}

/// The slot of a task, which the task itself uses.
static OWN: AtomicPtr<SlotHandle> = AtomicPtr::new(ptr::null_mut());

unsafe extern "C-unwind" fn waits_for_own(arg: *mut c_void) -> *mut c_void {
    let mut own = OWN.load(Ordering::Acquire);
    while own.is_null() {
        thread::yield_now();
        own = OWN.load(Ordering::Acquire);
    }
    // SAFETY: the slot exists until the task has ended.
    let code = unsafe { usher_tasks_slot_wait(own, ptr::null_mut()) };
    // SAFETY: as above.
    let task = unsafe { usher_tasks_slot_task(own) };
    let text = format!(
        "the calling task cannot wait for the submitted task {task}: it is the calling task or an \
         ancestor of it, or waits for it"
    );
    fails(code, ErrorCode::Inside, &text);
    if arg.is_null() {
        let runtime = usher_tasks_current();
        let child = Slot::submit(runtime, waits_for_own, ptr::dangling_mut());
        assert_eq!(child.wait().0, OK);
    }
    ptr::null_mut()
}

#[test]
fn waits_for_itself_and_for_ancestors_are_errors() {
    let owner = OwnedRuntime::new(2);
    let own = Slot::submit(owner.0, waits_for_own, ptr::null_mut());
    OWN.store(own.0, Ordering::Release);
    assert_eq!(own.wait(), (OK, 0));
    assert_eq!(owner.wait(), (OK, vec![]));
}

#[test]
fn null_pointers_are_errors() {
    let owner = OwnedRuntime::new(1);
    let (null, mut slot) = (ErrorCode::Null, ptr::dangling_mut());
    let none = ptr::null_mut();
    // SAFETY: the calls return an error before they use a null pointer.
    unsafe {
        let code = usher_tasks_submit_slot(owner.0, None, none, None, 0, 0, &raw mut slot);
        fails(
            code,
            null,
            "the function pointer of a submitted task is NULL",
        );
        assert!(slot.is_null());
        let code = usher_tasks_submit_slot(owner.0, Some(fib), none, None, 0, 0, ptr::null_mut());
        fails(code, null, "the pointer to the slot is NULL");
        let code =
            usher_tasks_submit_slot(ptr::null_mut(), Some(fib), none, None, 0, 0, &raw mut slot);
        fails(code, null, "runtime is NULL");
        let mut value = ptr::dangling_mut();
        let code = usher_tasks_slot_wait(ptr::null_mut(), &raw mut value);
        fails(code, null, "slot is NULL");
        assert!(value.is_null());
        fails(
            usher_tasks_slot_cancel(ptr::null_mut()),
            null,
            "slot is NULL",
        );
        assert_eq!(usher_tasks_slot_wait_all(ptr::null(), 0), OK);
        let code = usher_tasks_slot_wait_all(ptr::null(), 1);
        fails(code, null, "the array of slots is NULL");
        let good = Slot::submit(owner.0, fib, none);
        let code = usher_tasks_slot_wait_all([good.0, ptr::null_mut()].as_ptr(), 2);
        fails(code, null, "slot 1 of 2 is NULL");
        assert_eq!(usher_tasks_slot_status(ptr::null()), -1);
        assert_eq!(usher_tasks_slot_task(ptr::null()), 0);
        usher_tasks_slot_destroy(ptr::null_mut());
    }
    let paper = OwnedRuntime::with(&options(1, 1, (2, 2)));
    // SAFETY: the runtime and the out-pointer exist.
    let code =
        unsafe { usher_tasks_submit_slot(paper.0, Some(fib), none, None, 2, 0, &raw mut slot) };
    let text = "a submitted task has invalid groups: T is 2 and S is 0, but T must be less than 2 \
                and S less than 2";
    fails(code, ErrorCode::Groups, text);
}

#[test]
fn slots_outlive_their_runtime() {
    let owner = OwnedRuntime::new(2);
    let slots: Vec<Slot> = (0..50)
        .map(|n| Slot::submit(owner.0, fib, ptr::without_provenance_mut(n % 8)))
        .collect();
    drop(owner);
    assert!(
        slots
            .iter()
            .all(|slot| slot.wait().0 == OK && slot.status() == 2)
    );
}

/// The graph that its task cancels, and the number of tasks that ran.
struct Cancels(AtomicPtr<GraphHandle>, AtomicU32);

unsafe extern "C-unwind" fn cancels_graph(arg: *mut c_void) {
    // SAFETY: the test passes `Cancels`.
    let Cancels(graph, ran) = unsafe { &*arg.cast::<Cancels>() };
    ran.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the graph exists while it runs.
    let code = unsafe { usher_tasks_graph_cancel(graph.load(Ordering::Relaxed)) };
    assert_eq!(code, OK, "{}", last_error());
}

#[test]
fn a_cancelled_graph_skips_the_tasks_that_have_not_begun() {
    let owner = OwnedRuntime::new(2);
    let arg = Cancels(AtomicPtr::new(ptr::null_mut()), AtomicU32::new(0));
    let mut builder = ptr::null_mut();
    let mut graph = ptr::null_mut();
    // SAFETY: the builder, the graph and the argument exist during the calls.
    unsafe {
        assert_eq!(usher_tasks_builder_new(&raw mut builder), OK);
        for task in 0..3 {
            let entry: Option<Entry> = Some(cancels_graph);
            let to = arg_of(&arg);
            let code = usher_tasks_builder_task(builder, entry, to, 0, 0, ptr::null_mut());
            assert_eq!(code, OK);
            if task > 0 {
                assert_eq!(usher_tasks_builder_after(builder, task, task - 1), OK);
            }
        }
        let code = usher_tasks_builder_build(builder, &raw mut graph, ptr::null_mut());
        assert_eq!(code, OK);
        usher_tasks_builder_destroy(builder);
        arg.0.store(graph, Ordering::Relaxed);
        let text = "the run of the graph was cancelled; 2 tasks were not run";
        fails(owner.run(graph).0, ErrorCode::Cancelled, text);
        fails(owner.run(graph).0, ErrorCode::Cancelled, text);
        assert_eq!(arg.1.load(Ordering::Relaxed), 2);
        let text = "the graph has finished, so it cannot be cancelled: no run is in progress";
        fails(usher_tasks_graph_cancel(graph), ErrorCode::TooLate, text);
        let code = usher_tasks_graph_cancel(ptr::null_mut());
        fails(code, ErrorCode::Null, "graph is NULL");
        assert_eq!(usher_tasks_graph_destroy(graph), OK);
    }
}

/// The slot of a task from outside the region.
unsafe extern "C-unwind" fn waits_in_region(arg: *mut c_void) {
    // SAFETY: the test passes a slot that exists.
    let (code, task) = unsafe {
        let slot = arg.cast::<SlotHandle>();
        let code = usher_tasks_slot_wait(slot, ptr::null_mut());
        (code, usher_tasks_slot_task(slot))
    };
    let text = format!(
        "the calling task is in an isolate region and cannot wait for the submitted task {task}, \
         which was submitted outside the region"
    );
    fails(code, ErrorCode::Isolated, &text);
    let inner = Slot::submit(usher_tasks_current(), fib, ptr::without_provenance_mut(9));
    assert_eq!(inner.wait(), (OK, 34));
    let other = OwnedRuntime::new(1);
    // SAFETY: the runtime exists until the call returns.
    let code = unsafe { usher_tasks_scope_run(other.0, Some(no_body), ptr::null_mut()) };
    let text = "a scope of another runtime cannot be opened in an isolate region: open the scope on \
                the runtime of the region";
    fails(code, ErrorCode::Isolated, text);
}

unsafe extern "C-unwind" fn no_body(_: *mut ScopeHandle, _: *mut c_void) {}

unsafe extern "C-unwind" fn opens_region(arg: *mut c_void) -> *mut c_void {
    let (own, none) = (usher_tasks_current(), ptr::null_mut());
    let outside = Slot::submit(own, waits_for_blocker, arg);
    // SAFETY: the slot exists until the call returns.
    let code = unsafe { usher_tasks_isolate(own, Some(waits_in_region), outside.0.cast()) };
    assert_eq!(code, OK, "{}", last_error());
    // SAFETY: the argument is a blocker, which the test keeps.
    unsafe { &*arg.cast::<Blocker>() }
        .1
        .store(true, Ordering::Release);
    assert_eq!(outside.wait().0, OK);
    // SAFETY: the calls return an error before they use a null pointer.
    unsafe {
        let text = "the function pointer of an isolate region is NULL";
        fails(usher_tasks_isolate(own, None, none), ErrorCode::Null, text);
        let code = usher_tasks_isolate(ptr::null_mut(), Some(waits_in_region), none);
        fails(code, ErrorCode::Null, "runtime is NULL");
    }
    none
}

#[test]
fn a_region_rejects_waits_for_tasks_outside_it() {
    for (workers, policy) in [(1, 0), (3, 0), (2, 2)] {
        let owner = OwnedRuntime::with(&options(workers, policy, (4, 4)));
        let blocker = Blocker(AtomicBool::new(false), AtomicBool::new(false));
        let region = Slot::submit(owner.0, opens_region, arg_of(&blocker));
        assert_eq!(region.wait(), (OK, 0));
    }
}
