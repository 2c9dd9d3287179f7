// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of wrong calls of the C API: null pointers, invalid options, tokens, groups and handles.
//! Each call must return its error code, set an error text that names the input, and change nothing
//! else.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use usher_tasks_capi::color::*;
use usher_tasks_capi::current_task::*;
use usher_tasks_capi::error::ErrorCode;
use usher_tasks_capi::graph::*;
use usher_tasks_capi::options::Options;
use usher_tasks_capi::report::*;
use usher_tasks_capi::runtime::*;

use common::*;

#[test]
fn invalid_runtimes_are_rejected() {
    let refused = |workers, policy, groups| {
        let (code, runtime) = runtime_new(&options(workers, policy, groups));
        assert!(runtime.is_null());
        (code, last_error())
    };
    let expected = |code: ErrorCode, text: &str| (code as c_int, text.to_owned());
    let most = "the number of workers must be from 1 to 1024";
    let workers = |count| expected(ErrorCode::Workers, &format!("{most}, not {count}"));
    assert_eq!(refused(0, 0, (0, 0)), workers(0));
    assert_eq!(refused(10_000, 0, (0, 0)), workers(10_000));
    assert_eq!(refused(u32::MAX, 0, (0, 0)), workers(u32::MAX));
    let policy = expected(
        ErrorCode::Options,
        "the option policy must be from 0 to 3, not 4",
    );
    assert_eq!(refused(1, 4, (0, 0)), policy);
    let groups =
        "65536 temporal groups x 65 spatial groups need too many queues: the maximum is 4194304";
    let groups = expected(ErrorCode::Groups, groups);
    assert_eq!(refused(1, 1, (65536, 65)), groups);
    assert_eq!(
        refused(1, 1, (u32::MAX, u32::MAX)).0,
        ErrorCode::Groups as c_int
    );
    // SAFETY: the function accepts null as the out-pointer, which is an error, and as the options,
    // which selects the defaults.
    unsafe {
        let code = usher_tasks_runtime_new(ptr::null(), ptr::null_mut());
        fails(code, ErrorCode::Null, "the pointer to the runtime is NULL");
        let mut runtime = ptr::null_mut();
        assert_eq!(usher_tasks_runtime_new(ptr::null(), &raw mut runtime), OK);
        let cpus = usher_tasks_capi::options::usher_tasks_cpus();
        assert_eq!(usher_tasks_workers(runtime), cpus);
        assert_eq!(usher_tasks_runtime_destroy(runtime), OK);
    }
}

/// The options of a program that was compiled with a later header.
#[repr(C)]
struct Future {
    known: Options,
    more: [u64; 3],
}

#[test]
fn options_of_other_versions_are_read() {
    let new = |size, more| {
        let known = Options {
            size,
            ..options(1, 0, (0, 0))
        };
        let future = Future { known, more };
        let (code, runtime) = runtime_new((&raw const future).cast());
        // SAFETY: the runtime is null or was created above, and is not used after this call.
        assert_eq!(unsafe { usher_tasks_runtime_destroy(runtime) }, OK);
        code
    };
    let whole = size_of::<Future>();
    assert_eq!(new(whole, [0; 3]), OK, "nothing set that we do not know");
    assert_eq!(new(24, [u64::MAX; 3]), OK, "not theirs");
    fails(
        new(whole, [0, 0, 1 << 8]),
        ErrorCode::Options,
        "byte 81 of the options is set, but version 0.1.0 of the library knows only 64 bytes",
    );
    for size in [0, 8, 23, 4097, usize::MAX] {
        let text = format!("options.size is {size}, but usher_tasks_options has 64 bytes");
        fails(new(size, [0; 3]), ErrorCode::Options, &text);
    }
}

