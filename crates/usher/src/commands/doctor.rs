// SPDX-License-Identifier: GPL-2.0-only
//! `usher doctor`: reports which features of the kernel and the machine Usher can use, and how it
//! works without the missing ones.
//!
//! The report covers kernel features, the daemons, the way in which launched programs get a cgroup,
//! the sched_ext scheduler, journals of dead daemons and the profile store. The command determines
//! each part once and prints one line per finding. The last lines are a conclusion from these
//! findings ([`conclusion`]).
//!
//! - Without `--calibrate`, the command changes no program and no setting. Opening an existing
//!   profile store migrates a store of an older version of Usher.
//! - With `--calibrate`, the command first measures and stores the errors of the sources of progress
//!   ([`calibration`]). On a busy machine, it waits up to 60 s by default, and then fails.
//! - The exit status is 0 even if features are missing. A part that cannot be read, or a daemon
//!   that does not answer, is reported as a finding.
//! - Such a daemon delays the command by the time limit of `client`, 10 s for each read and write.

mod calibration;
mod conclusion;
mod daemons;

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use usher_act::{ActConfig, StaleJournal};
use usher_model::Topology;
use usher_probe::{Capabilities, Roots};
use usher_report::text as words;
use usher_store::{Store, StoreError};

use self::calibration::{CalibrateArgs, CalibrationReport};
use self::conclusion::{Conclusion, MachineFacts, conclude};
use self::daemons::{DaemonFindings, PlacingReport};
use crate::cli::options::{Global, StoreArg};
use crate::commands::sched;
use crate::failure::{self, Outcome};
use crate::machine;
use crate::output::{self, FAINT, GOOD, LACKING, Output, STRONG};
use crate::runtime;

/// Reports features of the kernel and the machine, and how Usher works without the missing features
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line describes how Usher uses a feature of the kernel or the machine, or what Usher
does without the feature. A missing feature is no error. Without --calibrate, the
command changes nothing.
The conclusion states which programs can gain from Usher on this machine, and what would
permit more.

With --calibrate, the command runs short programs on different numbers of cores, and
compares each source of progress with the work that the programs count themselves. Usher
plans only by sources with an error of at most 10 %. On a busy machine, the command waits
up to 60 s by default, and then ends with an error.

Examples:
  usher doctor
  usher doctor --calibrate
  usher doctor --json | jq '.kernel.items[] | select(.available | not) | .name'")]
pub struct Args {
    #[command(flatten)]
    store: StoreArg,
    #[command(flatten)]
    calibration: CalibrateArgs,
}

/// The name of the kernel's file that restricts a cgroup to idle CPU time.
const CPU_IDLE: &str = "cpu.idle";

/// The whole report.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DoctorReport {
    /// Features of the kernel and the machine.
    kernel: Capabilities,
    /// The daemons that listen for this user.
    #[serde(flatten)]
    daemons: DaemonFindings,
    /// The scheduler that runs, and whether `usher sched start` would succeed.
    scheduler: sched::SchedDoctorReport,
    /// Journals of dead daemons that are not undone yet.
    stale_journals: Vec<JournalReport>,
    /// The profile store.
    store: StoreHealth,
    /// The errors of the sources of progress on this kind of machine; `None` if the machine is not
    /// calibrated.
    calibration: Option<CalibrationReport>,
    /// What to expect on this machine; `None` if its topology cannot be read.
    conclusion: Option<Conclusion>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct StoreHealth {
    /// The file of the store.
    path: String,
    /// Number of profiles; `None` if there is no readable store.
    profiles: Option<usize>,
    /// Why the store cannot be used, or can only be read; `None` if it can be written.
    problem: Option<String>,
}

/// Collects the findings and prints the report.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    args.calibration.check()?;
    let store_path = runtime::store_path(args.store.path.as_deref());
    let unstored = match args.calibration.calibrate {
        true => calibration::measure_and_store(&args.calibration, global, &store_path)?,
        false => None,
    };
    let runtime_dir = global.runtime_dir.as_deref();
    let daemons = DaemonFindings::query(runtime_dir);
    let kernel = used(Capabilities::read(&Roots::default()), daemons.placing());
    let store = store_health(&store_path);
    let topology = machine::usable_machine().ok();
    let facts = topology.as_ref();
    let facts = facts.map(|topology| machine_facts(topology, &kernel, &store));
    let findings = DoctorReport {
        calibration: unstored.or_else(|| calibration::stored(&store_path, topology.as_ref())),
        conclusion: facts.map(|facts| conclude(&facts)),
        kernel,
        daemons,
        scheduler: sched::doctor_report(&runtime::sched_dir(runtime_dir)),
        stale_journals: stale_journals(&runtime::own_dir(runtime_dir)),
        store,
    };
    out.answer(&findings, || text(&findings, out))?;
    Ok(0)
}

/// Collects the facts for the conclusion.
fn machine_facts(topology: &Topology, kernel: &Capabilities, store: &StoreHealth) -> MachineFacts {
    let has = |name: &str| kernel.get(name).is_some_and(|item| item.available);
    MachineFacts {
        llc_domains: topology.domains.len(),
        cpus: topology.cpus.len(),
        pmu: has("pmu"),
        profiles: store.profiles.unwrap_or(0),
        sched_ext: has("sched_ext"),
        bpf: has("bpf"),
        cgroups: has("cgroup-v2"),
    }
}

