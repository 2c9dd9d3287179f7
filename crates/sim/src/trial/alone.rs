// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prepares the programs of a simulated mix: builds the script of each program for the machine, and
//! measures the program alone. The measurements cover 1, 2, 4, … cores of the first domain, and
//! then whole domains. On machines with up to 12 domains, every number of domains is measured; on
//! larger machines, 1, 2, 3, 4, 6, 8, 12, … domains and all domains. The measurements give the
//! program's curve, best time and work. A measurement is limited to ten times the maximum length of
//! a run.
//!
//! A measurement is also limited to the number of events of a run. A measurement that exceeds a
//! limit is an error.

use std::collections::BTreeMap;
use std::sync::Arc;

use usher_model::{CpuSet, Curve, CurvePoint, Topology};

use super::TrialError;
use crate::alone::AloneResult;
use crate::engine::{Engine, SimEvent};
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::mixfile::{ProgramBody, SimMix, SimProgram};
use crate::parsec::ParsecTraits;
use crate::script::Script;

/// Maximum duration of a program alone, as a multiple of the maximum length of a run.
const ALONE_FACTOR: f64 = 10.0;
/// On machines with up to this number of domains, every number of domains is measured.
const DOMAINS_ALL: usize = 12;

/// A program of the mix, with the properties that all its copies share.
#[derive(Debug, Clone)]
pub struct ProgramModel {
    /// Name of the program.
    pub name: String,
    /// Description of the program, for output.
    pub about: String,
    /// Script with the steps of the program's threads.
    pub script: Arc<Script>,
    /// Repetitions per second of the program alone, by number of cores.
    pub alone: Curve,
    /// Duration of a repetition on the best number of cores, in seconds.
    pub best_seconds: f64,
    /// The number of cores on which the program is fastest; a slower core counts as a fraction.
    pub best_cores: f64,
    /// Work of a repetition, in nanoseconds of an undisturbed core.
    pub work_ns: f64,
    /// Weight of the program's NTT in the mean.
    pub weight: f64,
    /// Number of CPUs that the program requests as a job of Slurm; `None`: all CPUs.
    pub cpus: Option<u32>,
    /// Whether the policy `usher` has a profile of the program.
    pub known: bool,
}

/// The programs of a mix with their machine and kernel.
#[derive(Debug, Clone)]
pub struct MixSetup {
    /// The machine.
    pub machine: Machine,
    /// Kernel of the machine.
    pub kernel: Kernel,
    /// The programs, in the order of the file.
    pub programs: Vec<ProgramModel>,
}

impl ProgramModel {
    /// Builds the script of a program for the machine, and measures the program alone.
    ///
    /// # Errors
    /// The script is invalid, or the program does not end.
    pub fn measure(
        program: &SimProgram,
        mix: &SimMix,
        machine: &Machine,
        seed: u64,
    ) -> Result<Self, TrialError> {
        let (about, script) = script(program, machine);
        script.check().map_err(|error| TrialError::Program {
            program: program.name.clone(),
            reason: error.reason,
        })?;
        let script = Arc::new(script);
        let (alone, work_ns) = curve(&script, mix, machine, seed)?;
        let (best_seconds, best_cores) = alone
            .points()
            .iter()
            .map(|point| (1.0 / point.rate, point.cores))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or((f64::NAN, 0.0));
        Ok(Self {
            name: program.name.clone(),
            about,
            script,
            alone,
            best_seconds,
            best_cores,
            work_ns,
            weight: program.weight,
            cpus: program.cpus,
            known: program.known,
        })
    }
}

/// Returns a description of the program for output, and its script for the machine.
fn script(program: &SimProgram, machine: &Machine) -> (String, Script) {
    match &program.body {
        ProgramBody::Script(script) => {
            let about = format!("script with {} threads", script.threads());
            (about, Script::clone(script))
        }
        ProgramBody::Traits {
            from,
            traits,
            elsewhere,
            threads,
            seconds,
        } => {
            let adapted = match elsewhere {
                true => traits.adapted_to(machine.costs()),
                false => ParsecTraits::clone(traits),
            };
            let threads = threads.unwrap_or(machine.topology().cores.len() as u32);
            let (adapted, frames) = adapted.with_duration(*seconds);
            let about = format!("{from}, {threads} threads, {seconds} s of work");
            (about, adapted.script(&program.name, threads, frames))
        }
    }
}

