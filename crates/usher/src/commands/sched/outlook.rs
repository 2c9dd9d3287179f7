// SPDX-License-Identifier: GPL-2.0-only
//! What `usher doctor` says of schedulers.

use std::path::Path;

use serde::Serialize;
use usher_scx::Kernel;

use crate::failure;

use super::status::{self, Answer};
use super::{FOR_ROOT, start};

/// Which scheduler runs, and what `usher sched start` would say.
#[derive(Debug, Serialize)]
pub struct Outlook {
    /// As of `usher sched status`; nothing where that cannot be read.
    #[serde(flatten)]
    status: Option<Answer>,
    /// Why `usher sched start` would refuse.
    refused: Option<String>,
    /// What it would warn of.
    warnings: Vec<String>,
}

/// Looks; nothing is changed.
pub fn look(dir: &Path) -> Outlook {
    let is_root = rustix::process::geteuid().is_root();
    let mut outlook = Outlook::of(&super::kernel(), dir, is_root);
    if outlook.refused.is_none() {
        let error = usher_scx::check_bpf_permitted().err();
        outlook.refused = error.map(|error| failure::line(&error.into()));
    }
    outlook
}

impl Outlook {
    fn of(kernel: &Kernel, dir: &Path, is_root: bool) -> Self {
        let (status, refused) = match status::look(kernel, dir) {
            Ok(status) => {
                let refused = start::check(kernel, dir, status.last()).err();
                (Some(status), refused)
            }
            Err(error) => (None, Some(error)),
        };
        let refused = refused.map(|error| failure::line(&error));
        Self {
            status,
            // What root could do nothing about is said before.
            refused: refused.or_else(|| (!is_root).then(|| FOR_ROOT.to_owned())),
            warnings: start::warnings(),
        }
    }

    /// For people.
    pub fn line(&self) -> String {
        let mut lines = self.status.as_ref().map_or(vec![], Answer::lines);
        match &self.refused {
            Some(why) => lines.push(format!("'usher sched start' would refuse: {why}")),
            None => {
                lines.push("'usher sched start' starts ours".to_owned());
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

    use super::super::record::{self, State};
    use super::*;

    const BTF: (&str, &str) = ("btf/vmlinux", "");

    fn outlook(files: &[(&str, &str)], dir: &Path, is_root: bool) -> Outlook {
        let sys = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = sys.path().join("kernel").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut outlook = Outlook::of(&Kernel::at(sys.path()), dir, is_root);
        // That of the machine on which this runs.
        outlook.warnings = vec![];
        outlook
    }

    #[test]
    fn what_start_would_say_is_told() {
        let dir = tempfile::tempdir().unwrap();
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
            (&[idle, BTF], false, own, "run this as root"),
            (
                &taken,
                true,
                "the scheduler 'bpfland' runs",
                "stop it first",
            ),
        ] {
            let line = outlook(files, dir.path(), is_root).line();
            assert!(line.starts_with(begins) && line.contains(says), "{line}");
            assert!(line.contains("would refuse: "), "{line}");
        }
        let mut ready = outlook(&[idle, BTF], dir.path(), true);
        assert_eq!(ready.line(), format!("{own} starts ours"));
        ready.warnings = vec!["it is young".to_owned()];
        assert_eq!(ready.line(), format!("{own} starts ours; it is young"));
    }

    #[test]
    fn one_that_runs_is_told_with_how_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let mut held = record::Held::take(dir.path(), &Settings::default()).unwrap();
        held.write(|record| record.state = State::Running).unwrap();
        let ours = [
            BTF,
            ("sched_ext/state", "enabled\n"),
            ("sched_ext/root/ops", "usher\n"),
        ];
        let outlook = outlook(&ours, dir.path(), true);
        let line = outlook.line();
        assert!(line.starts_with("Usher's scheduler runs: idle"), "{line}");
        assert!(line.ends_with("'usher sched stop' ends it"), "{line}");
        let json = serde_json::to_value(&outlook).unwrap();
        assert_eq!(json["running"], true);
        assert!(json["refused"].is_string() && json["warning"].is_null());
    }

    #[test]
    fn what_cannot_be_read_is_told_too() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sched.json")).unwrap();
        let line = outlook(&[], dir.path(), true).line();
        assert!(
            line.starts_with("'usher sched start' would refuse: reading"),
            "{line}"
        );
    }
}
