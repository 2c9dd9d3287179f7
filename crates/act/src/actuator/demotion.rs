// SPDX-License-Identifier: MIT OR Apache-2.0
//! Demoting and promoting.
//!
//! What makes a program give way to programs of other sessions is `cpu.idle`
//! on a cgroup of its own, or its sessions' autogroups, and never both: who is
//! in a cgroup of the cpu controller other than the root is in no autogroup.
//! Within that, among its own threads and those that share its session, and
//! for disks, count the values of each thread (`priority.rs`).
//!
//! Everything is left off that could not be taken back, and said.

use std::io;
use std::time::Instant;

use rustix::io::Errno;
use usher_model::{Demotion, ProgramId};

use super::{Actuator, join};
use crate::autogroup::{self, Autogroup};
use crate::backlog::Backlog;
use crate::error::ActError;
use crate::journal::{Dir, DirKind, Record, ThreadId};
use crate::looks::{self, LOOKS_MAX};
use crate::priority::{self, NICE_MAX, Priority, Rights, is_refused};
use crate::{cgroups, files, release};

/// Reasons kept of one program.
const REASONS_MAX: usize = 16;

impl Actuator {
    /// What of the program's present demotion was not done, and why: a
    /// sentence each. Empty where all was done, or it is not demoted.
    pub fn why_not_demoted(&self, program: ProgramId) -> &[String] {
        let held = self.programs.get(&program);
        held.map(|held| held.lacking.as_slice()).unwrap_or_default()
    }

    pub(super) fn demote(&mut self, program: ProgramId, to: Demotion) -> Result<(), ActError> {
        if self.held(program)?.demoted > Some(to) {
            self.promote(program)?;
        }
        let held = self.held(program)?;
        held.lacking.clear();
        held.sessions.clear();
        // Where it fails half-way it is tried again.
        held.demoted = None;
        self.lower(program, to)?;
        let idles = match to {
            Demotion::Idle => {
                self.bound_backlog(program);
                self.idle(program)?
            }
            Demotion::Nice => {
                self.leave_cpu(program)?;
                false
            }
        };
        if !idles {
            self.lower_autogroups(program)?;
        }
        let held = self.held(program)?;
        held.demoted = Some(to);
        held.priorities_since = Some(Instant::now());
        Ok(())
    }

    pub(super) fn promote(&mut self, program: ProgramId) -> Result<(), ActError> {
        let state = self.state(program)?;
        let is_left = state.demoted.is_empty() && !self.has_cpu_dir(program)?;
        let held = self.held(program)?;
        if is_left && held.demoted.is_none() {
            return Ok(());
        }
        held.lacking.clear();
        held.demoted = None;
        held.backlog = None;
        // Threads that are being born now are found by the next refreshes.
        held.priorities_since = Some(Instant::now());
        let errors = release::wake(self.state(program)?);
        if !errors.is_empty() {
            return Err(join(program, errors));
        }
        self.leave_cpu(program)?;
        self.raise(program)?;
        Ok(())
    }

    /// Goes on with what was begun: threads and sessions born meanwhile; when
    /// none was found for long enough, forgets what a promoted program had.
    pub(super) fn follow_priorities(
        &mut self,
        program: ProgramId,
        forked: bool,
    ) -> Result<(), ActError> {
        let held = self.held(program)?;
        let since = held.priorities_since;
        let demoted = held.demoted;
        let changed = match (demoted, since) {
            (None, None) => return Ok(()),
            (None, Some(_)) => {
                self.leave_cpu(program)?;
                self.raise(program)?
            }
            (Some(to), Some(_)) => self.lower(program, to)?,
            (Some(_), None) => false,
        };
        let mut later = false;
        if demoted.is_some() && (forked || since.is_some()) && !self.idles(program)? {
            later = self.lower_autogroups(program)?;
        }
        let is_out = !self.has_cpu_dir(program)? || demoted.is_some();
        let held = self.held(program)?;
        let Some(since) = since else { return Ok(()) };
        if changed || later {
            held.priorities_since = Some(Instant::now());
        } else if since.elapsed() >= release::SETTLE && is_out {
            held.priorities_since = None;
            if demoted.is_none() {
                self.journal.write(Record::Promote { program })?;
            }
        }
        Ok(())
    }

