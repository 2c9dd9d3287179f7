// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher-bench here`: measures the standard mixes on this machine, under Linux and under Usher,
//! and writes one report.
//!
//! 1. The generated mixes need no other program, and have a thread for each CPU. An example mix
//!    runs if its programs are installed; the report lists the missing programs of each other mix.
//! 2. Each mix runs under [`POLICIES`]; `--max-seconds` limits the time per mix.
//! 3. The report contains for each mix the ANTT (mean slow-down of the programs) of each policy and
//!    its ratio to that of `linux`.
//!
//! A mix that fails does not prevent the others. After SIGINT or SIGTERM, the report contains the
//! mixes measured until then.

pub mod mixes;
mod program;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use usher_act::ActConfig;
use usher_host::engine::{EngineConfig, KeeperCommand};
use usher_host::mix::{MixEvent, MixFile, MixOptions, run_mix};
use usher_model::Topology;
use usher_report::data::{MixResult, PolicyResult};
use usher_report::summary;

pub use program::{ProgramArgs, run as run_program};

use crate::bars::{Part, Table};
use crate::machine;
use crate::processes::usher_binary;

/// The name of the subcommand that runs a program of the generated mixes.
pub const PROGRAM: &str = "program";

/// The compared policies. `linux` is measured twice; the difference of the two results is the
/// noise.
const POLICIES: [&str; 3] = ["linux", "linux#2", "usher"];

/// Measures the standard mixes on this machine and writes one report
///
/// The report lists mixes with missing programs, and the packages that contain the programs. The
/// inputs of the programs are created once, in the directory `here-inputs` beside the results; they
/// take 300 MB if all programs are installed.
#[derive(Debug, Clone, clap::Args)]
pub struct HereArgs {
    /// Measure only these mixes, by the names of their files
    #[arg(long, value_delimiter = ',')]
    pub mix: Vec<String>,
    /// Read `mixes` and `programs` in this directory; by default, in `examples` beside this program
    #[arg(long, value_name = "DIR")]
    pub examples: Option<PathBuf>,
    /// Measure this `usher`; by default, the `usher` in the directory of this program
    #[arg(long, value_name = "FILE")]
    pub usher: Option<PathBuf>,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "usher-bench-results", value_name = "DIR")]
    pub out: PathBuf,
    /// Measure each mix for at most this time in seconds; rounds and repetitions are reduced to fit
    #[arg(long, default_value_t = 90.0, value_name = "SECONDS")]
    pub max_seconds: f64,
    /// Run this many rounds of each mix
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Repeat each program at least this many times in a round
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
}

/// Runs all mixes that can run, and saves one report.
pub fn run(args: &HereArgs) -> Result<bool> {
    let topology = usher_topology::load(usher_topology::Source::ThisMachine)?;
    let inputs = std::path::absolute(args.out.join("here-inputs"))?;
    let examples = args.examples.clone().or_else(mixes::examples);
    let files = mixes::prepare(&inputs, examples.as_deref(), topology.all_cpus().len())?;
    let names: Vec<String> = files.iter().map(|file| name_of(file)).collect();
    let unknown = args.mix.iter().find(|name| !names.contains(name));
    if let Some(name) = unknown {
        anyhow::bail!(
            "the mix '{name}' does not exist: choose from {}",
            names.join(", ")
        );
    }
    let folder = machine::run_folder(&args.out, "here")?;
    let bench = Bench {
        args,
        usher: usher_binary(args.usher.as_deref())?,
        folder: &folder,
        topology,
        cancel: cancelled_by_signals()?,
    };
    let mut parts = Vec::new();
    let mut skipped = Vec::new();
    for file in &files {
        let name = name_of(file);
        let wanted = args.mix.is_empty() || args.mix.contains(&name);
        if !wanted || bench.cancel.load(Ordering::Relaxed) {
            continue;
        }
        match bench.mix(file, &name) {
            Ok(part) => {
                machine::print_line(part.lines())?;
                parts.push(part);
            }
            Err(error) => {
                machine::print_line(format_args!("the mix {name} was not measured: {error:#}"))?;
                skipped.push(vec![name, format!("{error:#}")]);
            }
        }
    }
    anyhow::ensure!(!parts.is_empty(), "no mix could be measured");
    parts.extend(part_of_skipped(skipped));
    machine::finish(&folder, "Usher on this machine", &parts)
}

fn name_of(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or(file.as_os_str());
    stem.to_string_lossy().into_owned()
}

/// Returns a flag that SIGINT and SIGTERM set. When the flag is set, the present mix ends, and the
/// report is written.
fn cancelled_by_signals() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("watching signals")?;
    }
    Ok(flag)
}

/// Settings that all mixes share.
struct Bench<'a> {
    args: &'a HereArgs,
    usher: PathBuf,
    folder: &'a Path,
    topology: Topology,
    cancel: Arc<AtomicBool>,
}

