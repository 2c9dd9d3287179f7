// SPDX-License-Identifier: GPL-2.0-only
//! Errors of the scheduler and the counter. Each message states what failed and on which input. If
//! the user can remove the cause, the message also states what is required.

use std::io;
use std::path::PathBuf;

use usher_model::CpuSet;

use crate::obstacles::SchedulerHolder;

/// Reason why the scheduler or the counter cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ScxError {
    /// The kernel was built without sched_ext.
    #[error(
        "this kernel has no sched_ext ({} does not exist): Linux 6.12 or newer with CONFIG_SCHED_CLASS_EXT is required",
        path.display()
    )]
    NoSchedExt {
        /// Path that does not exist.
        path: PathBuf,
    },
    /// The kernel has no description of its types (BTF).
    #[error("this kernel has no BTF ({} does not exist): CONFIG_DEBUG_INFO_BTF is required", path.display())]
    NoBtf {
        /// Path that does not exist.
        path: PathBuf,
    },
    /// The process does not run as root.
    #[error("loading a scheduler requires root: run this command as root")]
    NotRoot,
    /// The kernel refuses BPF to this process.
    #[error(
        "the kernel does not let this process load BPF programs ({source}): loading a scheduler \
         requires CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN of the host; run this command as root \
         outside of the container"
    )]
    Forbidden {
        /// The error of `bpf(2)`.
        source: io::Error,
    },
    /// Another scheduler is loaded.
    #[error(
        "the scheduler '{name}' is already loaded{}, and the kernel runs only one sched_ext \
         scheduler at a time: {}",
        holder.described(),
        holder.remedy()
    )]
    AlreadyLoaded {
        /// Name of the loaded scheduler.
        name: String,
        /// The process that holds the loaded scheduler.
        holder: SchedulerHolder,
    },
    /// The kernel lacks a function that the BPF programs call.
    #[error(
        "this kernel lacks the function '{name}', which the scheduler calls: Linux 6.12 or newer \
         with CONFIG_SCHED_CLASS_EXT is required"
    )]
    NoFunction {
        /// Name of the function.
        name: &'static str,
    },
    /// The cpu controller is in cgroup v1.
    #[error(
        "the cpu controller of this host is in cgroup v1 (hierarchy {hierarchy} in /proc/cgroups), \
         and the scheduler requires cgroup v2: boot with systemd.unified_cgroup_hierarchy=1"
    )]
    CgroupV1 {
        /// Number of the hierarchy.
        hierarchy: u32,
    },
    /// A thread uses core scheduling.
    #[error(
        "thread {tid} ({name}) has a core-scheduling cookie (PR_SCHED_CORE), and the scheduler \
         does not support core scheduling: end the programs that use it first"
    )]
    CoreScheduling {
        /// Number of the thread.
        tid: i32,
        /// Name of the thread.
        name: String,
    },
    /// The machine has a CPU number beyond the tables of the BPF programs.
    #[error("CPU {cpu} is beyond the {most} CPUs that the scheduler supports")]
    TooManyCpus {
        /// Number of the first CPU beyond the tables.
        cpu: u32,
        /// Capacity of the tables.
        most: usize,
    },
    /// The requested CPUs cannot be the seat of a program.
    #[error("invalid seat of '{name}' (cgroup {cgroup}) on CPUs '{cpus}': {reason}")]
    InvalidSeat {
        /// Name of the program.
        name: String,
        /// Number of the cgroup.
        cgroup: u64,
        /// Requested CPUs.
        cpus: CpuSet,
        /// Reason why these CPUs cannot be a seat.
        reason: String,
    },
    /// A file could not be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operation.
        source: io::Error,
    },
    /// The kernel or libbpf returned an error.
    #[error("{doing}: {source}")]
    Bpf {
        /// Operation that failed.
        doing: String,
        /// Error of libbpf.
        source: libbpf_rs::Error,
    },
    /// The kernel rejected the programs.
    #[error("{doing}: {source}; end of the kernel's log:\n{log}")]
    LoadFailed {
        /// Operation that failed.
        doing: String,
        /// Error of libbpf.
        source: libbpf_rs::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// A BPF map is missing or has another layout.
    #[error(
        "the BPF map '{name}' is missing or has another size, because another version of usher \
         created it: restart the scheduler with this version"
    )]
    Layout {
        /// Name of the map.
        name: String,
    },
}

impl ScxError {
    pub(crate) fn bpf(doing: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |source| Self::Bpf {
            doing: doing.into(),
            source,
        }
    }

    pub(crate) fn layout(name: &str) -> Self {
        Self::Layout {
            name: name.to_owned(),
        }
    }
}
