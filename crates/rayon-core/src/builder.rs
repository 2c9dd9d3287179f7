// SPDX-License-Identifier: MIT OR Apache-2.0
//! Configuration of thread pools.

use std::any::Any;
use std::sync::Arc;
use std::{fmt, io, thread};

use usher_tasks::{Runtime, WorkerThread};

use crate::error::ThreadPoolBuildError;
use crate::global::set_global;
use crate::pool::ThreadPool;
use crate::spawn::PoolId;
use crate::start::{PoolConfig, start};

/// The configuration of a [`ThreadPool`]. `S` is the way in which threads are started.
pub struct ThreadPoolBuilder<S = DefaultSpawn> {
    config: PoolConfig,
    uses_current_thread: bool,
    spawn: S,
}

mod sealed {
    pub trait Sealed {}
}

/// A way to start threads. Only this crate implements it.
pub trait ThreadSpawn: sealed::Sealed {
    /// Starts a thread that runs a worker.
    ///
    /// # Errors
    /// If the thread cannot be started.
    fn spawn(&mut self, thread: ThreadBuilder) -> io::Result<()>;
}

/// Starts threads of the standard library.
#[derive(Debug, Default)]
pub struct DefaultSpawn;

impl sealed::Sealed for DefaultSpawn {}

impl ThreadSpawn for DefaultSpawn {
    fn spawn(&mut self, thread: ThreadBuilder) -> io::Result<()> {
        thread.0.spawn().map(drop)
    }
}

/// Starts threads by a function of the program.
#[derive(Debug)]
pub struct CustomSpawn<F>(F);

impl<F> sealed::Sealed for CustomSpawn<F> {}

impl<F: FnMut(ThreadBuilder) -> io::Result<()>> ThreadSpawn for CustomSpawn<F> {
    fn spawn(&mut self, thread: ThreadBuilder) -> io::Result<()> {
        (self.0)(thread)
    }
}

/// The configuration and the work of one thread of a pool, for
/// [`ThreadPoolBuilder::spawn_handler`].
#[derive(Debug)]
pub struct ThreadBuilder(WorkerThread);

impl ThreadBuilder {
    /// Returns the index of the thread in the pool, from 0.
    pub fn index(&self) -> usize {
        self.0.index()
    }

    /// Returns the name of the thread, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.0.name()
    }

    /// Returns the size of the stack in bytes, if it was configured.
    pub fn stack_size(&self) -> Option<usize> {
        self.0.stack_bytes()
    }

    /// Runs the tasks of the pool in the calling thread, and returns when the pool has ended.
    pub fn run(self) {
        self.0.run();
    }
}

impl Default for ThreadPoolBuilder {
    fn default() -> Self {
        Self {
            config: PoolConfig::default(),
            uses_current_thread: false,
            spawn: DefaultSpawn,
        }
    }
}

impl ThreadPoolBuilder {
    /// Returns the default configuration.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a pool, calls `with_pool` with the pool, and waits for the end of the pool's
    /// threads. Each thread calls `wrapper`, which must call [`ThreadBuilder::run`]. The threads
    /// are scoped threads, so `wrapper` may borrow local variables.
    ///
    /// # Errors
    /// If the pool cannot be created.
    pub fn build_scoped<W, F, R>(self, wrapper: W, with_pool: F) -> Result<R, ThreadPoolBuildError>
    where
        W: Fn(ThreadBuilder) + Sync,
        F: FnOnce(&ThreadPool) -> R,
    {
        thread::scope(|scope| {
            let wrapper = &wrapper;
            let pool = self
                .spawn_handler(|worker| {
                    let mut builder = thread::Builder::new();
                    if let Some(name) = worker.name() {
                        builder = builder.name(name.to_owned());
                    }
                    if let Some(bytes) = worker.stack_size() {
                        builder = builder.stack_size(bytes);
                    }
                    builder.spawn_scoped(scope, || wrapper(worker)).map(drop)
                })
                .build()?;
            Ok(with_pool(&pool))
        })
    }
}

