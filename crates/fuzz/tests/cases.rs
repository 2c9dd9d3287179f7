// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machines that were once refused or misread, in the folder `cases`: each is read, or refused with
//! the right reason.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use usher_policy::planfile::plan_json;
use usher_topology::{DescribedMachine, DrawOptions, Source, describe, draw};

/// The unpacked text of a file.
fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let file = fs::File::open(path.join(format!("{name}.gz"))).unwrap();
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}

fn read(name: &str) -> Result<DescribedMachine, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, text(name)).unwrap();
    let machine = describe(Source::Xml(path)).map_err(|error| error.to_string())?;
    machine.topology.check().unwrap();
    Ok(machine)
}

fn picture(machine: &DescribedMachine) -> String {
    draw(&machine.topology, &DrawOptions::default())
}

#[test]
fn a_cluster_of_machines_is_refused_with_the_reason() {
    let error = read("8em64t-2mi2ma2c.xml").unwrap_err();
    assert!(error.contains("describes 4 machines (a cluster"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn low_power_cores_of_arrow_lake_are_the_slowest() {
    let machine = read("arrowlake-lpe.xml").unwrap().topology;
    let capacity = |cpu| machine.cores[machine.cpu(cpu).unwrap().core].capacity;
    let [fast, efficient, low_power] = [0, 4, 12].map(capacity);
    assert!(fast == 1.0 && fast > efficient && efficient > low_power);
    for (range, expected) in [(0..4, fast), (4..12, efficient), (12..14, low_power)] {
        assert!(range.into_iter().all(|cpu| capacity(cpu) == expected));
    }
    let caches: Vec<u8> = (machine.domains.iter())
        .map(|domain| domain.llc.unwrap().level)
        .collect();
    assert_eq!(caches, [3, 2], "the low-power cores share no L3");
}

#[test]
fn control_characters_of_names_are_escaped() {
    let machine = read("escape.xml").unwrap();
    assert_eq!(machine.topology.cpus.len(), 96);
    let picture = picture(&machine);
    assert!(!picture.contains(|c: char| c.is_control() && c != '\n'));
    assert!(picture.contains("\\u{1b}[31mEVIL"), "{picture}");
}

#[test]
fn a_file_of_version_3_is_read() {
    let machine = read("v3.xml").unwrap().topology;
    let counts = [
        machine.packages.len(),
        machine.domains.len(),
        machine.cores.len(),
        machine.cpus.len(),
    ];
    assert_eq!(counts, [4, 4, 8, 16]);
    assert_eq!(machine.domains[0].cpus.to_string(), "0,4,8,12");
}

#[test]
fn the_gap_of_a_plan_is_tight() {
    let machine = read("loose-gap.xml").unwrap().usable().unwrap();
    let plan = plan_json(&machine, &text("loose-gap.json")).unwrap();
    // A plan without a gap is optimal for the search.
    let gap = plan.gap.unwrap_or(0.0);
    let json = serde_json::to_value(&plan).unwrap();
    assert!(gap == 0.0 || json["ended_by_budget"] == true, "gap {gap}");
    // The ANTT of the optimal plan.
    assert!(plan.antt < 196.6105 + gap, "{}", plan.antt);
}
