// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holding resources that other processes wait for.

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
