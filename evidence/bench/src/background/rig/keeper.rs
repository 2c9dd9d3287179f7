// SPDX-License-Identifier: MIT OR Apache-2.0
//! Undoes the set-up of an experiment, even if the benchmark is killed.
//!
//! A shell in a session of its own waits for the end of its standard input, a pipe held by this
//! process, and then runs the commands that undo. The input ends when the keeper is dropped, and
//! also when this process is killed. The shell starts before anything is set up, so its commands
//! must succeed when there is nothing to undo.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Runs a script when dropped, or when this process ends.
#[derive(Debug)]
pub struct Keeper {
    child: Child,
}

impl Keeper {
    /// Prepares to run `undo`, a shell script.
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

/// A script with its variables set to `values`, quoted.
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
