// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of tasks that call the library, and of runtimes that are destroyed during such calls:
//! failures, cancellation, discarded arguments, nested graphs, deadlocks.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use usher_tasks_capi::current_task::*;
use usher_tasks_capi::error::ErrorCode;
use usher_tasks_capi::graph::*;
use usher_tasks_capi::runtime::*;

use common::*;

/// The argument of the task [`call`]: a closure.
struct Closure(Box<dyn Fn() + Sync>);

/// A task that calls the closure in its argument.
unsafe extern "C-unwind" fn call(arg: *mut c_void) {
    // SAFETY: the tests below pass a `Closure` as the argument.
    let closure = unsafe { &*arg.cast::<Closure>() };
    closure.0();
}

#[test]
fn arguments_of_tasks_that_never_run_are_discarded() {
    let (ran, discarded) = (AtomicU32::new(0), AtomicU32::new(0));
    struct Arg<'a>(&'a AtomicU32, &'a AtomicU32);
    unsafe extern "C-unwind" fn runs(arg: *mut c_void) {
        // SAFETY: the argument was created below for this task only, and a task runs once.
        let arg = unsafe { Box::from_raw(arg.cast::<Arg<'_>>()) };
        arg.0.fetch_add(1, Ordering::Relaxed);
    }
    unsafe extern "C-unwind" fn discards(arg: *mut c_void) {
        // SAFETY: the argument was created below for this task only, and the task does not run.
        let arg = unsafe { Box::from_raw(arg.cast::<Arg<'_>>()) };
        arg.1.fetch_add(1, Ordering::Relaxed);
        let own = usher_tasks_current();
        // SAFETY: the runtime is that of the calling task, so it exists. It rejects being destroyed
        // or waited for by its own task.
        let refused = unsafe {
            [
                usher_tasks_runtime_destroy(own),
                usher_tasks_wait(own, ptr::null_mut()),
            ]
        };
        assert_ne!(refused[0], OK);
        assert_ne!(refused[1], OK);
    }
    let owner = OwnedRuntime::new(2);
    let register = |token, times| {
        let arg = Box::into_raw(Box::new(Arg(&ran, &discarded)));
        let (entry, discard) = (Some(runs as Entry), Some(discards as Entry));
        // SAFETY: the counters outlive the runtime.
        let code = unsafe {
            usher_tasks_register_owned(owner.0, token, times, entry, arg.cast(), discard, 0, 0)
        };
        if code != OK {
            // SAFETY: the registration failed, so the argument still belongs to this code.
            drop(unsafe { Box::from_raw(arg) });
        }
        code
    };
    let now = || {
        (
            ran.load(Ordering::Relaxed),
            discarded.load(Ordering::Relaxed),
        )
    };
    assert_eq!(
        (register(1, 0), register(2, 1), register(3, 2)),
        (OK, OK, OK)
    );
    assert_eq!(
        register(2, 0),
        ErrorCode::Registered as c_int,
        "and the argument stays ours"
    );
    assert_eq!(owner.wait().0, ErrorCode::Unfinished as c_int);
    assert_eq!(now(), (1, 0));
    let mut dropped = 0;
    // SAFETY: the runtime is valid, and the pointer refers to a local variable.
    assert_eq!(unsafe { usher_tasks_cancel(owner.0, &raw mut dropped) }, OK);
    assert_eq!((dropped, now()), (2, (1, 2)));
    assert_eq!(register(4, 0), OK, "and dropped when it is ready");
    assert_eq!(owner.wait(), (OK, vec![]));
    assert_eq!(now(), (1, 3));
    assert_eq!(register(5, 1), OK);
    drop(owner);
    assert_eq!((ran.into_inner(), discarded.into_inner()), (1, 4));
}

/// A variable that contains the runtime that the tasks use.
type Found = AtomicPtr<RuntimeHandle>;

#[test]
fn tasks_may_call_the_library() {
    static CODES: Mutex<Vec<c_int>> = Mutex::new(Vec::new());
    unsafe extern "C-unwind" fn calls(arg: *mut c_void) {
        let own = usher_tasks_current();
        let record = |code: c_int| CODES.lock().unwrap().push(code);
        let task = (Some(count as Entry), arg, (0, 0));
        let (_, graph, _) = common::graph(&[task; 10], &[(9, 0)]);
        // SAFETY: the runtime is that of the calling task, so it exists.
        unsafe {
            record(usher_tasks_register(own, 11, 1, Some(count), arg, 0, 0));
            record(usher_tasks_resolve(own, 11));
            record(usher_tasks_run(own, graph, ptr::null_mut()));
            record(usher_tasks_wait(own, ptr::null_mut()));
            record(usher_tasks_runtime_destroy(own));
        }
        common::free(graph);
    }
    let ran = AtomicU32::new(0);
    let owner = OwnedRuntime::new(1);
    assert_eq!(
        register(&owner, 1, 0, calls, (&raw const ran).cast_mut().cast()),
        OK
    );
    assert_eq!(owner.wait(), (OK, vec![]));
    let inside = ErrorCode::Inside as c_int;
    assert_eq!(*CODES.lock().unwrap(), [OK, OK, OK, inside, inside]);
    assert_eq!(ran.into_inner(), 11);
}

#[test]
fn a_running_graph_is_busy() {
    struct Own(AtomicPtr<GraphHandle>, Mutex<Vec<c_int>>);
    unsafe extern "C-unwind" fn again(arg: *mut c_void) {
        // SAFETY: the code below passes an `Own` as the argument.
        let own = unsafe { &*arg.cast::<Own>() };
        let graph = own.0.load(Ordering::Relaxed);
        // SAFETY: the caller is a task of the graph, so the graph exists.
        let codes = unsafe {
            [
                usher_tasks_run(usher_tasks_current(), graph, ptr::null_mut()),
                usher_tasks_graph_destroy(graph),
            ]
        };
        own.1.lock().unwrap().extend(codes);
    }
    let own = Own(AtomicPtr::default(), Mutex::default());
    let task = (
        Some(again as Entry),
        (&raw const own).cast_mut().cast(),
        (0, 0),
    );
    let (_, graph, _) = graph(&[task], &[]);
    own.0.store(graph, Ordering::Relaxed);
    for owner in [OwnedRuntime::new(1), OwnedRuntime::new(2)] {
        assert_eq!(owner.run(graph), (OK, vec![], 0));
    }
    free(graph);
    let busy = ErrorCode::Busy as c_int;
    assert_eq!(own.1.into_inner().unwrap(), [busy; 4]);
}

/// Three runtimes. A task of runtime 0 runs a graph on runtime 1, whose task runs a graph on
/// runtime 2, whose task runs a graph on runtime 0.
static RING: [Found; 3] = [const { Found::new(ptr::null_mut()) }; 3];
static RING_CODE: AtomicI32 = AtomicI32::new(-1);

#[test]
fn runtimes_that_would_deadlock_get_an_error() {
    unsafe extern "C-unwind" fn next(arg: *mut c_void) {
        let at = arg.addr();
        let to = RING[at % 3].load(Ordering::Relaxed);
        let arg = ptr::without_provenance_mut(at + 1);
        let (_, graph, _) = common::graph(&[(Some(next as Entry), arg, (0, 0))], &[]);
        // SAFETY: the runtime is one of the three in `RING`, which exist until the end of the test.
        let code = unsafe { usher_tasks_run(to, graph, ptr::null_mut()) };
        if code != OK {
            RING_CODE.store(code, Ordering::Relaxed);
        }
        common::free(graph);
    }
    let owners = [
        OwnedRuntime::new(1),
        OwnedRuntime::new(1),
        OwnedRuntime::new(1),
    ];
    for (found, owner) in RING.iter().zip(&owners) {
        found.store(owner.0, Ordering::Relaxed);
    }
    // Each task runs a graph on the next runtime. The wait of runtime 2 for runtime 0 would close
    // the cycle and is rejected.
    let arg = ptr::without_provenance_mut(1);
    assert_eq!(register(&owners[0], 1, 0, next, arg), OK);
    assert_eq!(owners[0].wait(), (OK, vec![]));
    assert_eq!(
        RING_CODE.load(Ordering::Relaxed),
        ErrorCode::Deadlock as c_int
    );
}

#[test]
fn a_task_may_make_and_destroy_another_runtime() {
    let ran = AtomicU32::new(0);
    unsafe extern "C-unwind" fn makes(arg: *mut c_void) {
        let inner = OwnedRuntime::new(2);
        for token in 0..10 {
            assert_eq!(register(&inner, token, 0, count, arg), OK);
        }
    }
    let owner = OwnedRuntime::new(1);
    let arg = (&raw const ran).cast_mut().cast();
    assert_eq!(register(&owner, 1, 0, makes, arg), OK);
    assert_eq!(owner.wait(), (OK, vec![]));
    assert_eq!(ran.into_inner(), 10, "destroyed, and drained before");
}

fn arg_of(closure: &Closure) -> *mut c_void {
    ptr::from_ref(closure).cast_mut().cast()
}

/// Creates a task. The returned receiver gets a message when the task starts, and the task ends
/// when the returned sender sends.
fn held() -> (Box<Closure>, Receiver<()>, Sender<()>) {
    let (begin, begun) = channel();
    let (end, ends) = channel();
    let ends = Mutex::new(ends);
    let body = move || {
        begin.send(()).unwrap();
        ends.lock().unwrap().recv().unwrap();
    };
    (Box::new(Closure(Box::new(body))), begun, end)
}

#[test]
fn a_running_task_keeps_its_token() {
    let owner = OwnedRuntime::new(2);
    let (task, begun, end) = held();
    assert_eq!(register(&owner, 3, 1, call, arg_of(&task)), OK);
    assert_eq!(resolve(&owner, 3), OK);
    begun.recv().unwrap();
    let text = "task 3 was resolved 2 times, but waits for only 1";
    fails(resolve(&owner, 3), ErrorCode::ResolvedTooOften, text);
    let code = register(&owner, 3, 0, nothing, ptr::null_mut());
    assert_eq!(code, ErrorCode::Registered as c_int);
    end.send(()).unwrap();
    assert_eq!(owner.wait(), (OK, vec![]));
    assert_eq!(
        register(&owner, 3, 0, nothing, ptr::null_mut()),
        OK,
        "free again"
    );
}

#[test]
fn destroy_waits_for_calls_in_progress() {
    for _ in 0..20 {
        let owner = OwnedRuntime::new(2);
        let ran = AtomicU32::new(0);
        let (task, begun, end) = held();
        let counts = (
            Some(count as Entry),
            (&raw const ran).cast_mut().cast(),
            (0, 0),
        );
        let first = (Some(call as Entry), arg_of(&task), (0, 0));
        let (_, graph, _) = graph(&[first, counts, counts], &[(1, 0), (2, 1)]);
        let graph = AtomicPtr::new(graph);
        std::thread::scope(|scope| {
            let runs = scope.spawn(|| owner.run(graph.load(Ordering::Relaxed)));
            begun.recv().unwrap();
            let destroys = scope.spawn(|| owner.destroy());
            end.send(()).unwrap();
            assert_eq!(runs.join().unwrap(), (OK, vec![], 0));
            assert_eq!(destroys.join().unwrap(), OK);
        });
        std::mem::forget(owner);
        free(graph.into_inner());
        assert_eq!(ran.into_inner(), 2);
    }
}

#[test]
fn destroy_runs_ready_tasks_and_those_they_make_ready() {
    static RAN: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C-unwind" fn another(arg: *mut c_void) {
        RAN.fetch_add(1, Ordering::Relaxed);
        let more = arg.addr();
        if more > 0 {
            let arg = ptr::without_provenance_mut(more - 1);
            let own = usher_tasks_current();
            // SAFETY: the runtime is that of the calling task, so it exists.
            let code =
                unsafe { usher_tasks_register(own, more as u64, 0, Some(another), arg, 0, 0) };
            assert_eq!(code, OK);
        }
    }
    let owner = OwnedRuntime::new(2);
    let arg = ptr::without_provenance_mut(1000);
    assert_eq!(register(&owner, 0, 0, another, arg), OK);
    drop(owner);
    assert_eq!(RAN.load(Ordering::Relaxed), 1001);
}

#[test]
fn calls_after_destroy_are_rejected() {
    let owner = OwnedRuntime::new(2);
    assert_eq!(owner.destroy(), OK);
    let ended = ErrorCode::Ended as c_int;
    let mut dropped = 0;
    // SAFETY: the handle came from the library, and the pointers refer to local variables.
    unsafe {
        assert_eq!(usher_tasks_workers(owner.0), 0);
        assert_eq!(resolve(&owner, 1), ended);
        assert_eq!(register(&owner, 1, 0, nothing, ptr::null_mut()), ended);
        assert_eq!(owner.wait().0, ended);
        assert_eq!(usher_tasks_cancel(owner.0, &raw mut dropped), ended);
        assert_eq!(usher_tasks_runtime_destroy(owner.0), ended);
    }
    std::mem::forget(owner);
}

#[test]
fn calls_may_begin_at_any_time_while_a_runtime_is_destroyed() {
    for _ in 0..200 {
        let owner = OwnedRuntime::new(1);
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| {
                loop {
                    // SAFETY: the handle came from the library.
                    let workers = unsafe { usher_tasks_workers(owner.0) };
                    let code = resolve(&owner, 1);
                    if workers == 0 || code == ErrorCode::Ended as c_int {
                        return code;
                    }
                    assert!(code == OK && workers == 1, "{}", last_error());
                }
            });
            assert_eq!(owner.destroy(), OK);
            assert_eq!(calls.join().unwrap(), ErrorCode::Ended as c_int);
        });
        std::mem::forget(owner);
    }
}

