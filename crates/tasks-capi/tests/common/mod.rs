// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C API, called from Rust: what these tests need of it, so that the promises
//! which unsafe calls take are made in one place.
#![allow(dead_code, reason = "each test uses its part")]

use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use oorandom::Rand64;
use usher_tasks_capi::error::{Code, usher_tasks_last_error};
use usher_tasks_capi::graph::{
    Builder, GraphHandle, usher_tasks_builder_after, usher_tasks_builder_build,
    usher_tasks_builder_destroy, usher_tasks_builder_new, usher_tasks_builder_task,
    usher_tasks_graph_destroy, usher_tasks_run,
};
use usher_tasks_capi::here::Entry;
use usher_tasks_capi::options::Options;
use usher_tasks_capi::report::{
    Kind, Line, Report, usher_tasks_report_at, usher_tasks_report_count,
    usher_tasks_report_destroy, usher_tasks_report_skipped,
};
use usher_tasks_capi::runtime::{
    RuntimeHandle, usher_tasks_register, usher_tasks_resolve, usher_tasks_runtime_destroy,
    usher_tasks_runtime_new, usher_tasks_wait,
};

/// The code of success.
pub const OK: c_int = 0;

/// A runtime of so many workers, and its destruction in the end.
pub struct Owner(pub *mut RuntimeHandle);

// SAFETY: any thread may call a runtime.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

/// Options for that many workers under that policy.
pub fn options(workers: u32, policy: u32, groups: (u32, u32)) -> Options {
    Options {
        size: size_of::<Options>(),
        workers,
        policy,
        t_groups: groups.0,
        s_groups: groups.1,
        binding: 0,
        reserved: 0,
        stack_bytes: 0,
    }
}

/// What comes of those options.
pub fn runtime_new(options: *const Options) -> (c_int, *mut RuntimeHandle) {
    let mut runtime = ptr::dangling_mut();
    // SAFETY: options as large as they say, and a place.
    let code = unsafe { usher_tasks_runtime_new(options, &raw mut runtime) };
    (code, runtime)
}

impl Owner {
    pub fn new(workers: u32) -> Self {
        Self::with(&options(workers, 0, (0, 0)))
    }

    pub fn with(options: &Options) -> Self {
        let (code, runtime) = runtime_new(options);
        assert_eq!(code, OK, "{}", last_error());
        assert!(!runtime.is_null());
        Self(runtime)
    }

    /// Waits; what was left.
    pub fn wait(&self) -> (c_int, Vec<Told>) {
        let mut report = ptr::dangling_mut();
        // SAFETY: the runtime lives as long as this does.
        let code = unsafe { usher_tasks_wait(self.0, &raw mut report) };
        assert_eq!(code == Code::Left as c_int, !report.is_null());
        (code, read(report).0)
    }

    /// Runs a graph; which tasks failed, and how many were not run.
    pub fn run(&self, graph: *mut GraphHandle) -> (c_int, Vec<Told>, u64) {
        let mut report = ptr::dangling_mut();
        // SAFETY: as above; the graph is the caller's.
        let code = unsafe { usher_tasks_run(self.0, graph, &raw mut report) };
        assert_eq!(code == Code::Failed as c_int, !report.is_null());
        let (told, skipped) = read(report);
        (code, told, skipped)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: made above, and used no more.
        let code = unsafe { usher_tasks_runtime_destroy(self.0) };
        assert!(code == OK || std::thread::panicking(), "{}", last_error());
    }
}

impl Owner {
    /// Destroys the runtime, which is the caller's to forget then.
    pub fn destroy(&self) -> c_int {
        // SAFETY: made above; whoever else calls is inside already.
        unsafe { usher_tasks_runtime_destroy(self.0) }
    }
}

/// A line of a report, its message read.
pub type Told = (u32, u64, u32, Option<String>);

/// A line about a failed task.
pub fn failed(task: u64, message: &str) -> Told {
    (Kind::Failed as u32, task, 0, Some(message.to_owned()))
}

/// A line about a task that is not resolved.
pub fn unresolved(task: u64, missing: u32) -> Told {
    (Kind::Unresolved as u32, task, missing, None)
}