impl Bench<'_> {
    fn mix(&self, file: &Path, name: &str) -> Result<Part> {
        let mix = MixFile::read(file)?;
        let missing = mixes::missing(&mix);
        anyhow::ensure!(missing.is_empty(), "missing: {}", missing.join(", "));
        let result = self.measure(&mix, name)?;
        let page = self.folder.join(format!("{name}.html"));
        std::fs::write(&page, usher_report::html::page(&result))
            .with_context(|| format!("writing {}", page.display()))?;
        let mut part = Part::new(name, &result.title);
        part.tables = vec![policies(&result), programs(&result)];
        part.notes = vec![
            headline(&result),
            format!(
                "The file {name}.html in this directory has the details, with curves and timelines."
            ),
        ];
        part.notes.extend(result.protocol.notes.iter().cloned());
        part.raw = serde_json::to_value(&result)?;
        Ok(part)
    }

    fn measure(&self, mix: &MixFile, name: &str) -> Result<MixResult> {
        let options = MixOptions {
            policies: POLICIES.map(str::to_owned).to_vec(),
            rounds: Some(self.args.rounds),
            repeats: Some(self.args.repeats),
            max_seconds: Some(self.args.max_seconds),
            store: Some(self.folder.join("profiles.sqlite")),
            command: format!("usher-bench here --mix {name}"),
            ..MixOptions::default()
        };
        let runtime = tempfile::tempdir()?;
        let mut config = EngineConfig::new(self.topology.clone(), ActConfig::new(runtime.path()));
        config.keeper = Some(KeeperCommand {
            exe: self.usher.clone(),
            subcommand: vec!["keeper".into()],
            respawn: vec![],
        });
        let mut show = |event: MixEvent<'_>| match event {
            MixEvent::Setup { command } => eprintln!("{name}: preparing the inputs: {command}"),
            MixEvent::Begins { seconds, .. } => {
                eprintln!("{name}: measuring for about {seconds:.0} s")
            }
            MixEvent::RoundEnded { policy, result } => {
                let antt = usher_report::text::number(result.antt, 3);
                eprintln!("{name}, policy {policy}: ANTT {antt}");
            }
            _ => {}
        };
        Ok(run_mix(mix, &config, &options, &self.cancel, &mut show)?)
    }
}

/// Returns a sentence with the ANTT of each policy.
fn headline(result: &MixResult) -> String {
    let each = result.policies.iter().map(|policy| {
        let antt = summary::antt(result, policy).map(|antt| antt.value);
        format!("{} {}", policy.label, usher_report::text::number(antt, 3))
    });
    format!("ANTT: {}.", each.collect::<Vec<_>>().join(", "))
}

/// Returns a table with a row per policy: the ANTT, and its ratio to the ANTT of `linux`.
fn policies(result: &MixResult) -> Table {
    let row = |policy: &PolicyResult| {
        let compared = policy.comparison.as_ref().and_then(|c| c.antt);
        let number = |value: Option<f64>| usher_report::text::number(value, 3);
        vec![
            policy.label.clone(),
            number(summary::antt(result, policy).map(|antt| antt.value)),
            number(compared.map(|ratio| ratio.value)),
            number(compared.and_then(|ratio| ratio.low)),
            number(compared.and_then(|ratio| ratio.high)),
            format!("{} of {}", policy.abstentions(), policy.rounds.len()),
        ]
    };
    let head = [
        "policy",
        "ANTT",
        "ratio to linux",
        "low",
        "high",
        "rounds without seats",
    ];
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows: result.policies.iter().map(row).collect(),
    }
}

/// Returns a table with a row per program: its best time alone, and its mean NTT under each policy.
fn programs(result: &MixResult) -> Table {
    let ntt = |policy: &PolicyResult, at: usize| {
        let rounds = policy.rounds.iter();
        let ntts: Option<Vec<f64>> = rounds.map(|round| round.programs.get(at)?.ntt).collect();
        let ntts = ntts.filter(|ntts| !ntts.is_empty());
        ntts.map(|ntts| ntts.iter().sum::<f64>() / ntts.len() as f64)
    };
    let rows = result.programs.iter().enumerate().map(|(at, program)| {
        let alone = usher_report::text::number(program.alone_best_seconds, 2);
        let each = result.policies.iter();
        let each = each.map(|policy| usher_report::text::number(ntt(policy, at), 3));
        [program.name.clone(), program.class.clone(), alone]
            .into_iter()
            .chain(each)
            .collect()
    });
    let head = ["program", "class", "alone, s"].map(str::to_owned);
    let labels = result.policies.iter().map(|p| format!("NTT, {}", p.label));
    Table {
        head: head.into_iter().chain(labels).collect(),
        rows: rows.collect(),
    }
}

fn part_of_skipped(rows: Vec<Vec<String>>) -> Option<Part> {
    let head = ["mix", "reason"].map(str::to_owned).to_vec();
    (!rows.is_empty()).then(|| Part {
        tables: vec![Table { head, rows }],
        ..Part::new("skipped", "Mixes that were not measured")
    })
}