/// Returns the features of the kernel that Usher uses. `cpu.idle` is left out if Usher lowers the
/// CPU share of background work by other means: by `CPUWeight=idle` under systemd, by autogroups
/// for ordinary users.
fn used(mut kernel: Capabilities, placing: Option<&PlacingReport>) -> Capabilities {
    let is_used = placing.is_some_and(|placing| placing.yielding.starts_with(CPU_IDLE));
    kernel.items.retain(|item| item.name != CPU_IDLE || is_used);
    kernel
}

/// The journal of a dead daemon.
#[derive(Debug, Serialize, JsonSchema)]
struct JournalReport {
    /// Name of the instance, `PID-START`.
    instance: String,
    /// Why the next start does not undo it; `None` if it does.
    refusal: Option<String>,
    /// What cannot be undone of it.
    ignored: Vec<String>,
}

fn stale_journals(runtime_dir: &Path) -> Vec<JournalReport> {
    let found = usher_act::stale_journals(&ActConfig::new(runtime_dir));
    let report = |one: &StaleJournal| JournalReport {
        instance: one
            .dir
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        refusal: one.refusal.as_ref().map(ToString::to_string),
        ignored: one.ignored.iter().map(ToString::to_string).collect(),
    };
    found.iter().map(report).collect()
}

fn store_health(path: &Path) -> StoreHealth {
    let (profiles, error) = match stored_profiles(path) {
        Ok(Some((profiles, unwritable))) => (Some(profiles), unwritable),
        Ok(None) => (None, None),
        Err(error) => (None, Some(error)),
    };
    let problem = error.map(|error| failure::line(&error.into()));
    StoreHealth {
        path: path.display().to_string(),
        profiles,
        problem,
    }
}

/// Returns the number of profiles, and why the store cannot be written; `None` if the store does not
/// exist yet.
fn stored_profiles(path: &Path) -> Result<Option<(usize, Option<StoreError>)>, StoreError> {
    let Some(readable) = Store::open_if_present(path)? else {
        return Ok(None);
    };
    Ok(Some((readable.store.list()?.len(), readable.unwritable)))
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
    if let Some(conclusion) = &findings.conclusion {
        let expect = out.paint(STRONG, &conclusion.expect);
        text.push('\n');
        text.push_str(&output::entry(" ", 18, "conclusion", &expect, out.width()));
        for remedy in &conclusion.remedies {
            text.push_str(&output::entry(" ", 18, "for more", remedy, out.width()));
        }
    }
    text
}

fn service_lines(findings: &DoctorReport) -> Vec<(&'static str, String)> {
    let mut lines = findings.daemons.lines();
    lines.push(("scheduler", findings.scheduler.line()));
    lines.extend(journal_lines(
        &findings.stale_journals,
        findings.daemons.has_daemon(),
    ));
    lines.push(("profile store", store_line(&findings.store)));
    let calibration = findings.calibration.as_ref();
    let none = || {
        vec![
            "none: Usher uses built-in confidences in the sources of progress; 'usher doctor \
             --calibrate' measures their errors in half a minute"
                .to_owned(),
        ]
    };
    let texts = calibration.map_or_else(none, CalibrationReport::lines);
    let labels = std::iter::once("calibration").chain(std::iter::repeat(""));
    lines.extend(labels.zip(texts));
    lines
}

/// Describes the journals that the next start undoes, then those that it refuses and what it cannot
/// undo of the others.
fn journal_lines(journals: &[JournalReport], has_daemon: bool) -> Vec<(&'static str, String)> {
    let refused = journals.iter().filter_map(|one| one.refusal.clone());
    let refused: Vec<String> = refused.collect();
    let undone = match journals.len() - refused.len() {
        0 => None,
        // A program that starts while a daemon runs belongs to the daemon.
        n if has_daemon => Some(format!(
            "{n}; the next 'usher daemon' undoes the changes of these dead daemons"
        )),
        n => Some(format!(
            "{n}; the next 'usher run' or 'usher daemon' undoes the changes of these dead daemons"
        )),
    };
    let none = journals.is_empty().then(|| "none".to_owned());
    let counts = undone.or(none).map(|text| ("stale journals", text));
    let refused = refused.into_iter().map(|text| ("refused journal", text));
    let ignored = journals.iter().flat_map(|one| one.ignored.iter().cloned());
    let ignored = ignored.map(|text| ("damaged journal", text));
    counts.into_iter().chain(refused).chain(ignored).collect()
}

fn store_line(store: &StoreHealth) -> String {
    match (&store.problem, store.profiles) {
        (Some(problem), Some(n)) => {
            format!("{problem} ({})", words::count(n, "profile"))
        }
        (Some(problem), None) => problem.clone(),
        (None, Some(n)) => format!("{} ({})", store.path, words::count(n, "profile")),
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
    fn refused_journals_are_not_counted_as_undone() {
        let journal = |refusal: Option<&str>, ignored: &[&str]| JournalReport {
            instance: "1-2".to_owned(),
            refusal: refusal.map(str::to_owned),
            ignored: ignored.iter().copied().map(str::to_owned).collect(),
        };
        let none = ("stale journals", "none".to_owned());
        assert_eq!(journal_lines(&[], false), [none]);
        let refused = || ("refused journal", "format 9".to_owned());
        let newer = journal(Some("format 9"), &[]);
        assert_eq!(journal_lines(&[newer], false), [refused()]);
        let both = [journal(Some("format 9"), &[]), journal(None, &["line 2"])];
        let lines = journal_lines(&both, true);
        assert!(
            lines[0].1.starts_with("1; the next 'usher daemon'"),
            "{lines:?}"
        );
        assert_eq!(
            lines[1..],
            [refused(), ("damaged journal", "line 2".to_owned())]
        );
    }
}
