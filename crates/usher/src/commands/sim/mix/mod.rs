// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim mix`: runs the mix of a sim file on a simulated machine under several schedulers,
//! several rounds each.
//!
//! 1. Read the sim file and apply the options of the command line.
//! 2. For each round, draw the arrivals from the seed of the round, which is the seed of the mix
//!    plus the number of the round.
//! 3. Simulate every program alone, and then every scheduler in every round, with the arrivals of
//!    the round. The simulations run in parallel, one thread per CPU of the host.
//! 4. Compute NTT and ANTT, print them, and write the report and the traces (`report`).
//!
//! The same file and seed lead to the same results. A run ends at `max_seconds` of virtual time or
//! fails at `events_max` events; a failed run ends the command. A trace contains at most 100,000
//! spans of CPU time ([`SPANS_MAX`]). After an error, the directory of `--out` is removed if it is
//! empty.

mod report;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use usher_report::text as words;
use usher_sim::campaign::Scheduler;
use usher_sim::machine::Machine;
use usher_sim::mixfile::SimMix;
use usher_sim::parallel;
use usher_sim::trial::{
    self, ArrivalSpec, MixReport, MixSetup, ProgramModel, Trial, TrialError, TrialProtocol,
};
use usher_topology::Source;

use crate::cli::numbers::{seconds, whole};
use crate::failure::{self, Outcome};
use crate::output::Output;
use crate::progress::Progress;

/// Maximum number of spans of CPU time in the trace of one run. A truncated trace contains the time
/// up to which it is complete.
const SPANS_MAX: usize = 100_000;

/// Simulates a mix of programs on a described machine under several schedulers
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The file describes the machine, its kernel and the programs that run at the same time;
docs/sim-mix-file.md in the sources documents its format. Machine, kernel and programs are models;
the policies and the control loop are the code of the daemon. Every program is first simulated
alone. NTT is a program's time in the mix relative to its best time alone; ANTT is the mean of the
NTTs. The same file and seed give the same figures on every host.

Examples:
  usher sim mix examples/sim/paper1.toml
  usher sim mix examples/sim/arrivals.toml --seed 7
  usher sim mix examples/sim/phases.toml --against linux,usher,oracle --out report
  usher sim mix examples/sim/paper1.toml --from \"package:2 die:4 core:8 pu:2\"
  usher sim mix my.toml --json | jq '.result.policies[] | {name, antt: .rounds[0].antt}'")]
pub struct Args {
    /// Description of the machine, the programs, their arrivals and the rounds
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    /// Simulate these schedulers, separated by commas, and compare the others with the first; by
    /// default, the schedulers of the file
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = scheduler())]
    against: Option<Vec<Scheduler>>,
    /// Simulate this machine instead of the machine of the file: a value as for `usher topo
    /// --from`, or `this` for the machine that runs the command
    #[arg(long, value_name = "SPEC|FILE|DIR")]
    from: Option<String>,
    /// Seed the random number generators with N; by default, with the seed of the file
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0..=u64::MAX))]
    seed: Option<u64>,
    /// Simulate N rounds of each scheduler, each with its own seed; by default, as many as the file
    /// states
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=10_000))]
    rounds: Option<u32>,
    /// Repeat each program at least N times in a round; by default, as often as the file states
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=u32::MAX))]
    repetitions: Option<u32>,
    /// End each run after this simulated time; by default, as the file states
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    max_seconds: Option<f64>,
    /// End each run after N simulated events
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=u64::MAX))]
    events_max: Option<u64>,
    /// Write a report and traces into DIR
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn scheduler() -> impl TypedValueParser<Value = Scheduler> {
    let ids = Scheduler::ALL.map(trial::scheduler_id);
    PossibleValuesParser::new(ids).try_map(|id| trial::scheduler_by_id(&id).ok_or("no scheduler"))
}

/// A trial and the time to simulate it.
struct TimedTrial {
    trial: Trial,
    took: Duration,
}

/// Runs the command.
pub fn run(args: &Args, out: Output) -> Outcome {
    let mix = args.mix()?;
    let machine = machine(&mix)?;
    let rounds: Vec<RoundInput> = (0..mix.protocol.rounds)
        .map(|round| RoundInput::new(&mix, &machine, round))
        .collect::<Result<_, _>>()
        .with_context(|| format!("'{}'", args.file.display()))?;
    for &scheduler in &mix.protocol.policies {
        trial::check_scheduler(&machine, scheduler, &rounds[0].arrival_specs)?;
    }
    if let Some(dir) = &args.out {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("making the directory '{}'", dir.display()))?;
    }
    let progress = Progress::new();
    let simulated = args.simulate(&mix, &machine, &rounds, &progress);
    progress.end();
    let (setup, timed) = match simulated {
        Ok(simulated) => simulated,
        Err(error) => {
            // Removes the directory if it is empty, as it is if this run created it.
            let _ = args.out.as_ref().map(std::fs::remove_dir);
            return Err(error).with_context(|| format!("'{}'", args.file.display()));
        }
    };
    let took = total(&timed);
    let trials: Vec<(Scheduler, Vec<Trial>)> = timed
        .into_iter()
        .map(|(scheduler, timed)| (scheduler, timed.into_iter().map(|t| t.trial).collect()))
        .collect();
    let mix_report = MixReport {
        mix: &mix,
        setup: &setup,
        command: command(),
        trials: &trials,
    };
    let result = mix_report.result();
    let (written, unwritten) = match &args.out {
        Some(dir) => report::write(&mix_report, &result, dir),
        None => (Vec::new(), Vec::new()),
    };
    let answer = report::answer(&mix_report, &result, &written);
    let printed = out.answer(&answer, || {
        report::text(&mix_report, &result, &took, &written, out)
    });
    failure::combine(unwritten.into_iter().map(Err).chain([printed]))
}

