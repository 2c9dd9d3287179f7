// SPDX-License-Identifier: MIT OR Apache-2.0
//! An OpenMP tool (OMPT) that reports parallel efficiency to Usher.
//!
//! 1. LLVM's OpenMP runtime loads `libusher_ompt.so` if `OMP_TOOL_LIBRARIES` names the library.
//!    Other runtimes that descend from Intel's do the same.
//! 2. The runtime calls the tool when a thread begins and ends to wait: at a barrier, for tasks,
//!    for a lock, or for the next parallel region.
//! 3. The tool adds up each thread's useful and waiting time, both as wall time and as CPU time, in
//!    a slot of the heartbeat page. `USHER_HEARTBEAT` names the page. The page has 1024 slots;
//!    further threads are not recorded.
//!
//! Useful CPU time measures the progress of a program, because it does not contain the CPU time of
//! waiting threads that spin. The share of useful time in the wall time of all threads is the
//! parallel efficiency of TALP (Lopez, Ramirez Miranda, Garcia-Gasulla, "TALP: A Lightweight Tool
//! to Unveil Parallel Efficiency of Large-scale Executions", PERMAVOST 2021), which can be measured
//! without running the program on other numbers of cores.
//!
//! If `USHER_HEARTBEAT` is not set, the tool does not register with the runtime and costs nothing.
//! GCC's libgomp has no OMPT and does not load the tool, so programs built with `gcc -fopenmp`
//! report nothing. A user can run such programs on LLVM's runtime, which also has the entry points
//! of libgomp; Usher does not do so by itself.
//!
//! Each callback catches panics, so no panic reaches the runtime. After a panic the tool records
//! nothing more.

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

/// Returns the heartbeat page; `None` before the tool has started, or if there is no page.
pub(crate) fn heartbeat() -> Option<&'static Heartbeat> {
    HEARTBEAT.get()
}

/// Runs the body of a callback. After a panic the tool records nothing more, and the program
/// continues.
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
/// The OpenMP runtime calls this function once, before any of the runtime's threads start.
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

/// Registers the callbacks. Returns 1 to keep the tool active, or 0 to end it.
extern "C" fn initialize(lookup: ffi::Lookup, _device: c_int, _tool: *mut c_void) -> c_int {
    guarded(0, || {
        // SAFETY: `lookup` is the lookup function of the runtime, and its argument is a
        // zero-terminated string.
        let found = unsafe { lookup(c"ompt_set_callback".as_ptr()) };
        let Some(found) = found else {
            return 0;
        };
        // SAFETY: `found` is the runtime's function `ompt_set_callback`, for which the
        // specification defines the type `SetCallback`.
        let set = unsafe { std::mem::transmute::<ffi::Interface, SetCallback>(found) };
        for (event, callback) in thread::callbacks() {
            // SAFETY: each callback has the type that the specification defines for its event. The
            // runtime rejects an event that it does not know.
            unsafe { set(event as c_int, callback) };
        }
        // SAFETY: the handler of the forked child only discards the thread-local record of the
        // calling thread.
        unsafe { libc::pthread_atfork(None, None, Some(thread::forget)) };
        1
    })
}

extern "C" fn finalize(_tool: *mut c_void) {
    guarded((), thread::end);
}
