// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors as C has them: a number, and words about the last one in this thread.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{fmt, hint};

use usher_tasks::color::ColorError;
use usher_tasks::{GraphError, RunError, RuntimeError, TaskError, TraceError, WaitError};

/// `enum usher_tasks_error`, but for success.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// A handle, a function or an out-pointer is null.
    Null = 1,
    /// Options whose size cannot be, or that this version does not know.
    Options,
    /// No worker, or too many.
    Workers,
    /// The system has no thread.
    Thread,
    /// No memory.
    Memory,
    /// Groups for which the policy has no place.
    Groups,
    /// The token is in use.
    Registered,
    /// Resolved more often than the task waits for.
    ResolvedTooOften,
    /// Not all is well with what was waited for.
    Left,
    /// A task would wait for itself.
    Inside,
    /// Runtimes would wait for one another.
    Deadlock,
    /// The runtime is being destroyed, or another process's.
    Ended,
    /// Tasks of a graph wait for one another.
    Cycle,
    /// There is no such task or line.
    Range,
    /// Too many tasks or dependencies.
    TooLarge,
    /// Tasks of a graph failed.
    Failed,
    /// The graph is being run.
    Busy,
    /// Only a task may call this.
    Outside,
    /// Sizes of blocks or headers that cannot be.
    Coloring,
    /// A panic of the library.
    Internal,
    /// A file cannot be written.
    File,
}

impl Code {
    /// All, in order.
    pub const ALL: [Self; 21] = [
        Self::Null,
        Self::Options,
        Self::Workers,
        Self::Thread,
        Self::Memory,
        Self::Groups,
        Self::Registered,
        Self::ResolvedTooOften,
        Self::Left,
        Self::Inside,
        Self::Deadlock,
        Self::Ended,
        Self::Cycle,
        Self::Range,
        Self::TooLarge,
        Self::Failed,
        Self::Busy,
        Self::Outside,
        Self::Coloring,
        Self::Internal,
        Self::File,
    ];

    /// What it means in general.
    pub fn meaning(self) -> &'static CStr {
        match self {
            Self::Null => c"a handle, a function or an out-pointer is NULL",
            Self::Options => c"the options are not those of this version",
            Self::Workers => c"there cannot be so many workers",
            Self::Thread => c"the system has no thread for a worker",
            Self::Memory => c"no memory",
            Self::Groups => c"the policy has no place for these groups",
            Self::Registered => c"the token is registered already",
            Self::ResolvedTooOften => c"resolved more often than the task waits for",
            Self::Left => c"tasks are left, or have failed",
            Self::Inside => c"a task cannot wait for itself",
            Self::Deadlock => c"the runtimes would wait for one another",
            Self::Ended => c"the runtime is being destroyed",
            Self::Cycle => c"tasks wait for one another in a circle",
            Self::Range => c"there is no such task, line, worker or format",
            Self::TooLarge => c"too many tasks or dependencies",
            Self::Failed => c"tasks have failed",
            Self::Busy => c"the graph is being run",
            Self::Outside => c"only a task may call this",
            Self::Coloring => c"blocks or headers of these sizes cannot be",
            Self::Internal => c"a mistake of the library itself",
            Self::File => c"a file cannot be written",
        }
    }
}

/// What a call has failed with.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    code: Code,
    words: Words,
}

/// What it says. Where there is no memory for a task or for a list there is none for
/// words either.
#[derive(Debug, PartialEq, Eq)]
enum Words {
    Any(String),
    Few(Few),
}

/// What is said without memory.
#[derive(Debug, PartialEq, Eq)]
enum Few {
    /// None for this one.
    Task(u64),
    /// None to name so many tasks that failed, were not resolved, not registered.
    Left([usize; 3]),
    /// None to name so many tasks of a graph that failed.
    Failed(usize),
}

impl fmt::Display for Few {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(token) => write!(f, "task {token}: no memory"),
            Self::Left([failed, unresolved, unregistered]) => write!(
                f,
                "no memory for a report: {failed} failed, {unresolved} never \
                 resolved, {unregistered} never registered"
            ),
            Self::Failed(count) => write!(f, "{count} tasks failed, no memory to name them"),
        }
    }
}

impl Failure {
    /// With words that name what it is about.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let words = Words::Any(message.into());
        Self { code, words }
    }

    /// That argument is null.
    pub fn null(argument: &str) -> Self {
        Self::new(Code::Null, format!("{argument} is NULL"))
    }

    fn few(code: Code, few: Few) -> Self {
        let words = Words::Few(few);
        Self { code, words }
    }

    /// No memory to name what a wait has found: so many that failed, were not resolved,
    /// and were not registered.
    pub fn no_memory_for_left(counts: [usize; 3]) -> Self {
        Self::few(Code::Memory, Few::Left(counts))
    }

    /// So many tasks of a graph failed, for whose names there is no memory.
    pub fn failed(count: usize) -> Self {
        Self::few(Code::Failed, Few::Failed(count))
    }

    fn of(code: Code, error: &impl ToString) -> Self {
        Self::new(code, error.to_string())
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        let code = match error {
            RuntimeError::Workers { .. } => Code::Workers,
            RuntimeError::Groups { .. } => Code::Groups,
            RuntimeError::Thread { .. } => Code::Thread,
            RuntimeError::Memory { .. } => Code::Memory,
        };
        Self::of(code, &error)
    }
}

