// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the C functions for traces, counters and explanations of orders, also with structures
//! of other sizes and a full disk.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use usher_tasks_capi::error::ErrorCode;
use usher_tasks_capi::graph::*;
use usher_tasks_capi::monitoring::*;
use usher_tasks_capi::runtime::*;

const TASKS: usize = 500;

unsafe extern "C-unwind" fn nothing(_: *mut c_void) {}

/// Creates a runtime of two workers, and a graph that is a chain of tasks without groups.
fn new_runtime_and_graph() -> (*mut RuntimeHandle, *mut GraphHandle) {
    new_graph(false)
}

/// Creates a runtime of two workers and a graph, which keeps the declared order on request.
fn new_graph(keeps_order: bool) -> (*mut RuntimeHandle, *mut GraphHandle) {
    let (mut runtime, mut builder, mut graph) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let options = common::options(2, 0, (0, 0));
    // SAFETY: the out-pointers refer to local variables, and the tasks may be called with a null
    // argument.
    unsafe {
        assert_eq!(
            usher_tasks_runtime_new(&raw const options, &raw mut runtime),
            0
        );
        assert_eq!(usher_tasks_builder_new(&raw mut builder), 0);
        for task in 0..TASKS {
            // The order of the data differs from the declared order.
            let arg = ptr::without_provenance_mut((TASKS - task) * 64);
            let number = ptr::null_mut();
            assert_eq!(
                usher_tasks_builder_task(builder, Some(nothing), arg, 0, 0, number),
                0
            );
            if task > 0 {
                assert_eq!(usher_tasks_builder_after(builder, task, task - 1), 0);
            }
        }
        if keeps_order {
            assert_eq!(usher_tasks_builder_keep_order(builder), 0);
        }
        assert_eq!(
            usher_tasks_builder_build(builder, &raw mut graph, ptr::null_mut()),
            0
        );
        usher_tasks_builder_destroy(builder);
    }
    (runtime, graph)
}

fn end((runtime, graph): (*mut RuntimeHandle, *mut GraphHandle)) {
    // SAFETY: the handles were created above, and are not used after this call.
    unsafe {
        assert_eq!(usher_tasks_graph_destroy(graph), 0);
        assert_eq!(usher_tasks_runtime_destroy(runtime), 0);
    }
}

#[test]
fn traces_are_written_in_each_format() {
    let (runtime, graph) = new_runtime_and_graph();
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: the handles are valid, and the strings end with a 0.
    unsafe {
        assert_eq!(usher_tasks_trace_start(runtime, TASKS), 0);
        assert_eq!(usher_tasks_run(runtime, graph, ptr::null_mut()), 0);
        assert_eq!(usher_tasks_trace_stop(runtime), 0);
        for (format, what) in Format::ALL.into_iter().zip(["\"ph\":\"X\"", "(T)", "(S)"]) {
            let path = dir.path().join("trace");
            let name = CString::new(path.to_str().unwrap()).unwrap();
            assert_eq!(
                usher_tasks_trace_write(runtime, format as i32, name.as_ptr()),
                0
            );
            let file = std::fs::read_to_string(path).unwrap();
            assert!(file.contains(what), "{what}");
        }
        let nowhere = c"/nowhere/trace".as_ptr();
        common::fails(
            usher_tasks_trace_write(runtime, 0, nowhere),
            ErrorCode::File,
            "cannot write the trace /nowhere/trace: No such file or directory (os error 2)",
        );
        common::fails(
            usher_tasks_trace_write(runtime, 3, nowhere),
            ErrorCode::Range,
            "the format of the trace must be from 0 to 2, not 3",
        );
        common::fails(
            usher_tasks_trace_write(runtime, 0, ptr::null()),
            ErrorCode::Null,
            "the path of the trace is NULL",
        );
        let all = usher_tasks_trace_start(runtime, usize::MAX);
        let text = format!(
            "out of memory: a trace of {} tasks of each of 2 workers cannot be stored",
            usize::MAX
        );
        common::fails(all, ErrorCode::Memory, &text);
    }
    end((runtime, graph));
}

#[test]
fn counters_add_up() {
    let (runtime, graph) = new_runtime_and_graph();
    // SAFETY: the handles are valid, and the counters have the stated size.
    unsafe {
        assert_eq!(usher_tasks_run(runtime, graph, ptr::null_mut()), 0);
        let mut tasks = 0;
        for worker in 0..2 {
            let mut counted = WorkerCounters {
                size: size_of::<WorkerCounters>(),
                ..WorkerCounters::default()
            };
            assert_eq!(
                usher_tasks_counters_of(runtime, worker, &raw mut counted),
                0
            );
            tasks += counted.tasks;
        }
        assert_eq!(tasks, TASKS as u64);
        let mut counted = WorkerCounters::default();
        common::fails(
            usher_tasks_counters_of(runtime, 0, &raw mut counted),
            ErrorCode::Options,
            "counters.size is 0, but usher_tasks_counters has 80 bytes",
        );
        // For an invalid size, the function must not write to the structure.
        for size in [4097, usize::MAX] {
            counted.size = size;
            common::fails(
                usher_tasks_counters_of(runtime, 0, &raw mut counted),
                ErrorCode::Options,
                &format!("counters.size is {size}, but usher_tasks_counters has 80 bytes"),
            );
        }
        counted.size = 80;
        common::fails(
            usher_tasks_counters_of(runtime, 2, &raw mut counted),
            ErrorCode::Range,
            "the runtime has no worker 2: it has 2 workers",
        );
    }
    end((runtime, graph));
}

