// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `latency`: measures the time until a launched or attached program has its seat, beside 100
//! other managed programs.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use usher_act::ActConfig;
use usher_host::engine::{AdoptOptions, Engine, EngineConfig};
use usher_host::launch::{LaunchSpec, Stream};
use usher_report::stats;

use crate::bars::{Bar, Part};

const MANAGED: usize = 100;
const LAUNCHES: usize = 400;
const KILL: i32 = rustix::process::Signal::KILL.as_raw();

/// Measures launched and attached programs beside 100 managed programs, and computes the part.
pub fn run(dir: &Path) -> Result<Part> {
    let mut part = Part::new("latency", "Time until a program has its seat");
    let topology = usher_topology::load(usher_topology::Source::ThisMachine)?;
    let policy = usher_policy::by_name("usher", &topology).context("policy usher")?;
    let engine = Engine::start(EngineConfig::new(topology, ActConfig::new(dir)), policy)?;
    let spec = |argv: &[&str]| LaunchSpec {
        stdout: Stream::Null,
        ..LaunchSpec::new(argv.iter().copied())
    };
    let mut resting = Vec::new();
    for _ in 0..MANAGED {
        let (held, _) = engine.launch(
            &spec(&["sleep", "600"]),
            AdoptOptions::new(["sleep", "600"]),
        )?;
        resting.push(held.release()?);
    }
    let (mut launched_ms, mut attached_ms) = (vec![], vec![]);
    for _ in 0..LAUNCHES {
        let start = Instant::now();
        let (held, _) = engine.launch(&spec(&["true"]), AdoptOptions::new(["true"]))?;
        launched_ms.push(start.elapsed().as_secs_f64() * 1e3);
        held.release()?.wait()?;
        attached_ms.push(attach_one(&engine)?);
    }
    for mut child in resting {
        child.signal(KILL);
        child.wait()?;
    }
    engine.stop();
    let at = |values: &[f64], p| stats::quantile(values, p).unwrap_or(f64::NAN);
    part.bars = vec![
        Bar::at_most(
            "delay of a launch by its seat, with 100 managed programs, 99th percentile",
            at(&launched_ms, 0.99),
            50.0,
            "ms",
        ),
        Bar::at_most(
            "time to attach a running program and give it a seat, 99th percentile",
            at(&attached_ms, 0.99),
            50.0,
            "ms",
        ),
    ];
    part.notes = vec![format!(
        "{LAUNCHES} launches and {LAUNCHES} attached programs; the medians are {:.2} and {:.2} \
         ms. A launched program gets its seat before its exec, so the first figure is the delay \
         of its start, including the fork.",
        at(&launched_ms, 0.5),
        at(&attached_ms, 0.5)
    )];
    part.raw = serde_json::json!({ "launched_ms": launched_ms, "attached_ms": attached_ms });
    Ok(part)
}

/// Attaches a running process. Returns the milliseconds until the process has its seat.
fn attach_one(engine: &Engine) -> Result<f64> {
    let mut child = std::process::Command::new("sleep").arg("60").spawn()?;
    let start = Instant::now();
    let adopted = engine.attach(
        child.id().cast_signed(),
        AdoptOptions::new(["sleep", "60"]),
        0,
    );
    let elapsed = start.elapsed().as_secs_f64() * 1e3;
    child.kill()?;
    child.wait()?;
    adopted?;
    Ok(elapsed)
}
