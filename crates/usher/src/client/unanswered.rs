// SPDX-License-Identifier: GPL-2.0-only
//! Explains why a process that listens on a socket of Usher's does not answer: by the state of the
//! process in `/proc`, with the command that remedies it.
//!
//! 1. Read the state of the process: ended, stopped by a signal, or stopped by a debugger.
//! 2. Otherwise read the process's cgroup of version 2, and whether this cgroup is frozen.
//! 3. Otherwise the process waits for a device (state D), or is busy.
//!
//! An explanation reads at most five small files and waits for nothing. A process without a
//! readable state counts as ended, a cgroup that cannot be read as not frozen. The state may have
//! changed since the missing answer.

use std::fs;
use std::path::Path;
use std::time::Duration;

use usher_host::text;

/// A process that listens on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListeningProcess {
    /// Pid of the process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
}

/// What prevents a process from answering.
#[derive(Debug, PartialEq, Eq)]
enum Obstacle {
    /// The process has ended.
    Ended,
    /// A signal has stopped the process.
    Stopped,
    /// A debugger has stopped the process.
    Traced {
        /// Pid of the debugger.
        by: String,
    },
    /// The cgroup of the process is frozen.
    Frozen {
        /// Directory of the frozen cgroup.
        cgroup: String,
    },
    /// The process waits for a device or a file system.
    Device,
    /// None of the above.
    Busy,
}

impl ListeningProcess {
    /// Describes that the process did not answer within that time: the reason and the remedy.
    /// `name` is the process in the text, such as "the daemon".
    pub fn unanswered(self, name: &str, within: Duration) -> String {
        let within = text::seconds(within.as_secs_f64());
        format!(
            "{name} (process {}) did not answer within {within}: {}",
            self.pid,
            self.remedy(&obstacle(Path::new("/proc"), self.pid))
        )
    }

    /// Describes what stops the process, with the remedy; `None` if nothing does.
    pub fn stopped(self) -> Option<String> {
        let obstacle = obstacle(Path::new("/proc"), self.pid);
        match obstacle {
            Obstacle::Stopped | Obstacle::Traced { .. } | Obstacle::Frozen { .. } => {
                Some(self.remedy(&obstacle))
            }
            Obstacle::Ended | Obstacle::Device | Obstacle::Busy => None,
        }
    }

    fn remedy(self, obstacle: &Obstacle) -> String {
        let pid = self.pid;
        let kill = format!(
            "if the process still does not answer, end the process with '{}kill -KILL {pid}': \
             Usher then undoes the changes of the process",
            self.privilege()
        );
        match obstacle {
            Obstacle::Ended => "the process has ended; run the command again".to_owned(),
            Obstacle::Stopped => format!(
                "a signal (SIGSTOP) has stopped the process; continue it with '{}kill -CONT {pid}'",
                self.privilege()
            ),
            Obstacle::Traced { by } => format!(
                "a debugger (process {by}) has stopped the process; continue it there, or end the \
                 debugger"
            ),
            Obstacle::Frozen { cgroup } => format!(
                "the cgroup of the process is frozen; thaw the cgroup by writing 0 to \
                 {cgroup}/cgroup.freeze as root"
            ),
            Obstacle::Device => {
                format!("the process waits for a disk or another device; {kill}")
            }
            Obstacle::Busy => format!("the process is not stopped, but busy or hung; {kill}"),
        }
    }

    /// Returns the beginning of a command that may signal the process.
    fn privilege(self) -> &'static str {
        let own = rustix::process::geteuid();
        match own.is_root() || own.as_raw() == self.uid {
            true => "",
            false => "sudo ",
        }
    }
}

fn obstacle(proc_root: &Path, pid: i32) -> Obstacle {
    let dir = proc_root.join(pid.to_string());
    // The name, which comes first, may contain any bytes.
    let stat = fs::read(dir.join("stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    match state {
        None | Some('Z' | 'X' | 'x') => Obstacle::Ended,
        Some('T') => Obstacle::Stopped,
        Some('t') => Obstacle::Traced {
            by: tracer(&dir).unwrap_or_else(|| "unknown".to_owned()),
        },
        Some(state) => match (frozen_cgroup(&dir), state) {
            (Some(cgroup), _) => Obstacle::Frozen { cgroup },
            (None, 'D') => Obstacle::Device,
            (None, _) => Obstacle::Busy,
        },
    }
}

fn tracer(dir: &Path) -> Option<String> {
    let status = fs::read_to_string(dir.join("status")).ok()?;
    let mut lines = status.lines();
    let pid = lines.find_map(|line| line.strip_prefix("TracerPid:"))?;
    Some(pid.trim().to_owned())
}

/// Returns the directory of the process's frozen cgroup (version 2).
fn frozen_cgroup(dir: &Path) -> Option<String> {
    let cgroups = fs::read_to_string(dir.join("cgroup")).ok()?;
    let mut lines = cgroups.lines();
    let path = lines.find_map(|line| line.strip_prefix("0::"))?;
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let dirs = roots.map(|root| format!("{root}{path}"));
    dirs.into_iter().find(|dir| {
        let events = fs::read_to_string(format!("{dir}/cgroup.events"));
        events.is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// The stat file of a process in a state.
    fn state_of(state: char) -> tempfile::TempDir {
        let proc_root = tempfile::tempdir().unwrap();
        let dir = proc_root.path().join("12");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("stat"), format!("12 (a) b) {state} 1 12 12 0\n")).unwrap();
        fs::write(dir.join("status"), "Name:\ta\nTracerPid:\t34\n").unwrap();
        proc_root
    }

    #[test]
    fn the_state_determines_the_obstacle() {
        let found = |state| obstacle(state_of(state).path(), 12);
        assert_eq!(found('T'), Obstacle::Stopped);
        assert_eq!(
            found('t'),
            Obstacle::Traced {
                by: "34".to_owned()
            }
        );
        assert_eq!(found('D'), Obstacle::Device);
        assert_eq!(found('S'), Obstacle::Busy);
        assert_eq!(found('Z'), Obstacle::Ended);
        assert_eq!(obstacle(Path::new("/nowhere"), 12), Obstacle::Ended);
    }

    #[test]
    fn a_stopped_process_gets_the_command_that_continues_it() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = ListeningProcess {
            pid: child.id() as i32,
            uid: rustix::process::geteuid().as_raw(),
        };
        assert_eq!(process.stopped(), None);
        let busy = process.unanswered("the daemon", Duration::from_secs(10));
        let begin = format!(
            "the daemon (process {}) did not answer within 10 s: ",
            process.pid
        );
        let kill = format!("end the process with 'kill -KILL {}'", process.pid);
        assert!(busy.starts_with(&begin) && busy.contains(&kill), "{busy}");
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while process.stopped().is_none() && Instant::now() < end {
            std::thread::yield_now();
        }
        let stopped = process.unanswered("the daemon", Duration::from_secs(10));
        let remedy = format!("continue it with 'kill -CONT {}'", process.pid);
        assert!(stopped.ends_with(&remedy), "{stopped}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
