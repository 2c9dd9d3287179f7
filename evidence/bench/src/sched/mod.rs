// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench sched`: measures the effect of scheduling that considers address spaces and
//! hardware threads (papers 3b and 4). Usher's scheduler is compared with the kernel's EEVDF, the
//! papers' baselines and schedulers of other projects.
//!
//! All parts except `switches` run in guests (virtual machines) of the lab, so that each scheduler
//! can run without effect on the host. All of these parts except `elapsed` run in virtual time, in
//! which one instruction takes 1 ns: counts, waiting times and placement are valid, but speeds are
//! not.
//!
//! - `schedulers`: the compared schedulers; `peers`: builds schedulers of other projects; `otp`:
//!   downloads Erlang;
//! - `guests`: the loads and schedulers of each machine;
//! - `machines`: the machines of the guests; `sched_part`: names of the parts; `lab`: starts guests
//!   and records the lines that they print; `messages`, `sample_names`: format of the lines and of
//!   the plan; `progress`: remaining time; `resume`: checks of a resumed run;
//! - `inside`: the program that runs in the guest; `turns`: two partners that run alternately;
//! - `switches`, `spaces`, `erlang`, `elapsed`, `mixed`, `cores`, `seats`, `fork_storm`,
//!   `overhead`, `latency`, `conservation`, `peer_table`, `gain`: each computes the tables, figures
//!   and bars of a part from samples; `medians`, `run_lengths`, `versus`: functions that several
//!   parts use; `workloads`: names of the workloads of `latency` and `peers`;
//! - `show`: formats the parts for a terminal.
//!
//! Each sample is saved when it arrives, and `--resume` continues a run. A scheduler that fails is
//! left out of the part with a note; an error of a guest ends the run.

mod conservation;
mod cores;
mod elapsed;
mod erlang;
mod fork_storm;
mod gain;
mod guests;
mod inside;
mod lab;
mod latency;
mod machines;
mod medians;
mod messages;
mod mixed;
mod otp;
mod overhead;
mod peer_table;
mod peers;
mod progress;
mod resume;
mod run_lengths;
mod sample_names;
mod sched_part;
mod schedulers;
mod seats;
mod show;
mod spaces;
mod switches;
mod turns;
mod versus;
mod workloads;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

pub use inside::baseline::{BaselineArgs, COMMAND as BASELINE, run as run_baseline};
pub use inside::loads::threads::{COMMAND as LOAD, LoadArgs, run as run_load};
pub use inside::programs::{WORKER, WorkerArgs, work};
pub use inside::{COMMAND as INSIDE, InsideArgs, run as run_inside};
pub use turns::{PARTNER, PartnerArgs, partner};

use crate::background::once;
use crate::bars::Part;
use crate::machine;
use guests::GuestRuns;
use lab::GuestMachine;
use machines::{GuestCpus, MACHINES};
use messages::GuestLoad;
use otp::{Erlang, VmSize};
use sched_part::SchedPart;
use schedulers::ComparedScheduler;
use workloads::{LATENCIES, WORKLOADS};

/// Schedulers compared: address spaces, hardware threads, cost (papers 3b and 4)
///
/// switches   Cost of a switch to another address space on this machine: two partners take
///            turns on one CPU, as threads of one process and as two processes.
/// spaces     Seven programs of two threads beside the sleeper, a thread that mostly sleeps, on
///            two CPUs: switches between address spaces, waits, fairness.
/// erlang     4 to 7 virtual machines of Erlang with two schedulers each; all processes of a
///            machine exchange messages. The load with 7 machines also runs beside the sleeper.
/// elapsed    The load of erlang in the real time of the emulator, in pairs of runs under EEVDF
///            and usher: the time until the end of each virtual machine.
/// mix        PostgreSQL, a parallel make and three virtual machines of Java at the same time,
///            in the versions that are installed on this machine; the part has no bar.
/// cores      Two short loops and two long loops on two cores of two hardware threads: the time
///            in which two loops share a core while the other core is idle.
/// seats      Three programs with seats on 48 CPUs. The owner of one seat sleeps half of the
///            time: how much of its seat is used, and how long the owner waits for its CPUs.
/// fork-storm Four loops beside 16 short programs at a time, on two CPUs: the part of their
///            fair share that the loops get.
/// overhead   Two partners that take turns on one CPU: instructions per switch. The parts
///            overhead-8 and overhead-48 use 8 and 48 CPUs with SMT, which become idle between
///            the turns.
/// latency    Wake-up latencies on 8 CPUs with SMT, by a program after schbench and by
///            cyclictest, beside a parallel make and beside a fork storm.
/// conservation  CPU time that is idle although threads wait, under random loads on 8 CPUs
///            with SMT.
/// peers      Eight workloads on 8 CPUs with SMT, with wins and losses against each other
///            scheduler. The part runs only with --peers, or if --only names it; it then builds
///            the other schedulers. --cpus selects another machine for latency, conservation
///            and peers.
///
/// All parts except switches run in guests of the lab, which needs root. All parts except elapsed
/// and switches run in virtual time (docs/lab.md). The schedulers are EEVDF, usher, its mode
/// --fifo, a minimal FIFO, the O(1) scheduler of Linux 2.6, and with --peers the schedulers of
/// other projects. The part gain computes the expected gain from the results of switches and of
/// spaces or erlang.
///
// The two times in the next line are estimates; no complete run has been timed yet.
/// On two CPUs, all parts without --peers take about 5 hours, or half an hour with --quick.
///
/// Exit status: 0 if every bar is met, 1 if a bar is missed, 125 if the benchmark could not run.
#[derive(Debug, Clone, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:
  usher bench sched                           runs everything except the peers
  usher bench sched --quick                   runs fewer rounds of shorter loads
  usher bench sched --only switches --json    runs on this machine, for half a minute
  usher bench sched --only spaces --peers     compares with scx_bpfland and another scheduler
  usher bench sched --only latency,conservation,peers    compares with all other schedulers
  usher bench sched --resume out/bench/2026-01-31-120000-sched
