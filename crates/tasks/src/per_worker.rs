// SPDX-License-Identifier: MIT OR Apache-2.0
//! One value for each worker of a runtime, without locks. A value is on cache lines of its own.
//! Access takes constant time: the thread-local variable of the current worker gives the index of
//! the value.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::current_worker::index_in;
use crate::runtime::Runtime;
use crate::worker::Registry;

/// One value of type `T` for each worker of a runtime, such as scratch memory or a partial sum. A
/// task accesses the value of its worker without a lock.
///
/// - Only the thread of a worker accesses the value of that worker until the owner of the
///   `PerWorker` reads all values by [`Self::iter_mut`] or [`Self::into_values`]. `T` therefore
///   need not be `Sync`: use a `Cell` or a `RefCell` to change values.
/// - A task has the same value from beginning to end ([`Runtime::worker_index`]).
/// - Other tasks use the same value before and after a task. They also use it during a task that
///   calls [`Runtime::run`], [`Runtime::join`] or [`Runtime::scope`], which run other tasks on the
///   same worker. Hold no borrow of a `RefCell` over such a call, because a second borrow panics.
///   Destructors of tasks use it during a call of [`Runtime::cancel`].
///
/// The owner can also read the values after the drop of the runtime.
///
/// ```
/// use std::cell::Cell;
/// use usher_tasks::{GraphBuilder, PerWorker, Runtime};
///
/// let runtime = Runtime::new(2)?;
/// let sums = PerWorker::new(&runtime, |_| Cell::new(0));
/// let mut builder = GraphBuilder::new();
/// for _ in 0..100 {
///     builder.task();
/// }
/// let mut graph = builder.build(|task| {
///     if let Some(sum) = sums.get() {
///         sum.set(sum.get() + task);
///     }
/// })?;
/// runtime.run(&mut graph)?;
/// drop(graph);
/// assert_eq!(sums.into_values().map(Cell::into_inner).sum::<usize>(), 4950);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PerWorker<T> {
    /// The runtime. This reference does not keep the runtime alive, but it prevents another runtime
    /// from getting the same address.
    registry: Weak<Registry>,
    values: Box<[CacheAligned<T>]>,
}

/// A value on cache lines of its own, so that workers do not write to the same cache line.
#[repr(align(128))]
struct CacheAligned<T>(T);

// SAFETY: a shared reference to a `PerWorker` gives access to a value only on the thread of the
// worker with the value's index, and no two threads are workers of one runtime with the same index.
// A reference to a `T` that is not `Sync` is not `Send`, so it stays on that thread. The values
// move between threads at creation, at the first access, and when the owner reads or drops them,
// which `T: Send` allows.
unsafe impl<T: Send> Sync for PerWorker<T> {}

impl<T> PerWorker<T> {
    /// Creates a value for each worker. `init` is called on the calling thread, for the indexes
    /// from 0 to [`Runtime::workers`] - 1.
    pub fn new(runtime: &Runtime, init: impl FnMut(usize) -> T) -> Self {
        Self {
            registry: Arc::downgrade(runtime.registry()),
            values: (0..runtime.workers()).map(init).map(CacheAligned).collect(),
        }
    }

    /// Returns the value of the calling worker; `None` if the calling thread is no worker of the
    /// runtime.
    pub fn get(&self) -> Option<&T> {
        let index = index_in(self.registry.as_ptr())?;
        self.values.get(index).map(|value| &value.0)
    }

    /// Returns the values of all workers in order of their indexes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.values.iter_mut().map(|value| &mut value.0)
    }

    /// Returns the values of all workers in order of their indexes.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.values.into_iter().map(|value| value.0)
    }
}

impl<T> fmt::Debug for PerWorker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = self.values.len();
        f.debug_struct("PerWorker")
            .field("workers", &workers)
            .finish_non_exhaustive()
    }
}