#[test]
fn options_after_those_of_the_first_version_are_read() {
    for (binding, running, [progress, reserved], text) in [
        (0, 0, [0, 0], None),
        (1, 1, [1, 0], None),
        (
            2,
            0,
            [0, 0],
            Some("the option binding must be 0 or 1, not 2"),
        ),
        (
            0,
            2,
            [0, 0],
            Some("the option running must be 0 or 1, not 2"),
        ),
        (
            0,
            0,
            [2, 0],
            Some("the option progress must be 0 or 1, not 2"),
        ),
        (0, 0, [0, 3], Some("the option reserved must be 0, not 3")),
    ] {
        let bound = Options {
            binding,
            running,
            progress,
            reserved,
            ..options(2, 0, (0, 0))
        };
        let (code, runtime) = runtime_new(&bound);
        match text {
            None => assert_eq!(code, OK),
            Some(text) => fails(code, ErrorCode::Options, text),
        }
        // SAFETY: the runtime is null or was created above, and is not used after this call.
        assert_eq!(unsafe { usher_tasks_runtime_destroy(runtime) }, OK);
        // The options of the first version have 24 bytes, without the fields from `binding` on.
        let (code, runtime) = runtime_new(&Options { size: 24, ..bound });
        assert_eq!(code, OK);
        // SAFETY: the runtime was created above, and is not used after this call.
        assert_eq!(unsafe { usher_tasks_runtime_destroy(runtime) }, OK);
    }
}

#[test]
fn stacks_have_the_requested_size() {
    /// Uses 64 KiB of the stack in each of `times` nested calls.
    fn deep(times: usize) -> u8 {
        let room = std::hint::black_box([times as u8; 64 << 10]);
        match times {
            0 => room[0],
            _ => deep(times - 1) ^ room[times],
        }
    }
    unsafe extern "C-unwind" fn takes_8_mib(_: *mut c_void) {
        std::hint::black_box(deep(128));
    }
    for binding in [0, 1] {
        let owner = OwnedRuntime::with(&Options {
            binding,
            stack_bytes: 64 << 20,
            ..options(2, 0, (0, 0))
        });
        assert_eq!(register(&owner, 1, 0, takes_8_mib, ptr::null_mut()), OK);
        assert_eq!(owner.wait(), (OK, vec![]));
    }
    for stack_bytes in [1 << 47, usize::MAX] {
        let (code, runtime) = runtime_new(&Options {
            stack_bytes,
            ..options(1, 0, (0, 0))
        });
        fails(
            code,
            ErrorCode::Thread,
            "starting the thread of worker 0: out of memory",
        );
        assert!(runtime.is_null());
    }
    // The options of the second version have 32 bytes, without the stack size.
    let (code, runtime) = runtime_new(&Options {
        size: 32,
        stack_bytes: usize::MAX,
        ..options(1, 0, (0, 0))
    });
    assert_eq!(code, OK);
    // SAFETY: the runtime was created above, and is not used after this call.
    assert_eq!(unsafe { usher_tasks_runtime_destroy(runtime) }, OK);
}

#[test]
fn dense_tokens_work_and_wrong_ranges_are_errors() {
    let dense = |dense_first, dense_count| Options {
        dense_first,
        dense_count,
        ..options(1, 0, (0, 0))
    };
    let owner = OwnedRuntime::with(&dense(5, 10));
    for token in 0..20 {
        assert_eq!(register(&owner, token, 1, nothing, ptr::null_mut()), OK);
    }
    let expected: Vec<_> = (0..20).map(|token| common::unresolved(token, 1)).collect();
    assert_eq!(owner.wait(), (ErrorCode::Unfinished as c_int, expected));
    let (code, runtime) = runtime_new(&dense(u64::MAX, 2));
    let text = "2 dense tokens from 18446744073709551615 on: the last one must be below 18446744073709551615";
    fails(code, ErrorCode::Options, text);
    assert!(runtime.is_null());
    let (code, _) = runtime_new(&dense(0, 1 << 40));
    let text = "invalid range of dense tokens 0..1099511627776: the end must be at least the start, and \
                at most 4294967296 more";
    fails(code, ErrorCode::Options, text);
}

