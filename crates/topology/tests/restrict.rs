// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests the restriction of each captured machine to some CPUs, and the drawing of the result.

// Test helpers: clippy exempts only the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::machines;
use proptest::prelude::*;
use usher_model::{CpuSet, Topology};
use usher_topology::{DrawOptions, draw};

/// A captured machine and a subset of its CPUs, in runs as in cpusets.
fn machine_and_cpus() -> impl Strategy<Value = (&'static Topology, CpuSet)> {
    let machine = prop::sample::select((0..machines().len()).collect::<Vec<_>>());
    let runs = prop::collection::vec((0.0..1.0f64, 1u32..40), 1..6);
    (machine, runs).prop_map(|(machine, runs)| {
        let topology = &machines()[machine].1;
        let last = topology.cpus.last().unwrap().os;
        let allowed = runs.into_iter().flat_map(|(at, length)| {
            let first = (at * f64::from(last)) as u32;
            first..first + length
        });
        (topology, allowed.collect())
    })
}

/// Returns whether a drawing without locations shows exactly these CPUs, in cells or in lists after
/// colons.
fn shows(text: &str, cpus: &CpuSet) -> bool {
    let mut shown = CpuSet::new();
    let words = text.split(|c: char| !(c.is_ascii_digit() || c == '-' || c == ','));
    for word in words {
        if let Ok(list) = word.trim_end_matches(',').parse::<CpuSet>() {
            shown.extend(list.iter());
        }
    }
    cpus.is_subset(&shown)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn restricted_machine_is_consistent((whole, allowed) in machine_and_cpus()) {
        let expected = whole.all_cpus().and(&allowed);
        let Ok(rest) = whole.restrict(&allowed) else {
            prop_assert!(expected.is_empty());
            return Ok(());
        };
        prop_assert_eq!(rest.check(), Ok(()));
        prop_assert_eq!(rest.all_cpus(), expected.clone());
        prop_assert_eq!(rest.restrict(&allowed).unwrap(), rest.clone());
        for cpu in expected.iter() {
            let before = &whole.cores[whole.cpu(cpu).unwrap().core];
            let after = &rest.cores[rest.cpu(cpu).unwrap().core];
            prop_assert_eq!(before.capacity, after.capacity);
            prop_assert_eq!(before.cpus.and(&allowed), after.cpus.clone());
            let (old, new) = (&whole.domains[before.domain], &rest.domains[after.domain]);
            prop_assert_eq!(old.cpus.and(&allowed), new.cpus.clone());
            prop_assert_eq!((old.llc, &old.nodes), (new.llc, &new.nodes));
            let (old, new) = (&whole.packages[old.package], &rest.packages[new.package]);
            prop_assert_eq!(old.cpus.and(&allowed), new.cpus.clone());
        }
    }

    #[test]
    fn drawing_fits_and_shows_every_cpu(
        (whole, allowed) in machine_and_cpus(),
        // The width is at least 60: below it, an unbreakable list of CPUs may exceed the width.
        width in 60usize..160,
        unicode: bool,
        seated in prop::bool::ANY,
    ) {
        let Ok(rest) = whole.restrict(&allowed) else { return Ok(()) };
        let seats = match seated {
            true => rest.all_cpus().iter().map(|cpu| (cpu, format!("p{}", cpu % 3))).collect(),
            false => Default::default(),
        };
        let options = DrawOptions { width, unicode, seats, ..DrawOptions::default() };
        let text = draw(&rest, &options);
        for line in text.lines().filter(|line| !line.starts_with(|c: char| c.is_ascii_lowercase())) {
            prop_assert!(line.chars().count() <= width, "{} columns, not {}:\n{}", line.chars().count(), width, text);
        }
        prop_assert!(unicode || text.is_ascii());
        prop_assert!(shows(&text, &rest.all_cpus()), "{}", text);
        let coloured = draw(&rest, &DrawOptions { colour: true, ..options });
        prop_assert_eq!(without_colours(&coloured), text);
    }
}

fn without_colours(text: &str) -> String {
    let mut plain = String::new();
    for (i, piece) in text.split('\x1b').enumerate() {
        let rest = match i {
            0 => piece,
            _ => piece.split_once('m').unwrap().1,
        };
        plain.push_str(rest);
    }
    plain
        .lines()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}
