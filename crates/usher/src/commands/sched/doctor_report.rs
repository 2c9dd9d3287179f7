// SPDX-License-Identifier: GPL-2.0-only
//! The part of `usher doctor` about sched_ext: the scheduler that runs, why `usher sched start`
//! would refuse, and the warnings that it would print.
//!
//! The report makes the checks of `usher sched start` in the same order and starts nothing. An
//! error of a check becomes the reason of the refusal; the report itself never fails.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use usher_scx::{Kernel, ScxError};

use crate::daemon::scheduler::{SchedulerState, kernel};
use crate::failure;

use super::distribution;
use super::remote::{FOR_ROOT, Found};
use super::start;
use super::status::{self, StatusAnswer};

/// The scheduler that runs, and whether `usher sched start` would succeed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SchedDoctorReport {
    /// The answer of `usher sched status`; `None` if the status cannot be read.
    #[serde(flatten)]
    status: Option<StatusAnswer>,
    /// Why `usher sched start` would refuse.
    refused: Option<String>,
    /// How to get a kernel with sched_ext, if this kernel has none and the distribution is known.
    advice: Option<&'static str>,
    /// The warnings that `usher sched start` would print.
    warnings: Vec<String>,
}

/// Collects the report; changes nothing.
pub fn doctor_report(dir: &Path) -> SchedDoctorReport {
    let is_root = rustix::process::geteuid().is_root();
    let last = Found::at(dir).map(|found| found.state);
    let mut report = SchedDoctorReport::of(&kernel(), dir, last, is_root);
    if report.refused.is_none() {
        let permitted = usher_scx::check_bpf_permitted();
        let checked = permitted
            .and_then(|()| usher_scx::check_functions())
            .and_then(|()| usher_scx::check_cpu_numbers(&kernel()));
        let error = checked.err();
        report.refused = error.map(|error| failure::line(&error.into()));
    }
    if matches!(kernel().state(), Err(ScxError::NoSchedExt { .. })) {
        report.advice = distribution::advice(Path::new("/"));
    }
    report
}

impl SchedDoctorReport {
    fn of(
        kernel: &Kernel,
        dir: &Path,
        last: anyhow::Result<Option<SchedulerState>>,
        is_root: bool,
    ) -> Self {
        let status = last.and_then(|last| status::read(kernel, dir, last));
        let (status, refused) = match status {
            Ok(status) => {
                let refused = start::check(kernel, dir, status.last()).err();
                (Some(status), refused)
            }
            Err(error) => (None, Some(error)),
        };
        let refused = refused.map(|error| failure::line(&error));
        Self {
            status,
            // A reason that applies also to root precedes the reason that the user is not root.
            refused: refused.or_else(|| (!is_root).then(|| FOR_ROOT.to_owned())),
            advice: None,
            warnings: start::warnings(),
        }
    }

    /// Formats the report as text.
    pub fn line(&self) -> String {
        let mut lines = self.status.as_ref().map_or(vec![], StatusAnswer::lines);
        match &self.refused {
            Some(why) => {
                lines.push(format!("'usher sched start' would fail: {why}"));
                lines.extend(self.advice.map(str::to_owned));
            }
            None => {
                lines.push("'usher sched start' starts Usher's scheduler".to_owned());
                lines.extend_from_slice(&self.warnings);
            }
        }
        lines.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use usher_scx::Settings;

    use super::*;
    use crate::daemon::scheduler::Phase;

    const BTF: (&str, &str) = ("btf/vmlinux", "");

    fn report(
        files: &[(&str, &str)],
        last: anyhow::Result<Option<SchedulerState>>,
        is_root: bool,
    ) -> SchedDoctorReport {
        let sys = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = sys.path().join("kernel").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut report = SchedDoctorReport::of(&Kernel::at(sys.path()), sys.path(), last, is_root);
        // Removes the warnings that depend on the machine on which the test runs.
        report.warnings = vec![];
        report
    }

    #[test]
    fn advice_follows_the_reason_of_the_refusal() {
        let mut without = report(&[], Ok(None), true);
        without.advice = Some("install the newest kernel");
        let line = without.line();
        assert!(line.contains("no sched_ext"), "{line}");
        assert!(line.ends_with("; install the newest kernel"), "{line}");
    }

    #[test]
    fn doctor_reports_what_start_would_refuse() {
        let idle = ("sched_ext/state", "disabled\n");
        let taken = [
            BTF,
            ("sched_ext/state", "enabled\n"),
            ("sched_ext/root/ops", "bpfland\n"),
        ];
        let own = "the kernel's own scheduler runs; 'usher sched start'";
        for (files, is_root, begins, says) in [
            (&[][..], true, own, "no sched_ext"),
            (&[idle], true, own, "no BTF"),
            (&[idle], false, own, "no BTF"),
            (&[idle, BTF], false, own, "run this command as root"),
            (
                &taken,
                true,
                "the scheduler 'bpfland' runs",
                "stop that scheduler first",
            ),
        ] {
            let line = report(files, Ok(None), is_root).line();
            assert!(line.starts_with(begins) && line.contains(says), "{line}");
            assert!(line.contains("would fail: "), "{line}");
        }
        let mut ready = report(&[idle, BTF], Ok(None), true);
        assert_eq!(ready.line(), format!("{own} starts Usher's scheduler"));
        ready.warnings = vec!["it is young".to_owned()];
        assert_eq!(
            ready.line(),
            format!("{own} starts Usher's scheduler; it is young")
        );
    }

    #[test]
    fn reports_a_running_scheduler_with_its_end() {
        let mut last = SchedulerState::starting(&Settings::default());
        last.state = Phase::Running;
        let ours = [
            BTF,
            ("sched_ext/state", "enabled\n"),
            ("sched_ext/root/ops", "usher\n"),
        ];
        let report = report(&ours, Ok(Some(last)), true);
        let line = report.line();
        assert!(
            line.starts_with("Usher's scheduler runs with: preference for idle cores"),
            "{line}"
        );
        assert!(line.ends_with("'usher sched stop' ends it"), "{line}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["running"], true);
        assert!(json["refused"].is_string() && json["warning"].is_null());
    }

    #[test]
    fn reports_unreadable_state() {
        let silent = anyhow::anyhow!("the daemon did not answer");
        let line = report(&[], Err(silent), true).line();
        assert_eq!(
            line,
            "'usher sched start' would fail: the daemon did not answer"
        );
    }
}
