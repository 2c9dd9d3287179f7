// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each thread does, from the runtime's events.
//!
//! A thread waits between the begin and the end of a `sync_region_wait`, unless
//! the runtime lets it execute an explicit task meanwhile: `task_schedule`
//! names the task it goes on with, and it waits again when that is the task
//! that had begun to wait. Waits nest (a task inside a barrier may wait for
//! its own children), so the waiting tasks are a stack. A worker also waits
//! from its creation to its first implicit task, and between an implicit task
//! and the next. LLVM's runtime tells workers of the end of a region's last
//! barrier only when the next region begins, which comes to the same.
//!
//! Locks: the runtime tells of every acquisition, contended or not. Only the
//! clock is read at first; a wait is accounted when it took longer than
//! [`SHORT_WAIT_NS`].

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};

use usher_heartbeat::{SlotState, ThreadSlot, now_ns};

use crate::ffi::{Callback, Event, SCOPE_BEGIN, SCOPE_END, TASK_INITIAL, THREAD_WORKER};
use crate::{guarded, heart};

/// Waits for a lock below this are taken for the cost of the lock itself.
const SHORT_WAIT_NS: u64 = 2_000;
/// Waits nested deeper than this are counted and not told apart.
const DEEPEST: usize = 32;

/// `ompt_data_t *` of a task: only compared, never followed.
type Task = *const c_void;

struct Thread {
    slot: ThreadSlot<'static>,
    waiting: [Task; DEEPEST],
    depth: usize,
    lock_since_ns: u64,
}

thread_local! {
    static THREAD: RefCell<Option<Thread>> = const { RefCell::new(None) };
}

/// Runs `change` on this thread's account, which is opened when need be:
/// runtimes may tell of a thread's doings before its begin, and threads of the
/// program's own take part too. Nothing happens where every slot is taken.
fn with(change: impl FnOnce(&mut Thread)) {
    guarded((), || {
        // A thread that ends has no local storage left: then it is not told.
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
        slot: heart()?.thread_slot()?,
        waiting: [std::ptr::null(); DEEPEST],
        depth: 0,
        lock_since_ns: 0,
    })
}

impl Thread {
    fn begin_wait(&mut self, task: Task) {
        if let Some(place) = self.waiting.get_mut(self.depth) {
            *place = task;
        }
        self.depth += 1;
        self.slot.enter(SlotState::Waiting);
    }

    fn end_wait(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.slot.enter(SlotState::Useful);
    }

    /// The thread goes on with that task.
    fn go_on(&mut self, task: Task) {
        let waiting = self.depth.checked_sub(1).and_then(|i| self.waiting.get(i));
        self.slot.enter(match waiting == Some(&task) {
            true => SlotState::Waiting,
            false => SlotState::Useful,
        });
    }
}

/// The thread is done with OpenMP: its slot is given back.
pub(crate) fn end() {
    let _ = THREAD.try_with(|cell| {
        if let Some(thread) = cell.try_borrow_mut().ok().and_then(|mut t| t.take()) {
            thread.slot.release();
        }
    });
}

/// In a forked child: the slot is the parent's. Its threads do not live on, and
/// the child takes a slot of its own when it uses OpenMP.
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
    // Without a next task the prior one only changed its status.
    if !next.is_null() {
        with(|thread| thread.go_on(next));
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
            thread.slot.waited(since_ns);
        }
    });
}

/// Each event with the callback of the type that the specification gives it.
pub(crate) fn callbacks() -> [(Event, Callback); 7] {
    macro_rules! callback {
        ($function:ident as $type:ty) => {{
            let typed: $type = $function;
            // SAFETY: the runtime casts it back to the event's own type, which
            // is `$type` with pointers and enumerations for the numbers.
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