fn null(code: c_int) {
    assert_eq!(code, ErrorCode::Null as c_int, "{}", last_error());
}

#[test]
fn null_runtimes_and_entries_are_errors() {
    let owner = OwnedRuntime::new(1);
    let (none, nobody) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: these functions accept null.
    unsafe {
        null(usher_tasks_register(
            nobody,
            1,
            0,
            Some(nothing),
            none,
            0,
            0,
        ));
        null(usher_tasks_register(owner.0, 1, 0, None, none, 0, 0));
        assert_eq!(last_error(), "the function pointer of task 1 is NULL");
        let owned = usher_tasks_register_owned;
        null(owned(
            nobody,
            1,
            0,
            Some(nothing),
            none,
            Some(nothing),
            0,
            0,
        ));
        null(owned(owner.0, 1, 0, None, none, Some(nothing), 0, 0));
        null(owned(owner.0, 1, 0, Some(nothing), none, None, 0, 0));
        assert_eq!(last_error(), "the discard function of task 1 is NULL");
        null(usher_tasks_resolve(nobody, 1));
        null(usher_tasks_wait(nobody, ptr::null_mut()));
        null(usher_tasks_cancel(nobody, ptr::null_mut()));
        assert_eq!(usher_tasks_workers(nobody), 0);
        assert_eq!(usher_tasks_runtime_destroy(nobody), OK);
        assert!(usher_tasks_current().is_null());
        fail_outside(ptr::null());
        fail_outside(c"no task".as_ptr());
    }
}

#[test]
fn null_graphs_and_reports_are_errors() {
    let owner = OwnedRuntime::new(1);
    let (none, unwanted) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: these functions accept null.
    unsafe {
        null(usher_tasks_builder_new(ptr::null_mut()));
        null(usher_tasks_builder_task(
            ptr::null_mut(),
            Some(nothing),
            none,
            0,
            0,
            ptr::null_mut(),
        ));
        null(usher_tasks_builder_after(ptr::null_mut(), 1, 0));
        null(usher_tasks_builder_keep_order(ptr::null_mut()));
        let mut built = ptr::dangling_mut();
        null(usher_tasks_builder_build(
            ptr::null(),
            &raw mut built,
            unwanted,
        ));
        assert!(built.is_null());
        let mut builder = ptr::null_mut();
        assert_eq!(usher_tasks_builder_new(&raw mut builder), OK);
        null(usher_tasks_builder_build(
            builder,
            ptr::null_mut(),
            unwanted,
        ));
        null(usher_tasks_builder_task(
            builder,
            None,
            none,
            0,
            0,
            ptr::null_mut(),
        ));
        assert_eq!(last_error(), "the function pointer of task 0 is NULL");
        usher_tasks_builder_destroy(builder);
        usher_tasks_builder_destroy(ptr::null_mut());
        null(usher_tasks_run(owner.0, ptr::null_mut(), unwanted));
        let empty = graph(&[], &[]).1;
        null(usher_tasks_run(ptr::null_mut(), empty, unwanted));
        assert_eq!(owner.run(empty), (OK, vec![], 0), "nothing to do is done");
        free(empty);
        assert_eq!(usher_tasks_graph_tasks(ptr::null()), 0);
        assert_eq!(usher_tasks_graph_destroy(ptr::null_mut()), OK);
        let mut line = std::mem::zeroed::<UnfinishedTask>();
        null(usher_tasks_report_at(ptr::null(), 0, &raw mut line));
        assert_eq!(usher_tasks_report_count(ptr::null()), 0);
        assert_eq!(usher_tasks_report_skipped(ptr::null()), 0);
        usher_tasks_report_destroy(ptr::null_mut());
    }
}

