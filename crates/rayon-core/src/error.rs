// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error of the creation of a pool.

use std::error::Error;
use std::{fmt, io};

use usher_tasks::RuntimeError;

/// The reason for which a pool cannot be created.
#[derive(Debug)]
pub struct ThreadPoolBuildError(Reason);

#[derive(Debug)]
enum Reason {
    GlobalPoolExists,
    Thread(io::Error),
    Runtime(RuntimeError),
}

impl ThreadPoolBuildError {
    pub(crate) fn global_exists() -> Self {
        Self(Reason::GlobalPoolExists)
    }
}

impl From<io::Error> for ThreadPoolBuildError {
    fn from(error: io::Error) -> Self {
        Self(Reason::Thread(error))
    }
}

impl From<RuntimeError> for ThreadPoolBuildError {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Thread { source, .. } => source.into(),
            error => Self(Reason::Runtime(error)),
        }
    }
}

impl fmt::Display for ThreadPoolBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Reason::GlobalPoolExists => {
                f.write_str("The global thread pool has already been initialized.")
            }
            Reason::Thread(error) => error.fmt(f),
            Reason::Runtime(error) => error.fmt(f),
        }
    }
}

impl Error for ThreadPoolBuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0 {
            Reason::GlobalPoolExists => None,
            Reason::Thread(error) => error.source(),
            Reason::Runtime(error) => error.source(),
        }
    }
}
