// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench sched`: what choosing threads with their address spaces and hardware
//! threads in mind does (papers 3b and 4), against the kernel's own scheduler, the
//! papers' baselines and others.
//!
//! - `rival`: the schedulers; `peers`: those of others, built here;
//! - `lab`: guests, and the lines that come back from them; `told`: what those lines
//!   and the plan are;
//! - `inside`: the program in the guest;
//! - `switches`, `spaces`, `erlang`, `elapsed`, `mixed`, `cores`, `seats`, `overhead`, `gain`: the
//!   parts, from what was measured to tables, figures and bars; `rows`: what they share.

mod begun;
mod cores;
mod elapsed;
mod erlang;
mod gain;
mod inside;
mod lab;
mod mixed;
mod overhead;
mod peers;
mod rival;
mod rows;
mod seats;
mod spaces;
mod switches;
mod told;
mod turns;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use usher_lab::Clock;
use usher_lab::kernels::Wanted;

pub use inside::programs::{WORKER, WorkerArgs, work};
pub use inside::{COMMAND as INSIDE, InsideArgs, run as run_inside};
pub use turns::{PARTNER, PartnerArgs, partner};

use crate::background::once;
use crate::bars::{Bar, Part};
use crate::{machine, processes};
use lab::{Lab, Machine, Measured};
use rival::Rival;
use told::{Load, Turn};

/// The parts, in the order in which they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    /// What a switch to another address space costs, on this machine
    Switches,
    /// Programs of two threads beside one that mostly sleeps (paper 4)
    Spaces,
    /// Erlang's virtual machines (paper 4)
    Erlang,
    /// The same in the emulator's own time, in pairs of EEVDF and ours
    Elapsed,
    /// PostgreSQL, make and virtual machines of Java
    Mix,
    /// Short and long loops on cores of two hardware threads (paper 3b)
    Cores,
    /// Three programs with seats: soft ones, and cpusets (paper 1)
    Seats,
    /// Instructions a switch
    Overhead,
}

/// Schedulers compared: address spaces, hardware threads, cost (papers 3b and 4)
///
/// switches   What a switch to another address space costs this machine: two take turns
///            on one CPU, as threads of one process and as two processes. Runs here.
/// spaces     Seven programs of two threads beside a thread that mostly sleeps, on two
///            CPUs: switches between address spaces, waits, fairness.
/// erlang     4 to 7 virtual machines of Erlang with two schedulers each, in each of
///            which everyone messages everyone.
/// elapsed    The same in the emulator's own time, which is not hardware's, under EEVDF and
///            ours in turn: when each machine had ended, in pairs.
/// mix        PostgreSQL, a parallel make and three virtual machines of Java at once; for
///            information, of what is installed here.
/// cores      Two short loops and two long ones on two cores of two hardware threads:
///            how long a core is shared while the other one is idle.
/// seats      Three programs with seats on 48 CPUs, one of which rests half of the time:
///            what is used, and what its owner loses.
/// overhead   Two that take turns on one CPU: instructions a switch.
///
/// All but the first run in guests of the lab, which takes root, and all of these but
/// elapsed in virtual time (docs/lab.md); under EEVDF, ours, its modes to compare with, and
/// others where --peers is given. Where switches and spaces run, what ours should save (gain)
/// follows from them.
///
/// Exit status: 0 when every bar was met, 1 when not, 125 when it could not run.
#[derive(Debug, Clone, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:
  usher bench sched                           everything but peers
  usher bench sched --quick                   less of it
  usher bench sched --only switches --json    here, half a minute
  usher bench sched --only spaces --peers     against scx_bpfland and another
  usher bench sched --resume out/bench/2026-01-31-120000-sched
