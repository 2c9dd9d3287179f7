// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the progress of a scheduler benchmark for the line that is printed after each sample:
//! the number of measured samples, and an estimate of the remaining wall time.
//!
//! Samples of one part on one machine with the same number of programs form a group, because they
//! take about the same time under any scheduler. The time of a pending sample is estimated as the
//! mean of its group, or as the mean of all measured samples if its group has no measured sample.
//! The start of a guest is not included.

use std::time::{Duration, Instant};

use super::messages::{GuestMessage, SchedulerPlan};
use super::schedulers::ComparedScheduler;

/// A sample that is still to be measured.
#[derive(Debug, Clone, PartialEq)]
struct PendingSample {
    kind: SampleGroup,
    scheduler: ComparedScheduler,
    round: usize,
}

/// A group of samples that take about the same time.
#[derive(Debug, Clone, PartialEq)]
struct SampleGroup {
    machine: &'static str,
    part: String,
    programs: usize,
}

/// Progress of a run.
#[derive(Debug, Default)]
pub struct RunProgress {
    all: usize,
    due: Vec<PendingSample>,
    took: Vec<(SampleGroup, Duration)>,
    machine: &'static str,
    /// Time at which the last sample arrived; `None` during the start of a guest, which is part of
    /// no sample.
    last: Option<Instant>,
}

impl RunProgress {
    /// Adds the samples of a machine. `turns` is the whole plan; `left` is the part of the plan
    /// that is not measured yet.
    pub fn expect(
        &mut self,
        machine: &'static str,
        turns: &[SchedulerPlan],
        left: &[SchedulerPlan],
    ) {
        self.all += due(machine, turns).len();
        self.due.extend(due(machine, left));
    }

    /// Records the start of a guest.
    pub fn starts(&mut self, machine: &'static str) {
        self.machine = machine;
        self.last = None;
    }

    /// Records a message of the guest that arrived at the time `now`.
    pub fn note(&mut self, message: &GuestMessage, now: Instant) {
        match message {
            GuestMessage::Sample(sample) => {
                let kind = SampleGroup {
                    machine: self.machine,
                    part: sample.part.clone(),
                    programs: sample.programs,
                };
                let of_it = PendingSample {
                    kind: kind.clone(),
                    scheduler: sample.scheduler.clone(),
                    round: sample.round,
                };
                self.due.retain(|due| *due != of_it);
                let took = self.last.map(|last| now.saturating_duration_since(last));
                self.took.extend(took.map(|took| (kind, took)));
                self.last = Some(now);
            }
            GuestMessage::LeftOut {
                part,
                scheduler,
                rounds,
                ..
            } => {
                let is_of_it = |due: &PendingSample| {
                    (due.kind.machine, &due.kind.part) == (self.machine, part)
                        && due.scheduler == *scheduler
                        && (rounds.is_empty() || rounds.contains(&due.round))
                };
                self.due.retain(|due| !is_of_it(due));
            }
            GuestMessage::Done { .. } => {}
        }
    }

    /// Number of measured samples as text: `12 of 96`.
    pub fn number(&self) -> String {
        format!(
            "{} of {}",
            self.all - self.due.len().min(self.all),
            self.all
        )
    }

    /// Remaining time as text: `; about 25 minutes remain`. Empty without an estimate, or after the
    /// last sample.
    pub fn left(&self) -> String {
        let each = |due: &PendingSample| {
            let of_kind = self.took.iter().filter(|(kind, _)| *kind == due.kind);
            let of_kind = mean(of_kind.map(|(_, took)| *took));
            of_kind.or_else(|| mean(self.took.iter().map(|(_, took)| *took)))
        };
        let left: Option<Duration> = self.due.iter().map(each).sum();
        match left {
            Some(left) if !self.due.is_empty() => {
                let minutes = (left.as_secs_f64() / 60.0).ceil();
                format!("; about {minutes:.0} minutes remain")
            }
            _ => String::new(),
        }
    }
}

fn mean(all: impl Iterator<Item = Duration> + Clone) -> Option<Duration> {
    let count = u32::try_from(all.clone().count()).ok()?;
    (count > 0).then(|| all.sum::<Duration>() / count)
}

/// Returns the samples that the turns will give.
fn due(machine: &'static str, turns: &[SchedulerPlan]) -> Vec<PendingSample> {
    let mut all = Vec::new();
    for turn in turns {
        for load in &turn.loads {
            for programs in load.numbers() {
                let kind = SampleGroup {
                    machine,
                    part: load.part().to_owned(),
                    programs,
                };
                all.extend(turn.rounds.iter().map(|&round| PendingSample {
                    kind: kind.clone(),
                    scheduler: turn.scheduler.clone(),
                    round,
                }));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;
    use crate::sched::messages::GuestLoad;

    fn turn(scheduler: ComparedScheduler) -> SchedulerPlan {
        let short = GuestLoad::Overhead { ms: 1 };
        let long = GuestLoad::Erlang {
            vms: vec![4, 7],
            command: vec![],
            environment: Default::default(),
            sleeper: false,
            of_peers: false,
        };
        SchedulerPlan {
            scheduler,
            rounds: vec![0],
            loads: vec![short, long],
        }
    }

    #[test]
    fn samples_are_numbered_and_time_left_goes_by_their_kind() {
        let turns = [
            ComparedScheduler::Eevdf,
            ComparedScheduler::Usher,
            ComparedScheduler::Fifo,
        ]
        .map(turn);
        let mut pace = RunProgress::default();
        pace.expect("one", &turns, &turns);
        // A second machine. An earlier run has measured half of its samples.
        pace.expect("plain", &turns[..2], &turns[1..2]);
        pace.starts("one");
        assert_eq!(
            (pace.number(), pace.left()),
            ("3 of 15".to_owned(), String::new())
        );
        let mut now = Instant::now();
        let mut record = |pace: &mut RunProgress, scheduler, part, programs, seconds| {
            now += Duration::from_secs(seconds);
            let message = GuestMessage::Sample(Box::new(sample(scheduler, part, programs, [0, 0])));
            pace.note(&message, now);
        };
        record(&mut pace, ComparedScheduler::Eevdf, "overhead", 2, 500);
        assert_eq!(pace.left(), "", "the guest's start is no sample");
        record(&mut pace, ComparedScheduler::Eevdf, "erlang", 4, 60);
        record(&mut pace, ComparedScheduler::Eevdf, "erlang", 7, 120);
        // Pending are two samples in each of the two groups with measured samples, and five samples
        // at the overall mean of 90 s.
        assert_eq!(
            (pace.number(), pace.left()),
            ("6 of 15".to_owned(), "; about 14 minutes remain".to_owned())
        );
        // The same sample arrives a second time, after the guest died.
        record(&mut pace, ComparedScheduler::Eevdf, "erlang", 7, 120);
        assert_eq!(pace.number(), "6 of 15");
        let left_out = |scheduler, part: &str| GuestMessage::LeftOut {
            part: part.to_owned(),
            scheduler,
            rounds: vec![0],
            why: String::new(),
        };
        for scheduler in [ComparedScheduler::Usher, ComparedScheduler::Fifo] {
            for part in ["erlang", "overhead"] {
                pace.note(&left_out(scheduler.clone(), part), now);
            }
        }
        assert_eq!(pace.number(), "12 of 15");
        pace.starts("plain");
        for part in ["erlang", "overhead"] {
            pace.note(&left_out(ComparedScheduler::Usher, part), now);
        }
        assert_eq!(
            (pace.number(), pace.left()),
            ("15 of 15".to_owned(), String::new())
        );
    }
}
