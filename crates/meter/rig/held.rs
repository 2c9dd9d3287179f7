// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds resources that other processes wait for: a file lock, taken with `flock` until the rig's
//! input is closed.

use std::fs::File;
use std::io;

use crate::{report, wait};

/// Holds a lock on a file; waits until the lock is free.
pub fn hold_lock(file: &str) -> io::Result<()> {
    let file = File::open(file)?;
    report("ready")?;
    file.lock()?;
    report("locked")?;
    wait()
}
