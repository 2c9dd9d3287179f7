// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench background`: that background work regulated by `usher bg` is
//! not felt by the foreground, against all else that a user could pick.

mod actors;
mod calibrate;
mod cell;
mod experiments;
mod fixture;
mod idle;
mod jobs;
mod kills;
pub mod load;
mod measure;
mod metered;
mod page;
mod reaction;
mod rig;
mod run;
mod study;
mod treatments;
mod watch;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use crate::bars::Part;
use crate::{machine, processes};
pub use actors::reaper_of;
use cell::Limits;
use experiments::{Cell, DiskSetup, Group, Task, is_there, matrix};
use fixture::{BackgroundFixture, Size};
pub use measure::CalibrateArgs;
pub use measure::run as calibrate;
pub use run::once;
use treatments::{BackgroundMethod, RegulatorFixture};
use watch::{Resource, Watcher};

/// The parts, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// Figure 2 (a): the disk benchmark
    Disk,
    /// Figure 2 (b): the network benchmark
    Net,
    /// Figure 3: computing beside real programs
    Cpu,
    /// Figure 4: e2fsck beside real programs
    Fsck,
    /// Figure 5: scp under scp, iperf3 under iperf3
    Transfer,
    /// How soon the background yields, and is back
    Reaction,
    /// How much of what is idle the background gets
    Idle,
    /// SIGKILL while the background is frozen
    Kills,
    /// Fork storms
    Storms,
}

impl Which {
    /// Whether it is about `usher bg` alone.
    fn kills(self) -> bool {
        matches!(self, Self::Kills | Self::Storms)
    }

    fn group(self) -> Option<Group> {
        match self {
            Self::Disk => Some(Group::Disk),
            Self::Net => Some(Group::Net),
            Self::Cpu => Some(Group::Cpu),
            Self::Fsck => Some(Group::Fsck),
            Self::Transfer => Some(Group::Transfer),
            Self::Reaction | Self::Idle | Self::Kills | Self::Storms => None,
        }
    }
}

/// Options of the benchmark.
#[derive(Debug, Clone, clap::Args)]
pub struct BackgroundArgs {
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Which>,
    /// Only cells with this in their names
    #[arg(long, value_name = "TEXT")]
    cells: Option<String>,
    /// Only these disks
    #[arg(long, value_enum, value_delimiter = ',')]
    places: Vec<DiskSetup>,
    /// Only these treatments (foreground alone always)
    #[arg(long, value_enum, value_delimiter = ',')]
    treatments: Vec<BackgroundMethod>,
    /// Pairs of each treatment at least
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(3..))]
    pairs: u32,
    /// Pairs at most, for a cell that is not resolved
    #[arg(long, default_value_t = 40)]
    pairs_max: u32,
    /// Fewer usage degrees and counts, small inputs, foregrounds of a second
    #[arg(long)]
    quick: bool,
    /// Seconds of a foreground alone, where they can be chosen
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Stop a foreground that takes more than this multiple of its time alone
    #[arg(long, default_value_t = 20.0)]
    cut: f64,
    /// Of reaction and idle time only these resources
    #[arg(long, value_enum, value_delimiter = ',')]
    resources: Vec<Resource>,
    /// Reactions to measure; 100, or 20 where it is to be quick
    #[arg(long)]
    events: Option<usize>,
    /// Rounds of SIGKILL
    #[arg(long, default_value_t = 1_000)]
    kill_rounds: usize,
    /// Fork storms
    #[arg(long, default_value_t = 200)]
    storm_rounds: usize,
    /// Prints the cells and ends
    #[arg(long)]
    list: bool,
    /// Continues the run of that folder: cells and parts measured in it are not measured
    /// again
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// The `usher` to measure; default: `usher` in this program's folder
    #[arg(long, value_name = "FILE")]
    usher: Option<PathBuf>,
    /// Each `usher bg` by itself, without a daemon
    #[arg(long)]
    no_daemon: bool,
    /// Switch this disk's scheduler for experiments that need another one; it is switched back
    /// afterwards, also if the benchmark is killed
    #[arg(long)]
    allow_disk_scheduler: bool,
    /// Rate of the cable between the two network namespaces
    #[arg(long, default_value_t = 200, value_name = "MBIT")]
    rate: u32,
    /// A tree to search instead of Linux 6.1
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// The input of `gmx mdrun`; else a box of water, which is made
    #[arg(long, value_name = "FILE")]
    tpr: Option<PathBuf>,
    /// Where files are made, on the disk to be measured
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    scratch: PathBuf,
    /// Where the dated folder of results is made
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
}

impl BackgroundArgs {
    fn wants(&self, which: Which) -> bool {
        self.only.is_empty() || self.only.contains(&which)
    }

    fn chosen_cells(&self) -> Vec<Cell> {
        let groups: Vec<Group> = Which::value_variants()
            .iter()
            .filter(|&&w| self.wants(w))
            .filter_map(|w| w.group())
            .collect();
        let named = |cell: &Cell| {
            self.cells
                .as_ref()
                .is_none_or(|text| cell.id().contains(text.as_str()))
        };
        let placed = |cell: &Cell| {
            cell.place
                .is_none_or(|place| self.places.is_empty() || self.places.contains(&place))
        };
        matrix(self.quick)
            .into_iter()
            .filter(|c| groups.contains(&c.group) && named(c) && placed(c))
            .collect()
    }

