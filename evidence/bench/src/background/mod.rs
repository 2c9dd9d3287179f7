// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench background`: measures how much background work slows foreground work down, under
//! `usher bg` and under other ways to run background work (nice, SCHED_IDLE, ionice, cgroups,
//! cpulimit, loadwatch, the policies of paper 2). Each way is called a *treatment*.
//!
//! - The matrix has a cell for each combination of foreground, background, disk and usage degree
//!   (share of the time for which a load generator is active). In each cell, runs of the foreground
//!   alone and beside the background form pairs. Modules: `experiments`, `cell`, `study`, `page`.
//! - Reaction times of the background to the foreground, and use of the foreground's pauses by the
//!   background: `reaction`, `idle`, `watch`.
//! - SIGKILL of Usher while the background is frozen, and fork storms: `kills`.
//! - Set-up: `fixture`, `rig` (disks, networks, inputs), `treatments`, `actors`, `jobs`, and load
//!   generators (`load`).
//! - `measure` and `calibrate`: `usher bench calibrate`.
//!
//! Each complete result is saved, and `--resume` continues a run. The run itself has no time limit.
//! Cells whose programs are missing are left out with a message.
//!
//! Limits: networks, cgroups and the slow disk need root. The measured slow-downs apply to this
//! machine and these programs only.

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
use experiments::{Cell, DiskSetup, Group, Task, is_installed, matrix};
use fixture::{BackgroundFixture, FixtureSettings};
pub use measure::CalibrateArgs;
pub use measure::run as calibrate;
pub use run::once;
use treatments::{BackgroundMethod, RegulatorFixture};
use watch::{Resource, Watcher};

/// The parts, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackgroundPart {
    /// Figure 2 (a): the disk benchmark
    Disk,
    /// Figure 2 (b): the network benchmark
    Net,
    /// Figure 3: background computation beside real programs
    Cpu,
    /// Figure 4: e2fsck in the background beside real programs
    Fsck,
    /// Figure 5: scp beside scp, iperf3 beside iperf3
    Transfer,
    /// Time until the background yields, and until it resumes
    Reaction,
    /// Share of idle resources that the background uses
    Idle,
    /// SIGKILL of Usher while the background is frozen
    Kills,
    /// Background work that starts processes continuously (a fork storm)
    Storms,
}

impl BackgroundPart {
    /// Whether the part tests `usher bg` only and compares no treatments.
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
    /// Run only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<BackgroundPart>,
    /// Run only the cells with this text in their names
    #[arg(long, value_name = "TEXT")]
    cells: Option<String>,
    /// Use only these disks
    #[arg(long, value_enum, value_delimiter = ',')]
    places: Vec<DiskSetup>,
    /// Run only these treatments; the foreground alone is always measured
    #[arg(long, value_enum, value_delimiter = ',')]
    treatments: Vec<BackgroundMethod>,
    /// Run at least this many pairs of runs of each treatment
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(3..))]
    pairs: u32,
    /// Run at most this many pairs of runs if the result of a cell is not significant
    #[arg(long, default_value_t = 40)]
    pairs_max: u32,
    /// Run fewer usage degrees and repetitions with smaller inputs, and foreground work of one
    /// second
    #[arg(long)]
    quick: bool,
    /// Choose the length of the foreground work, where it can be chosen, so that it takes S seconds
    /// alone
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Stop foreground work that takes more than this multiple of its time alone
    #[arg(long, default_value_t = 20.0)]
    cut: f64,
    /// Measure the parts 'reaction' and 'idle' only with these resources
    #[arg(long, value_enum, value_delimiter = ',')]
    resources: Vec<Resource>,
    /// Measure this many reactions; 100 by default, or 20 with --quick
    #[arg(long)]
    events: Option<usize>,
    /// Run this many rounds with SIGKILL
    #[arg(long, default_value_t = 1_000)]
    kill_rounds: usize,
    /// Run this many rounds with a fork storm as background work
    #[arg(long, default_value_t = 200)]
    storm_rounds: usize,
    /// Print the list of cells and exit
    #[arg(long)]
    list: bool,
    /// Continue the run in this directory; cells and parts that are already measured are not
    /// measured again
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Measure this `usher`; by default, the `usher` in the directory of this program
    #[arg(long, value_name = "FILE")]
    usher: Option<PathBuf>,
    /// Allow experiments to change the I/O scheduler of the disk that holds --scratch; it is
    /// restored afterwards, even if the benchmark is killed
    #[arg(long)]
    allow_disk_scheduler: bool,
    /// Limit the link between the two network namespaces to this rate
    #[arg(long, default_value_t = 200, value_name = "MBIT")]
    rate: u32,
    /// Search this directory tree instead of Linux 6.1
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Use this input of `gmx mdrun` instead of a generated box of water
    #[arg(long, value_name = "FILE")]
    tpr: Option<PathBuf>,
    /// Create files in this directory, which must be on the disk to be measured
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    scratch: PathBuf,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
}

impl BackgroundArgs {
    fn wants(&self, which: BackgroundPart) -> bool {
        self.only.is_empty() || self.only.contains(&which)
    }

    fn chosen_cells(&self) -> Vec<Cell> {
        let groups: Vec<Group> = BackgroundPart::value_variants()
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

    fn size(&self) -> FixtureSettings {
        FixtureSettings {
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

/// Runs the selected parts, saves and prints their results. Returns whether every bar was met.
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
            "background: experiments are left out because the packages {names} are missing \
             (scripts/setup bench installs them)"
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
    let mut regulator = RegulatorFixture::new(usher.clone())?;
    let results = run::run(
        &cells,
        &treatments,
        args.limits(),
        &mut fixture,
        &mut regulator,
        &folder,
    )?;
    let groups = BackgroundPart::value_variants()
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
        if args.wants(BackgroundPart::Kills) {
            let kills = || kills::kills(&usher, args.kill_rounds);
            parts.push(run::once(&folder, "kills", kills)?);
        }
        if args.wants(BackgroundPart::Storms) {
            let storms = || kills::storms(&usher, args.storm_rounds);
            parts.push(run::once(&folder, "storms", storms)?);
        }
    }
    finish("Usher: background work", &folder, &parts)
}

/// Returns the Debian packages of the programs that the cells and treatments need and that are not
/// installed.
fn missing_packages(cells: &[Cell], treatments: &[BackgroundMethod]) -> Vec<&'static str> {
    let tasks = cells.iter().flat_map(|cell| [cell.fg, cell.bg]);
    let needed = tasks
        .filter_map(Task::program)
        .chain(treatments.iter().filter_map(|t| t.program()));
    let missing = needed.filter(|(program, _)| !is_installed(program));
    let names: BTreeSet<_> = missing.map(|(_, package)| package).collect();
    names.into_iter().collect()
}

/// Measures the parts `reaction` and `idle`.
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
    if args.wants(BackgroundPart::Reaction) {
        let events = args.events.unwrap_or(if args.quick { 20 } else { 100 });
        let reaction = || reaction::run(&mut watcher, treatments, &resources, events);
        parts.push(run::once(folder, "reaction", reaction)?);
    }
    if args.wants(BackgroundPart::Idle) {
        let (rounds, quick) = (args.pairs, args.quick);
        let idle = || idle::run(&mut watcher, treatments, &resources, rounds, quick);
        parts.push(run::once(folder, "idle", idle)?);
    }
    Ok(parts)
}

/// Prints and saves the parts.
fn finish(title: &str, folder: &Path, parts: &[Part]) -> Result<bool> {
    for part in parts {
        machine::print_line(part.lines())?;
    }
    crate::machine::finish(folder, title, parts)
}
