// SPDX-License-Identifier: MIT OR Apache-2.0
//! Omits periodic checks of a program at rest.
//!
//! **Idea.** A program that has used no CPU time since a check has created no thread or process,
//! has pinned no thread, and has not continued or stopped. The check would find the same again. The
//! kernel sums up the CPU time of a cgroup, so that one read of an open file replaces the reads of
//! all processes and threads of the program.
//!
//! **Bound.** Other processes can change a program at rest: its masks, its cgroup, or the limits of
//! the cgroup. A check is therefore omitted for at most 5 s ([`REPEAT_NS`]). The kernel counts the
//! CPU time of a running thread at each tick at the latest, so that a check may miss the last tick
//! (at most 10 ms, on `nohz_full` CPUs one second); the next check finds the difference. A program
//! without a cgroup is always checked.

/// Longest time between two checks of a program at rest.
const REPEAT_NS: u64 = 5_000_000_000;

/// One kind of check of one program.
#[derive(Debug, Default)]
pub(super) struct RestCheck {
    /// Time of the last check, and the CPU time of the program before it.
    last: Option<(u64, u64)>,
}

impl RestCheck {
    /// Returns whether the check must be made, and if so, counts it as made. `cpu_ns` is the CPU
    /// time of the program, read before the check; `None` if it is unknown.
    pub fn is_due(&mut self, at_ns: u64, cpu_ns: Option<u64>) -> bool {
        let is_due = !self.can_be_omitted(at_ns, cpu_ns);
        if is_due {
            self.made(at_ns, cpu_ns);
        }
        is_due
    }

    /// Returns whether the program has not run since the last check, so that the next check can be
    /// omitted.
    pub fn can_be_omitted(&self, at_ns: u64, cpu_ns: Option<u64>) -> bool {
        self.last.is_some_and(|(last_ns, last_cpu_ns)| {
            cpu_ns == Some(last_cpu_ns) && at_ns.saturating_sub(last_ns) < REPEAT_NS
        })
    }

    /// Counts a check as made.
    pub fn made(&mut self, at_ns: u64, cpu_ns: Option<u64>) {
        self.last = cpu_ns.map(|cpu_ns| (at_ns, cpu_ns));
    }

    /// Makes the next check due.
    pub fn reset(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_program_at_rest_is_checked_every_five_seconds() {
        let mut check = RestCheck::default();
        let due: Vec<u64> = (1..=12).filter(|s| check.is_due(s * S, Some(7))).collect();
        assert_eq!(due, [1, 6, 11]);
    }

    #[test]
    fn a_program_that_has_run_or_has_an_unknown_cpu_time_is_checked() {
        let mut check = RestCheck::default();
        assert!(check.is_due(S, Some(7)));
        assert!(check.is_due(S, Some(8)));
        assert!(!check.is_due(S, Some(8)));
        assert!(check.is_due(S, None));
        assert!(check.is_due(S, Some(8)), "the CPU time was unknown");
        check.reset();
        assert!(check.is_due(S, Some(8)), "the check was reset");
    }
}
