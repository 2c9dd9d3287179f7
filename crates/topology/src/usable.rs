// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CPUs that are online and usable by this process.
//!
//! A container or a cpuset may provide only some of the machine's CPUs, and CPUs can go offline and
//! come back. The functions of this module read the files at every call; the kernel updates
//! `Cpus_allowed_list` for cpusets (v1 and v2), affinity and hot-plug. The root of `/proc` and
//! `/sys` is an argument, which lets tests use captured trees.
//!
//! An unreadable file, a malformed list, an empty list, or allowed CPUs of which none is online are
//! errors; nothing is retried. Exception: without the file of online CPUs, the allowed CPUs count
//! as online. Between the two reads, CPUs may change; the next call then returns the new set.

use std::path::Path;

use usher_model::CpuSet;

use crate::TopologyReadError;

const ONLINE: &str = "sys/devices/system/cpu/online";
const STATUS: &str = "proc/self/status";

/// The online CPUs; `root` is `/` or the root of a captured tree.
///
/// # Errors
/// Returns an error if `sys/devices/system/cpu/online` below the root cannot be read or is not a
/// CPU list.
pub fn online_cpus(root: &Path) -> Result<CpuSet, TopologyReadError> {
    let text = read(root, ONLINE)?;
    parse(root, ONLINE, &text)
}

/// Returns the CPUs that this process may run on: its affinity mask within its cpuset.
///
/// # Errors
/// Returns an error if `proc/self/status` below the root cannot be read or has no CPU list.
pub fn allowed_cpus(root: &Path) -> Result<CpuSet, TopologyReadError> {
    let text = read(root, STATUS)?;
    let list = text
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    match list {
        Some(list) => parse(root, STATUS, list),
        None => Err(error(
            root,
            STATUS,
            "the file has no line Cpus_allowed_list",
        )),
    }
}

/// The CPUs that are online and usable by this process, read at every call.
///
/// Without `/sys` (in some containers) the allowed CPUs count as online.
///
/// # Errors
/// Returns an error if a list cannot be read, or if no CPU is in both lists.
pub fn usable_cpus(root: &Path) -> Result<CpuSet, TopologyReadError> {
    let allowed = allowed_cpus(root)?;
    if !root.join(ONLINE).exists() {
        return Ok(allowed);
    }
    let online = online_cpus(root)?;
    let usable = allowed.and(&online);
    match usable.is_empty() {
        false => Ok(usable),
        true => {
            let reason = format!(
                "no allowed CPU is online: CPUs {allowed} are allowed, CPUs {online} are online"
            );
            Err(error(root, STATUS, &reason))
        }
    }
}

fn read(root: &Path, file: &str) -> Result<String, TopologyReadError> {
    std::fs::read_to_string(root.join(file)).map_err(|why| error(root, file, &why.to_string()))
}

fn parse(root: &Path, file: &str, list: &str) -> Result<CpuSet, TopologyReadError> {
    let set: CpuSet = list
        .parse()
        .map_err(|why: usher_model::ParseCpuSetError| error(root, file, &why.to_string()))?;
    match set.is_empty() {
        false => Ok(set),
        true => Err(error(root, file, "the list of CPUs is empty")),
    }
}

fn error(root: &Path, file: &str, reason: &str) -> TopologyReadError {
    TopologyReadError::Usable {
        path: root.join(file),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(status: &str, online: Option<&str>) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(STATUS, status);
        if let Some(online) = online {
            write(ONLINE, online);
        }
        root
    }

    const STATUS_2_9: &str = "Name:\tsh\nCpus_allowed:\t3fc\nCpus_allowed_list:\t2-9\n";

    #[test]
    fn usable_cpus_are_allowed_and_online() {
        let root = tree(STATUS_2_9, Some("0-3,6,12\n"));
        assert_eq!(usable_cpus(root.path()).unwrap().to_string(), "2-3,6");
        assert_eq!(online_cpus(root.path()).unwrap().to_string(), "0-3,6,12");
        assert_eq!(allowed_cpus(root.path()).unwrap().to_string(), "2-9");
    }

    #[test]
    fn offline_cpu_is_noticed_at_the_next_call() {
        let root = tree(STATUS_2_9, Some("0-11\n"));
        assert!(usable_cpus(root.path()).unwrap().contains(5));
        std::fs::write(root.path().join(ONLINE), "0-4,6-11\n").unwrap();
        assert!(!usable_cpus(root.path()).unwrap().contains(5));
    }

    #[test]
    fn allowed_cpus_count_without_sys() {
        let root = tree(STATUS_2_9, None);
        assert_eq!(usable_cpus(root.path()).unwrap().to_string(), "2-9");
    }

    #[test]
    fn errors_name_the_file_and_the_reason() {
        for (status, online, expected) in [
            (
                "Name:\tsh\n",
                "0-3",
                "proc/self/status: the file has no line",
            ),
            ("Cpus_allowed_list:\t\n", "0-3", "the list of CPUs is empty"),
            (STATUS_2_9, "0-1", "CPUs 2-9 are allowed, CPUs 0-1"),
            (STATUS_2_9, "3-x", "cpu/online: '3-x"),
        ] {
            let root = tree(status, Some(online));
            let text = usable_cpus(root.path()).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
            assert!(!text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn this_process_may_use_at_least_one_cpu() {
        assert!(!usable_cpus(Path::new("/")).unwrap().is_empty());
    }
}
