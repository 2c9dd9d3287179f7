// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench tasks`: measures the cost of a task in `usher-tasks` and the gain from its order of
//! tasks, in comparison with common task runtimes.
//!
//! 1. The workload is a C file (`peers/workload.c`), which also checks the results and measures the
//!    times. Each program links this file. This program runs the workload on usher-tasks, on rayon
//!    and in plain loops (`inside`). There is a further program for each C++ runtime (folder
//!    `peers`), which `toolchain` compiles at the start of the benchmark.
//! 2. `rounds` runs the programs in rounds, each program once per round, in a process of its own.
//! 3. `study` compares the times of a round. Each part has a module with its bars.

mod compute;
mod contestants;
mod depend;
mod footprint;
mod fork_join;
mod grain;
mod inside;
mod loops;
mod memory;
mod misses;
mod overhead;
mod rounds;
mod show;
mod study;
mod taskflow;
mod tokens;
mod toolchain;
mod workers;
mod workload;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;

use crate::bars::{Bar, Part};
use crate::machine;
use contestants::Program;
pub use inside::{COMMAND as INSIDE, InsideArgs, run as run_inside};
use rounds::RoundSettings;
use toolchain::Programs;

/// The parts, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TasksPart {
    /// Cost of an empty task
    Overhead,
    /// Efficiency of short tasks: METG(50 %)
    Grain,
    /// fib(25) by forking and joining
    ForkJoin,
    /// Parallel loops and reductions over ten million items
    Loops,
    /// Tasks by token, dense and free
    Tokens,
    /// A Cholesky factorisation by tasks that are ordered by their data
    Depend,
    /// A 4K frame with memory-bound tasks: the gain by the order of tasks
    Memory,
    /// Cache misses and instructions, counted by cachegrind
    Misses,
    /// Tasks that compute for microseconds
    Compute,
    /// Memory per task, and ten million tasks in flight
    Footprint,
    /// CPU time of more workers than CPUs
    Workers,
}

/// A runtime that a separate C++ program uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// oneTBB
    Onetbb,
    /// Taskflow
    Taskflow,
    /// GCC's OpenMP, libgomp
    GnuOpenmp,
    /// LLVM's OpenMP, libomp
    LlvmOpenmp,
}

impl Peer {
    fn program(self) -> Program {
        match self {
            Self::Onetbb => Program::OneTbb,
            Self::Taskflow => Program::Taskflow,
            Self::GnuOpenmp => Program::GnuOpenMp,
            Self::LlvmOpenmp => Program::LlvmOpenMp,
        }
    }
}

