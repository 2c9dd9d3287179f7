// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench tasks`: the costs of `usher-tasks` and the gain from its order, against common
//! runtimes, compiled and run beside it.
//!
//! The workload, its checks and its clock are one file in C (`peers/workload.c`) that is linked
//! into every program: this program, which runs usher-tasks, rayon and plain loops (`inside`),
//! and a program for each C++ runtime (`peers/`), compiled when the benchmark runs (`toolchain`).
//! `rounds` runs all of them in turns and `study` compares them. A file for each part defines its
//! bars.

mod compute;
mod contestants;
mod footprint;
mod fork_join;
mod grain;
mod inside;
mod memory;
mod misses;
mod overhead;
mod rounds;
mod show;
mod study;
mod taskflow;
mod toolchain;
mod workload;

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
    /// A 4K frame with memory-bound tasks: the gain by the order of tasks
    Memory,
    /// Cache misses and instructions, counted by cachegrind
    Misses,
    /// Tasks that compute for microseconds
    Compute,
    /// Memory per task, and ten million tasks in flight
    Footprint,
}

/// A runtime with a program of its own.
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

/// Parses a peer's name; an empty name stands for no peer.
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

    /// Programs to compile.
    fn programs(&self) -> Vec<Program> {
        let all = || Peer::value_variants().iter().copied();
        let peers: Vec<Peer> = match &self.peers {
            Some(peers) => peers.iter().flatten().copied().collect(),
            None => all().collect(),
        };
        let compared =
            |which: &TasksPart| !matches!(which, TasksPart::Misses | TasksPart::Footprint);
        let parts = TasksPart::value_variants()
            .iter()
            .filter(|&&which| self.wants(which));
        match parts.copied().any(|which| compared(&which)) {
            true => peers.into_iter().map(Peer::program).collect(),
            false => Vec::new(),
        }
    }

    /// The selected numbers of threads; default: 1, and 2 if there are two CPUs.
    fn threads(&self) -> Vec<u32> {
        if !self.threads.is_empty() {
            return self.threads.clone();
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        (1..=cpus.min(2) as u32).collect()
    }

    /// Numbers of rounds, frames and threads of a part.
    fn settings(&self, which: TasksPart) -> RoundSettings {
        let (ms, frames) = match which {
            TasksPart::Grain => (30, 5),
            TasksPart::Memory => (300, 4),
            TasksPart::Compute => (200, 3),
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

/// Runs the selected parts, saves and shows them. Returns whether every bar was met.
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
        // After each part, so that its results survive a failure of the next.
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
        TasksPart::Memory => memory::run(programs, &settings, args.quick),
        TasksPart::Misses => misses::run(programs, scratch)?,
        TasksPart::Compute => compute::run(programs, &settings),
        TasksPart::Footprint => footprint::run(settings.threads_max(), args.quick)?,
    })
}

/// Notes on the compared programs.
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

/// Prints text on standard output, unless JSON is printed there.
fn print_line(args: &TasksArgs, text: &str) -> Result<()> {
    if !args.json {
        return machine::print_line(text);
    }
    eprintln!("{text}");
    Ok(())
}
