// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state that results from the lines of a journal: the changes that would have to be undone if
//! the process ended now.
//!
//! [`JournalState::apply`] applies a line to the state. Applying a line twice has the same effect
//! as once. [`JournalState::records`] returns the fewest lines with the same state, with which a
//! growing journal is rewritten. The state keeps at most 256 masks per program; other parts grow
//! with the number of recorded processes and threads. [`JournalState::apply`] costs a few map
//! operations, and for a mask or a directory a search in the program's at most 256 masks or in its
//! directories. [`JournalState::records`] takes time in proportion to the state.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use usher_model::{CpuSet, Demotion, ProcessId, ProgramId};

use super::record::{CgroupPaths, Dir, JournalHeader, Priority, Record, ThreadId};

/// Upper limit of the masks that the state keeps for one program. A seat adds one mask for each
/// different mask that the program's threads had. When the limit is reached, the oldest masks are
/// dropped. Only a thread that no scan has found for that long can still have a dropped mask.
const MASKS_MAX: usize = 256;

/// The changes of one program that remain to be undone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramState {
    /// The cgroups to which the undo moves processes that were created in the program's
    /// directories.
    pub from: CgroupPaths,
    /// Directories made for the program, in the order of creation.
    pub dirs: Vec<Dir>,
    /// Admitted processes, with their former cgroups.
    pub members: BTreeMap<ProcessId, CgroupPaths>,
    /// Affinity masks that Usher gave to threads of the program, the newest last.
    pub masks: Vec<CpuSet>,
    /// The mask that each thread had before Usher first gave it a mask.
    pub threads: BTreeMap<ThreadId, CpuSet>,
    /// The program's mask at admission, to which the undo sets threads that were created with a
    /// mask of Usher's.
    pub unbound: Option<CpuSet>,
    /// The roots of the process trees that joined the program after its admission, each with the
    /// mask of its tree at that time.
    pub joined: BTreeMap<ProcessId, CpuSet>,
    /// Processes that were sent `SIGSTOP`.
    pub stopped: BTreeSet<ProcessId>,
    /// Whether Usher froze the cgroup in which the program was found.
    pub frozen: bool,
    /// The changes of the program's priorities.
    pub demoted: DemotionState,
}

/// The changes of a demotion that remain to be undone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DemotionState {
    /// The degrees of demotion that threads of the program have got.
    pub to: BTreeSet<Demotion>,
    /// The priority of each thread before its demotion.
    pub threads: BTreeMap<ThreadId, Priority>,
    /// The former priority of the thread that was demoted first. The undo sets threads to it that
    /// were created while the program was demoted.
    pub inborn: Option<Priority>,
    /// Whether nice values were changed that this instance cannot restore for lack of privileges.
    pub permanent: bool,
    /// The former states of the autogroups to which Usher gave nice 19, by the kernel's number of
    /// the autogroup.
    pub autogroups: BTreeMap<u64, Autogroup>,
}

/// The former state of a session's autogroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Autogroup {
    /// The session.
    pub session: i32,
    /// Nice value of the autogroup.
    pub nice: i32,
}

/// The changes of one instance that remain to be undone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalState {
    /// Identifies the instance.
    pub head: Option<JournalHeader>,
    /// Directories of the instance, in the order of creation (only version 1).
    pub bases: Vec<PathBuf>,
    /// Directories with the cpuset controller enabled for their children (version 1).
    pub enabled: Vec<PathBuf>,
    /// The programs that were admitted and have not departed.
    pub programs: BTreeMap<ProgramId, ProgramState>,
}

impl JournalState {
    /// Applies a line to the state. Applying a line twice has the same effect as once.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Open(head) => self.head = Some(head),
            Record::Base { dir } => push_new(&mut self.bases, dir),
            Record::Enable { dir } => push_new(&mut self.enabled, dir),
            Record::Begin { program, from } => self.program(program).from = from,
            Record::Dir { program, dir } => push_new(&mut self.program(program).dirs, dir),
            Record::Member {
                program,
                process,
                from,
            } => {
                self.program(program).members.entry(process).or_insert(from);
            }
            Record::Mask { program, cpus } => self.program(program).add_mask(cpus),
            Record::Thread {
                program,
                thread,
                before,
            } => {
                let state = self.program(program);
                state.unbound.get_or_insert_with(|| before.clone());
                state.threads.entry(thread).or_insert(before);
            }
            Record::Own {
                program,
                thread,
                mask,
            } => {
                self.program(program).threads.insert(thread, mask);
            }
            Record::Unbound { program, before } => {
                self.program(program).unbound.get_or_insert(before);
            }
            Record::Joined {
                program,
                process,
                before,
            } => {
                let state = self.program(program);
                state.joined.entry(process).or_insert(before);
            }
            Record::Unmask { program } => {
                let state = self.program(program);
                state.masks.clear();
                state.threads.clear();
                state.unbound = None;
            }
            Record::Stop { program, process } => {
                self.program(program).stopped.insert(process);
            }
            Record::Freeze { program } => self.program(program).frozen = true,
            Record::Continue { program } => {
                let state = self.program(program);
                state.stopped.clear();
                state.frozen = false;
            }
            Record::Gone { program, dir } => self.program(program).dirs.retain(|d| d.dir != dir),
            Record::Close { program } => {
                self.programs.remove(&program);
            }
            Record::Demote { program, .. }
            | Record::Priority { program, .. }
            | Record::Permanent { program }
            | Record::Inborn { program, .. }
            | Record::Autogroup { program, .. } => self.program(program).demoted.apply(record),
        }
    }

    fn program(&mut self, program: ProgramId) -> &mut ProgramState {
        self.programs.entry(program).or_default()
    }

    /// Returns the fewest lines that result in this state.
    pub fn records(&self) -> Vec<Record> {
        let mut records: Vec<Record> = self.head.iter().cloned().map(Record::Open).collect();
        let bases = self.bases.iter().cloned();
        records.extend(bases.map(|dir| Record::Base { dir }));
        let enabled = self.enabled.iter().cloned();
        records.extend(enabled.map(|dir| Record::Enable { dir }));
        for (&program, state) in &self.programs {
            state.records(program, &mut records);
        }
        records
    }
}

