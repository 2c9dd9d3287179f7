// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's report about the end of a scheduler: the error message, and the file `sched.dump`
//! in the runtime directory, which contains the kernel's dump of the CPUs and the waiting threads.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use usher_scx::Ending;

use crate::failure;

/// Returns the path of the file with the kernel's dump about the end of a scheduler.
pub fn dump_path(dir: &Path) -> PathBuf {
    dir.join("sched.dump")
}

/// Returns whether the file existed.
pub fn remove(path: &Path) -> anyhow::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("removing {}", path.display())),
    }
}

/// Makes the error for a scheduler that the kernel has ended. The kernel's dump is written before
/// the state changes, so that a client that reads the state finds the dump.
pub fn end_error(dir: &Path, ending: &Ending) -> anyhow::Error {
    let why = match ending.message.is_empty() {
        true => ending.reason.clone(),
        false => format!("{}: {}", ending.reason, ending.message),
    };
    let dump = match write_dump(dir, &ending.dump) {
        Ok(None) => String::new(),
        Ok(Some(path)) => format!("; the kernel's dump is in {}", path.display()),
        Err(error) => format!("; the kernel's dump is lost ({})", failure::line(&error)),
    };
    anyhow!("the kernel ended the scheduler ({why}){dump}")
}

/// Writes the kernel's dump. Returns its path; `None` if the kernel gave none.
fn write_dump(dir: &Path, dump: &str) -> anyhow::Result<Option<PathBuf>> {
    if dump.is_empty() {
        return Ok(None);
    }
    let path = dump_path(dir);
    if let Err(error) = fs::write(&path, dump) {
        // A partial dump is removed, because it would occupy space of the runtime directory that
        // the journal needs.
        let _ = fs::remove_file(&path);
        return Err(error).with_context(|| format!("writing {}", path.display()));
    }
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall(dump: &str) -> Ending {
        Ending {
            kind: 1026,
            code: 0,
            reason: "runnable task stall".to_owned(),
            message: "make[7] for 30 s".to_owned(),
            dump: dump.to_owned(),
        }
    }

    const STALLED: &str = "the kernel ended the scheduler (runnable task stall: make[7] for 30 s)";

    #[test]
    fn reports_why_the_kernel_ended_it_without_a_dump() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let report = |dump: &str| failure::line(&end_error(dir, &stall(dump)));
        assert_eq!(report(""), STALLED);
        assert!(!dump_path(dir).exists());
        let path = dump_path(dir);
        let is_there = format!("{STALLED}; the kernel's dump is in {}", path.display());
        assert_eq!(report("CPU states"), is_there);
        assert_eq!(fs::read_to_string(&path).unwrap(), "CPU states");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let lost = report("CPU states");
        let begins = format!(
            "{STALLED}; the kernel's dump is lost (writing {}",
            path.display()
        );
        assert!(lost.starts_with(&begins), "{lost}");
    }
}
