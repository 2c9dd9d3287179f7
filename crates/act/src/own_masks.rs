// SPDX-License-Identifier: MIT OR Apache-2.0
//! Remembers in memory which masks a program itself set for its threads, and which masks Usher gave
//! to its copies. The journal does not distinguish the masks of different copies, so that after a
//! restart of Usher, a mask that Usher gave to any copy of the program counts as Usher's.

use std::collections::BTreeMap;

use usher_model::{CpuSet, ProcessId};

use crate::journal::ThreadId;
use crate::mask;
use crate::procs::Procs;

/// Upper limit of the different masks of joined trees that are kept.
const JOINED_MASKS_MAX: usize = 64;

/// The masks that a program itself set for its threads, as far as Usher has seen them, and the
/// masks of single processes of the program.
#[derive(Debug, Default)]
pub(crate) struct OwnMasks {
    /// The CPUs that at least one thread of the program could use at admission.
    pub initial: Option<CpuSet>,
    /// The different masks of the process trees that joined the program, the newest last. At most
    /// [`JOINED_MASKS_MAX`] are kept. A thread whose mask was dropped counts as pinned.
    pub joined: Vec<CpuSet>,
    /// The pinned threads that were found when a seat was applied, with their masks. If a later
    /// seat has the same CPUs as such a mask, this map shows that the program, not Usher, set the
    /// mask. The journal records the mask as the thread's former mask.
    pub pinned: BTreeMap<ThreadId, CpuSet>,
    /// The parts of the seat to which copies inside the program are confined, by process.
    pub copies: BTreeMap<ProcessId, CpuSet>,
    /// The masks that Usher gave to each thread of a copy or of a launcher, the present mask last. If
    /// a thread has another mask, the program set it, even if Usher gave this mask to another copy.
    pub given: BTreeMap<ThreadId, Vec<CpuSet>>,
}

impl OwnMasks {
    /// Returns the mask of a tree of the program at its admission that equals this mask within the
    /// `online` CPUs.
    pub fn initial_equal(&self, mask: &CpuSet, online: &CpuSet) -> Option<&CpuSet> {
        let mut masks = self.initial.iter().chain(&self.joined);
        masks.find(|one| one.and(online) == *mask)
    }

    /// Records the CPUs that a process tree could use when it joined the program.
    pub fn note_joined(&mut self, mask: &CpuSet) {
        self.joined.retain(|one| one != mask);
        self.joined.push(mask.clone());
        let surplus = self.joined.len().saturating_sub(JOINED_MASKS_MAX);
        self.joined.drain(..surplus);
    }

    /// Records a mask of a thread of a copy.
    pub fn note_given(&mut self, thread: ThreadId, mask: &CpuSet) {
        let masks = self.given.entry(thread).or_default();
        masks.retain(|one| one != mask);
        masks.push(mask.clone());
    }

    /// Records the present masks of a process to which Usher gave masks.
    pub fn note_restored(&mut self, pid: i32) {
        let threads = self.given.keys().copied();
        let threads: Vec<ThreadId> = threads.filter(|thread| thread.pid == pid).collect();
        for thread in threads {
            if let Ok(mask) = mask::get(thread.tid) {
                self.note_given(thread, &mask);
            }
        }
    }

    /// Returns whether a thread of a copy has a mask that neither Usher gave it nor the program had
    /// at its admission. `current` is the mask of the thread, within the `online` CPUs. A part of the
    /// given mask does not count, because CPUs that go offline and cpusets narrow masks, too.
    pub fn is_chosen_by_copy(&self, thread: ThreadId, current: &CpuSet, online: &CpuSet) -> bool {
        let given = self.given.get(&thread).and_then(|masks| masks.last());
        given.is_some_and(|given| !current.is_subset(given))
            && self.initial.is_some()
            && self.initial_equal(current, online).is_none()
    }

    /// Returns whether the main thread of a copy has a mask that the program itself set after Usher
    /// had confined the copy.
    pub fn has_chosen(&self, procs: &Procs, process: ProcessId) -> bool {
        let mut threads = self.given.range(ThreadId::range(process.pid, process.pid));
        let (Some((&thread, given)), Ok(current)) = (threads.next(), mask::get(process.pid)) else {
            return false;
        };
        // The online CPUs are read only if the masks differ.
        given.last() != Some(&current)
            && self.is_chosen_by_copy(thread, &current, &procs.online_cpus())
    }

    /// Forgets the copies that do not fulfil the condition, and the masks of ended threads.
    pub fn retain_copies(&mut self, lives: impl Fn(ProcessId) -> bool) {
        self.copies.retain(|&process, _| lives(process));
        self.given.retain(|thread, _| mask::get(thread.tid).is_ok());
    }

    /// Forgets the pins and the copies of all processes that do not fulfil the condition.
    pub fn retain_processes(&mut self, keeps: impl Fn(i32) -> bool) {
        self.pinned.retain(|thread, _| keeps(thread.pid));
        self.copies.retain(|process, _| keeps(process.pid));
        self.given.retain(|thread, _| keeps(thread.pid));
    }

    /// Forgets all copies, because their masks are about to be restored.
    pub fn forget_copies(&mut self) {
        self.copies.clear();
        self.given.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_joined_trees_are_different_and_bounded() {
        let mut own = OwnMasks::default();
        let mask = |cpu: u32| cpu.to_string().parse::<CpuSet>().unwrap();
        for cpu in [0, 1, 0, 0] {
            own.note_joined(&mask(cpu));
        }
        assert_eq!(own.joined, [mask(1), mask(0)]);
        (0..1000).for_each(|cpu| own.note_joined(&mask(cpu)));
        assert_eq!(own.joined.len(), JOINED_MASKS_MAX);
        assert_eq!(own.joined.last(), Some(&mask(999)));
    }
}
