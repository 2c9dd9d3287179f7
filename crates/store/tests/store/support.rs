// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements and stores for the tests.

use std::path::Path;

use usher_model::{
    Cache, Core, Cpu, CpuSet, CurvePoint, Domain, NumaNode, Package, ProgramKey, ProgressSource,
    Topology,
};
use usher_store::{MachineKey, MeasuredPoint, Measurement, Store};

/// Returns the key of a program.
pub fn key(name: &str) -> ProgramKey {
    ProgramKey {
        executable: format!("build-id:{name}"),
        arguments: "-p 2 file:2^20".to_owned(),
    }
}

/// A machine of one core.
pub fn machine() -> MachineKey {
    let cpus = CpuSet::single(0);
    MachineKey::of(&Topology {
        name: "one core".to_owned(),
        cpus: vec![Cpu { os: 0, core: 0 }],
        cores: vec![Core {
            cpus: cpus.clone(),
            domain: 0,
            capacity: 1.0,
        }],
        domains: vec![Domain {
            cpus: cpus.clone(),
            cores: vec![0],
            package: 0,
            nodes: vec![0],
            llc: Some(Cache {
                level: 3,
                bytes: 1 << 20,
            }),
        }],
        packages: vec![Package {
            cpus: cpus.clone(),
            domains: vec![0],
            model: None,
            dies: vec![cpus.clone()],
        }],
        nodes: vec![NumaNode {
            os: 0,
            cpus,
            bytes: 0,
        }],
    })
}

/// Returns a measured point.
pub fn point(cores: f64, rate: f64, source: ProgressSource) -> MeasuredPoint {
    MeasuredPoint {
        point: CurvePoint {
            cores,
            rate,
            relative_error: 0.05,
            busy_cpus: Some(cores * 0.9),
        },
        source,
    }
}

/// Returns a measurement with these points.
pub fn measurement(points: &[MeasuredPoint]) -> Measurement {
    Measurement {
        name: "pigz".to_owned(),
        at_s: 1_700_000_000,
        points: points.to_vec(),
        spinners: Some(2),
        active_wait: Some(true),
        llc_bytes: Some(u64::MAX),
        bandwidth_gbps: None,
    }
}

/// Returns a measurement with one point.
pub fn one_point() -> Measurement {
    measurement(&[point(1.0, 10.0, ProgressSource::Heartbeat)])
}

/// Creates a store with fifty profiles and closes it.
pub fn filled(path: &Path) {
    let mut store = Store::open(path).unwrap();
    for i in 0..50 {
        store
            .merge(&key(&format!("program-{i}")), &machine(), &one_point())
            .unwrap();
    }
}

/// Returns the names of the files in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
