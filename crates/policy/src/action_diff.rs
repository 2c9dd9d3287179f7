// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the actions that lead from the present state of the machine to the desired state:
//! seats, releases, freezes and thaws.
//!
//! [`ActionDiff`] stores the last requested state of each program.
//!
//! 1. An action is returned only for a program whose desired state differs from the stored state.
//! 2. A failed action makes the state of its program unknown. A failed seat, freeze or thaw is
//!    requested again after each failure, without a limit. A failed release is requested again
//!    while at most 8 seats and releases of the program have failed. Failed demotions are not
//!    stored.
//! 3. Seats that only give up CPUs precede seats that take CPUs, and freezes precede thaws. Two
//!    owners thus do not use a CPU at the same time, unless an action fails or two programs
//!    exchange CPUs.
//!
//! A call takes linearithmic time in the number of programs.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::{Action, CpuSet, FailedAction, ProgramId};

/// Desired CPUs of each program; `None`: all CPUs that the program could use before Usher
/// restricted it.
pub type DesiredSeats = BTreeMap<ProgramId, Option<CpuSet>>;

/// Stores the last requested state of each program. A policy stores that state nowhere else.
#[derive(Debug, Clone, Default)]
pub struct ActionDiff {
    issued: DesiredSeats,
    /// Programs whose seat is unknown, because an action on their seat failed.
    retries: BTreeMap<ProgramId, RetryState>,
    frozen: BTreeSet<ProgramId>,
    /// Programs that may be stopped, running or partly stopped, because a freeze or a thaw has
    /// failed.
    uncertain: BTreeSet<ProgramId>,
}

#[derive(Debug, Clone, Copy, Default)]
struct RetryState {
    failures: u32,
    open: bool,
}

/// Number of failed seats and releases of a program up to which a failed release is requested
/// again. After more failures, only the undo at the end of the program removes the seat. The count
/// is never reset while the program is present.
const RELEASES_MAX: u32 = 8;

impl ActionDiff {
    /// Removes a departed program.
    pub fn forget(&mut self, program: ProgramId) {
        self.issued.remove(&program);
        self.retries.remove(&program);
        self.frozen.remove(&program);
        self.uncertain.remove(&program);
    }

    /// Marks failed actions as not done: the next [`Self::move_to`] requests them again, releases
    /// included.
    pub fn mark_failed(&mut self, failed: &[FailedAction]) {
        for failure in failed {
            match &failure.action {
                Action::Seat { program, .. } | Action::Release { program } => {
                    self.issued.remove(program);
                    let retry = self.retries.entry(*program).or_default();
                    retry.failures += 1;
                    retry.open = true;
                }
                Action::Freeze { program } | Action::Thaw { program } => {
                    self.uncertain.insert(*program);
                }
                Action::Demote { .. } => {}
            }
        }
    }

    /// Returns the actions that lead to `wanted`: first the seats that only give up CPUs, then the
    /// seats that take CPUs. Two owners thus do not use a CPU at the same time, unless they
    /// exchange CPUs. Programs that are missing in `wanted` keep their state.
    pub fn move_to(&mut self, wanted: &DesiredSeats) -> Vec<Action> {
        let mut shrinks = Vec::new();
        let mut grows = Vec::new();
        for (&program, place) in wanted {
            let before = self.issued.get(&program).cloned().unwrap_or(None);
            if before == *place && !self.must_retry(program) {
                continue;
            }
            match place {
                Some(cpus) if before.as_ref().is_none_or(|old| cpus.is_subset(old)) => {
                    shrinks.push(Action::Seat {
                        program,
                        cpus: cpus.clone(),
                    });
                }
                Some(cpus) => grows.push(Action::Seat {
                    program,
                    cpus: cpus.clone(),
                }),
                None => grows.push(Action::Release { program }),
            }
            self.issued.insert(program, place.clone());
        }
        shrinks.append(&mut grows);
        shrinks
    }

    /// Returns whether an action must be requested again although the desired seat equals the
    /// stored seat; true once per failure.
    fn must_retry(&mut self, program: ProgramId) -> bool {
        let retry = self.retries.get_mut(&program);
        retry.is_some_and(|retry| std::mem::take(&mut retry.open) && retry.failures <= RELEASES_MAX)
    }

    /// Returns whether a freeze of any program was requested.
    pub fn has_frozen(&self) -> bool {
        !self.frozen.is_empty()
    }

