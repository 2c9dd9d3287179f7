// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who comes when, and who leaves: copies, and arrivals by chance.

use std::sync::Arc;

use oorandom::Rand64;
use usher_model::ProgramId;

use super::{Cast, TrialError};
use crate::mix::Entrant;
use crate::mixfile::{Arrivals, PROGRAMS_A_CPU_MAX, PROGRAMS_MAX, SimMix};
use crate::world::Guest;

/// Seeds of arrivals are kept apart from those of the programs' own chance.
const STREAM: u128 = 0xa441_7a15;

/// A program that is to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coming {
    /// Its name.
    pub name: String,
    /// Its role in the cast.
    pub role: usize,
    /// When, in virtual nanoseconds.
    pub at_ns: u64,
    /// When it leaves, if it does not stay until its work is done.
    pub leaves_ns: Option<u64>,
    /// Whether it starts again whenever it ends.
    pub repeats: bool,
    /// Whether it comes by chance.
    pub by_chance: bool,
}

/// Everybody who comes, in order: the same for every scheduler.
///
/// # Errors
/// More would be there at the same time than anything can seat.
pub fn comings(mix: &SimMix, cpus: usize, seed: u64) -> Result<Vec<Coming>, TrialError> {
    let mut all = Vec::new();
    for (role, program) in mix.programs.iter().enumerate().filter(|(_, p)| p.resident) {
        for copy in 1..=program.copies {
            all.push(Coming {
                name: match program.copies {
                    1 => program.name.clone(),
                    _ => format!("{}#{copy}", program.name),
                },
                role,
                at_ns: (program.at_s * 1e9) as u64,
                leaves_ns: None,
                repeats: program.repeats,
                by_chance: false,
            });
        }
    }
    let most = cpus.saturating_mul(PROGRAMS_A_CPU_MAX).min(PROGRAMS_MAX);
    if all.len() > most {
        return Err(TrialError::TooMany {
            programs: all.len(),
            cpus,
            most,
        });
    }
    if let Some(arrivals) = &mix.arrivals {
        by_chance(mix, arrivals, seed, &mut all);
    }
    // Stable: of those who come together, in the order of the file.
    all.sort_by_key(|coming| coming.at_ns);
    Ok(all)
}

fn by_chance(mix: &SimMix, arrivals: &Arrivals, seed: u64, all: &mut Vec<Coming>) {
    let mut random = Rand64::new(STREAM << 64 | u128::from(seed));
    let exponential = |random: &mut Rand64, mean: f64| -mean * (1.0 - random.rand_float()).ln();
    let mut at_s = 0.0;
    let mut drawn = vec![0_u32; mix.programs.len()];
    for _ in 0..arrivals.count.min(PROGRAMS_MAX) {
        at_s += exponential(&mut random, 1.0 / arrivals.rate_per_s);
        if at_s > arrivals.seconds {
            return;
        }
        let which = random.rand_range(0..arrivals.programs.len() as u64) as usize;
        let role = arrivals.programs[which];
        drawn[role] += 1;
        let stay_s = arrivals.stay_s.map(|mean| exponential(&mut random, mean));
        all.push(Coming {
            name: format!("{}#{}", mix.programs[role].name, drawn[role]),
            role,
            at_ns: (at_s * 1e9) as u64,
            leaves_ns: stay_s.map(|stay_s| ((at_s + stay_s) * 1e9) as u64),
            repeats: stay_s.is_some(),
            by_chance: true,
        });
    }
}

impl Coming {
    /// The world's guest, the n-th from 0.
    pub(super) fn guest(&self, at: usize, entrant: &Entrant) -> Guest {
        Guest {
            arrival: entrant.arrival(ProgramId(at as u64 + 1), self.name.clone()),
            script: Arc::clone(&entrant.script),
            at_ns: self.at_ns,
            repeats: self.repeats,
        }
    }
}

impl Cast {
    /// What a scheduler is told of somebody who comes.
    pub(super) fn entrant(
        &self,
        coming: &Coming,
        scheduler: crate::campaign::Scheduler,
    ) -> Entrant {
        let role = &self.roles[coming.role];
        Entrant {
            name: coming.name.clone(),
            script: Arc::clone(&role.script),
            alone: role.alone.clone(),
            work_ns: role.work_ns,
            weight: role.weight,
            known: role.known && scheduler.knows(),
        }
    }
}