impl From<TaskError> for Failure {
    fn from(error: TaskError) -> Self {
        let code = match error {
            TaskError::Registered { .. } => Code::Registered,
            TaskError::ResolvedTooOften { .. } => Code::ResolvedTooOften,
            TaskError::Groups { .. } => Code::Groups,
            TaskError::Memory { token } => {
                return Self::few(Code::Memory, Few::Task(token));
            }
            TaskError::Ended { .. } => Code::Ended,
        };
        Self::of(code, &error)
    }
}

impl From<&GraphError> for Failure {
    fn from(error: &GraphError) -> Self {
        let code = match error {
            GraphError::Cycle { .. } => Code::Cycle,
            GraphError::NoSuchTask { .. } => Code::Range,
            GraphError::TooLarge { .. } => Code::TooLarge,
        };
        Self::of(code, error)
    }
}

impl From<&RunError> for Failure {
    fn from(error: &RunError) -> Self {
        let code = match error {
            RunError::Groups { .. } => Code::Groups,
            RunError::Deadlock => Code::Deadlock,
            RunError::Memory => Code::Memory,
            RunError::Forked { .. } => Code::Ended,
            RunError::Panicked { .. } => Code::Failed,
        };
        Self::of(code, error)
    }
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Self {
        let code = match error {
            WaitError::Inside => Code::Inside,
            WaitError::Deadlock => Code::Deadlock,
            WaitError::Forked { .. } => Code::Ended,
            WaitError::Left(_) => Code::Left,
            WaitError::Memory {
                panicked,
                unresolved,
                unregistered,
            } => return Self::no_memory_for_left([panicked, unresolved, unregistered]),
        };
        Self::of(code, &error)
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        let TraceError::Memory { .. } = error;
        Self::of(Code::Memory, &error)
    }
}

impl From<ColorError> for Failure {
    fn from(error: ColorError) -> Self {
        let code = match error {
            ColorError::Block { .. }
            | ColorError::Colors
            | ColorError::NoHeader
            | ColorError::Header { .. } => Code::Coloring,
            ColorError::Memory { .. } => Code::Memory,
        };
        Self::of(code, &error)
    }
}

/// Bytes of what can be said without memory, its end included.
const FEW_BYTES: usize = 160;

/// What can be said without memory. It has no destructor, as to have one registered
/// takes memory, too.
struct Spare {
    /// It is the last error.
    is_last: Cell<bool>,
    /// Ends with a 0.
    words: Cell<[u8; FEW_BYTES]>,
}

thread_local! {
    static SPARE: Spare = const {
        Spare { is_last: Cell::new(true), words: Cell::new([0; FEW_BYTES]) }
    };
    static LAST: RefCell<CString> = RefCell::default();
}

fn remember(words: Words) {
    match words {
        Words::Any(words) => {
            let mut bytes = words.into_bytes();
            bytes.retain(|&byte| byte != 0);
            let words = CString::new(bytes).unwrap_or_default();
            // A thread that ends has nobody left who could ask.
            let kept = LAST.try_with(|last| {
                let last = last.try_borrow_mut();
                last.map(|mut last| *last = words).is_ok()
            });
            SPARE.with(|spare| spare.is_last.set(!kept.unwrap_or(false)));
        }
        Words::Few(few) => {
            let mut bytes = [0; FEW_BYTES];
            // They fit: the largest number has 20 digits.
            let _ = write!(&mut bytes[..FEW_BYTES - 1], "{few}");
            SPARE.with(|spare| {
                spare.words.set(bytes);
                spare.is_last.set(true);
            });
        }
    }
}

/// Makes what a call has come to into a number, and lets no panic out.
pub fn boundary(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => {
            remember(failure.words);
            failure.code as c_int
        }
        Err(_) => {
            let words = "libusher_tasks itself has failed; it says why on standard error";
            remember(Words::Any(words.to_owned()));
            Code::Internal as c_int
        }
    }
}

/// The same for a call without a number; `or` where it panics.
pub fn boundary_or<T>(or: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(or)
}

/// Whether the system would give so much memory, asked before what cannot say no.
pub(crate) fn probe(bytes: usize, what: &str) -> Result<(), Failure> {
    let mut room: Vec<u8> = Vec::new();
    let given = room.try_reserve_exact(bytes);
    hint::black_box(room.as_ptr());
    given.map_err(|_| no_memory(what))
}

/// No memory for something.
pub(crate) fn no_memory(what: &str) -> Failure {
    Failure::new(Code::Memory, format!("{what}: no memory"))
}

/// What a number means.
#[unsafe(no_mangle)]
pub extern "C" fn usher_tasks_strerror(error: c_int) -> *const c_char {
    let known = Code::ALL.iter().find(|&&code| code as c_int == error);
    match (error, known) {
        (0, _) => c"success",
        (_, Some(code)) => code.meaning(),
        (_, None) => c"unknown error",
    }
    .as_ptr()
}

/// The last error in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn usher_tasks_last_error() -> *const c_char {
    let spare = SPARE.with(|spare| spare.is_last.get().then_some(spare.words.as_ptr()));
    if let Some(words) = spare {
        return words.cast();
    }
    let words = LAST.try_with(|last| last.try_borrow().map(|last| last.as_ptr()));
    match words {
        Ok(Ok(words)) => words,
        Ok(Err(_)) | Err(_) => c"".as_ptr(),
    }
}
