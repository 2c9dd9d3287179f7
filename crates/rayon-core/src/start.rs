// SPDX-License-Identifier: MIT OR Apache-2.0
//! The start of the threads of a pool.

use std::sync::Arc;
use std::{env, io, thread};

use usher_tasks::{Runtime, RuntimeBuilder, RuntimeError, WorkerThread};

use crate::panics::{self, PanicHandler};
use crate::spawn::PoolId;

pub(crate) type ThreadNames = Box<dyn FnMut(usize) -> String>;
pub(crate) type ThreadHook = Arc<dyn Fn(usize) + Send + Sync>;

/// Returns the maximum number of threads of a pool.
pub fn max_num_threads() -> usize {
    usher_tasks::WORKERS_MAX
}

/// The configuration of a pool.
#[derive(Default)]
pub(crate) struct PoolConfig {
    /// Number of threads; 0 means the default.
    pub threads: usize,
    pub names: Option<ThreadNames>,
    pub stack_bytes: usize,
    pub panic_handler: Option<PanicHandler>,
    pub start_handler: Option<ThreadHook>,
    pub exit_handler: Option<ThreadHook>,
}

/// Starts the threads of a pool by `spawn`.
pub(crate) fn start(
    mut config: PoolConfig,
    spawn: impl FnMut(WorkerThread) -> io::Result<()>,
) -> Result<(Runtime, PoolId), RuntimeError> {
    let id = PoolId::new();
    let threads = match config.threads {
        0 => default_threads(),
        threads => threads.min(max_num_threads()),
    };
    let names: Option<Vec<String>> = config
        .names
        .as_mut()
        .map(|name| (0..threads).map(name).collect());
    let (panic_handler, start_handler) = (config.panic_handler, config.start_handler);
    let exit_handler = config.exit_handler;
    let runtime = RuntimeBuilder::new(threads)
        .stack_bytes(config.stack_bytes)
        .thread_names(move |index| names.as_ref().map(|names| names[index].clone()))
        .on_thread_start(move |index| {
            id.set_current();
            if let Some(handler) = &panic_handler {
                panics::set_panic_handler(Arc::clone(handler));
            }
            call_hook(start_handler.as_ref(), index);
        })
        .on_thread_exit(move |index| call_hook(exit_handler.as_ref(), index))
        .build_with(spawn)?;
    Ok((runtime, id))
}

fn call_hook(hook: Option<&ThreadHook>, index: usize) {
    if let Some(hook) = hook {
        panics::caught(|| hook(index));
    }
}

/// Returns the default number of threads, from the environment or the number of CPUs.
fn default_threads() -> usize {
    let from_variable = |name| env::var(name).ok()?.parse().ok();
    let threads = ["RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS"]
        .into_iter()
        .find_map(from_variable)
        .filter(|&threads: &usize| threads > 0);
    let cpus = || thread::available_parallelism().map_or(1, usize::from);
    threads.unwrap_or_else(cpus).min(max_num_threads())
}
