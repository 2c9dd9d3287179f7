// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans and evaluates the measurements in guests. For each guest machine, this module determines
//! the loads and schedulers, runs them ([`super::lab`]), and computes the parts of the result from
//! the samples.
//!
//! Parts that use the same machine are measured in one guest, so that each scheduler starts only
//! once. If the host lacks a program of a part, a placeholder with the reason replaces the part,
//! and its bar is not met. If a load fails under a scheduler, a note gives the reason, and the
//! scheduler is missing in the part. If a guest fails, the run ends with an error.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use usher_lab::kernels::KernelChoice;

use super::lab::{GuestMachine, GuestResults, Lab};
use super::messages::{GuestLoad, SchedulerPlan};
use super::otp::Erlang;
use super::peers::BuiltPeers;
use super::progress::RunProgress;
use super::sched_part::SchedPart;
use super::{
    SchedArgs, conservation, cores, elapsed, erlang, fork_storm, gain, latency, medians, mixed,
    overhead, peer_table, peers, resume, sample_names, seats, spaces, switches,
};
use crate::bars::{Bar, Part};
use crate::processes;

/// Measurements in guests.
pub struct GuestRuns<'a> {
    args: &'a SchedArgs,
    pub lab: Lab,
    /// Release of the kernel in the guests.
    kernel: String,
    peers: BuiltPeers,
}

