// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `lending`: measures in milliseconds the delay until an idle seat is lent to another
//! program, and the delay until its owner has the seat again.
//!
//! 1. Two programs have a seat of one core each. The owner computes and sleeps alternately, and
//!    prints the start time of each phase. The borrower always has two runnable threads.
//! 2. The log of the engine (the control loop of the daemon, run in this process) contains the
//!    times at which the owner's core was lent and reclaimed.
//! 3. The delays are the differences between the two series of times.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use usher_act::ActConfig;
use usher_host::engine::{AdoptOptions, Engine, EngineConfig, LogChange, LogEntry, ProfileUse};
use usher_host::launch::{LaunchSpec, Stream};
use usher_model::{CurvePoint, ProgramId, ProgramKey, ProgressSource};
use usher_report::stats;
use usher_store::{MachineKey, MeasuredPoint, Measurement, Store};
use usher_topology::{Source, load};

use crate::bars::{Bar, Part};

/// Runs the two programs for `seconds` seconds, and computes the part.
pub fn run(seconds: f64) -> Result<Part> {
    let mut part = Part::new("lending", "Lending idle seats");
    let dir = tempfile::tempdir()?;
    let times = dir.path().join("owner.txt");
    let log = watch(dir.path(), &times, seconds)?;
    let turns = parse_turns(&fs::read_to_string(&times)?)?;
    let lent = spans(&log);
    let (lend_ms, reclaim_ms) = delays(&turns, &lent);
    let at = |values: &[f64], p| stats::quantile(values, p).unwrap_or(f64::NAN);
    part.bars = vec![
        Bar::at_most(
            "time to reclaim a lent core after the owner woke, 99th percentile",
            at(&reclaim_ms, 0.99),
            20.0,
            "ms",
        ),
        Bar::at_most(
            "time to lend an idle core, 99th percentile",
            at(&lend_ms, 0.99),
            50.0,
            "ms",
        ),
    ];
    part.notes = vec![format!(
        "The owner slept {} times and woke {} times during a loan, in {seconds:.0} s; the \
         medians are {:.1} ms to lend and {:.1} ms to reclaim. The affinity mask of the owner \
         never changes: its threads may run on a lent core immediately, beside those of the \
         borrower, and have the core alone after the reclaim.",
        lend_ms.len(),
        reclaim_ms.len(),
        at(&lend_ms, 0.5),
        at(&reclaim_ms, 0.5)
    )];
    part.raw = serde_json::json!({ "lend_ms": lend_ms, "reclaim_ms": reclaim_ms });
    Ok(part)
}

/// Runs owner and borrower. Returns the log of the engine.
fn watch(dir: &Path, times: &Path, seconds: f64) -> Result<Vec<LogEntry>> {
    let topology = load(Source::parse("package:1 core:2 pu:1")?)?;
    let store = dir.join("profiles.sqlite");
    let keys = ["owner", "borrower"].map(|name| ProgramKey {
        executable: "bench".into(),
        arguments: name.into(),
    });
    teach(&store, &topology, &keys)?;
    let mut config = EngineConfig::new(topology.clone(), ActConfig::new(dir));
    config.profiles = ProfileUse {
        store: Some(store),
        recall: true,
        learn: false,
        ..ProfileUse::default()
    };
    let policy = usher_policy::by_name("usher", &topology).context("policy usher")?;
    let engine = Engine::start(config, policy)?;
    let exe = std::env::current_exe()?;
    let length = format!("--seconds={seconds}");
    let owner = [
        length.as_str(),
        "--threads=1",
        "--busy-ms=150",
        "--sleep-ms=250",
    ];
    let borrower = [length.as_str(), "--threads=2"];
    let mut children = Vec::new();
    for (options, key) in [&owner[..], &borrower[..]].into_iter().zip(&keys) {
        let argv: Vec<_> = [exe.as_os_str(), "worker".as_ref()]
            .into_iter()
            .chain(options.iter().map(AsRef::as_ref))
            .collect();
        let mut spec = LaunchSpec::new(argv.iter());
        spec.stdout = if key.arguments == "owner" {
            Stream::File(times.to_owned())
        } else {
            Stream::Null
        };
        let adopt = AdoptOptions {
            key: Some(key.clone()),
            ..AdoptOptions::new(argv.iter())
        };
        let (held, _) = engine.launch(&spec, adopt.named(key.arguments.as_str()))?;
        children.push(held.release()?);
    }
    for child in &mut children {
        child.wait()?;
    }
    let (log, _) = engine.log(0)?;
    let failures = engine.stop();
    anyhow::ensure!(failures.is_empty(), "undoing: {failures:?}");
    Ok(log)
}

