// SPDX-License-Identifier: MIT OR Apache-2.0
//! Speed of a core relative to the fastest core of the machine.
//!
//! hwloc groups CPUs into kinds and attaches the system's attributes to each kind. The capacity is
//! determined by the first of these attributes that all kinds have, with different values:
//!
//! 1. `LinuxCapacity`: the kernel's figure (`cpu_capacity` in sysfs, up to 1024; Arm, and Intel
//!    hybrids since Linux 6.12);
//! 2. `FrequencyMaxMHz`, else `FrequencyBaseMHz`, times the work per cycle of the core's type;
//! 3. the work per cycle of the core's type (`CoreType`) alone.
//!
//! An attribute with equal values for all kinds is skipped: kernels before 6.12 give performance
//! and efficient cores of Intel hybrids the same capacity of 1024. If no attribute distinguishes
//! the kinds, all cores have equal capacity. Capacities are limited to 0.01..=1.
//!
//! This file also adds the core types of Intel hybrids, which Linux lists in two files of sysfs.
//! Files that are missing or malformed are ignored.

use std::fs;
use std::path::Path;

use usher_model::CpuSet;

use crate::assemble::CoreKind;

/// Work per cycle of an Intel efficient core relative to a performance core: the kernel's ratio for
/// Alder Lake (78,741 kHz per performance level against 100,000; `HYBRID_SCALING_FACTOR_ADL` in
/// Linux's drivers/cpufreq/intel_pstate.c; Meteor Lake has 80,000).
const INTEL_ATOM_WORK_PER_CYCLE: f64 = 0.787;

/// Minimum capacity of a core, which prevents a capacity of 0.
const CAPACITY_MIN: f64 = 0.01;

/// Returns the capacity of each kind relative to the fastest kind, in (0, 1].
pub(crate) fn of_kinds(kinds: &[CoreKind]) -> Vec<f64> {
    let scores = [
        |kind: &CoreKind| number(kind, "LinuxCapacity"),
        |kind: &CoreKind| Some(number(kind, "FrequencyMaxMHz")? * work_per_cycle(kind)),
        |kind: &CoreKind| Some(number(kind, "FrequencyBaseMHz")? * work_per_cycle(kind)),
        |kind: &CoreKind| Some(work_per_cycle(kind)),
    ];
    let known = scores
        .iter()
        .filter_map(|score| kinds.iter().map(score).collect::<Option<Vec<f64>>>())
        .find(|known| known.iter().any(|score| *score != known[0]))
        .unwrap_or_else(|| vec![1.0; kinds.len()]);
    let fastest = known.iter().copied().fold(0.0, f64::max);
    known
        .iter()
        .map(|score| (score / fastest).clamp(CAPACITY_MIN, 1.0))
        .collect()
}

/// Adds the core types of an Intel hybrid. Linux lists the CPUs of each type in
/// `sys/devices/cpu_core/cpus` and `sys/devices/cpu_atom/cpus`. hwloc 2.9 can determine the types
/// only by moving a thread to every CPU. A kind with CPUs of both types is split.
pub(crate) fn add_core_types(kinds: Vec<CoreKind>, all: &CpuSet, root: &Path) -> Vec<CoreKind> {
    let types = [("IntelCore", "cpu_core"), ("IntelAtom", "cpu_atom")];
    let lists: Vec<(&str, CpuSet)> = types
        .into_iter()
        .filter_map(|(name, counters)| {
            let file = root.join("sys/devices").join(counters).join("cpus");
            let cpus: CpuSet = fs::read_to_string(file).ok()?.parse().ok()?;
            Some((name, cpus))
        })
        .collect();
    if lists.len() < types.len() {
        return kinds;
    }
    let known = kinds
        .iter()
        .fold(CpuSet::new(), |set, kind| set.or(&kind.cpus));
    let unknown = CoreKind {
        cpus: all.minus(&known),
        infos: Default::default(),
    };
    let mut split = Vec::new();
    for kind in kinds.into_iter().chain([unknown]) {
        for (name, cpus) in &lists {
            let mut part = kind.clone();
            part.cpus = kind.cpus.and(cpus);
            part.infos
                .entry("CoreType".to_owned())
                .or_insert_with(|| (*name).to_owned());
            split.push(part);
        }
    }
    split.retain(|kind| !kind.cpus.is_empty());
    split
}

