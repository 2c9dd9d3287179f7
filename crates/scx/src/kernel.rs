// SPDX-License-Identifier: GPL-2.0-only
//! What this kernel has, and which scheduler it runs.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use usher_model::CpuSet;

use crate::ScxError;

/// What the kernel says of sched_ext.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Its own scheduler has all threads.
    Disabled,
    /// The scheduler of that name has them.
    Enabled {
        /// Its name.
        name: String,
    },
    /// It is just being changed: the kernel's own word.
    Changing(String),
}

/// A kernel, by its `/sys`.
#[derive(Debug, Clone)]
pub struct Kernel {
    sys: PathBuf,
}

impl Kernel {
    /// The one whose `/sys` is there.
    pub fn at(sys: &Path) -> Self {
        Self {
            sys: sys.to_owned(),
        }
    }

    /// Which scheduler it runs.
    ///
    /// # Errors
    /// It has no sched_ext, or what it says cannot be read.
    pub fn state(&self) -> Result<State, ScxError> {
        let state = self.read("state")?;
        Ok(match state.as_str() {
            "disabled" => State::Disabled,
            "enabled" => State::Enabled {
                name: self.read("root/ops")?,
            },
            _ => State::Changing(state),
        })
    }

    /// Whether a scheduler may be started.
    ///
    /// # Errors
    /// Why not: no sched_ext, no BTF, or another scheduler.
    pub fn ready(&self) -> Result<(), ScxError> {
        let state = self.state()?;
        let btf = self.sys.join("kernel/btf/vmlinux");
        if !btf.exists() {
            return Err(ScxError::NoBtf { path: btf });
        }
        match state {
            State::Disabled => Ok(()),
            State::Enabled { name } => Err(ScxError::Taken { name }),
            State::Changing(word) => Err(ScxError::Taken {
                name: format!("({word})"),
            }),
        }
    }

    /// CPUs that may ever be there, whether they are or not.
    pub(crate) fn possible(&self) -> Result<CpuSet, ScxError> {
        self.cpus("possible")
    }

    /// CPUs that run.
    pub(crate) fn online(&self) -> Result<CpuSet, ScxError> {
        self.cpus("online")
    }

    fn cpus(&self, which: &str) -> Result<CpuSet, ScxError> {
        let path = self.sys.join("devices/system/cpu").join(which);
        let read = fs::read_to_string(&path).and_then(|list| {
            let set = list.trim().parse();
            set.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
        });
        read.map_err(|source| ScxError::Read { path, source })
    }

    /// How often CPUs came or went, by which the kernel notices that one did
    /// while a scheduler was being prepared.
    ///
    /// # Errors
    /// It has no sched_ext, or what it says cannot be read.
    pub fn hotplug_seq(&self) -> Result<u64, ScxError> {
        Ok(self.read("hotplug_seq")?.parse().unwrap_or(0))
    }

    fn read(&self, name: &str) -> Result<String, ScxError> {
        let dir = self.sys.join("kernel/sched_ext");
        let path = dir.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(error) if error.kind() == ErrorKind::NotFound && !dir.exists() => {
                Err(ScxError::NoSchedExt { path: dir })
            }
            Err(source) => Err(ScxError::Read { path, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(files: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let kernel = Kernel::at(dir.path());
        (dir, kernel)
    }

    const BTF: (&str, &str) = ("kernel/btf/vmlinux", "");

    #[test]
    fn a_kernel_without_sched_ext_is_said_to_be_one() {
        let (_dir, bare) = kernel(&[BTF]);
        assert!(matches!(bare.ready(), Err(ScxError::NoSchedExt { .. })));
    }

    #[test]
    fn a_kernel_without_btf_is_said_to_be_one() {
        let (_dir, bare) = kernel(&[("kernel/sched_ext/state", "disabled\n")]);
        assert!(matches!(bare.ready(), Err(ScxError::NoBtf { .. })));
    }

    #[test]
    fn another_scheduler_is_named() {
        let taken = [
            BTF,
            ("kernel/sched_ext/state", "enabled\n"),
            ("kernel/sched_ext/root/ops", "bpfland_1.1.4\n"),
        ];
        let (_dir, kernel) = kernel(&taken);
        let error = kernel.ready().unwrap_err().to_string();
        assert!(error.contains("'bpfland_1.1.4'"), "{error}");
    }

    #[test]
    fn a_kernel_on_its_own_is_ready() {
        let (_dir, kernel) = kernel(&[BTF, ("kernel/sched_ext/state", "disabled\n")]);
        assert!(kernel.ready().is_ok());
        assert_eq!(kernel.state().unwrap(), State::Disabled);
    }
}
