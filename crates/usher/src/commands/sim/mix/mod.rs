// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim mix`: a mix from a file on a simulated machine.

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
use usher_sim::trial::{self, Cast, Coming, Protocol, Role, Show, Trial, TrialError};
use usher_topology::Source;

use crate::failure::{self, Outcome};
use crate::output::Output;
use crate::progress::Progress;

/// Spans of CPU time that a trace holds; later ones are left out, and it says so.
const SPANS_MAX: usize = 100_000;

/// Simulates a mix of programs on a described machine under several schedulers
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The file says which machine, which kernel and which programs; docs/sim-mix-file.md of the
sources says what may stand in it. Programs are models, and the machine and its kernel
too; the policies and the loop that runs them are those that ship. Every program is run
alone first; NTT is its time in the mix relative to its best alone, ANTT the mean of these.
One seed makes everything: the same file and seed give the same figures everywhere.

Examples:
  usher sim mix examples/sim/paper1.toml
  usher sim mix examples/sim/arrivals.toml --seed 7
  usher sim mix examples/sim/phases.toml --against linux,usher,oracle --out report
  usher sim mix examples/sim/paper1.toml --from \"package:2 die:4 core:8 pu:2\"
  usher sim mix my.toml --json | jq '.result.policies[] | {name, antt: .rounds[0].antt}'")]
pub struct Args {
    /// The mix: a machine, programs, arrivals, the protocol
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    /// Schedulers, separated by commas; the first is what the others are compared with
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = scheduler())]
    against: Option<Vec<Scheduler>>,
    /// Another machine than the file's, as 'usher topo --from' has it, or 'this'
    #[arg(long, value_name = "SPEC|FILE|DIR")]
    from: Option<String>,
    /// Seed of everything random; as the file says if left out
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Rounds of each scheduler, each with a seed of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: Option<u32>,
    /// Repetitions of each program in a round at least
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: Option<u32>,
    /// Virtual seconds that a run may take
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = crate::commands::run::seconds)]
    max_seconds: Option<f64>,
    /// Events that a run may take
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    events_max: Option<u64>,
    /// Where a report and traces go; nowhere if left out
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn scheduler() -> impl TypedValueParser<Value = Scheduler> {
    let ids = Scheduler::ALL.map(trial::scheduler_id);
    PossibleValuesParser::new(ids).try_map(|id| trial::scheduler_by_id(&id).ok_or("no scheduler"))
}

/// A trial and how long it took to simulate.
struct Timed {
    trial: Trial,
    took: Duration,
}

/// Simulates, writes the report, prints the result.
pub fn run(args: &Args, out: Output) -> Outcome {
    let mix = args.mix()?;
    let machine = machine(&mix)?;
    let rounds: Vec<Round> = (0..mix.protocol.rounds)
        .map(|round| Round::new(&mix, &machine, round))
        .collect::<Result<_, _>>()
        .with_context(|| format!("'{}'", args.file.display()))?;
    for &scheduler in &mix.protocol.against {
        trial::can(&machine, scheduler, &rounds[0].comings)?;
    }
    if let Some(dir) = &args.out {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("making the directory '{}'", dir.display()))?;
    }
    let progress = Progress::new();
    let simulated = args.simulate(&mix, &machine, &rounds, &progress);
    progress.end();
    let (cast, timed) = match simulated {
        Ok(simulated) => simulated,
        Err(error) => {
            // Made for nothing; one that was there before and holds something stays.
            let _ = args.out.as_ref().map(std::fs::remove_dir);
            return Err(error).with_context(|| format!("'{}'", args.file.display()));
        }
    };
    let took = total(&timed);
    let trials: Vec<(Scheduler, Vec<Trial>)> = timed
        .into_iter()
        .map(|(scheduler, timed)| (scheduler, timed.into_iter().map(|t| t.trial).collect()))
        .collect();
    let show = Show {
        mix: &mix,
        cast: &cast,
        command: command(),
        trials: &trials,
    };
    let result = show.result();
    let (written, unwritten) = match &args.out {
        Some(dir) => report::write(&show, &result, dir),
        None => (Vec::new(), Vec::new()),
    };
    let answer = report::answer(&show, &result, &written);
    let shown = out.answer(&answer, || {
        report::text(&show, &result, &took, &written, out)
    });
    failure::of_parts(unwritten.into_iter().map(Err).chain([shown]))
}