More: docs/sched-bench.md"
)]
pub struct SchedArgs {
    /// Run only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<SchedPart>,
    /// Run fewer rounds, fewer schedulers and shorter loads
    #[arg(long)]
    quick: bool,
    /// Run each load this many times under each scheduler; 2 by default, or 1 with --quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Run this many pairs of 'elapsed', and of each working set of 'switches'; 21 by default, or 5
    /// with --quick
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..))]
    pairs: Option<u32>,
    /// Run this many processes in each Erlang virtual machine; 1000 by default, or 300 with --quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    processes: Option<u32>,
    /// Also compare with EEVDF with these base slices in ms; 4, 8 and 16 by default, or 4 and 8
    /// with --quick
    #[arg(long, value_name = "MS", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=100))]
    slices: Vec<u64>,
    /// Build other sched_ext schedulers from crates.io, and compare with them
    #[arg(long)]
    peers: bool,
    /// Number of CPUs of the guest for 'latency', 'conservation' and 'peers'
    #[arg(long, value_enum, default_value = "8", value_name = "N")]
    cpus: GuestCpus,
    /// Run this kernel in the guests: a series (7.2), a release, newest or oldest of the fetched
    /// kernels
    #[arg(long, value_name = "KERNEL", default_value = "newest")]
    kernel: String,
    /// Continue the run in this directory; parts that are already measured are not measured again
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Measure this `usher`; by default, the `usher` in the directory of this program
    #[arg(long, value_name = "FILE")]
    usher: Option<PathBuf>,
    /// Print the saved result as JSON
    #[arg(long)]
    json: bool,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
}

const TITLE: &str = "Usher: schedulers compared";

impl SchedArgs {
    fn wants(&self, which: SchedPart) -> bool {
        match self.only.is_empty() {
            true => which != SchedPart::Peers || self.peers,
            false => self.only.contains(&which),
        }
    }