    /// Returns the actions after which exactly the programs with the value `true` are frozen.
    /// Freezes come first, so that two programs never use a CPU at the same time.
    pub fn freeze_where(
        &mut self,
        programs: impl IntoIterator<Item = (ProgramId, bool)>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut thaws = Vec::new();
        for (program, wanted) in programs {
            let uncertain = self.uncertain.remove(&program);
            let changes = match wanted {
                true => self.frozen.insert(program),
                false => self.frozen.remove(&program),
            };
            match wanted {
                _ if !(changes || uncertain) => {}
                true => actions.push(Action::Freeze { program }),
                false => thaws.push(Action::Thaw { program }),
            }
        }
        actions.append(&mut thaws);
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(places: &[(u64, Option<&str>)]) -> DesiredSeats {
        places
            .iter()
            .map(|&(id, cpus)| (ProgramId(id), cpus.map(|list| list.parse().unwrap())))
            .collect()
    }

    #[test]
    fn releases_cpus_before_taking_new_and_requests_once() {
        let mut diff = ActionDiff::default();
        let first = diff.move_to(&wanted(&[(1, Some("0-3")), (2, Some("4-7"))]));
        assert_eq!(first.len(), 2);
        assert!(
            diff.move_to(&wanted(&[(1, Some("0-3")), (2, Some("4-7"))]))
                .is_empty()
        );
        let swap = diff.move_to(&wanted(&[(1, Some("0-5")), (2, Some("6-7"))]));
        let order: Vec<_> = swap.iter().map(|action| action.program().0).collect();
        assert_eq!(order, [2, 1], "the shrinking seat comes first");
    }

    #[test]
    fn requests_a_failed_action_again() {
        let mut diff = ActionDiff::default();
        let want = wanted(&[(1, Some("0"))]);
        let action = diff.move_to(&want).remove(0);
        diff.mark_failed(&[FailedAction {
            action: action.clone(),
            error: "no".into(),
        }]);
        assert_eq!(diff.move_to(&want), [action]);
    }

    #[test]
    fn retries_a_release_a_limited_number_of_times() {
        let failed = |action: &Action| FailedAction {
            action: action.clone(),
            error: "no".into(),
        };
        let mut diff = ActionDiff::default();
        let seated = diff.move_to(&wanted(&[(1, Some("0"))])).remove(0);
        let free = wanted(&[(1, None)]);
        diff.mark_failed(&[failed(&seated)]);
        let release = diff.move_to(&free).remove(0);
        let program = ProgramId(1);
        assert_eq!(release, Action::Release { program });
        assert!(diff.move_to(&free).is_empty(), "once");
        let mut requests = 0;
        for _ in 0..100 {
            diff.mark_failed(&[failed(&release)]);
            requests += diff.move_to(&free).len();
        }
        assert!((1..20).contains(&requests), "{requests}");
    }

    #[test]
    fn thaws_a_program_after_a_failed_freeze() {
        let mut diff = ActionDiff::default();
        let program = ProgramId(1);
        let (freeze, thaw) = (Action::Freeze { program }, Action::Thaw { program });
        let failed = |action: &Action| FailedAction {
            action: action.clone(),
            error: "half-way".into(),
        };
        diff.freeze_where([(program, true)]);
        diff.mark_failed(&[failed(&freeze)]);
        assert_eq!(
            diff.freeze_where([(program, false)]),
            std::slice::from_ref(&thaw)
        );
        diff.mark_failed(&[failed(&thaw)]);
        assert_eq!(diff.freeze_where([(program, false)]), [thaw]);
        assert!(diff.freeze_where([(program, false)]).is_empty());
        diff.freeze_where([(program, true)]);
        diff.mark_failed(&[failed(&freeze)]);
        assert_eq!(diff.freeze_where([(program, true)]), [freeze]);
    }

    #[test]
    fn freezes_and_thaws_once_each() {
        let mut diff = ActionDiff::default();
        let (one, two) = (ProgramId(1), ProgramId(2));
        assert_eq!(
            diff.freeze_where([(one, true), (two, false)]),
            [Action::Freeze { program: one }]
        );
        assert!(diff.freeze_where([(one, true)]).is_empty());
        assert_eq!(
            diff.freeze_where([(one, false)]),
            [Action::Thaw { program: one }]
        );
        diff.freeze_where([(two, true)]);
        assert_eq!(
            diff.freeze_where([(two, false), (one, true)]),
            [
                Action::Freeze { program: one },
                Action::Thaw { program: two }
            ],
            "freezes come first"
        );
    }
}