impl ProgramState {
    /// Returns the changes of these processes alone, without the program's cgroups. `unbound` is the
    /// mask that new threads of these processes would have without Usher.
    pub fn of_processes(&self, pids: &BTreeSet<i32>, unbound: &CpuSet) -> Self {
        let mut state = self.clone();
        state.retain_processes(|pid| pids.contains(&pid));
        state.dirs.clear();
        state.frozen = false;
        state.unbound = Some(unbound.clone());
        state
    }

    /// Drops the changes of all processes that do not fulfil the condition.
    pub fn retain_processes(&mut self, keeps: impl Fn(i32) -> bool) {
        self.members.retain(|process, _| keeps(process.pid));
        self.threads.retain(|thread, _| keeps(thread.pid));
        self.joined.retain(|process, _| keeps(process.pid));
        self.stopped.retain(|process| keeps(process.pid));
        let demoted = &mut self.demoted;
        demoted.threads.retain(|thread, _| keeps(thread.pid));
        demoted.autogroups.retain(|_, one| keeps(one.session));
    }

    fn add_mask(&mut self, cpus: CpuSet) {
        self.masks.retain(|mask| *mask != cpus);
        self.masks.push(cpus);
        let surplus = self.masks.len().saturating_sub(MASKS_MAX);
        self.masks.drain(..surplus);
    }

    fn records(&self, program: ProgramId, records: &mut Vec<Record>) {
        let from = self.from.clone();
        records.push(Record::Begin { program, from });
        records.extend(
            self.dirs
                .iter()
                .cloned()
                .map(|dir| Record::Dir { program, dir }),
        );
        records.extend(self.members.iter().map(|(&process, from)| Record::Member {
            program,
            process,
            from: from.clone(),
        }));
        records.extend(
            self.masks
                .iter()
                .cloned()
                .map(|cpus| Record::Mask { program, cpus }),
        );
        // This line must precede the `thread` lines. The thread with this mask may have ended,
        // while threads that inherited a mask of Usher's still live.
        let unbound = self.unbound.iter().cloned();
        records.extend(unbound.map(|before| Record::Unbound { program, before }));
        let line = |(&thread, mask): (&ThreadId, &CpuSet)| match self.unbound {
            Some(_) => Record::Thread {
                program,
                thread,
                before: mask.clone(),
            },
            // An `own` line is written instead of a `thread` line, because a `thread` line would
            // also become the former mask of threads that inherited a mask of Usher's.
            None => Record::Own {
                program,
                thread,
                mask: mask.clone(),
            },
        };
        records.extend(self.threads.iter().map(line));
        let joined = self.joined.iter();
        records.extend(joined.map(|(&process, before)| Record::Joined {
            program,
            process,
            before: before.clone(),
        }));
        records.extend(
            self.stopped
                .iter()
                .map(|&process| Record::Stop { program, process }),
        );
        if self.frozen {
            records.push(Record::Freeze { program });
        }
        self.demoted.records(program, records);
    }
}

impl DemotionState {
    fn apply(&mut self, record: Record) {
        match record {
            Record::Demote { to, .. } => {
                self.to.insert(to);
            }
            Record::Priority { thread, before, .. } => {
                self.inborn.get_or_insert(before);
                self.threads.entry(thread).or_insert(before);
            }
            Record::Permanent { .. } => self.permanent = true,
            Record::Inborn { before, .. } => {
                self.inborn.get_or_insert(before);
            }
            Record::Autogroup {
                autogroup,
                session,
                nice,
                ..
            } => {
                let before = Autogroup { session, nice };
                self.autogroups.entry(autogroup).or_insert(before);
            }
            _ => {}
        }
    }

    fn records(&self, program: ProgramId, records: &mut Vec<Record>) {
        if self.permanent {
            records.push(Record::Permanent { program });
        }
        let inborn = self.inborn.iter();
        records.extend(inborn.map(|&before| Record::Inborn { program, before }));
        let threads = self.threads.iter();
        records.extend(threads.map(|(&thread, &before)| Record::Priority {
            program,
            thread,
            before,
        }));
        let to = self.to.iter();
        records.extend(to.map(|&to| Record::Demote { program, to }));
        let autogroups = self.autogroups.iter();
        records.extend(autogroups.map(|(&autogroup, before)| Record::Autogroup {
            program,
            autogroup,
            session: before.session,
            nice: before.nice,
        }));
    }
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}
