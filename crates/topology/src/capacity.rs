// SPDX-License-Identifier: MIT OR Apache-2.0
//! Speed of a core relative to the fastest core of the machine.
//!
//! hwloc groups CPUs into kinds and attaches the system's attributes to each kind. The capacity is
//! determined by the first of these attributes that all kinds have, with different values:
//!
//! 1. `LinuxCapacity`: the kernel's figure (`cpu_capacity` in sysfs, up to 1024; Arm, and Intel
//!    hybrids since Linux 6.12);
//! 2. [`CPPC_PERF`]: the highest performance that the firmware states (`cppc`);
//! 3. `FrequencyMaxMHz`, else `FrequencyBaseMHz`, times the work per cycle of the core's type;
//! 4. the speed of the core's type (`CoreType`) alone.
//!
//! A file of hwloc may give the order of the kinds (`forced_efficiency`). Then only an attribute
//! that agrees with this order is used. If none agrees, each kind has 0.787 times the capacity of
//! the next faster kind.
//!
//! An attribute with equal values for all kinds is skipped: kernels before 6.12 give performance
//! and efficient cores of Intel hybrids the same capacity of 1024. If no attribute distinguishes
//! the kinds, all cores have equal capacity. Intel's low-power cores are slower than all other
//! cores of the machine in any case. Capacities are limited to 0.01..=1.
//!
//! Cores of one design may have slightly different maximum frequencies: Intel's favoured cores
//! (Turbo Boost Max 3.0) run up to 7 % faster than the other performance cores. Such cores are
//! alike: the frequencies of one core type are evened out (`evened`), if each differs by at most
//! 10 % from the next. hwloc uses the same limit (`HWLOC_CPUKINDS_MAXFREQ`), but only for cores
//! with a known and equal base frequency. `LinuxCapacity`, which Linux derives from the same
//! frequencies on Intel hybrids, is evened out within a known core type.
//!
//! This file also adds the core types of Intel hybrids, which Linux lists in files of sysfs. Files
//! that are missing or malformed are ignored; module `damage` reports the malformed ones.

use std::path::Path;

use usher_model::CpuSet;

use crate::assemble::CoreKind;
use crate::file;

pub(crate) mod cppc;
pub(crate) mod damage;

/// Name of the attribute with the performance that ACPI's CPPC states.
pub(crate) const CPPC_PERF: &str = "CppcPerf";

/// Work per cycle of an Intel efficient core relative to a performance core: the kernel's ratio for
/// Alder Lake (78,741 kHz per performance level against 100,000; `HYBRID_SCALING_FACTOR_ADL` in
/// Linux's drivers/cpufreq/intel_pstate.c; Meteor Lake has 80,000).
const INTEL_ATOM_WORK_PER_CYCLE: f64 = 0.787;

/// Work per cycle of an Intel low-power core, where its type is known (Arrow Lake-H): an older
/// efficient core without an L3. An estimate, the square of the ratio of an efficient core.
const INTEL_LOW_POWER_WORK_PER_CYCLE: f64 = 0.62;

/// Ratio of the speeds of two kinds of which only the order is known.
const NEXT_SLOWER: f64 = INTEL_ATOM_WORK_PER_CYCLE;

/// Least ratio of the frequencies of two cores of one design, as in hwloc.
const SAME_DESIGN: f64 = 0.9;

/// Maximum frequency in MHz that is taken for a frequency: ten times that of any CPU.
const MHZ_MAX: f64 = 100_000.0;

/// Minimum capacity of a core, which prevents a capacity of 0.
const CAPACITY_MIN: f64 = 0.01;

/// Returns the capacity of each kind relative to the fastest kind, in (0, 1].
pub(crate) fn of_kinds(kinds: &[CoreKind]) -> Vec<f64> {
    let order = forced_order(kinds);
    let mut known = scores(kinds)
        .find_map(|(known, evens_out)| match &order {
            Some(order) => agree(&known, order).then_some(known),
            None => {
                let known = evened(kinds, known, evens_out);
                known
                    .iter()
                    .any(|score| *score != known[0])
                    .then_some(known)
            }
        })
        .unwrap_or_else(|| match &order {
            Some(order) => by_order(order),
            None => vec![1.0; kinds.len()],
        });
    slow_down_low_power(kinds, &mut known);
    let fastest = known.iter().copied().fold(0.0, f64::max);
    known
        .iter()
        .map(|score| (score / fastest).clamp(CAPACITY_MIN, 1.0))
        .collect()
}

/// Whether a score of a kind may be evened out with that of another kind of the same core type.
type EvensOut = fn(&CoreKind) -> bool;

