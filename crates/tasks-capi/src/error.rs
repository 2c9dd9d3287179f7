// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors for C callers: an error code, and for each thread the text of its last error.
//!
//! Each C function runs its body in [`boundary`]. [`boundary`] catches panics, stores the text of
//! an error in thread-local storage, and returns the error code. The text of an error for lack of
//! memory is formatted in a buffer of 160 bytes in thread-local storage, because allocating memory
//! for it could fail.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{fmt, hint};

use usher_tasks::color::ColorError;
use usher_tasks::{
    GraphError, RunError, RuntimeError, SubmitError, TaskError, TraceError, WaitError,
};

/// The errors of `enum usher_tasks_error`, which also has the value 0 for success.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// A handle, a function or an out-pointer is null.
    Null = 1,
    /// The options have an invalid size, or set fields that this version of the library does not
    /// know.
    Options,
    /// The number of workers is 0 or too large.
    Workers,
    /// The system could not start a thread.
    Thread,
    /// There is no memory for the operation.
    Memory,
    /// The groups are outside the limits of the policy.
    Groups,
    /// A task with this token is registered and has not run yet.
    Registered,
    /// The task was resolved more often than its count.
    ResolvedTooOften,
    /// Tasks are unfinished or have failed.
    Unfinished,
    /// A task tried to wait for its own runtime, and thus for itself.
    Inside,
    /// A task would wait for a runtime whose tasks wait for the task's own runtime.
    Deadlock,
    /// The runtime is being destroyed, or the caller is in a forked child of the process that
    /// created it.
    Ended,
    /// The tasks of a graph have a dependency cycle.
    Cycle,
    /// The number of a task, of a report line, of a worker or of a format is out of range.
    Range,
    /// The graph has too many tasks or dependencies.
    TooLarge,
    /// Tasks of a graph failed.
    Failed,
    /// The graph is being run.
    Busy,
    /// The function may only be called by a task.
    Outside,
    /// The sizes of blocks or headers are invalid.
    Coloring,
    /// The library has panicked, which is a fault of the library.
    Internal,
    /// A file cannot be written.
    File,
    /// The task was cancelled before it began.
    Cancelled,
    /// A cancellation came after the begin or the end.
    TooLate,
    /// The waits in tasks are nested too deeply.
    TooDeep,
    /// A task in an isolate region would wait for a task outside it.
    Isolated,
}

impl ErrorCode {
    /// All codes in order.
    pub const ALL: [Self; 25] = [
        Self::Null,
        Self::Options,
        Self::Workers,
        Self::Thread,
        Self::Memory,
        Self::Groups,
        Self::Registered,
        Self::ResolvedTooOften,
        Self::Unfinished,
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
        Self::Cancelled,
        Self::TooLate,
        Self::TooDeep,
        Self::Isolated,
    ];

    /// Returns a general description of the error.
    pub fn meaning(self) -> &'static CStr {
        match self {
            Self::Null => c"a handle, a function or an out-pointer is NULL",
            Self::Options => {
                c"the options are invalid, or this version of the library does not know them"
            }
            Self::Workers => c"the number of workers is out of range",
            Self::Thread => c"the system could not start a thread for a worker",
            Self::Memory => c"no memory",
            Self::Groups => c"the groups of the task are outside the limits of the policy",
            Self::Registered => c"a task with this token is already registered",
            Self::ResolvedTooOften => c"the task was resolved more often than it waits for",
            Self::Unfinished => c"tasks are unfinished or have failed",
            Self::Inside => c"a task cannot wait for itself",
            Self::Deadlock => c"the tasks of two runtimes would wait for one another",
            Self::Ended => c"the runtime is being destroyed",
            Self::Cycle => c"the dependencies of the tasks form a cycle",
            Self::Range => c"the number of a task, line, worker or format is out of range",
            Self::TooLarge => c"the graph has too many tasks or dependencies",
            Self::Failed => c"tasks have failed",
            Self::Busy => c"the graph is running",
            Self::Outside => c"the caller must be a task",
            Self::Coloring => c"the sizes of blocks or headers are invalid",
            Self::Internal => c"an internal error of the library",
            Self::File => c"the trace file cannot be written",
            Self::Cancelled => c"the task or graph was cancelled",
            Self::TooLate => c"it is too late to cancel",
            Self::TooDeep => c"the waits in tasks are nested too deeply",
            Self::Isolated => c"an isolate region cannot wait for tasks outside it",
        }
    }
}

/// The error of a call of a C function: a code and a text.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    code: ErrorCode,
    text: ErrorText,
}

/// The text of an error. Errors for lack of memory have a text that is formatted without
/// allocation, because there may be no memory for the text either.
#[derive(Debug, PartialEq, Eq)]
enum ErrorText {
    Dynamic(String),
    Static(StaticErrorText),
}