More: docs/sched.md"
)]
pub struct SchedArgs {
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Which>,
    /// Fewer runs and schedulers, less work
    #[arg(long)]
    quick: bool,
    /// Runs of each load under each scheduler; 2, or 1 where it is to be quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Pairs of runs of 'elapsed', and of each working set of 'switches'; 21, or 5 where it
    /// is to be quick
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..))]
    pairs: Option<u32>,
    /// Processes in each virtual machine of Erlang; 1000, or 300 where it is to be quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    processes: Option<u32>,
    /// Base slices of EEVDF to compare with, beside its own; 8 and 16, or 8 where it is to be quick
    #[arg(long, value_name = "MS", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=100))]
    slices: Vec<u64>,
    /// Build other sched_ext schedulers from crates.io, and compare with them
    #[arg(long)]
    peers: bool,
    /// The guests' kernel: a series (7.2), a release, newest or oldest of those here
    #[arg(long, value_name = "KERNEL", default_value = "newest")]
    kernel: String,
    /// Continues the run of that folder: what was measured in it is not measured again
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// The `usher` to measure; the one beside this program unless told
    #[arg(long, value_name = "FILE")]
    usher: Option<PathBuf>,
    /// Prints the saved result instead of lines
    #[arg(long)]
    json: bool,
    /// Where the dated folder of results is made
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
}

const TITLE: &str = "Usher: schedulers compared";

/// Two CPUs, on which programs take turns.
const TWO: Machine = Machine {
    name: "two",
    topology: "core:2",
    cpus_off: "",
    append: "",
    clock: lab::VIRTUAL,
};
/// The same in the emulator's own time.
const PLAIN: Machine = Machine {
    name: "plain",
    clock: Clock::Host,
    ..TWO
};
/// The same with programs that are never quite idle.
const MIX: Machine = Machine { name: "mix", ..TWO };
/// An emulated CPU runs until the next timer of any: where their ticks are apart, what one
/// tells another is heard sooner, as on hardware.
const TICKS_APART: &str = "skew_tick=1";
/// Two cores of two hardware threads.
const THREADS: Machine = Machine {
    name: "threads",
    topology: "core:2 pu:2",
    append: TICKS_APART,
    ..TWO
};
/// Many cores, of which programs have their own.
const MANY: Machine = Machine {
    name: "many",
    topology: "package:4 die:2 core:6",
    append: TICKS_APART,
    ..TWO
};
/// One CPU, of two that threads may run on: one that may run on one alone would be
/// another case.
const ONE: Machine = Machine {
    name: "one",
    cpus_off: "1",
    ..TWO
};
/// Where each part that is measured in guests runs.
const MACHINES: [Machine; 6] = [TWO, PLAIN, MIX, THREADS, MANY, ONE];

