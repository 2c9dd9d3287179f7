// SPDX-License-Identifier: GPL-2.0-only
//! Rules of the configuration file `usher.toml`: which programs get a seat, run as background work
//! or are never managed, and their weights and names.
//!
//! 1. [`mod@file`] reads and checks the file.
//! 2. A rule matches a program if all its conditions hold: executable, command line, systemd unit,
//!    cgroup, user. Patterns are globs, which match in time linear in the text.
//! 3. The first matching rule of the file determines the options of the program. Options of the
//!    command line take precedence over the rule.
//! 4. [`scan`] finds running processes that match a rule with `attach = true`.
//! 5. [`reload`] replaces the rules while the daemon runs. After an error, the old rules stay in
//!    force.
//!
//! The rules are applied when a program arrives. Programs that are already managed keep their
//! options when the rules change.

pub mod candidates;
pub mod file;
pub mod process;
pub mod reload;
mod scan;
mod tables;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use globset::GlobMatcher;
use usher_host::engine::{AdoptOptions, ProgramReview, ReviewedProcess};
use usher_model::{ProcessId, Regulation};

use super::events;
use process::MatchedProcess;

pub use tables::DaemonSettings;

/// The rules and default values of the configuration file.
#[derive(Debug, Clone, Default)]
pub struct Ruleset {
    /// The file; `None` if there is none.
    pub file: Option<PathBuf>,
    /// Weight of programs for which neither the command line nor a rule gives a weight.
    pub weight: Option<f64>,
    /// The rules in the order of the file.
    pub rules: Vec<Rule>,
}

/// A rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Position of the rule in the file, from 1.
    pub number: usize,
    /// Line of the file in which the rule begins.
    pub line: usize,
    /// The conditions, at least one.
    pub conditions: Conditions,
    /// How matching programs are managed.
    pub action: Action,
    /// Weight of matching programs.
    pub weight: Option<f64>,
    /// Number of cores of the seat of matching programs.
    pub cores: Option<u32>,
    /// Name of matching programs in reports and profiles.
    pub name: Option<String>,
    /// Whether matching processes that run already are attached.
    pub attach: bool,
}

/// The conditions of a rule. All given conditions must hold.
#[derive(Debug, Clone, Default)]
pub struct Conditions {
    /// File name of the executable, or its path if the pattern contains a slash.
    pub executable: Option<Executable>,
    /// The words of the command line, joined by blanks.
    pub command: Option<GlobMatcher>,
    /// Name of the systemd unit.
    pub unit: Option<GlobMatcher>,
    /// Path of the cgroup, from the root of the hierarchy.
    pub cgroup: Option<GlobMatcher>,
    /// Real user id.
    pub user: Option<u32>,
}

/// A pattern of executables.
#[derive(Debug, Clone)]
pub enum Executable {
    /// Matches the file name.
    Name(GlobMatcher),
    /// Matches the path.
    Path(GlobMatcher),
}

/// How a program is managed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// As foreground work, which may get a seat.
    Seat,
    /// As background work.
    Background(Regulation),
    /// Not at all.
    Ignore,
}

/// The options that the caller of a request gave, which take precedence over rules.
#[derive(Debug, Clone, Copy, Default)]
pub struct GivenOptions {
    /// Whether the request has a weight.
    pub weight: bool,
    /// Whether the request has a number of cores.
    pub cores: bool,
}

impl Conditions {
    fn hold(&self, process: &MatchedProcess) -> bool {
        let executable = || match (&self.executable, &process.executable) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(Executable::Name(glob)), Some(path)) => {
                path.file_name().is_some_and(|name| glob.is_match(name))
            }
            (Some(Executable::Path(glob)), Some(path)) => glob.is_match(path),
        };
        let unit = || match &self.unit {
            None => true,
            Some(glob) => process.unit().is_some_and(|unit| glob.is_match(unit)),
        };
        let is_match = |glob: &Option<GlobMatcher>, text: &str| {
            glob.as_ref().is_none_or(|glob| glob.is_match(text))
        };
        self.user.is_none_or(|uid| uid == process.uid)
            && executable()
            && is_match(&self.command, &process.command)
            && is_match(&self.cgroup, &process.cgroup)
            && unit()
    }
}