fn number(kind: &CoreKind, info: &str) -> Option<f64> {
    let value: f64 = kind.infos.get(info)?.trim().parse().ok()?;
    (value.is_finite() && value > 0.0).then_some(value)
}

fn work_per_cycle(kind: &CoreKind) -> f64 {
    match kind.infos.get("CoreType").map(String::as_str) {
        Some("IntelAtom") => INTEL_ATOM_WORK_PER_CYCLE,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(infos: &[(&str, &str)]) -> CoreKind {
        CoreKind {
            cpus: CpuSet::new(),
            infos: infos
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        }
    }

    #[test]
    fn kernel_capacity_takes_precedence() {
        let kinds = [
            kind(&[("LinuxCapacity", "446"), ("FrequencyMaxMHz", "1800")]),
            kind(&[("LinuxCapacity", "1024"), ("FrequencyMaxMHz", "1900")]),
        ];
        assert_eq!(of_kinds(&kinds), [446.0 / 1024.0, 1.0]);
    }

    #[test]
    fn intel_hybrid_is_rated_by_frequency_and_type() {
        let kinds = [
            kind(&[("CoreType", "IntelAtom"), ("FrequencyMaxMHz", "3900")]),
            kind(&[("CoreType", "IntelCore"), ("FrequencyMaxMHz", "5200")]),
        ];
        let capacities = of_kinds(&kinds);
        assert!(
            (capacities[0] - 0.75 * 0.787).abs() < 1e-9,
            "{capacities:?}"
        );
        assert_eq!(capacities[1], 1.0);
    }

    #[test]
    fn attribute_equal_for_all_kinds_is_skipped() {
        let kinds = [
            kind(&[("LinuxCapacity", "1024"), ("FrequencyMaxMHz", "2000")]),
            kind(&[("LinuxCapacity", "1024"), ("FrequencyMaxMHz", "4000")]),
        ];
        assert_eq!(of_kinds(&kinds), [0.5, 1.0]);
        assert_eq!(of_kinds(&kinds[..1]), [1.0]);
    }

    #[test]
    fn core_types_come_from_the_counters_and_split_kinds() {
        let root = tempfile::tempdir().unwrap();
        let write = |counters: &str, cpus: &str| {
            let dir = root.path().join("sys/devices").join(counters);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("cpus"), cpus).unwrap();
        };
        let all = CpuSet::range(0, 5);
        let mut fast = kind(&[("FrequencyMaxMHz", "5000")]);
        fast.cpus = CpuSet::range(0, 4);
        write("cpu_core", "0-3\n");
        let one_list = add_core_types(vec![fast.clone()], &all, root.path());
        assert_eq!(one_list.len(), 1, "both lists or none");
        write("cpu_atom", "4-5\n");
        let kinds = add_core_types(vec![fast], &all, root.path());
        let seen: Vec<(String, &str)> = kinds
            .iter()
            .map(|kind| (kind.cpus.to_string(), kind.infos["CoreType"].as_str()))
            .collect();
        let expected = [("0-3", "IntelCore"), ("4", "IntelAtom"), ("5", "IntelAtom")];
        assert_eq!(seen, expected.map(|(cpus, name)| (cpus.to_owned(), name)));
    }

    #[test]
    fn attribute_missing_for_one_kind_is_skipped() {
        let kinds = [
            kind(&[("FrequencyMaxMHz", "2000"), ("FrequencyBaseMHz", "1000")]),
            kind(&[("FrequencyBaseMHz", "2000")]),
        ];
        assert_eq!(of_kinds(&kinds), [0.5, 1.0]);
    }

    #[test]
    fn invalid_values_count_as_unknown() {
        for value in ["", "0", "-3", "nan", "inf", "fast"] {
            let kinds = [
                kind(&[("LinuxCapacity", value)]),
                kind(&[("LinuxCapacity", "7")]),
            ];
            assert_eq!(of_kinds(&kinds), [1.0, 1.0], "{value}");
        }
        assert!(of_kinds(&[]).is_empty());
    }
}