/// An error text that is formatted without allocating memory.
#[derive(Debug, PartialEq, Eq)]
enum StaticErrorText {
    /// There is no memory for this task.
    Task(u64),
    /// A submitted task cannot be stored.
    SubmittedTask,
    /// There is no memory to list the unfinished tasks. The elements are the numbers of failed,
    /// unresolved and unregistered tasks.
    Unfinished([usize; 3]),
    /// There is no memory to list the failed tasks of a graph. The field is their number.
    Failed(usize),
}

impl fmt::Display for StaticErrorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(token) => write!(f, "out of memory: task {token} cannot be stored"),
            Self::SubmittedTask => write!(f, "{}", SubmitError::Memory),
            Self::Unfinished([failed, unresolved, unregistered]) => write!(
                f,
                "tasks are unfinished, and no memory is left for a report: {failed} failed, \
                 {unresolved} were never resolved, {unregistered} were never registered"
            ),
            Self::Failed(count) => write!(
                f,
                "{count} tasks failed, and no memory is left to list them"
            ),
        }
    }
}

impl Failure {
    /// Creates an error from a code and a text.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let text = ErrorText::Dynamic(message.into());
        Self { code, text }
    }

    /// Returns the error that the argument with this name is null.
    pub fn null(argument: &str) -> Self {
        Self::new(ErrorCode::Null, format!("{argument} is NULL"))
    }

    fn with_static_text(code: ErrorCode, text: StaticErrorText) -> Self {
        let text = ErrorText::Static(text);
        Self { code, text }
    }

    /// Returns the error that there is no memory to list the unfinished tasks. The elements of
    /// `counts` are the numbers of failed, unresolved and unregistered tasks.
    pub fn no_memory_for_unfinished(counts: [usize; 3]) -> Self {
        Self::with_static_text(ErrorCode::Memory, StaticErrorText::Unfinished(counts))
    }

    /// Returns the error that this number of tasks of a graph failed and there is no memory to list
    /// them.
    pub fn failed(count: usize) -> Self {
        Self::with_static_text(ErrorCode::Failed, StaticErrorText::Failed(count))
    }

    fn of(code: ErrorCode, error: &impl ToString) -> Self {
        Self::new(code, error.to_string())
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        let code = match error {
            RuntimeError::Workers { .. } => ErrorCode::Workers,
            RuntimeError::DenseTokens { .. } => ErrorCode::Options,
            RuntimeError::Groups { .. } => ErrorCode::Groups,
            RuntimeError::Thread { .. } => ErrorCode::Thread,
            RuntimeError::Memory { .. } | RuntimeError::DenseMemory { .. } => ErrorCode::Memory,
        };
        Self::of(code, &error)
    }
}

impl From<TaskError> for Failure {
    fn from(error: TaskError) -> Self {
        let code = match error {
            TaskError::Registered { .. } => ErrorCode::Registered,
            TaskError::ResolvedTooOften { .. } => ErrorCode::ResolvedTooOften,
            TaskError::Groups { .. } => ErrorCode::Groups,
            TaskError::Memory { token } => {
                return Self::with_static_text(ErrorCode::Memory, StaticErrorText::Task(token));
            }
            TaskError::Ended { .. } => ErrorCode::Ended,
        };
        Self::of(code, &error)
    }
}

impl From<SubmitError> for Failure {
    fn from(error: SubmitError) -> Self {
        let code = match error {
            SubmitError::Groups { .. } => ErrorCode::Groups,
            SubmitError::Memory => {
                let text = StaticErrorText::SubmittedTask;
                return Self::with_static_text(ErrorCode::Memory, text);
            }
            SubmitError::Ended => ErrorCode::Ended,
        };
        Self::of(code, &error)
    }
}

impl From<&GraphError> for Failure {
    fn from(error: &GraphError) -> Self {
        let code = match error {
            GraphError::Cycle { .. } => ErrorCode::Cycle,
            GraphError::NoSuchTask { .. } => ErrorCode::Range,
            GraphError::TooLarge { .. } => ErrorCode::TooLarge,
        };
        Self::of(code, error)
    }
}

impl From<&RunError> for Failure {
    fn from(error: &RunError) -> Self {
        let code = match error {
            RunError::Groups { .. } => ErrorCode::Groups,
            RunError::Deadlock => ErrorCode::Deadlock,
            RunError::Memory => ErrorCode::Memory,
            RunError::Forked { .. } => ErrorCode::Ended,
            RunError::Panicked { .. } => ErrorCode::Failed,
            RunError::Cancelled { .. } => ErrorCode::Cancelled,
        };
        Self::of(code, error)
    }
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Self {
        let code = match error {
            WaitError::Inside => ErrorCode::Inside,
            WaitError::Deadlock => ErrorCode::Deadlock,
            WaitError::Forked { .. } => ErrorCode::Ended,
            WaitError::Unfinished(_) => ErrorCode::Unfinished,
            WaitError::Memory {
                panicked,
                unresolved,
                unregistered,
            } => return Self::no_memory_for_unfinished([panicked, unresolved, unregistered]),
        };
        Self::of(code, &error)
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        let TraceError::Memory { .. } = error;
        Self::of(ErrorCode::Memory, &error)
    }
}