/// The scores of all kinds by each attribute that all kinds have.
fn scores(kinds: &[CoreKind]) -> impl Iterator<Item = (Vec<f64>, EvensOut)> {
    type Score = fn(&CoreKind) -> Option<f64>;
    let has_type: EvensOut = |kind| !core_type(kind).is_empty();
    let scores: [(Score, EvensOut); 5] = [
        (|kind| number(kind, "LinuxCapacity"), has_type),
        (|kind| number(kind, CPPC_PERF), |_| false),
        (
            |kind| Some(number(kind, "FrequencyMaxMHz")? * work_per_cycle(kind)),
            |_| true,
        ),
        (
            |kind| Some(number(kind, "FrequencyBaseMHz")? * work_per_cycle(kind)),
            |_| false,
        ),
        (|kind| Some(speed_of_type(kind)), |_| false),
    ];
    scores.into_iter().filter_map(|(score, evens_out)| {
        let known = kinds.iter().map(score).collect::<Option<Vec<f64>>>()?;
        Some((known, evens_out))
    })
}

/// Evens out the scores of each core type: the kinds of a type are sorted by score, and kinds
/// whose score is at least [`SAME_DESIGN`] times that of the next faster kind get the least score
/// of the run, which all cores of the design reach.
fn evened(kinds: &[CoreKind], mut scores: Vec<f64>, evens_out: EvensOut) -> Vec<f64> {
    let mut order: Vec<usize> = (0..kinds.len()).collect();
    order.retain(|&kind| evens_out(&kinds[kind]));
    order.sort_by(|&a, &b| {
        let types = core_type(&kinds[a]).cmp(core_type(&kinds[b]));
        types.then(scores[b].total_cmp(&scores[a]))
    });
    let raw = scores.clone();
    let alike = |&a: &usize, &b: &usize| {
        core_type(&kinds[a]) == core_type(&kinds[b]) && raw[b] >= SAME_DESIGN * raw[a]
    };
    for run in order.chunk_by(alike) {
        let least = run
            .iter()
            .map(|&kind| raw[kind])
            .fold(f64::INFINITY, f64::min);
        for &kind in run {
            scores[kind] = least;
        }
    }
    scores
}

/// The efficiency of each kind as given by a file of hwloc, which is larger for faster cores.
/// `None`: not known for all kinds, or equal.
fn forced_order(kinds: &[CoreKind]) -> Option<Vec<u32>> {
    let order: Vec<u32> = kinds
        .iter()
        .map(|kind| kind.efficiency)
        .collect::<Option<_>>()?;
    order.iter().any(|rank| *rank != order[0]).then_some(order)
}

/// Whether a kind with a larger efficiency has a larger score, for all kinds.
fn agree(scores: &[f64], order: &[u32]) -> bool {
    let pairs = || order.iter().zip(scores);
    pairs()
        .all(|(rank, score)| pairs().all(|(other_rank, other)| rank >= other_rank || score < other))
}

fn by_order(order: &[u32]) -> Vec<f64> {
    let mut ranks = order.to_vec();
    ranks.sort_unstable_by(|a, b| b.cmp(a));
    ranks.dedup();
    let faster = |rank: &u32| ranks.iter().take_while(|other| *other > rank).count();
    let score = |rank: &u32| NEXT_SLOWER.powi(faster(rank) as i32);
    order.iter().map(score).collect()
}

/// Limits the score of low-power cores to a fraction of the least score of other cores.
fn slow_down_low_power(kinds: &[CoreKind], scores: &mut [f64]) {
    let others = kinds.iter().zip(scores.iter());
    let others = others.filter(|(kind, _)| !is_low_power(kind));
    let least = others
        .map(|(_, score)| *score)
        .fold(f64::INFINITY, f64::min);
    for (kind, score) in kinds.iter().zip(scores.iter_mut()) {
        if is_low_power(kind) && *score >= least {
            *score = least * NEXT_SLOWER;
        }
    }
}