/// A line about a token that is not registered.
pub fn unregistered(task: u64) -> Told {
    (Kind::Unregistered as u32, task, 0, None)
}

/// Reads a report, and destroys it.
pub fn read(report: *mut Report) -> (Vec<Told>, u64) {
    let mut told = Vec::new();
    // SAFETY: null, or ours, for all of these; messages live as the report does.
    unsafe {
        for at in 0..usher_tasks_report_count(report) {
            let mut line = std::mem::zeroed::<Line>();
            assert_eq!(usher_tasks_report_at(report, at, &raw mut line), OK);
            let message = (!line.message.is_null())
                .then(|| CStr::from_ptr(line.message).to_string_lossy().into_owned());
            told.push((line.kind, line.task, line.missing, message));
        }
        let skipped = usher_tasks_report_skipped(report);
        usher_tasks_report_destroy(report);
        (told, skipped)
    }
}

/// The last error in this thread.
pub fn last_error() -> String {
    // SAFETY: a text that lives until the next error.
    let words = unsafe { CStr::from_ptr(usher_tasks_last_error()) };
    words.to_string_lossy().into_owned()
}

/// Builds a graph of these tasks and dependencies; what came of it, and a circle.
pub fn graph(
    tasks: &[(Option<Entry>, *mut c_void, (u32, u32))],
    after: &[(usize, usize)],
) -> (c_int, *mut GraphHandle, Vec<Told>) {
    let mut builder: *mut Builder = ptr::null_mut();
    let (mut graph, mut report) = (ptr::dangling_mut(), ptr::dangling_mut());
    // SAFETY: places of our own, and a builder that lives until it is destroyed.
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

/// Frees a graph that nobody runs.
pub fn free(graph: *mut GraphHandle) {
    // SAFETY: made by us, and used no more.
    assert_eq!(unsafe { usher_tasks_graph_destroy(graph) }, OK);
}

/// Where the header is.
pub fn include() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// The shared library under test, which cargo builds beside the test's directory.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let dir = test.parent().unwrap();
    let name = "libusher_tasks_capi.so";
    let places = [dir.join(name), dir.parent().unwrap().join(name)];
    let found = places.into_iter().find(|place| place.exists());
    found.expect(name)
}

/// What a command prints.
pub fn said(command: &mut Command) -> String {
    let output = command.output().expect("the command is there");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn number_from(name: &str, or: u64) -> u64 {
    let word = std::env::var(name).ok();
    word.map_or(or, |word| word.parse().expect("a number"))
}

/// Calls with each seed, and says which when it fails. `USHER_CALLS_SEED` is the first
/// one, `USHER_CALLS_CASES` how many there are.
pub fn each_seed(cases: u64, case: impl Fn(&mut Rand64)) {
    struct Says(u64);
    impl Drop for Says {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("USHER_CALLS_SEED={} USHER_CALLS_CASES=1", self.0);
            }
        }
    }
    let first = number_from("USHER_CALLS_SEED", 1);
    for seed in first..first + number_from("USHER_CALLS_CASES", cases) {
        let _says = Says(seed);
        case(&mut Rand64::new(u128::from(seed)));
    }
}

/// Does nothing.
pub unsafe extern "C-unwind" fn nothing(_: *mut c_void) {}

/// Counts in an `AtomicU32`.
pub unsafe extern "C-unwind" fn count(arg: *mut c_void) {
    // SAFETY: the tests below give such an argument.
    let counter = unsafe { &*arg.cast::<AtomicU32>() };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Registers a task; entries are given the arguments that they want.
pub fn register(of: &Owner, token: u64, times: u32, entry: Entry, arg: *mut c_void) -> c_int {
    // SAFETY: entries are given the arguments that they want.
    unsafe { usher_tasks_register(of.0, token, times, Some(entry), arg, 0, 0) }
}

/// Resolves a token.
pub fn resolve(of: &Owner, token: u64) -> c_int {
    // SAFETY: a runtime that lives.
    unsafe { usher_tasks_resolve(of.0, token) }
}

/// That the call failed so, and said so.
pub fn fails(code: c_int, expected: Code, words: &str) {
    assert_eq!(code, expected as c_int, "{}", last_error());
    assert_eq!(last_error(), words);
}
