// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where to act, and what was found to act with.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where an [`crate::Actuator`] works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActConfig {
    /// A directory of Usher's own on a tmpfs (`/run/usher`,
    /// `$XDG_RUNTIME_DIR/usher`); made where it is missing. Journals live in
    /// `instances/` below it.
    pub runtime_dir: PathBuf,
    /// Only cgroup mounts at or below this path are used.
    pub cgroup_root: PathBuf,
    /// Where procfs is mounted.
    pub proc_root: PathBuf,
    /// Where sysfs is mounted.
    pub sys_root: PathBuf,
    /// Exists where systemd runs the machine: then cgroups come from it.
    pub systemd_dir: PathBuf,
    /// systemd's `busctl`, to ask it for scopes.
    pub busctl: PathBuf,
    /// The backend to use where it works; `None`: the best that works.
    pub prefer: Option<Backend>,
}

impl ActConfig {
    /// The usual places, with this runtime directory.
    pub fn new(runtime_dir: impl Into<PathBuf>) -> Self {
        Self {
            runtime_dir: runtime_dir.into(),
            cgroup_root: "/sys/fs/cgroup".into(),
            proc_root: "/proc".into(),
            sys_root: "/sys".into(),
            systemd_dir: "/run/systemd/system".into(),
            busctl: "busctl".into(),
            prefer: None,
        }
    }

    /// The directory that holds one directory an instance.
    pub fn instances_dir(&self) -> PathBuf {
        self.runtime_dir.join("instances")
    }
}

/// What a program is taken in as.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// It shares the CPUs as it would without Usher.
    #[default]
    Foreground,
    /// It is going to be demoted, and its home is made for that: it need not
    /// be moved then.
    Background,
}

/// How programs are narrowed to their seats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The cpuset controller of cgroup v2.
    CpusetV2,
    /// The cpuset hierarchy of cgroup v1.
    CpusetV1,
    /// `sched_setaffinity` on every thread.
    Affinity,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CpusetV2 => "cgroup v2 cpuset",
            Self::CpusetV1 => "cgroup v1 cpuset",
            Self::Affinity => "sched_setaffinity",
        })
    }
}

/// How the processes of a program are found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tracking {
    /// A cgroup v2 directory a program, below this one.
    CgroupV2(PathBuf),
    /// A transient systemd scope a program, with delegation.
    SystemdScope,
    /// A cgroup v1 cpuset a program, below this one.
    CpusetV1(PathBuf),
    /// By parent process: one that is orphaned between two looks is lost.
    Pids,
}

/// How a program is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Freezing {
    /// `cgroup.freeze`: no parent sees it.
    CgroupV2,
    /// `SIGSTOP` to every process: a shell that waits for one sees it.
    Sigstop,
}

/// What is used here, and why nothing better is: for `usher doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// How programs are narrowed.
    pub backend: Backend,
    /// How their processes are found.
    pub tracking: Tracking,
    /// How they are stopped.
    pub freezing: Freezing,
    /// Why something better is not used: one sentence each.
    pub reasons: Vec<String>,
}
