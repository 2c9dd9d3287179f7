// SPDX-License-Identifier: MIT OR Apache-2.0
//! Undoes the set-up of an experiment, even if the benchmark is killed.
//!
//! 1. A keeper starts a shell in a session of its own. The standard input of the shell is a pipe.
//!    Only this process holds the other end of the pipe.
//! 2. The pipe ends when the keeper is dropped, and also when this process ends or is killed.
//! 3. The shell then runs the script that undoes the set-up.
//!
//! The shell starts before the set-up. The script must therefore succeed if only a part of the
//! set-up exists, or none.
//!
//! Dropping a keeper waits for the end of the script, without a time limit. Errors of the script
//! are not reported.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Runs a shell script when the value is dropped or this process ends.
#[derive(Debug)]
pub struct Keeper {
    child: Child,
}

impl Keeper {
    /// Starts a shell that will run the script `undo`.
    pub fn new(undo: &str) -> Result<Self> {
        let script = "trap '' INT TERM HUP; cat >/dev/null; eval \"$1\"";
        let child = Command::new("setsid")
            .args(["sh", "-c", script, "usher-bench-keeper", undo])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting the shell that removes the set-up after the run")?;
        Ok(Self { child })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The shell ends after the script; `drop` cannot return an error.
        let _ = self.child.wait();
    }
}

/// Runs a command of the set-up. An error contains its command line.
pub fn must(words: &[&str]) -> Result<()> {
    let output = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {}", words[0]))?;
    anyhow::ensure!(
        output.status.success(),
        "{}: {} ({})",
        words.join(" "),
        String::from_utf8_lossy(&output.stderr).trim(),
        output.status
    );
    Ok(())
}

/// Returns the script `body`, preceded by assignments of the quoted `values` to shell variables.
pub fn script(values: &[(&str, &str)], body: &str) -> String {
    let set = values.iter().map(|(name, value)| {
        let quoted = value.replace('\'', r"'\''");
        format!("{name}='{quoted}'\n")
    });
    set.collect::<String>() + body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_keeper_has_undone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("it's here");
        std::fs::write(&file, "").unwrap();
        let values = [("file", file.to_str().unwrap())];
        let keeper = Keeper::new(&script(&values, "rm \"$file\"")).unwrap();
        assert!(file.exists());
        drop(keeper);
        assert!(!file.exists());
    }
}
