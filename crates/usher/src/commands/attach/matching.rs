// SPDX-License-Identifier: GPL-2.0-only
//! The processes that `usher attach --match PATTERN` attaches.
//!
//! 1. The pattern is a glob. It is compared with the file name of the executable, or its path if
//!    the pattern contains a slash, and with the words of the command line, joined by blanks.
//! 2. Processes that must not be attached because of a pattern are left out
//!    (`daemon::rules::candidates`), and so are managed programs.
//! 3. Of the rest, only processes without a matching ancestor are attached, at most 64
//!    ([`PROGRAMS_MAX`]).

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{anyhow, bail, ensure};
use globset::GlobMatcher;
use usher_probe::ProcessFacts;

use crate::answers::Candidate;
use crate::client::ProcessSearch;
use crate::daemon::own_process;
use crate::daemon::rules::candidates::Candidates;
use crate::daemon::rules::file;
use crate::daemon::rules::process::MatchedProcess;

/// Upper limit of the programs that one command attaches.
const PROGRAMS_MAX: usize = 64;

struct Pattern {
    name: Option<GlobMatcher>,
    path: Option<GlobMatcher>,
    command: GlobMatcher,
}

impl Pattern {
    fn new(text: &str) -> Result<Self, String> {
        let has_slash = text.contains('/');
        let executable = file::glob(text, true)?;
        Ok(Self {
            name: (!has_slash).then(|| executable.clone()),
            path: has_slash.then_some(executable),
            command: file::glob(text, false)?,
        })
    }

    fn matches(&self, process: &MatchedProcess) -> bool {
        let executable = process.executable.as_deref();
        let name = executable.and_then(Path::file_name);
        let is_match = |glob: &Option<GlobMatcher>, text: Option<&Path>| match (glob, text) {
            (Some(glob), Some(text)) => glob.is_match(text),
            _ => false,
        };
        is_match(&self.name, name.map(Path::new))
            || is_match(&self.path, executable)
            || self.command.is_match(&process.command)
    }
}

/// Returns the processes to attach.
pub fn find(pattern: &str, runtime_dir: Option<&Path>) -> anyhow::Result<Vec<i32>> {
    let matcher = Pattern::new(pattern).map_err(anyhow::Error::msg)?;
    let proc_root = Path::new("/proc");
    let candidates = Candidates::read(proc_root);
    let own = rustix::process::geteuid().as_raw();
    let mut excluded = None;
    let mut matching = BTreeSet::new();
    for pid in candidates.pids() {
        if !matcher.matches(&MatchedProcess::of_running(proc_root, pid, own)) {
            continue;
        }
        match candidates.check(pid, own) {
            Ok(_) => drop(matching.insert(pid)),
            Err(reason) => excluded = Some(format!("process {pid} is excluded: {reason}")),
        }
    }
    if matching.is_empty() {
        let excluded = excluded.map_or_else(String::new, |text| format!("; {text}"));
        bail!("no process that may be attached matches '{pattern}'{excluded}");
    }
    let roots = candidates.roots(&matching);
    ensure!(
        roots.len() <= PROGRAMS_MAX,
        "'{pattern}' matches {} programs, but at most {PROGRAMS_MAX} are attached at a time; give \
         a narrower pattern",
        roots.len()
    );
    let mut search = ProcessSearch::open(runtime_dir)?;
    let mut left = Vec::new();
    for pid in roots {
        if search.find(pid)?.is_none() {
            left.push(pid);
        }
    }
    ensure!(
        !left.is_empty(),
        "every process that matches '{pattern}' is managed already"
    );
    Ok(left)
}

/// Returns a process that would be attached, with its command line.
///
/// # Errors
/// Why the process cannot be attached.
pub fn checked_candidate(pid: i32, runtime_dir: Option<&Path>) -> anyhow::Result<Candidate> {
    let proc_root = Path::new("/proc");
    let refused = |why: &str| anyhow!("process {pid} cannot be attached: {why}");
    let Ok(facts) = ProcessFacts::read(proc_root, pid) else {
        return Err(refused("it does not exist"));
    };
    let own = rustix::process::geteuid().as_raw();
    if facts.has_ended {
        return Err(refused("it has ended"));
    }
    if facts.is_kernel_thread {
        return Err(refused("it is a kernel thread"));
    }
    if ![0, facts.uids[0]].contains(&own) {
        return Err(refused("it belongs to another user"));
    }
    own_process::check(pid)?;
    if let Some(found) = ProcessSearch::open(runtime_dir)?.find(pid)? {
        let (id, daemon) = (found.id, found.daemon);
        return Err(refused(&format!(
            "it is part of program {id} of {daemon} already"
        )));
    }
    let process = MatchedProcess::of_running(proc_root, pid, own);
    Ok(Candidate {
        pid,
        command: process.command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_executable_or_the_whole_command_line() {
        let process = MatchedProcess {
            executable: Some("/usr/bin/python3.12".into()),
            command: "python3 /home/a/train.py --all".to_owned(),
            cgroup: String::new(),
            uid: 0,
        };
        for (pattern, matches) in [
            ("python3.12", true),
            ("python*", true),
            ("python", false),
            ("/usr/bin/python*", true),
            ("/usr/*", false),
            ("*train.py*", true),
            ("train.py", false),
        ] {
            let pattern_is_met = Pattern::new(pattern).unwrap().matches(&process);
            assert_eq!(pattern_is_met, matches, "{pattern}");
        }
        assert!(Pattern::new("[").is_err() && Pattern::new("").is_err());
    }
}
