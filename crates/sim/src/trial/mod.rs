// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mix from a file, run under one scheduler after the other.
//!
//! A [`Cast`] is made first: every program of the file becomes a script for
//! this machine and is run alone, on more and more cores; what it takes there
//! at best is the unit of its NTT, and the curve is what a profile store would
//! hold. A [`Trial`] is one run of one scheduler. The programs and the moments
//! at which they come depend on the seed and the round alone, so that all
//! schedulers of a round meet the same ones.

mod alone;
mod guests;
mod seats;
mod shown;
mod stage;

use std::collections::{BTreeMap, BTreeSet};

use usher_control::ControlLoop;
use usher_model::ProgramId;

pub use self::alone::{Cast, Role};
pub use self::guests::{Coming, comings};
pub use self::seats::{Acts, Place, Stay};
pub use self::shown::{Reception, Show};
use self::stage::Stage;
use crate::campaign::Scheduler;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::machine::Machine;
use crate::mix::Entrant;
use crate::record::Recording;
use crate::world::{SimWorld, Until};

/// Why a mix cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TrialError {
    /// A program makes no sense on this machine.
    #[error("program '{program}': {reason}")]
    Program {
        /// Which.
        program: String,
        /// Why.
        reason: String,
    },
    /// There are more programs than can be seated.
    #[error(
        "{programs} programs would be there at once, on {cpus} CPUs; the most is {most}: take some away, or a larger machine"
    )]
    TooMany {
        /// How many.
        programs: usize,
        /// CPUs of the machine.
        cpus: usize,
        /// How many there may be.
        most: usize,
    },
    /// A scheduler that looks at every way to seat the programs has too many.
    #[error("'{scheduler}' tries every way to give whole domains to programs: {reason}")]
    Oracle {
        /// Its name.
        scheduler: &'static str,
        /// Why it cannot.
        reason: String,
    },
    /// A run cannot go on.
    #[error("{doing}: {fault}")]
    Fault {
        /// Which run.
        doing: String,
        /// Why.
        fault: Fault,
    },
}

/// How a trial is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Protocol {
    /// Completions of every program that repeats, at least.
    pub repetitions: u32,
    /// The seed of everything.
    pub seed: u64,
    /// Virtual seconds at most.
    pub max_seconds: f64,
    /// Events at most.
    pub events_max: u64,
    /// Spans that are recorded of who had which CPU; 0: none.
    pub spans_max: usize,
}

/// What became of one program.
#[derive(Debug, Clone, PartialEq)]
pub struct Guest {
    /// Its name: that of its role, numbered where there are several.
    pub name: String,
    /// Its role in the cast.
    pub role: usize,
    /// When it came, in virtual seconds.
    pub at_s: f64,
    /// When it left, if it did.
    pub left_s: Option<f64>,
    /// Whether it came by chance.
    pub by_chance: bool,
    /// Seconds of each repetition of its work.
    pub seconds: Vec<f64>,
    /// Mean of those over its best time alone.
    pub ntt: Option<f64>,
}

/// One run of one scheduler.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The programs, in the order of their arrival.
    pub guests: Vec<Guest>,
    /// Whether all of them did what was wanted before the time was up.
    pub complete: bool,
    /// Virtual seconds.
    pub seconds: f64,
    /// Events of the simulation.
    pub events: u64,
    /// What was done to programs.
    pub acts: Acts,
    /// Who sat where; the n-th guest has the n-th id, from 1.
    pub stays: Vec<Stay>,
    /// What the policy said, by virtual seconds.
    pub notes: Vec<(f64, String)>,
    /// Who ran where, as far as it was recorded.
    pub recording: Recording,
}

/// Runs a scheduler.
///
/// # Errors
/// There are too many programs for the machine or the scheduler; a program's
/// threads wait for one another for ever; events have no end.
pub fn run(
    cast: &Cast,
    comings: &[Coming],
    scheduler: Scheduler,
    protocol: &Protocol,
) -> Result<Trial, TrialError> {
    let entrants: Vec<Entrant> = comings.iter().map(|c| cast.entrant(c, scheduler)).collect();
    can(&cast.machine, scheduler, comings)?;
    let until_ns = (protocol.max_seconds * 1e9) as u64;
    let mut engine = Engine::new(cast.machine.clone(), cast.kernel.clone(), protocol.seed);
    engine.limit_events(protocol.events_max);
    if protocol.spans_max > 0 {
        engine.record(protocol.spans_max);
    }
    let guests = comings.iter().zip(&entrants);
    let guests = guests.enumerate().map(|(at, (c, e))| c.guest(at, e));
    let until = Until {
        repetitions: usize::MAX,
        at_ns: until_ns,
    };
    let world = SimWorld::new(engine, guests.collect(), until);
    let id = |at: usize| ProgramId(at as u64 + 1);
    let all = || comings.iter().enumerate();
    let leaves: BTreeSet<_> = all()
        .filter_map(|(at, coming)| Some((coming.leaves_ns?, id(at))))
        .collect();
    let needs: BTreeMap<_, _> = all()
        .filter(|(_, coming)| coming.repeats && coming.leaves_ns.is_none())
        .map(|(at, _)| (id(at), protocol.repetitions as usize))
        .collect();
    let policy = scheduler.policy(&cast.machine, &cast.kernel, &entrants);
    let mut control = ControlLoop::new(policy, Stage::new(world, leaves, needs, until_ns));
    control.run();
    let (_, stage) = control.into_parts();
    result(cast, comings, scheduler, stage)
}

