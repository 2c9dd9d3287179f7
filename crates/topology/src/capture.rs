// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of a copy of `/sys`, or of a dump of cpuid, before hwloc reads it.
//!
//! hwloc 2.9 reads a invalid list of CPUs in part and without a message, and reports a copy
//! without CPUs as "Invalid argument". The checks therefore read the same files first:
//!
//! 1. The directory has at least one CPU, and only files that can be read ([`file::check_tree`]).
//! 2. The lists of online CPUs and nodes are valid, and at least one online CPU exists.
//! 3. `cpuN/online` is 0 or 1.
//!
//! [`offline_notes`] reports online CPUs that the copy does not contain.

use std::collections::BTreeSet;
use std::path::Path;

use usher_model::cpuset::CPU_ID_MAX;
use usher_model::{CpuId, CpuSet, ParseCpuSetError};

use crate::error::{escaped, excerpt};
use crate::file;

/// Folder of the CPUs in a copy of `/sys`.
const CPUS: &str = "sys/devices/system/cpu";

/// The kinds of directories that describe a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaptureKind {
    /// A copy of `/sys`, as `hwloc-gather-topology` makes it.
    Sysfs,
    /// The results of cpuid, as `hwloc-gather-cpuid` writes them.
    Cpuid,
}

/// Checks the directory.
///
/// # Errors
/// Returns one line with the file, relative to the directory, and the reason.
pub(crate) fn check(root: &Path) -> Result<CaptureKind, String> {
    if root.join("hwloc-cpuid-info").is_file() {
        file::check_tree(root)?;
        return check_cpuid(root);
    }
    if let Err(why) = std::fs::read_dir(root.join(CPUS)) {
        return Err(match why.kind() {
            std::io::ErrorKind::NotFound => format!(
                "the directory is not a copy of a machine's /sys, because it has no {CPUS} (to \
                 make a copy: hwloc-gather-topology)"
            ),
            _ => format!("cannot read {CPUS}: {why}"),
        });
    }
    file::check_tree(root)?;
    check_sysfs(root)?;
    Ok(CaptureKind::Sysfs)
}

fn check_cpuid(root: &Path) -> Result<CaptureKind, String> {
    match numbered(root, "pu").is_empty() {
        true => Err(
            "the directory has no results of cpuid, because it has no files pu0, pu1 and so on (to \
             write them: hwloc-gather-cpuid)"
                .to_owned(),
        ),
        false => Ok(CaptureKind::Cpuid),
    }
}

fn check_sysfs(root: &Path) -> Result<(), String> {
    let present = numbered(&root.join(CPUS), "cpu");
    if present.is_empty() {
        return Err(format!(
            "the directory contains no CPU, because {CPUS} has no folders cpu0, cpu1 and so on (to \
             make a copy: hwloc-gather-topology)"
        ));
    }
    if let Some(&cpu) = present.last().filter(|&&cpu| cpu > u64::from(CPU_ID_MAX)) {
        return Err(format!(
            "{CPUS}/cpu{cpu}: the number of the CPU exceeds the maximum of {CPU_ID_MAX}"
        ));
    }
    let with_topology = |cpu: &&u64| root.join(format!("{CPUS}/cpu{cpu}/topology")).is_dir();
    if present.iter().find(with_topology).is_none() {
        return Err(format!(
            "the directory describes no CPU, because no folder {CPUS}/cpu0/topology or the like \
             exists (to make a copy: hwloc-gather-topology)"
        ));
    }
    let nodes = "sys/devices/system/node/online";
    list(root, nodes)?;
    match list(root, &format!("{CPUS}/online"))? {
        Some(online) => {
            let exists = |cpu: CpuId| present.contains(&u64::from(cpu));
            if !online.iter().any(exists) {
                return Err(format!(
                    "{CPUS}/online is '{online}', but the directory contains none of these CPUs"
                ));
            }
        }
        None => each_online(root, &present)?,
    }
    Ok(())
}

/// Checks the files `cpuN/online`, which hwloc reads if there is no list of online CPUs.
fn each_online(root: &Path, present: &BTreeSet<u64>) -> Result<(), String> {
    for cpu in present {
        let name = format!("{CPUS}/cpu{cpu}/online");
        let text = text(root, &name)?;
        // Some copies contain an empty file of CPU 0, which cannot go offline.
        if let Some(text) = text.filter(|text| !matches!(text.trim(), "" | "0" | "1")) {
            let text = excerpt(text.trim());
            return Err(format!("{name} is '{text}', which is neither 0 nor 1"));
        }
    }
    Ok(())
}

/// Returns a note on the online CPUs that the copy does not contain.
pub(crate) fn offline_notes(root: &Path) -> Vec<String> {
    let name = format!("{CPUS}/online");
    let Ok(Some(online)) = list(root, &name) else {
        return Vec::new();
    };
    let present = numbered(&root.join(CPUS), "cpu");
    let missing: CpuSet = (online.iter())
        .filter(|&cpu| !present.contains(&u64::from(cpu)))
        .collect();
    match missing.is_empty() {
        true => Vec::new(),
        false => vec![format!(
            "{name} lists the CPUs {}, which the directory does not contain; they are ignored",
            excerpt(&missing.to_string())
        )],
    }
}

/// Reads a list of CPUs or nodes in the kernel's format; `None` if the file does not exist.
fn list(root: &Path, name: &str) -> Result<Option<CpuSet>, String> {
    let Some(text) = text(root, name)? else {
        return Ok(None);
    };
    let invalid = |reason: &str| {
        let text = excerpt(text.trim());
        format!("{name} is '{text}', which is not a list such as 0-3,8: {reason}")
    };
    let list: CpuSet = text.parse().map_err(|why: ParseCpuSetError| {
        let reason: String = why.reason.chars().take(80).collect();
        invalid(&escaped(&reason))
    })?;
    match list.is_empty() {
        true => Err(invalid("the list is empty")),
        false => Ok(Some(list)),
    }
}

/// Reads an attribute; `None` if the file does not exist.
fn text(root: &Path, name: &str) -> Result<Option<String>, String> {
    let path = root.join(name);
    if std::fs::metadata(&path).is_err() {
        return Ok(None);
    }
    let bytes = file::read(&path, file::ATTRIBUTE_BYTES_MAX)
        .map_err(|why| format!("cannot read {name}: {why}"))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{name} is not text"))?;
    // Older versions of Linux append a NUL byte to some lists.
    Ok(Some(text.trim_end_matches(['\0', '\n']).to_owned()))
}

/// The numbers N of the entries `prefixN` of a folder.
fn numbered(folder: &Path, prefix: &str) -> BTreeSet<u64> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return BTreeSet::new();
    };
    let number = |name: &str| {
        let digits = name.strip_prefix(prefix)?;
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| digits.parse().unwrap_or(u64::MAX))
    };
    entries
        .filter_map(|entry| number(entry.ok()?.file_name().to_str()?))
        .collect()
}
