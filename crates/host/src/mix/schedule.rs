// SPDX-License-Identifier: MIT OR Apache-2.0
//! Determines the order of the arms of a mix, and the number of rounds that fit into the time
//! limit. An arm is a policy under a name, such as `linux#2`.
//!
//! **Order.** The seed selects the first arm of the first round. Each round rotates the order by
//! one position. In N rounds of N arms, each arm therefore has every position once.
//!
//! **Number of rounds.** The duration of a repetition is estimated from the times of the programs
//! alone. If the requested rounds and repetitions exceed the time limit, the number of rounds is
//! reduced first, and then the number of repetitions, each to at least one. One round of one
//! repetition is therefore run even if it exceeds the time limit.
//!
//! The estimate assumes that a repetition of all n programs takes n times the best time alone of
//! the slowest program. An unknown or repeated name of an arm is an error.

use usher_report::data::PolicyRole;

use super::error::MixError;

/// An arm of the comparison: a policy under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PolicyArm {
    /// The given name: `linux`, `linux#2`, `usher`.
    pub name: String,
    /// The policy; `None` if the arm runs without an engine.
    pub policy: Option<String>,
    pub role: PolicyRole,
}

/// The name of the arm that runs without an engine.
pub(super) const BARE: &str = "linux-bare";
const BASELINE: &str = "linux";

/// Makes the arms with these names. The first arm `linux` is the baseline. Further arms `linux#N`
/// repeat the baseline, which shows the noise of the machine.
pub(super) fn arms(names: &[String]) -> Result<Vec<PolicyArm>, MixError> {
    let mut arms: Vec<PolicyArm> = Vec::new();
    for name in names {
        let policy = name.split('#').next().unwrap_or(name);
        if policy != BARE && !usher_policy::NAMES.contains(&policy) {
            return Err(MixError::Policy { name: name.clone() });
        }
        if arms.iter().any(|arm| arm.name == *name) {
            return Err(MixError::DuplicatePolicy { name: name.clone() });
        }
        let has_baseline = arms.iter().any(|arm| arm.role == PolicyRole::Baseline);
        let role = match (policy == BASELINE, has_baseline) {
            (true, false) => PolicyRole::Baseline,
            (true, true) => PolicyRole::BaselineAgain,
            _ => PolicyRole::Candidate,
        };
        arms.push(PolicyArm {
            name: name.clone(),
            policy: (policy != BARE).then(|| policy.to_owned()),
            role,
        });
    }
    match arms.is_empty() {
        true => Err(MixError::Policy {
            name: String::new(),
        }),
        false => Ok(arms),
    }
}

/// Returns the order of the arms in a round, as indices. Each round rotates the order by one
/// position. The seed selects the first arm of the first round.
pub(super) fn order(arms: usize, round: u32, seed: u64) -> Vec<usize> {
    let offset = (seed % arms.max(1) as u64) as usize + round as usize;
    (0..arms).map(|at| (at + offset) % arms).collect()
}

/// The number of rounds and repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RoundPlan {
    pub rounds: u32,
    pub repeats: u32,
}

/// Reduces `wanted` until it fits into `seconds`: first the number of rounds, and then the number
/// of repetitions, each to at least one.
pub(super) fn fit(
    wanted: RoundPlan,
    arms: usize,
    seconds_a_repetition: f64,
    seconds: f64,
) -> RoundPlan {
    let cost = |e: RoundPlan| {
        arms as f64 * f64::from(e.rounds) * f64::from(e.repeats) * seconds_a_repetition
    };
    let mut plan = wanted;
    while cost(plan) > seconds && plan.rounds > 1 {
        plan.rounds -= 1;
    }
    while cost(plan) > seconds && plan.repeats > 1 {
        plan.repeats -= 1;
    }
    plan
}

/// Returns the estimated seconds in which all n programs complete a repetition at the same time.
/// The estimate assumes that the slowest program gets a share 1 / n of the machine.
pub(super) fn seconds_a_repetition(alone_best: &[f64]) -> f64 {
    let slowest = alone_best.iter().copied().fold(0.0, f64::max);
    slowest * alone_best.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Result<Vec<PolicyArm>, MixError> {
        let names: Vec<_> = names.iter().map(|&n| n.to_owned()).collect();
        arms(&names)
    }

    #[test]
    fn the_first_linux_is_the_baseline_and_later_ones_repeat_it() {
        let arms = named(&["usher", "linux", "linux#2", "linux-bare"]).unwrap();
        let roles: Vec<_> = arms.iter().map(|arm| arm.role).collect();
        let expected = [
            PolicyRole::Candidate,
            PolicyRole::Baseline,
            PolicyRole::BaselineAgain,
            PolicyRole::Candidate,
        ];
        assert_eq!(roles, expected);
        assert_eq!(arms[2].policy.as_deref(), Some("linux"));
        assert_eq!(arms[3].policy, None);
        let message = named(&["linux", "nice"]).unwrap_err().to_string();
        assert_eq!(
            message,
            "the policy 'nice' does not exist: choose from linux, equal, casas, usher"
        );
        assert!(matches!(
            named(&["usher", "usher"]),
            Err(MixError::DuplicatePolicy { .. })
        ));
    }

    #[test]
    fn every_arm_has_every_position_once() {
        for seed in [0, 7, u64::MAX] {
            let orders: Vec<_> = (0..4).map(|round| order(4, round, seed)).collect();
            for position in 0..4 {
                let mut arms: Vec<_> = orders.iter().map(|order| order[position]).collect();
                arms.sort_unstable();
                assert_eq!(arms, [0, 1, 2, 3]);
            }
        }
    }

    #[test]
    fn rounds_are_reduced_before_repetitions() {
        let wanted = RoundPlan {
            rounds: 4,
            repeats: 3,
        };
        let fit = |seconds| fit(wanted, 4, 2.0, seconds);
        assert_eq!(fit(96.0), wanted);
        assert_eq!(
            fit(95.0),
            RoundPlan {
                rounds: 3,
                repeats: 3
            }
        );
        assert_eq!(
            fit(20.0),
            RoundPlan {
                rounds: 1,
                repeats: 2
            }
        );
        assert_eq!(
            fit(0.0),
            RoundPlan {
                rounds: 1,
                repeats: 1
            }
        );
    }
}
