// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the arrivals and departures of a trial: copies of programs at given times, and random
//! arrivals (a Poisson process). Arrivals depend only on the sim file and the seed, so that they
//! are the same for every scheduler.
//!
//! Limits: the copies in the file must not exceed 16 per CPU or 10,000, even if they arrive at
//! different times; otherwise there is an error. Random arrivals are not part of that limit: there
//! are at most 10,000, and at most as many as the file requests. The time is that of sorting the
//! arrivals.

use std::sync::Arc;

use oorandom::Rand64;
use usher_model::ProgramId;

use super::{MixSetup, TrialError};
use crate::mix::MixEntry;
use crate::mixfile::{PROGRAMS_MAX, PROGRAMS_PER_CPU_MAX, PoissonArrivals, SimMix};
use crate::world::PlannedArrival;

/// Stream of random numbers for arrivals, separate from the streams of the programs.
const STREAM: u128 = 0xa441_7a15;

/// An arrival of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrivalSpec {
    /// Name of the arriving program.
    pub name: String,
    /// Index of the program in the [`MixSetup`].
    pub program: usize,
    /// Time of arrival in virtual nanoseconds.
    pub at_ns: u64,
    /// Time of departure; `None` if the program runs to the end of its work.
    pub leaves_ns: Option<u64>,
    /// Whether the program restarts each time that it ends.
    pub repeats: bool,
    /// Whether the arrival is random.
    pub random: bool,
}

/// Returns all arrivals in the order of their times.
///
/// # Errors
/// The file has more programs and copies, without random arrivals, than the limit for this number
/// of CPUs.
pub fn arrival_specs(mix: &SimMix, cpus: usize, seed: u64) -> Result<Vec<ArrivalSpec>, TrialError> {
    let mut all = Vec::new();
    for (index, program) in mix.programs.iter().enumerate().filter(|(_, p)| p.resident) {
        for copy in 1..=program.copies {
            all.push(ArrivalSpec {
                name: match program.copies {
                    1 => program.name.clone(),
                    _ => format!("{}#{copy}", program.name),
                },
                program: index,
                at_ns: (program.at_s * 1e9) as u64,
                leaves_ns: None,
                repeats: program.repeats,
                random: false,
            });
        }
    }
    let most = cpus.saturating_mul(PROGRAMS_PER_CPU_MAX).min(PROGRAMS_MAX);
    if all.len() > most {
        return Err(TrialError::TooMany {
            programs: all.len(),
            cpus,
            most,
        });
    }
    if let Some(arrivals) = &mix.arrivals {
        random_arrivals(mix, arrivals, seed, &mut all);
    }
    // The sort is stable, so that simultaneous arrivals keep the order of the file.
    all.sort_by_key(|spec| spec.at_ns);
    Ok(all)
}

fn random_arrivals(
    mix: &SimMix,
    arrivals: &PoissonArrivals,
    seed: u64,
    all: &mut Vec<ArrivalSpec>,
) {
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
        let program = arrivals.programs[which];
        drawn[program] += 1;
        let lifetime_s = arrivals
            .lifetime_s
            .map(|mean| exponential(&mut random, mean));
        all.push(ArrivalSpec {
            name: format!("{}#{}", mix.programs[program].name, drawn[program]),
            program,
            at_ns: (at_s * 1e9) as u64,
            leaves_ns: lifetime_s.map(|lifetime_s| ((at_s + lifetime_s) * 1e9) as u64),
            repeats: lifetime_s.is_some(),
            random: true,
        });
    }
}

impl ArrivalSpec {
    /// Returns the planned arrival of this program; `at` is its index in the order of arrival.
    pub(super) fn planned(&self, at: usize, entry: &MixEntry) -> PlannedArrival {
        PlannedArrival {
            arrival: entry.arrival(ProgramId(at as u64 + 1), self.name.clone()),
            script: Arc::clone(&entry.script),
            at_ns: self.at_ns,
            repeats: self.repeats,
        }
    }
}

impl MixSetup {
    /// Returns the program, as it is reported to a scheduler at its arrival.
    pub(super) fn entry(
        &self,
        spec: &ArrivalSpec,
        scheduler: crate::campaign::Scheduler,
    ) -> MixEntry {
        let program = &self.programs[spec.program];
        MixEntry {
            name: spec.name.clone(),
            script: Arc::clone(&program.script),
            alone: program.alone.clone(),
            work_ns: program.work_ns,
            weight: program.weight,
            cpus: program.cpus,
            known: program.known && scheduler.knows(),
        }
    }
}