#[test]
fn destroy_rejects_new_calls_of_other_threads() {
    let owner = OwnedRuntime::new(2);
    let (task, begun, end) = held();
    assert_eq!(register(&owner, 1, 0, call, arg_of(&task)), OK);
    begun.recv().unwrap();
    std::thread::scope(|scope| {
        let destroys = scope.spawn(|| owner.destroy());
        // The task runs until it gets a message, and the runtime is not freed before that.
        let deadline = Instant::now() + Duration::from_secs(20);
        let is_closed = || resolve(&owner, 2) == ErrorCode::Ended as c_int;
        let mut closed = is_closed();
        while !closed && Instant::now() < deadline {
            std::thread::yield_now();
            closed = is_closed();
        }
        if !closed {
            end.send(()).unwrap();
        }
        assert!(closed, "still open");
        assert_eq!(
            last_error(),
            "the runtime is being destroyed and accepts no more calls"
        );
        let ended = ErrorCode::Ended as c_int;
        assert_eq!(owner.wait(), (ended, vec![]));
        assert_eq!(register(&owner, 2, 0, nothing, ptr::null_mut()), ended);
        end.send(()).unwrap();
        assert_eq!(destroys.join().unwrap(), OK);
    });
    std::mem::forget(owner);
}

#[test]
fn failed_discards_are_reported_by_the_next_wait() {
    unsafe extern "C-unwind" fn fails(_: *mut c_void) {
        // SAFETY: the argument is a string that ends with a 0.
        assert_eq!(unsafe { usher_tasks_fail(c"not freed".as_ptr()) }, OK);
    }
    let owner = OwnedRuntime::new(1);
    let register = |token, times| {
        let (entry, discard) = (Some(nothing as Entry), Some(fails as Entry));
        let none = ptr::null_mut();
        // SAFETY: the runtime is valid.
        unsafe { usher_tasks_register_owned(owner.0, token, times, entry, none, discard, 0, 0) }
    };
    let report = |token| {
        (
            ErrorCode::Unfinished as c_int,
            vec![failed(token, "not freed")],
        )
    };
    assert_eq!(register(5, 1), OK);
    // SAFETY: the runtime is valid.
    assert_eq!(unsafe { usher_tasks_cancel(owner.0, ptr::null_mut()) }, OK);
    assert_eq!(owner.wait(), report(5), "dropped by us");
    assert_eq!(register(6, 0), OK);
    assert_eq!(owner.wait(), report(6), "dropped by a worker");
    assert_eq!(register(7, 1), OK, "and not reported");
    drop(owner);
}