impl SchedArgs {
    fn wants(&self, which: Which) -> bool {
        self.only.is_empty() || self.only.contains(&which)
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 2 }) as usize
    }

    fn processes(&self) -> usize {
        self.processes
            .unwrap_or(if self.quick { 300 } else { 1000 }) as usize
    }

    fn pairs(&self) -> usize {
        self.pairs.unwrap_or(if self.quick { 5 } else { 21 }) as usize
    }

    /// In which rounds a part's loads run, each time that a scheduler is started.
    fn rounds_of(&self, which: Which) -> Vec<Vec<usize>> {
        match which {
            Which::Elapsed => (0..self.pairs()).map(|pair| vec![pair]).collect(),
            _ => vec![(0..self.rounds()).collect()],
        }
    }

    fn slices(&self) -> Vec<Rival> {
        let usual: &[u64] = if self.quick { &[8] } else { &[8, 16] };
        let slices = match self.slices.is_empty() {
            true => usual,
            false => &self.slices,
        };
        slices.iter().map(|&ms| Rival::EevdfSlice { ms }).collect()
    }

    /// Parts of a machine.
    fn of(&self, machine: &Machine) -> Vec<Which> {
        let parts: &[Which] = match machine.name {
            "two" => &[Which::Spaces, Which::Erlang],
            "plain" => &[Which::Elapsed],
            "mix" => &[Which::Mix],
            "threads" => &[Which::Cores],
            "many" => &[Which::Seats],
            _ => &[Which::Overhead],
        };
        parts
            .iter()
            .copied()
            .filter(|&which| self.wants(which))
            .collect()
    }

    /// Schedulers that a part compares.
    fn rivals(&self, which: Which, peers: &[Rival]) -> Vec<Rival> {
        let (slices, o1) = (self.slices(), [Rival::O1Plain, Rival::O1Aggregate]);
        let mut rivals = vec![Rival::Eevdf, Rival::Usher];
        match which {
            Which::Spaces => {
                rivals.extend(slices);
                rivals.push(Rival::Fifo);
                rivals.extend(o1);
            }
            Which::Erlang | Which::Mix => {
                rivals.extend(slices);
                rivals.extend(o1);
            }
            Which::Cores => rivals.push(Rival::Fifo),
            // Others know of no seats, and two make a pair.
            Which::Seats | Which::Elapsed => return rivals,
            Which::Overhead => {
                rivals.push(Rival::Fifo);
                rivals.extend(o1.into_iter().filter(|_| !self.quick));
            }
            Which::Switches => return vec![],
        }
        rivals.extend_from_slice(peers);
        rivals
    }

    fn load(&self, which: Which, folder: &Path) -> Result<Load> {
        let quick = self.quick;
        Ok(match which {
            Which::Spaces => Load::Spaces {
                programs: 7,
                threads: 2,
                work_ms: if quick { 200 } else { 600 },
            },
            Which::Erlang | Which::Elapsed => {
                let vms = if quick { vec![4, 7] } else { vec![4, 5, 6, 7] };
                erlang::Erlang::fetched()?.load(folder, vms, self.processes())?
            }
            Which::Mix => mixed::load(folder)?,
            Which::Cores => Load::Cores {
                // Fewer, and one that is blind to hardware threads is lucky at times.
                times: 12,
                // A tenth of the paper's. With much shorter ones what ours shares is the quarter
                // of a millisecond until emulated CPUs hear of one another, again and again.
                short_ms: 200,
                long_ms: 1_000,
            },
            Which::Seats => Load::Seats {
                rounds: if quick { 5 } else { 10 },
                work_us: 1_000,
            },
            Which::Overhead => Load::Overhead {
                ms: if quick { 50 } else { 200 },
            },
            Which::Switches => anyhow::bail!("the part switches runs in no guest"),
        })
    }

    fn switches(&self) -> Result<Part> {
        let ms = if self.quick { 20 } else { 100 };
        switches::measure(self.pairs(), Duration::from_millis(ms))
    }
}

/// Measures, saves and shows it; whether every bar was met.
pub fn run(args: &SchedArgs) -> Result<bool> {
    let machines = MACHINES
        .iter()
        .filter(|machine| !args.of(machine).is_empty());
    let machines: Vec<&Machine> = machines.collect();
    // What is missing is said before anything is measured.
    let begun = args.resume.clone().map(machine::begun_folder).transpose()?;
    let mut guests = match machines.first() {
        Some(first) => Some(Guests::new(args, first)?),
        None => None,
    };
    let folder = match begun {
        Some(folder) => folder,
        None => machine::run_folder(&args.out, "sched")?,
    };
    if let Some(guests) = &mut guests {
        guests.lab.folder.clone_from(&folder);
    }
    let mut parts = Vec::new();
    if args.wants(Which::Switches) {
        parts.push(once(&folder, switches::NAME, || args.switches())?);
    }
    for machine in machines {
        if let Some(guests) = &guests {
            parts.extend(guests.parts(machine, parts.first())?);
        }
    }
    if args.json {
        machine::save(&folder, TITLE, &machine::facts()?, &parts)?;
        machine::say(std::fs::read_to_string(folder.join("result.json"))?)?;
        return Ok(parts.iter().all(|part| part.bars.iter().all(Bar::is_met)));
    }
    for part in &parts {
        machine::say(format_args!("{}{}", part.lines(), rows::tables(part)))?;
    }
    machine::finish(&folder, TITLE, &parts)
}

/// In place of a part whose programs cannot be had. It meets no bar, where it had any.
fn not_measured(which: Which, error: &anyhow::Error) -> Part {
    let name = which.to_possible_value();
    let name = name.map_or_else(String::new, |value| value.get_name().to_owned());
    eprintln!("sched: {name} was left out: {error:#}");
    let mut part = Part::new(&name, &format!("Not measured: {name}"));
    if which != Which::Mix {
        part.bars = vec![Bar::at_most("could be measured", None, 0.0, "")];
    }
    part.notes = vec![format!("{error:#}")];
    part
}

/// What is measured in guests.
struct Guests<'a> {
    args: &'a SchedArgs,
    lab: Lab,
    /// As it names itself.
    kernel: String,
    peers: Vec<Rival>,
}