/// Who comes in a round, and its seed.
struct Round {
    number: u32,
    comings: Vec<Coming>,
    protocol: Protocol,
}

impl Round {
    fn new(mix: &SimMix, machine: &Machine, number: u32) -> Result<Self, TrialError> {
        let seed = mix.protocol.seed.wrapping_add(u64::from(number));
        Ok(Self {
            number,
            comings: trial::comings(mix, machine.topology().cpus.len(), seed)?,
            protocol: Protocol {
                repetitions: mix.protocol.repetitions,
                seed,
                max_seconds: mix.protocol.max_seconds,
                events_max: mix.protocol.events_max,
                spans_max: 0,
            },
        })
    }
}

/// Every scheduler with its rounds.
type AllTimed = Vec<(Scheduler, Vec<Timed>)>;

impl Args {
    /// The file, with what the command line says instead.
    fn mix(&self) -> anyhow::Result<SimMix> {
        let mut mix = SimMix::read(&self.file)?;
        if let Some(from) = &self.from {
            mix.machine.clone_from(from);
            // It starts from where the command was given.
            mix.path = PathBuf::from(self.file.file_name().unwrap_or_default());
        }
        let protocol = &mut mix.protocol;
        if let Some(against) = &self.against {
            protocol.against = against.clone();
            protocol
                .against
                .sort_by_key(|s| against.iter().position(|a| a == s));
            protocol.against.dedup();
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
        rounds: &[Round],
        progress: &Progress,
    ) -> anyhow::Result<(Cast, AllTimed)> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let against = &mix.protocol.against;
        progress.steps((mix.programs.len() + rounds.len() * against.len()) as u64);
        let roles = parallel::each(&mix.programs, workers, &|program| {
            progress.doing(format!("{} alone", program.name));
            let role = Role::measure(program, mix, machine, mix.protocol.seed);
            progress.step();
            role
        });
        let cast = Cast {
            machine: machine.clone(),
            kernel: mix.kernel.clone(),
            roles: roles.into_iter().collect::<Result<_, _>>()?,
        };
        let runs: Vec<(Scheduler, &Round)> = against
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
            let trial = trial::run(&cast, &round.comings, scheduler, &protocol);
            progress.step();
            trial.map(|trial| Timed {
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
        Ok((cast, all))
    }
}

/// How long each scheduler took to simulate.
fn total(timed: &AllTimed) -> Vec<Duration> {
    let sum = |(_, rounds): &(Scheduler, Vec<Timed>)| rounds.iter().map(|t| t.took).sum();
    timed.iter().map(sum).collect()
}

/// The machine that a mix describes.
fn machine(mix: &SimMix) -> anyhow::Result<Machine> {
    let spec = mix.machine_source();
    let source = match spec.as_str() {
        "this" => Source::ThisMachine,
        _ => Source::parse(&spec)?,
    };
    let topology = usher_topology::load(source)
        .with_context(|| format!("the machine '{}'", words::cut(&spec, 60)))?;
    mix.kernel
        .check(&topology)
        .with_context(|| format!("the machine '{}'", words::cut(&spec, 60)))?;
    Ok(Machine::new(topology, mix.costs.clone()))
}

/// The command that runs this again, less the folder of the program.
fn command() -> String {
    let mut args = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let program = args.next().unwrap_or_default();
    let name = Path::new(&program)
        .file_name()
        .map(|n| n.to_string_lossy().into_owned());
    let words = name.into_iter().chain(args);
    words.collect::<Vec<_>>().join(" ")
}