    /// Bounds what of the program's lies in sockets when it is stopped: of the
    /// connections that it opens from now on.
    fn bound_backlog(&mut self, program: ProgramId) {
        let bounded = match self.v2_dir(program) {
            Ok(Some(dir)) => {
                let backlog = self.backlog.get_or_insert_with(Backlog::load);
                let loaded = backlog.as_mut().map_err(|error| error.clone());
                loaded.and_then(|backlog| backlog.bound(&dir))
            }
            _ => Err("it has no cgroup of its own".to_owned()),
        };
        let Some(held) = self.programs.get_mut(&program) else {
            return;
        };
        match bounded {
            Ok(link) => held.backlog = Some(link),
            Err(error) => held.lacking.push(format!(
                "what it has handed to sockets goes on when it is stopped: {error}"
            )),
        }
    }

    /// Gives threads and autogroups what they had; whether there were any.
    fn raise(&self, program: ProgramId) -> Result<bool, ActError> {
        let state = self.state(program)?;
        let pids = || release::pids(&self.procs, state);
        let look = |pids: &_| priority::look(&self.procs, &state.demoted, pids);
        let raised = looks::until_quiet(&self.procs, std::time::Duration::ZERO, pids, look);
        let errors = autogroup::restore(&self.procs, &state.demoted.autogroups);
        match raised {
            Ok(raised) if errors.is_empty() => Ok(raised),
            Ok(_) => Err(join(program, errors)),
            Err(more) => Err(join(program, more.into_iter().chain(errors).collect())),
        }
    }

    /// Lowers every thread, until two looks running find none to lower;
    /// whether there were any.
    fn lower(&mut self, program: ProgramId, to: Demotion) -> Result<bool, ActError> {
        let (mut any, mut quiet) = (false, 0);
        for _ in 0..LOOKS_MAX {
            let pids = release::pids(&self.procs, self.state(program)?);
            let found = looks::threads(&self.procs, &pids);
            if self.lower_all(program, to, &found)? {
                (any, quiet) = (true, 0);
            } else {
                quiet += 1;
            }
            if quiet == 2 {
                break;
            }
        }
        Ok(any)
    }

    /// One look at all threads: first all are noted, then some lowered.
    /// Whether there may be more to do.
    fn lower_all(
        &mut self,
        program: ProgramId,
        to: Demotion,
        found: &[ThreadId],
    ) -> Result<bool, ActError> {
        let all = Rights::are_all(&self.procs);
        let mut to_lower = Vec::new();
        let mut again = false;
        for &thread in found {
            let now = match Priority::of(thread.tid) {
                Ok(now) => now,
                Err(error) => {
                    again |= self.has_lowered(program, thread, Err(error))?;
                    continue;
                }
            };
            let demoted = &self.state(program)?.demoted;
            let before = priority::before(demoted, thread, &now);
            let is_first = demoted.to.is_empty();
            let is_known = demoted.threads.contains_key(&thread);
            let nice_min = match all {
                true => -NICE_MAX - 1,
                false => self.procs.nice_min(thread.pid),
            };
            let rights = Rights { all, nice_min };
            self.say_what_is_left(program, thread, &before, &rights)?;
            let what = priority::to_lower(&now, &before, to, &rights);
            if !is_known && (is_first || what.any()) {
                self.journal.write(Record::Priority {
                    program,
                    thread,
                    before,
                })?;
            }
            if what.any() {
                to_lower.push((thread, now, what));
            }
        }
        let is_told = self.state(program)?.demoted.to.contains(&to);
        if !is_told && !to_lower.is_empty() {
            self.journal.write(Record::Demote { program, to })?;
        }
        for (thread, now, what) in to_lower {
            let lowered = priority::lower(thread.tid, &now, &what);
            again |= self.has_lowered(program, thread, lowered)?;
        }
        Ok(again)
    }

    /// Whether a thread was lowered, or has died and may have left a child.
    fn has_lowered(
        &mut self,
        program: ProgramId,
        thread: ThreadId,
        lowered: io::Result<()>,
    ) -> Result<bool, ActError> {
        match lowered {
            Err(error) if is_refused(&error) => {
                let who = format!("process {}", thread.pid);
                self.lacks(program, format!("{who} keeps its priorities: {error}"))?;
                Ok(false)
            }
            Err(error) if !files::is(&error, Errno::SRCH) => Err(ActError::Process {
                doing: "lowering the priority of thread",
                pid: thread.tid,
                source: error,
            }),
            _ => Ok(true),
        }
    }

