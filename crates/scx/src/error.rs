// SPDX-License-Identifier: GPL-2.0-only
//! Errors of the scheduler and the counter.

use std::io;
use std::path::PathBuf;

use usher_model::CpuSet;

/// Reason why the scheduler or the counter cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ScxError {
    /// The kernel was built without sched_ext.
    #[error(
        "this kernel has no sched_ext ({} is not there): it takes Linux 6.12 or newer with CONFIG_SCHED_CLASS_EXT",
        path.display()
    )]
    NoSchedExt {
        /// Path that does not exist.
        path: PathBuf,
    },
    /// The kernel has no description of its types.
    #[error("this kernel has no BTF ({} is not there): it takes CONFIG_DEBUG_INFO_BTF", path.display())]
    NoBtf {
        /// Path that does not exist.
        path: PathBuf,
    },
    /// The process does not run as root.
    #[error("a scheduler is root's to change: run this as root")]
    NotRoot,
    /// The kernel refuses BPF to this process.
    #[error(
        "the kernel lets this process load no BPF programs ({source}): the scheduler needs CAP_BPF, \
         CAP_PERFMON and CAP_SYS_ADMIN of the host; start it as root outside of the container"
    )]
    Forbidden {
        /// The error of `bpf(2)`.
        source: io::Error,
    },
    /// Another scheduler is loaded.
    #[error("the scheduler '{name}' is loaded: the kernel takes one at a time; stop it first")]
    Taken {
        /// Its name.
        name: String,
    },
    /// The machine exceeds the programs' tables.
    #[error("CPU {cpu} is beyond the {most} that the scheduler's tables hold")]
    TooManyCpus {
        /// First CPU beyond the tables.
        cpu: u32,
        /// Capacity of the tables.
        most: usize,
    },
    /// A seat cannot be given.
    #[error("a seat for '{name}' (cgroup {cgroup}) on CPUs '{cpus}': {why}")]
    NoSuchSeat {
        /// Name of the program.
        name: String,
        /// Number of the cgroup.
        cgroup: u64,
        /// Requested CPUs.
        cpus: CpuSet,
        /// Problem with these CPUs.
        why: String,
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
    #[error("{doing}: {source}; the kernel's last words on it:\n{words}")]
    Unloaded {
        /// Operation that failed.
        doing: String,
        /// Error of libbpf.
        source: libbpf_rs::Error,
        /// The end of the verifier's log.
        words: String,
    },
    /// A map is missing or has another layout.
    #[error("the map '{name}' is not there or has another size: it is another version's")]
    Layout {
        /// Its name.
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