#[test]
fn null_colourings_and_blocks_are_errors() {
    let none = ptr::null_mut();
    // SAFETY: these functions accept null.
    unsafe {
        null(usher_coloring_check(ptr::null()));
        assert!(usher_coloring_base(ptr::null(), none).is_null());
        assert!(usher_coloring_header(ptr::null(), none).is_null());
        assert_eq!(usher_coloring_shift(ptr::null(), none), 0);
        let mut blocks = ptr::dangling_mut();
        null(usher_blocks_new(ptr::null(), &raw mut blocks));
        assert!(blocks.is_null());
        let mut header = ptr::dangling_mut();
        null(usher_blocks_take(ptr::null_mut(), &raw mut header));
        assert!(header.is_null());
        assert_eq!(usher_blocks_give_back(ptr::null_mut(), none), OK);
        null(usher_blocks_give_back(ptr::null_mut(), ptr::dangling_mut()));
        usher_blocks_destroy(ptr::null_mut());
    }
}

fn fail_outside(message: *const std::ffi::c_char) {
    // SAFETY: the argument is null or a string that ends with a 0.
    let code = unsafe { usher_tasks_fail(message) };
    fails(
        code,
        ErrorCode::Outside,
        "usher_tasks_fail() was called by a thread that runs no task",
    );
}

#[test]
fn errors_name_wrongly_used_tokens() {
    let owner = OwnedRuntime::new(2);
    let none = ptr::null_mut();
    assert_eq!(register(&owner, 5, 2, nothing, none), OK);
    let code = register(&owner, 5, 1, nothing, none);
    fails(
        code,
        ErrorCode::Registered,
        "the token 5 is in use: a task with this token is registered and has not run yet",
    );
    assert_eq!((resolve(&owner, 6), resolve(&owner, 6)), (OK, OK));
    let code = register(&owner, 6, 1, nothing, none);
    let text = "task 6 was resolved 2 times, but waits for only 1";
    fails(code, ErrorCode::ResolvedTooOften, text);
    assert_eq!(register(&owner, u64::MAX, u32::MAX, nothing, none), OK);
    assert_eq!(resolve(&owner, u64::MAX), OK);
    let left = vec![
        unresolved(5, 2),
        unresolved(u64::MAX, u32::MAX - 1),
        unregistered(6),
    ];
    assert_eq!(owner.wait(), (ErrorCode::Unfinished as c_int, left));
    let text = "tasks that were never resolved: 5 (missing resolutions: 2), 18446744073709551615 \
                 (missing resolutions: 4294967294); tasks that were resolved but never registered: 6";
    assert_eq!(last_error(), text);
    // SAFETY: the runtime is valid, and the functions accept null for the report and the count.
    unsafe {
        assert_eq!(
            usher_tasks_wait(owner.0, ptr::null_mut()),
            ErrorCode::Unfinished as c_int
        );
        assert_eq!(usher_tasks_cancel(owner.0, ptr::null_mut()), OK);
    }
    assert_eq!(owner.wait(), (OK, vec![]));
}

#[test]
fn groups_outside_the_policy_are_rejected() {
    let paper = OwnedRuntime::with(&options(1, 1, (2, 3)));
    let usher = OwnedRuntime::new(1);
    let try_in = |owner: &OwnedRuntime, t, s| {
        // SAFETY: the runtime is valid, and the entry uses no argument.
        unsafe { usher_tasks_register(owner.0, 9, 0, Some(nothing), ptr::null_mut(), t, s) }
    };
    let text =
        "task 9 has invalid groups: T is 1 and S is 3, but T must be less than 2 and S less than 3";
    fails(try_in(&paper, 1, 3), ErrorCode::Groups, text);
    assert_eq!(try_in(&paper, 2, 0), ErrorCode::Groups as c_int);
    assert_eq!(try_in(&usher, u32::MAX, 0), ErrorCode::Groups as c_int);
    assert_eq!(try_in(&usher, u32::MAX - 1, u32::MAX - 1), OK);
    assert_eq!(usher.wait(), (OK, vec![]));
    let task = |groups| (Some(nothing as Entry), ptr::null_mut(), groups);
    let (_, graph, _) = graph(&[task((1, 2)), task((1, 3))], &[]);
    assert_eq!(paper.run(graph).0, ErrorCode::Groups as c_int);
    assert_eq!(
        last_error(),
        "task 1 has invalid groups: T is 1 and S is 3, but T must be less than 2 and S less than 3"
    );
    assert_eq!(usher.run(graph).0, OK);
    free(graph);
}

