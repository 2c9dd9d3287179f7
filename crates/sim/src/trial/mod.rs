// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the mix of a sim file under several schedulers.
//!
//! 1. A [`MixSetup`] is built: each program of the file is converted to a script for the machine,
//!    and is measured alone on increasing numbers of cores. The best time is the unit of the
//!    program's NTT. The curve is the program's profile.
//! 2. Each [`Trial`] is one run of one scheduler. The programs and the times of their arrivals
//!    depend only on the seed and the round, so that they are the same for all schedulers of a
//!    round.
//! 3. A [`MixReport`] converts the trials to tables.
//!
//!
//! A run ends when all programs have completed their repetitions, and at the latest after a given
//! virtual time. A run that exceeds the given number of events is an error. The schedulers `oracle`
//! and `oracle-lending` reject mixes with arrivals during the run, with more programs than domains,
//! or with more than 2,000,000 distributions of domains.

mod alone;
mod arrivals;
mod report;
mod run;
mod seats;

use std::collections::{BTreeMap, BTreeSet};

use usher_control::ControlLoop;
use usher_model::ProgramId;

pub use self::alone::{MixSetup, ProgramModel};
pub use self::arrivals::{ArrivalSpec, arrival_specs};
pub use self::report::{ArrivalStats, MixReport};
use self::run::TrialRun;
pub use self::seats::{ActionCounts, SeatPeriod, SeatState};
use crate::campaign::Scheduler;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::machine::Machine;
use crate::mix::MixEntry;
use crate::record::Recording;
use crate::slurm_node::SlurmNode;
use crate::world::{SimWorld, StopCondition};

/// Reason why a mix cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TrialError {
    /// A program is invalid on this machine.
    #[error("program '{program}': {reason}")]
    Program {
        /// Name of the program.
        program: String,
        /// The reason.
        reason: String,
    },
    /// More programs would run at once than the limit for this number of CPUs.
    #[error(
        "{programs} programs would run at once on {cpus} CPUs; the maximum is {most}: remove some, or use a larger machine"
    )]
    TooMany {
        /// Number of programs.
        programs: usize,
        /// CPUs of the machine.
        cpus: usize,
        /// Maximum number of programs.
        most: usize,
    },
    /// The mix has too many distributions of domains for a scheduler that evaluates all of them.
    #[error(
        "the scheduler '{scheduler}' evaluates every distribution of whole domains, which is \
         impossible here: {reason}"
    )]
    Oracle {
        /// Name of the scheduler.
        scheduler: &'static str,
        /// The reason.
        reason: String,
    },
    /// A run cannot continue.
    #[error("{doing}: {fault}")]
    Fault {
        /// The activity that failed, for the message.
        doing: String,
        /// The reason.
        fault: Fault,
    },
}

/// Parameters of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialProtocol {
    /// Minimum number of completions of every repeating program.
    pub repetitions: u32,
    /// Seed of the random number generators.
    pub seed: u64,
    /// Maximum virtual length in seconds.
    pub max_seconds: f64,
    /// Maximum number of events.
    pub events_max: u64,
    /// Settings of the schedulers `oversubscribe` and `gang`.
    pub node: SlurmNode,
    /// Maximum number of recorded spans of programs on CPUs; 0: no recording.
    pub spans_max: usize,
}

/// The results of one program.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramOutcome {
    /// Name of the program; with a number if the program has several copies.
    pub name: String,
    /// Index of the program in the [`MixSetup`].
    pub program: usize,
    /// Time of arrival in virtual seconds.
    pub at_s: f64,
    /// Time of departure in virtual seconds, if the program departed.
    pub left_s: Option<f64>,
    /// Whether the program is a random arrival.
    pub random: bool,
    /// Duration of each repetition in seconds.
    pub seconds: Vec<f64>,
    /// Mean duration of a repetition, divided by the best duration alone; `None` if no repetition
    /// was completed.
    pub ntt: Option<f64>,
}

/// Result of one run of one scheduler.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The programs, in the order of their arrival.
    pub programs: Vec<ProgramOutcome>,
    /// Whether all programs completed the required repetitions in time.
    pub complete: bool,
    /// Virtual length in seconds.
    pub seconds: f64,
    /// Number of simulated events.
    pub events: u64,
    /// Number of actions of each kind.
    pub action_counts: ActionCounts,
    /// Seats over time. The program with index n in `programs` has the identifier n + 1.
    pub seat_periods: Vec<SeatPeriod>,
    /// Notes of the policy, each with the time in virtual seconds.
    pub notes: Vec<(f64, String)>,
    /// Recorded spans of programs on CPUs.
    pub recording: Recording,
}

