// SPDX-License-Identifier: MIT OR Apache-2.0
//! An OpenMP tool (OMPT) that reports parallel efficiency to Usher.
//!
//! `libusher_ompt.so` is loaded by LLVM's OpenMP runtime (and those descended
//! from Intel's) when it is named in `OMP_TOOL_LIBRARIES`. The runtime tells it
//! when a thread waits: at a barrier, for tasks, for a lock, for the next
//! parallel region. It accounts each thread's useful and waiting time, wall and
//! CPU, in a slot of the heartbeat page (`USHER_HEARTBEAT`). Useful CPU time is
//! progress that does not count spinning, and the useful share of wall time is
//! the parallel efficiency of TALP (Lopez, Ramirez Miranda, Garcia-Gasulla,
//! "TALP: A Lightweight Tool to Unveil Parallel Efficiency of Large-scale
//! Executions", PERMAVOST 2021): no trials on other core counts are needed.
//!
//! Without `USHER_HEARTBEAT` the tool declines and costs nothing. GCC's libgomp
//! has no OMPT and does not load it: programs built with `gcc -fopenmp` say
//! nothing here (they can be run on LLVM's runtime, which has libgomp's entry
//! points, but that is the user's choice, not Usher's).
//!
//! No panic leaves this library: each callback catches it and the tool then
//! keeps still.

mod ffi;
mod thread;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use usher_heartbeat::Heartbeat;

use crate::ffi::{SetCallback, StartToolResult};

static HEART: OnceLock<Heartbeat> = OnceLock::new();
static FAILED: AtomicBool = AtomicBool::new(false);

/// The page; `None` before the start and where nobody listens.
pub(crate) fn heart() -> Option<&'static Heartbeat> {
    HEART.get()
}

/// Runs a callback's body; a panic ends the accounting, not the program.
pub(crate) fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    if FAILED.load(Relaxed) {
        return otherwise;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(_) => {
            FAILED.store(true, Relaxed);
            otherwise
        }
    }
}

/// Where the runtime asks whether there is a tool (OpenMP 5.2, section 19.2.1).
///
/// # Safety
/// To be called by an OpenMP runtime, once, before any of its threads start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ompt_start_tool(
    _omp_version: c_uint,
    _runtime_version: *const c_char,
) -> *const StartToolResult {
    guarded(std::ptr::null(), || {
        let heart = HEART.get_or_init(Heartbeat::from_env);
        match heart.is_watched() {
            true => &raw const RESULT,
            false => std::ptr::null(),
        }
    })
}

static RESULT: StartToolResult = StartToolResult {
    initialize,
    finalize,
    tool_data: 0,
};

/// Registers the callbacks; non-zero keeps the tool.
extern "C" fn initialize(lookup: ffi::Lookup, _device: c_int, _tool: *mut c_void) -> c_int {
    guarded(0, || {
        // SAFETY: the runtime's lookup function, with a text that ends in zero.
        let found = unsafe { lookup(c"ompt_set_callback".as_ptr()) };
        let Some(found) = found else {
            return 0;
        };
        // SAFETY: the runtime gives the function of this name, whose type the
        // specification fixes.
        let set = unsafe { std::mem::transmute::<ffi::Interface, SetCallback>(found) };
        for (event, callback) in thread::callbacks() {
            // SAFETY: each callback has the type that its event asks for. One
            // that this runtime does not know is not called.
            unsafe { set(event as c_int, callback) };
        }
        // SAFETY: the handler only forgets this thread's slot.
        unsafe { libc::pthread_atfork(None, None, Some(thread::forget)) };
        1
    })
}

extern "C" fn finalize(_tool: *mut c_void) {
    guarded((), thread::end);
}