#[test]
fn invalid_graphs_are_rejected() {
    let task = (Some(nothing as Entry), ptr::null_mut(), (0, 0));
    let (code, _, circle) = graph(&[task; 5], &[(1, 0), (2, 1), (3, 2), (1, 3), (4, 3)]);
    assert_eq!(code, ErrorCode::Cycle as c_int);
    let text = last_error();
    assert!(text.contains("dependency cycle"), "{text}");
    let mut tasks: Vec<u64> = circle.iter().map(|line| line.1).collect();
    tasks.sort_unstable();
    assert_eq!(tasks, [1, 2, 3]);
    assert!(
        circle
            .iter()
            .all(|line| line.0 == UnfinishedKind::Cycle as u32)
    );
    let (code, _, lines) = graph(&[task; 2], &[(1, 7)]);
    fails(
        code,
        ErrorCode::Range,
        "the graph has no task 7: it has 2 tasks",
    );
    assert_eq!(lines, []);
}

#[test]
fn lines_beyond_a_report_are_an_error() {
    let owner = OwnedRuntime::new(1);
    assert_eq!(resolve(&owner, 3), OK);
    let mut report = ptr::null_mut();
    // SAFETY: the pointers refer to local variables, and the report is not used after it is
    // destroyed.
    unsafe {
        assert_eq!(
            usher_tasks_wait(owner.0, &raw mut report),
            ErrorCode::Unfinished as c_int
        );
        let mut line = std::mem::zeroed::<UnfinishedTask>();
        let code = usher_tasks_report_at(report, 1, &raw mut line);
        fails(
            code,
            ErrorCode::Range,
            "the report has no line 1: it has 1 lines",
        );
        let code = usher_tasks_report_at(report, 0, ptr::null_mut());
        fails(code, ErrorCode::Null, "the pointer to the line is NULL");
        usher_tasks_report_destroy(report);
    }
}

/// A task that fails; its argument is the message.
unsafe extern "C-unwind" fn fail(arg: *mut c_void) {
    // SAFETY: the argument is null or a string that ends with a 0.
    let codes = unsafe {
        (
            usher_tasks_fail(arg.cast()),
            usher_tasks_fail(c"too late".as_ptr()),
        )
    };
    assert_eq!(codes, (OK, OK));
}

#[test]
fn failed_tasks_are_reported() {
    let owner = OwnedRuntime::new(1);
    let text = c"no such frame".as_ptr().cast_mut().cast();
    assert_eq!(register(&owner, 8, 0, fail, text), OK);
    let (code, lines) = owner.wait();
    assert_eq!(
        (code, lines),
        (
            ErrorCode::Unfinished as c_int,
            vec![failed(8, "no such frame")]
        )
    );
    assert_eq!(last_error(), "task 8 failed: no such frame");
    assert_eq!(owner.wait(), (OK, vec![]), "reported once");

    let ran = AtomicU32::new(0);
    let counts = (
        Some(count as Entry),
        (&raw const ran).cast_mut().cast(),
        (0, 0),
    );
    let fails = (Some(fail as Entry), ptr::null_mut(), (0, 0));
    let (_, graph, _) = graph(&[counts, fails, counts, counts], &[(1, 0), (2, 1), (3, 2)]);
    for run in 1..4 {
        let lines = vec![failed(1, "without a message")];
        assert_eq!(owner.run(graph), (ErrorCode::Failed as c_int, lines, 2));
        let text = "task 1 failed: without a message; 2 tasks were not run because of the failure";
        assert_eq!(last_error(), text);
        assert_eq!(ran.load(Ordering::Relaxed), run);
    }
    free(graph);
}