/// The arrivals of a round, and its protocol.
struct RoundInput {
    number: u32,
    arrival_specs: Vec<ArrivalSpec>,
    protocol: TrialProtocol,
}

impl RoundInput {
    fn new(mix: &SimMix, machine: &Machine, number: u32) -> Result<Self, TrialError> {
        let seed = mix.protocol.seed.wrapping_add(u64::from(number));
        Ok(Self {
            number,
            arrival_specs: trial::arrival_specs(mix, machine.topology().cpus.len(), seed)?,
            protocol: TrialProtocol {
                repetitions: mix.protocol.repetitions,
                seed,
                max_seconds: mix.protocol.max_seconds,
                events_max: mix.protocol.events_max,
                node: mix.protocol.node,
                spans_max: 0,
            },
        })
    }
}

/// Every scheduler with its rounds.
type AllTimed = Vec<(Scheduler, Vec<TimedTrial>)>;

impl Args {
    /// The file's mix with the overrides of the command line.
    fn mix(&self) -> anyhow::Result<SimMix> {
        let reading = || format!("reading the mix '{}'", self.file.display());
        let text = usher_topology::file::read_text(&self.file).with_context(reading)?;
        let mut mix = SimMix::parse(&self.file, &text)?;
        if let Some(from) = &self.from {
            mix.machine.clone_from(from);
            // The path is relative to the working directory.
            mix.path = PathBuf::from(self.file.file_name().unwrap_or_default());
        }
        let protocol = &mut mix.protocol;
        if let Some(against) = &self.against {
            protocol.policies = against.clone();
            protocol
                .policies
                .sort_by_key(|s| against.iter().position(|a| a == s));
            protocol.policies.dedup();
        }
        protocol.seed = self.seed.unwrap_or(protocol.seed);
        protocol.rounds = self.rounds.unwrap_or(protocol.rounds);
        protocol.repetitions = self.repetitions.unwrap_or(protocol.repetitions);
        protocol.max_seconds = self.max_seconds.unwrap_or(protocol.max_seconds);
        protocol.events_max = self.events_max.unwrap_or(protocol.events_max);
        Ok(mix)
    }

    fn simulate(
        &self,
        mix: &SimMix,
        machine: &Machine,
        rounds: &[RoundInput],
        progress: &Progress,
    ) -> anyhow::Result<(MixSetup, AllTimed)> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let against = &mix.protocol.policies;
        progress.steps((mix.programs.len() + rounds.len() * against.len()) as u64);
        let programs = parallel::each(&mix.programs, workers, &|program| {
            progress.doing(format!("{} alone", program.name));
            let model = ProgramModel::measure(program, mix, machine, mix.protocol.seed);
            progress.step();
            model
        });
        let setup = MixSetup {
            machine: machine.clone(),
            kernel: mix.kernel.clone(),
            programs: programs.into_iter().collect::<Result<_, _>>()?,
        };
        let runs: Vec<(Scheduler, &RoundInput)> = against
            .iter()
            .flat_map(|&scheduler| rounds.iter().map(move |round| (scheduler, round)))
            .collect();
        let timed = parallel::each(&runs, workers, &|&(scheduler, round)| {
            progress.doing(format!("{}, round {}", scheduler.name(), round.number + 1));
            let mut protocol = round.protocol;
            if self.out.is_some() && round.number == 0 {
                protocol.spans_max = SPANS_MAX;
            }
            let began = Instant::now();
            let trial = trial::run(&setup, &round.arrival_specs, scheduler, &protocol);
            progress.step();
            trial.map(|trial| TimedTrial {
                trial,
                took: began.elapsed(),
            })
        });
        let mut timed = timed.into_iter();
        let mut all = Vec::new();
        for &scheduler in against {
            let own = timed
                .by_ref()
                .take(rounds.len())
                .collect::<Result<_, _>>()?;
            all.push((scheduler, own));
        }
        Ok((setup, all))
    }
}

/// Time to simulate each scheduler.
fn total(timed: &AllTimed) -> Vec<Duration> {
    let sum = |(_, rounds): &(Scheduler, Vec<TimedTrial>)| rounds.iter().map(|t| t.took).sum();
    timed.iter().map(sum).collect()
}

/// The machine that a mix describes.
fn machine(mix: &SimMix) -> anyhow::Result<Machine> {
    let spec = mix.machine_source();
    let source = match spec.as_str() {
        "this" => Source::ThisMachine,
        _ => Source::parse(&spec)?,
    };
    let topology = usher_topology::describe(source)
        .and_then(|machine| {
            failure::print_notes(&machine.notes);
            machine.usable()
        })
        .with_context(|| format!("reading the machine '{}'", words::cut(&spec, 60)))?;
    mix.kernel
        .check(&topology)
        .with_context(|| format!("reading the machine '{}'", words::cut(&spec, 60)))?;
    Ok(Machine::new(topology, mix.costs.clone()))
}

/// The command line, with the program's name instead of its path.
fn command() -> String {
    let mut args = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let program = args.next().unwrap_or_default();
    let name = Path::new(&program)
        .file_name()
        .map(|n| n.to_string_lossy().into_owned());
    let words = name.into_iter().chain(args);
    words.collect::<Vec<_>>().join(" ")
}
