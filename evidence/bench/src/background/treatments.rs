// SPDX-License-Identifier: MIT OR Apache-2.0
//! The treatments, which are the ways to run background work that the experiments compare: nice,
//! SCHED_IDLE, ionice, cgroups, cpulimit, loadwatch, and the policies of `usher bg`. For each
//! treatment, this module sets up a daemon or a cgroup if needed, and builds the command line that
//! runs a background program.
//!
//! At most one daemon runs. It is ended before a treatment that does not use it. The cgroup remains
//! until the fixture is dropped. A treatment whose set-up fails returns the error, and the cell
//! continues with the other treatments.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::experiments::Task;
use super::rig::keeper::{Keeper, must, script};
use crate::processes::Daemon;

/// A way to run background work.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum BackgroundMethod {
    /// No background: foreground against foreground
    Alone,
    /// nice 19, in a session of its own
    Nice,
    /// nice 19, in the session of the foreground
    NiceSameSession,
    /// SCHED_IDLE
    SchedIdle,
    /// ionice idle, and nice 19
    Ionice,
    /// A cgroup with cpu.idle
    CpuIdle,
    /// cpulimit to 50 % of a CPU
    Cpulimit,
    /// loadwatch: stopped while the load average is high
    Loadwatch,
    /// Exponentially increasing interval of paper 2: doubles the time of each stop
    Eii,
    /// Idle period detection of paper 2: continues the program only when all resources are idle
    Ipd,
    /// Usher's own policy
    Usher,
}

impl BackgroundMethod {
    /// Name of the treatment on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Nice => "nice",
            Self::NiceSameSession => "nice-same-session",
            Self::SchedIdle => "sched-idle",
            Self::Ionice => "ionice",
            Self::CpuIdle => "cpu-idle",
            Self::Cpulimit => "cpulimit",
            Self::Loadwatch => "loadwatch",
            Self::Eii => "eii",
            Self::Ipd => "ipd",
            Self::Usher => "usher",
        }
    }

    /// Name of the treatment on the page.
    pub fn label(self) -> &'static str {
        match self {
            Self::Alone => "alone (A/A)",
            Self::Nice => "nice 19",
            Self::NiceSameSession => "nice 19 in the same session",
            Self::SchedIdle => "SCHED_IDLE",
            Self::Ionice => "ionice idle and nice 19",
            Self::CpuIdle => "cpu.idle",
            Self::Cpulimit => "cpulimit 50 %",
            Self::Loadwatch => "loadwatch",
            Self::Eii => "EII",
            Self::Ipd => "IPD",
            Self::Usher => "Usher",
        }
    }

    /// The program that the treatment needs, and the Debian package that contains the program;
    /// `None` for programs of each Debian installation.
    pub fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Cpulimit => Some(("cpulimit", "cpulimit")),
            Self::Loadwatch => Some(("loadwatch", "loadwatch")),
            _ => None,
        }
    }

    /// Whether the treatment is a policy of `usher bg`.
    pub fn is_usher(self) -> bool {
        matches!(self, Self::Eii | Self::Ipd | Self::Usher)
    }

    /// Whether foreground and background run in different sessions.
    pub fn separates_sessions(self) -> bool {
        self != Self::NiceSameSession
    }

    /// Whether the treatment is a realistic choice for the background task.
    pub fn is_sensible(self, background: Task) -> bool {
        match self {
            Self::Ionice => background.uses_disk(),
            Self::NiceSameSession
            | Self::SchedIdle
            | Self::CpuIdle
            | Self::Cpulimit
            | Self::Loadwatch => background.uses_cpu(),
            _ => true,
        }
    }
}

/// Daemon, cgroup and folder that treatments need while they are measured.
pub struct RegulatorFixture {
    usher: Option<PathBuf>,
    runtime: tempfile::TempDir,
    daemon: Option<Daemon>,
    idle: Option<IdleGroup>,
}

impl RegulatorFixture {
    /// Returns a fixture with the program `usher`.
    pub fn new(usher: Option<PathBuf>) -> Result<Self> {
        Ok(Self {
            usher,
            runtime: tempfile::tempdir()?,
            daemon: None,
            idle: None,
        })
    }

    /// The runtime directory of `usher`.
    pub fn runtime(&self) -> &Path {
        self.runtime.path()
    }

    /// Starts the daemon or creates the cgroup that a treatment needs.
    pub fn prepare(&mut self, treatment: BackgroundMethod) -> Result<()> {
        if treatment == BackgroundMethod::CpuIdle && self.idle.is_none() {
            self.idle = Some(IdleGroup::new()?);
        }
        if !treatment.is_usher() {
            // A running daemon could disturb other treatments.
            self.daemon = None;
        } else if self.daemon.is_none() {
            let usher = self.usher.as_deref().context("no 'usher'")?;
            self.daemon = Some(Daemon::start(usher, self.runtime.path(), &[])?);
        }
        Ok(())
    }