#[test]
fn each_failure_is_reported_to_one_waiting_thread() {
    let owner = OwnedRuntime::new(1);
    let (task, begun, end) = held();
    let all = std::thread::scope(|scope| {
        assert_eq!(register(&owner, 1, 0, call, arg_of(&task)), OK);
        begun.recv().unwrap();
        let waits = [(); 3].map(|()| scope.spawn(|| owner.wait().1));
        assert_eq!(register(&owner, 2, 0, fails_at_once, ptr::null_mut()), OK);
        end.send(()).unwrap();
        waits.map(|wait| wait.join().unwrap()).concat()
    });
    // A wait reports the failed task, even if no thread had begun to wait when the task failed.
    assert_eq!(all, [failed(2, "without a message")]);
    assert_eq!(owner.wait(), (OK, vec![]));
}

unsafe extern "C-unwind" fn fails_at_once(_: *mut c_void) {
    // SAFETY: the function accepts null, which means that there is no message.
    assert_eq!(unsafe { usher_tasks_fail(ptr::null()) }, OK);
}

/// The error codes that `discard` functions got when they registered tasks.
static DISCARD_RESULTS: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

#[test]
fn discards_cannot_register_tasks_at_the_end() {
    unsafe extern "C-unwind" fn again(arg: *mut c_void) {
        let own = usher_tasks_current();
        let (entry, discard) = (Some(nothing as Entry), Some(again as Entry));
        // SAFETY: the runtime is that of the task, and the functions use the argument as a number.
        let code = unsafe { usher_tasks_register_owned(own, 9, 1, entry, arg, discard, 0, 0) };
        DISCARD_RESULTS.lock().unwrap().push(code);
    }
    let owner = OwnedRuntime::new(1);
    let (entry, discard) = (Some(nothing as Entry), Some(again as Entry));
    // SAFETY: the runtime is valid for both calls.
    unsafe {
        let none = ptr::null_mut();
        let code = usher_tasks_register_owned(owner.0, 1, 1, entry, none, discard, 0, 0);
        assert_eq!(code, OK);
        assert_eq!(usher_tasks_cancel(owner.0, ptr::null_mut()), OK);
    }
    assert_eq!(
        *DISCARD_RESULTS.lock().unwrap(),
        [OK],
        "the runtime still works"
    );
    drop(owner);
    let ended = ErrorCode::Ended as c_int;
    assert_eq!(*DISCARD_RESULTS.lock().unwrap(), [OK, ended]);
}