    /// Whether the schedulers of other projects are compared.
    fn wants_peers(&self) -> bool {
        self.peers || self.only.contains(&SchedPart::Peers)
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 2 }) as usize
    }

    fn processes(&self) -> usize {
        self.processes
            .unwrap_or(if self.quick { 300 } else { 1000 }) as usize
    }

    /// Numbers of Erlang virtual machines that run at the same time. Each number is measured
    /// separately.
    fn vms(&self) -> Vec<usize> {
        match self.quick {
            true => vec![4, 7],
            false => vec![4, 5, 6, 7],
        }
    }

    fn pairs(&self) -> usize {
        self.pairs.unwrap_or(if self.quick { 5 } else { 21 }) as usize
    }

    /// Returns for each start of a scheduler the numbers of the rounds that a part's loads run.
    fn rounds_of(&self, which: SchedPart) -> Vec<Vec<usize>> {
        match which {
            SchedPart::Elapsed => (0..self.pairs()).map(|pair| vec![pair]).collect(),
            SchedPart::Latency | SchedPart::Peers => vec![(0..self.seeds(5)).collect()],
            SchedPart::Conservation => vec![(0..self.seeds(20)).collect()],
            _ => vec![(0..self.rounds()).collect()],
        }
    }

    /// Number of rounds of a part whose rounds have different seeds: the given number by default,
    /// or a quarter of it with --quick.
    fn seeds(&self, usual: usize) -> usize {
        let quick = usual.div_ceil(4);
        let number = if self.quick { quick } else { usual };
        self.rounds.map_or(number, |rounds| rounds as usize)
    }

    fn slices(&self) -> Vec<ComparedScheduler> {
        // The base slices of EEVDF are chosen so that runs are as long as under Usher. Under Usher,
        // a thread runs for about 2.4 ms at a time in the part `spaces` and 3.6 ms in `erlang`.
        // Under EEVDF, it runs for 2.6 ms in `spaces` with a base slice of 4 ms, and for 3.7 ms in
        // `erlang` with a base slice of 8 ms.
        let usual: &[u64] = if self.quick { &[4, 8] } else { &[4, 8, 16] };
        let slices = match self.slices.is_empty() {
            true => usual,
            false => &self.slices,
        };
        slices
            .iter()
            .map(|&ms| ComparedScheduler::EevdfSlice { ms })
            .collect()
    }

    /// Returns the selected parts that run on a machine.
    fn of(&self, machine: &GuestMachine) -> Vec<SchedPart> {
        let parts: &[SchedPart] = match machine.name {
            "two" => &[SchedPart::Spaces, SchedPart::Erlang, SchedPart::ForkStorm],
            "plain" => &[SchedPart::Elapsed],
            "mix" => &[SchedPart::Mix],
            "threads" => &[SchedPart::Cores],
            "many" => &[SchedPart::Seats],
            "eight" => &[SchedPart::Overhead8],
            "forty-eight" => &[SchedPart::Overhead48],
            "two-llcs" => &[],
            _ => &[SchedPart::Overhead],
        };
        let by_cpus = [
            SchedPart::Latency,
            SchedPart::Conservation,
            SchedPart::Peers,
        ];
        let is_theirs = machine.name == self.cpus.machine();
        let by_cpus = by_cpus.iter().filter(|_| is_theirs);
        let all = parts.iter().chain(by_cpus).copied();
        all.filter(|&which| self.wants(which)).collect()
    }

    /// Returns the schedulers that a part compares.
    fn schedulers(&self, which: SchedPart, peers: &[ComparedScheduler]) -> Vec<ComparedScheduler> {
        let (slices, o1) = (
            self.slices(),
            [ComparedScheduler::O1Plain, ComparedScheduler::O1Aggregate],
        );
        let mut schedulers = vec![ComparedScheduler::Eevdf, ComparedScheduler::Usher];
        match which {
            SchedPart::Spaces => {
                schedulers.extend(slices);
                schedulers.push(ComparedScheduler::Fifo);
                schedulers.extend(o1);
            }
            SchedPart::Erlang | SchedPart::Mix => {
                schedulers.extend(slices);
                schedulers.extend(o1);
            }
            SchedPart::Cores => schedulers.push(ComparedScheduler::Fifo),
            // Schedulers other than EEVDF and Usher have no seats, and a pair of the part `elapsed`
            // consists of two schedulers.
            SchedPart::Seats | SchedPart::Elapsed => return schedulers,
            SchedPart::ForkStorm => {}
            SchedPart::Overhead | SchedPart::Overhead8 | SchedPart::Overhead48 => {
                schedulers.extend([ComparedScheduler::FifoMinimal, ComparedScheduler::Fifo]);
                schedulers.extend(o1.into_iter().filter(|_| !self.quick));
            }
            SchedPart::Latency | SchedPart::Conservation | SchedPart::Peers => {
                schedulers.insert(1, ComparedScheduler::EevdfCacheOff);
            }
            SchedPart::Switches => return vec![],
        }
        schedulers.extend_from_slice(peers);
        schedulers
    }

    /// Returns the loads of a part.
    fn loads(&self, which: SchedPart, folder: &Path) -> Result<Vec<GuestLoad>> {
        let quick = self.quick;
        let load = match which {
            SchedPart::Spaces => GuestLoad::Spaces {
                programs: 7,
                threads: 2,
                work_ms: if quick { 200 } else { 600 },
            },
            SchedPart::Erlang => return erlang::loads(folder, self.vms(), self.processes()),
            SchedPart::Elapsed => {
                let size = VmSize::of_paper(self.processes());
                Erlang::fetched()?.load(folder, self.vms(), size)?
            }
            SchedPart::Mix => mixed::load(folder)?,
            SchedPart::Cores => GuestLoad::Cores {
                // With fewer repetitions, a scheduler that ignores hardware threads sometimes has a
                // good result by chance.
                times: 12,
                // The loops have a tenth of the length in the paper. With much shorter loops, the
                // time of shared cores under Usher would consist mainly of the 0.25 ms after which
                // emulated CPUs notice an interrupt.
                short_ms: 200,
                long_ms: 1_000,
            },
            SchedPart::Seats => GuestLoad::Seats {
                rounds: if quick { 5 } else { 10 },
                work_us: 1_000,
            },
            SchedPart::ForkStorm => GuestLoad::ForkStorm {
                at_once: 16,
                work_ms: if quick { 300 } else { 1_000 },
            },
            // Usher's scheduler treats a thread as young in its first 24 ms of CPU time. Most of a
            // measurement of 200 ms is after that time.
            SchedPart::Overhead => GuestLoad::Overhead { ms: 200 },
            SchedPart::Overhead8 | SchedPart::Overhead48 => GuestLoad::OverheadSmt {
                ms: 200,
                cpus: if which == SchedPart::Overhead8 { 8 } else { 48 },
            },
            SchedPart::Latency => {
                let ms = if quick { 300 } else { 600 };
                let load = |(probe, beside)| GuestLoad::Latency { probe, beside, ms };
                return Ok(LATENCIES.map(load).to_vec());
            }
            SchedPart::Conservation => GuestLoad::Conservation {
                ms: if quick { 150 } else { 300 },
            },
            SchedPart::Peers => {
                let own = WORKLOADS.map(|workload| GuestLoad::Peers { workload });
                let erlang = erlang::load_of_peers(folder, self.cpus.count())?;
                return Ok(own.into_iter().chain([erlang]).collect());
            }
            SchedPart::Switches => {
                anyhow::bail!("the part 'switches' runs on this machine, not in a guest")
            }
        };
        Ok(vec![load])
    }

    fn switches(&self) -> Result<Part> {
        let ms = if self.quick { 20 } else { 100 };
        switches::measure(self.pairs(), Duration::from_millis(ms))
    }
}

