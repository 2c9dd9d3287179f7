// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses the value of variables such as `OMP_NUM_THREADS` for a launched program (`--hints`), and
//! the copies of a run that are stored for the next run.
//!
//! 1. In a run with copies, the division with the most copies at a time is stored
//!    ([`CopyRecord`]): the CPUs of its smallest part, and the CPUs of the program. The parts of
//!    waiting copies, such as the resource tracker of Python's fork server, are left out.
//! 2. The next run of the program gets the CPUs of one copy as its number of threads
//!    ([`thread_count`]). On fewer CPUs than in that run, the number is reduced in
//!    proportion, to at least 1. On more CPUs, the number is not increased. If all copies but one
//!    waited, that copy had all CPUs, and the number is not used.
//! 3. A run without copies that used `FORGET_CPU_NS` of CPU time deletes the record
//!    ([`is_outdated`]). A shorter run, such as `make` without work, deletes nothing.
//!
//! Each function takes time in proportion to the number of copies.

use usher_model::StoredCopies;

use super::{CopyState, GroupReport};

/// Minimum CPU time of a run without copies that deletes the copies of earlier runs.
const FORGET_CPU_NS: u64 = 1_000_000_000;

/// Returns the number of threads for the variables of a program; `None`: the variables are not set.
///
/// `always`: the user requests the variables (`--hints`). `cpus`: the number of CPUs that the
/// program may use at its start.
pub fn thread_count(always: bool, stored: Option<StoredCopies>, cpus: u32) -> Option<u32> {
    let has_all = |stored: StoredCopies| {
        stored.program_cpus > 1 && stored.cpus_per_copy == stored.program_cpus
    };
    match stored.filter(|&stored| !has_all(stored)) {
        Some(stored) => {
            let reduced = u64::from(stored.cpus_per_copy) * u64::from(cpus)
                / u64::from(stored.program_cpus.max(1));
            let reduced = u32::try_from(reduced).unwrap_or(u32::MAX);
            Some(stored.cpus_per_copy.min(reduced).max(1))
        }
        None => always.then_some(cpus.max(1)),
    }
}

/// Returns whether the copies of earlier runs are outdated after a run without copies that used
/// this CPU time.
pub fn is_outdated(cpu_ns: u64) -> bool {
    cpu_ns >= FORGET_CPU_NS
}

/// The copies of one run that are stored for the next run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyRecord {
    /// Largest number of copies at a time.
    most: usize,
    stored: Option<StoredCopies>,
}

impl CopyRecord {
    /// Returns whether copies were recognised in this run.
    pub fn has_copies(&self) -> bool {
        self.stored.is_some()
    }

    /// Updates the record by the present copies of a program with this number of CPUs. Returns the
    /// new contents if they changed.
    pub fn update(&mut self, groups: &[GroupReport], program_cpus: usize) -> Option<StoredCopies> {
        let copies = groups.iter().flat_map(|group| &group.copies);
        let count = copies.clone().count();
        let working = copies.filter(|copy| copy.state != CopyState::Waiting);
        let parts = working.map(|copy| copy.cpus.len());
        let smallest = parts.filter(|&cpus| cpus > 0).min()?;
        let number = |cpus: usize| u32::try_from(cpus).unwrap_or(u32::MAX);
        let new = StoredCopies {
            cpus_per_copy: number(smallest),
            program_cpus: number(program_cpus.max(smallest)),
        };
        let is_wider = |old: StoredCopies| new.cpus_per_copy > old.cpus_per_copy;
        let is_better =
            count > self.most || (count == self.most && self.stored.is_none_or(is_wider));
        if !is_better {
            return None;
        }
        self.most = count;
        (self.stored.replace(new) != Some(new)).then_some(new)
    }
}

#[cfg(test)]
mod tests {
    use usher_model::ProcessId;

    use super::super::{CopyReport, CopyState};
    use super::*;

    fn stored(cpus_per_copy: u32, program_cpus: u32) -> StoredCopies {
        StoredCopies {
            cpus_per_copy,
            program_cpus,
        }
    }

