// SPDX-License-Identifier: GPL-2.0-only
//! Attaches running processes that match a rule with `attach = true`.
//!
//! 1. A thread lists the pids every 2 s ([`SCAN_EVERY`]) and examines only new ones. Each pid is
//!    examined in two scans, because a process usually executes its program after its start. After
//!    a reload, all pids are examined again.
//! 2. The first rule that matches a process decides. If the rule has `attach = true`, and
//!    [`candidates`] permits it, the engine attaches the process for its owner.
//! 3. A process that was attached before is not attached again, so that `usher detach` lasts. This
//!    includes programs that a user attached or launched and then detached, with all descendants of
//!    the detached process.
//! 4. A process with a descendant that is managed already is not attached, also not after the end
//!    of the descendant. Its other descendants that match a rule are attached one by one.
//!
//! Bounds: one scan makes at most 64 attempts ([`ATTEMPTS_MAX`]); the next scan continues. A
//! program that lives for less than 2 s is usually not found. A process that executes a matching
//! program after its second scan is not found. If a process ends and another one gets its pid
//! between two scans, the new process is not examined. Without such rules, the thread waits for the
//! next reload and costs no CPU time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use usher_act::ActError;
use usher_host::engine::{AdoptOptions, EngineError, EngineHandle};
use usher_model::ProcessId;
use usher_probe::ProcessFacts;

use super::candidates::{self, Candidates};
use super::process::MatchedProcess;
use super::{GivenOptions, Ruleset, SharedRules};
use crate::failure;

/// Interval between two scans.
pub const SCAN_EVERY: Duration = Duration::from_secs(2);
/// Number of scans in which a pid is examined.
const EXAMINED_MAX: u8 = 2;
/// Upper limit of the attempts to attach a program in one scan.
const ATTEMPTS_MAX: usize = 64;

/// Starts the thread. A message on `changed` reports new rules; the thread ends when the sender is
/// gone or the engine has stopped.
///
/// # Errors
/// The thread cannot be started.
pub fn start(engine: EngineHandle, rules: SharedRules, changed: Receiver<()>) -> io::Result<()> {
    let mut scanner = Scanner {
        engine,
        rules,
        examined: BTreeMap::new(),
        attached: BTreeSet::new(),
        divided: BTreeSet::new(),
    };
    let thread = std::thread::Builder::new().name("rules".to_owned());
    thread.spawn(move || scanner.run(&changed)).map(drop)
}

/// The result of an attempt to attach a process with its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attached {
    /// The process is attached, or it and its descendants are not to be attached.
    Done,
    /// A descendant belongs to another program, so the process is not attached.
    Divided,
}

struct Scanner {
    engine: EngineHandle,
    rules: SharedRules,
    /// Number of scans in which a pid was examined.
    examined: BTreeMap<i32, u8>,
    /// Processes that this thread attached.
    attached: BTreeSet<ProcessId>,
    /// Processes that were not attached because of a managed descendant.
    divided: BTreeSet<ProcessId>,
}

