// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracks whether each OpenMP thread waits or does useful work, from the events that the runtime
//! reports. Each event takes constant time; a slot of the heartbeat page stores the times of the
//! thread.
//!
//! *Barriers and tasks*: a thread waits between the begin and the end of a `sync_region_wait`,
//! except while it executes an explicit task. The event `task_schedule` names the task with which
//! the thread continues. If that task is the task that began the wait, the thread waits again.
//! Waits nest, because a task that is executed inside a barrier may wait for its own children. The
//! waiting tasks are therefore kept as a stack, of up to 32 tasks ([`WAIT_DEPTH_MAX`]). A thread in
//! a deeper wait counts as useful after it has executed a task in this wait.
//!
//! *Regions*: a worker also waits from its creation to its first implicit task, and between two
//! implicit tasks. LLVM's runtime reports the end of the last barrier of a region to a worker only
//! when the next region begins. The worker counts as waiting until then in either case.
//!
//! *Locks*: the runtime reports every acquisition, contended or not. At the begin of an acquisition
//! the tool only reads the clock. At the end, the tool records the acquisition as a wait if it took
//! longer than 2 µs ([`SHORT_WAIT_NS`]).
//!
//! *Limits*: events of a thread are ignored if all 1024 slots are taken, while the thread ends, and
//! after a panic of this tool. No callback waits or allocates memory after the first event of a
//! thread.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};

use usher_heartbeat::{SlotState, ThreadSlot, now_ns};

use crate::ffi::{Callback, Event, SCOPE_BEGIN, SCOPE_END, TASK_INITIAL, THREAD_WORKER};
use crate::{guarded, heartbeat};

/// Duration in nanoseconds below which a wait for a lock counts as the cost of the lock itself.
const SHORT_WAIT_NS: u64 = 2_000;
/// Maximum depth of nested waits for which the waiting tasks are stored. Deeper waits are only
/// counted.
const WAIT_DEPTH_MAX: usize = 32;

/// The `ompt_data_t *` of a task. The pointer identifies the task and is never dereferenced.
type Task = *const c_void;

struct Thread {
    slot: ThreadSlot<'static>,
    waiting: [Task; WAIT_DEPTH_MAX],
    depth: usize,
    lock_since_ns: u64,
}

thread_local! {
    static THREAD: RefCell<Option<Thread>> = const { RefCell::new(None) };
}

/// Runs `change` on the record of this thread. The first call creates the record, because a runtime
/// may report other events of a thread before `thread_begin`, and because threads that the program
/// itself creates also execute OpenMP code. Has no effect if all slots are taken.
fn with(change: impl FnOnce(&mut Thread)) {
    guarded((), || {
        // While a thread ends, its thread-local storage may already be gone. Events of such a
        // thread are ignored.
        let _ = THREAD.try_with(|cell| {
            let Ok(mut thread) = cell.try_borrow_mut() else {
                return;
            };
            if thread.is_none() {
                *thread = open();
            }
            if let Some(thread) = thread.as_mut() {
                change(thread);
            }
        });
    });
}

fn open() -> Option<Thread> {
    Some(Thread {
        slot: heartbeat()?.thread_slot()?,
        waiting: [std::ptr::null(); WAIT_DEPTH_MAX],
        depth: 0,
        lock_since_ns: 0,
    })
}

impl Thread {
    fn begin_wait(&mut self, task: Task) {
        if let Some(entry) = self.waiting.get_mut(self.depth) {
            *entry = task;
        }
        self.depth += 1;
        self.slot.enter(SlotState::Waiting);
    }

    fn end_wait(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.slot.enter(SlotState::Useful);
    }

    /// Records that the thread continues with `task`: it waits if `task` is the innermost waiting
    /// task, and does useful work otherwise.
    fn continue_with(&mut self, task: Task) {
        let waiting = self.depth.checked_sub(1).and_then(|i| self.waiting.get(i));
        self.slot.enter(match waiting == Some(&task) {
            true => SlotState::Waiting,
            false => SlotState::Useful,
        });
    }
}

/// Releases the slot of a thread that no longer uses OpenMP.
pub(crate) fn end() {
    let _ = THREAD.try_with(|cell| {
        if let Some(thread) = cell.try_borrow_mut().ok().and_then(|mut t| t.take()) {
            thread.slot.release();
        }
    });
}