fn curve(
    script: &Arc<Script>,
    mix: &SimMix,
    machine: &Machine,
    seed: u64,
) -> Result<(Curve, f64), TrialError> {
    let topology = machine.topology();
    let mut points = BTreeMap::new();
    let mut work = 0.0;
    for cpus in sets(topology) {
        let alone = once(script, mix, machine, &cpus, seed)?;
        work = alone.work_ns;
        let cores = topology.capacity_of(&cpus);
        let point = CurvePoint {
            cores,
            rate: 1.0 / alone.seconds,
            relative_error: 0.0,
            busy_cpus: Some(alone.busy_cpus),
        };
        points.insert((cores * 1e3) as u64, point);
    }
    let points = points.into_values().collect();
    let curve = Curve::new(points).map_err(|error| TrialError::Program {
        program: script.name.clone(),
        reason: format!(
            "the scalability of the program cannot be determined by simulating it \
                         alone: {error}"
        ),
    })?;
    Ok((curve, work))
}

/// Returns the CPU sets of the measurements: 1, 2, 4, … cores of the first domain, then whole
/// domains.
fn sets(topology: &Topology) -> Vec<CpuSet> {
    let domains = topology.domains.len();
    let first = topology.domains.first().map_or(&[][..], |d| &d.cores);
    let within = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|&n| n < first.len());
    let mut sets: Vec<CpuSet> = within
        .map(|n| topology.cpus_of_cores(first[..n].iter().copied()))
        .collect();
    let steps = (0..).flat_map(|k| [2_usize << k, 3 << k]);
    let few = std::iter::once(1).chain(steps).take_while(|&n| n < domains);
    let counts: Vec<usize> = match domains <= DOMAINS_ALL {
        true => (1..=domains).collect(),
        false => few.chain([domains]).collect(),
    };
    let upto = |count: usize| {
        let all = topology.domains[..count].iter();
        all.fold(CpuSet::new(), |set, domain| set.or(&domain.cpus))
    };
    sets.extend(counts.into_iter().map(upto));
    sets
}

/// Returns the duration and the work of one repetition alone on these CPUs.
fn once(
    script: &Arc<Script>,
    mix: &SimMix,
    machine: &Machine,
    cpus: &CpuSet,
    seed: u64,
) -> Result<AloneResult, TrialError> {
    let wrong = |reason: String| TrialError::Program {
        program: script.name.clone(),
        reason,
    };
    let cores = machine.topology().cores_in(cpus).len();
    // No other program runs, so that the machine can be restricted to the program's CPUs.
    let own = machine.topology().restrict(cpus);
    let own = own.map_err(|error| wrong(format!("simulated alone on {cores} cores: {error}")))?;
    let machine = Machine::new(own, mix.costs.clone());
    let mut engine = Engine::new(machine, mix.kernel.clone(), seed);
    engine.limit_events(mix.protocol.events_max);
    let program = engine.arrive(Arc::clone(script), false);
    let most_s = mix.protocol.max_seconds * ALONE_FACTOR;
    let ran = engine.run((most_s * 1e9) as u64);
    let on = match cores {
        1 => "1 core".to_owned(),
        n => format!("{n} cores"),
    };
    ran.map_err(|fault| TrialError::Fault {
        doing: format!("simulating '{}' alone on {on}", script.name),
        fault,
    })?;
    let ended = engine
        .take_sim_events()
        .into_iter()
        .find_map(|event| match event {
            SimEvent::Repeated { seconds, .. } => Some(seconds),
            SimEvent::Ended(_) => None,
        });
    match ended {
        Some(seconds) if seconds > 0.0 => Ok(AloneResult {
            seconds,
            work_ns: engine.work_ns(program),
            busy_cpus: engine.cpu_ns(program) / 1e9 / seconds,
        }),
        Some(_) => Err(wrong("the program has no work".to_owned())),
        None => Err(wrong(format!(
            "the program alone on {on} takes more than {most_s} s; reduce its work, or raise \
             max_seconds"
        ))),
    }
}