impl Scanner {
    fn run(&mut self, changed: &Receiver<()>) {
        loop {
            let rules = self.rules.get();
            if rules.attaches() && self.scan(&rules).is_err() {
                return;
            }
            let waited = match rules.attaches() {
                true => changed.recv_timeout(SCAN_EVERY),
                false => changed.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match waited {
                Ok(()) => self.examined.clear(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Attaches matching processes. Fails when the engine has stopped.
    fn scan(&mut self, rules: &Ruleset) -> Result<(), EngineError> {
        let matching = self.find_matching(rules);
        if matching.is_empty() {
            return Ok(());
        }
        let candidates = Candidates::read(Path::new("/proc"));
        let requester = rustix::process::geteuid().as_raw();
        let mut owners = BTreeMap::new();
        for pid in matching {
            if let Ok(uid) = candidates.check(pid, requester)
                && !self.is_detached(pid, &candidates)
                && self.engine.program_of(pid)?.is_none()
            {
                owners.insert(pid, uid);
            }
        }
        self.attach_trees(&candidates, &owners)
    }

    /// Attaches the roots of the matching processes. `owners` holds the matching processes with
    /// their users. If a descendant of a root is managed already, the other descendants become
    /// roots.
    fn attach_trees(
        &mut self,
        candidates: &Candidates,
        owners: &BTreeMap<i32, u32>,
    ) -> Result<(), EngineError> {
        let mut matching: BTreeSet<i32> = owners.keys().copied().collect();
        let mut attempts = 0;
        while !matching.is_empty() {
            let mut divided = BTreeSet::new();
            for pid in candidates.roots(&matching) {
                attempts += 1;
                if attempts > ATTEMPTS_MAX {
                    self.postpone(pid, candidates, &matching);
                    continue;
                }
                if self.attach(pid, owners[&pid], candidates.name(pid))? == Attached::Divided {
                    divided.insert(pid);
                }
            }
            matching.retain(|&pid| {
                let mut above = candidates.ancestors(pid).skip(1);
                above.any(|pid| divided.contains(&pid))
            });
        }
        Ok(())
    }

    /// Makes the next scan examine a root again, with its descendants, because it may then attach
    /// them one by one.
    fn postpone(&mut self, root: i32, candidates: &Candidates, matching: &BTreeSet<i32>) {
        let is_below = |pid: &&i32| candidates.ancestors(**pid).any(|above| above == root);
        for pid in matching.iter().filter(is_below) {
            self.examined.remove(pid);
        }
    }

    /// Returns whether a user detached the process, or an ancestor of it.
    fn is_detached(&self, pid: i32, candidates: &Candidates) -> bool {
        let proc_root = Path::new("/proc");
        let mut ids = candidates
            .ancestors(pid)
            .filter_map(|pid| ProcessFacts::read(proc_root, pid).ok());
        ids.any(|facts| self.rules.is_detached(&facts.id))
    }

    /// Returns the new processes whose first matching rule has `attach = true`.
    fn find_matching(&mut self, rules: &Ruleset) -> BTreeSet<i32> {
        let proc_root = Path::new("/proc");
        let pids = candidates::pids(proc_root);
        self.examined.retain(|pid, _| pids.contains(pid));
        self.attached.retain(|one| pids.contains(&one.pid));
        self.divided.retain(|one| pids.contains(&one.pid));
        self.rules.retain_detached(|one| pids.contains(&one.pid));
        let mut matching = BTreeSet::new();
        for pid in pids {
            let examined = self.examined.entry(pid).or_default();
            if *examined >= EXAMINED_MAX {
                continue;
            }
            *examined += 1;
            let Ok(facts) = ProcessFacts::read(proc_root, pid) else {
                continue;
            };
            let is_done = self.attached.contains(&facts.id) || self.divided.contains(&facts.id);
            if facts.is_kernel_thread || is_done {
                continue;
            }
            let process = MatchedProcess::of_running(proc_root, pid, facts.uids[0]);
            if rules.first_match(&process).is_some_and(|rule| rule.attach) {
                matching.insert(pid);
            }
        }
        matching
    }

    fn attach(&mut self, pid: i32, uid: u32, name: &str) -> Result<Attached, EngineError> {
        let Ok(facts) = ProcessFacts::read(Path::new("/proc"), pid) else {
            return Ok(Attached::Done);
        };
        let adopt = AdoptOptions {
            review: Some(self.rules.review(GivenOptions::default())),
            ..AdoptOptions::new(Vec::<String>::new())
        };
        match self.engine.attach(pid, adopt, uid) {
            Ok(adopted) => {
                self.attached.insert(facts.id);
                log::info!(
                    "a rule attached process {pid} ({name}) as program {}",
                    adopted.id
                );
            }
            Err(EngineError::Stopped) => return Err(EngineError::Stopped),
            Err(EngineError::Managed { pid: managed, id }) if managed != pid => {
                log::warn!(
                    "a rule could not attach process {pid} ({name}), because its descendant \
                     {managed} already belongs to program {id}: its other descendants that match \
                     a rule are attached one by one"
                );
                self.divided.insert(facts.id);
                return Ok(Attached::Divided);
            }
            Err(
                EngineError::Gone { .. }
                | EngineError::Ended { .. }
                | EngineError::Managed { .. }
                | EngineError::Ignored { .. }
                | EngineError::Act(ActError::Gone { .. }),
            ) => {}
            Err(error) => {
                let line = failure::line(&error.into());
                log::warn!("a rule could not attach process {pid} ({name}): {line}");
            }
        }
        Ok(Attached::Done)
    }
}
