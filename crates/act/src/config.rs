// SPDX-License-Identifier: MIT OR Apache-2.0
//! Configuration of the actuator (the paths of the runtime directory, cgroups, `/proc`, `/sys` and
//! systemd), and the description of the mechanisms that this machine supports. This file contains
//! only data types.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The paths with which an [`crate::Actuator`] works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActConfig {
    /// A directory of Usher's own on a tmpfs (`/run/usher`, `$XDG_RUNTIME_DIR/usher`); created if
    /// missing. The subdirectory `instances/` contains the journals.
    pub runtime_dir: PathBuf,
    /// Only cgroup mounts at or below this path are used.
    pub cgroup_root: PathBuf,
    /// The mount point of procfs.
    pub proc_root: PathBuf,
    /// The mount point of sysfs.
    pub sys_root: PathBuf,
    /// A directory that exists if systemd manages the machine. Cgroups are then requested from
    /// systemd.
    pub systemd_dir: PathBuf,
    /// The path of systemd's program `busctl`, which requests scopes from systemd.
    pub busctl: PathBuf,
    /// Upper limit of the living process trees that have joined one program.
    pub joined_trees_max: usize,
}

/// The default of [`ActConfig::joined_trees_max`]: more than the CPUs of the largest machines, on
/// which a batch system starts one task per CPU.
const JOINED_TREES_MAX: usize = 4096;

impl ActConfig {
    /// Returns the standard paths with this runtime directory.
    pub fn new(runtime_dir: impl Into<PathBuf>) -> Self {
        Self {
            runtime_dir: runtime_dir.into(),
            cgroup_root: "/sys/fs/cgroup".into(),
            proc_root: "/proc".into(),
            sys_root: "/sys".into(),
            systemd_dir: "/run/systemd/system".into(),
            busctl: "busctl".into(),
            joined_trees_max: JOINED_TREES_MAX,
        }
    }

    /// The directory that holds one directory per instance.
    pub fn instances_dir(&self) -> PathBuf {
        self.runtime_dir.join("instances")
    }
}

/// The class of work as which a program is admitted.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum WorkClass {
    /// Work that shares the CPUs as it would without Usher.
    #[default]
    Foreground,
    /// Work that will be demoted. The home of such a program is created with the directories for
    /// the demotion, which then needs no further move.
    Background,
}

/// How a launched program gets a cgroup of its own. Attached programs stay in
/// their cgroup in every case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CgroupPlacement {
    /// A directory of cgroup v2 below the launcher's own cgroup.
    ChildCgroup,
    /// A transient systemd scope in the launcher's slice.
    SystemdScope,
    /// No cgroup of its own: Usher finds the program's processes by descent from its first process.
    /// A process that becomes an orphan between two scans is found only by the variable of its
    /// launcher (`USHER_RUN`).
    Descent,
}

impl fmt::Display for CgroupPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChildCgroup => "in a cgroup below the launcher's cgroup",
            Self::SystemdScope => "in a systemd scope in the launcher's slice",
            Self::Descent => {
                "in the launcher's cgroup, where Usher follows the program by its process tree"
            }
        })
    }
}

/// The mechanism, in addition to the priorities of its threads, by which launched background work
/// yields the CPU to other sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum YieldMethod {
    /// `cpu.idle` in a directory of the cgroup v1 cpu hierarchy.
    CpuV1,
    /// `cpu.idle` in a directory of cgroup v2.
    CpuV2,
    /// `CPUWeight=idle` of a systemd scope.
    CpuWeight,
    /// The nice value of the autogroups of the program's sessions.
    Autogroup,
}

impl fmt::Display for YieldMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CpuV1 => "cpu.idle (cgroup v1)",
            Self::CpuV2 => "cpu.idle (cgroup v2)",
            Self::CpuWeight => "CPUWeight=idle of the program's systemd scope",
            Self::Autogroup => "nice 19 of the autogroups of the program's sessions",
        })
    }
}

/// The mechanisms that Usher uses on this machine, with the reasons for which it uses no better
/// mechanisms. `usher doctor` prints this description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActDescription {
    /// How launched programs get a cgroup.
    pub placement: CgroupPlacement,
    /// The mechanism by which background work yields to other sessions.
    pub yielding: YieldMethod,
    /// The reasons for which a better mechanism is not used, one sentence each.
    pub reasons: Vec<String>,
}
