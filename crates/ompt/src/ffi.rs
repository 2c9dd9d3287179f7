// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of OMPT's C interface that this crate uses, written from the OpenMP API specification
//! 5.2, chapter 19. The numbers of `ompt_callbacks_t`, `ompt_scope_endpoint_t` and the flags are
//! part of the ABI.

use std::ffi::{c_char, c_int, c_void};

/// A function of the OpenMP runtime. The pointer is cast to the function's real type before a call.
pub(crate) type Interface = unsafe extern "C" fn();
/// A callback of this tool. The runtime casts the pointer to the callback's real type before a
/// call.
pub(crate) type Callback = unsafe extern "C" fn();
/// `ompt_function_lookup_t`.
pub(crate) type Lookup = unsafe extern "C" fn(name: *const c_char) -> Option<Interface>;
/// `ompt_set_callback_t`. The result of `ompt_set_callback` states whether the runtime will call
/// the callback for the event.
pub(crate) type SetCallback = unsafe extern "C" fn(event: c_int, callback: Callback) -> c_int;

/// `ompt_start_tool_result_t`.
#[repr(C)]
pub struct StartToolResult {
    pub(crate) initialize: extern "C" fn(Lookup, c_int, *mut c_void) -> c_int,
    pub(crate) finalize: extern "C" fn(*mut c_void),
    /// The tool's own data (`ompt_data_t`), which is a union of a 64-bit number and a pointer. This
    /// tool does not use it.
    pub(crate) tool_data: u64,
}

/// `ompt_callbacks_t`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    ThreadBegin = 1,
    ThreadEnd = 2,
    TaskSchedule = 6,
    ImplicitTask = 7,
    SyncRegionWait = 16,
    MutexAcquire = 26,
    MutexAcquired = 27,
}

/// `ompt_scope_begin`.
pub(crate) const SCOPE_BEGIN: c_int = 1;
/// `ompt_scope_end`.
pub(crate) const SCOPE_END: c_int = 2;
/// `ompt_thread_worker` of `ompt_thread_t`.
pub(crate) const THREAD_WORKER: c_int = 2;
/// `ompt_task_initial` of `ompt_task_flag_t`.
pub(crate) const TASK_INITIAL: c_int = 1;