/// Runs the mix under a scheduler.
///
/// # Errors
/// The mix has too many programs for the machine or the scheduler, the threads of a program are
/// deadlocked, or the number of events exceeds the limit.
pub fn run(
    setup: &MixSetup,
    arrival_specs: &[ArrivalSpec],
    scheduler: Scheduler,
    protocol: &TrialProtocol,
) -> Result<Trial, TrialError> {
    let entries: Vec<MixEntry> = arrival_specs
        .iter()
        .map(|c| setup.entry(c, scheduler))
        .collect();
    check_scheduler(&setup.machine, scheduler, arrival_specs)?;
    let until_ns = (protocol.max_seconds * 1e9) as u64;
    let mut engine = Engine::new(setup.machine.clone(), setup.kernel.clone(), protocol.seed);
    engine.limit_events(protocol.events_max);
    if protocol.spans_max > 0 {
        engine.record(protocol.spans_max);
    }
    let planned = arrival_specs.iter().zip(&entries);
    let planned = planned.enumerate().map(|(at, (c, e))| c.planned(at, e));
    let until = StopCondition {
        repetitions: usize::MAX,
        at_ns: until_ns,
    };
    let world = SimWorld::new(engine, planned.collect(), until);
    let id = |at: usize| ProgramId(at as u64 + 1);
    let all = || arrival_specs.iter().enumerate();
    let leaves: BTreeSet<_> = all()
        .filter_map(|(at, spec)| Some((spec.leaves_ns?, id(at))))
        .collect();
    let needs: BTreeMap<_, _> = all()
        .filter(|(_, spec)| spec.repeats && spec.leaves_ns.is_none())
        .map(|(at, _)| (id(at), protocol.repetitions as usize))
        .collect();
    let (machine, kernel) = (&setup.machine, &setup.kernel);
    let policy = scheduler.policy_on(machine, kernel, &entries, &protocol.node);
    let mut control = ControlLoop::new(policy, TrialRun::new(world, leaves, needs, until_ns));
    control.run();
    let (_, trial_run) = control.into_parts();
    result(setup, arrival_specs, scheduler, trial_run)
}

fn result(
    setup: &MixSetup,
    arrival_specs: &[ArrivalSpec],
    scheduler: Scheduler,
    mut trial_run: TrialRun,
) -> Result<Trial, TrialError> {
    let engine = trial_run.world.engine();
    if let Some(fault) = engine.fault() {
        return Err(TrialError::Fault {
            doing: format!("under {}", scheduler.name()),
            fault: fault.clone(),
        });
    }
    trial_run.log.end(engine.now_ns());
    if trial_run.log.seat_periods.len() >= seats::SPANS_MAX {
        let last_ns = trial_run
            .log
            .seat_periods
            .iter()
            .map(|stay| stay.from_ns)
            .max();
        let at_s = last_ns.unwrap_or(0) as f64 / 1e9;
        let text = "the seats after this time were not recorded, because the seats had changed \
                    too often";
        trial_run.notes.push((at_s, text.to_owned()));
    }
    let outcome = |(at, spec): (usize, &ArrivalSpec)| {
        let seconds = trial_run.world.seconds()[at].clone();
        let mean = seconds.iter().sum::<f64>() / seconds.len().max(1) as f64;
        let best = setup.programs[spec.program].best_seconds;
        ProgramOutcome {
            name: spec.name.clone(),
            program: spec.program,
            at_s: spec.at_ns as f64 / 1e9,
            left_s: trial_run.world.left_ns(at).map(|ns| ns as f64 / 1e9),
            random: spec.random,
            ntt: (!seconds.is_empty()).then(|| mean / best),
            seconds,
        }
    };
    Ok(Trial {
        programs: arrival_specs.iter().enumerate().map(outcome).collect(),
        complete: trial_run.complete,
        seconds: engine.now_ns() as f64 / 1e9,
        events: engine.events(),
        recording: engine.recording(),
        action_counts: trial_run.log.action_counts,
        seat_periods: trial_run.log.seat_periods,
        notes: trial_run.notes,
    })
}

/// Maximum number of distributions that an oracle evaluates.
const WAYS_MAX: f64 = 2e6;

/// Checks that a scheduler supports these programs. An oracle evaluates all distributions of
/// domains.
///
/// # Errors
/// Programs arrive or depart during the run, or there are too many distributions.
pub fn check_scheduler(
    machine: &Machine,
    scheduler: Scheduler,
    arrival_specs: &[ArrivalSpec],
) -> Result<(), TrialError> {
    if !matches!(scheduler, Scheduler::Oracle | Scheduler::OracleLending) {
        return Ok(());
    }
    let domains = machine.topology().domains.len();
    let programs = arrival_specs.len();
    let unsupported = |reason: String| {
        Err(TrialError::Oracle {
            scheduler: scheduler.name(),
            reason,
        })
    };
    if arrival_specs
        .iter()
        .any(|spec| spec.random || spec.at_ns > 0)
    {
        return unsupported("programs arrive or depart during the run".to_owned());
    }
    if programs > domains {
        return unsupported(format!(
            "the {programs} programs outnumber the machine's {domains} domains"
        ));
    }
    // Number of ways to divide at most `domains` domains among the programs.
    let ways = (0..programs).fold(1.0, |ways, k| ways * (domains - k) as f64 / (k + 1) as f64);
    match ways > WAYS_MAX {
        true => unsupported(format!(
            "{programs} programs on {domains} domains have {ways:.1e} distributions, which are \
             too many"
        )),
        false => Ok(()),
    }
}

/// Returns the name of a scheduler on the command line and in files.
pub fn scheduler_id(scheduler: Scheduler) -> &'static str {
    match scheduler {
        Scheduler::CasasLending => "casas-lending",
        Scheduler::UsherCold => "usher-cold",
        Scheduler::OracleLending => "oracle-lending",
        other => other.name(),
    }
}

/// Returns the scheduler of this name.
pub fn scheduler_by_id(id: &str) -> Option<Scheduler> {
    Scheduler::ALL
        .into_iter()
        .find(|&scheduler| scheduler_id(scheduler) == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduler_names_are_the_same_on_command_line_and_in_files() {
        for scheduler in Scheduler::ALL {
            let in_files = serde_json::to_value(scheduler).unwrap();
            assert_eq!(in_files, scheduler_id(scheduler));
        }
    }
}