    fn chosen_treatments(&self) -> Vec<BackgroundMethod> {
        let wanted = |t: &BackgroundMethod| {
            self.treatments.is_empty()
                || self.treatments.contains(t)
                || *t == BackgroundMethod::Alone
        };
        BackgroundMethod::value_variants()
            .iter()
            .copied()
            .filter(wanted)
            .collect()
    }

    fn size(&self) -> Size {
        Size {
            fg_seconds: self.seconds.unwrap_or(if self.quick { 1.0 } else { 5.0 }),
            quick: self.quick,
            rate_mbit: self.rate,
            tree: self.tree.clone(),
            tpr: self.tpr.clone(),
            allow_disk_scheduler: self.allow_disk_scheduler,
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            pairs_min: self.pairs as usize,
            pairs_max: self.pairs_max.max(self.pairs) as usize,
            cut: self.cut,
            lead: Duration::from_millis(if self.quick { 500 } else { 2_000 }),
        }
    }
}

/// Runs the selected parts, saves and shows them. Returns whether every bar was met.
pub fn run(args: &BackgroundArgs) -> Result<bool> {
    let cells = args.chosen_cells();
    let treatments = args.chosen_treatments();
    if args.list {
        let all: Vec<String> = cells.iter().map(Cell::id).collect();
        return machine::print_line(all.join("\n")).map(|()| true);
    }
    let begun = args.resume.clone().map(machine::begun_folder).transpose()?;
    let missing = missing_packages(&cells, &treatments);
    if !missing.is_empty() {
        let names = missing.join(" ");
        eprintln!(
            "background: what needs them is left out, for these packages are missing: {names} (scripts/setup bench installs them)"
        );
    }
    let needs_usher =
        treatments.iter().any(|t| t.is_usher()) || args.only.iter().any(|w| w.kills());
    let usher = match needs_usher {
        true => Some(processes::usher_binary(args.usher.as_deref())?),
        false => None,
    };
    let folder = match begun {
        Some(folder) => folder,
        None => machine::run_folder(&args.out, "background")?,
    };
    let _reaper = actors::reaper()?;
    let mut fixture = BackgroundFixture::new(args.size(), &args.scratch)?;
    let mut regulator = RegulatorFixture::new(usher.clone(), !args.no_daemon)?;
    let results = run::run(
        &cells,
        &treatments,
        args.limits(),
        &mut fixture,
        &mut regulator,
        &folder,
    )?;
    let groups = Which::value_variants()
        .iter()
        .filter(|&&w| args.wants(w))
        .filter_map(|w| w.group());
    let mut parts: Vec<Part> = groups.map(|group| page::part(group, &results)).collect();
    parts.extend(watched(
        args,
        &treatments,
        &mut fixture,
        &mut regulator,
        &folder,
    )?);
    if let Some(usher) =
        usher.filter(|_| treatments.contains(&BackgroundMethod::Eii) || !args.only.is_empty())
    {
        if args.wants(Which::Kills) {
            let kills = || kills::kills(&usher, args.kill_rounds);
            parts.push(run::once(&folder, "kills", kills)?);
        }
        if args.wants(Which::Storms) {
            let storms = || kills::storms(&usher, args.storm_rounds);
            parts.push(run::once(&folder, "storms", storms)?);
        }
    }
    finish("Usher: background work", &folder, &parts)
}

/// Packages of programs that cells and treatments need and that are not there.
fn missing_packages(cells: &[Cell], treatments: &[BackgroundMethod]) -> Vec<&'static str> {
    let tasks = cells.iter().flat_map(|cell| [cell.fg, cell.bg]);
    let needed = tasks
        .filter_map(Task::program)
        .chain(treatments.iter().filter_map(|t| t.program()));
    let missing = needed.filter(|(program, _)| !is_there(program));
    let names: BTreeSet<_> = missing.map(|(_, package)| package).collect();
    names.into_iter().collect()
}

/// Reaction and idle time.
fn watched(
    args: &BackgroundArgs,
    treatments: &[BackgroundMethod],
    fixture: &mut BackgroundFixture,
    regulator: &mut RegulatorFixture,
    folder: &Path,
) -> Result<Vec<Part>> {
    let resources: Vec<Resource> = match args.resources.is_empty() {
        true => Resource::value_variants().to_vec(),
        false => args.resources.clone(),
    };
    let lead = args.limits().lead;
    let mut watcher = Watcher {
        fixture,
        regulator,
        lead,
    };
    let mut parts = Vec::new();
    if args.wants(Which::Reaction) {
        let events = args.events.unwrap_or(if args.quick { 20 } else { 100 });
        let reaction = || reaction::run(&mut watcher, treatments, &resources, events);
        parts.push(run::once(folder, "reaction", reaction)?);
    }
    if args.wants(Which::Idle) {
        let (rounds, quick) = (args.pairs, args.quick);
        let idle = || idle::run(&mut watcher, treatments, &resources, rounds, quick);
        parts.push(run::once(folder, "idle", idle)?);
    }
    Ok(parts)
}

/// Shows and saves the parts.
fn finish(title: &str, folder: &Path, parts: &[Part]) -> Result<bool> {
    for part in parts {
        machine::print_line(part.lines())?;
    }
    crate::machine::finish(folder, title, parts)
}
