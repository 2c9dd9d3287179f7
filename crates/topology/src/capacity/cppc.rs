// SPDX-License-Identifier: MIT OR Apache-2.0
//! The performance of each CPU as stated by the firmware (ACPI CPPC), which hwloc 2.9 does not
//! read: `acpi_cppc/highest_perf` of each CPU in sysfs, or `nominal_perf` if a CPU lacks the
//! former.
//!
//! On AMD's machines with equal cores, `highest_perf` also states which cores the kernel prefers:
//! the values of cores with the same design differ by a few percent from one core to the next.
//! Values are therefore grouped: a new group begins where the next lower value is less than
//! [`SAME_GROUP`] times the present one, except that all ratings of AMD's preferred cores are one
//! group. Each CPU gets the largest value of its group.
//!
//! If values that differ form one group, the cores have one design. Then the maximum frequencies
//! are removed, because some versions of Linux derive them from the ratings: a Ryzen 9 has another
//! frequency for each core. Values that are equal for all CPUs are ignored (some firmware states
//! 255 for performance and efficient cores).

use std::ops::RangeInclusive;
use std::path::Path;

use usher_model::{CpuId, CpuSet};

use super::{CPPC_PERF, core_type, split_kinds};
use crate::assemble::CoreKind;
use crate::file;

/// Least ratio of two neighbouring values of one group. The values of AMD's preferred cores differ
/// by at most 5 %, those of Zen 5 and Zen 5c cores by at least 15 %.
const SAME_GROUP: f64 = 0.92;

/// The ratings of AMD's preferred cores. 166 is the least rating (`CPPC_HIGHEST_PERF_PREFCORE` in
/// Linux's arch/x86/kernel/acpi/cppc.c). Zen 4c and Zen 5c cores have lower values.
const PREFERRED_CORES: RangeInclusive<u32> = 166..=255;

/// Splits the kinds by the performance that the firmware states.
pub(crate) fn add(kinds: Vec<CoreKind>, all: &CpuSet, root: &Path) -> Vec<CoreKind> {
    let values = ["highest_perf", "nominal_perf"]
        .into_iter()
        .find_map(|name| {
            let of_cpu = |cpu: CpuId| Some((cpu, value(root, cpu, name)?));
            all.iter().map(of_cpu).collect::<Option<Vec<_>>>()
        });
    let Some(values) = values else {
        return kinds;
    };
    let differ = values.iter().any(|(_, value)| *value != values[0].1);
    let groups = groups(values);
    match groups.len() {
        0 => kinds,
        1 if differ => without_frequencies(kinds),
        1 => kinds,
        _ => split_kinds(kinds, all, &groups, CPPC_PERF),
    }
}

/// Removes the maximum frequencies of kinds without a core type.
fn without_frequencies(mut kinds: Vec<CoreKind>) -> Vec<CoreKind> {
    if kinds.iter().all(|kind| core_type(kind).is_empty()) {
        for kind in &mut kinds {
            kind.infos.remove("FrequencyMaxMHz");
        }
    }
    kinds
}

fn value(root: &Path, cpu: CpuId, name: &str) -> Option<u32> {
    let path = format!("sys/devices/system/cpu/cpu{cpu}/acpi_cppc/{name}");
    let value = file::attribute(&root.join(path))?.trim().parse().ok()?;
    Some(value).filter(|value| *value > 0)
}

/// Groups the CPUs by similar values, each group with its largest value.
fn groups(mut values: Vec<(CpuId, u32)>) -> Vec<(CpuSet, String)> {
    values.sort_by_key(|&(_, value)| std::cmp::Reverse(value));
    let preferred = |value: u32| PREFERRED_CORES.contains(&value);
    let similar = |a: &(CpuId, u32), b: &(CpuId, u32)| {
        f64::from(b.1) >= SAME_GROUP * f64::from(a.1) || (preferred(a.1) && preferred(b.1))
    };
    let group = |group: &[(CpuId, u32)]| {
        let cpus = group.iter().map(|&(cpu, _)| cpu).collect();
        (cpus, group[0].1.to_string())
    };
    values.chunk_by(similar).map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grouped(values: &[u32]) -> Vec<(String, String)> {
        let values = values.iter().enumerate();
        let values = values.map(|(cpu, &value)| (cpu as CpuId, value)).collect();
        let groups = groups(values).into_iter();
        groups
            .map(|(cpus, value)| (cpus.to_string(), value))
            .collect()
    }

    #[test]
    fn preferred_cores_of_one_design_form_one_group() {
        let ryzen: Vec<u32> = (166..=236).step_by(5).collect();
        assert_eq!(grouped(&ryzen), [("0-14".to_owned(), "236".to_owned())]);
        // Two dies with different quality.
        assert_eq!(
            grouped(&[236, 231, 186, 166]),
            [("0-3".to_owned(), "236".to_owned())]
        );
    }

    #[test]
    fn dense_cores_form_a_group_of_their_own() {
        let strix = [206, 211, 201, 196, 151, 146, 141, 146];
        let expected = [("0-3", "211"), ("4-7", "151")];
        let expected = expected.map(|(cpus, value)| (cpus.to_owned(), value.to_owned()));
        assert_eq!(grouped(&strix), expected);
    }
}