    /// A group with a copy on each of these CPU lists.
    fn group(parts: &[&str]) -> GroupReport {
        let copy = |(at, cpus): (usize, &&str)| CopyReport {
            process: ProcessId {
                pid: at as i32 + 10,
                start_ticks: 0,
            },
            cpus: cpus.parse().unwrap(),
            state: CopyState::Confined,
            threads: 1,
        };
        GroupReport {
            launcher: 7,
            name: "worker".to_owned(),
            forked: false,
            narrows_launcher: false,
            copies: parts.iter().enumerate().map(copy).collect(),
        }
    }

    #[test]
    fn a_program_without_copies_gets_a_number_only_on_request() {
        assert_eq!(thread_count(false, None, 8), None);
        assert_eq!(thread_count(true, None, 8), Some(8));
        assert_eq!(thread_count(true, None, 0), Some(1));
    }

    #[test]
    fn a_launcher_of_copies_gets_the_cpus_of_one_copy() {
        for always in [false, true] {
            assert_eq!(thread_count(always, Some(stored(4, 16)), 16), Some(4));
            assert_eq!(thread_count(always, Some(stored(4, 16)), 8), Some(2));
            assert_eq!(thread_count(always, Some(stored(4, 16)), 1), Some(1));
            assert_eq!(thread_count(always, Some(stored(4, 16)), 64), Some(4));
            assert_eq!(thread_count(always, Some(stored(0, 0)), 64), Some(1));
        }
    }

    #[test]
    fn a_copy_that_had_all_cpus_sets_no_number() {
        assert_eq!(thread_count(false, Some(stored(4, 4)), 4), None);
        assert_eq!(thread_count(true, Some(stored(4, 4)), 8), Some(8));
        let one_cpu = Some(stored(1, 1));
        assert_eq!(thread_count(false, one_cpu, 1), Some(1));
    }

    /// Python's fork server (first copy) and its resource tracker (second copy).
    #[test]
    fn the_parts_of_waiting_copies_are_left_out() {
        let mut record = CopyRecord::default();
        let begin = [group(&["0-1", "2-3"])];
        assert_eq!(record.update(&begin, 4), Some(stored(2, 4)));
        let mut server = group(&["0-3", "2-3"]);
        server.copies[1].state = CopyState::Waiting;
        let one_worker = [server.clone()];
        assert_eq!(record.update(&one_worker, 4), Some(stored(4, 4)));
        assert_eq!(record.update(&begin, 4), None, "the tracker works");
        let before = [group(&["0-1", "2-3"]), group(&["0", "1"])];
        assert_eq!(record.update(&before, 4), Some(stored(1, 4)));
        let two_workers = [server, group(&["0-1", "2-3"])];
        assert_eq!(record.update(&two_workers, 4), Some(stored(2, 4)));
    }

    #[test]
    fn the_division_with_the_most_copies_is_stored() {
        let mut record = CopyRecord::default();
        assert_eq!(record.update(&[], 4), None);
        assert!(!record.has_copies());
        let two = [group(&["0-1", "2-3"])];
        assert_eq!(record.update(&two, 4), Some(stored(2, 4)));
        assert_eq!(record.update(&two, 4), None, "no change");
        let three = [group(&["0-1", "2", "3"])];
        assert_eq!(record.update(&three, 4), Some(stored(1, 4)));
        assert_eq!(record.update(&two, 4), None, "copies have ended");
        assert!(record.has_copies());
    }

    #[test]
    fn a_narrower_seat_with_equally_many_copies_changes_nothing() {
        let mut record = CopyRecord::default();
        assert_eq!(record.update(&[group(&["0", "1"])], 2), Some(stored(1, 2)));
        let wide = [group(&["0-1", "2-3"])];
        assert_eq!(record.update(&wide, 4), Some(stored(2, 4)));
        assert_eq!(record.update(&[group(&["0", "1"])], 2), None);
    }

    #[test]
    fn copies_that_are_launchers_count_by_their_own_copies() {
        let mut record = CopyRecord::default();
        let nested = [group(&["0-3", "4-7"]), group(&["0-1", "2-3"])];
        assert_eq!(record.update(&nested, 8), Some(stored(2, 8)));
    }

    #[test]
    fn only_a_run_with_work_and_without_copies_deletes_them() {
        assert!(!is_outdated(999_999_999));
        assert!(is_outdated(1_000_000_000));
    }
}
