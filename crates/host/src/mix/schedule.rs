// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which arm runs when, and how much fits into the time there is.

use usher_report::data::Role;

use crate::error::MeasureError;

/// A policy as it takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arm {
    /// As it was asked for: `linux`, `linux#2`, `usher`.
    pub name: String,
    /// Which policy that is; `None`: no engine at all.
    pub policy: Option<String>,
    pub role: Role,
}

/// The name of the arm that runs without an engine.
pub(super) const BARE: &str = "linux-bare";
const BASELINE: &str = "linux";

/// The arms of these names. The first `linux` is the baseline; others of it
/// are the baseline again (A/A).
pub(super) fn arms(names: &[String]) -> Result<Vec<Arm>, MeasureError> {
    let mut arms: Vec<Arm> = Vec::new();
    for name in names {
        let policy = name.split('#').next().unwrap_or(name);
        if policy != BARE && !usher_policy::NAMES.contains(&policy) {
            return Err(MeasureError::Policy { name: name.clone() });
        }
        if arms.iter().any(|arm| arm.name == *name) {
            return Err(MeasureError::Twice { name: name.clone() });
        }
        let has_baseline = arms.iter().any(|arm| arm.role == Role::Baseline);
        let role = match (policy == BASELINE, has_baseline) {
            (true, false) => Role::Baseline,
            (true, true) => Role::BaselineAgain,
            _ => Role::Candidate,
        };
        arms.push(Arm {
            name: name.clone(),
            policy: (policy != BARE).then(|| policy.to_owned()),
            role,
        });
    }
    match arms.is_empty() {
        true => Err(MeasureError::Policy {
            name: String::new(),
        }),
        false => Ok(arms),
    }
}

/// The order of the arms in a round: turned by one place each round, so that
/// over as many rounds as arms each has every place once; the seed says where
/// the first round begins.
pub(super) fn order(arms: usize, round: u32, seed: u64) -> Vec<usize> {
    let turn = (seed % arms.max(1) as u64) as usize + round as usize;
    (0..arms).map(|at| (at + turn) % arms).collect()
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub rounds: u32,
    pub repeats: u32,
}

/// What of `wanted` fits into so many seconds: rounds are given up first, then
/// repetitions, one of each being the least.
pub(super) fn fit(wanted: Extent, arms: usize, seconds_a_repetition: f64, seconds: f64) -> Extent {
    let cost =
        |e: Extent| arms as f64 * f64::from(e.rounds) * f64::from(e.repeats) * seconds_a_repetition;
    let mut extent = wanted;
    while cost(extent) > seconds && extent.rounds > 1 {
        extent.rounds -= 1;
    }
    while cost(extent) > seconds && extent.repeats > 1 {
        extent.repeats -= 1;
    }
    extent
}

/// Seconds in which all programs complete a repetition together: the slowest
/// has its share of the machine, 1 / n.
pub(super) fn seconds_a_repetition(alone_best: &[f64]) -> f64 {
    let slowest = alone_best.iter().copied().fold(0.0, f64::max);
    slowest * alone_best.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Result<Vec<Arm>, MeasureError> {
        let names: Vec<_> = names.iter().map(|&n| n.to_owned()).collect();
        arms(&names)
    }

    #[test]
    fn the_first_linux_is_the_baseline_and_others_are_it_again() {
        let arms = named(&["usher", "linux", "linux#2", "linux-bare"]).unwrap();
        let roles: Vec<_> = arms.iter().map(|arm| arm.role).collect();
        let expected = [
            Role::Candidate,
            Role::Baseline,
            Role::BaselineAgain,
            Role::Candidate,
        ];
        assert_eq!(roles, expected);
        assert_eq!(arms[2].policy.as_deref(), Some("linux"));
        assert_eq!(arms[3].policy, None);
        let said = named(&["linux", "nice"]).unwrap_err().to_string();
        assert_eq!(
            said,
            "there is no policy 'nice': choose from linux, equal, casas, usher"
        );
        assert!(matches!(
            named(&["usher", "usher"]),
            Err(MeasureError::Twice { .. })
        ));
    }

    #[test]
    fn every_arm_has_every_place_once() {
        for seed in [0, 7, u64::MAX] {
            let orders: Vec<_> = (0..4).map(|round| order(4, round, seed)).collect();
            for place in 0..4 {
                let mut who: Vec<_> = orders.iter().map(|order| order[place]).collect();
                who.sort_unstable();
                assert_eq!(who, [0, 1, 2, 3]);
            }
        }
    }

    #[test]
    fn rounds_are_given_up_before_repetitions() {
        let wanted = Extent {
            rounds: 4,
            repeats: 3,
        };
        let fit = |seconds| fit(wanted, 4, 2.0, seconds);
        assert_eq!(fit(96.0), wanted);
        assert_eq!(
            fit(95.0),
            Extent {
                rounds: 3,
                repeats: 3
            }
        );
        assert_eq!(
            fit(20.0),
            Extent {
                rounds: 1,
                repeats: 2
            }
        );
        assert_eq!(
            fit(0.0),
            Extent {
                rounds: 1,
                repeats: 1
            }
        );
    }
}