    /// Returns the command line that runs `words` under a treatment. `number` distinguishes several
    /// background programs.
    pub fn wrap(
        &self,
        treatment: BackgroundMethod,
        number: u32,
        command: Vec<String>,
    ) -> Result<Vec<String>> {
        let before = self.before(treatment, number)?;
        let session = treatment.separates_sessions().then(|| "setsid".to_owned());
        Ok(session.into_iter().chain(before).chain(command).collect())
    }

    fn before(&self, treatment: BackgroundMethod, number: u32) -> Result<Vec<String>> {
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect();
        Ok(match treatment {
            BackgroundMethod::Alone => {
                bail!("no background work runs beside a foreground that is measured alone")
            }
            BackgroundMethod::Nice | BackgroundMethod::NiceSameSession => {
                words(&["nice", "-n", "19"])
            }
            BackgroundMethod::SchedIdle => words(&["chrt", "-i", "0"]),
            BackgroundMethod::Ionice => words(&["nice", "-n", "19", "ionice", "-c", "3"]),
            BackgroundMethod::Cpulimit => words(&["cpulimit", "-f", "-m", "-l", "50", "--"]),
            BackgroundMethod::Loadwatch => words(&["loadwatch", "-h", "1.25", "-l", "0.5", "--"]),
            BackgroundMethod::CpuIdle => {
                let group = self
                    .idle
                    .as_ref()
                    .context("this machine has no cgroup with cpu.idle")?;
                let enter = "echo $$ >\"$0\" && exec \"$@\"";
                words(&["sh", "-c", enter, &group.procs()])
            }
            BackgroundMethod::Eii | BackgroundMethod::Ipd | BackgroundMethod::Usher => {
                let usher = self
                    .usher
                    .as_ref()
                    .context("no 'usher'")?
                    .display()
                    .to_string();
                let name = format!("bg{number}");
                words(&[
                    &usher,
                    "bg",
                    "--policy",
                    treatment.name(),
                    "--name",
                    &name,
                    "--",
                ])
            }
        })
    }
}

/// A cgroup with `cpu.idle` set: its processes run only on idle CPUs.
struct IdleGroup {
    dir: PathBuf,
    _keeper: Keeper,
}

impl IdleGroup {
    fn new() -> Result<Self> {
        let name = format!("usher-bench-{}", std::process::id());
        let roots = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup"];
        let has_files = |root: &&&str| Path::new(root).join("cgroup.procs").exists();
        let root = roots
            .iter()
            .find(has_files)
            .context("this machine has no cgroup at /sys/fs/cgroup")?;
        let dir = Path::new(root).join(name);
        let undo = script(
            &[("dir", &dir.display().to_string())],
            "for i in 1 2 3 4 5; do rmdir \"$dir\" && break; sleep 0.2; done",
        );
        let keeper = Keeper::new(&undo)?;
        must(&["mkdir", &dir.display().to_string()])?;
        let file = dir.join("cpu.idle");
        std::fs::write(&file, "1").with_context(|| format!("writing {}", file.display()))?;
        Ok(Self {
            dir,
            _keeper: keeper,
        })
    }

    fn procs(&self) -> String {
        self.dir.join("cgroup.procs").display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(treatment: BackgroundMethod) -> String {
        let regulator = RegulatorFixture::new(Some("/usr/bin/usher".into())).unwrap();
        let command = vec!["work".to_owned(), "--hard".to_owned()];
        regulator.wrap(treatment, 2, command).unwrap().join(" ")
    }

    #[test]
    fn only_nice_same_session_shares_the_session_of_the_foreground() {
        assert_eq!(
            line(BackgroundMethod::Nice),
            "setsid nice -n 19 work --hard"
        );
        assert_eq!(
            line(BackgroundMethod::NiceSameSession),
            "nice -n 19 work --hard"
        );
        assert_eq!(
            line(BackgroundMethod::Eii),
            "setsid /usr/bin/usher bg --policy eii --name bg2 -- work --hard"
        );
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for treatment in BackgroundMethod::value_variants() {
            let value = treatment.to_possible_value().unwrap();
            assert_eq!(value.get_name(), treatment.name());
        }
    }

    #[test]
    fn alone_means_alone() {
        let regulator = RegulatorFixture::new(None).unwrap();
        assert!(regulator.wrap(BackgroundMethod::Alone, 1, vec![]).is_err());
        assert!(regulator.wrap(BackgroundMethod::Usher, 1, vec![]).is_err());
    }
}
