// SPDX-License-Identifier: MIT OR Apache-2.0
//! C functions for parallel loops and reductions, on `Runtime::for_each_block` and
//! `Runtime::reduce_blocks`.
//!
//! 1. The functions of the program are called as tasks of the runtime, for one block of items each,
//!    so that they may call `usher_tasks_fail`.
//! 2. The first failure is recorded. The blocks that begin later do not call the program any more,
//!    so the loop ends soon.
//! 3. An accumulator is memory of the size that the caller gives. It is never moved. `combine`
//!    consumes its second argument. After a failure, accumulators are still combined, so that the
//!    caller's result always owns what they own.
//!
//! If there is no memory for an accumulator, the blocks for it are left out, and the call returns
//! an error. An accumulator is allocated for each piece of the range, not for each block.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::process;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use usher_tasks::{Runtime, WaitError};

use crate::current_task::call_as_task;
use crate::error::{ErrorCode, Failure, boundary, no_memory};
use crate::runtime::{RuntimeHandle, enter};
use crate::waits;

/// `usher_tasks_block`.
pub type Block = unsafe extern "C-unwind" fn(begin: u64, end: u64, arg: *mut c_void);
/// `usher_tasks_init`.
pub type Init = unsafe extern "C-unwind" fn(accumulator: *mut c_void, arg: *mut c_void);
/// `usher_tasks_fold`.
pub type Fold =
    unsafe extern "C-unwind" fn(accumulator: *mut c_void, begin: u64, end: u64, arg: *mut c_void);
/// `usher_tasks_combine`.
pub type Combine =
    unsafe extern "C-unwind" fn(left: *mut c_void, right: *mut c_void, arg: *mut c_void);

/// Alignment of accumulators in bytes, so that two accumulators share no cache line.
const ACCUMULATOR_ALIGN: usize = 128;

/// The runtime and the argument of a loop, and the first failure of its functions.
struct LoopCalls {
    runtime: *mut RuntimeHandle,
    arg: *mut c_void,
    has_failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

// SAFETY: any thread may use a runtime handle. The C code that runs the loop guarantees that its
// functions and their argument may be used on any thread.
unsafe impl Sync for LoopCalls {}

impl LoopCalls {
    fn new(runtime: *mut RuntimeHandle, arg: *mut c_void) -> Self {
        Self {
            runtime,
            arg,
            has_failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Returns the argument of the functions.
    fn arg(&self) -> *mut c_void {
        self.arg
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Records a failure if it is the first one.
    fn fail(&self, failure: Failure) {
        let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(failure);
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Calls a function of the program as a task. `what` names the call in the error.
    fn call(&self, what: impl FnOnce() -> String, function: impl FnOnce()) {
        if let Some(message) = call_as_task(self.runtime, function) {
            let text = format!("{} failed: {message}", what());
            self.fail(Failure::new(ErrorCode::Failed, text));
        }
    }

    fn into_outcome(self) -> Result<(), Failure> {
        let failure = self.failure.into_inner();
        match failure.unwrap_or_else(PoisonError::into_inner) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}

/// Names a block of items in an error.
fn items(block: &Range<u64>) -> String {
    match block.end - block.start {
        1 => format!("item {}", block.start),
        _ => format!("items {} to {}", block.start, block.end - 1),
    }
}

/// Calls a function with a runtime that may wait for its tasks.
///
/// # Errors
/// If the runtime is null or being destroyed, if it belongs to the parent of this process, or if
/// its tasks wait for the calling task.
///
/// # Safety
/// `runtime` is null or was returned by this crate.
unsafe fn waiting_in(
    runtime: *mut RuntimeHandle,
    run: impl FnOnce(&Runtime) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let checked = |this: &Runtime| {
        let creator_pid = this.creator_pid();
        if creator_pid != process::id() {
            return Err(Failure::from(WaitError::Forked { creator_pid }));
        }
        let _waits = waits::begin(runtime)?;
        run(this)
    };
    // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
    unsafe { enter(runtime, checked) }
}

/// Calls a function for blocks of a range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_for(
    runtime: *mut RuntimeHandle,
    begin: u64,
    end: u64,
    body: Option<Block>,
    arg: *mut c_void,
) -> c_int {
    boundary(|| {
        let body = body.ok_or_else(|| Failure::null("the function pointer of a loop"))?;
        let run = |this: &Runtime| {
            let calls = LoopCalls::new(runtime, arg);
            this.for_each_block(begin..end, |block| {
                if !calls.has_failed() {
                    let arg = calls.arg();
                    // SAFETY: the caller guarantees that the function may be called with its
                    // argument, on any thread.
                    calls.call(
                        || items(&block),
                        || unsafe { body(block.start, block.end, arg) },
                    );
                }
            });
            calls.into_outcome()
        };
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        unsafe { waiting_in(runtime, run) }
    })
}

/// The functions of a reduction.
#[derive(Clone, Copy)]
struct Functions {
    init: Init,
    fold: Fold,
    combine: Combine,
}

impl Functions {
    fn new(
        init: Option<Init>,
        fold: Option<Fold>,
        combine: Option<Combine>,
    ) -> Result<Self, Failure> {
        let null = |name| move || Failure::null(&format!("the {name} function of a reduction"));
        Ok(Self {
            init: init.ok_or_else(null("init"))?,
            fold: fold.ok_or_else(null("fold"))?,
            combine: combine.ok_or_else(null("combine"))?,
        })
    }
}

/// A reduction: its functions, and the layout of its accumulators.
struct Reduction {
    calls: LoopCalls,
    functions: Functions,
    layout: Layout,
}

/// The memory of an accumulator, which `init` has initialised. The drop frees the memory; what the
/// accumulator owns must have been moved to another accumulator by `combine` before.
struct Accumulator {
    memory: NonNull<c_void>,
    layout: Layout,
}

// SAFETY: the C code that runs the reduction guarantees that its accumulators may be used on any
// thread.
unsafe impl Send for Accumulator {}

impl Accumulator {
    fn allocate(layout: Layout) -> Option<Self> {
        // SAFETY: the size of the layout is not 0, as `Reduction::new` ensures.
        let memory = NonNull::new(unsafe { alloc(layout) })?.cast();
        Some(Self { memory, layout })
    }
}

impl Drop for Accumulator {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr().cast(), self.layout) };
    }
}

impl Reduction {
    fn new(calls: LoopCalls, functions: Functions, bytes: usize) -> Result<Self, Failure> {
        let layout = Layout::from_size_align(bytes.max(1), ACCUMULATOR_ALIGN);
        Ok(Self {
            calls,
            functions,
            layout: layout.map_err(|_| accumulator_memory(bytes))?,
        })
    }