impl<'a> GuestRuns<'a> {
    /// Builds missing peers and downloads missing files of the guests. The caller sets the folder
    /// of results later.
    pub fn new(args: &'a SchedArgs, machine: &GuestMachine) -> Result<Self> {
        let kernel = args.kernel.parse::<KernelChoice>();
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
            peers: match args.wants_peers() {
                true => peers::built()?,
                false => BuiltPeers::default(),
            },
        })
    }

    /// Returns the loads of each of the machines, and saves the loads in the folder of results.
    ///
    /// # Errors
    /// The resumed run was begun with other loads.
    pub fn scenarios<'m>(&self, machines: &[&'m GuestMachine]) -> Result<Vec<GuestScenario<'m>>> {
        let scenarios: Vec<GuestScenario> = machines
            .iter()
            .map(|machine| self.scenario(machine))
            .collect();
        let loads = scenarios.iter().flat_map(|scenario| &scenario.loads);
        resume::note(&self.lab.folder, loads.map(|(_, load)| load))?;
        Ok(scenarios)
    }

    /// Measures and evaluates the parts of the machines, and computes the part `gain` from other
    /// parts.
    pub fn parts(
        &self,
        scenarios: Vec<GuestScenario>,
        switches: Option<&Part>,
    ) -> Result<Vec<Part>> {
        let mut pace = RunProgress::default();
        for scenario in &scenarios {
            let left = self.lab.left(scenario.machine, &scenario.turns)?;
            pace.expect(scenario.machine.name, &scenario.turns, &left);
        }
        let mut parts = Vec::new();
        for scenario in scenarios {
            let measured = self
                .lab
                .measure(scenario.machine, &scenario.turns, &mut pace)?;
            parts.extend(self.studied(scenario, &measured, switches)?);
        }
        Ok(parts)
    }

    /// Returns the loads of a machine.
    fn scenario<'m>(&self, machine: &'m GuestMachine) -> GuestScenario<'m> {
        let mut missing = Vec::new();
        let mut loads = Vec::new();
        for which in self.args.of(machine) {
            match self.args.loads(which, &self.lab.folder) {
                Ok(all) => loads.extend(all.into_iter().map(|load| (which, load))),
                Err(error) => missing.push(not_measured(which, &error)),
            }
        }
        GuestScenario {
            machine,
            turns: self.turns(&loads),
            loads,
            missing,
        }
    }

    /// Computes the parts of a machine from its samples.
    fn studied(
        &self,
        scenario: GuestScenario,
        measured: &GuestResults,
        switches: Option<&Part>,
    ) -> Result<Vec<Part>> {
        let mut whiches: Vec<SchedPart> = scenario.loads.iter().map(|(which, _)| *which).collect();
        whiches.dedup();
        let mut parts = scenario.missing;
        for &which in &whiches {
            let mut part = self.part(which, scenario.machine, measured)?;
            let loads = scenario.loads.iter().filter(|(of, _)| *of == which);
            let loads: Vec<&str> = loads.map(|(_, load)| load.part()).collect();
            let notes = self.notes(&part.name, &loads, measured);
            part.notes.extend(notes);
            parts.push(part);
        }
        let has_spaces =
            [SchedPart::Spaces, SchedPart::Erlang].map(|which| whiches.contains(&which));
        let switches = switches.filter(|part| part.name == switches::NAME);
        if let (true, Some(switches)) = (has_spaces.contains(&true), switches) {
            parts.extend(gain::part(switches, measured)?);
        }
        Ok(parts)
    }

    /// Groups the loads by scheduler and rounds, so that each scheduler starts once. In the part
    /// `elapsed`, each scheduler starts once per pair, and the order of the two schedulers
    /// alternates from pair to pair.
    fn turns(&self, loads: &[(SchedPart, GuestLoad)]) -> Vec<SchedulerPlan> {
        let mut turns: Vec<SchedulerPlan> = Vec::new();
        for (which, load) in loads {
            for (at, rounds) in self.args.rounds_of(*which).into_iter().enumerate() {
                let mut schedulers = self.args.schedulers(*which, &self.peers.schedulers);
                if at % 2 == 1 {
                    schedulers.reverse();
                }
                for scheduler in schedulers {
                    let load = load.clone();
                    let is_it = |turn: &&mut SchedulerPlan| {
                        turn.scheduler == scheduler && turn.rounds == rounds
                    };
                    match turns.iter_mut().find(is_it) {
                        Some(turn) => turn.loads.push(load),
                        None => turns.push(SchedulerPlan {
                            scheduler,
                            rounds: rounds.clone(),
                            loads: vec![load],
                        }),
                    }
                }
            }
        }
        turns
    }

    fn part(
        &self,
        which: SchedPart,
        machine: &GuestMachine,
        measured: &GuestResults,
    ) -> Result<Part> {
        let rounds = self.args.rounds_of(which).concat().len();
        let off = match machine.cpus_off {
            "" => String::new(),
            off => format!(" without CPU {off}"),
        };
        let machine = format!("{}{off}", machine.topology);
        let note = medians::virtual_time(&self.kernel, &machine, rounds);
        match which {
            SchedPart::Elapsed => elapsed::part(measured, &self.kernel, self.args.processes()),
            SchedPart::Spaces => spaces::part(measured, note),
            SchedPart::Erlang => {
                let about = format!(
                    "The load is Debian's Erlang ({}): each virtual machine has two schedulers \
                     that do not spin (+sbwt none) and {} processes, each of which sends a \
                     message to each other process and waits for the reply. All machines start \
                     to work at the same time; their start-up is not counted.",
                    Erlang::fetched()?.version(),
                    self.args.processes()
                );
                erlang::part(measured, vec![note, about])
            }
            SchedPart::Mix => mixed::part(measured, note),
            SchedPart::Cores => cores::part(measured, note),
            SchedPart::Seats => seats::part(measured, note),
            SchedPart::ForkStorm => fork_storm::part(measured, note),
            SchedPart::Overhead => overhead::part(sample_names::OVERHEAD, measured, note),
            SchedPart::Overhead8 => overhead::part(sample_names::OVERHEAD_8, measured, note),
            SchedPart::Overhead48 => overhead::part(sample_names::OVERHEAD_48, measured, note),
            SchedPart::Latency => latency::part(measured, note),
            SchedPart::Conservation => conservation::part(measured, note),
            SchedPart::Peers => peer_table::part(measured, note),
            SchedPart::Switches => self.args.switches(),
        }
    }

    /// Returns the reasons why schedulers were not measured in a part. `loads` contains the sample
    /// names of the part's loads, which may differ from the name of the part.
    fn notes(&self, part: &str, loads: &[&str], measured: &GuestResults) -> Vec<String> {
        let left_out = measured.left_out.iter().filter_map(|note| {
            let (load, why) = note.split_once(": ")?;
            loads.contains(&load).then(|| why.to_owned())
        });
        let mut notes: Vec<String> = left_out.collect();
        // Two loads of a part may have failed for the same reason.
        notes.dedup();
        let has_peers = ![sample_names::SEATS, elapsed::NAME].contains(&part);
        if has_peers {
            notes.extend_from_slice(&self.peers.notes);
        }
        if has_peers && !self.args.wants_peers() {
            notes.push(format!(
                "Not measured, because --peers was not given: {}.",
                peers::names()
            ));
        }
        notes
    }
}

