// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the actions that lead from the present state of the machine to the desired one.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::{Action, CpuSet, FailedAction, ProgramId};

/// Desired CPUs of each program; `None`: all CPUs that the program could use before Usher
/// restricted it.
pub type Wanted = BTreeMap<ProgramId, Option<CpuSet>>;

/// Stores the requested state, so that no action is requested twice.
#[derive(Debug, Clone, Default)]
pub struct Stage {
    issued: Wanted,
    /// Programs with an unknown seat, because an action failed.
    doubts: BTreeMap<ProgramId, Doubt>,
    frozen: BTreeSet<ProgramId>,
    /// Programs that may or may not be stopped: freezing or thawing has failed, perhaps half-way.
    unsure: BTreeSet<ProgramId>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Doubt {
    failures: u32,
    open: bool,
}

/// Number of failed releases after which a program's seat is left to the undo at its end.
const RELEASES_MAX: u32 = 8;

impl Stage {
    /// Removes a departed program.
    pub fn forget(&mut self, program: ProgramId) {
        self.issued.remove(&program);
        self.doubts.remove(&program);
        self.frozen.remove(&program);
        self.unsure.remove(&program);
    }

    /// Marks failed actions as not done: the next [`Self::move_to`] requests them again, releases
    /// included.
    pub fn undo_failed(&mut self, failed: &[FailedAction]) {
        for failure in failed {
            match &failure.action {
                Action::Seat { program, .. } | Action::Release { program } => {
                    self.issued.remove(program);
                    let doubt = self.doubts.entry(*program).or_default();
                    doubt.failures += 1;
                    doubt.open = true;
                }
                Action::Freeze { program } | Action::Thaw { program } => {
                    self.unsure.insert(*program);
                }
                Action::Demote { .. } => {}
            }
        }
    }

    /// Returns the actions that lead to `wanted`: first those that only give up CPUs, then those
    /// that take new CPUs, so that two owners never use a CPU at the same time.
    pub fn move_to(&mut self, wanted: &Wanted) -> Vec<Action> {
        let mut shrinks = Vec::new();
        let mut grows = Vec::new();
        for (&program, place) in wanted {
            let before = self.issued.get(&program).cloned().unwrap_or(None);
            if before == *place && !self.doubts_about(program) {
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

    /// Whether to request a seat again although it should be in force; true once per failure.
    fn doubts_about(&mut self, program: ProgramId) -> bool {
        let doubt = self.doubts.get_mut(&program);
        doubt.is_some_and(|doubt| std::mem::take(&mut doubt.open) && doubt.failures <= RELEASES_MAX)
    }

    /// Returns the actions after which exactly the programs marked true are frozen. Freezes come
    /// first, so that two programs never use a CPU at the same time.
    pub fn freeze_where(
        &mut self,
        programs: impl IntoIterator<Item = (ProgramId, bool)>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut thaws = Vec::new();
        for (program, wanted) in programs {
            let unsure = self.unsure.remove(&program);
            let changes = match wanted {
                true => self.frozen.insert(program),
                false => self.frozen.remove(&program),
            };
            match wanted {
                _ if !(changes || unsure) => {}
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

    fn wanted(places: &[(u64, Option<&str>)]) -> Wanted {
        places
            .iter()
            .map(|&(id, cpus)| (ProgramId(id), cpus.map(|list| list.parse().unwrap())))
            .collect()
    }

    #[test]
    fn gives_up_before_it_takes_and_asks_once() {
        let mut stage = Stage::default();
        let first = stage.move_to(&wanted(&[(1, Some("0-3")), (2, Some("4-7"))]));
        assert_eq!(first.len(), 2);
        assert!(
            stage
                .move_to(&wanted(&[(1, Some("0-3")), (2, Some("4-7"))]))
                .is_empty()
        );
        let swap = stage.move_to(&wanted(&[(1, Some("0-5")), (2, Some("6-7"))]));
        let order: Vec<_> = swap.iter().map(|action| action.program().0).collect();
        assert_eq!(order, [2, 1], "the one that shrinks goes first");
    }

    #[test]
    fn a_failed_action_is_asked_for_again() {
        let mut stage = Stage::default();
        let want = wanted(&[(1, Some("0"))]);
        let action = stage.move_to(&want).remove(0);
        stage.undo_failed(&[FailedAction {
            action: action.clone(),
            error: "no".into(),
        }]);
        assert_eq!(stage.move_to(&want), [action]);
    }

    #[test]
    fn a_release_is_asked_for_after_any_failure_and_not_for_ever() {
        let failed = |action: &Action| FailedAction {
            action: action.clone(),
            error: "no".into(),
        };
        let mut stage = Stage::default();
        let seated = stage.move_to(&wanted(&[(1, Some("0"))])).remove(0);
        let free = wanted(&[(1, None)]);
        stage.undo_failed(&[failed(&seated)]);
        let release = stage.move_to(&free).remove(0);
        let program = ProgramId(1);
        assert_eq!(release, Action::Release { program });
        assert!(stage.move_to(&free).is_empty(), "once");
        let mut asked = 0;
        for _ in 0..100 {
            stage.undo_failed(&[failed(&release)]);
            asked += stage.move_to(&free).len();
        }
        assert!((1..20).contains(&asked), "{asked}");
    }

    #[test]
    fn who_may_have_been_stopped_is_let_go_on() {
        let mut stage = Stage::default();
        let program = ProgramId(1);
        let (freeze, thaw) = (Action::Freeze { program }, Action::Thaw { program });
        let failed = |action: &Action| FailedAction {
            action: action.clone(),
            error: "half-way".into(),
        };
        stage.freeze_where([(program, true)]);
        stage.undo_failed(&[failed(&freeze)]);
        assert_eq!(
            stage.freeze_where([(program, false)]),
            std::slice::from_ref(&thaw)
        );
        stage.undo_failed(&[failed(&thaw)]);
        assert_eq!(stage.freeze_where([(program, false)]), [thaw]);
        assert!(stage.freeze_where([(program, false)]).is_empty());
        stage.freeze_where([(program, true)]);
        stage.undo_failed(&[failed(&freeze)]);
        assert_eq!(stage.freeze_where([(program, true)]), [freeze]);
    }

    #[test]
    fn freezes_and_thaws_once_each() {
        let mut stage = Stage::default();
        let (one, two) = (ProgramId(1), ProgramId(2));
        assert_eq!(
            stage.freeze_where([(one, true), (two, false)]),
            [Action::Freeze { program: one }]
        );
        assert!(stage.freeze_where([(one, true)]).is_empty());
        assert_eq!(
            stage.freeze_where([(one, false)]),
            [Action::Thaw { program: one }]
        );
        stage.freeze_where([(two, true)]);
        assert_eq!(
            stage.freeze_where([(two, false), (one, true)]),
            [
                Action::Freeze { program: one },
                Action::Thaw { program: two }
            ],
            "who stops goes first"
        );
    }
}
