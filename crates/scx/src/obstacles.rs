// SPDX-License-Identifier: GPL-2.0-only
//! Conditions of a host under which the scheduler must not start, read from `/proc`:
//!
//! - the process that holds sched_ext with another scheduler, for the error message. The process is
//!   recognised by its name: the schedulers of the scx project are `scx_NAME`, and the service that
//!   starts them is `scx_loader`;
//! - the `cpu` controller of cgroup v1. `/proc/cgroups` lists each controller with the number of
//!   its v1 hierarchy; 0 means cgroup v2;
//! - a thread with a core-scheduling cookie (`PR_SCHED_CORE`).
//!
//! Core scheduling requires an order of threads from the scheduler (`core_sched_before`). The
//! kernel's documentation of this callback and its code (`scx_prio_less`) give opposite meanings to
//! the result, and no kernel of the lab has `CONFIG_SCHED_CORE`. Without the callback, the kernel
//! uses the order of its last slices, which does not know the scheduler's vtime. Therefore the
//! scheduler does not start while a cookie exists.
//!
//! Each function makes one pass over `/proc`. Processes that end during the pass are skipped. An
//! unreadable `/proc` counts as a host without obstacles.

use std::fs;
use std::path::Path;

use rustix::io::Errno;

/// Name of the service that starts schedulers of the scx project.
const LOADER: &str = "scx_loader";
/// Prefix of the names of schedulers of the scx project.
const SCHEDULERS: &str = "scx_";

/// The process that holds a scheduler, as far as its name shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SchedulerHolder {
    /// Pid and name of the process that has loaded the scheduler.
    pub scheduler: Option<(i32, String)>,
    /// Pid of the service scx_loader.
    pub loader: Option<i32>,
}

impl SchedulerHolder {
    /// Returns the process that holds the scheduler with the name `loaded`, and the service. The
    /// kernel's name of a scheduler of the scx project begins with that of its process, without
    /// `scx_`.
    pub(crate) fn find(proc: &Path, loaded: &str) -> Self {
        let mut holder = Self::default();
        for pid in numbers(proc) {
            let name = read(&proc.join(pid.to_string()), "comm");
            if name == LOADER {
                holder.loader.get_or_insert(pid);
            } else if is_name_of(&name, loaded) {
                holder.scheduler.get_or_insert((pid, name));
            }
        }
        holder
    }

    /// Names the processes, for the middle of a sentence.
    pub(crate) fn described(&self) -> String {
        let scheduler = self.scheduler.as_ref();
        let scheduler = scheduler.map(|(pid, name)| format!(" by process {pid} ({name})"));
        let loader = self
            .loader
            .map(|pid| format!(" under {LOADER} (process {pid})"));
        scheduler.unwrap_or_default() + &loader.unwrap_or_default()
    }

    /// Returns what the user has to do first.
    pub(crate) fn remedy(&self) -> String {
        match (self.loader, &self.scheduler) {
            (Some(_), _) => {
                "stop it first with 'scxctl stop' or 'systemctl stop scx_loader'".into()
            }
            (None, Some((pid, _))) => format!("stop process {pid} or its service first"),
            (None, None) => "stop that scheduler first".into(),
        }
    }
}

/// Returns whether a process `scx_NAME` is that of the scheduler `NAME` or `NAME_VERSION`.
fn is_name_of(process: &str, loaded: &str) -> bool {
    let name = process.strip_prefix(SCHEDULERS);
    let version = name.and_then(|name| loaded.strip_prefix(name));
    version.is_some_and(|version| version.is_empty() || version.starts_with('_'))
}

/// Returns the number of the cgroup v1 hierarchy that has the `cpu` controller; `None` if cgroup v2
/// has it.
pub(crate) fn cpu_hierarchy_v1(proc: &Path) -> Option<u32> {
    let controllers = read(proc, "cgroups");
    let mut lines = controllers.lines().map(str::split_whitespace);
    let mut cpu = lines.find_map(|mut words| (words.next() == Some("cpu")).then_some(words))?;
    let hierarchy = cpu.next()?.parse().ok()?;
    (hierarchy != 0).then_some(hierarchy)
}

/// A thread with a core-scheduling cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CookieHolder {
    pub(crate) tid: i32,
    pub(crate) name: String,
}

/// Returns the first thread that has a core-scheduling cookie.
pub(crate) fn cookie_holder(proc: &Path) -> Option<CookieHolder> {
    cookie_holder_by(proc, cookie)
}

