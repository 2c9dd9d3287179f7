// SPDX-License-Identifier: MIT OR Apache-2.0
//! The global pool.

use std::sync::OnceLock;

use usher_tasks::Runtime;

use crate::error::ThreadPoolBuildError;
use crate::start::{PoolConfig, start};

/// The runtime of the global pool, which is never dropped.
static GLOBAL: OnceLock<Runtime> = OnceLock::new();

/// Returns the runtime of the global pool, and creates it at the first call.
pub(crate) fn global() -> &'static Runtime {
    GLOBAL.get_or_init(|| {
        let started = start(PoolConfig::default(), |worker| worker.spawn().map(drop));
        match started {
            Ok((runtime, _)) => runtime,
            Err(error) => panic!("the global thread pool cannot be created: {error}"),
        }
    })
}

/// Creates the global pool.
///
/// # Errors
/// If the global pool exists already, or if `start` returns an error.
pub(crate) fn set_global(
    start: impl FnOnce() -> Result<Runtime, ThreadPoolBuildError>,
) -> Result<(), ThreadPoolBuildError> {
    if GLOBAL.get().is_some() {
        return Err(ThreadPoolBuildError::global_exists());
    }
    GLOBAL
        .set(start()?)
        .map_err(|_| ThreadPoolBuildError::global_exists())
}
