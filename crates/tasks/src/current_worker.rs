// SPDX-License-Identifier: MIT OR Apache-2.0
//! The worker of the calling thread, in a thread-local variable. A worker thread sets the variable
//! before it runs tasks, and clears it after its last task. Reading the variable takes constant
//! time.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use crate::waits::RuntimeWait;
use crate::worker::{Registry, Worker};

thread_local! {
    /// Pointers to the registry and the worker of this thread; both are null if the thread is no
    /// worker.
    static CURRENT_WORKER: Cell<(*const Registry, *const Worker<'static>)> =
        const { Cell::new((ptr::null(), ptr::null())) };
}

/// Sets [`CURRENT_WORKER`] until the guard is dropped at the end of the worker.
pub(crate) struct CurrentWorkerGuard;

impl CurrentWorkerGuard {
    pub fn enter(registry: &Arc<Registry>, worker: &Worker<'_>) -> Self {
        CURRENT_WORKER.set((Arc::as_ptr(registry), ptr::from_ref(worker).cast()));
        Self
    }
}

impl Drop for CurrentWorkerGuard {
    /// Clears [`CURRENT_WORKER`]. Destructors of thread-local values may call the runtime after the
    /// worker has ended, and must not use its pointer.
    fn drop(&mut self) {
        CURRENT_WORKER.set((ptr::null(), ptr::null()));
    }
}

/// Returns the worker that runs on the calling thread; `None` if that thread is no worker of this
/// runtime.
pub(crate) fn current_worker(registry: &Arc<Registry>) -> Option<&Worker<'_>> {
    let (of, worker) = CURRENT_WORKER.get();
    // SAFETY: the pointer is cleared before the worker of the calling thread ends, so the worker
    // exists.
    (of == Arc::as_ptr(registry)).then(|| unsafe { &*worker })
}

/// Calls a function with the worker that runs on the calling thread; with `None` if that thread is
/// no worker of this registry.
pub(crate) fn with_worker_of(registry: &Registry, function: impl FnOnce(Option<&Worker<'_>>)) {
    let (of, worker) = CURRENT_WORKER.get();
    // SAFETY: the pointer is cleared before the worker of the calling thread ends, so the worker
    // exists during the call.
    function(ptr::eq(of, registry).then(|| unsafe { &*worker }));
}

/// Returns the registry of the worker that runs on the calling thread; null if the thread is no
/// worker.
pub(crate) fn current_registry() -> *const Registry {
    CURRENT_WORKER.get().0
}

/// Records that the calling thread waits for the runtime of `registry`, if the thread is a worker
/// of another runtime.
pub(crate) fn record_wait_for(registry: &Registry) -> Option<RuntimeWait> {
    let from = current_registry();
    let is_other = !from.is_null() && !ptr::eq(from, registry);
    is_other.then(|| RuntimeWait::record(from.addr(), ptr::from_ref(registry).addr()))
}

/// Returns the index of the worker that runs on the calling thread, if the thread is a worker of
/// this registry. Does not access the registry.
pub(crate) fn index_in(registry: *const Registry) -> Option<usize> {
    let (of, worker) = CURRENT_WORKER.get();
    // SAFETY: the worker exists, because its thread clears the pointer before the worker ends. A
    // registry that has workers is not null.
    (ptr::eq(of, registry) && !worker.is_null()).then(|| unsafe { &*worker }.index())
}

/// The worker of the calling thread and its registry.
pub(crate) struct ThisWorker<'a> {
    registry: *const Registry,
    worker: &'a Worker<'a>,
}

/// Calls a function with the worker of the calling thread; with `None` if the thread is no worker
/// of any runtime.
#[inline]
pub(crate) fn with<R>(function: impl FnOnce(Option<ThisWorker<'_>>) -> R) -> R {
    let (registry, worker) = CURRENT_WORKER.get();
    // SAFETY: the pointer is null or points to the worker of the calling thread, which exists until
    // the thread has cleared the pointer. The function runs before that, and cannot keep the
    // reference.
    let worker = unsafe { worker.as_ref() };
    function(worker.map(|worker| ThisWorker { registry, worker }))
}

impl ThisWorker<'_> {
    pub fn worker(&self) -> &Worker<'_> {
        self.worker
    }

    /// Returns the registry without a change of its reference count.
    pub fn registry(&self) -> ManuallyDrop<Arc<Registry>> {
        // SAFETY: the pointer came from the reference that the thread of the worker owns until the
        // worker ends. The result is not dropped, so the count is unchanged.
        ManuallyDrop::new(unsafe { Arc::from_raw(self.registry) })
    }

    pub fn to_registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry())
    }
}
