// SPDX-License-Identifier: GPL-2.0-only
//! Decides which running processes may be attached because a pattern matches them, by a rule with
//! `attach = true` or by `usher attach --match`. A pattern may match more than its author intended,
//! up to every process of the machine. The following processes are therefore never attached:
//!
//! 1. init (pid 1) of the machine or of a container, and kernel threads;
//! 2. processes of Usher (`own_process`), this process and its ancestors;
//! 3. processes of other users, and processes with several user ids (setuid programs);
//! 4. session managers, because all programs of a session would become one program: programs with
//!    a name in [`MANAGERS`], and processes with a child that leads a session, such as terminal
//!    emulators, container runtimes and user managers;
//! 5. login shells: session leaders with a controlling terminal.
//!
//! Of the remaining processes, only the roots are attached: a process with a matching ancestor
//! belongs to the program of the ancestor.
//!
//! A listing reads one file per process of the machine, and two more per candidate.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use usher_model::ProcStat;
use usher_probe::ProcessFacts;

use crate::daemon::own_process;

/// Names of programs that start the programs of sessions or of the system. The kernel cuts a name
/// to 15 bytes.
pub const MANAGERS: [&str; 36] = [
    "systemd",
    "(sd-pam)",
    "init",
    "runsvdir",
    "s6-svscan",
    "supervisord",
    "sshd",
    "sshd-session",
    "login",
    "agetty",
    "getty",
    "su",
    "sudo",
    "runuser",
    "cron",
    "crond",
    "atd",
    "dbus-daemon",
    "dbus-broker",
    "dbus-broker-launch",
    "tmux: server",
    "screen",
    "Xorg",
    "Xwayland",
    "gnome-session-binary",
    "gnome-shell",
    "gdm3",
    "sddm",
    "lightdm",
    "kwin_wayland",
    "plasmashell",
    "sway",
    "dockerd",
    "containerd",
    "containerd-shim",
    "conmon",
];

/// The kernel's limit of the name of a process, without the final NUL.
const NAME_BYTES_MAX: usize = 15;
/// Beginning of the names of systemd's services, such as `systemd-logind`.
const SYSTEMD: &str = "systemd-";

/// The processes of the machine at one moment.
pub struct Candidates {
    proc_root: PathBuf,
    table: BTreeMap<i32, ProcStat>,
    /// This process and its ancestors.
    own: BTreeSet<i32>,
    /// Processes with a child that leads a session.
    managers: BTreeSet<i32>,
}

impl Candidates {
    /// Reads the table of processes.
    pub fn read(proc_root: &Path) -> Self {
        let stat = |pid: i32| {
            let bytes = std::fs::read(proc_root.join(pid.to_string()).join("stat")).ok()?;
            ProcStat::parse(&String::from_utf8_lossy(&bytes))
        };
        let pids = pids(proc_root).into_iter();
        let table = pids.filter_map(|pid| Some((pid, stat(pid)?)));
        let own = rustix::process::getpid().as_raw_nonzero().get();
        Self::new(proc_root, table.collect(), own)
    }

    fn new(proc_root: &Path, table: BTreeMap<i32, ProcStat>, own: i32) -> Self {
        let leaders = table.values().filter(|one| one.pid == one.session);
        let managers = leaders.map(|one| one.parent).filter(|&pid| pid > 1);
        Self {
            proc_root: proc_root.to_owned(),
            own: ancestors(&table, own).collect(),
            managers: managers.collect(),
            table,
        }
    }

    /// Returns the pids of all processes.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.table.keys().copied()
    }

    /// Returns the user of a process that the user `requester` may attach because of a pattern. Root
    /// may attach the processes of all users.
    ///
    /// # Errors
    /// Why the process is excluded.
    pub fn check(&self, pid: i32, requester: u32) -> Result<u32, &'static str> {
        let Some(stat) = self.table.get(&pid) else {
            return Err("it has ended");
        };
        if self.own.contains(&pid) {
            return Err("it is this process of Usher, or an ancestor of it");
        }
        if is_manager(&stat.name) || self.managers.contains(&pid) {
            return Err("it manages sessions");
        }
        if stat.pid == stat.session && stat.terminal != 0 {
            return Err("it leads the session of a terminal");
        }
        let Ok(facts) = ProcessFacts::read(&self.proc_root, pid) else {
            return Err("it has ended");
        };
        if facts.has_ended {
            return Err("it has ended");
        }
        if facts.is_kernel_thread || facts.numbers.last() == Some(&1) || pid == 1 {
            return Err("it is init or a kernel thread");
        }
        let uid = facts.uids[0];
        if facts.uids != [uid; 4] || ![0, uid].contains(&requester) {
            return Err("it belongs to another user");
        }
        if own_process::check(pid).is_err() {
            return Err("it is a process of Usher");
        }
        Ok(uid)
    }

    /// Returns the processes that have no ancestor among them.
    pub fn roots(&self, matching: &BTreeSet<i32>) -> Vec<i32> {
        let is_root = |pid: &&i32| {
            let above = ancestors(&self.table, **pid).skip(1);
            !above.into_iter().any(|pid| matching.contains(&pid))
        };
        matching.iter().filter(is_root).copied().collect()
    }

    /// Returns a process and its ancestors.
    pub fn ancestors(&self, pid: i32) -> impl Iterator<Item = i32> {
        ancestors(&self.table, pid)
    }

    /// Returns the name of a process.
    pub fn name(&self, pid: i32) -> &str {
        self.table.get(&pid).map_or("", |stat| &stat.name)
    }
}