fn cookie_holder_by(
    proc: &Path,
    cookie: impl Fn(i32) -> Result<u64, Errno>,
) -> Option<CookieHolder> {
    // The kernel has no core scheduling, or the machine has no hardware threads.
    let is_absent = |error: Errno| matches!(error, Errno::INVAL | Errno::NODEV | Errno::NOSYS);
    for pid in numbers(proc) {
        let tasks = proc.join(pid.to_string()).join("task");
        for tid in numbers(&tasks) {
            match cookie(tid) {
                Ok(0) => {}
                Ok(_) => {
                    let name = read(&tasks.join(tid.to_string()), "comm");
                    return Some(CookieHolder { tid, name });
                }
                Err(error) if is_absent(error) => return None,
                // The thread has ended, or may not be examined.
                Err(_) => {}
            }
        }
    }
    None
}

/// Returns the core-scheduling cookie of a thread; 0: the thread has none.
fn cookie(tid: i32) -> Result<u64, Errno> {
    const GET: libc::c_ulong = libc::PR_SCHED_CORE_GET as libc::c_ulong;
    const OF_THREAD: libc::c_ulong = libc::PR_SCHED_CORE_SCOPE_THREAD as libc::c_ulong;
    let mut cookie = 0_u64;
    // SAFETY: with PR_SCHED_CORE_GET, the kernel writes 8 bytes to the address of `cookie`, which
    // is aligned and valid during the call.
    let status = unsafe {
        libc::prctl(
            libc::PR_SCHED_CORE,
            GET,
            libc::c_long::from(tid),
            OF_THREAD,
            &raw mut cookie,
        )
    };
    match status {
        0 => Ok(cookie),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Returns the numbers among the names in a directory, in ascending order.
fn numbers(dir: &Path) -> Vec<i32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    let mut numbers: Vec<i32> = names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

fn read(dir: &Path, file: &str) -> String {
    let bytes = fs::read(dir.join(file)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proc(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn names_the_process_that_holds_a_scheduler() {
        let one = proc(&[
            ("9/comm", "bash\n"),
            ("12/comm", "scx_loader\n"),
            ("39/comm", "scx_stats\n"),
            ("40/comm", "scx_bpfland\n"),
        ]);
        let holder = SchedulerHolder::find(one.path(), "bpfland_1.0.20_x86_64");
        assert_eq!(holder.scheduler, Some((40, "scx_bpfland".to_owned())));
        assert_eq!(
            holder.described(),
            " by process 40 (scx_bpfland) under scx_loader (process 12)"
        );
        assert!(holder.remedy().contains("scxctl stop"));
        let alone = proc(&[("7/comm", "scx_lavd\n")]);
        let holder = SchedulerHolder::find(alone.path(), "lavd_1.1.4");
        assert_eq!(holder.described(), " by process 7 (scx_lavd)");
        assert_eq!(holder.remedy(), "stop process 7 or its service first");
        for other in ["rusty_1.1.4", "lavd2", "lav", "_1.1.4"] {
            let other = SchedulerHolder::find(alone.path(), other);
            assert_eq!(other, SchedulerHolder::default());
        }
        let none = SchedulerHolder::find(Path::new("/nowhere"), "lavd_1.1.4");
        assert_eq!(
            (none.described().as_str(), none.remedy().as_str()),
            ("", "stop that scheduler first")
        );
    }

    #[test]
    fn recognises_the_cpu_controller_of_cgroup_v1() {
        let head = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n";
        for (lines, hierarchy) in [
            ("cpuset\t3\t1\t1\ncpu\t4\t70\t1\n", Some(4)),
            ("cpuset\t0\t1\t1\ncpu\t0\t70\t1\n", None),
            ("cpuset\t0\t1\t1\n", None),
            ("cpu\n", None),
        ] {
            let dir = proc(&[("cgroups", &format!("{head}{lines}"))]);
            assert_eq!(cpu_hierarchy_v1(dir.path()), hierarchy, "{lines}");
        }
        assert_eq!(cpu_hierarchy_v1(Path::new("/nowhere")), None);
    }

    #[test]
    fn finds_a_thread_with_a_core_scheduling_cookie() {
        let dir = proc(&[
            ("7/task/7/comm", "init\n"),
            ("9/task/9/comm", "qemu\n"),
            ("9/task/10/comm", "CPU 0/KVM\n"),
        ]);
        let found = |cookie: &dyn Fn(i32) -> Result<u64, Errno>| {
            cookie_holder_by(dir.path(), cookie).map(|holder| (holder.tid, holder.name))
        };
        assert_eq!(found(&|_| Ok(0)), None);
        let of_ten = |tid| {
            if tid == 10 {
                Ok(0xffff)
            } else {
                Err(Errno::SRCH)
            }
        };
        assert_eq!(found(&of_ten), Some((10, "CPU 0/KVM".to_owned())));
        let absent = |tid| if tid == 7 { Err(Errno::INVAL) } else { Ok(1) };
        assert_eq!(found(&absent), None);
    }

    #[test]
    fn this_process_has_no_cookie_or_the_kernel_has_none() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let own = cookie(tid);
        assert!(
            matches!(own, Ok(0) | Err(Errno::INVAL | Errno::NODEV | Errno::NOSYS)),
            "{own:?}"
        );
    }
}