#[test]
fn invalid_colourings_are_rejected() {
    let of = |block_bytes, header_bytes, colors| ColoringSpec {
        block_bytes,
        header_bytes,
        colors,
    };
    let bad = [
        of(0, 0, 0),
        of(8000, 64, 4),
        of(32, 8, 1),
        of(8192, 64, 0),
        of(8192, 64, 129),
        of(4096, 0, 1),
        of(4096, 0, 2),
    ];
    let text = [
        "a block cannot have 0 bytes: the size must be a power of two and at least 64 bytes",
        "a block cannot have 8000 bytes: the size must be a power of two and at least 64 bytes",
        "a block cannot have 32 bytes: the size must be a power of two and at least 64 bytes",
        "the number of colours cannot be 0: it must be at least 1, which means no colouring",
        "blocks of 8192 bytes have no room for headers of 64 bytes in 129 colours",
        "a header cannot have 0 bytes: the size must be at least 1 byte",
        "a header cannot have 0 bytes: the size must be at least 1 byte",
    ];
    for (coloring, text) in bad.into_iter().zip(text) {
        let mut blocks = ptr::dangling_mut();
        let inside = ptr::dangling();
        // SAFETY: `coloring` is readable, and the out-pointer refers to a local variable. The
        // functions do not dereference the addresses.
        unsafe {
            let expected = ErrorCode::Coloring as c_int;
            assert_eq!(usher_coloring_check(&raw const coloring), expected);
            assert_eq!(last_error(), text);
            assert_eq!(
                usher_blocks_new(&raw const coloring, &raw mut blocks),
                expected
            );
            assert!(usher_coloring_base(&raw const coloring, inside).is_null());
            assert!(usher_coloring_header(&raw const coloring, inside).is_null());
            assert_eq!(usher_coloring_shift(&raw const coloring, inside), 0);
        }
        assert!(blocks.is_null());
    }
}

#[test]
fn blocks_are_found_from_any_inner_pointer() {
    let coloring = ColoringSpec {
        block_bytes: 4096,
        header_bytes: 128,
        colors: 16,
    };
    let mut blocks = ptr::null_mut();
    // SAFETY: `coloring` is readable, the out-pointers refer to local variables, and this test uses
    // a block only until it returns the block.
    unsafe {
        assert_eq!(usher_blocks_new(&raw const coloring, &raw mut blocks), OK);
        let mut taken = Vec::new();
        for number in 0..600_u64 {
            let mut header = ptr::null_mut();
            assert_eq!(usher_blocks_take(blocks, &raw mut header), OK);
            header.cast::<u64>().write(number);
            taken.push(header);
        }
        for (number, &header) in (0_u64..).zip(&taken) {
            let base = usher_coloring_base(&raw const coloring, header);
            let last = base.byte_add(4095);
            let found = usher_coloring_header(&raw const coloring, last);
            assert_eq!(found, header);
            let shift = usher_coloring_shift(&raw const coloring, base);
            assert_eq!(base.byte_add(shift), header);
            assert_eq!(found.cast::<u64>().read(), number);
            assert_eq!(usher_blocks_give_back(blocks, last), OK);
        }
        usher_blocks_destroy(blocks);
    }
}

#[test]
fn messages_with_any_bytes_become_text() {
    let owner = OwnedRuntime::new(1);
    let bytes = CString::new([b'a', 0xff, b'\n', 0xc3]).unwrap();
    assert_eq!(
        register(&owner, 1, 0, fail, bytes.as_ptr().cast_mut().cast()),
        OK
    );
    assert_eq!(owner.wait().1, [failed(1, "a\u{fffd}\n\u{fffd}")]);
}
