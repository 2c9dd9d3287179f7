// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a journal amounts to: what would have to be undone now.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use usher_model::{CpuSet, Demotion, ProcessId, ProgramId};

use super::record::{Dir, Head, Record, ThreadId};
use crate::mounts::Places;
use crate::priority::Priority;

/// Masks remembered for one program. A seat gives as many as the program's
/// threads had different masks of their own; older ones are carried only by
/// threads that no look has found since.
const MASKS_MAX: usize = 256;

/// What is to be undone of one program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramState {
    /// Where processes born inside go.
    pub from: Places,
    /// Directories made for it, in the order of making.
    pub dirs: Vec<Dir>,
    /// Processes taken in, and where each came from.
    pub members: BTreeMap<ProcessId, Places>,
    /// Affinity masks that threads were given, the newest last.
    pub masks: Vec<CpuSet>,
    /// The mask of each thread before it got the first of ours.
    pub threads: BTreeMap<ThreadId, CpuSet>,
    /// The mask of the program before: for threads born with ours.
    pub unbound: Option<CpuSet>,
    /// Processes that were sent `SIGSTOP`.
    pub stopped: BTreeSet<ProcessId>,
    /// Whether the cgroup that it was found in was frozen by us.
    pub frozen: bool,
    /// How its priorities were lowered.
    pub demoted: Demoted,
}

/// What is to be undone of a demotion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Demoted {
    /// How far its threads were demoted, at one time or another.
    pub to: BTreeSet<Demotion>,
    /// The priority of each thread before.
    pub threads: BTreeMap<ThreadId, Priority>,
    /// The priority of the first thread that was demoted: for threads born so.
    pub inborn: Option<Priority>,
    /// Whether nice values were lowered that this instance may not raise.
    pub permanent: bool,
    /// Autogroups that were given nice 19.
    pub autogroups: BTreeMap<u64, Autogroup>,
}

/// What a session's autogroup was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Autogroup {
    /// The session that it belongs to.
    pub session: i32,
    /// Its nice value.
    pub nice: i32,
}

/// What is to be undone of one instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Whose it is.
    pub head: Option<Head>,
    /// Directories of the instance, in the order of making (version 1).
    pub bases: Vec<PathBuf>,
    /// Directories for whose children cpuset was enabled (version 1).
    pub enabled: Vec<PathBuf>,
    /// The programs that were taken in and not let go.
    pub programs: BTreeMap<ProgramId, ProgramState>,
}

impl State {
    /// Adds a line. The same line twice is the same as once.
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

    /// The fewest lines that amount to the same.
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
        // That of the first thread ever, which may be gone, while threads that
        // were born with our masks live.
        let unbound = self.unbound.iter().cloned();
        records.extend(unbound.map(|before| Record::Unbound { program, before }));
        let line = |(&thread, mask): (&ThreadId, &CpuSet)| match self.unbound {
            Some(_) => Record::Thread {
                program,
                thread,
                before: mask.clone(),
            },
            // A `thread` line would show what others had, too.
            None => Record::Own {
                program,
                thread,
                mask: mask.clone(),
            },
        };
        records.extend(self.threads.iter().map(line));
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

impl Demoted {
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
