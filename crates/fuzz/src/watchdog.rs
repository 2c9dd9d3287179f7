// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends the process if a fuzz target does not return in time, and prints the input. A thread checks
//! once a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::HANG;

/// Interval of the checks for a hung target.
const PAUSE: Duration = Duration::from_secs(1);

/// The input at work, and since when.
type RunningInput = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

/// A thread that checks one target for hangs; it ends with this value.
pub struct Watchdog {
    running: RunningInput,
}

/// While this value lives, its input is at work.
pub struct InputGuard<'a>(&'a RunningInput);

impl Watchdog {
    /// Starts to watch a target, with no input at work.
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

    /// Notes that this input is at work.
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
