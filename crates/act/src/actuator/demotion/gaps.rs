// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collects the parts of a demotion that were not done, with reasons, and returns one sentence per
//! reason. Processes, threads or sessions with the same reason share one entry.
//!
//! At most 16 reasons are kept for one program; further reasons are dropped. A sentence states the
//! number of affected processes, and lists the first 5 numbers.
//!
//! An entry drops the numbers of ended processes, threads and sessions when it has more than 512
//! numbers and twice as many as after the last drop. Each added number therefore costs a constant
//! number of checks on average. The check of sessions whose leader has ended reads `/proc` once.

use std::collections::BTreeSet;

use crate::procs::Procs;

/// Upper limit of reasons kept for one program.
const REASONS_MAX: usize = 16;
/// Upper limit of numbers in one text.
const SHOWN_MAX: usize = 5;
/// Numbers of ended processes, threads and sessions are not dropped while a reason has at most this
/// many numbers.
const PRUNE_MIN: usize = 512;

/// What keeps its former priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GapSubject {
    /// The program as a whole.
    Program,
    /// One process of it.
    Process(i32),
    /// One thread of it.
    Thread(i32),
    /// The autogroup of one session.
    Session(i32),
}

impl GapSubject {
    fn number(self) -> Option<i32> {
        match self {
            Self::Program => None,
            Self::Process(number) | Self::Thread(number) | Self::Session(number) => Some(number),
        }
    }

    fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// Drops the numbers of ended processes, threads and sessions.
    fn drop_ended(self, numbers: &mut BTreeSet<i32>, procs: &Procs) {
        let exists = |number: &i32| procs.exists(*number);
        match self {
            Self::Program => {}
            Self::Process(_) | Self::Thread(_) => numbers.retain(exists),
            Self::Session(_) if numbers.iter().all(exists) => {}
            // The leader of a session may end before the other processes of the session.
            Self::Session(_) => {
                let living = procs.all().into_iter().filter(|process| !process.is_dead());
                let sessions: BTreeSet<i32> = living.map(|process| process.session).collect();
                numbers.retain(|number| exists(number) || sessions.contains(number));
            }
        }
    }

    /// Returns the grammatical subject for these numbers.
    fn name(self, numbers: &[i32]) -> String {
        let count = numbers.len();
        let first = numbers.first().copied().unwrap_or_default();
        match (self, count) {
            (Self::Program, _) => String::new(),
            (Self::Process(_), 1) => format!("process {first} "),
            (Self::Process(_), _) => format!("{count} processes ({}) ", list(numbers)),
            (Self::Thread(_), 1) => format!("thread {first} "),
            (Self::Thread(_), _) => format!("{count} threads ({}) ", list(numbers)),
            (Self::Session(_), 1) => format!("the autogroup of session {first} "),
            (Self::Session(_), _) => {
                format!("the autogroups of {count} sessions ({}) ", list(numbers))
            }
        }
    }
}

fn list(numbers: &[i32]) -> String {
    let shown = numbers.iter().take(SHOWN_MAX);
    let mut shown: Vec<String> = shown.map(ToString::to_string).collect();
    if numbers.len() > SHOWN_MAX {
        shown.push("…".to_owned());
    }
    shown.join(", ")
}

/// The text of a gap after its subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GapReason {
    /// For one subject.
    one: String,
    /// For several subjects.
    many: String,
}

impl GapReason {
    /// A sentence about the whole program, or a predicate that is the same for several subjects.
    pub(super) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            one: text.clone(),
            many: text,
        }
    }

    /// `keeps its OBJECT REST`, and for several subjects `keep their OBJECT REST`.
    pub(super) fn keeps(object: &str, rest: &str) -> Self {
        Self {
            one: format!("keeps its {object} {rest}"),
            many: format!("keep their {object} {rest}"),
        }
    }

    /// `stays REST`, and for several subjects `stay REST`.
    pub(super) fn stays(rest: &str) -> Self {
        Self {
            one: format!("stays {rest}"),
            many: format!("stay {rest}"),
        }
    }
}

#[derive(Debug)]
struct Gap {
    subject: GapSubject,
    reason: GapReason,
    numbers: BTreeSet<i32>,
    /// With more numbers, those of ended processes, threads and sessions are dropped.
    prune_above: usize,
}

impl Gap {
    fn add(&mut self, number: i32, procs: &Procs) {
        if self.numbers.insert(number) && self.numbers.len() > self.prune_above {
            self.subject.drop_ended(&mut self.numbers, procs);
            self.prune_above = PRUNE_MIN.max(self.numbers.len() * 2);
        }
    }
}

/// The gaps of one program's present demotion.
#[derive(Debug, Default)]
pub(in crate::actuator) struct DemotionGaps(Vec<Gap>);

impl DemotionGaps {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a subject to its reason.
    pub(super) fn add(&mut self, subject: GapSubject, reason: GapReason, procs: &Procs) {
        let known = |gap: &&mut Gap| gap.subject.is_like(subject) && gap.reason == reason;
        if let Some(gap) = self.0.iter_mut().find(known) {
            if let Some(number) = subject.number() {
                gap.add(number, procs);
            }
        } else if self.0.len() < REASONS_MAX {
            self.0.push(Gap {
                subject,
                reason,
                numbers: subject.number().into_iter().collect(),
                prune_above: PRUNE_MIN,
            });
        }
    }