/// Discards the record of the calling thread in a forked child, without releasing the slot, which
/// still belongs to the parent. The child claims a slot of its own when it uses OpenMP.
pub(crate) extern "C" fn forget() {
    guarded((), || {
        let _ = THREAD.try_with(|cell| {
            if let Ok(mut thread) = cell.try_borrow_mut() {
                *thread = None;
            }
        });
    });
}

extern "C" fn thread_begin(kind: c_int, _thread: *mut c_void) {
    with(|thread| {
        if kind == THREAD_WORKER {
            thread.slot.enter(SlotState::Waiting);
        }
    });
}

extern "C" fn thread_end(_thread: *mut c_void) {
    guarded((), end);
}

extern "C" fn implicit_task(
    endpoint: c_int,
    _parallel: *mut c_void,
    _task: *mut c_void,
    _parallelism: c_uint,
    index: c_uint,
    flags: c_int,
) {
    let is_worker = index != 0 && flags & TASK_INITIAL == 0;
    match endpoint {
        SCOPE_BEGIN => with(|thread| {
            if is_worker {
                thread.depth = 0;
            }
            thread.slot.enter(SlotState::Useful);
        }),
        SCOPE_END if is_worker => with(|thread| thread.slot.enter(SlotState::Waiting)),
        _ => {}
    }
}

extern "C" fn sync_region_wait(
    _kind: c_int,
    endpoint: c_int,
    _parallel: *mut c_void,
    task: *mut c_void,
    _code: *const c_void,
) {
    match endpoint {
        SCOPE_BEGIN => with(|thread| thread.begin_wait(task)),
        SCOPE_END => with(Thread::end_wait),
        _ => {}
    }
}

extern "C" fn task_schedule(_prior: *mut c_void, _status: c_int, next: *mut c_void) {
    // If `next` is null, only the status of the prior task has changed.
    if !next.is_null() {
        with(|thread| thread.continue_with(next));
    }
}

extern "C" fn mutex_acquire(
    _kind: c_int,
    _hint: c_uint,
    _implementation: c_uint,
    _lock: u64,
    _code: *const c_void,
) {
    with(|thread| thread.lock_since_ns = now_ns());
}

extern "C" fn mutex_acquired(_kind: c_int, _lock: u64, _code: *const c_void) {
    with(|thread| {
        let since_ns = std::mem::take(&mut thread.lock_since_ns);
        let waits = thread.slot.state() == SlotState::Waiting;
        if since_ns > 0 && !waits && now_ns().saturating_sub(since_ns) > SHORT_WAIT_NS {
            thread.slot.record_wait(since_ns);
        }
    });
}

/// Returns each event with the callback of its type in the specification.
pub(crate) fn callbacks() -> [(Event, Callback); 7] {
    macro_rules! callback {
        ($function:ident as $type:ty) => {{
            let typed: $type = $function;
            // SAFETY: the runtime casts the pointer to the callback type of the event before a
            // call. That type has the ABI of `$type`; it only names pointer and enumeration types
            // where `$type` has `*mut c_void` and numbers.
            unsafe { std::mem::transmute::<$type, Callback>(typed) }
        }};
    }
    type Data = *mut c_void;
    type Code = *const c_void;
    [
        (
            Event::ThreadBegin,
            callback!(thread_begin as extern "C" fn(c_int, Data)),
        ),
        (
            Event::ThreadEnd,
            callback!(thread_end as extern "C" fn(Data)),
        ),
        (
            Event::TaskSchedule,
            callback!(task_schedule as extern "C" fn(Data, c_int, Data)),
        ),
        (
            Event::ImplicitTask,
            callback!(implicit_task as extern "C" fn(c_int, Data, Data, c_uint, c_uint, c_int)),
        ),
        (
            Event::SyncRegionWait,
            callback!(sync_region_wait as extern "C" fn(c_int, c_int, Data, Data, Code)),
        ),
        (
            Event::MutexAcquire,
            callback!(mutex_acquire as extern "C" fn(c_int, c_uint, c_uint, u64, Code)),
        ),
        (
            Event::MutexAcquired,
            callback!(mutex_acquired as extern "C" fn(c_int, u64, Code)),
        ),
    ]
}