fn result(
    cast: &Cast,
    comings: &[Coming],
    scheduler: Scheduler,
    mut stage: Stage,
) -> Result<Trial, TrialError> {
    let engine = stage.world.engine();
    if let Some(fault) = engine.fault() {
        return Err(TrialError::Fault {
            doing: format!("under {}", scheduler.name()),
            fault: fault.clone(),
        });
    }
    stage.log.end(engine.now_ns());
    if stage.log.stays.len() >= seats::SPANS_MAX {
        let last_ns = stage.log.stays.iter().map(|stay| stay.from_ns).max();
        let at_s = last_ns.unwrap_or(0) as f64 / 1e9;
        let text = "from here on it was not recorded who sat where: too much happens";
        stage.notes.push((at_s, text.to_owned()));
    }
    let guest = |(at, coming): (usize, &Coming)| {
        let seconds = stage.world.seconds()[at].clone();
        let mean = seconds.iter().sum::<f64>() / seconds.len().max(1) as f64;
        let best = cast.roles[coming.role].best_seconds;
        Guest {
            name: coming.name.clone(),
            role: coming.role,
            at_s: coming.at_ns as f64 / 1e9,
            left_s: stage.world.left_ns(at).map(|ns| ns as f64 / 1e9),
            by_chance: coming.by_chance,
            ntt: (!seconds.is_empty()).then(|| mean / best),
            seconds,
        }
    };
    Ok(Trial {
        guests: comings.iter().enumerate().map(guest).collect(),
        complete: stage.complete,
        seconds: engine.now_ns() as f64 / 1e9,
        events: engine.events(),
        recording: engine.recording(),
        acts: stage.log.acts,
        stays: stage.log.stays,
        notes: stage.notes,
    })
}

/// Ways to seat programs that are tried at most.
const WAYS_MAX: f64 = 2e6;

/// Whether a scheduler can take these programs on: an oracle has to look at all
/// ways to seat them.
///
/// # Errors
/// There are too many ways.
pub fn can(machine: &Machine, scheduler: Scheduler, comings: &[Coming]) -> Result<(), TrialError> {
    if !matches!(scheduler, Scheduler::Oracle | Scheduler::OracleLending) {
        return Ok(());
    }
    let domains = machine.topology().domains.len();
    let programs = comings.len();
    let cannot = |reason: String| {
        Err(TrialError::Oracle {
            scheduler: scheduler.name(),
            reason,
        })
    };
    if comings
        .iter()
        .any(|coming| coming.by_chance || coming.at_ns > 0)
    {
        return cannot("it cannot be used where programs come and go".to_owned());
    }
    if programs > domains {
        return cannot(format!(
            "{programs} programs, and the machine has {domains} domains"
        ));
    }
    // Ways to cut so many domains, or fewer, into as many parts.
    let ways = (0..programs).fold(1.0, |ways, k| ways * (domains - k) as f64 / (k + 1) as f64);
    match ways > WAYS_MAX {
        true => cannot(format!(
            "{programs} programs on {domains} domains have {ways:.1e}"
        )),
        false => Ok(()),
    }
}

/// A scheduler's name on the command line and in files.
pub fn scheduler_id(scheduler: Scheduler) -> &'static str {
    match scheduler {
        Scheduler::CasasLending => "casas-lending",
        Scheduler::UsherCold => "usher-cold",
        Scheduler::OracleLending => "oracle-lending",
        other => other.name(),
    }
}

/// The scheduler of that name.
pub fn scheduler_by_id(id: &str) -> Option<Scheduler> {
    Scheduler::ALL
        .into_iter()
        .find(|&scheduler| scheduler_id(scheduler) == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_and_files_call_schedulers_the_same() {
        for scheduler in Scheduler::ALL {
            let in_files = serde_json::to_value(scheduler).unwrap();
            assert_eq!(in_files, scheduler_id(scheduler));
        }
    }
}