/// Measures the selected parts, saves and prints the results. Returns whether every bar was met.
pub fn run(args: &SchedArgs) -> Result<bool> {
    let machines = MACHINES
        .iter()
        .filter(|machine| !args.of(machine).is_empty());
    let machines: Vec<&GuestMachine> = machines.collect();
    // The folder and the needed programs are checked before the first measurement.
    let begun = args.resume.clone().map(machine::begun_folder).transpose()?;
    let mut guests = match machines.first() {
        Some(first) => Some(GuestRuns::new(args, first)?),
        None => None,
    };
    let folder = match begun {
        Some(folder) => folder,
        None => machine::run_folder(&args.out, "sched")?,
    };
    let mut scenarios = Vec::new();
    if let Some(guests) = &mut guests {
        guests.lab.folder.clone_from(&folder);
        scenarios = guests.scenarios(&machines)?;
    }
    let again = resume::again(std::env::args(), &folder);
    eprintln!(
        "sched: the results are in {}; to continue an interrupted run: {again}",
        folder.display()
    );
    let mut parts = Vec::new();
    if args.wants(SchedPart::Switches) {
        parts.push(once(&folder, switches::NAME, || args.switches())?);
    }
    if let Some(guests) = &guests {
        parts.extend(guests.parts(scenarios, parts.first())?);
    }
    finish(args, &folder, &parts)
}

/// Saves and prints the results. Returns whether every bar was met.
fn finish(args: &SchedArgs, folder: &Path, parts: &[Part]) -> Result<bool> {
    let page = machine::save(folder, TITLE, &machine::facts()?, parts)?;
    if args.json {
        machine::print_line(std::fs::read_to_string(folder.join("result.json"))?)?;
    } else {
        let width = show::width();
        for part in parts {
            machine::print_line(show::terminal(part, width))?;
        }
        let folder = folder.display();
        machine::print_line(format_args!(
            "results saved in {folder}, report page {}",
            page.display()
        ))?;
    }
    Ok(show::are_met(parts))
}

#[cfg(test)]
pub mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SchedArgs,
    }

    pub fn args(words: &[&str]) -> SchedArgs {
        let words = ["sched"].iter().chain(words);
        Line::try_parse_from(words).map(|line| line.args).unwrap()
    }

    #[test]
    fn slices_and_machines_follow_the_options() {
        let slices = |words: &[&str]| args(words).slices();
        let quick = [4, 8].map(|ms| ComparedScheduler::EevdfSlice { ms });
        assert_eq!(slices(&["--quick"]), quick);
        assert_eq!(
            slices(&["--slices", "5"]),
            [ComparedScheduler::EevdfSlice { ms: 5 }]
        );
        let machines = |words: &[&str]| {
            let args = args(words);
            let named = MACHINES
                .iter()
                .filter(|machine| !args.of(machine).is_empty());
            named.map(|machine| machine.name).collect::<Vec<_>>()
        };
        assert_eq!(machines(&["--only", "latency"]), ["two-llcs"]);
        assert_eq!(
            machines(&["--only", "peers", "--cpus", "48"]),
            ["forty-eight"]
        );
        assert_eq!(
            machines(&["--only", "conservation", "--cpus", "1"]),
            ["one"]
        );
        let spaces = args(&[]).schedulers(SchedPart::Spaces, &[]);
        assert_eq!(spaces.len(), 8);
    }
}