    /// Returns one sentence for each reason that holds for something that still exists.
    pub(super) fn texts(&self, procs: &Procs) -> Vec<String> {
        let text = |gap: &Gap| {
            let mut numbers = gap.numbers.clone();
            gap.subject.drop_ended(&mut numbers, procs);
            let numbers: Vec<i32> = numbers.into_iter().collect();
            let reason = match numbers.len() {
                0 if gap.subject != GapSubject::Program => return None,
                0 | 1 => &gap.reason.one,
                _ => &gap.reason.many,
            };
            Some(format!("{}{reason}", gap.subject.name(&numbers)))
        };
        self.0.iter().filter_map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;
    use crate::ActConfig;

    #[test]
    fn subjects_with_one_reason_share_one_text_with_their_number() {
        // Numbers of another namespace are not checked for existence.
        let mut config = ActConfig::new("/nonexistent");
        config.proc_root = "/nonexistent".into();
        let procs = Procs::new(&config);
        let mut gaps = DemotionGaps::default();
        let reason = || GapReason::keeps("nice value", "because of a limit");
        gaps.add(GapSubject::Process(7), reason(), &procs);
        assert_eq!(
            gaps.texts(&procs),
            ["process 7 keeps its nice value because of a limit"]
        );
        for pid in [9, 7, 8] {
            gaps.add(GapSubject::Process(pid), reason(), &procs);
        }
        gaps.add(GapSubject::Thread(7), reason(), &procs);
        let whole = GapReason::new("cpu.idle is not used");
        gaps.add(GapSubject::Program, whole.clone(), &procs);
        gaps.add(GapSubject::Program, whole, &procs);
        assert_eq!(
            gaps.texts(&procs),
            [
                "3 processes (7, 8, 9) keep their nice value because of a limit",
                "thread 7 keeps its nice value because of a limit",
                "cpu.idle is not used",
            ]
        );
        for pid in 10..20 {
            gaps.add(GapSubject::Process(pid), reason(), &procs);
        }
        let first = gaps.texts(&procs).remove(0);
        assert!(
            first.starts_with("13 processes (7, 8, 9, 10, 11, …) keep"),
            "{first}"
        );
    }

    #[test]
    fn processes_that_have_ended_are_not_counted() {
        let procs = Procs::new(&ActConfig::new("/nonexistent"));
        let mut gaps = DemotionGaps::default();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        child.wait().unwrap();
        let own = std::process::id() as i32;
        for pid in [pid, own] {
            gaps.add(GapSubject::Process(pid), GapReason::stays("there"), &procs);
        }
        assert_eq!(gaps.texts(&procs), [format!("process {own} stays there")]);
        let mut ended = DemotionGaps::default();
        ended.add(GapSubject::Process(pid), GapReason::stays("there"), &procs);
        assert_eq!(ended.texts(&procs), [""; 0]);
    }

    #[test]
    fn existence_is_checked_again_only_after_the_numbers_doubled() {
        // All numbers of another namespace count as existing.
        let mut config = ActConfig::new("/nonexistent");
        config.proc_root = "/nonexistent".into();
        let procs = Procs::new(&config);
        let mut gaps = DemotionGaps::default();
        let mut checks = 0;
        let mut limit = PRUNE_MIN;
        for pid in (1..=5000).chain(1..=5000) {
            gaps.add(GapSubject::Process(pid), GapReason::stays("there"), &procs);
            checks += usize::from(gaps.0[0].prune_above != limit);
            limit = gaps.0[0].prune_above;
        }
        assert_eq!(gaps.0[0].numbers.len(), 5000);
        assert_eq!(checks, 4);
    }

    #[test]
    fn the_numbers_of_ended_processes_are_dropped() {
        let procs = Procs::new(&ActConfig::new("/nonexistent"));
        let mut gaps = DemotionGaps::default();
        // The kernel assigns no pid of this size.
        let ended = (i32::MAX - 5000)..i32::MAX;
        let own = std::process::id() as i32;
        for pid in std::iter::once(own).chain(ended) {
            gaps.add(GapSubject::Process(pid), GapReason::stays("there"), &procs);
        }
        assert!(gaps.0[0].numbers.len() <= PRUNE_MIN);
        assert_eq!(gaps.texts(&procs), [format!("process {own} stays there")]);
    }

    #[test]
    fn a_session_counts_until_its_last_process_has_ended() {
        let procs = Procs::new(&ActConfig::new("/nonexistent"));
        // The leader ends at once. A background process of its session remains.
        let script = "sleep 1000 < /dev/null > /dev/null 2>&1 & echo $!";
        let leader = std::process::Command::new("setsid")
            .args(["sh", "-c", script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let session = leader.id() as i32;
        let output = leader.wait_with_output().unwrap();
        let member = String::from_utf8(output.stdout).unwrap();
        let member = Pid::from_raw(member.trim().parse().unwrap()).unwrap();
        let mut gaps = DemotionGaps::default();
        gaps.add(
            GapSubject::Session(session),
            GapReason::stays("there"),
            &procs,
        );
        let before = gaps.texts(&procs);
        kill_process(member, Signal::KILL).unwrap();
        let text = format!("the autogroup of session {session} stays there");
        assert_eq!(before, [text]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !gaps.texts(&procs).is_empty() {
            assert!(Instant::now() < deadline, "the session still counts");
            std::thread::yield_now();
        }
    }
}
