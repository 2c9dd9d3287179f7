// SPDX-License-Identifier: GPL-2.0-only
//! The record of a loaded scheduler, `sched.json` in the runtime directory: the next daemon reads
//! it and reports why the scheduler ended if the process that held it was killed.
//!
//! The record is written when the scheduler runs, and removed when the scheduler has ended. A record
//! that exists when a daemon starts therefore belongs to a process that has died. A record that
//! cannot be written, read or parsed is ignored.

use std::fs;
use std::path::{Path, PathBuf};

use super::state::SchedulerState;

fn path(dir: &Path) -> PathBuf {
    dir.join("sched.json")
}

/// Records that this process holds a scheduler. The file is replaced at once, so that a process that
/// is killed meanwhile leaves a whole record.
pub fn keep(dir: &Path, state: &SchedulerState) {
    let Ok(text) = serde_json::to_vec(state) else {
        return;
    };
    let new = dir.join("sched.json.new");
    if fs::write(&new, text).is_err() || fs::rename(&new, path(dir)).is_err() {
        let _ = fs::remove_file(&new);
    }
}

/// Removes the record.
pub fn remove(dir: &Path) {
    let _ = fs::remove_file(path(dir));
}

/// Takes the record of a process that has died. Returns the state of its scheduler, with the reason
/// of the end.
pub fn take(dir: &Path) -> Option<SchedulerState> {
    let text = fs::read(path(dir)).ok()?;
    remove(dir);
    let mut state: SchedulerState = serde_json::from_slice(&text).ok()?;
    let reason = format!(
        "process {}, which held the scheduler, was killed, and the kernel's own scheduler took over",
        state.pid
    );
    state.end(&reason);
    Some(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::scheduler::Phase;

    #[test]
    fn reports_the_process_that_held_the_scheduler() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(take(dir).is_none());
        let mut state = SchedulerState::starting(&Default::default());
        state.pid = 12;
        state.state = Phase::Running;
        keep(dir, &state);
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "a file is left over");
        let last = take(dir).unwrap();
        assert_eq!(last.state, Phase::Ended);
        let reason = last.ended.unwrap();
        assert!(reason.starts_with("process 12, which held"), "{reason}");
        assert!(take(dir).is_none());
        keep(dir, &state);
        remove(dir);
        assert!(take(dir).is_none());
        fs::write(path(dir), "{").unwrap();
        assert!(take(dir).is_none());
    }
}