/// Options of the benchmark.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
The benchmark compiles the same workload with oneTBB, Taskflow and OpenMP for this machine
(scripts/setup bench installs compilers and libraries; Taskflow's headers are fetched once
from Debian trixie by apt-get into the user's cache). Then the benchmark runs the compiled
programs, rayon and usher-tasks alternately: each round runs each runtime once, in a process
that checks its own result. The benchmark compares ratios within a round, which limits the
effect of other load; nevertheless, run nothing else on the machine.

The workload is a video frame that is processed as a wavefront. A task is one of eight
stages of a macroblock. A task waits for the previous stage of the same macroblock and for
the same stage of the neighbours to the left, above, and above to the right.

The exit status is 0 if every bar is met, 1 if a bar is missed, and 125 if the benchmark
could not run. `usher bench format RESULT.JSON` writes the report page of a saved result.

Examples:
  usher bench tasks                          # runs all parts in a quarter of an hour
  usher bench tasks --quick                  # runs for three minutes; noise may miss bars
  usher bench tasks --only overhead,memory
  usher bench tasks --only grain --peers ''  # compares with rayon only; needs no compiler
  usher bench tasks --threads 1,8,64         # bars apply only to 1 and 2 threads")]
pub struct TasksArgs {
    /// Run only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<TasksPart>,
    /// Run fewer and shorter rounds with less memory
    #[arg(long)]
    quick: bool,
    /// Run each runtime this many times in a part; 9 by default (memory: 5), or 3 with --quick
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Run with these numbers of threads
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Compare only with rayon and these peers: onetbb, taskflow, gnu-openmp, llvm-openmp
    #[arg(long, value_delimiter = ',', value_parser = peer)]
    peers: Option<Vec<Option<Peer>>>,
    /// Use the headers of Taskflow in this directory instead of Debian's
    #[arg(long, value_name = "DIR")]
    taskflow: Option<PathBuf>,
    /// Print the saved result as JSON, and all other output on standard error
    #[arg(long)]
    json: bool,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
}

/// Parses the name of a peer; an empty name means no peer.
fn peer(name: &str) -> Result<Option<Peer>, String> {
    match name {
        "" => Ok(None),
        name => Peer::from_str(name, false).map(Some),
    }
}

impl TasksArgs {
    fn wants(&self, which: TasksPart) -> bool {
        self.only.is_empty() || self.only.contains(&which)
    }

    /// Returns the C++ programs to compile.
    fn programs(&self) -> Vec<Program> {
        let all = || Peer::value_variants().iter().copied();
        let peers: Vec<Peer> = match &self.peers {
            Some(peers) => peers.iter().flatten().copied().collect(),
            None => all().collect(),
        };
        let compared = |which: &TasksPart| {
            use TasksPart::{Footprint, Misses, Workers};
            !matches!(which, Misses | Footprint | Workers)
        };
        let parts = TasksPart::value_variants()
            .iter()
            .filter(|&&which| self.wants(which));
        match parts.copied().any(|which| compared(&which)) {
            true => peers.into_iter().map(Peer::program).collect(),
            false => Vec::new(),
        }
    }

    /// Returns the selected numbers of threads. The default is 1, and also 2 on a machine with at
    /// least two CPUs.
    fn threads(&self) -> Vec<u32> {
        if !self.threads.is_empty() {
            return self.threads.clone();
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        (1..=cpus.min(2) as u32).collect()
    }

    /// Returns the numbers of rounds, frames and threads of a part.
    fn settings(&self, which: TasksPart) -> RoundSettings {
        let (ms, frames) = match which {
            TasksPart::Grain => (30, 5),
            TasksPart::Memory => (300, 4),
            TasksPart::Compute => (200, 3),
            TasksPart::Loops => (150, 5),
            _ => (200, 10),
        };
        let rounds = match which {
            _ if self.quick => 3,
            TasksPart::Memory => 5,
            _ => 9,
        };
        RoundSettings {
            rounds: self.rounds.unwrap_or(rounds),
            ms: if self.quick { ms / 3 } else { ms },
            frames: if self.quick { 3 } else { frames },
            threads: self.threads(),
        }
    }
}

/// Runs the selected parts, saves and prints their results. Returns whether every bar was met.
pub fn run(args: &TasksArgs) -> Result<bool> {
    let folder = machine::run_folder(&args.out, "tasks")?;
    let scratch = tempfile::tempdir()?;
    let mut machine = crate::machine::facts()?;
    let programs = toolchain::build(scratch.path(), &args.programs(), args.taskflow.as_deref())?;
    programs
        .missing
        .iter()
        .for_each(|missing| eprintln!("tasks: {missing}"));
    machine.notes.extend(notes(&programs));
    let mut parts: Vec<Part> = Vec::new();
    for &which in TasksPart::value_variants() {
        if !args.wants(which) {
            continue;
        }
        let part = part(args, which, &programs, scratch.path())
            .unwrap_or_else(|error| show::not_measured(&format!("{which:?}"), &error));
        print_line(args, &part.lines())?;
        parts.push(part);
        // The results are saved after each part, so that they are not lost if a later part fails.
        machine::save(
            &folder,
            "usher-tasks and other task runtimes",
            &machine,
            &parts,
        )?;
    }
    let result = folder.join("result.json");
    if args.json {
        machine::print_line(std::fs::read_to_string(&result)?)?;
    }
    let page = folder.join("report.html");
    print_line(
        args,
        &format!(
            "results saved in {}, report page {}",
            folder.display(),
            page.display()
        ),
    )?;
    Ok(parts.iter().all(|part| part.bars.iter().all(Bar::is_met)))
}

fn part(args: &TasksArgs, which: TasksPart, programs: &Programs, scratch: &Path) -> Result<Part> {
    let settings = args.settings(which);
    Ok(match which {
        TasksPart::Overhead => overhead::run(programs, &settings),
        TasksPart::Grain => grain::run(programs, &settings),
        TasksPart::ForkJoin => fork_join::run(programs, &settings),
        TasksPart::Loops => loops::run(programs, &settings),
        TasksPart::Tokens => tokens::run(programs, &settings),
        TasksPart::Depend => depend::run(programs, &settings),
        TasksPart::Memory => memory::run(programs, &settings, args.quick),
        TasksPart::Misses => misses::run(programs, scratch)?,
        TasksPart::Compute => compute::run(programs, &settings),
        TasksPart::Footprint => footprint::run(settings.threads_max(), args.quick)?,
        TasksPart::Workers => workers::run(&settings)?,
    })
}

/// Returns notes about the compared programs: versions, and missing programs with the reasons.
fn notes(programs: &Programs) -> Vec<String> {
    let mut versions = vec![format!("rayon {}", env!("USHER_BENCH_RAYON"))];
    versions.extend(programs.versions.iter().cloned());
    let mut notes = vec![
        format!("against {}", versions.join("; ")),
        "The C++ peers are compiled with -O3 -march=native, and Rust for the generic processor. \
         The work of a task is the same C file in C++ and Rust programs, compiled with the same \
         options."
            .to_owned(),
    ];
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    if let Some((minute, _)) = load.split_once(' ') {
        notes.push(format!(
            "load average at the start of the benchmark: {minute}"
        ));
    }
    notes.extend(programs.missing.iter().cloned());
    notes
}

/// Prints text on standard output, or on standard error if standard output contains the JSON
/// result.
fn print_line(args: &TasksArgs, text: &str) -> Result<()> {
    if !args.json {
        return machine::print_line(text);
    }
    eprintln!("{text}");
    Ok(())
}

/// Parses lines that consist of a name and a number.
fn numbers(text: &str) -> BTreeMap<String, f64> {
    let number = |line: &str| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    text.lines().filter_map(number).collect()
}
