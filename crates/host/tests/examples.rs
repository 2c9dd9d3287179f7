// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks the mixes in `examples/mixes` without running them: the mixes cover all classes of
//! programs, and every program has a package, a documented time and an input.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use usher_host::mix::{MixFile, MixProgram};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn mixes() -> Vec<MixFile> {
    let folder = root().join("examples/mixes");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let read = |path: &PathBuf| MixFile::read(path).unwrap();
    paths.iter().map(read).collect()
}

/// Returns the distinct programs of all mixes. Programs are equal if their commands and environment
/// variables are equal.
fn programs(mixes: &[MixFile]) -> BTreeMap<String, &MixProgram> {
    let command = |program: &MixProgram| format!("{:?} {:?}", program.argv, program.env);
    let all = mixes.iter().flat_map(|mix| &mix.programs);
    all.map(|program| (command(program), program)).collect()
}

#[test]
fn mixes_of_two_and_four_cover_programs_of_every_class() {
    let mixes = mixes();
    let of = |size: usize| {
        mixes
            .iter()
            .filter(|mix| mix.programs.len() == size)
            .count()
    };
    assert!(
        of(2) >= 6 && of(4) >= 2,
        "{} of two, {} of four",
        of(2),
        of(4)
    );
    let programs = programs(&mixes);
    assert!(programs.len() >= 10, "{}", programs.len());
    let classes: BTreeSet<&str> = programs.values().map(|p| p.class.as_str()).collect();
    for class in ["scalable", "medium", "poor", "memory", "busy-waits", "none"] {
        assert!(classes.contains(class), "no program is '{class}'");
    }
}

#[test]
fn setup_installs_every_package() {
    let list = std::fs::read_to_string(root().join("scripts/packages/examples.txt")).unwrap();
    let listed: BTreeSet<&str> = list
        .lines()
        .filter_map(|line| line.split('#').next()?.split_whitespace().next())
        .collect();
    for mix in mixes() {
        for program in &mix.programs {
            let packages = program.package.as_deref().unwrap_or_default();
            assert!(!packages.is_empty(), "{}: no package", program.name);
            for package in packages.split(", ") {
                assert!(listed.contains(package), "{package} is not in the list");
            }
        }
    }
}

#[test]
fn every_program_documents_its_time_alone() {
    for mix in mixes() {
        for program in &mix.programs {
            let [one, two] = program.documented_seconds.map(|s| s.is_some());
            assert!(one && two, "{} in {}", program.name, mix.path.display());
        }
    }
}

#[test]
fn every_input_of_a_program_is_made_by_setup() {
    for mix in mixes() {
        let made: BTreeSet<PathBuf> = mix
            .setup
            .iter()
            .filter_map(|s| s.unless_exists.clone())
            .collect();
        for program in &mix.programs {
            for word in program.argv.iter().map(|word| word.to_string_lossy()) {
                let path = word.trim_start_matches("+I");
                let beside = ["reads.fq", "gromacs.log", "gromacs.edr", "gromacs.trr"];
                match path.strip_prefix("../data/") {
                    Some(name) if !beside.contains(&name) => {
                        let known = made.contains(Path::new(path));
                        assert!(known, "{}: nothing makes {path}", mix.path.display());
                    }
                    None if path.starts_with("../") => {
                        assert!(mix.dir.join(path).is_file(), "{path} is not there");
                    }
                    _ => {}
                }
            }
        }
    }
}
