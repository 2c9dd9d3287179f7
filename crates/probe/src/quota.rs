// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU quotas: the CPU time that the cgroups of a process allow, in CPU seconds per second of wall
//! time.
//!
//! A quota applies to a cgroup and all cgroups below it. The effective quota is therefore the
//! minimum of the quotas of all cgroups from the process's cgroup up to the root. The minimum
//! includes a user's limits, because systemd writes them to the user's slice. cgroup v2 has
//! `cpu.max`, v1 has `cpu.cfs_quota_us` and `cpu.cfs_period_us`. In a container, only the cgroups
//! that are visible in the container are read.
//!
//! [`CpuQuotas::new`] reads the list of mounts once. [`CpuQuotas::of`] reads the list of a
//! process's cgroups, and one or two files per level and mounted hierarchy. An unreadable file
//! counts as no quota.

use std::path::{Path, PathBuf};

use crate::file;
use crate::machine::Roots;

/// Reads the quotas of processes.
#[derive(Debug, Clone)]
pub struct CpuQuotas {
    roots: Roots,
    mounts: Vec<CgroupMount>,
}

/// A mounted hierarchy that has or may have a CPU controller.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CgroupMount {
    /// Whether the hierarchy is cgroup v2.
    unified: bool,
    /// The mounted cgroup.
    root: PathBuf,
    /// The mount point.
    point: PathBuf,
}

impl CpuQuotas {
    /// Finds the mounted hierarchies.
    pub fn new(roots: &Roots) -> Self {
        let table = file::read(&roots.proc.join("self/mountinfo")).unwrap_or_default();
        Self {
            mounts: table.lines().filter_map(mount).collect(),
            roots: roots.clone(),
        }
    }

    /// Returns the CPU time per wall time that a process may use (1.5: one and a half CPUs); `None`
    /// if no quota is set or readable.
    pub fn of(&self, pid: i32) -> Option<f64> {
        let path = self.roots.proc.join(pid.to_string()).join("cgroup");
        let cgroups = file::read(&path).ok()?;
        let quotas = self.mounts.iter().filter_map(|mount| {
            let cgroup = cgroups.lines().find_map(|line| mount.cgroup_in(line))?;
            self.min_quota(mount, &cgroup)
        });
        quotas.min_by(f64::total_cmp)
    }

    /// The minimum quota from a cgroup up to the root of its hierarchy.
    fn min_quota(&self, mount: &CgroupMount, cgroup: &Path) -> Option<f64> {
        let below = cgroup.strip_prefix(&mount.root).ok()?;
        let point = match mount.point.strip_prefix("/sys") {
            Ok(inside) => self.roots.sys.join(inside),
            Err(_) => mount.point.clone(),
        };
        let chain = below.ancestors().map(|part| point.join(part));
        let quotas = chain.filter_map(|dir| match mount.unified {
            true => cpu_max(&file::read(&dir.join("cpu.max")).ok()?),
            false => cfs_quota(
                &file::read(&dir.join("cpu.cfs_quota_us")).ok()?,
                &file::read(&dir.join("cpu.cfs_period_us")).ok()?,
            ),
        });
        quotas.min_by(f64::total_cmp)
    }
}

impl CgroupMount {
    /// Returns the cgroup in this hierarchy that a line of `/proc/PID/cgroup` names.
    fn cgroup_in(&self, line: &str) -> Option<PathBuf> {
        let mut fields = line.splitn(3, ':');
        let (number, controllers) = (fields.next()?, fields.next()?);
        let is_it = match self.unified {
            true => number == "0" && controllers.is_empty(),
            false => controllers.split(',').any(|name| name == "cpu"),
        };
        is_it.then(|| fields.next()).flatten().map(PathBuf::from)
    }
}

/// Returns the hierarchy of a line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)) if it may
/// limit CPU time.
fn mount(line: &str) -> Option<CgroupMount> {
    let (before, after) = line.split_once(" - ")?;
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1)?);
    let unified = match kind {
        "cgroup2" => true,
        "cgroup" if options.split(',').any(|name| name == "cpu") => false,
        _ => return None,
    };
    let mut before = before.split(' ').skip(3);
    Some(CgroupMount {
        unified,
        root: PathBuf::from(before.next()?),
        point: PathBuf::from(before.next()?),
    })
}

/// Parses a `cpu.max` file: `max 100000`, or quota and period in microseconds.
fn cpu_max(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    ratio(words.next()?, words.next()?)
}

/// Parses the two files of cgroup v1; a quota of -1 means no quota.
fn cfs_quota(quota: &str, period: &str) -> Option<f64> {
    ratio(quota.trim(), period.trim())
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
24 1 0:22 / /proc rw - proc proc rw
30 24 0:26 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 /job /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
";

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(cgroups: &str) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            machine.write("proc/self/mountinfo", TABLE);
            machine.write("proc/7/cgroup", cgroups);
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn quota(&self) -> Option<f64> {
            let at = |name: &str| self.0.path().join(name);
            let roots = Roots {
                proc: at("proc"),
                sys: at("sys"),
                boot: at("boot"),
            };
            CpuQuotas::new(&roots).of(7)
        }
    }

    #[test]
    fn the_minimum_quota_up_to_the_root_applies() {
        let machine = Machine::new("4:memory:/x\n0::/user.slice/user-1000.slice/a.scope\n");
        assert_eq!(machine.quota(), None);
        let unified = "sys/fs/cgroup/unified";
        let at = |path: &str| format!("{unified}/user.slice/{path}cpu.max");
        machine.write(&at("user-1000.slice/a.scope/"), "max 100000\n");
        assert_eq!(machine.quota(), None);
        machine.write(&at("user-1000.slice/"), "50000 100000\n");
        machine.write(&at(""), "400000 100000\n");
        assert_eq!(machine.quota(), Some(0.5));
        machine.write(&at("user-1000.slice/a.scope/"), "20000 100000\n");
        assert_eq!(machine.quota(), Some(0.2));
        machine.write(&at("user-1000.slice/a.scope/"), "garbage");
        assert_eq!(machine.quota(), Some(0.5));
    }

    #[test]
    fn cgroup_v1_is_read_below_the_mounted_cgroup() {
        let machine = Machine::new("3:cpu,cpuacct:/job/step\n0::/\n");
        let dir = "sys/fs/cgroup/cpu,cpuacct";
        let set = |path: &str, quota: &str| {
            machine.write(&format!("{dir}/{path}cpu.cfs_quota_us"), quota);
            machine.write(&format!("{dir}/{path}cpu.cfs_period_us"), "100000\n");
        };
        set("step/", "-1\n");
        assert_eq!(machine.quota(), None);
        set("", "150000\n");
        assert_eq!(machine.quota(), Some(1.5));
        // A cgroup outside of the mounted cgroup is not visible.
        machine.write("proc/7/cgroup", "3:cpu,cpuacct:/other\n");
        assert_eq!(machine.quota(), None);
    }

    #[test]
    fn malformed_texts_have_no_quota() {
        for text in ["", "max", "0 100000", "1 0", "-5 10", "x y", "1"] {
            assert_eq!(cpu_max(text), None, "{text}");
        }
        for line in ["", "a - b", "1 2 3 - cgroup2 x", "- - - -"] {
            assert_eq!(mount(line), None, "{line}");
        }
    }
}
