// SPDX-License-Identifier: GPL-2.0-only
//! Detects cgroups that limit CPU time (`cpu.max`, `cpu.cfs_quota_us`), for the order `--fifo`, which
//! does not enforce such limits.
//!
//! The search walks the tree below `/sys/fs/cgroup` to a depth of 16 levels, and reads at most two
//! files per directory. Symbolic links are not followed. An unreadable file or directory counts as
//! no limit. The message names the first limited cgroup by path and the number of the others.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::failure;

/// Mount point of cgroups, of both versions.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Upper limit of nested cgroups that are examined.
const DEPTH_MAX: usize = 16;

/// Checks that no cgroup limits CPU time, because the limit would have no effect. With `ignore`,
/// prints a warning instead of the error.
///
/// # Errors
/// A cgroup has a limit, and `ignore` is false.
pub fn check_ignored(ignore: bool) -> anyhow::Result<()> {
    match (limited(Path::new(CGROUPS)), ignore) {
        (None, _) => Ok(()),
        (Some(limited), true) => {
            failure::print_error(&not_enforced(&limited));
            Ok(())
        }
        (Some(limited), false) => bail!(refusal(&limited)),
    }
}

fn not_enforced(limited: &str) -> String {
    format!("{limited} CPU time by cpu.max, which the order --fifo does not enforce")
}

fn refusal(limited: &str) -> String {
    let why = not_enforced(limited);
    format!("{why}: remove the limits, or add --ignore-cpu-max")
}

/// Returns the first cgroup with a limit and the number of the others, followed by the verb;
/// `None` if no cgroup has a limit.
fn limited(root: &Path) -> Option<String> {
    let mut limited = Vec::new();
    collect(root, DEPTH_MAX, &mut limited);
    limited.sort();
    let (first, others) = limited.split_first()?;
    let others = match others.len() {
        0 => " limits".to_owned(),
        1 => " and one other cgroup limit".to_owned(),
        n => format!(" and {n} other cgroups limit"),
    };
    Some(format!("'{}'{others}", first.display()))
}

fn collect(dir: &Path, deep: usize, limited: &mut Vec<PathBuf>) {
    if is_limited(dir) {
        limited.push(dir.to_owned());
    }
    // A cgroup that was removed during the search has no children.
    let Ok(within) = fs::read_dir(dir) else {
        return;
    };
    for entry in within.flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_dir && deep > 0 {
            collect(&entry.path(), deep - 1, limited);
        }
    }
}

fn is_limited(dir: &Path) -> bool {
    let quota = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
    // The file contains "max 100000", and "-1" in cgroup v1.
    let is_number = |text: String| {
        let first = text.split_whitespace().next();
        first.is_some_and(|quota| quota.parse::<u64>().is_ok())
    };
    is_number(quota("cpu.max")) || is_number(quota("cpu.cfs_quota_us"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cgroups_with_a_limit() {
        let root = tempfile::tempdir().unwrap();
        let cgroup = |name: &str, file: &str, text: &str| {
            let dir = root.path().join(name);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(file), text).unwrap();
            dir.display().to_string()
        };
        cgroup("free", "cpu.max", "max 100000\n");
        cgroup("cpu/old", "cpu.cfs_quota_us", "-1\n");
        assert_eq!(limited(root.path()), None);
        let one = cgroup("free/web", "cpu.max", "10000 100000\n");
        let actual = limited(root.path()).unwrap();
        assert_eq!(actual, format!("'{one}' limits"));
        let refused = refusal(&actual);
        assert!(
            refused.contains(&one) && refused.ends_with("add --ignore-cpu-max"),
            "{refused}"
        );
        let two = cgroup("cpu/old/db", "cpu.cfs_quota_us", "50000\n");
        let actual = limited(root.path()).unwrap();
        assert_eq!(actual, format!("'{two}' and one other cgroup limit"));
    }
}
