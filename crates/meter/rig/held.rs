// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holding what others wait for.

use std::fs::File;
use std::io;

use crate::{tell, wait};

/// Holds a lock on a file; waits for it where another has it.
pub fn hold_lock(file: &str) -> io::Result<()> {
    let file = File::open(file)?;
    tell("ready")?;
    file.lock()?;
    tell("locked")?;
    wait()
}
