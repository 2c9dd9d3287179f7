// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `mixes`: measures mixes of real programs under the policies `usher` and `linux`, and
//! compares their ANTT (mean normalised turnaround time). `linux` is also compared with a second
//! measurement of `linux`, which shows the noise.
//!
//! The mixes with a predicted gain of at least 5 % were selected before any mix was run under
//! `usher`. Bars limit the upper end of the 95 % confidence interval of the ratio of ANTTs, usher /
//! linux: at most 0.95 in mixes with a predicted gain, at most 1.03 in all other mixes.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use usher_act::ActConfig;
use usher_host::engine::{EngineConfig, KeeperCommand};
use usher_host::mix::{MixEvent, MixFile, MixOptions, run_mix};
use usher_report::data::{MixResult, PolicyResult};
use usher_report::summary;

use crate::bars::{Bar, Part};

/// Names of the mix files, and whether a gain of 5 % or more was predicted. A gain was predicted
/// for mixes with threads that spin at barriers, because such threads lose most when they share
/// CPUs.
const MIXES: [(&str, bool); 8] = [
    ("gromacs-svd", true),
    ("gromacs-7zz", true),
    ("svd-svd", false),
    ("lammps-pigz", false),
    ("pigz-povray", false),
    ("gil-minimap2", false),
    ("four-mixed", false),
    ("four-scalable", false),
];

/// Options of the part.
#[derive(Debug, Clone, clap::Args)]
pub struct MixArgs {
    /// Read the mix files in this directory
    #[arg(long, default_value = "examples/mixes", value_name = "DIR")]
    pub mixes: PathBuf,
    /// Run this many rounds of each mix; 95 % intervals need six or more
    #[arg(long, default_value_t = 6)]
    pub rounds: u32,
    /// Repeat each program at least this many times in a round
    #[arg(long, default_value_t = 3)]
    pub repeats: u32,
    /// Run only these mixes
    #[arg(long, value_delimiter = ',')]
    pub mix: Vec<String>,
}

/// Measures every mix, and computes the part.
pub fn run(args: &MixArgs, usher: &Path, folder: &Path, seed: u64) -> Result<Part> {
    let mut part = Part::new(
        "mixes",
        "Mixes of real programs: ANTT of usher / ANTT of linux",
    );
    let wanted = |name: &str| args.mix.is_empty() || args.mix.iter().any(|m| m == name);
    let mut lines = Vec::new();
    for (name, gains) in MIXES.into_iter().filter(|(name, _)| wanted(name)) {
        let result =
            one(name, args, usher, folder, seed).with_context(|| format!("mix '{name}'"))?;
        let (bar, line) = judge(name, gains, &result)?;
        eprintln!("{line}");
        part.bars.push(bar);
        lines.push(line);
        let file = folder.join(format!("{name}.html"));
        std::fs::write(&file, usher_report::html::page(&result))?;
        std::fs::write(
            folder.join(format!("{name}.json")),
            serde_json::to_vec(&result)?,
        )?;
    }
    part.notes = lines;
    part.notes.push(format!(
        "Each ratio compares the ANTT of two policies in the same round. Each mix has {} rounds \
         of at least {} repetitions, and the policies alternate. The table shows the geometric \
         mean and its 95 % bootstrap interval; the bar applies to the upper end of the interval.",
        args.rounds, args.repeats
    ));
    Ok(part)
}

fn one(name: &str, args: &MixArgs, usher: &Path, folder: &Path, seed: u64) -> Result<MixResult> {
    let mix = MixFile::read(&args.mixes.join(format!("{name}.toml")))?;
    let options = MixOptions {
        policies: ["linux", "linux#2", "usher"].map(str::to_owned).to_vec(),
        rounds: Some(args.rounds),
        repeats: Some(args.repeats),
        max_seconds: Some(3_600.0),
        seed,
        store: Some(folder.join("profiles.sqlite")),
        command: format!("usher bench seats --only mixes --mix {name}"),
        ..MixOptions::default()
    };
    let topology = usher_topology::load(usher_topology::Source::ThisMachine)?;
    let runtime = tempfile::tempdir()?;
    let mut config = EngineConfig::new(topology, ActConfig::new(runtime.path()));
    config.keeper = Some(KeeperCommand {
        exe: usher.to_owned(),
        subcommand: vec!["keeper".into()],
        respawn: vec![],
    });
    let mut report_event = |event: MixEvent<'_>| {
        if let MixEvent::RoundEnded { policy, result } = event {
            eprintln!(
                "{name}, policy {policy}: ANTT {}",
                result.antt.map_or("-".to_owned(), |a| format!("{a:.3}"))
            );
        }
    };
    Ok(run_mix(
        &mix,
        &config,
        &options,
        &AtomicBool::new(false),
        &mut report_event,
    )?)
}

fn judge(name: &str, gains: bool, result: &MixResult) -> Result<(Bar, String)> {
    let policy = |policy: &str| {
        result
            .policy(policy)
            .with_context(|| format!("the mix {name} has no result of the policy {policy}"))
    };
    let interval = |p: &PolicyResult| p.comparison.as_ref().and_then(|c| c.antt);
    let usher = policy("usher")?;
    let ratio =
        interval(usher).context("the result of the policy has no ratio to the policy linux")?;
    let again = interval(policy("linux#2")?);
    let band = summary::aa_band(result);
    let limit = if gains { 0.95 } else { 1.03 };
    let high = ratio.high.unwrap_or(f64::NAN);
    let named = if gains { " (named beforehand)" } else { "" };
    let bar = Bar::at_most(
        format!("{name}{named}, upper end of the 95 % interval"),
        high,
        limit,
        "",
    );
    let line = format!(
        "{name}: usher / linux {:.3} [{:.3}, {high:.3}]; linux again / linux {:.3}; A/A band {}; abstained in {} of {} rounds.",
        ratio.value,
        ratio.low.unwrap_or(f64::NAN),
        again.map_or(f64::NAN, |e| e.value),
        band.map_or("-".to_owned(), |b| format!("{:.3}..{:.3}", b.low, b.high)),
        usher.abstentions(),
        usher.rounds.len()
    );
    Ok((bar, line))
}