/// Adds the core types of an Intel hybrid. Linux lists the CPUs of each type in
/// `sys/devices/cpu_core/cpus`, `sys/devices/cpu_atom/cpus` and, on some machines,
/// `sys/devices/cpu_lowpower/cpus`. hwloc 2.9 can determine the types only by moving a thread to
/// every CPU. A kind with CPUs of several types is split.
pub(crate) fn add_core_types(kinds: Vec<CoreKind>, all: &CpuSet, root: &Path) -> Vec<CoreKind> {
    // Last, because the list of efficient cores may contain the low-power cores.
    let types = [
        ("IntelCore", "cpu_core"),
        ("IntelAtom", "cpu_atom"),
        ("IntelLowPower", "cpu_lowpower"),
    ];
    let mut lists: Vec<(&str, CpuSet)> = types
        .into_iter()
        .filter_map(|(name, counters)| {
            let path = root.join("sys/devices").join(counters).join("cpus");
            let cpus: CpuSet = file::attribute(&path)?.parse().ok()?;
            Some((name, cpus))
        })
        .collect();
    if !["IntelCore", "IntelAtom"]
        .iter()
        .all(|name| lists.iter().any(|(known, _)| known == name))
    {
        return kinds;
    }
    if let Some((_, low_power)) = lists
        .iter()
        .find(|(name, _)| *name == "IntelLowPower")
        .cloned()
    {
        for (name, cpus) in &mut lists {
            if *name != "IntelLowPower" {
                *cpus = cpus.minus(&low_power);
            }
        }
    }
    let lists: Vec<(CpuSet, String)> = lists
        .into_iter()
        .map(|(name, cpus)| (cpus, name.to_owned()))
        .collect();
    let mut split = split_kinds(kinds, all, &lists, "CoreType");
    split.retain(|kind| kind.infos.contains_key("CoreType"));
    split
}

/// Splits the kinds by a further attribute, given as CPU sets with values. The CPUs of no kind
/// become kinds with this attribute alone. An attribute that a kind has is kept.
fn split_kinds(
    kinds: Vec<CoreKind>,
    all: &CpuSet,
    values: &[(CpuSet, String)],
    name: &str,
) -> Vec<CoreKind> {
    let known = kinds
        .iter()
        .fold(CpuSet::new(), |set, kind| set.or(&kind.cpus));
    let unknown = CoreKind {
        cpus: all.minus(&known),
        efficiency: None,
        infos: Default::default(),
    };
    let mut split = Vec::new();
    for kind in kinds.into_iter().chain([unknown]) {
        let mut rest = kind.clone();
        for (cpus, value) in values {
            let mut part = kind.clone();
            part.cpus = kind.cpus.and(cpus);
            rest.cpus = rest.cpus.minus(cpus);
            part.infos
                .entry(name.to_owned())
                .or_insert_with(|| value.clone());
            split.push(part);
        }
        split.push(rest);
    }
    split.retain(|kind| !kind.cpus.is_empty());
    split
}

fn number(kind: &CoreKind, info: &str) -> Option<f64> {
    let value = kind.infos.get(info)?;
    match invalid(info, value) {
        Some(_) => None,
        None => value.trim().parse().ok(),
    }
}

/// Returns what a value of an attribute should be, if the value is invalid. Attributes that do not
/// affect the capacity are always valid.
pub(crate) fn invalid(info: &str, value: &str) -> Option<&'static str> {
    let (most, wanted) = match info {
        // Linux states at most 1024; captures for tests have larger numbers.
        "LinuxCapacity" => (65_535.0, "a number from 1 to 65535"),
        CPPC_PERF => (f64::from(u32::MAX), "a positive number"),
        "FrequencyMaxMHz" | "FrequencyBaseMHz" => (MHZ_MAX, "a frequency from 1 to 100000 MHz"),
        _ => return None,
    };
    let number: Option<f64> = value.trim().parse().ok();
    match number.is_some_and(|number| (1.0..=most).contains(&number)) {
        true => None,
        false => Some(wanted),
    }
}

fn core_type(kind: &CoreKind) -> &str {
    kind.infos.get("CoreType").map_or("", String::as_str)
}

fn is_low_power(kind: &CoreKind) -> bool {
    core_type(kind).ends_with("LowPower")
}

fn work_per_cycle(kind: &CoreKind) -> f64 {
    match core_type(kind) {
        "IntelAtom" => INTEL_ATOM_WORK_PER_CYCLE,
        "IntelLowPower" => INTEL_LOW_POWER_WORK_PER_CYCLE,
        _ => 1.0,
    }
}

