// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers background programs with the meter, reports their status, and searches for foreground
//! processes that a stopped background program blocks.
//!
//! The search:
//!
//! 1. Skip the search if `background.rs` does not permit one yet, which bounds the cost.
//! 2. Select the background programs that have been stopped for at least 200 ms, and programs that
//!    blocked a process at the last search.
//! 3. Find foreground processes that wait for the processes of these programs or for their
//!    launchers. The search reads the state of every thread of the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use procfs::FromRead;
use procfs::process::Stat;
use usher_meter::{MeterConfig, find_blocked};
use usher_model::{ProcessTree, ProgramId};

use super::clock::thread_cpu_ns;
use super::status::BackgroundStatus;
use super::world::RealWorld;

/// Time for which a program must have been stopped to be searched for processes that it blocks.
const STOPPED_MIN: Duration = Duration::from_millis(200);

/// Returns the pid of the Usher process that launched a program and waits for the program. In
/// contrast to a shell, this process keeps its standard streams open, such as the pipe in `usher bg
/// -- tar c /data | upload`.
fn launcher_of(proc: &Path, root: i32) -> Option<i32> {
    let parent = Stat::from_file(proc.join(root.to_string()).join("stat"));
    let parent = parent.ok()?.ppid;
    let executable = |pid: &str| fs::metadata(proc.join(pid).join("exe")).ok();
    let (own, theirs) = (executable("self")?, executable(&parent.to_string())?);
    let is_usher = (own.dev(), own.ino()) == (theirs.dev(), theirs.ino());
    is_usher.then_some(parent)
}

impl RealWorld {
    /// Registers a background program with the meter.
    pub(super) fn meter_program(&mut self, home: &ProcessTree) {
        let mut config = MeterConfig {
            proc: self.roots.proc.clone(),
            sys: self.roots.sys.clone(),
            ..MeterConfig::default()
        };
        config.ignore.extend(self.ignore.iter().cloned());
        let wakeup = self.requests.wakeup();
        let added = self.state.background.add_program(&config, home, wakeup);
        added.into_iter().for_each(|text| self.warn(text));
    }

    /// Uses the meter from now on if a thread has opened it.
    pub(super) fn take_opened_meter(&mut self) {
        let warnings = self.state.background.take_opened_meter();
        warnings.into_iter().for_each(|text| self.warn(text));
    }

    /// Returns the status of a program's regulation; `None` if the program is foreground work.
    pub(super) fn background_status(
        &mut self,
        id: ProgramId,
        at_ns: u64,
    ) -> Option<BackgroundStatus> {
        let member = self.state.members.get(&id)?;
        let regulation = member.program.background?;
        let background = &mut self.state.background;
        let state = background.states.get(&id).cloned();
        let since_ns = state.as_ref().map_or(member.arrived_ns, |one| one.since_ns);
        let resource = state
            .as_ref()
            .and_then(|one| Some(one.reason.as_ref()?.resource));
        let is_stopped = self.actuator.frozen_since(id).is_some();
        Some(BackgroundStatus {
            regulation,
            since_seconds: at_ns.saturating_sub(since_ns) as f64 * 1e-9,
            resource: resource.map(|resource| background.name_of(resource)),
            user: resource
                .filter(|_| is_stopped)
                .and_then(|resource| background.top_process(resource)),
            lacking: self.actuator.demotion_gaps(id),
            state,
        })
    }

    /// Searches for foreground processes that are blocked by a background program which has
    /// been stopped for a while.
    pub(super) fn find_blocked(&mut self, at_ns: u64) {
        let background = &self.state.background;
        if !background.is_search_due(at_ns) {
            return;
        }
        let is_stopped = |id| {
            let since = self.actuator.frozen_since(id);
            since.is_some_and(|since| since.elapsed() >= STOPPED_MIN)
        };
        let blocked = background.blocked();
        let held_before: BTreeSet<_> = blocked.iter().map(|one| one.blocked_by).collect();
        let members = self.state.members.values();
        let suspects = members.filter(|member| {
            member.program.background.is_some()
                && (is_stopped(member.id()) || held_before.contains(&member.id()))
        });
        let proc = &self.roots.proc;
        let holders: BTreeMap<i32, ProgramId> = suspects
            .flat_map(|member| {
                let processes = self.actuator.processes(member.id()).into_iter();
                let launcher = launcher_of(proc, member.home.root.pid);
                processes.chain(launcher).map(|pid| (pid, member.id()))
            })
            .collect();
        let begun_ns = thread_cpu_ns();
        let blocked = match holders.is_empty() {
            true => Vec::new(),
            false => find_blocked(proc, &|pid| holders.get(&pid).copied()),
        };
        let took_ns = thread_cpu_ns().saturating_sub(begun_ns);
        self.state.background.searched(at_ns, took_ns, blocked);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn the_launcher_is_an_usher_that_is_the_parent() {
        let shell = "sleep 60 & echo $!; exec cat";
        let mut child = std::process::Command::new("sh")
            .args(["-c", shell])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let grandchild: i32 = line.trim().parse().unwrap();
        let proc = Path::new("/proc");
        let own = std::process::id() as i32;
        assert_eq!(launcher_of(proc, child.id() as i32), Some(own));
        assert_eq!(
            launcher_of(proc, grandchild),
            None,
            "a shell is not a launcher"
        );
        // SAFETY: `kill` accesses no memory; it ends the process that the shell of this test
        // started.
        unsafe { libc::kill(grandchild, libc::SIGKILL) };
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(launcher_of(proc, child.id() as i32), None);
    }
}
