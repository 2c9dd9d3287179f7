// SPDX-License-Identifier: MIT OR Apache-2.0
//! Safe functions that call the C API for the tests of this folder. They meet the requirements of
//! the unsafe calls in one place.
#![allow(dead_code, reason = "each test uses its part")]

use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use oorandom::Rand64;
use usher_tasks_capi::current_task::Entry;
use usher_tasks_capi::error::{ErrorCode, usher_tasks_last_error};
use usher_tasks_capi::graph::{
    Builder, GraphHandle, usher_tasks_builder_after, usher_tasks_builder_build,
    usher_tasks_builder_destroy, usher_tasks_builder_new, usher_tasks_builder_task,
    usher_tasks_graph_destroy, usher_tasks_run,
};
use usher_tasks_capi::options::Options;
use usher_tasks_capi::report::{
    Report, UnfinishedKind, UnfinishedTask, usher_tasks_report_at, usher_tasks_report_count,
    usher_tasks_report_destroy, usher_tasks_report_skipped,
};
use usher_tasks_capi::runtime::{
    RuntimeHandle, usher_tasks_register, usher_tasks_resolve, usher_tasks_runtime_destroy,
    usher_tasks_runtime_new, usher_tasks_wait,
};

/// The error code that means success.
pub const OK: c_int = 0;

/// A runtime, destroyed when dropped.
pub struct OwnedRuntime(pub *mut RuntimeHandle);

// SAFETY: any thread may use a runtime handle.
unsafe impl Send for OwnedRuntime {}
// SAFETY: any thread may use a runtime handle at any time.
unsafe impl Sync for OwnedRuntime {}

/// Returns options for this number of workers under this policy.
pub fn options(workers: u32, policy: u32, groups: (u32, u32)) -> Options {
    Options {
        size: size_of::<Options>(),
        workers,
        policy,
        t_groups: groups.0,
        s_groups: groups.1,
        binding: 0,
        running: 0,
        stack_bytes: 0,
        progress: 0,
        reserved: 0,
        dense_first: 0,
        dense_count: 0,
    }
}

/// Creates a runtime with these options. Returns the error code and the handle.
pub fn runtime_new(options: *const Options) -> (c_int, *mut RuntimeHandle) {
    let mut runtime = ptr::dangling_mut();
    // SAFETY: the options have the size that they state, and the out-pointer refers to a local
    // variable.
    let code = unsafe { usher_tasks_runtime_new(options, &raw mut runtime) };
    (code, runtime)
}

impl OwnedRuntime {
    pub fn new(workers: u32) -> Self {
        Self::with(&options(workers, 0, (0, 0)))
    }

    pub fn with(options: &Options) -> Self {
        let (code, runtime) = runtime_new(options);
        assert_eq!(code, OK, "{}", last_error());
        assert!(!runtime.is_null());
        Self(runtime)
    }

    /// Waits for the runtime, and returns the error code and the unfinished tasks.
    pub fn wait(&self) -> (c_int, Vec<ReportLine>) {
        let mut report = ptr::dangling_mut();
        // SAFETY: this value owns the runtime.
        let code = unsafe { usher_tasks_wait(self.0, &raw mut report) };
        assert_eq!(code == ErrorCode::Unfinished as c_int, !report.is_null());
        (code, read(report).0)
    }

    /// Runs a graph. Returns the error code, the failed tasks and the number of skipped tasks.
    pub fn run(&self, graph: *mut GraphHandle) -> (c_int, Vec<ReportLine>, u64) {
        let mut report = ptr::dangling_mut();
        // SAFETY: this value owns the runtime, and the caller owns the graph.
        let code = unsafe { usher_tasks_run(self.0, graph, &raw mut report) };
        assert_eq!(code == ErrorCode::Failed as c_int, !report.is_null());
        let (lines, skipped) = read(report);
        (code, lines, skipped)
    }
}

impl Drop for OwnedRuntime {
    fn drop(&mut self) {
        // SAFETY: the runtime was created by this value, and is not used after this call.
        let code = unsafe { usher_tasks_runtime_destroy(self.0) };
        assert!(code == OK || std::thread::panicking(), "{}", last_error());
    }
}

impl OwnedRuntime {
    /// Destroys the runtime. The caller must not drop this value afterwards (`mem::forget`),
    /// because the drop would destroy the runtime again.
    pub fn destroy(&self) -> c_int {
        // SAFETY: this value owns the runtime. Calls of other threads are already in progress.
        unsafe { usher_tasks_runtime_destroy(self.0) }
    }
}

/// A line of a report, with its message as text.
pub type ReportLine = (u32, u64, u32, Option<String>);

/// Returns the report line of a failed task.
pub fn failed(task: u64, message: &str) -> ReportLine {
    (
        UnfinishedKind::Failed as u32,
        task,
        0,
        Some(message.to_owned()),
    )
}

/// Returns the report line of an unresolved task.
pub fn unresolved(task: u64, missing: u32) -> ReportLine {
    (UnfinishedKind::Unresolved as u32, task, missing, None)
}

/// Returns the report line of an unregistered token.
pub fn unregistered(task: u64) -> ReportLine {
    (UnfinishedKind::Unregistered as u32, task, 0, None)
}