#[test]
fn the_current_grouping_is_reported() {
    let together = |runtime| {
        let mut together = u32::MAX;
        // SAFETY: the runtime is valid, and the pointer refers to a local variable.
        let code = unsafe { usher_tasks_current_grouping(runtime, &raw mut together) };
        (code, together)
    };
    let (runtime, graph) = new_runtime_and_graph();
    let (code, first) = together(runtime);
    assert_eq!(
        (code, first),
        (0, GroupingCode::Time as u32),
        "the first to be tried"
    );
    // SAFETY: the runtime is valid or null; the out-pointer is null.
    unsafe {
        common::fails(
            usher_tasks_current_grouping(runtime, ptr::null_mut()),
            ErrorCode::Null,
            "the pointer to the grouping is NULL",
        );
    }
    assert_eq!(
        together(ptr::null_mut()),
        (ErrorCode::Null as i32, u32::MAX)
    );
    end((runtime, graph));

    let mut served = ptr::null_mut();
    let options = common::options(1, 2, (0, 0));
    // SAFETY: the pointer refers to a local variable, and the runtime is not used after this call.
    unsafe {
        assert_eq!(
            usher_tasks_runtime_new(&raw const options, &raw mut served),
            0
        );
        assert_eq!(together(served), (0, GroupingCode::NoneRequested as u32));
        assert_eq!(usher_tasks_runtime_destroy(served), 0);
    }
}

#[test]
fn a_graph_can_be_explained_while_it_runs() {
    let (runtime, graph) = new_runtime_and_graph();
    let (shared, ends) = (graph.expose_provenance(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let graph = ptr::with_exposed_provenance(shared);
            while !ends.load(Ordering::Relaxed) {
                // SAFETY: the graph is valid, and the function accepts a null buffer of 0 bytes.
                unsafe { usher_tasks_graph_explain(graph, ptr::null_mut(), 0) };
            }
        });
        let runs = (0..2000).map(|_| {
            // SAFETY: the handles are valid.
            unsafe { usher_tasks_run(runtime, graph, ptr::null_mut()) }
        });
        let busy = runs.filter(|&code| code != 0).count();
        ends.store(true, Ordering::Relaxed);
        assert_eq!(busy, 0);
    });
    end((runtime, graph));
}

#[test]
fn other_orders_are_tried_unless_the_graph_keeps_its_order() {
    for (keeps_order, orders) in [(false, 2..9), (true, 1..2)] {
        let (runtime, graph) = new_graph(keeps_order);
        for _ in 0..100 {
            // SAFETY: the handles are valid.
            let ran = unsafe { usher_tasks_run(runtime, graph, ptr::null_mut()) };
            assert_eq!(ran, 0);
        }
        let mut text = [0_u8; 2048];
        // SAFETY: the graph is valid, and the buffer has the stated size.
        unsafe { usher_tasks_graph_explain(graph, text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap();
        let tried = text.lines().skip(1).count();
        assert!(orders.contains(&tried), "{keeps_order}: {text}");
        assert!(!keeps_order || text.contains("> as declared"), "{text}");
        end((runtime, graph));
    }
}

#[test]
fn explanations_are_truncated_to_the_buffer() {
    let (runtime, graph) = new_runtime_and_graph();
    let explain = |text: &mut [c_char]| {
        // SAFETY: the graph is valid, and the buffer has the stated size.
        unsafe { usher_tasks_graph_explain(graph, text.as_mut_ptr(), text.len()) }
    };
    assert_eq!(explain(&mut []), "the graph has not run yet\n".len());
    for _ in 0..20 {
        // SAFETY: the handles are valid.
        let ran = unsafe { usher_tasks_run(runtime, graph, ptr::null_mut()) };
        assert_eq!(ran, 0);
    }
    let mut text = [1; 6];
    let length = explain(&mut text);
    assert!(length > 20);
    assert_eq!(text.map(|byte| byte as u8), *b"  ord\0");
    // SAFETY: the functions accept a null graph and a null buffer.
    unsafe {
        assert_eq!(
            usher_tasks_graph_explain(ptr::null(), text.as_mut_ptr(), 6),
            0
        );
        assert_eq!(usher_tasks_graph_explain(graph, ptr::null_mut(), 6), length);
    }
    end((runtime, graph));
}
