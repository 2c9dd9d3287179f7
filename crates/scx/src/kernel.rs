// SPDX-License-Identifier: GPL-2.0-only
//! Reads the state of sched_ext in the running kernel from `/sys`: whether the kernel has
//! sched_ext, whether a scheduler is loaded, and the scheduler's name. Also reads which CPUs are
//! possible and which are on line. With `/proc` ([`Kernel::of_host`]), the check before a start also
//! finds obstacles of the host ([`mod@crate::obstacles`]).
//!
//! The state and the name are in two files. If the scheduler ends between the two reads, both files
//! are read again, in at most 3 attempts without a pause. After the third attempt, the error of the
//! last read is returned. No other file is read twice.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use usher_model::CpuSet;

use crate::ScxError;
use crate::obstacles::{self, SchedulerHolder};

/// State of sched_ext.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The kernel's own scheduler runs all threads.
    Disabled,
    /// A sched_ext scheduler runs the threads.
    Enabled {
        /// Name of the scheduler.
        name: String,
    },
    /// A scheduler is being loaded or ended. The value is the kernel's word for this state.
    Changing(String),
}

/// A kernel, represented by its `/sys` and, if known, its `/proc`.
#[derive(Debug, Clone)]
pub struct Kernel {
    sys: PathBuf,
    proc: Option<PathBuf>,
}

impl Kernel {
    /// Returns the kernel with `/sys` at this path. Without `/proc`, [`Kernel::ready`] does not
    /// search for obstacles of the host.
    pub fn at(sys: &Path) -> Self {
        Self {
            sys: sys.to_owned(),
            proc: None,
        }
    }

    /// Returns the kernel of this host.
    pub fn of_host() -> Self {
        Self::at(Path::new("/sys")).with_proc(Path::new("/proc"))
    }

    /// Returns the kernel with `/proc` at this path.
    pub fn with_proc(self, proc: &Path) -> Self {
        Self {
            proc: Some(proc.to_owned()),
            ..self
        }
    }

    /// Returns the state of sched_ext.
    ///
    /// # Errors
    /// The kernel has no sched_ext, or its state cannot be read.
    pub fn state(&self) -> Result<State, ScxError> {
        state(|name| self.read(name))
    }

    /// Checks whether a scheduler may be started.
    ///
    /// # Errors
    /// The kernel has no sched_ext or no BTF, another scheduler is loaded, the `cpu` controller is
    /// in cgroup v1, or a thread has a core-scheduling cookie.
    pub fn ready(&self) -> Result<(), ScxError> {
        let state = self.state()?;
        let btf = self.sys.join("kernel/btf/vmlinux");
        if !btf.exists() {
            return Err(ScxError::NoBtf { path: btf });
        }
        let name = match state {
            State::Disabled => return self.without_obstacles(),
            State::Enabled { name } => name,
            State::Changing(word) => format!("({word})"),
        };
        let proc = self.proc.as_deref();
        let holder = proc
            .map(|proc| SchedulerHolder::find(proc, &name))
            .unwrap_or_default();
        Err(ScxError::AlreadyLoaded { name, holder })
    }

    /// Checks the host for conditions under which the scheduler must not start.
    fn without_obstacles(&self) -> Result<(), ScxError> {
        let Some(proc) = &self.proc else {
            return Ok(());
        };
        if let Some(hierarchy) = obstacles::cpu_hierarchy_v1(proc) {
            return Err(ScxError::CgroupV1 { hierarchy });
        }
        match obstacles::cookie_holder(proc) {
            None => Ok(()),
            Some(holder) => Err(ScxError::CoreScheduling {
                tid: holder.tid,
                name: holder.name,
            }),
        }
    }

    /// Returns the possible CPUs, whether they are present or not.
    pub(crate) fn possible(&self) -> Result<CpuSet, ScxError> {
        self.cpus("possible")
    }

    /// Returns the CPUs that are on line.
    pub(crate) fn online(&self) -> Result<CpuSet, ScxError> {
        self.cpus("online")
    }

