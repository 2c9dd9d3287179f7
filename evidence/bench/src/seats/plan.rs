// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `plan`: measures the CPU time of planning for two sizes of machines and mixes, and counts the
//! random small cases in which the plan is not optimal. The optimum of a small case is found by
//! trying all allocations of whole LLC domains. The longest plans for the machines of hwloc's tests
//! and for large machines are measured, too (`fixtures`).

use std::path::Path;

use anyhow::Result;
use usher_model::{Curve, ProgramId, Topology};
use usher_policy::seating::{Request, seat};
use usher_report::stats;

use super::fixtures::{self, PlanTimes};
use crate::bars::{Bar, Part};

const TIMED: usize = 101;
const RANDOM_CASES: u64 = 2_000;

/// Limit of the CPU time of a plan in milliseconds (`usher_policy::seating::STEPS_MAX`).
const PLAN_MS_MAX: f64 = 50.0;

/// Times plans of two sizes, compares random small cases with the optimum, and computes the part.
pub fn run(seed: u64, hwloc_machines: Option<&Path>) -> Result<Part> {
    let mut part = Part::new("plan", "Planning");
    let small = usher_topology::load(usher_topology::Source::parse(
        "package:4 die:2 core:6 pu:1",
    )?)?;
    let large = usher_topology::load(usher_topology::Source::parse(
        "package:16 die:8 core:8 pu:1",
    )?)?;
    let mut rng = oorandom::Rand64::new(u128::from(seed));
    let eight = timed(&small, 8, &mut rng)?;
    let many = timed(&large, 64, &mut rng)?;
    let wrong = not_optimal(&mut rng)?;
    part.bars = vec![
        Bar::at_most(
            "CPU time to plan 8 programs on 8 domains (48 cores), median",
            eight.0,
            1.0,
            "ms",
        ),
        Bar::at_most(
            "CPU time to plan 64 programs on 128 domains (1,024 cores), median",
            many.0,
            10.0,
            "ms",
        ),
        Bar::none(
            format!(
                "plans worse than the best of all possible allocations, of {RANDOM_CASES} random \
                 cases"
            ),
            wrong,
        ),
    ];
    part.notes = vec![format!(
        "Each time is that of {TIMED} plans with new random curves; the 99th percentiles are \
         {:.3} and {:.3} ms. The seed is {seed}.",
        eight.1, many.1
    )];
    let large = fixtures::of_large_machines()?;
    add(&mut part, "large machines (1,024 to 8,192 cores)", &large);
    let hwloc = hwloc_machines.map(fixtures::of_fixtures).transpose()?;
    match &hwloc {
        Some(times) => add(&mut part, "the machines of hwloc's tests", times),
        None => part.notes.push(
            "The machines of hwloc's tests were not measured: give --hwloc-machines DIR with the \
             folder that scripts/hwloc-fixtures prints."
                .to_owned(),
        ),
    }
    part.raw = serde_json::json!({
        "median_ms": [eight.0, many.0], "p99_ms": [eight.1, many.1], "seed": seed,
        "large": large, "hwloc": hwloc,
    });
    Ok(part)
}

/// Adds the longest plan of a set of machines.
fn add(part: &mut Part, machines: &str, times: &PlanTimes) {
    part.bars.push(Bar::at_most(
        format!("CPU time of the longest plan for {machines}"),
        times.longest_ms,
        PLAN_MS_MAX,
        "ms",
    ));
    part.notes.push(format!(
        "{} plans for {} of {machines}: the median CPU time is {:.3} ms, the longest plan is that of \
         {}.",
        times.plans, times.machines, times.median_ms, times.longest
    ));
}

/// Returns the median and the 99th percentile of the CPU time of a plan, in milliseconds.
fn timed(topology: &Topology, programs: usize, rng: &mut oorandom::Rand64) -> Result<(f64, f64)> {
    let mut times = Vec::new();
    for _ in 0..TIMED {
        let requests = random_requests(topology, programs, rng)?;
        let before_ms = fixtures::cpu_time_ms();
        let seating = seat(topology, &requests)?;
        times.push(fixtures::cpu_time_ms() - before_ms);
        anyhow::ensure!(
            seating.plan.seats.len() == programs,
            "a plan lacks a program"
        );
    }
    let at = |p| stats::quantile(&times, p).unwrap_or(f64::NAN);
    Ok((at(0.5), at(0.99)))
}

fn random_requests(
    topology: &Topology,
    programs: usize,
    rng: &mut oorandom::Rand64,
) -> Result<Vec<Request>> {
    (0..programs)
        .map(|i| request(i, random_curve(topology.cores.len() as u32, rng)?))
        .collect()
}

fn request(i: usize, curve: Curve) -> Result<Request> {
    Ok(Request {
        id: ProgramId(i as u64),
        name: format!("program{i}"),
        curve,
        weight: 1.0,
        spinners: 0,
        llc_bytes: None,
        bandwidth_gbps: None,
        bound_to: None,
        pinned: false,
    })
}

/// Returns a random scalability curve at eight numbers of cores, by the universal scalability law
/// with random parameters (serial share and crosstalk).
fn random_curve(cores: u32, rng: &mut oorandom::Rand64) -> Result<Curve> {
    let (serial, crosstalk) = (0.3 * rng.rand_float(), 0.002 * rng.rand_float());
    let rate = |n: u32| {
        let n = f64::from(n);
        n / (1.0 + serial * (n - 1.0) + crosstalk * n * (n - 1.0))
    };
    let points = (1..=8)
        .map(|i| (cores * i).div_ceil(8))
        .map(|n| (n, rate(n)));
    Ok(Curve::from_rates(&points.collect())?)
}

/// Returns the number of random plans with a larger sum of NTTs than the best allocation of
/// domains.
fn not_optimal(rng: &mut oorandom::Rand64) -> Result<usize> {
    let mut wrong = 0;
    for _ in 0..RANDOM_CASES {
        let domains = 1 + rng.rand_range(0..8) as usize;
        let cores = 1 + rng.rand_range(0..8) as usize;
        let topology = usher_topology::load(usher_topology::Source::parse(&format!(
            "package:{domains} core:{cores} pu:1"
        ))?)?;
        let programs = 1 + rng.rand_range(0..domains.min(4) as u64) as usize;
        let requests = random_requests(&topology, programs, rng)?;
        let least =
            least_sum(&requests, domains, cores, (domains * cores) as f64) / programs as f64;
        let antt = seat(&topology, &requests)?
            .plan
            .antt
            .unwrap_or(f64::INFINITY);
        wrong += usize::from((antt - least).abs() > 1e-9 * least);
    }
    Ok(wrong)
}

/// Returns the least sum of NTTs over all allocations of whole domains.
fn least_sum(requests: &[Request], left: usize, cores: usize, all: f64) -> f64 {
    let Some((first, rest)) = requests.split_first() else {
        return 0.0;
    };
    let ntt = |d: usize| first.curve.best_rate(all) / first.curve.rate((d * cores) as f64);
    (1..=left - rest.len())
        .map(|d| ntt(d) + least_sum(rest, left - d, cores, all))
        .fold(f64::INFINITY, f64::min)
}