/// A machine, and the loads that are measured on the machine.
#[derive(Debug)]
pub struct GuestScenario<'m> {
    machine: &'m GuestMachine,
    loads: Vec<(SchedPart, GuestLoad)>,
    turns: Vec<SchedulerPlan>,
    /// Placeholders of parts with missing programs.
    missing: Vec<Part>,
}

/// Returns the placeholder of a part with missing programs. If the part has a bar, the bar is not
/// met.
fn not_measured(which: SchedPart, error: &anyhow::Error) -> Part {
    let name = which.to_possible_value();
    let name = name.map_or_else(String::new, |value| value.get_name().to_owned());
    eprintln!("sched: the part {name} is not measured: {error:#}");
    let mut part = Part::new(&name, &format!("Not measured: {name}"));
    if which != SchedPart::Mix {
        part.bars = vec![Bar::at_most("could be measured", None, 0.0, "")];
    }
    part.notes = vec![format!("{error:#}")];
    part
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::sched::machines::{THREADS, TWO};
    use crate::sched::schedulers::ComparedScheduler;
    use crate::sched::tests::args;

    /// Returns measurements for tests, which start no guest.
    fn guests(args: &SchedArgs, schedulers: Vec<ComparedScheduler>) -> GuestRuns<'_> {
        let lab = Lab {
            kernel: KernelChoice::Newest,
            usher: PathBuf::new(),
            folder: PathBuf::new(),
        };
        GuestRuns {
            args,
            lab,
            kernel: String::new(),
            peers: BuiltPeers {
                schedulers,
                notes: vec![],
            },
        }
    }

    #[test]
    fn each_scheduler_has_one_turn() {
        let args = args(&["--quick", "--only", "cores,overhead"]);
        let guests = guests(&args, vec![]);
        let load = |which| {
            let loads = args.loads(which, Path::new("")).unwrap();
            (which, loads[0].clone())
        };
        let turns = guests.turns(&[SchedPart::Cores, SchedPart::Overhead].map(load));
        let schedulers: Vec<&ComparedScheduler> =
            turns.iter().map(|turn| &turn.scheduler).collect();
        let (eevdf, ours, fifo) = (
            &ComparedScheduler::Eevdf,
            &ComparedScheduler::Usher,
            &ComparedScheduler::Fifo,
        );
        assert_eq!(
            schedulers,
            [eevdf, ours, fifo, &ComparedScheduler::FifoMinimal]
        );
        let loads = turns.iter().map(|turn| turn.loads.len());
        assert_eq!(loads.collect::<Vec<_>>(), [2, 2, 2, 1]);
        assert!(turns.iter().all(|turn| turn.rounds == [0]));
        assert!(args.of(&TWO).is_empty());
        assert_eq!(args.of(&THREADS), [SchedPart::Cores]);
        let measured = GuestResults {
            samples: vec![],
            left_out: vec!["cores: the scheduler usher is left out: x".to_owned()],
        };
        let notes = guests.notes("cores", &["cores"], &measured);
        assert_eq!(notes[0], "the scheduler usher is left out: x");
        assert!(notes[1].contains("scx_bpfland 1.1.4"), "{notes:?}");
        assert_eq!(guests.notes("overhead", &["overhead"], &measured).len(), 1);
        assert!(guests.notes("seats", &["seats"], &measured).is_empty());
        let erlang = GuestResults {
            samples: vec![],
            left_out: vec!["erlang: the scheduler usher is left out: x".to_owned()],
        };
        let notes = guests.notes("elapsed", &["erlang"], &erlang);
        assert_eq!(notes, ["the scheduler usher is left out: x"]);
    }

    #[test]
    fn the_order_in_pairs_alternates() {
        let args = args(&["--pairs", "3", "--only", "elapsed"]);
        let guests = guests(&args, vec![ComparedScheduler::Fifo]);
        let load = GuestLoad::Overhead { ms: 1 };
        let turns = guests.turns(&[(SchedPart::Elapsed, load)]);
        let order = turns.iter().map(|turn| (turn.rounds[0], &turn.scheduler));
        let (eevdf, ours) = (&ComparedScheduler::Eevdf, &ComparedScheduler::Usher);
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
        let part = not_measured(SchedPart::Erlang, &anyhow!("no archive"));
        assert_eq!(
            (part.name.as_str(), &part.notes[0][..]),
            ("erlang", "no archive")
        );
        assert!(part.bars.iter().any(|bar| !bar.is_met()));
        assert!(
            not_measured(SchedPart::Mix, &anyhow!("no java"))
                .bars
                .is_empty()
        );
    }
}