    /// Returns the isolated CPUs: those of `isolcpus`, of `nohz_full`, and of isolated cpuset
    /// partitions. A file that is missing or has no list of CPUs counts as empty: kernels without
    /// `nohz_full` print `(null)`.
    pub(crate) fn isolated(&self) -> CpuSet {
        let files = [
            "devices/system/cpu/isolated",
            "devices/system/cpu/nohz_full",
            "fs/cgroup/cpuset.cpus.isolated",
        ];
        let lists = files.map(|file| fs::read_to_string(self.sys.join(file)).unwrap_or_default());
        let sets = lists.iter().filter_map(|list| list.trim().parse().ok());
        sets.fold(CpuSet::new(), |all, set| all.or(&set))
    }

    fn cpus(&self, which: &str) -> Result<CpuSet, ScxError> {
        let path = self.sys.join("devices/system/cpu").join(which);
        let read = fs::read_to_string(&path).and_then(|list| {
            let set = list.trim().parse();
            set.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
        });
        read.map_err(|source| ScxError::Read { path, source })
    }

    /// Returns the kernel's number of CPU hotplug events. When a scheduler is attached, the kernel
    /// compares this number with the current number, to detect an event during the preparation.
    ///
    /// # Errors
    /// The kernel has no sched_ext, the file cannot be read, or it contains no number. The value 0
    /// would disable the kernel's comparison.
    pub fn hotplug_seq(&self) -> Result<u64, ScxError> {
        const FILE: &str = "hotplug_seq";
        let text = self.read(FILE)?;
        text.parse().map_err(|error| ScxError::Read {
            path: self.sys.join("kernel/sched_ext").join(FILE),
            source: io::Error::new(ErrorKind::InvalidData, error),
        })
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

/// Upper limit of attempts to read the state and the name. Each failed attempt means that a
/// scheduler has ended in the meantime.
const READS_MAX: u32 = 3;

/// Reads the state of sched_ext. `read` reads a file of sched_ext's folder by name.
fn state(mut read: impl FnMut(&str) -> Result<String, ScxError>) -> Result<State, ScxError> {
    let mut reads_left = READS_MAX;
    loop {
        reads_left -= 1;
        let state = read("state")?;
        match state.as_str() {
            "disabled" => return Ok(State::Disabled),
            "enabled" => {}
            _ => return Ok(State::Changing(state)),
        }
        match read("root/ops") {
            Ok(name) => return Ok(State::Enabled { name }),
            // The scheduler has ended since the state was read: read the state again.
            Err(error) if reads_left > 0 && is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns whether a file does not exist, or was removed while it was read.
fn is_gone(error: &ScxError) -> bool {
    let ScxError::Read { source, .. } = error else {
        return false;
    };
    let removed = Some(rustix::io::Errno::NODEV.raw_os_error());
    source.kind() == ErrorKind::NotFound || source.raw_os_error() == removed
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
    fn reports_kernel_without_sched_ext() {
        let (_dir, bare) = kernel(&[BTF]);
        assert!(matches!(bare.ready(), Err(ScxError::NoSchedExt { .. })));
    }

    #[test]
    fn reports_kernel_without_btf() {
        let (_dir, bare) = kernel(&[("kernel/sched_ext/state", "disabled\n")]);
        assert!(matches!(bare.ready(), Err(ScxError::NoBtf { .. })));
    }

    #[test]
    fn isolated_cpus_come_from_three_files() {
        let (_dir, kernel) = kernel(&[
            ("devices/system/cpu/isolated", "2\n"),
            ("devices/system/cpu/nohz_full", "  (null)\n"),
            ("fs/cgroup/cpuset.cpus.isolated", "4-5\n"),
        ]);
        assert_eq!(kernel.isolated(), "2,4-5".parse().unwrap());
        let (_dir, without) = self::kernel(&[("devices/system/cpu/nohz_full", "1,3\n")]);
        assert_eq!(without.isolated(), "1,3".parse().unwrap());
        let (_dir, bare) = self::kernel(&[("devices/system/cpu/isolated", "\n")]);
        assert!(bare.isolated().is_empty());
    }

    #[test]
    fn error_names_the_loaded_scheduler() {
        let taken = [
            BTF,
            ("kernel/sched_ext/state", "enabled\n"),
            ("kernel/sched_ext/root/ops", "bpfland_1.1.4\n"),
        ];
        let (_dir, kernel) = kernel(&taken);
        let error = kernel.ready().unwrap_err().to_string();
        assert!(error.contains("'bpfland_1.1.4'"), "{error}");
        let (proc, _) = self::kernel(&[("40/comm", "scx_bpfland\n")]);
        let error = kernel.with_proc(proc.path()).ready().unwrap_err();
        let line = "the scheduler 'bpfland_1.1.4' is already loaded by process 40 (scx_bpfland), \
                    and the kernel runs only one sched_ext scheduler at a time: stop process 40 \
                    or its service first";
        assert_eq!(error.to_string(), line);
    }

    #[test]
    fn host_with_cgroup_v1_is_not_ready() {
        let free = [BTF, ("kernel/sched_ext/state", "disabled\n")];
        let (_dir, kernel) = kernel(&free);
        let (proc, _) = self::kernel(&[("cgroups", "cpu\t4\t70\t1\n")]);
        let error = kernel.with_proc(proc.path()).ready().unwrap_err();
        assert!(matches!(error, ScxError::CgroupV1 { hierarchy: 4 }));
        assert!(!error.to_string().contains('\n'));
    }

    #[test]
    fn kernel_without_loaded_scheduler_is_ready() {
        let (_dir, kernel) = kernel(&[BTF, ("kernel/sched_ext/state", "disabled\n")]);
        assert!(kernel.ready().is_ok());
        assert_eq!(kernel.state().unwrap(), State::Disabled);
    }
    #[test]
    fn state_is_read_again_if_the_scheduler_ends_meanwhile() {
        let no = |number: i32| {
            Err(ScxError::Read {
                path: "root/ops".into(),
                source: io::Error::from_raw_os_error(number),
            })
        };
        let state_from = |answers: [(&str, Result<&str, ScxError>); 3]| {
            let mut answers = answers.into_iter();
            let result = state(|name| {
                let (file, answer) = answers.next().unwrap();
                assert_eq!(file, name);
                answer.map(str::to_owned)
            });
            (result, answers.len())
        };
        for (word, is) in [
            ("disabled", State::Disabled),
            ("disabling", State::Changing("disabling".to_owned())),
        ] {
            for number in [libc::ENOENT, libc::ENODEV] {
                let answers = [
                    ("state", Ok("enabled")),
                    ("root/ops", no(number)),
                    ("state", Ok(word)),
                ];
                let (result, left) = state_from(answers);
                assert_eq!((result.unwrap(), left), (is.clone(), 0));
            }
        }
        let refused = [
            ("state", Ok("enabled")),
            ("root/ops", no(libc::EACCES)),
            ("state", Ok("disabled")),
        ];
        let (result, left) = state_from(refused);
        assert!(result.is_err() && left == 1);
    }

    #[test]
    fn rejects_hotplug_count_that_is_no_number() {
        let (_dir, good) = kernel(&[("kernel/sched_ext/hotplug_seq", "12\n")]);
        assert_eq!(good.hotplug_seq().unwrap(), 12);
        for text in ["", "x", "-1", "99999999999999999999"] {
            let (_dir, bad) = kernel(&[("kernel/sched_ext/hotplug_seq", text)]);
            let error = bad.hotplug_seq().unwrap_err().to_string();
            assert!(error.contains("sched_ext/hotplug_seq"), "{text:?}: {error}");
        }
    }

    #[test]
    fn state_fails_if_the_name_never_appears() {
        let (_dir, kernel) = kernel(&[("kernel/sched_ext/state", "enabled\n")]);
        let error = kernel.state().unwrap_err().to_string();
        assert!(error.contains("root/ops"), "{error}");
    }
}