impl From<ColorError> for Failure {
    fn from(error: ColorError) -> Self {
        let code = match error {
            ColorError::Block { .. }
            | ColorError::Colors
            | ColorError::NoHeader
            | ColorError::Header { .. } => ErrorCode::Coloring,
            ColorError::Memory { .. } => ErrorCode::Memory,
        };
        Self::of(code, &error)
    }
}

/// Number of bytes for a text formatted without allocation, including the final 0.
const STATIC_TEXT_BYTES: usize = 160;

/// Storage for texts formatted without allocation. The type has no destructor, because registering
/// a destructor of a thread-local variable would allocate memory.
struct StaticStorage {
    /// Whether `text` is the text of the last error. If it is false, the last error has an
    /// allocated text.
    is_last: Cell<bool>,
    /// The text, with a final 0.
    text: Cell<[u8; STATIC_TEXT_BYTES]>,
}

thread_local! {
    static STATIC_TEXT: StaticStorage = const {
        StaticStorage { is_last: Cell::new(true), text: Cell::new([0; STATIC_TEXT_BYTES]) }
    };
    static LAST: RefCell<CString> = RefCell::default();
}

fn store_last(text: ErrorText) {
    match text {
        ErrorText::Dynamic(text) => {
            let mut bytes = text.into_bytes();
            bytes.retain(|&byte| byte != 0);
            let text = CString::new(bytes).unwrap_or_default();
            // While a thread ends, its storage may already be gone. The error is then not stored,
            // because the thread will not read it.
            let stored = LAST.try_with(|last| {
                let last = last.try_borrow_mut();
                last.map(|mut last| *last = text).is_ok()
            });
            STATIC_TEXT.with(|storage| storage.is_last.set(!stored.unwrap_or(false)));
        }
        ErrorText::Static(text) => {
            let mut bytes = [0; STATIC_TEXT_BYTES];
            // The longest text, with numbers of 20 digits, fits into the buffer.
            let _ = write!(&mut bytes[..STATIC_TEXT_BYTES - 1], "{text}");
            STATIC_TEXT.with(|storage| {
                storage.text.set(bytes);
                storage.is_last.set(true);
            });
        }
    }
}

/// Converts the result of a call into a code, and catches panics.
pub fn boundary(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => {
            store_last(failure.text);
            failure.code as c_int
        }
        Err(_) => {
            let text = "internal error of libusher_tasks; standard error has the message";
            store_last(ErrorText::Dynamic(text.to_owned()));
            ErrorCode::Internal as c_int
        }
    }
}

/// Returns the result of a call that reports no error code, or `or` if the call panics.
pub fn boundary_or<T>(or: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(or)
}

/// Checks that `bytes` bytes of memory can be allocated. Called before code that aborts the process
/// if there is no memory.
pub(crate) fn probe(bytes: usize, what: &str) -> Result<(), Failure> {
    let mut probe: Vec<u8> = Vec::new();
    let reserved = probe.try_reserve_exact(bytes);
    hint::black_box(probe.as_ptr());
    reserved.map_err(|_| no_memory(what))
}

/// Returns the error that there is no memory for `what`.
pub(crate) fn no_memory(what: &str) -> Failure {
    Failure::new(ErrorCode::Memory, format!("out of memory for {what}"))
}

/// Returns the description of an error code.
#[unsafe(no_mangle)]
pub extern "C" fn usher_tasks_strerror(error: c_int) -> *const c_char {
    let known = ErrorCode::ALL.iter().find(|&&code| code as c_int == error);
    match (error, known) {
        (0, _) => c"success",
        (_, Some(code)) => code.meaning(),
        (_, None) => c"unknown error",
    }
    .as_ptr()
}

/// Returns the text of the last error in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn usher_tasks_last_error() -> *const c_char {
    let static_text =
        STATIC_TEXT.with(|storage| storage.is_last.get().then_some(storage.text.as_ptr()));
    if let Some(text) = static_text {
        return text.cast();
    }
    let text = LAST.try_with(|last| last.try_borrow().map(|last| last.as_ptr()));
    match text {
        Ok(Ok(text)) => text,
        Ok(Err(_)) | Err(_) => c"".as_ptr(),
    }
}