/// Reads a report, and destroys the report.
pub fn read(report: *mut Report) -> (Vec<ReportLine>, u64) {
    let mut lines = Vec::new();
    // SAFETY: the report is null or belongs to this code. Its messages are read before the report
    // is freed.
    unsafe {
        for at in 0..usher_tasks_report_count(report) {
            let mut line = std::mem::zeroed::<UnfinishedTask>();
            assert_eq!(usher_tasks_report_at(report, at, &raw mut line), OK);
            let message = (!line.message.is_null())
                .then(|| CStr::from_ptr(line.message).to_string_lossy().into_owned());
            lines.push((line.kind, line.task, line.missing, message));
        }
        let skipped = usher_tasks_report_skipped(report);
        usher_tasks_report_destroy(report);
        (lines, skipped)
    }
}

/// Returns the text of the last error in this thread.
pub fn last_error() -> String {
    // SAFETY: the text is a string that is valid until the next error of this thread.
    let text = unsafe { CStr::from_ptr(usher_tasks_last_error()) };
    text.to_string_lossy().into_owned()
}

/// Builds a graph of these tasks and dependencies. Returns the error code, the graph, and the cycle
/// if there is one.
pub fn graph(
    tasks: &[(Option<Entry>, *mut c_void, (u32, u32))],
    after: &[(usize, usize)],
) -> (c_int, *mut GraphHandle, Vec<ReportLine>) {
    let mut builder: *mut Builder = ptr::null_mut();
    let (mut graph, mut report) = (ptr::dangling_mut(), ptr::dangling_mut());
    // SAFETY: the out-pointers refer to local variables, and the builder is not used after it is
    // destroyed.
    let code = unsafe {
        assert_eq!(usher_tasks_builder_new(&raw mut builder), OK);
        for (number, &(entry, arg, (t, s))) in tasks.iter().enumerate() {
            let mut task = usize::MAX;
            let code = usher_tasks_builder_task(builder, entry, arg, t, s, &raw mut task);
            assert_eq!((code, task), (OK, number));
        }
        for &(task, before) in after {
            assert_eq!(usher_tasks_builder_after(builder, task, before), OK);
        }
        let code = usher_tasks_builder_build(builder, &raw mut graph, &raw mut report);
        usher_tasks_builder_destroy(builder);
        code
    };
    assert_eq!(code == OK, !graph.is_null());
    (code, graph, read(report).0)
}

/// Frees a graph that is not running.
pub fn free(graph: *mut GraphHandle) {
    // SAFETY: the library created the graph, and the graph is not used after this call.
    assert_eq!(unsafe { usher_tasks_graph_destroy(graph) }, OK);
}

/// Returns the directory of the header.
pub fn include() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Returns the shared library under test, which cargo builds beside the directory of the test.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let dir = test.parent().unwrap();
    let name = "libusher_tasks_capi.so";
    let places = [dir.join(name), dir.parent().unwrap().join(name)];
    let found = places.into_iter().find(|place| place.exists());
    found.expect(name)
}

/// Returns the output of a command.
pub fn output_of(command: &mut Command) -> String {
    let output = command.output().expect("the command is there");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn number_from(name: &str, or: u64) -> u64 {
    let word = std::env::var(name).ok();
    word.map_or(or, |word| word.parse().expect("a number"))
}

/// Runs a random case for each of several seeds, and prints the seed of a case that fails. The
/// environment variables `USHER_CALLS_SEED` and `USHER_CALLS_CASES` set the first seed and the
/// number of seeds.
pub fn each_seed(cases: u64, case: impl Fn(&mut Rand64)) {
    struct SeedReport(u64);
    impl Drop for SeedReport {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("USHER_CALLS_SEED={} USHER_CALLS_CASES=1", self.0);
            }
        }
    }
    let first = number_from("USHER_CALLS_SEED", 1);
    for seed in first..first + number_from("USHER_CALLS_CASES", cases) {
        let _report = SeedReport(seed);
        case(&mut Rand64::new(u128::from(seed)));
    }
}

/// An entry that does nothing.
pub unsafe extern "C-unwind" fn nothing(_: *mut c_void) {}

/// An entry that adds 1 to the `AtomicU32` that is its argument.
pub unsafe extern "C-unwind" fn count(arg: *mut c_void) {
    // SAFETY: the tests pass an `AtomicU32` as the argument.
    let counter = unsafe { &*arg.cast::<AtomicU32>() };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Registers a task without groups. The argument must have the type that the entry expects.
pub fn register(
    of: &OwnedRuntime,
    token: u64,
    times: u32,
    entry: Entry,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes the argument that the entry expects.
    unsafe { usher_tasks_register(of.0, token, times, Some(entry), arg, 0, 0) }
}

/// Resolves a token.
pub fn resolve(of: &OwnedRuntime, token: u64) -> c_int {
    // SAFETY: the runtime is valid.
    unsafe { usher_tasks_resolve(of.0, token) }
}

/// Checks the error code of a call, and the text of its error.
pub fn fails(code: c_int, expected: ErrorCode, text: &str) {
    assert_eq!(code, expected as c_int, "{}", last_error());
    assert_eq!(last_error(), text);
}