    fn init(&self, accumulator: *mut c_void) {
        let (init, arg) = (self.functions.init, self.calls.arg());
        let what = || "the init function of a reduction".to_owned();
        // SAFETY: the memory has the size of an accumulator. The caller guarantees that the
        // function may be called with its argument, on any thread.
        self.calls.call(what, || unsafe { init(accumulator, arg) });
    }

    /// Returns the accumulator of an empty range; `None` if there is no memory.
    fn identity(&self) -> Option<Accumulator> {
        let Some(accumulator) = Accumulator::allocate(self.layout) else {
            self.calls.fail(accumulator_memory(self.layout.size()));
            return None;
        };
        self.init(accumulator.memory.as_ptr());
        Some(accumulator)
    }

    /// Adds the items of a block to an accumulator, unless a function has failed.
    fn fold(&self, accumulator: Option<Accumulator>, block: &Range<u64>) -> Option<Accumulator> {
        let accumulator = accumulator?;
        if !self.calls.has_failed() {
            let (fold, arg) = (self.functions.fold, self.calls.arg());
            let memory = accumulator.memory.as_ptr();
            self.calls.call(
                || items(block),
                // SAFETY: `init` has initialised the accumulator, and only this thread uses it. The
                // caller guarantees that the function may be called with its argument, on any
                // thread.
                || unsafe { fold(memory, block.start, block.end, arg) },
            );
        }
        Some(accumulator)
    }

    /// Combines the accumulator of a range with that of the next range, and frees the latter.
    fn combine(&self, left: *mut c_void, right: &Accumulator) {
        let (combine, arg) = (self.functions.combine, self.calls.arg());
        let right = right.memory.as_ptr();
        let what = || "the combine function of a reduction".to_owned();
        // SAFETY: `init` has initialised both accumulators, and only this thread uses them. The
        // caller guarantees that the function may be called with its argument, on any thread.
        self.calls
            .call(what, || unsafe { combine(left, right, arg) });
    }

    fn combine_pieces(
        &self,
        left: Option<Accumulator>,
        right: Option<Accumulator>,
    ) -> Option<Accumulator> {
        match (left, right) {
            (Some(left), Some(right)) => {
                self.combine(left.memory.as_ptr(), &right);
                Some(left)
            }
            (one, other) => one.or(other),
        }
    }
}

/// Returns the error for lack of memory for an accumulator.
fn accumulator_memory(bytes: usize) -> Failure {
    no_memory(&format!("an accumulator of {bytes} bytes"))
}

/// Reduces a range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_reduce(
    runtime: *mut RuntimeHandle,
    begin: u64,
    end: u64,
    accumulator_bytes: usize,
    init: Option<Init>,
    fold: Option<Fold>,
    combine: Option<Combine>,
    arg: *mut c_void,
    result: *mut c_void,
) -> c_int {
    boundary(|| {
        let functions = Functions::new(init, fold, combine)?;
        if result.is_null() {
            return Err(Failure::null("the result of a reduction"));
        }
        let run = |this: &Runtime| {
            let calls = LoopCalls::new(runtime, arg);
            let reduction = Reduction::new(calls, functions, accumulator_bytes)?;
            // The result is an accumulator in the memory of the caller.
            reduction.init(result);
            let reduced = this.reduce_blocks(
                begin..end,
                || reduction.identity(),
                |accumulator, block| reduction.fold(accumulator, &block),
                |left, right| reduction.combine_pieces(left, right),
            );
            if let Some(reduced) = reduced {
                reduction.combine(result, &reduced);
            }
            reduction.calls.into_outcome()
        };
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        unsafe { waiting_in(runtime, run) }
    })
}