impl Ruleset {
    /// Returns the first rule that matches.
    pub fn first_match(&self, process: &MatchedProcess) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.conditions.hold(process))
    }

    /// Returns whether a rule attaches running processes.
    pub fn attaches(&self) -> bool {
        self.rules.iter().any(|rule| rule.attach)
    }

    /// Returns a warning for each rule with more cores than the machine has.
    pub fn excess_cores(&self, present: usize) -> Vec<String> {
        let count = |cores: usize| usher_report::text::count(cores, "core");
        let warning = |rule: &Rule| {
            let wanted = rule.cores.map(|cores| cores as usize)?;
            (wanted > present).then(|| {
                format!(
                    "{}: `cores` is {wanted}, but the machine has {}, so each program of the rule \
                     gets {}; lower `cores` to at most {present}",
                    self.describe(rule),
                    count(present),
                    count(present)
                )
            })
        };
        self.rules.iter().filter_map(warning).collect()
    }

    /// Returns the name of a rule for messages: its number and its line in the file.
    fn describe(&self, rule: &Rule) -> String {
        let file = self.file.as_ref();
        let file = file.map_or_else(String::new, |path| path.display().to_string());
        format!("rule {} ({file}:{})", rule.number, rule.line)
    }

    /// Applies the first matching rule, and the defaults, to the options of a program. Returns the
    /// reason of the change for `usher explain`, or the reason for a rejection.
    fn apply(
        &self,
        process: &MatchedProcess,
        given: GivenOptions,
        adopt: &mut AdoptOptions,
    ) -> Result<Option<String>, String> {
        let rule = self.first_match(process);
        let weight = rule.and_then(|rule| rule.weight).or(self.weight);
        if let Some(weight) = weight.filter(|_| !given.weight) {
            adopt.weight = weight;
        }
        let Some(rule) = rule else {
            return Ok(None);
        };
        let named = self.describe(rule);
        if !given.cores {
            adopt.cores = rule.cores;
        }
        if adopt.name.is_none() {
            adopt.name.clone_from(&rule.name);
        }
        match rule.action {
            Action::Ignore => return Err(format!("{named} excludes this program")),
            Action::Background(policy) if adopt.background.is_none() => {
                adopt.background = Some(policy);
                return Ok(Some(format!("{named} makes the program background work")));
            }
            Action::Seat | Action::Background(_) => {}
        }
        Ok(Some(format!("{named} applies to the program")))
    }
}

/// The rules in force, shared by all threads of the daemon.
#[derive(Debug, Clone, Default)]
pub struct SharedRules {
    rules: Arc<RwLock<Arc<Ruleset>>>,
    /// Processes of programs that a user detached. Rules do not attach them again.
    detached: Arc<Mutex<BTreeSet<ProcessId>>>,
}

impl SharedRules {
    /// Shares these rules.
    pub fn new(rules: Ruleset) -> Self {
        Self {
            rules: Arc::new(RwLock::new(Arc::new(rules))),
            detached: Arc::default(),
        }
    }