    fn say_what_is_left(
        &mut self,
        program: ProgramId,
        thread: ThreadId,
        before: &Priority,
        rights: &Rights,
    ) -> Result<(), ActError> {
        let (pid, tid) = (thread.pid, thread.tid);
        if before.is_deadline() {
            let reason = format!("thread {tid} keeps its deadlines, which only itself can set");
            self.lacks(program, reason)
        } else if !rights.cover(before) {
            let needed = 20 - before.nice;
            let reason = format!(
                "process {pid} keeps its nice value and policy, which nobody here could give \
                 back: needs root, or `ulimit -e {needed}`"
            );
            self.lacks(program, reason)
        } else {
            Ok(())
        }
    }

    /// Notes what was not done; each reason once.
    fn lacks(&mut self, program: ProgramId, reason: String) -> Result<(), ActError> {
        let lacking = &mut self.held(program)?.lacking;
        if !lacking.contains(&reason) && lacking.len() < REASONS_MAX {
            lacking.push(reason);
        }
        Ok(())
    }

    // `cpu.idle`.

    /// Makes a cgroup of the program's own give way; whether there is one.
    fn idle(&mut self, program: ProgramId) -> Result<bool, ActError> {
        let dirs = self.state(program)?.dirs.clone();
        for dir in dirs.iter().filter(|dir| dir.kind == DirKind::V2) {
            if dir.set_idle(true)? {
                return Ok(true);
            }
        }
        let made = dirs.into_iter().find(|dir| dir.kind == DirKind::CpuV1);
        let dir = match made {
            Some(dir) => Ok(dir),
            None => self.make_cpu_dir(program)?,
        };
        let idles = match &dir {
            Ok(dir) => dir.set_idle(true)?,
            Err(_) => false,
        };
        match dir {
            Ok(dir) if idles => self.gather(program, &dir)?,
            Ok(dir) => self.lacks(program, format!("no cpu.idle in {}", dir.dir.display()))?,
            Err(reason) => self.lacks(program, format!("cpu.idle is not used: {reason}"))?,
        }
        Ok(idles)
    }

    fn make_cpu_dir(&mut self, program: ProgramId) -> Result<Result<Dir, String>, ActError> {
        let state = self.state(program)?;
        if state.dirs.is_empty() {
            return Ok(Err("the program has no cgroup of its own".to_owned()));
        }
        let from = state.from.clone();
        let dir = match self.site.idle_dir(program, &from) {
            Ok(dir) => dir,
            Err(reason) => return Ok(Err(reason)),
        };
        match self.make_dir(program, dir.clone(), &from) {
            Ok(()) => Ok(Ok(dir)),
            Err(error) => {
                self.leave_cpu(program)?;
                Ok(Err(error.to_string()))
            }
        }
    }

    /// Moves everybody into the directory that gives way, until a look finds
    /// nobody outside but those that the kernel does not let in.
    fn gather(&mut self, program: ProgramId, dir: &Dir) -> Result<(), ActError> {
        let mut refused = Vec::new();
        for _ in 0..LOOKS_MAX {
            let inside = cgroups::members(&dir.dir);
            let all = release::pids(&self.procs, self.state(program)?);
            let outside = all.difference(&inside).copied();
            let outside = outside.filter(|pid| !refused.contains(pid));
            let outside: Vec<i32> = outside.collect();
            if outside.is_empty() {
                break;
            }
            for pid in outside {
                if let Err(error) = self.bring(program, pid, dir) {
                    refused.push(pid);
                    self.lacks(program, format!("process {pid} stays outside: {error}"))?;
                }
            }
        }
        Ok(())
    }

    fn bring(&mut self, program: ProgramId, pid: i32, dir: &Dir) -> Result<(), ActError> {
        let places = self.site.mounts.places(&self.procs, pid);
        let (Some(process), Some(places)) = (self.procs.get(pid), places) else {
            return Ok(());
        };
        // The dead have left their cgroups.
        if process.is_dead() {
            return Ok(());
        }
        let process = process.id;
        let state = self.state(program)?;
        let known = state.members.get(&process).cloned();
        let is_new = known.is_none();
        let from = known.unwrap_or_else(|| self.origin(state, places));
        if is_new {
            self.journal.write(Record::Member {
                program,
                process,
                from: from.clone(),
            })?;
        }
        cgroups::enter(&dir.dir, pid)?;
        self.put_back_stranger(process, &from)
    }

    /// Whether a cgroup of the program's own gives way.
    fn idles(&self, program: ProgramId) -> Result<bool, ActError> {
        let mut dirs = self.state(program)?.dirs.iter();
        let idles = |dir: &Dir| files::read(&dir.dir.join("cpu.idle")).is_ok_and(|is| is == "1");
        Ok(dirs.any(idles))
    }

