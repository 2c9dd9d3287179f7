// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `short`: runs 10,000 short programs by `usher run` under a daemon, 32 at a time. The part
//! checks that each program runs, that each exit status is right, and that the memory of the daemon
//! does not grow.

use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::Result;

use crate::bars::{Bar, Part};
use crate::processes::{Daemon, memory_mib, usher};

const PROGRAMS: usize = 10_000;
const AT_ONCE: usize = 32;

/// Runs 10,000 short programs under a daemon, 32 at a time, and computes the part.
pub fn run(binary: &Path) -> Result<Part> {
    let mut part = Part::new("short", "Short programs");
    let dir = tempfile::tempdir()?;
    let daemon = Daemon::start(binary, dir.path(), &[])?;
    let mut wrong = 0;
    let mut memory = Vec::new();
    let mut running: Vec<(usize, Child)> = Vec::new();
    for i in 0..PROGRAMS {
        if running.len() == AT_ONCE {
            let (expected, mut child) = running.remove(0);
            wrong += usize::from(child.wait()?.code() != Some(status_of(expected)));
        }
        let script = format!("exit {}", status_of(i));
        let mut command = usher(binary, dir.path());
        command
            .args(["run", "--", "sh", "-c", &script])
            .stdout(Stdio::null());
        running.push((i, command.spawn()?));
        if i % 1_000 == 999 {
            memory.push(memory_mib(daemon.pid())?);
        }
    }
    for (expected, mut child) in running {
        wrong += usize::from(child.wait()?.code() != Some(status_of(expected)));
    }
    let settled = memory.get(1).copied().unwrap_or(f64::NAN);
    let grown = memory.last().copied().unwrap_or(f64::NAN) - settled;
    part.bars = vec![
        Bar::none(
            format!("programs that were lost or had a wrong exit status, of {PROGRAMS}"),
            wrong,
        ),
        Bar::at_most(
            "growth of the daemon's memory from 2,000 to 10,000 programs",
            grown,
            4.0,
            "MiB",
        ),
    ];
    part.notes = vec![format!(
        "{AT_ONCE} programs ran at a time, each with its own exit status. Memory of the daemon \
         after each thousand programs: {memory:.1?} MiB."
    )];
    part.raw = serde_json::json!({ "wrong": wrong, "memory_mib": memory });
    Ok(part)
}

/// Returns the exit status with which the program number `program` must end.
fn status_of(program: usize) -> i32 {
    (program % 100) as i32
}
