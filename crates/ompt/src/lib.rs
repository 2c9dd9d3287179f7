// SPDX-License-Identifier: MIT OR Apache-2.0
//! An OpenMP tool (OMPT) that reports parallel efficiency to Usher.
//!
//! LLVM's OpenMP runtime, and others descended from Intel's, load `libusher_ompt.so` if
//! `OMP_TOOL_LIBRARIES` names it. The runtime reports when a thread waits: at a barrier, for tasks,
//! for a lock, or for the next parallel region. The tool records each thread's useful and waiting
//! time, wall and CPU, in a slot of the heartbeat page (`USHER_HEARTBEAT`). The page has 1024 slots;
//! threads beyond these are not recorded.
//!
//! Useful CPU time measures progress without spinning. The useful share of wall time is the
//! parallel efficiency of TALP (Lopez, Ramirez Miranda, Garcia-Gasulla, "TALP: A Lightweight Tool
//! to Unveil Parallel Efficiency of Large-scale Executions", PERMAVOST 2021), which needs no trials
//! on other core counts.
//!
//! Without `USHER_HEARTBEAT` the tool declines and costs nothing. GCC's libgomp has no OMPT and
//! does not load the tool, so programs built with `gcc -fopenmp` report nothing. Such programs can
//! run on LLVM's runtime, which has libgomp's entry points, but that is the user's decision.
//!
//! No panic leaves this library: each callback catches panics, and the tool then stops recording.

mod ffi;
mod thread;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use usher_heartbeat::Heartbeat;

use crate::ffi::{SetCallback, StartToolResult};

static HEARTBEAT: OnceLock<Heartbeat> = OnceLock::new();
static FAILED: AtomicBool = AtomicBool::new(false);

/// Returns the heartbeat page; `None` before the tool has started, and without a page.
pub(crate) fn heartbeat() -> Option<&'static Heartbeat> {
    HEARTBEAT.get()
}

/// Runs the body of a callback. A panic ends the recording, not the program.
pub(crate) fn guarded<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    if FAILED.load(Relaxed) {
        return fallback;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(_) => {
            FAILED.store(true, Relaxed);
            fallback
        }
    }
}

/// The entry point by which the runtime finds a tool (OpenMP 5.2, section 19.2.1).
///
/// # Safety
/// Called once by an OpenMP runtime, before any of its threads start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ompt_start_tool(
    _omp_version: c_uint,
    _runtime_version: *const c_char,
) -> *const StartToolResult {
    guarded(std::ptr::null(), || {
        let heartbeat = HEARTBEAT.get_or_init(Heartbeat::from_env);
        match heartbeat.is_active() {
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

/// Registers the callbacks. A non-zero result keeps the tool active.
extern "C" fn initialize(lookup: ffi::Lookup, _device: c_int, _tool: *mut c_void) -> c_int {
    guarded(0, || {
        // SAFETY: the lookup function of the runtime, with a zero-terminated string.
        let found = unsafe { lookup(c"ompt_set_callback".as_ptr()) };
        let Some(found) = found else {
            return 0;
        };
        // SAFETY: the runtime returns the function of this name; the specification fixes its type.
        let set = unsafe { std::mem::transmute::<ffi::Interface, SetCallback>(found) };
        for (event, callback) in thread::callbacks() {
            // SAFETY: each callback has the type of its event. A runtime does not call callbacks of
            // events that it does not know.
            unsafe { set(event as c_int, callback) };
        }
        // SAFETY: the handler only forgets the slot of the calling thread.
        unsafe { libc::pthread_atfork(None, None, Some(thread::forget)) };
        1
    })
}

extern "C" fn finalize(_tool: *mut c_void) {
    guarded((), thread::end);
}
