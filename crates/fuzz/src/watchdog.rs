// SPDX-License-Identifier: MIT OR Apache-2.0
//! Aborts the process if a fuzz target does not return within [`HANG`] (60 s).
//!
//! 1. The target's thread stores each input and its start time before it runs the target
//!    ([`Watchdog::watch`]), and removes them afterwards ([`InputGuard`]).
//! 2. A second thread checks the stored start time once a second.
//! 3. If the input has run for [`HANG`], the second thread writes the input to a file in the
//!    temporary directory, prints the file's path and aborts the process. The abort follows at most
//!    about 1 s after the limit, even if the file cannot be written.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::HANG;

/// Interval of the checks for a hung target.
const PAUSE: Duration = Duration::from_secs(1);

/// The input that the target is processing, with its start time; `None` between two inputs.
type RunningInput = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

/// A thread that checks one target for hangs. The thread ends after this value is dropped.
pub struct Watchdog {
    running: RunningInput,
}

/// Marks an input as being processed, until this value is dropped.
pub struct InputGuard<'a>(&'a RunningInput);

impl Watchdog {
    /// Starts the checks of a target that is not processing an input yet.
    pub fn start(name: &str) -> Self {
        let running = RunningInput::default();
        let (seen, name) = (Arc::downgrade(&running), name.to_owned());
        std::thread::spawn(move || {
            while let Some(running) = seen.upgrade() {
                end_if_hung(&name, &running);
                drop(running);
                std::thread::sleep(PAUSE);
            }
        });
        Self { running }
    }

    /// Records that the target starts to process this input.
    pub fn watch(&self, input: &[u8]) -> InputGuard<'_> {
        set(&self.running, Some((Instant::now(), input.to_vec())));
        InputGuard(&self.running)
    }
}

impl Drop for InputGuard<'_> {
    fn drop(&mut self) {
        set(self.0, None);
    }
}

fn set(running: &RunningInput, input: Option<(Instant, Vec<u8>)>) {
    *running.lock().unwrap_or_else(PoisonError::into_inner) = input;
}

fn end_if_hung(name: &str, running: &RunningInput) {
    let running = running.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((since, input)) = running.as_ref() else {
        return;
    };
    if since.elapsed() < HANG {
        return;
    }
    let path = std::env::temp_dir().join(format!("usher-fuzz-hang-{}", std::process::id()));
    let written = std::fs::write(&path, input);
    eprintln!(
        "{name}: the fuzz target did not finish within {HANG:?} on the input in {} ({written:?})",
        path.display()
    );
    std::process::abort();
}
