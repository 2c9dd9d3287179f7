// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a completed repetition teaches the profile store.
//!
//! A repetition is a point of the program's curve, 1 / seconds at so many
//! cores, where it had those cores to itself all the time: it was not moved or
//! stopped, and no other managed program that used CPU could run on its CPUs.
//! What is not managed cannot be seen from here; the store keeps the spread
//! of what it is taught.

use usher_model::{CurvePoint, ProgramId, ProgramKey, ProgramSample, Progress, ProgressSource};

use super::profiles::Waits;
use crate::profile::ERROR_OF_ONE;

/// Shorter repetitions teach nothing: start-up and noise dominate them.
const SECONDS_MIN: f64 = 0.5;
/// A neighbour that used less of a CPU than this does not disturb.
pub(super) const QUIET_CPUS: f64 = 0.05;
/// A repetition is timed by its launcher, and a program is seated a little
/// before it is released: so much earlier than its place may it have begun.
const SLACK_NS: u64 = 20_000_000;
/// Ended programs whose last repetition may still be reported.
pub(super) const LATE_MAX: usize = 64;

/// What an undisturbed repetition says of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Taught {
    /// Repetitions a second at so many cores.
    pub repetition: CurvePoint,
    /// What the program's other source of progress counted meanwhile, a
    /// second: held against repetitions, it shows whether the source is fair.
    pub by_source: Option<(ProgressSource, CurvePoint)>,
}

/// How long a program has been where it is, undisturbed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stay {
    since_ns: u64,
    cores: f64,
    disturbed: bool,
    /// CPU time at the last completed repetition.
    cpu_ns: u64,
    /// Progress at the last completed repetition.
    progress: Option<Progress>,
}

impl Stay {
    /// Somewhere, from now on.
    pub fn new(at_ns: u64, cores: f64) -> Self {
        Self {
            since_ns: at_ns,
            cores,
            disturbed: false,
            cpu_ns: 0,
            progress: None,
        }
    }

    /// It was given other CPUs, or stopped, or continued.
    pub fn moved(&mut self, at_ns: u64, cores: f64) {
        self.since_ns = at_ns;
        self.cores = cores;
    }

    /// Its user stopped it: no repetition that began before counts.
    pub fn interrupted(&mut self, at_ns: u64) {
        self.since_ns = at_ns;
    }

    /// Whether a neighbour uses its CPUs from now on.
    pub fn disturbed(&mut self, at_ns: u64, disturbed: bool) {
        if self.disturbed || disturbed {
            self.since_ns = at_ns;
        }
        self.disturbed = disturbed;
    }

    /// A repetition ended, with the program as in this sample: what that
    /// teaches, if anything.
    pub fn repeated(
        &mut self,
        at_ns: u64,
        seconds: f64,
        now: Option<&ProgramSample>,
    ) -> Option<Taught> {
        let cpu_ns = now.map_or(0, |sample| sample.cpu_ns);
        let used_ns = cpu_ns.saturating_sub(self.cpu_ns);
        let before = self.progress;
        self.cpu_ns = cpu_ns;
        self.progress = now.and_then(|sample| sample.progress);
        let sane = seconds.is_finite() && seconds >= SECONDS_MIN && self.cores > 0.0;
        let began_ns = at_ns.saturating_sub((seconds * 1e9) as u64);
        let alone = !self.disturbed && began_ns + SLACK_NS >= self.since_ns;
        let point = |rate: f64| CurvePoint {
            cores: self.cores,
            rate,
            relative_error: ERROR_OF_ONE,
            busy_cpus: Some(used_ns as f64 * 1e-9 / seconds),
        };
        let counted = self.progress.and_then(|progress| {
            let start = before.filter(|b| b.source == progress.source);
            let done = progress.total - start.map_or(0.0, |b| b.total);
            let rate = done / seconds;
            (rate.is_finite() && rate > 0.0).then_some((progress.source, point(rate)))
        });
        (sane && alone).then(|| Taught {
            repetition: point(1.0 / seconds),
            by_source: counted.filter(|(source, _)| *source != ProgressSource::Repetition),
        })
    }
}

/// A program that has ended and what its last repetition would teach.
#[derive(Debug)]
pub(super) struct Late {
    pub id: ProgramId,
    pub uid: u32,
    pub key: Option<ProgramKey>,
    pub name: String,
    pub waits: Waits,
    pub stay: Stay,
    pub ended_ns: u64,
    pub last: Option<ProgramSample>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A look at the program when it has used so many CPU seconds and beaten
    /// so often.
    fn look(cpu_seconds: u64, beats: f64) -> ProgramSample {
        ProgramSample {
            id: ProgramId(1),
            cpu_ns: cpu_seconds * SECOND,
            wait_ns: None,
            threads: 1,
            spinners: 0,
            active_wait: None,
            progress: Some(Progress {
                total: beats,
                source: ProgressSource::Heartbeat,
                confidence: 1.0,
            }),
            stopped: false,
        }
    }

    #[test]
    fn an_undisturbed_repetition_is_a_point_by_every_source() {
        let mut stay = Stay::new(10 * SECOND, 4.0);
        let taught = stay
            .repeated(12 * SECOND, 2.0, Some(&look(6, 100.0)))
            .unwrap();
        let point = taught.repetition;
        assert_eq!(
            (point.cores, point.rate, point.busy_cpus),
            (4.0, 0.5, Some(3.0))
        );
        let next = stay
            .repeated(16 * SECOND, 4.0, Some(&look(10, 300.0)))
            .unwrap();
        assert_eq!(
            (next.repetition.rate, next.repetition.busy_cpus),
            (0.25, Some(1.0))
        );
        let (source, point) = next.by_source.unwrap();
        assert_eq!((source, point.rate), (ProgressSource::Heartbeat, 50.0));
    }

    #[test]
    fn a_moved_disturbed_short_or_senseless_one_is_none() {
        let stay = Stay::new(10 * SECOND, 4.0);
        let mut moved = stay;
        moved.moved(11 * SECOND, 2.0);
        assert_eq!(moved.repeated(12 * SECOND, 2.0, None), None);
        let mut stopped = stay;
        stopped.interrupted(11 * SECOND);
        assert_eq!(stopped.repeated(12 * SECOND, 2.0, None), None);
        let mut disturbed = stay;
        disturbed.disturbed(11 * SECOND, true);
        assert_eq!(disturbed.repeated(12 * SECOND, 2.0, None), None);
        disturbed.disturbed(13 * SECOND, false);
        assert_eq!(disturbed.repeated(14 * SECOND, 2.0, None), None);
        assert!(disturbed.repeated(15 * SECOND, 2.0, None).is_some());
        for seconds in [0.4, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(stay.clone().repeated(12 * SECOND, seconds, None), None);
        }
    }
}