/// Stores speed-up curves with which the planner gives each program one core: a second core adds
/// almost nothing.
fn teach(store: &Path, topology: &usher_model::Topology, keys: &[ProgramKey]) -> Result<()> {
    let mut store = Store::open(store)?;
    let machine = MachineKey::of(topology);
    for key in keys {
        let point = |(cores, rate)| CurvePoint {
            cores,
            rate,
            relative_error: 0.01,
            busy_cpus: Some(cores),
        };
        let measured = |(cores, rate)| MeasuredPoint {
            point: point((cores, rate)),
            source: ProgressSource::Repetition,
        };
        let points = [(1.0, 1.0), (2.0, 1.05)].map(measured).to_vec();
        store.merge(
            key,
            &machine,
            &Measurement {
                name: key.arguments.clone(),
                points,
                active_wait: Some(false),
                ..Measurement::default()
            },
        )?;
    }
    Ok(())
}

/// Parses the phases of the owner: the start in ns, and whether the owner computes (true) or sleeps
/// (false).
fn parse_turns(text: &str) -> Result<Vec<(i64, bool)>> {
    text.lines()
        .map(|line| {
            let (what, at) = line
                .split_once(' ')
                .context("reading a line of the worker's output")?;
            Ok((at.parse()?, what == "busy"))
        })
        .collect()
}

/// Returns the periods in which the owner's core was lent: begin and end in ns.
fn spans(log: &[LogEntry]) -> Vec<(i64, i64)> {
    let mut spans = Vec::new();
    let mut since = None;
    for entry in log {
        let LogChange::Placed { program, placement } = &entry.change else {
            continue;
        };
        if *program != ProgramId(2) {
            continue;
        }
        let (at, lent) = (entry.at_ns.cast_signed(), !placement.borrowed.is_empty());
        match (since, lent) {
            (None, true) => since = Some(at),
            (Some(start), false) => {
                spans.push((start, at));
                since = None;
            }
            _ => {}
        }
    }
    spans
}

/// Computes the delays in ms: from the start of a sleep to the loan, and from a wake-up during a
/// loan to the end of the loan.
fn delays(turns: &[(i64, bool)], lent: &[(i64, i64)]) -> (Vec<f64>, Vec<f64>) {
    let ms = |ns: i64| ns as f64 / 1e6;
    let (mut lend, mut reclaim) = (vec![], vec![]);
    for pair in turns.windows(2) {
        let ((from, busy), (to, _)) = (pair[0], pair[1]);
        if busy {
            if let Some(&(_, end)) = lent
                .iter()
                .find(|&&(start, end)| start < from && from < end)
            {
                reclaim.push(ms(end - from));
            }
        } else if to - from > Duration::from_millis(100).as_nanos() as i64 {
            let loan = lent.iter().find(|&&(start, _)| from <= start && start < to);
            let already = lent.iter().any(|&(start, end)| start < from && from < end);
            if !already {
                lend.push(ms(loan.map_or(to, |&(start, _)| start) - from));
            }
        }
    }
    (lend, reclaim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_measured_from_the_owners_turns() {
        const MS: i64 = 1_000_000;
        let turns = [
            (0, true),
            (100 * MS, false),
            (400 * MS, true),
            (500 * MS, false),
            (501 * MS, true),
        ];
        let lent = [(117 * MS, 409 * MS)];
        assert_eq!(delays(&turns, &lent), (vec![17.0], vec![9.0]));
        // A sleep without a loan counts with its whole length.
        assert_eq!(delays(&turns[1..3], &[]), (vec![300.0], vec![]));
    }
}
