// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher-rayon`: the public functions of rayon-core 1.13, on the workers of `usher-tasks`.
//! Programs that use rayon run unmodified on these workers if `Cargo.toml` has the lines
//!
//! ```toml
//! [patch.crates-io]
//! rayon-core = { path = "usher/crates/rayon-core" }
//! ```
//!
//! # How it works
//!
//! 1. A [`ThreadPool`] is a runtime of `usher-tasks`. The global pool is created at the first use.
//! 2. A function of this crate that a worker calls uses the worker's runtime. All other threads use
//!    the global pool, and wait until a worker has run the function.
//! 3. `join`, scopes and broadcasts are those of `usher-tasks`.
//!
//! Rayon functions that are called inside a task of another runtime of `usher-tasks` use the
//! workers of that runtime.
//!
//! # Differences from rayon-core
//!
//! - A pool has at most 1,024 threads. Larger numbers are reduced to this limit.
//! - Up to 16 waits of other tasks are nested on the stack of a thread. In a deeper wait, a thread
//!   runs only tasks for which it waits.
//! - [`ThreadPoolBuilder::use_current_thread`] makes the build return an error.
//! - A thread that runs a long task publishes only some of the tasks that `join` has queued. A task
//!   that blocks until such a task has run may wait forever, where rayon-core would run both.
//! - The deprecated functions (`initialize`, `Configuration`, `breadth_first`) are missing.
//! - [`yield_now`] and [`yield_local`] run no task if the waits of the thread are nested too
//!   deeply.
//! - [`spawn_broadcast`] occupies one thread until all calls have ended.
//! - In a forked child, functions run in the calling thread instead of waiting forever, except
//!   spawned tasks, which never run.

mod broadcast;
mod builder;
mod current;
mod error;
mod global;
mod join;
mod panics;
mod pool;
mod scope;
mod spawn;
mod start;

pub use broadcast::{BroadcastContext, broadcast, spawn_broadcast};
pub use builder::{CustomSpawn, DefaultSpawn, ThreadBuilder, ThreadPoolBuilder};
pub use current::{
    Yield, current_num_threads, current_thread_has_pending_tasks, current_thread_index,
    yield_local, yield_now,
};
pub use error::ThreadPoolBuildError;
pub use join::{FnContext, join, join_context};
pub use pool::ThreadPool;
pub use scope::{Scope, ScopeFifo, in_place_scope, in_place_scope_fifo, scope, scope_fifo};
pub use spawn::{spawn, spawn_fifo};
pub use start::max_num_threads;