    fn has_cpu_dir(&self, program: ProgramId) -> Result<bool, ActError> {
        let mut dirs = self.state(program)?.dirs.iter();
        Ok(dirs.any(|dir| dir.kind == DirKind::CpuV1))
    }

    /// Moves everybody out of the program's cpu directory of cgroup v1, if it
    /// has one, and removes it. Where the dying still hold it, it stands, and
    /// gives way no longer.
    pub(super) fn leave_cpu(&mut self, program: ProgramId) -> Result<(), ActError> {
        let state = self.state(program)?;
        let mut dirs = state.dirs.iter();
        let Some(dir) = dirs.find(|dir| dir.kind == DirKind::CpuV1) else {
            return Ok(());
        };
        let dir = dir.dir.clone();
        let mut errors = release::wake(state);
        errors.extend(release::leave_cpu(&self.procs, state));
        if !errors.is_empty() {
            return Err(join(program, errors));
        }
        match cgroups::remove(&dir)? {
            true => self.journal.write(Record::Gone { program, dir }),
            false => Ok(()),
        }
    }

    // Autogroups.

    /// Lowers the autogroups of sessions that are all the program's own;
    /// whether the kernel wants some to be tried again later.
    fn lower_autogroups(&mut self, program: ProgramId) -> Result<bool, ActError> {
        let known = self.held(program)?.sessions.clone();
        let state = self.state(program)?;
        let pids = || release::pids(&self.procs, state);
        let is_new = |pid: &i32| {
            let process = self.procs.get(*pid);
            process.is_some_and(|one| !known.contains(&one.session))
        };
        if !pids().iter().any(is_new) {
            return Ok(false);
        }
        self.note_outer_session(program)?;
        let state = self.state(program)?;
        let pids = || release::pids(&self.procs, state);
        let mut sessions = autogroup::sessions(&self.procs, pids);
        sessions.retain(|session, _| !known.contains(session));
        let members = pids();
        let mut later = false;
        for (session, is_own) in sessions {
            let of_it = |pid: &&i32| {
                let process = self.procs.get(**pid);
                process.is_some_and(|process| process.session == session)
            };
            let member = members.iter().find(of_it).copied();
            let done = match (is_own, member) {
                (true, Some(pid)) => self.lower_autogroup(program, session, pid)?,
                (true, None) => true,
                (false, _) => {
                    let reason = format!(
                        "the autogroup of session {session} keeps its share, as others than the \
                         program are in it: start the program with setsid"
                    );
                    self.lacks(program, reason)?;
                    true
                }
            };
            if done {
                self.held(program)?.sessions.insert(session);
            }
            later |= !done;
        }
        Ok(later)
    }

    /// A session that was begun outside this PID namespace has the number 0 in
    /// it: who else is in it cannot be seen.
    fn note_outer_session(&mut self, program: ProgramId) -> Result<(), ActError> {
        let pids = release::pids(&self.procs, self.state(program)?);
        let mut processes = pids.into_iter().filter_map(|pid| self.procs.get(pid));
        if processes.any(|process| process.session == 0) && self.held(program)?.sessions.insert(0) {
            let reason = "the autogroup of its session keeps its share, as the session was begun \
                          outside this container: start the program with setsid";
            self.lacks(program, reason.to_owned())?;
        }
        Ok(())
    }

    /// Whether that is done, or will never be.
    fn lower_autogroup(
        &mut self,
        program: ProgramId,
        session: i32,
        pid: i32,
    ) -> Result<bool, ActError> {
        let what = format!("the autogroup of session {session} keeps its share");
        let mut autogroup = match Autogroup::of(&self.procs, pid) {
            Ok(Some(autogroup)) if autogroup.nice != NICE_MAX => autogroup,
            Ok(_) => return Ok(true),
            Err(error) => {
                self.lacks(program, format!("{what}: {error}"))?;
                return Ok(true);
            }
        };
        if autogroup.nice < 0 && !Rights::are_all(&self.procs) {
            self.lacks(
                program,
                format!("{what}, which nobody here could give back"),
            )?;
            return Ok(true);
        }
        self.journal.write(Record::Autogroup {
            program,
            autogroup: autogroup.number,
            session,
            nice: autogroup.nice,
        })?;
        match autogroup.set(NICE_MAX) {
            Err(error) if files::is(&error, Errno::AGAIN) => Ok(false),
            Err(error) if !files::is_gone(&error) => {
                self.lacks(program, format!("{what}: {error}"))?;
                Ok(true)
            }
            _ => Ok(true),
        }
    }
}
