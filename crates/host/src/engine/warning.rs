// SPDX-License-Identifier: MIT OR Apache-2.0
//! The warnings of the control loop. Each warning holds until its topic is resolved.
//!
//! Warnings about programs that differ only in their program and in numbers, such as pids, form one
//! group, which is reported once with the number of programs. Without cgroups, for example, each
//! launched program has the same warning. Other warnings are kept once per text. Beyond 100 groups,
//! the oldest group is dropped. Adding a warning compares it with all groups.

use std::collections::{BTreeSet, VecDeque};

use usher_model::ProgramId;
use usher_report::text;

/// Maximum number of groups of warnings.
const GROUPS_MAX: usize = 100;

/// The subject of a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WarningTopic {
    /// The set of usable CPUs.
    Cpus,
    /// A failure of the profile store, until the next successful write.
    Store,
    /// A lock of another process on the profile store.
    StoreLock,
    /// The keeper process.
    Keeper,
    /// One program, until its management ends.
    Program(ProgramId),
    /// Threads and processes that a program created after it was seated.
    Refresh(ProgramId),
    /// A topic that is never resolved. The warning holds until the engine ends.
    Other,
}

impl WarningTopic {
    /// Returns the program of the topic, if the topic is about one program.
    pub fn program(self) -> Option<ProgramId> {
        match self {
            Self::Program(id) | Self::Refresh(id) => Some(id),
            Self::Cpus | Self::Store | Self::StoreLock | Self::Keeper | Self::Other => None,
        }
    }
}

/// A warning and its topic.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Warning {
    topic: WarningTopic,
    /// The name of the topic's program.
    name: Option<String>,
    text: String,
}

impl Warning {
    /// Returns whether both warnings are reported as one.
    fn is_like(&self, other: &Self) -> bool {
        match (self.topic.program(), other.topic.program()) {
            (Some(_), Some(_)) => without_digits(&self.text) == without_digits(&other.text),
            (None, None) => self.topic == other.topic && self.text == other.text,
            _ => false,
        }
    }
}

/// The warnings that hold.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    /// Each group has at least one warning, and at most one warning per topic.
    groups: VecDeque<Vec<Warning>>,
}

impl Warnings {
    /// Adds a warning. If its topic has a warning that differs only in numbers, the new text replaces
    /// the old one. `name` is the name of the topic's program. Returns whether the warning forms a
    /// new group.
    pub fn add(&mut self, topic: WarningTopic, name: Option<String>, text: String) -> bool {
        let warning = Warning { topic, name, text };
        let mut groups = self.groups.iter_mut();
        if let Some(group) = groups.find(|group| group[0].is_like(&warning)) {
            match group.iter_mut().find(|known| known.topic == topic) {
                Some(known) => *known = warning,
                None => group.push(warning),
            }
            return false;
        }
        if self.groups.len() == GROUPS_MAX {
            self.groups.pop_front();
        }
        self.groups.push_back(vec![warning]);
        true
    }

    /// Drops the warnings about a topic.
    pub fn resolve(&mut self, topic: WarningTopic) {
        for group in &mut self.groups {
            group.retain(|one| one.topic != topic);
        }
        self.groups.retain(|group| !group.is_empty());
    }

    /// Returns the text of each group, the oldest group first.
    pub fn texts(&self) -> Vec<String> {
        self.groups.iter().map(|group| group_text(group)).collect()
    }
}

/// Returns the oldest warning of a group with the number of other programs in the group.
fn group_text(group: &[Warning]) -> String {
    let Some(first) = group.first() else {
        return String::new();
    };
    let text = match &first.name {
        Some(name) => format!("'{name}': {}", first.text),
        None => first.text.clone(),
    };
    let programs: BTreeSet<ProgramId> =
        group.iter().filter_map(|one| one.topic.program()).collect();
    match programs.len().saturating_sub(1) {
        0 => text,
        1 => format!("{text}; 1 other program has the same warning"),
        others => format!(
            "{text}; {} have the same warning",
            text::count(others, "other program")
        ),
    }
}

fn without_digits(text: &str) -> String {
    text.replace(|c: char| c.is_ascii_digit(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(warnings: &mut Warnings, topic: WarningTopic, text: &str) {
        let name = topic.program().map(|id| format!("p{id}"));
        warnings.add(topic, name, text.to_owned());
    }

    #[test]
    fn equal_warnings_of_several_programs_are_reported_once() {
        let mut warnings = Warnings::default();
        let topic = |id| WarningTopic::Program(ProgramId(id));
        for id in 1..=40 {
            let text = format!("making usher-7-8.{id}: read-only");
            add(&mut warnings, topic(id), &text);
            // The same program again.
            add(&mut warnings, topic(id), &text);
        }
        add(&mut warnings, topic(1), "another fault");
        let first = "'p1': making usher-7-8.1: read-only; 39 other programs have the same warning";
        assert_eq!(warnings.texts(), [first, "'p1': another fault"]);
        for id in (1..=40).filter(|id| ![3, 9].contains(id)) {
            warnings.resolve(topic(id));
        }
        let first = "'p3': making usher-7-8.3: read-only; 1 other program has the same warning";
        assert_eq!(warnings.texts(), [first]);
        warnings.resolve(topic(3));
        assert_eq!(
            warnings.texts(),
            ["'p9': making usher-7-8.9: read-only".to_owned()]
        );
        warnings.resolve(topic(9));
        assert!(warnings.texts().is_empty());
    }

    #[test]
    fn a_warning_with_other_numbers_replaces_the_known_warning() {
        let mut warnings = Warnings::default();
        for text in ["3 threads failed", "4 threads failed"] {
            add(&mut warnings, WarningTopic::Refresh(ProgramId(1)), text);
        }
        let texts = warnings.texts();
        assert_eq!(texts.len(), 1);
        assert!(texts[0].contains("4 threads failed"), "{texts:?}");
    }

    #[test]
    fn warnings_about_no_program_are_equal_only_with_equal_numbers() {
        let mut warnings = Warnings::default();
        for line in ["line 3", "line 4", "line 3"] {
            add(&mut warnings, WarningTopic::Other, line);
        }
        assert_eq!(warnings.texts(), ["line 3", "line 4"]);
        for line in 0..2 * GROUPS_MAX {
            add(&mut warnings, WarningTopic::Other, &line.to_string());
        }
        let texts = warnings.texts();
        assert_eq!(texts.len(), GROUPS_MAX);
        assert_eq!(texts[0], GROUPS_MAX.to_string());
    }
}
