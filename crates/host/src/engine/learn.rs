// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes profile samples from completed repetitions of programs.
//!
//! A repetition is a sample of the program's curve, with the rate 1 / seconds at a number of cores,
//! if the program had these cores for itself from the start to the end of the repetition:
//!
//! - the repetition took at least 0.5 s, and began at most 20 ms before the interval;
//! - the program was not moved, frozen or stopped;
//! - no other managed program that used more than 0.05 CPUs could run on its CPUs.
//!
//! A [`PlacementInterval`] is restarted at each change that disturbs the program; a repetition that
//! began before the interval yields no sample. The interference of unmanaged programs is not
//! detected. Such interference increases the spread of the samples, by which the store estimates
//! the error. Each call costs a constant number of operations.

use usher_model::{CurvePoint, ProgramId, ProgramKey, ProgramSample, Progress, ProgressSource};

/// Minimum duration of a repetition that yields a sample. Shorter repetitions are dominated by
/// start-up and noise.
const SECONDS_MIN: f64 = 0.5;
/// Mean number of CPUs above which a neighbour counts as a disturbance.
pub(super) const QUIET_CPUS: f64 = 0.05;
/// Time by which a repetition may start before the interval. The launcher measures the start of a
/// repetition, which differs slightly from the time at which the program is seated.
const SLACK_NS: u64 = 20_000_000;
/// Number of ended programs for which a last repetition may still be reported.
pub(super) const ENDED_MAX: usize = 64;

/// The sample from an undisturbed repetition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ProfileSample {
    /// Repetitions per second at a number of cores.
    pub repetition: CurvePoint,
    /// The rate by the program's other source of progress in the same time. Comparing this rate
    /// with the repetitions shows whether the source is proportional to progress.
    pub by_source: Option<(ProgressSource, CurvePoint)>,
}

/// The time that a program has spent undisturbed at its current placement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PlacementInterval {
    since_ns: u64,
    cores: f64,
    disturbed: bool,
    /// CPU time at the last completed repetition.
    cpu_ns: u64,
    /// Progress at the last completed repetition.
    progress: Option<Progress>,
}

impl PlacementInterval {
    /// Starts an interval.
    pub fn new(at_ns: u64, cores: f64) -> Self {
        Self {
            since_ns: at_ns,
            cores,
            disturbed: false,
            cpu_ns: 0,
            progress: None,
        }
    }

    /// Starts a new interval, because the program got other CPUs, or was frozen or thawed.
    pub fn moved(&mut self, at_ns: u64, cores: f64) {
        self.since_ns = at_ns;
        self.cores = cores;
    }

    /// Starts a new interval, because the user stopped the program: repetitions that started
    /// earlier yield no samples.
    pub fn interrupted(&mut self, at_ns: u64) {
        self.since_ns = at_ns;
    }

    /// Sets whether a neighbour uses the program's CPUs from now on.
    pub fn disturbed(&mut self, at_ns: u64, disturbed: bool) {
        if self.disturbed || disturbed {
            self.since_ns = at_ns;
        }
        self.disturbed = disturbed;
    }

    /// Handles the end of a repetition. `now` is the program's last sample. Returns the profile
    /// sample if the repetition was undisturbed.
    pub fn repeated(
        &mut self,
        at_ns: u64,
        seconds: f64,
        now: Option<&ProgramSample>,
    ) -> Option<ProfileSample> {
        let cpu_ns = now.map_or(0, |sample| sample.cpu_ns);
        let used_ns = cpu_ns.saturating_sub(self.cpu_ns);
        let before = self.progress;
        self.cpu_ns = cpu_ns;
        self.progress = now.and_then(|sample| sample.progress);
        let valid = seconds.is_finite() && seconds >= SECONDS_MIN && self.cores > 0.0;
        let began_ns = at_ns.saturating_sub((seconds * 1e9) as u64);
        let alone = !self.disturbed && began_ns + SLACK_NS >= self.since_ns;
        let point = |rate: f64| CurvePoint {
            cores: self.cores,
            rate,
            relative_error: CurvePoint::SINGLE_RUN_ERROR,
            busy_cpus: Some(used_ns as f64 * 1e-9 / seconds),
        };
        let counted = self.progress.and_then(|progress| {
            let start = before.filter(|b| b.source == progress.source);
            let done = progress.total - start.map_or(0.0, |b| b.total);
            let rate = done / seconds;
            (rate.is_finite() && rate > 0.0).then_some((progress.source, point(rate)))
        });
        (valid && alone).then(|| ProfileSample {
            repetition: point(1.0 / seconds),
            by_source: counted.filter(|(source, _)| *source != ProgressSource::Repetition),
        })
    }
}

/// How the threads of a program wait, as observed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WaitBehaviour {
    /// Number of threads that busy-wait.
    pub spinners: u32,
    pub active_wait: Option<bool>,
}

/// A program that has ended, kept for the report of its last repetition.
#[derive(Debug)]
pub(super) struct EndedProgram {
    pub id: ProgramId,
    pub uid: u32,
    pub key: Option<ProgramKey>,
    pub name: String,
    pub waits: WaitBehaviour,
    pub interval: PlacementInterval,
    pub ended_ns: u64,
    pub last: Option<ProgramSample>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Returns a sample of the program after this CPU time and number of heartbeats.
    fn sample(cpu_seconds: u64, beats: f64) -> ProgramSample {
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
    fn an_undisturbed_repetition_is_a_point_for_every_source() {
        let mut interval = PlacementInterval::new(10 * SECOND, 4.0);
        let first = interval
            .repeated(12 * SECOND, 2.0, Some(&sample(6, 100.0)))
            .unwrap();
        let point = first.repetition;
        assert_eq!(
            (point.cores, point.rate, point.busy_cpus),
            (4.0, 0.5, Some(3.0))
        );
        let next = interval
            .repeated(16 * SECOND, 4.0, Some(&sample(10, 300.0)))
            .unwrap();
        assert_eq!(
            (next.repetition.rate, next.repetition.busy_cpus),
            (0.25, Some(1.0))
        );
        let (source, point) = next.by_source.unwrap();
        assert_eq!((source, point.rate), (ProgressSource::Heartbeat, 50.0));
    }

    #[test]
    fn moved_disturbed_short_and_invalid_repetitions_yield_no_sample() {
        let interval = PlacementInterval::new(10 * SECOND, 4.0);
        let mut moved = interval;
        moved.moved(11 * SECOND, 2.0);
        assert_eq!(moved.repeated(12 * SECOND, 2.0, None), None);
        let mut stopped = interval;
        stopped.interrupted(11 * SECOND);
        assert_eq!(stopped.repeated(12 * SECOND, 2.0, None), None);
        let mut disturbed = interval;
        disturbed.disturbed(11 * SECOND, true);
        assert_eq!(disturbed.repeated(12 * SECOND, 2.0, None), None);
        disturbed.disturbed(13 * SECOND, false);
        assert_eq!(disturbed.repeated(14 * SECOND, 2.0, None), None);
        assert!(disturbed.repeated(15 * SECOND, 2.0, None).is_some());
        for seconds in [0.4, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(interval.clone().repeated(12 * SECOND, seconds, None), None);
        }
    }
}
