// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the attributes of a process that Usher may change, from `/proc` and `ioprio_get(2)`:
//! affinity masks, nice value, scheduling policy, real-time and I/O priority, the nice value of the
//! autogroup, and cgroups. A further function returns whether a process is stopped or frozen.
//!
//! The benchmark compares the attributes before and after Usher managed the program. Limits:
//! threads are read one after another, and a concurrent change may be seen in some threads only. An
//! attribute that cannot be read is empty, `?` or -1. A thread that ends during the reading is left
//! out.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::processes::state_of;

/// Indices of fields of `proc_pid_stat(5)`, counted from the process state, which is the third
/// field.
const NICE: usize = 19 - 3;
const RT_PRIORITY: usize = 40 - 3;
const POLICY: usize = 41 - 3;
/// `IOPRIO_WHO_PROCESS` of `ioprio_get(2)`.
const WHO_PROCESS: libc::c_int = 1;

/// Returns the attributes of a process's threads, one line for each different combination. Empty if
/// the process does not exist.
pub fn managed_attributes(pid: i32) -> BTreeSet<String> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let cgroups = text(&process.join("cgroup")).replace('\n', " ");
    let autogroup = text(&process.join("autogroup"));
    // The name of the autogroup depends on the session and is left out. Usher changes only the nice
    // value of the autogroup.
    let autogroup = autogroup.split_once(" nice ").map_or("", |(_, nice)| nice);
    let tasks = fs::read_dir(process.join("task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let of_task = |task: fs::DirEntry| {
        let tid: i32 = task.file_name().to_str()?.parse().ok()?;
        let own = of_thread(&task.path(), tid)?;
        Some(format!("{own} autogroup={} {cgroups}", autogroup.trim()))
    };
    tasks.filter_map(of_task).collect()
}

/// Returns whether a process is stopped (by a signal or a debugger) or frozen by its cgroup.
pub fn is_held(pid: i32) -> bool {
    matches!(state_of(pid), Some('T' | 't')) || is_frozen(pid)
}

/// Returns whether the cgroup v2 of a process is frozen.
fn is_frozen(pid: i32) -> bool {
    let cgroups = text(Path::new(&format!("/proc/{pid}/cgroup")));
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::/"));
    let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let events = own.map(|own| mounts.map(|mount| mount.join(own).join("cgroup.events")));
    let mut texts = events.iter().flatten().map(|path| text(path));
    texts.any(|text| text.lines().any(|line| line == "frozen 1"))
}

/// Returns the attributes of one thread; `None` if it has ended.
fn of_thread(task: &Path, tid: i32) -> Option<String> {
    let status = text(&task.join("status"));
    let cpus = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let stat = text(&task.join("stat"));
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let field = |at: usize| fields.get(at).copied().unwrap_or("?");
    // SAFETY: `ioprio_get` has two integers as arguments, returns an integer and accesses no memory
    // of this process.
    let io = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, tid) };
    Some(format!(
        "CPUs={} nice={} policy={} rt={} io={io}",
        cpus.trim(),
        field(NICE),
        field(POLICY),
        field(RT_PRIORITY)
    ))
}

fn text(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