/// The speed of a core's type where nothing else is known. The types that are not Intel's have the
/// names of hwloc 3 and of other tools, such as `AMDEfficiency`.
fn speed_of_type(kind: &CoreKind) -> f64 {
    match core_type(kind) {
        other if other.ends_with("Efficiency") || other.ends_with("Dense") => NEXT_SLOWER,
        _ => work_per_cycle(kind),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn kind(infos: &[(&str, &str)]) -> CoreKind {
        CoreKind {
            cpus: CpuSet::new(),
            efficiency: None,
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

    fn ranked(efficiency: u32, infos: &[(&str, &str)]) -> CoreKind {
        CoreKind {
            efficiency: Some(efficiency),
            ..kind(infos)
        }
    }

    #[test]
    fn given_order_of_kinds_takes_precedence() {
        // Arrow Lake-H as a file of hwloc describes it: the order and the types alone.
        let arrow = [
            ranked(0, &[("CoreType", "IntelLowPower")]),
            ranked(1, &[("CoreType", "IntelAtom")]),
            ranked(2, &[("CoreType", "IntelCore")]),
        ];
        assert_eq!(of_kinds(&arrow), [0.62, 0.787, 1.0]);
        // An attribute that contradicts the order is not used.
        let odd = [
            ranked(0, &[("FrequencyMaxMHz", "5000")]),
            ranked(7, &[("FrequencyMaxMHz", "4000")]),
        ];
        assert_eq!(of_kinds(&odd), [0.787, 1.0]);
        let even = [
            ranked(0, &[("FrequencyMaxMHz", "3000")]),
            ranked(7, &[("FrequencyMaxMHz", "4000")]),
        ];
        assert_eq!(of_kinds(&even), [0.75, 1.0]);
        let three = [ranked(2, &[]), ranked(0, &[]), ranked(1, &[])];
        assert_eq!(of_kinds(&three), [1.0, 0.787 * 0.787, 0.787]);
    }

    #[test]
    fn low_power_cores_are_slower_than_all_others() {
        let kinds = [
            kind(&[("CoreType", "IntelCore"), ("LinuxCapacity", "1024")]),
            kind(&[("CoreType", "IntelAtom"), ("LinuxCapacity", "600")]),
            kind(&[("CoreType", "IntelLowPower"), ("LinuxCapacity", "600")]),
        ];
        let capacities = of_kinds(&kinds);
        assert!(capacities[2] < capacities[1] && capacities[1] < capacities[0]);
    }

    fn by_frequency(mhz: &[&str]) -> Vec<f64> {
        let kinds: Vec<CoreKind> = mhz
            .iter()
            .map(|mhz| kind(&[("FrequencyMaxMHz", mhz)]))
            .collect();
        of_kinds(&kinds)
    }

    #[test]
    fn favoured_cores_of_one_design_are_alike() {
        // Maximum frequencies that Intel publishes, with and without Turbo Boost Max 3.0 or Thermal
        // Velocity Boost: Core i9-10900K, i9-9980XE, i9-13900KS.
        for mhz in [["5300", "5100"], ["4500", "4400"], ["6000", "5600"]] {
            assert_eq!(by_frequency(&mhz), [1.0, 1.0], "{mhz:?}");
        }
        // Ryzen 9 7950X without CPPC: one frequency for each core.
        assert_eq!(by_frequency(&["5881", "5740", "5450", "5100"]), [1.0; 4]);
        // Two designs.
        assert_eq!(by_frequency(&["5000", "4000", "3900"]), [1.0, 0.78, 0.78]);
    }

    #[test]
    fn favoured_cores_of_a_hybrid_have_the_capacity_of_the_other_performance_cores() {
        let of = |name: &'static str| {
            // Core i9-13900K: two favoured cores with 5.8 GHz.
            let core = |mhz, capacity| {
                kind(&[
                    ("CoreType", "IntelCore"),
                    (
                        name,
                        if name == "LinuxCapacity" {
                            capacity
                        } else {
                            mhz
                        },
                    ),
                ])
            };
            let atom = kind(&[
                ("CoreType", "IntelAtom"),
                (
                    name,
                    if name == "LinuxCapacity" {
                        "600"
                    } else {
                        "4300"
                    },
                ),
            ]);
            of_kinds(&[core("5800", "1024"), core("5500", "991"), atom])
        };
        let expected = [1.0, 1.0, 4300.0 * 0.787 / 5500.0];
        assert_eq!(of("FrequencyMaxMHz"), expected);
        assert_eq!(of("LinuxCapacity"), [1.0, 1.0, 600.0 / 991.0]);
        // Without a core type, the kernel's capacities of Arm are those of different designs.
        let arm = |capacity| kind(&[("LinuxCapacity", capacity)]);
        let capacities = of_kinds(&[arm("1024"), arm("985")]);
        assert_eq!(capacities, [1.0, 985.0 / 1024.0]);
    }

    #[test]
    fn firmware_performance_comes_before_frequencies() {
        let kinds = [
            kind(&[(CPPC_PERF, "98"), ("FrequencyMaxMHz", "5100")]),
            kind(&[(CPPC_PERF, "196"), ("FrequencyMaxMHz", "5000")]),
        ];
        assert_eq!(of_kinds(&kinds), [0.5, 1.0]);
    }
}
