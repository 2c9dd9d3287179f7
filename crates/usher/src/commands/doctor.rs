// SPDX-License-Identifier: GPL-2.0-only
//! `usher doctor`: reports which features of the kernel and the machine Usher can use, and how it
//! works without the missing ones.
//!
//! The report covers kernel features, the daemon, the way in which launched programs get a cgroup,
//! the sched_ext scheduler, journals of dead daemons and the profile store. The command reads each
//! part once, prints one line per finding, and changes nothing; it succeeds even if features are
//! missing.

use std::fs;
use std::path::Path;

use rustix::fs::Access;
use serde::Serialize;
use usher_act::ActConfig;
use usher_model::ProcessId;
use usher_probe::{Capabilities, Roots};
use usher_report::text as words;
use usher_store::Store;

use crate::api;
use crate::cli::options::{Global, StoreArg};
use crate::client::Daemon;
use crate::commands::sched;
use crate::failure::{self, Outcome};
use crate::output::{self, FAINT, GOOD, LACKING, Output, STRONG};
use crate::runtime;

/// Reports features of the kernel and the machine, and how Usher works without the missing features
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line describes how Usher uses a feature of the kernel or the machine, or what Usher
does without the feature. A missing feature is no error. The command changes nothing.

Examples:
  usher doctor
  usher doctor --json | jq '.kernel.items[] | select(.available | not) | .name'")]
pub struct Args {
    #[command(flatten)]
    store: StoreArg,
}

/// The name of the kernel's file that restricts a cgroup to idle CPU time.
const CPU_IDLE: &str = "cpu.idle";

/// The whole report.
#[derive(Debug, Serialize)]
struct DoctorReport {
    /// Features of the kernel and the machine.
    kernel: Capabilities,
    /// The daemon's state, if one listens.
    daemon: Option<api::State>,
    /// Why the daemon that listens cannot be used.
    foreign_daemon: Option<String>,
    /// How launched programs get a cgroup, according to the daemon; without a daemon, as a command
    /// of this user would place them.
    placing: Option<PlacingReport>,
    /// The scheduler that runs, and whether `usher sched start` would succeed.
    scheduler: sched::SchedDoctorReport,
    /// Journals of dead daemons that are not undone yet.
    stale_journals: Vec<String>,
    /// The profile store.
    store: StoreHealth,
}

#[derive(Debug, Serialize)]
struct PlacingReport {
    placement: String,
    yielding: String,
    reasons: Vec<String>,
}

/// Returns the placement that the daemon reports; without a daemon, detects the placement.
fn placing(daemon: Option<&api::State>, runtime_dir: Option<&Path>) -> Option<PlacingReport> {
    if let Some(state) = daemon {
        let placing = state.placing.clone();
        return Some(PlacingReport {
            placement: placing.placement,
            yielding: placing.yielding,
            reasons: placing.reasons,
        });
    }
    let config = ActConfig::new(runtime::own_dir(runtime_dir));
    let found = usher_act::describe(&config).ok()?;
    Some(PlacingReport {
        placement: found.placement.to_string(),
        yielding: found.yielding.to_string(),
        reasons: found.reasons,
    })
}

#[derive(Debug, Serialize)]
struct StoreHealth {
    path: String,
    /// Number of known programs; `None` if there is no readable store.
    profiles: Option<usize>,
    problem: Option<String>,
}

/// Collects the findings and prints the report.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let runtime_dir = global.runtime_dir.as_deref();
    let daemon = Daemon::find(runtime_dir).and_then(|mut daemon| daemon.status().ok());
    let placing = placing(daemon.as_ref(), runtime_dir);
    let findings = DoctorReport {
        kernel: used(Capabilities::read(&Roots::default()), placing.as_ref()),
        placing,
        foreign_daemon: match daemon {
            Some(_) => None,
            None => Daemon::foreign(runtime_dir),
        },
        daemon,
        scheduler: sched::doctor_report(&runtime::sched_dir(runtime_dir)),
        stale_journals: stale_journals(&runtime::own_dir(runtime_dir), Path::new("/proc")),
        store: store_health(&runtime::store_path(args.store.path.as_deref())),
    };
    out.answer(&findings, || text(&findings, out))?;
    Ok(0)
}

/// Returns the features of the kernel that Usher uses. `cpu.idle` is left out if Usher lowers the
/// CPU share of background work by other means: by `CPUWeight=idle` under systemd, by autogroups
/// for ordinary users.
fn used(mut kernel: Capabilities, placing: Option<&PlacingReport>) -> Capabilities {
    let is_used = placing.is_some_and(|placing| placing.yielding.starts_with(CPU_IDLE));
    kernel.items.retain(|item| item.name != CPU_IDLE || is_used);
    kernel
}

/// Returns the instances (`PID-START`) with a dead process.
fn stale_journals(runtime_dir: &Path, proc_root: &Path) -> Vec<String> {
    let dir = runtime_dir.join("instances");
    let names = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut stale: Vec<String> = names
        .filter(|name| owner(name).is_some_and(|owner| !lives(proc_root, owner)))
        .collect();
    stale.sort();
    stale
}

fn owner(name: &str) -> Option<ProcessId> {
    let mut parts = name.split('-');
    Some(ProcessId {
        pid: parts.next()?.parse().ok()?,
        start_ticks: parts.next()?.parse().ok()?,
    })
}

fn lives(proc_root: &Path, owner: ProcessId) -> bool {
    usher_probe::process_id(proc_root, owner.pid).is_ok_and(|now| now == owner)
}