impl<S: ThreadSpawn> ThreadPoolBuilder<S> {
    /// Creates a pool.
    ///
    /// # Errors
    /// If the threads cannot be started, or if [`Self::use_current_thread`] was called.
    pub fn build(self) -> Result<ThreadPool, ThreadPoolBuildError> {
        let (runtime, id) = self.start()?;
        Ok(ThreadPool::new(runtime, id))
    }

    fn start(mut self) -> Result<(Runtime, PoolId), ThreadPoolBuildError> {
        if self.uses_current_thread {
            let text = "usher-rayon cannot use the current thread as a thread of a pool; remove \
                        the call of use_current_thread()";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text).into());
        }
        let spawn = &mut self.spawn;
        Ok(start(self.config, |worker| {
            spawn.spawn(ThreadBuilder(worker))
        })?)
    }

    /// Creates the global pool.
    ///
    /// # Errors
    /// If the global pool exists already, and in the cases of [`Self::build`].
    pub fn build_global(self) -> Result<(), ThreadPoolBuildError> {
        set_global(|| Ok(self.start()?.0))
    }
}

impl<S> ThreadPoolBuilder<S> {
    /// Sets the function that starts the threads of the pool. It is called once for each thread,
    /// and must start a thread that calls [`ThreadBuilder::run`].
    pub fn spawn_handler<F>(self, spawn: F) -> ThreadPoolBuilder<CustomSpawn<F>>
    where
        F: FnMut(ThreadBuilder) -> io::Result<()>,
    {
        ThreadPoolBuilder {
            config: self.config,
            uses_current_thread: self.uses_current_thread,
            spawn: CustomSpawn(spawn),
        }
    }

    /// Sets the names of the threads. The argument is the index of a thread. The default is no
    /// name.
    #[must_use]
    pub fn thread_name<F>(mut self, closure: F) -> Self
    where
        F: FnMut(usize) -> String + 'static,
    {
        self.config.names = Some(Box::new(closure));
        self
    }

    /// Sets the number of threads. 0 means the value of the environment variable
    /// `RAYON_NUM_THREADS`, or the number of CPUs that the program may use. Numbers above
    /// [`max_num_threads`](crate::max_num_threads) are reduced.
    #[must_use]
    pub fn num_threads(mut self, num_threads: usize) -> Self {
        self.config.threads = num_threads;
        self
    }

    /// Not supported: the build returns an error.
    #[must_use]
    pub fn use_current_thread(mut self) -> Self {
        self.uses_current_thread = true;
        self
    }

    /// Sets the function that gets the payloads of panics in tasks of [`spawn`](crate::spawn()).
    /// Without it, such a panic ends the process.
    #[must_use]
    pub fn panic_handler<H>(mut self, panic_handler: H) -> Self
    where
        H: Fn(Box<dyn Any + Send>) + Send + Sync + 'static,
    {
        self.config.panic_handler = Some(Arc::new(panic_handler));
        self
    }

    /// Sets the size of each thread's stack in bytes, at least 64 KiB. 0 means the default of the
    /// standard library.
    #[must_use]
    pub fn stack_size(mut self, stack_size: usize) -> Self {
        self.config.stack_bytes = stack_size;
        self
    }

    /// Sets a function that each thread calls with its index before its first task. A panic is
    /// passed to the panic handler, or ends the process.
    #[must_use]
    pub fn start_handler<H>(mut self, start_handler: H) -> Self
    where
        H: Fn(usize) + Send + Sync + 'static,
    {
        self.config.start_handler = Some(Arc::new(start_handler));
        self
    }

    /// Sets a function that each thread calls with its index after its last task. A panic is passed
    /// to the panic handler, or ends the process.
    #[must_use]
    pub fn exit_handler<H>(mut self, exit_handler: H) -> Self
    where
        H: Fn(usize) + Send + Sync + 'static,
    {
        self.config.exit_handler = Some(Arc::new(exit_handler));
        self
    }
}

impl<S> fmt::Debug for ThreadPoolBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPoolBuilder")
            .field("num_threads", &self.config.threads)
            .field("stack_size", &self.config.stack_bytes)
            .finish_non_exhaustive()
    }
}