#[test]
fn a_failure_belongs_to_one_task() {
    unsafe extern "C-unwind" fn inner(_: *mut c_void) {
        // SAFETY: the argument is a string that ends with a 0.
        assert_eq!(unsafe { usher_tasks_fail(c"inner".as_ptr()) }, OK);
    }
    /// A task that runs a graph with a single task, which fails. If its argument is not null, the
    /// task marks itself as failed before.
    unsafe extern "C-unwind" fn outer(arg: *mut c_void) {
        if !arg.is_null() {
            // SAFETY: the argument is a string that ends with a 0.
            assert_eq!(unsafe { usher_tasks_fail(c"outer".as_ptr()) }, OK);
        }
        let own = usher_tasks_current();
        let task = (Some(inner as Entry), ptr::null_mut(), (0, 0));
        let (_, graph, _) = common::graph(&[task], &[]);
        // SAFETY: the runtime is that of the calling task, so it exists.
        let code = unsafe { usher_tasks_run(own, graph, ptr::null_mut()) };
        assert_eq!(code, ErrorCode::Failed as c_int);
        assert_eq!(last_error(), "task 0 failed: inner");
        common::free(graph);
    }
    let owner = OwnedRuntime::new(1);
    assert_eq!(register(&owner, 1, 0, outer, ptr::null_mut()), OK);
    assert_eq!(register(&owner, 2, 0, outer, ptr::dangling_mut()), OK);
    assert_eq!(register(&owner, 3, 0, outer, ptr::null_mut()), OK);
    let left = vec![failed(2, "outer")];
    assert_eq!(owner.wait(), (ErrorCode::Unfinished as c_int, left));
}