    /// Returns the rules in force.
    pub fn get(&self) -> Arc<Ruleset> {
        self.rules
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces the rules.
    pub fn set(&self, rules: Ruleset) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    /// Notes that a user detached a program with this process.
    pub fn add_detached(&self, process: ProcessId) {
        self.lock_detached().insert(process);
    }

    /// Returns whether a user detached a program with this process.
    pub fn is_detached(&self, process: &ProcessId) -> bool {
        self.lock_detached().contains(process)
    }

    /// Forgets processes that have ended.
    pub fn retain_detached(&self, lives: impl Fn(&ProcessId) -> bool) {
        self.lock_detached().retain(|process| lives(process));
    }

    fn lock_detached(&self) -> MutexGuard<'_, BTreeSet<ProcessId>> {
        self.detached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the review that applies the rules in force to a program.
    pub fn review(&self, given: GivenOptions) -> ProgramReview {
        let rules = self.get();
        ProgramReview::new(move |arriving: &ReviewedProcess<'_>, adopt| {
            if rules.rules.is_empty() && rules.weight.is_none() {
                return Ok(None);
            }
            let process = MatchedProcess::of_arrival(arriving, &adopt.argv);
            let applied = rules.apply(&process, given, adopt);
            if let Ok(Some(what)) | Err(what) = &applied {
                events::log_rule(arriving.pid, what);
            }
            applied
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn rules(text: &str) -> Ruleset {
        file::parse(Path::new("/etc/usher/usher.toml"), text)
            .unwrap()
            .rules
    }

    fn process(executable: &str, command: &str, cgroup: &str, uid: u32) -> MatchedProcess {
        MatchedProcess {
            executable: Some(executable.into()),
            command: command.to_owned(),
            cgroup: cgroup.to_owned(),
            uid,
        }
    }

    /// Returns the number of the first rule that matches.
    fn first(rules: &Ruleset, process: &MatchedProcess) -> Option<usize> {
        rules.first_match(process).map(|rule| rule.number)
    }

    #[test]
    fn the_first_rule_with_all_conditions_wins() {
        let rules = rules(
            "[[rule]]\nexecutable = 'ffmpeg'\nuser = 1000\n\
             [[rule]]\nexecutable = '/usr/bin/ff*'\n\
             [[rule]]\ncommand = '*train.py*'\n\
             [[rule]]\nunit = 'backup-*.service'\n\
             [[rule]]\ncgroup = '/user.slice/**'\nuser = 7\n",
        );
        let actual = |executable, command, cgroup, uid| {
            first(&rules, &process(executable, command, cgroup, uid))
        };
        assert_eq!(actual("/opt/ffmpeg", "ffmpeg -i x", "/", 1000), Some(1));
        assert_eq!(actual("/usr/bin/ffmpeg", "ffmpeg -i x", "/", 7), Some(2));
        assert_eq!(actual("/usr/bin/sub/ff", "ff", "/", 7), None);
        assert_eq!(
            actual("/bin/python3", "python3 /x/train.py a", "/", 7),
            Some(3)
        );
        let unit = "/system.slice/backup-db.service/sub";
        assert_eq!(actual("/bin/tar", "tar c", unit, 0), Some(4));
        assert_eq!(actual("/bin/tar", "tar c", "/user.slice/a/b", 7), Some(5));
        assert_eq!(actual("/bin/tar", "tar c", "/user.slice/a/b", 8), None);
        let unknown = MatchedProcess {
            executable: None,
            ..process("", "ffmpeg", "/", 1000)
        };
        assert_eq!(first(&rules, &unknown), None);
    }

    #[test]
    fn options_of_the_command_line_win_over_rules() {
        let rules = rules(
            "[defaults]\nweight = 3.0\n\
             [[rule]]\nexecutable = 'a'\naction = 'background'\n\
             [[rule]]\nexecutable = 'b'\nweight = 0.5\ncores = 3\nname = 'nightly'\n\
             [[rule]]\nexecutable = 'c'\naction = 'ignore'\n",
        );
        let apply = |name: &str, given: GivenOptions, mut adopt: AdoptOptions| {
            let process = process(&format!("/bin/{name}"), name, "/", 0);
            rules.apply(&process, given, &mut adopt).map(|_| adopt)
        };
        let plain = || AdoptOptions::new(Vec::<String>::new());
        let none = GivenOptions::default();
        let background = apply("a", none, plain()).unwrap();
        assert_eq!(background.background, Some(Regulation::Usher));
        let eii = AdoptOptions {
            background: Some(Regulation::Eii),
            ..plain()
        };
        let kept = apply("a", none, eii).unwrap();
        assert_eq!(kept.background, Some(Regulation::Eii));
        let ruled = apply("b", none, plain()).unwrap();
        assert_eq!(
            (ruled.weight, ruled.name.as_deref(), ruled.cores),
            (0.5, Some("nightly"), Some(3))
        );
        let own = AdoptOptions {
            weight: 2.0,
            cores: Some(1),
            ..plain().named("own")
        };
        let given = GivenOptions {
            weight: true,
            cores: true,
        };
        let kept = apply("b", given, own).unwrap();
        assert_eq!((kept.weight, kept.name.as_deref()), (2.0, Some("own")));
        assert_eq!(kept.cores, Some(1));
        let excluded = apply("c", none, plain()).unwrap_err();
        let expected = "rule 3 (/etc/usher/usher.toml:11) excludes this program";
        assert_eq!(excluded, expected);
        assert_eq!(apply("d", none, plain()).unwrap().weight, 3.0);
    }
}
