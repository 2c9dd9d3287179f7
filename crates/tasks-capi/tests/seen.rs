// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a runtime tells of itself, from C.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use usher_tasks_capi::error::Code;
use usher_tasks_capi::graph::*;
use usher_tasks_capi::runtime::*;
use usher_tasks_capi::seen::*;

const TASKS: usize = 500;

unsafe extern "C-unwind" fn nothing(_: *mut c_void) {}

/// A runtime of two workers, and a graph of tasks without groups, one after the other.
fn made() -> (*mut RuntimeHandle, *mut GraphHandle) {
    let (mut runtime, mut builder, mut graph) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let options = common::options(2, 0, (0, 0));
    // SAFETY: places of ours to be written, and functions that may be called.
    unsafe {
        assert_eq!(
            usher_tasks_runtime_new(&raw const options, &raw mut runtime),
            0
        );
        assert_eq!(usher_tasks_builder_new(&raw mut builder), 0);
        for task in 0..TASKS {
            let arg = ptr::without_provenance_mut(task * 64);
            let number = ptr::null_mut();
            assert_eq!(
                usher_tasks_builder_task(builder, Some(nothing), arg, 0, 0, number),
                0
            );
            if task > 0 {
                assert_eq!(usher_tasks_builder_after(builder, task, task - 1), 0);
            }
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
    // SAFETY: made above, and used no more.
    unsafe {
        assert_eq!(usher_tasks_graph_destroy(graph), 0);
        assert_eq!(usher_tasks_runtime_destroy(runtime), 0);
    }
}

#[test]
fn traces_are_written_as_asked_for() {
    let (runtime, graph) = made();
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: handles that live, and texts that end with a 0.
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
            Code::File,
            "writing the trace /nowhere/trace: No such file or directory (os error 2)",
        );
        common::fails(
            usher_tasks_trace_write(runtime, 3, nowhere),
            Code::Range,
            "format 3: there are 0 to 2",
        );
        common::fails(
            usher_tasks_trace_write(runtime, 0, ptr::null()),
            Code::Null,
            "the path of the trace is NULL",
        );
        let all = usher_tasks_trace_start(runtime, usize::MAX);
        let words = format!("a trace of {} tasks of 2 workers: no memory", usize::MAX);
        common::fails(all, Code::Memory, &words);
    }
    end((runtime, graph));
}

#[test]
fn counters_add_up() {
    let (runtime, graph) = made();
    // SAFETY: handles that live, and counters of the size that they say.
    unsafe {
        assert_eq!(usher_tasks_run(runtime, graph, ptr::null_mut()), 0);
        let mut tasks = 0;
        for worker in 0..2 {
            let mut counted = Counted {
                size: size_of::<Counted>(),
                ..Counted::default()
            };
            assert_eq!(
                usher_tasks_counters_of(runtime, worker, &raw mut counted),
                0
            );
            tasks += counted.tasks;
        }
        assert_eq!(tasks, TASKS as u64);
        let mut counted = Counted::default();
        common::fails(
            usher_tasks_counters_of(runtime, 0, &raw mut counted),
            Code::Options,
            "counters.size is 0, that of usher_tasks_counters 80",
        );
        // Nothing is written behind what a program has, whatever it says.
        for size in [4097, usize::MAX] {
            counted.size = size;
            common::fails(
                usher_tasks_counters_of(runtime, 0, &raw mut counted),
                Code::Options,
                &format!("counters.size is {size}, that of usher_tasks_counters 80"),
            );
        }
        counted.size = 80;
        common::fails(
            usher_tasks_counters_of(runtime, 2, &raw mut counted),
            Code::Range,
            "worker 2: the runtime has 2",
        );
    }
    end((runtime, graph));
}

#[test]
fn what_tasks_by_token_have_in_common_is_told() {
    let together = |runtime| {
        let mut together = u32::MAX;
        // SAFETY: a runtime that lives, and a place of ours.
        let code = unsafe { usher_tasks_together(runtime, &raw mut together) };
        (code, together)
    };
    let (runtime, graph) = made();
    let (code, first) = together(runtime);
    assert_eq!(
        (code, first),
        (0, Common::Time as u32),
        "the first to be tried"
    );
    // SAFETY: a runtime that lives, or none; no place.
    unsafe {
        common::fails(
            usher_tasks_together(runtime, ptr::null_mut()),
            Code::Null,
            "the place for what tasks have in common is NULL",
        );
    }
    assert_eq!(together(ptr::null_mut()), (Code::Null as i32, u32::MAX));
    end((runtime, graph));

    let mut served = ptr::null_mut();
    let options = common::options(1, 2, (0, 0));
    // SAFETY: a place of ours, and a runtime that is used no more.
    unsafe {
        assert_eq!(
            usher_tasks_runtime_new(&raw const options, &raw mut served),
            0
        );
        assert_eq!(together(served), (0, Common::Unasked as u32));
        assert_eq!(usher_tasks_runtime_destroy(served), 0);
    }
}

#[test]
fn a_graph_that_is_explained_can_be_run() {
    let (runtime, graph) = made();
    let (shared, ends) = (graph.expose_provenance(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let graph = ptr::with_exposed_provenance(shared);
            while !ends.load(Ordering::Relaxed) {
                // SAFETY: a graph that lives; only the length is asked for.
                unsafe { usher_tasks_graph_explain(graph, ptr::null_mut(), 0) };
            }
        });
        let runs = (0..2000).map(|_| {
            // SAFETY: handles that live.
            unsafe { usher_tasks_run(runtime, graph, ptr::null_mut()) }
        });
        let busy = runs.filter(|&code| code != 0).count();
        ends.store(true, Ordering::Relaxed);
        assert_eq!(busy, 0);
    });
    end((runtime, graph));
}

#[test]
fn an_order_is_explained_as_far_as_there_is_room() {
    let (runtime, graph) = made();
    let explain = |text: &mut [c_char]| {
        // SAFETY: as many bytes as it says, of a graph that lives.
        unsafe { usher_tasks_graph_explain(graph, text.as_mut_ptr(), text.len()) }
    };
    assert_eq!(explain(&mut []), "not run yet\n".len());
    for _ in 0..20 {
        // SAFETY: handles that live.
        let ran = unsafe { usher_tasks_run(runtime, graph, ptr::null_mut()) };
        assert_eq!(ran, 0);
    }
    let mut text = [1; 6];
    let length = explain(&mut text);
    assert!(length > 20);
    assert_eq!(text.map(|byte| byte as u8), *b"  ord\0");
    // SAFETY: none, or no room.
    unsafe {
        assert_eq!(
            usher_tasks_graph_explain(ptr::null(), text.as_mut_ptr(), 6),
            0
        );
        assert_eq!(usher_tasks_graph_explain(graph, ptr::null_mut(), 6), length);
    }
    end((runtime, graph));
}
