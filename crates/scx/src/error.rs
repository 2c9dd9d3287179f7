// SPDX-License-Identifier: GPL-2.0-only
//! What goes wrong with the scheduler.

use std::io;
use std::path::PathBuf;

use usher_model::CpuSet;

/// Why there is no scheduler, or no count.
#[derive(Debug, thiserror::Error)]
pub enum ScxError {
    /// The kernel was built without sched_ext.
    #[error(
        "this kernel has no sched_ext ({} is not there): it takes Linux 6.12 or newer with CONFIG_SCHED_CLASS_EXT",
        path.display()
    )]
    NoSchedExt {
        /// What was looked for.
        path: PathBuf,
    },
    /// The kernel does not describe its types.
    #[error("this kernel has no BTF ({} is not there): it takes CONFIG_DEBUG_INFO_BTF", path.display())]
    NoBtf {
        /// What was looked for.
        path: PathBuf,
    },
    /// Not root.
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
    /// Somebody else's scheduler runs.
    #[error("the scheduler '{name}' is loaded: the kernel takes one at a time; stop it first")]
    Taken {
        /// Its name.
        name: String,
    },
    /// The machine is larger than the programs' tables.
    #[error("CPU {cpu} is beyond the {most} that the scheduler's tables hold")]
    TooManyCpus {
        /// The first that is.
        cpu: u32,
        /// How many there may be.
        most: usize,
    },
    /// A seat that nobody could have.
    #[error("a seat for '{name}' (cgroup {cgroup}) on CPUs '{cpus}': {why}")]
    NoSuchSeat {
        /// Whose it was to be.
        name: String,
        /// The number of the cgroup.
        cgroup: u64,
        /// What was asked for.
        cpus: CpuSet,
        /// What is wrong with these CPUs.
        why: String,
    },
    /// A file could not be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel or libbpf refused.
    #[error("{doing}: {source}")]
    Bpf {
        /// What was being done.
        doing: String,
        /// What it said.
        source: libbpf_rs::Error,
    },
    /// The kernel did not take the programs, and said why.
    #[error("{doing}: {source}; the kernel's last words on it:\n{words}")]
    Unloaded {
        /// What was being done.
        doing: String,
        /// What libbpf made of it.
        source: libbpf_rs::Error,
        /// The end of the verifier's log.
        words: String,
    },
    /// A map is not what this program expects.
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
