// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machines of hwloc's own tests: all files of hwloc 2.9.0 are read, without notes on damaged
//! values. The plans for each machine pass an independent check and keep to the planner's budget of
//! steps. `usher bench seats --only plan` measures their time.
//!
//! `scripts/hwloc-fixtures` fetches the machines from the source of Debian's package. Where it is
//! not served, the tests are skipped.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use std::path::{Path, PathBuf};
use std::process::Command;

use usher_model::{CpuSet, Curve, ProgramId, SeatMode, Topology};
use usher_policy::seating::{Request, STEPS_MAX, Seating, seat};
use usher_topology::{DescribedMachine, DrawOptions, Source, describe, draw};

/// The folder with the machines, unless they cannot be fetched.
fn machines() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("scripts/hwloc-fixtures")).output();
    let output = output.unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(0) => Some(String::from_utf8(output.stdout).unwrap().trim().into()),
        Some(3) => None,
        _ => panic!("{error}"),
    }
}

/// The files and folders of one kind, sorted.
fn files(machines: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(machines.join(kind)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn read(path: &Path) -> Result<DescribedMachine, String> {
    let source = Source::parse(path.to_str().unwrap()).map_err(|error| error.to_string())?;
    describe(source).map_err(|error| error.to_string())
}

#[test]
fn every_machine_of_hwloc_is_read_and_planned_for() {
    let Some(machines) = machines() else {
        usher_skip::skip!("the source of hwloc cannot be fetched");
        return;
    };
    let (mut plans, mut most) = (0, (0, String::new()));
    for (kind, least) in [("linux", 40), ("xml", 30), ("x86", 20)] {
        let files = files(&machines, kind);
        assert!(files.len() >= least, "{kind}: {}", files.len());
        for file in files {
            let machine = read(&file).unwrap_or_else(|error| panic!("{error}"));
            assert!(machine.notes.is_empty(), "{:?}", machine.notes);
            machine.topology.check().unwrap();
            draw(&machine.topology, &DrawOptions::default());
            let usable = machine.usable().unwrap();
            assert!(!usable.all_cpus().intersects(&machine.disallowed));
            for programs in [1, 2, 3, 5, 8, 9, 16, 40] {
                let requests = requests(programs);
                let seating = seat(&usable, &requests).unwrap();
                check(&file, &usable, &requests, &seating);
                let name = format!("{}, {programs} programs", file.display());
                most = most.max((seating.steps, name));
                plans += 1;
            }
        }
    }
    eprintln!("checked {plans} plans; the most steps are {most:?}");
    assert!(most.0 <= STEPS_MAX, "{most:?}");
}

/// Programs with curves of several shapes, with plateaus.
fn requests(count: u64) -> Vec<Request> {
    let request = |id: u64| {
        let serial = [0.0, 0.01, 0.05, 0.2, 0.5][(id % 5) as usize];
        let step = [1, 2, 4][(id % 3) as usize];
        let rate = |cores: u32| {
            let cores = f64::from((cores / step * step).max(1));
            cores / (1.0 + serial * (cores - 1.0))
        };
        let points = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256];
        let rates = points
            .into_iter()
            .map(|cores| (cores, rate(cores)))
            .collect();
        Request {
            id: ProgramId(id),
            name: format!("program-{id:02}"),
            curve: Curve::from_rates(&rates).unwrap(),
            weight: 1.0 + (id % 4) as f64,
            spinners: 0,
            llc_bytes: None,
            bandwidth_gbps: None,
            bound_to: None,
            pinned: false,
        }
    };
    (0..count).map(request).collect()
}

/// The rate on `cores` cores: linear between the points of the curve, proportional below the first
/// point, constant above the last point. Not the code of the planner.
fn rate(request: &Request, cores: f64) -> f64 {
    let mut before = (0.0, 0.0);
    for point in request.curve.points() {
        if cores <= point.cores {
            let part = (cores - before.0) / (point.cores - before.0);
            return before.1 + (point.rate - before.1) * part;
        }
        before = (point.cores, point.rate);
    }
    before.1
}

/// Checks that seats consist of whole usable cores and are disjoint, that the stated NTTs are those
/// of the curves, and that a gap above 0 has a reason.
fn check(file: &Path, machine: &Topology, requests: &[Request], seating: &Seating) {
    let name = format!("{}, {} programs", file.display(), requests.len());
    assert_eq!(seating.plan.seats.len(), requests.len(), "{name}");
    assert!(seating.gap >= 0.0 && seating.gap.is_finite(), "{name}");
    assert_eq!(seating.gap > 0.0, seating.ended_by_budget, "{name}");
    let all: f64 = machine.cores.iter().map(|core| core.capacity).sum();
    let mut taken = CpuSet::new();
    let mut sum = 0.0;
    for seat in &seating.plan.seats {
        let request = requests.iter().find(|r| r.id == seat.program).unwrap();
        let ntt = seat.ntt.unwrap();
        sum += request.weight * ntt;
        assert!(
            !seat.cpus.is_empty() && seat.cpus.is_subset(&machine.all_cpus()),
            "{name}"
        );
        assert_eq!(seat.domains, machine.domains_in(&seat.cpus), "{name}");
        if seat.mode != SeatMode::Seated {
            continue;
        }
        assert!(!seat.cpus.intersects(&taken), "{name}");
        taken = taken.or(&seat.cpus);
        let cores = machine
            .cores
            .iter()
            .filter(|core| core.cpus.intersects(&seat.cpus));
        let whole = cores.clone().all(|core| core.cpus.is_subset(&seat.cpus));
        assert!(whole, "{name}: a core is divided");
        let capacity: f64 = cores.map(|core| core.capacity).sum();
        let best = (1..=(all * 16.0) as u32).map(|n| rate(request, f64::from(n) / 16.0));
        let best = best.fold(rate(request, all), f64::max);
        let expected = best / rate(request, capacity);
        assert!(
            (ntt / expected - 1.0).abs() < 0.01,
            "{name}: NTT {ntt}, expected {expected}"
        );
    }
    let antt = seating.plan.antt.unwrap();
    assert!(
        (antt - sum / requests.len() as f64).abs() < 1e-6 * antt,
        "{name}"
    );
}
