// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends the process where a target does not return.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::HANG;

/// Interval of the checks for a hung target.
const PAUSE: Duration = Duration::from_secs(1);

/// The input at work, and since when.
type AtWork = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

/// A thread that checks one target for hangs; it ends with this value.
pub struct Watchdog {
    at_work: AtWork,
}

/// While this value lives, its input is at work.
pub struct Guard<'a>(&'a AtWork);

impl Watchdog {
    /// Starts to watch a target, with no input at work.
    pub fn start(name: &str) -> Self {
        let at_work = AtWork::default();
        let (seen, name) = (Arc::downgrade(&at_work), name.to_owned());
        std::thread::spawn(move || {
            while let Some(at_work) = seen.upgrade() {
                end_if_hung(&name, &at_work);
                drop(at_work);
                std::thread::sleep(PAUSE);
            }
        });
        Self { at_work }
    }

    /// Notes that this input is at work.
    pub fn watch(&self, input: &[u8]) -> Guard<'_> {
        set(&self.at_work, Some((Instant::now(), input.to_vec())));
        Guard(&self.at_work)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        set(self.0, None);
    }
}

fn set(at_work: &AtWork, input: Option<(Instant, Vec<u8>)>) {
    *at_work.lock().unwrap_or_else(PoisonError::into_inner) = input;
}

fn end_if_hung(name: &str, at_work: &AtWork) {
    let at_work = at_work.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((since, input)) = at_work.as_ref() else {
        return;
    };
    if since.elapsed() < HANG {
        return;
    }
    let path = std::env::temp_dir().join(format!("usher-fuzz-hang-{}", std::process::id()));
    let written = std::fs::write(&path, input);
    eprintln!(
        "{name}: no answer within {HANG:?} to the input in {} ({written:?})",
        path.display()
    );
    std::process::abort();
}