fn store_health(path: &Path) -> StoreHealth {
    let listed = match path.exists() {
        true => Store::open(path)
            .and_then(|store| store.list())
            .map(|all| Some(all.len()))
            .map_err(|error| failure::line(&error.into())),
        false => match makeable(path) {
            Ok(()) => Ok(None),
            Err(error) => Err(format!(
                "the profile store {} cannot be created: {}; Usher stores no profiles",
                path.display(),
                failure::line(&error.into())
            )),
        },
    };
    let (profiles, problem) = match listed {
        Ok(profiles) => (profiles, None),
        Err(problem) => (None, Some(problem)),
    };
    StoreHealth {
        path: path.display().to_string(),
        profiles,
        problem,
    }
}

/// Checks whether a file could be created at this path, including missing directories above it.
fn makeable(path: &Path) -> std::io::Result<()> {
    let path = std::path::absolute(path)?;
    let there = path
        .ancestors()
        .skip(1)
        .find(|dir| dir.symlink_metadata().is_ok());
    let there = there.unwrap_or(Path::new("/"));
    if !there.metadata()?.is_dir() {
        return Err(std::io::ErrorKind::NotADirectory.into());
    }
    Ok(rustix::fs::access(
        there,
        Access::WRITE_OK | Access::EXEC_OK,
    )?)
}

fn text(findings: &DoctorReport, out: Output) -> String {
    let kernel = &findings.kernel;
    let mut text = format!(
        "{}\n\n",
        out.paint(STRONG, &format!("Linux {}", kernel.kernel))
    );
    for item in &kernel.items {
        let mark = match item.available {
            true => out.paint(GOOD, "✓"),
            false => out.paint(LACKING, "–"),
        };
        let found = out.paint(FAINT, &item.found);
        text.push_str(&output::entry(&mark, 18, item.name, &found, out.width()));
        text.push_str(&output::entry(" ", 18, "", item.consequence, out.width()));
    }
    text.push('\n');
    for (name, answer) in service_lines(findings) {
        text.push_str(&output::entry(" ", 18, name, &answer, out.width()));
    }
    text
}

fn service_lines(findings: &DoctorReport) -> Vec<(&'static str, String)> {
    let daemon = match &findings.daemon {
        Some(state) => format!(
            "process {}, policy {}, manages {}, assigns CPUs by {}",
            state.pid,
            state.policy,
            words::count(state.programs.len(), "program"),
            state.acting
        ),
        None => findings.foreign_daemon.clone().unwrap_or_else(|| {
            "no daemon runs, so 'usher run' runs programs unmanaged; 'usher daemon' starts a daemon"
                .to_owned()
        }),
    };
    let mut lines = vec![("daemon", daemon)];
    if let Some(state) = &findings.daemon {
        lines.push(match state.keeper_pid {
            Some(pid) => ("keeper", format!("process {pid}")),
            None => (
                "keeper",
                "no keeper runs: if the daemon is killed, its changes are undone only by the \
                 next daemon"
                    .to_owned(),
            ),
        });
        lines.extend(
            state
                .warnings
                .iter()
                .map(|warning| ("warning", warning.clone())),
        );
    }
    if let Some(placing) = &findings.placing {
        lines.push(("launched", placing.placement.clone()));
        lines.push((
            "background",
            format!("yields the CPU to other sessions by {}", placing.yielding),
        ));
        let reasons = placing.reasons.iter();
        lines.extend(reasons.map(|reason| ("", reason.clone())));
    }
    lines.push(("scheduler", findings.scheduler.line()));
    lines.push((
        "stale journals",
        match findings.stale_journals.len() {
            0 => "none".to_owned(),
            // While a daemon runs, launched programs register with the daemon, and the launcher
            // does not undo journals of dead daemons.
            n if findings.daemon.is_some() => {
                format!("{n}; the next 'usher daemon' undoes the changes of these dead daemons")
            }
            n => format!(
                "{n}; the next 'usher run' or 'usher daemon' undoes the changes of these dead \
                 daemons"
            ),
        },
    ));
    lines.push(("profile store", store_line(&findings.store)));
    lines
}

fn store_line(store: &StoreHealth) -> String {
    match (&store.problem, store.profiles) {
        (Some(problem), _) => problem.clone(),
        (None, Some(n)) => format!(
            "{} (profiles of {})",
            store.path,
            words::count(n, "program")
        ),
        (None, None) => format!(
            "{} (does not exist yet: the first run creates it)",
            store.path
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_idle_is_listed_where_background_work_yields_by_it() {
        let listed = |yielding: &str| {
            let placing = PlacingReport {
                placement: String::new(),
                yielding: yielding.to_owned(),
                reasons: Vec::new(),
            };
            let kernel = used(Capabilities::read(&Roots::default()), Some(&placing));
            kernel.get(CPU_IDLE).is_some()
        };
        assert!(listed(&usher_act::YieldMethod::CpuV1.to_string()));
        assert!(listed(&usher_act::YieldMethod::CpuV2.to_string()));
        assert!(!listed(&usher_act::YieldMethod::CpuWeight.to_string()));
        assert!(!listed(&usher_act::YieldMethod::Autogroup.to_string()));
    }

    #[test]
    fn a_journal_is_stale_when_its_process_is_not_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let own = usher_probe::process_id(Path::new("/proc"), std::process::id() as i32).unwrap();
        let alive = format!("{}-{}", own.pid, own.start_ticks);
        let reused = format!("{}-{}-1", own.pid, own.start_ticks + 1);
        for name in [&alive, &reused, &"notes".to_owned()] {
            fs::create_dir_all(dir.path().join("instances").join(name)).unwrap();
        }
        assert_eq!(stale_journals(dir.path(), Path::new("/proc")), [reused]);
        assert!(stale_journals(Path::new("/nowhere"), Path::new("/proc")).is_empty());
    }
}