/// Returns the pids in a procfs, ascending.
pub fn pids(proc_root: &Path) -> BTreeSet<i32> {
    let entries = std::fs::read_dir(proc_root).into_iter().flatten();
    let pid = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.parse::<i32>().ok()
    };
    entries.filter_map(pid).filter(|&pid| pid > 0).collect()
}

/// Returns a process and its ancestors. A table that changed while it was read may contain a cycle,
/// so the number of steps is limited to the size of the table.
fn ancestors(table: &BTreeMap<i32, ProcStat>, pid: i32) -> impl Iterator<Item = i32> {
    let parent = |&pid: &i32| table.get(&pid).map(|one| one.parent).filter(|&pid| pid > 0);
    std::iter::successors(Some(pid), parent).take(table.len() + 1)
}

fn is_manager(name: &str) -> bool {
    let is_listed = |listed: &str| {
        let end = listed.len().min(NAME_BYTES_MAX);
        listed.get(..end) == Some(name)
    };
    MANAGERS.iter().any(|listed| is_listed(listed)) || name.starts_with(SYSTEMD)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a table from lines `PID PARENT SESSION TERMINAL NAME`, with this user's processes.
    fn candidates(dir: &Path, lines: &[&str], own: i32) -> Candidates {
        let uid = rustix::process::geteuid().as_raw();
        let mut table = BTreeMap::new();
        for line in lines {
            let words: Vec<&str> = line.splitn(5, ' ').collect();
            let [pid, parent, session, terminal, name] = words[..] else {
                panic!("{line}");
            };
            let kernel = if name.starts_with('[') {
                0x0020_0000
            } else {
                0
            };
            let stat = format!(
                "{pid} ({name}) S {parent} {pid} {session} {terminal} -1 {kernel} 0 0 0 0 1 1 0 0 \
                 20 0 1 0 5 0 0"
            );
            let of = dir.join(pid);
            std::fs::create_dir(&of).unwrap();
            std::fs::write(of.join("stat"), &stat).unwrap();
            let effective = if name == "passwd" { uid + 1 } else { uid };
            let status = format!(
                "Name:\t{name}\nUid:\t{uid}\t{effective}\t{uid}\t{uid}\nGid:\t0\t0\t0\t0\n\
                 Groups:\t0\nNSpid:\t{pid}\nCpus_allowed_list:\t0\n"
            );
            std::fs::write(of.join("status"), status).unwrap();
            table.insert(pid.parse().unwrap(), ProcStat::parse(&stat).unwrap());
        }
        Candidates::new(dir, table, own)
    }

    #[test]
    fn a_pattern_that_matches_everything_attaches_only_programs() {
        let dir = tempfile::tempdir().unwrap();
        // No process of this machine has these pids.
        let lines = [
            "1 0 1 0 tini",
            "2 0 0 0 [kthreadd]",
            "5000003 1 5000003 0 sshd",
            "5000004 5000003 5000004 0 sshd-session",
            "5000005 5000004 5000005 34816 bash",
            "5000006 5000005 5000005 34816 make",
            "5000007 5000006 5000005 34816 cc1",
            "5000008 1 5000008 0 systemd",
            "5000009 5000008 5000009 0 terminal",
            "5000010 5000009 5000010 34817 zsh",
            "5000011 5000010 5000010 34817 usher",
            "5000012 1 5000012 0 nginx",
            "5000013 1 5000013 0 systemd-logind",
            "5000014 5000005 5000005 34816 passwd",
            "5000015 5000008 5000015 0 gnome-session-b",
        ];
        let all = candidates(dir.path(), &lines, 5_000_011);
        let own = rustix::process::geteuid().as_raw();
        let may = all.pids().filter(|&pid| all.check(pid, own).is_ok());
        let may: BTreeSet<i32> = may.collect();
        assert_eq!(may, BTreeSet::from([5_000_006, 5_000_007, 5_000_012]));
        assert_eq!(all.roots(&may), [5_000_006, 5_000_012]);
        if own != 0 {
            return;
        }
        assert_eq!(
            all.check(5_000_006, 1000),
            Err("it belongs to another user")
        );
    }

    #[test]
    fn the_process_itself_and_its_ancestors_are_excluded() {
        let candidates = Candidates::read(Path::new("/proc"));
        let own = std::process::id() as i32;
        for pid in [own, std::os::unix::process::parent_id() as i32] {
            assert!(candidates.check(pid, 0).is_err());
        }
        assert!(candidates.check(1, 0).is_err());
        assert!(candidates.check(i32::MAX, 0).is_err());
    }
}
