// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the limits and shares that are set on a single cgroup. A process that leaves the cgroup
//! would escape these limits.
//!
//! [`of`] reads the cgroup's limit files, and compares their content with the default. These files
//! are up to 19 files with fixed names ([`DEFAULTS`]), and then every `*.max` and `*.high` file. If
//! no file sets a limit, [`of`] checks whether BPF programs, which filter devices and network
//! addresses, are attached to the cgroup. The kernel reports BPF programs only to root, and only
//! root can attach them. A call returns the first limit that it finds, and reads each file at most
//! once. Files that cannot be read count as no limit.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use libbpf_rs::libbpf_sys;

use crate::files;

/// The names of files that set a limit or a share, with the contents that mean that no limit or
/// share is set.
const DEFAULTS: [(&str, &[&str]); 19] = [
    ("memory.min", &["0"]),
    ("memory.low", &["0"]),
    ("memory.zswap.writeback", &["1"]),
    ("memory.oom.group", &["0"]),
    ("cpu.weight", &["100"]),
    ("cpu.idle", &["0"]),
    ("cpu.uclamp.min", &["0", "0.00"]),
    ("cpu.uclamp.max", &["max"]),
    ("cpuset.cpus", &[""]),
    ("cpuset.cpus.exclusive", &[""]),
    ("cpuset.cpus.partition", &["member"]),
    ("cpuset.mems", &[""]),
    ("io.latency", &[""]),
    ("io.weight", &["", "default 100"]),
    ("io.bfq.weight", &["", "100", "default 100"]),
    ("io.prio.class", &["no-change"]),
    ("cgroup.freeze", &["0"]),
    ("cgroup.max.depth", &["max"]),
    ("cgroup.max.descendants", &["max"]),
];

/// Returns the name of the first limit, or of the first share other than the default, that is set
/// on a cgroup (v2) itself.
pub(crate) fn of(cgroup: &Path) -> Option<String> {
    let set = DEFAULTS.iter().find(|(file, defaults)| {
        let value = files::read(&cgroup.join(file));
        value.is_ok_and(|value| !defaults.contains(&value.as_str()))
    });
    if let Some((file, _)) = set {
        return Some((*file).to_owned());
    }
    let entries = std::fs::read_dir(cgroup).ok()?.flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".max") || name.ends_with(".high"))
        .collect();
    names.sort();
    let limits = |name: &String| {
        let text = files::read(&cgroup.join(name));
        text.is_ok_and(|text| text.lines().any(|line| is_limit(name, line)))
    };
    let file = names.into_iter().find(limits);
    file.or_else(|| has_filter(cgroup).then(|| "a BPF filter".to_owned()))
}

/// Returns whether a line of a `.max` or `.high` file sets a limit. These lines set no limit:
/// `max`, `max 100000` (cpu.max), `8:0 rbps=max` (io.max), `res max` (misc.max).
fn is_limit(name: &str, line: &str) -> bool {
    let mut words = line.split_whitespace();
    if name == "cpu.max" {
        return words.next().is_some_and(|quota| quota != "max");
    }
    let words: Vec<&str> = words.collect();
    let values = match words.as_slice() {
        [_, values @ ..] if !values.is_empty() => values,
        values => values,
    };
    let value = |word: &&str| word.rsplit('=').next().is_some_and(|value| value != "max");
    values.iter().any(value)
}

/// Returns whether a BPF program is attached to this cgroup itself, not to an ancestor. Returns
/// `false` if the query fails.
fn has_filter(cgroup: &Path) -> bool {
    let Ok(dir) = File::open(cgroup) else {
        return false;
    };
    (0..libbpf_sys::__MAX_BPF_ATTACH_TYPE).any(|kind| {
        let (mut flags, mut count) = (0, 0);
        // SAFETY: the descriptor is open during the call. The caller requests no program IDs; the
        // kernel does not write to their null pointer. The two counters outlive the call.
        let answer = unsafe {
            libbpf_sys::bpf_prog_query(
                dir.as_raw_fd(),
                kind,
                0,
                &raw mut flags,
                std::ptr::null_mut(),
                &raw mut count,
            )
        };
        answer == 0 && count > 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_each_kind_of_limit() {
        let cases = [
            ("memory.max", "max\n", None),
            ("memory.max", "1048576\n", Some("memory.max")),
            ("memory.low", "4096\n", Some("memory.low")),
            ("pids.max", "100\n", Some("pids.max")),
            ("cpu.max", "max 100000\n", None),
            ("cpu.max", "50000 100000\n", Some("cpu.max")),
            ("io.max", "", None),
            (
                "io.max",
                "8:0 rbps=max wbps=1048576 riops=max\n",
                Some("io.max"),
            ),
            ("hugetlb.2MB.max", "0\n", Some("hugetlb.2MB.max")),
            ("misc.max", "res_a max\nres_b 3\n", Some("misc.max")),
            ("misc.max", "res_a max\n", None),
            ("cpuset.cpus", "0-1\n", Some("cpuset.cpus")),
            ("cpuset.cpus", "\n", None),
            ("cpu.weight", "20\n", Some("cpu.weight")),
            ("cgroup.freeze", "1\n", Some("cgroup.freeze")),
        ];
        for (file, text, found) in cases {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(file), text).unwrap();
            assert_eq!(of(dir.path()).as_deref(), found, "{file}: {text}");
        }
    }
}
