// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads of workers: their names, functions at their start and end, and threads that the
//! program starts itself.

use std::sync::Arc;
use std::{fmt, io, thread};

use crate::error::RuntimeError;
use crate::runtime::{Runtime, RuntimeBuilder};

type OnThread = Arc<dyn Fn(usize) + Send + Sync>;

/// Functions that the threads of a runtime call.
#[derive(Clone, Default)]
pub(crate) struct ThreadHooks {
    name: Option<Arc<dyn Fn(usize) -> Option<String> + Send + Sync>>,
    on_start: Option<OnThread>,
    on_exit: Option<OnThread>,
}

impl ThreadHooks {
    /// Returns the name of the thread of worker number `worker`.
    pub fn name(&self, worker: usize) -> Option<String> {
        match &self.name {
            Some(name) => name(worker),
            None => Some(format!("usher-tasks-{worker}")),
        }
    }

    /// Calls `run` between the functions for the start and the end of a thread.
    pub fn around(&self, worker: usize, run: impl FnOnce()) {
        if let Some(on_start) = &self.on_start {
            on_start(worker);
        }
        run();
        if let Some(on_exit) = &self.on_exit {
            on_exit(worker);
        }
    }
}

impl fmt::Debug for ThreadHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadHooks").finish_non_exhaustive()
    }
}

/// The work of one worker, which a thread of the program runs. See [`RuntimeBuilder::build_with`].
pub struct WorkerThread {
    pub(crate) index: usize,
    pub(crate) name: Option<String>,
    pub(crate) stack_bytes: Option<usize>,
    pub(crate) run: Box<dyn FnOnce() + Send>,
}

impl WorkerThread {
    /// Returns the index of the worker, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the configured name of the thread; `None` if the thread has no name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the configured size of the stack in bytes; `None` for the default of the standard
    /// library.
    pub fn stack_bytes(&self) -> Option<usize> {
        self.stack_bytes
    }

    /// Runs the worker in the calling thread, and returns when the runtime has ended.
    ///
    /// # Panics
    /// If the calling thread is a worker already.
    pub fn run(self) {
        (self.run)();
    }

    /// Starts a thread of the standard library that runs the worker.
    ///
    /// # Errors
    /// If the system cannot start the thread.
    pub fn spawn(self) -> io::Result<thread::JoinHandle<()>> {
        let mut builder = thread::Builder::new();
        if let Some(name) = &self.name {
            builder = builder.name(name.clone());
        }
        if let Some(bytes) = self.stack_bytes {
            builder = builder.stack_size(bytes);
        }
        builder.spawn(self.run)
    }
}

impl fmt::Debug for WorkerThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerThread")
            .field("index", &self.index)
            .field("name", &self.name)
            .field("stack_bytes", &self.stack_bytes)
            .finish_non_exhaustive()
    }
}

impl RuntimeBuilder {
    /// Sets the names of the threads: the argument of `name` is the index of a worker, and `None`
    /// means no name. The default is `usher-tasks-` with the index.
    #[must_use]
    pub fn thread_names(
        mut self,
        name: impl Fn(usize) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.hooks.name = Some(Arc::new(name));
        self
    }

    /// Sets a function that each worker calls with its index before its first task. The function
    /// must not use the runtime. If the function panics, the process ends.
    #[must_use]
    pub fn on_thread_start(mut self, on_start: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.hooks.on_start = Some(Arc::new(on_start));
        self
    }

    /// Sets a function that each worker calls with its index after its last task. The function
    /// must not use the runtime. If the function panics, the process ends.
    #[must_use]
    pub fn on_thread_exit(mut self, on_exit: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.hooks.on_exit = Some(Arc::new(on_exit));
        self
    }

    /// Starts the workers on threads of the program. `spawn` is called once for each worker, and
    /// starts a thread that calls [`WorkerThread::run`]. The drop of the runtime does not wait for
    /// these threads, which end after all ready tasks have run. Each thread must run its worker;
    /// otherwise broadcasts wait forever. The stack of each thread must have at least
    /// [`WorkerThread::stack_bytes`] bytes, or 2 MiB if that is `None`.
    ///
    /// ```
    /// use std::thread;
    /// use usher_tasks::{RuntimeBuilder, RuntimeError};
    ///
    /// thread::scope(|scope| {
    ///     let runtime = RuntimeBuilder::new(2).build_with(|worker| {
    ///         scope.spawn(|| worker.run());
    ///         Ok(())
    ///     })?;
    ///     assert_eq!(runtime.join(|| 1, || 2), (1, 2));
    ///     Ok::<(), RuntimeError>(())
    /// })
    /// # ?;
    /// # Ok::<(), RuntimeError>(())
    /// ```
    ///
    /// # Errors
    /// In the cases in which [`Runtime::new`] returns an error, and if `spawn` returns an error.
    pub fn build_with(
        self,
        mut spawn: impl FnMut(WorkerThread) -> io::Result<()>,
    ) -> Result<Runtime, RuntimeError> {
        self.build_on(&mut |worker| spawn(worker).map(|()| None))
    }
}
