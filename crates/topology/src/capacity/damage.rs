// SPDX-License-Identifier: MIT OR Apache-2.0
//! Damaged capacities in a copy of `/sys`.
//!
//! hwloc reads the digits at the start of a file: `12x` is 12, `-1` is a huge number and `x` is 0,
//! which counts as missing. An attribute with a damaged value for any CPU would give the cores wrong
//! relative capacities. Such an attribute is therefore removed from all kinds, and a note reports
//! the first damaged file.

use std::path::{Path, PathBuf};

use usher_model::{CpuId, CpuSet};

use super::{CPPC_PERF, invalid};
use crate::assemble::HwlocFacts;
use crate::error::excerpt;
use crate::file;

/// The attributes of a CPU in sysfs: the file, the name of hwloc's attribute, and the factor from
/// the unit of the file to that of the attribute.
const ATTRIBUTES: [(&str, &str, f64); 5] = [
    ("cpu_capacity", "LinuxCapacity", 1.0),
    ("acpi_cppc/highest_perf", CPPC_PERF, 1.0),
    ("acpi_cppc/nominal_perf", CPPC_PERF, 1.0),
    ("cpufreq/cpuinfo_max_freq", "FrequencyMaxMHz", 1e-3),
    ("cpufreq/base_frequency", "FrequencyBaseMHz", 1e-3),
];

/// Removes attributes with damaged values from the kinds, and adds notes.
pub(crate) fn remove(facts: &mut HwlocFacts, root: &Path) {
    let has_highest = |&cpu: &CpuId| cpu_file(root, cpu, "acpi_cppc/highest_perf").exists();
    let uses_nominal = !facts.pus.iter().all(has_highest);
    for (name, info, unit) in ATTRIBUTES {
        if name.ends_with("nominal_perf") && !uses_nominal {
            continue;
        }
        let damaged = (facts.pus.iter()).find_map(|&cpu| damage(root, cpu, name, info, unit));
        if let Some(note) = damaged {
            facts.notes.push(note);
            for kind in &mut facts.kinds {
                kind.infos.remove(info);
            }
        }
    }
    for counters in ["cpu_core", "cpu_atom", "cpu_lowpower"] {
        let name = format!("sys/devices/{counters}/cpus");
        let damaged = match value(&root.join(&name)) {
            Some(text) => text.parse::<CpuSet>().err().map(|_| excerpt(text.trim())),
            None => None,
        };
        if let Some(text) = damaged {
            facts.notes.push(format!(
                "{name} is '{text}', which is not a list of CPUs; the file is ignored"
            ));
        }
    }
}

/// A note, if the file of the CPU exists and its value is invalid. Linux states a CPPC value of 0
/// if the firmware states none.
fn damage(root: &Path, cpu: CpuId, name: &str, info: &str, unit: f64) -> Option<String> {
    let path = cpu_file(root, cpu, name);
    let text = value(&path)?;
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse::<f64>().ok().filter(|_| digits);
    let wanted = match number {
        Some(0.0) if info == CPPC_PERF => None,
        Some(number) => invalid(info, &(number * unit).to_string()),
        None => Some("a whole number"),
    }?;
    let text = excerpt(text);
    let wanted = match unit == 1.0 {
        true => wanted.to_owned(),
        false => format!("{wanted} (in kHz)"),
    };
    let path = path.strip_prefix(root).unwrap_or(&path).display();
    Some(format!(
        "{path} is '{text}', which is not {wanted}; {name} is ignored for all CPUs"
    ))
}

fn cpu_file(root: &Path, cpu: CpuId, name: &str) -> PathBuf {
    root.join(format!("sys/devices/system/cpu/cpu{cpu}/{name}"))
}

/// The text of a file; `None` if it does not exist. A file that is not text is damaged as well.
fn value(path: &Path) -> Option<String> {
    std::fs::metadata(path).ok()?;
    let bytes = file::read(path, file::ATTRIBUTE_BYTES_MAX).unwrap_or_default();
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
