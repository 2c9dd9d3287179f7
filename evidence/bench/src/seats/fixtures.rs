// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU time of plans for the machines of hwloc's own tests, and for the largest described machines.
//!
//! Each machine is planned for 1 to 40 programs with curves of several shapes. A plan is made
//! three times, and the least CPU time of the thread counts: other load of the machine only
//! adds to it. The machines of the tests are in the folder that `scripts/hwloc-fixtures` prints.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use usher_model::{Curve, ProgramId, Topology};
use usher_policy::seating::{Request, seat};
use usher_report::stats;
use usher_topology::{Source, describe};

/// Numbers of programs that each machine is planned for.
const PROGRAMS: [u64; 8] = [1, 2, 3, 5, 8, 9, 16, 40];

/// Number of repetitions of each plan.
const REPEATED: usize = 3;

/// Large machines, as descriptions.
const LARGE: [&str; 5] = [
    "package:1 l3:1024 core:1 pu:1",
    "package:128 l3:8 core:8 pu:1",
    "package:1024 l3:8 core:1 pu:1",
    "package:8192 l3:1 core:1 pu:1",
    "package:2 l3:8 core:512 pu:1",
];

/// The CPU times of the plans of a set of machines.
#[derive(Debug, Serialize)]
pub struct PlanTimes {
    /// Number of machines.
    pub machines: usize,
    /// Number of plans.
    pub plans: usize,
    /// Median CPU time of a plan in milliseconds.
    pub median_ms: f64,
    /// The longest CPU time in milliseconds.
    pub longest_ms: f64,
    /// The machine and the number of programs with the longest CPU time.
    pub longest: String,
}

/// Plans all machines in the folder that `scripts/hwloc-fixtures` prints.
///
/// # Errors
/// The folder cannot be read, or a machine cannot be read or planned.
pub fn of_fixtures(folder: &Path) -> Result<PlanTimes> {
    let mut machines = Vec::new();
    for kind in ["linux", "xml", "x86"] {
        for path in sorted(&folder.join(kind))? {
            let source = Source::parse(&path.to_string_lossy())?;
            let name = path.strip_prefix(folder).unwrap_or(&path);
            machines.push((name.display().to_string(), describe(source)?.usable()?));
        }
    }
    timed(&machines)
}

/// Plans the large machines.
///
/// # Errors
/// A machine cannot be planned.
pub fn of_large_machines() -> Result<PlanTimes> {
    let machine = |text: &&str| -> Result<(String, Topology)> {
        Ok((
            (*text).to_owned(),
            usher_topology::load(Source::parse(text)?)?,
        ))
    };
    let machines: Result<Vec<_>> = LARGE.iter().map(machine).collect();
    timed(&machines?)
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("reading the machines of {}", folder.display()))?;
    let paths: std::io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths?;
    paths.sort();
    Ok(paths)
}

fn timed(machines: &[(String, Topology)]) -> Result<PlanTimes> {
    let mut times_ms = Vec::new();
    let mut longest = (0.0, String::new());
    for (name, machine) in machines {
        for programs in PROGRAMS {
            let requests = requests(programs)?;
            let mut least_ms = f64::INFINITY;
            for _ in 0..REPEATED {
                let before_ms = cpu_time_ms();
                seat(machine, &requests)?;
                least_ms = least_ms.min(cpu_time_ms() - before_ms);
            }
            times_ms.push(least_ms);
            if least_ms > longest.0 {
                longest = (least_ms, format!("{name}, {programs} programs"));
            }
        }
    }
    Ok(PlanTimes {
        machines: machines.len(),
        plans: times_ms.len(),
        median_ms: stats::quantile(&times_ms, 0.5).unwrap_or(f64::NAN),
        longest_ms: longest.0,
        longest: longest.1,
    })
}

/// CPU time of this thread in milliseconds.
pub fn cpu_time_ms() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// Programs with curves of several shapes, with plateaus, and with different weights.
fn requests(count: u64) -> Result<Vec<Request>> {
    let request = |id: u64| -> Result<Request> {
        let serial = [0.0, 0.01, 0.05, 0.2, 0.5][(id % 5) as usize];
        let step = [1, 2, 4][(id % 3) as usize];
        let rate = |cores: u32| {
            let cores = f64::from((cores / step * step).max(1));
            cores / (1.0 + serial * (cores - 1.0))
        };
        let points = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256];
        let rates = points.into_iter().map(|cores| (cores, rate(cores)));
        Ok(Request {
            id: ProgramId(id),
            name: format!("program-{id:02}"),
            curve: Curve::from_rates(&rates.collect())?,
            weight: 1.0 + (id % 4) as f64,
            spinners: 0,
            llc_bytes: None,
            bandwidth_gbps: None,
            bound_to: None,
            pinned: false,
        })
    };
    (0..count).map(request).collect()
}