impl<'a> Guests<'a> {
    /// Their results have no folder yet.
    fn new(args: &'a SchedArgs, machine: &Machine) -> Result<Self> {
        let kernel = args.kernel.parse::<Wanted>();
        let kernel = kernel.map_err(|why| anyhow!("--kernel {}: {why}", args.kernel))?;
        let usher = processes::usher_binary(args.usher.as_deref())?;
        let usher = std::fs::canonicalize(&usher)
            .with_context(|| format!("finding {}", usher.display()))?;
        let lab = Lab {
            kernel,
            usher,
            folder: PathBuf::new(),
        };
        Ok(Self {
            args,
            kernel: lab.ready(machine)?,
            lab,
            peers: if args.peers { peers::built()? } else { vec![] },
        })
    }

    /// The parts of a machine, and what follows from the first one.
    fn parts(&self, machine: &Machine, switches: Option<&Part>) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        let mut loads = Vec::new();
        for which in self.args.of(machine) {
            match self.args.load(which, &self.lab.folder) {
                Ok(load) => loads.push((which, load)),
                Err(error) => parts.push(not_measured(which, &error)),
            }
        }
        begun::note(&self.lab.folder, loads.iter().map(|(_, load)| load))?;
        let measured = self.lab.measure(machine, &self.turns(&loads))?;
        for (which, load) in loads {
            let mut part = self.part(which, machine, &measured)?;
            let notes = self.notes(&part.name, load.part(), &measured);
            part.notes.extend(notes);
            parts.push(part);
            let switches = switches.filter(|part| part.name == switches::NAME);
            if let (Which::Spaces, Some(switches)) = (which, switches) {
                parts.extend(gain::part(switches, &measured)?);
            }
        }
        Ok(parts)
    }

    /// Each scheduler with all that runs under it: once, or once for each pair, where the
    /// first of a pair is the second of the next.
    fn turns(&self, loads: &[(Which, Load)]) -> Vec<Turn> {
        let mut turns: Vec<Turn> = Vec::new();
        for (which, load) in loads {
            for (at, rounds) in self.args.rounds_of(*which).into_iter().enumerate() {
                let mut rivals = self.args.rivals(*which, &self.peers);
                if at % 2 == 1 {
                    rivals.reverse();
                }
                for rival in rivals {
                    let load = load.clone();
                    let is_it = |turn: &&mut Turn| turn.rival == rival && turn.rounds == rounds;
                    match turns.iter_mut().find(is_it) {
                        Some(turn) => turn.loads.push(load),
                        None => turns.push(Turn {
                            rival,
                            rounds: rounds.clone(),
                            loads: vec![load],
                        }),
                    }
                }
            }
        }
        turns
    }

    fn part(&self, which: Which, machine: &Machine, measured: &Measured) -> Result<Part> {
        let rounds = self.args.rounds();
        let off = match machine.cpus_off {
            "" => String::new(),
            off => format!(" without CPU {off}"),
        };
        let machine = format!("{}{off}", machine.topology);
        let note = rows::virtual_time(&self.kernel, &machine, rounds);
        match which {
            Which::Elapsed => elapsed::part(measured, &self.kernel, self.args.processes()),
            Which::Spaces => spaces::part(measured, note),
            Which::Erlang => {
                let about = format!(
                    "Debian's Erlang ({}), two schedulers a virtual machine that do not spin \
                     (+sbwt none), {} processes in each, each of which sends a message to each \
                     and has an answer. All begin at once; starting them is not counted.",
                    erlang::Erlang::fetched()?.version(),
                    self.args.processes()
                );
                erlang::part(measured, vec![note, about])
            }
            Which::Mix => mixed::part(measured, note),
            Which::Cores => cores::part(measured, note),
            Which::Seats => seats::part(measured, note),
            Which::Overhead => overhead::part(measured, note),
            Which::Switches => self.args.switches(),
        }
    }

    /// What was not measured of a part, whose load may bear the name of another.
    fn notes(&self, part: &str, load: &str, measured: &Measured) -> Vec<String> {
        let of_it = format!("{load}: ");
        let left_out = measured.left_out.iter();
        let left_out = left_out.filter_map(|note| note.strip_prefix(&of_it));
        let mut notes: Vec<String> = left_out.map(str::to_owned).collect();
        let has_peers = ![seats::NAME, elapsed::NAME].contains(&part);
        if has_peers && self.peers.is_empty() {
            notes.push(format!("Not measured: {} (--peers).", peers::names()));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SchedArgs,
    }

    fn args(words: &[&str]) -> SchedArgs {
        let words = ["sched"].iter().chain(words);
        Line::try_parse_from(words).map(|line| line.args).unwrap()
    }

    /// None of which is started.
    fn guests(args: &SchedArgs, peers: Vec<Rival>) -> Guests<'_> {
        let lab = Lab {
            kernel: Wanted::Newest,
            usher: PathBuf::new(),
            folder: PathBuf::new(),
        };
        Guests {
            args,
            lab,
            kernel: String::new(),
            peers,
        }
    }

    #[test]
    fn each_scheduler_has_one_turn() {
        let args = args(&["--quick", "--only", "cores,overhead"]);
        let guests = guests(&args, vec![]);
        let load = |which| (which, args.load(which, Path::new("")).unwrap());
        let turns = guests.turns(&[Which::Cores, Which::Overhead].map(load));
        let rivals: Vec<&Rival> = turns.iter().map(|turn| &turn.rival).collect();
        assert_eq!(rivals, [&Rival::Eevdf, &Rival::Usher, &Rival::Fifo]);
        assert!(turns.iter().all(|turn| turn.loads.len() == 2));
        assert!(turns.iter().all(|turn| turn.rounds == [0]));
        assert!(args.of(&TWO).is_empty());
        assert_eq!(args.of(&THREADS), [Which::Cores]);
        let measured = Measured {
            samples: vec![],
            left_out: vec!["cores: ours was left out: x".to_owned()],
        };
        let notes = guests.notes("cores", "cores", &measured);
        assert_eq!(notes[0], "ours was left out: x");
        assert!(notes[1].contains("scx_bpfland 1.1.4"), "{notes:?}");
        assert_eq!(guests.notes("overhead", "overhead", &measured).len(), 1);
        assert!(guests.notes("seats", "seats", &measured).is_empty());
        let erlang = Measured {
            samples: vec![],
            left_out: vec!["erlang: ours was left out: x".to_owned()],
        };
        let notes = guests.notes("elapsed", "erlang", &erlang);
        assert_eq!(notes, ["ours was left out: x"]);
    }

    #[test]
    fn who_is_first_in_a_pair_is_second_in_the_next() {
        let args = args(&["--pairs", "3", "--only", "elapsed"]);
        let guests = guests(&args, vec![Rival::Fifo]);
        let load = Load::Overhead { ms: 1 };
        let turns = guests.turns(&[(Which::Elapsed, load)]);
        let order = turns.iter().map(|turn| (turn.rounds[0], &turn.rival));
        let (eevdf, ours) = (&Rival::Eevdf, &Rival::Usher);
        assert_eq!(
            order.collect::<Vec<_>>(),
            [
                (0, eevdf),
                (0, ours),
                (1, ours),
                (1, eevdf),
                (2, eevdf),
                (2, ours)
            ]
        );
    }

    #[test]
    fn a_part_that_cannot_be_measured_meets_no_bar() {
        let part = not_measured(Which::Erlang, &anyhow!("no archive"));
        assert_eq!(
            (part.name.as_str(), &part.notes[0][..]),
            ("erlang", "no archive")
        );
        assert!(part.bars.iter().any(|bar| !bar.is_met()));
        assert!(
            not_measured(Which::Mix, &anyhow!("no java"))
                .bars
                .is_empty()
        );
    }

    #[test]
    fn slices_are_as_told() {
        let slices = |words: &[&str]| args(words).slices();
        assert_eq!(slices(&["--quick"]), [Rival::EevdfSlice { ms: 8 }]);
        assert_eq!(slices(&["--slices", "5"]), [Rival::EevdfSlice { ms: 5 }]);
        let spaces = args(&[]).rivals(Which::Spaces, &[]);
        assert_eq!(spaces.len(), 7);
    }
}
