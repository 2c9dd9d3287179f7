// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes profile samples from completed repetitions of programs.
//!
//! A repetition is a sample of the program's curve, with the rate 1 / seconds at a number of cores,
//! if the program had these cores for itself from the start to the end of the repetition:
//!
//! - the repetition took at least 0.5 s, and began at most 20 ms before the interval;
//! - the program was not moved, frozen or stopped;
//! - no other managed program that used more than 0.05 CPUs could run on its CPUs;
//! - during the repetition, unmanaged programs used at most 0.1 CPUs on its CPUs, or 1 % of its
//!   CPUs if this is more, plus 0.05 s of CPU time. Their use is the busy time of the CPUs without
//!   the CPU time of the program. If the CPU time of the program was read some time before its end,
//!   the CPU time that the program can have used since then is permitted, too.
//!
//! If the configuration permits corrected samples, a run that is disturbed by other programs yields
//! a sample, too, from which the effect of the waits is removed (`usher_learn::DemandTrace`).
//!
//! A [`PlacementInterval`] is restarted at each change that disturbs the program; a repetition that
//! began before the interval yields no sample. If the busy time of the CPUs cannot be read, no
//! repetition yields a sample. Each call costs a constant number of operations; its caller reads
//! `/proc/stat` once.

use usher_learn::{ByteTrace, DemandTrace, ProfileSample, VariedTime, WaitBehaviour};
use usher_model::{CurvePoint, ProgramId, ProgramKey, ProgramSample, Progress, ProgressSource};

use crate::load_limits::{CPUS_MAX, SHARE_MAX, SLACK_SECONDS};

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

/// The end of a repetition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RepetitionEnd<'a> {
    pub at_ns: u64,
    /// Duration of the repetition.
    pub seconds: f64,
    /// The program's last sample.
    pub last: Option<&'a ProgramSample>,
    /// Age of the CPU time in this sample at the end of the repetition.
    pub sample_age_s: f64,
    /// Busy time of the program's CPUs; `None` if it could not be read.
    pub busy_ns: Option<u64>,
    /// CPUs that unmanaged programs may use; `None` for the default.
    pub other_cpus_max: Option<f64>,
}

/// The time that a program has spent undisturbed at its current placement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PlacementInterval {
    since_ns: u64,
    cores: f64,
    disturbed: bool,
    /// Busy time of the program's CPUs at the last completed repetition or placement; `None` if it
    /// could not be read.
    busy_ns: Option<u64>,
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
            busy_ns: None,
            cpu_ns: 0,
            progress: None,
        }
    }

    /// Starts a new interval, because the program got other CPUs, or was frozen or thawed.
    /// `busy_ns` is the busy time of its CPUs.
    pub fn moved(&mut self, at_ns: u64, cores: f64, busy_ns: Option<u64>) {
        self.since_ns = at_ns;
        self.cores = cores;
        self.busy_ns = busy_ns;
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

    /// Handles the end of a repetition. Returns the profile sample if the repetition was
    /// undisturbed.
    pub fn repeated(&mut self, end: &RepetitionEnd<'_>) -> Option<ProfileSample> {
        let (at_ns, seconds) = (end.at_ns, end.seconds);
        let cpu_ns = end.last.map_or(0, |sample| sample.cpu_ns);
        let used_ns = cpu_ns.saturating_sub(self.cpu_ns);
        let is_quiet = self.is_quiet(end, used_ns);
        let before = self.progress;
        self.cpu_ns = cpu_ns;
        self.busy_ns = end.busy_ns;
        self.progress = end.last.and_then(|sample| sample.progress);
        let valid = seconds.is_finite() && seconds >= SECONDS_MIN && self.cores > 0.0;
        let began_ns = at_ns.saturating_sub((seconds * 1e9) as u64);
        let alone = is_quiet && !self.disturbed && began_ns + SLACK_NS >= self.since_ns;
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

    /// Returns whether unmanaged programs used little of the program's CPUs since the last
    /// repetition, in which the program used `used_ns` of CPU time.
    fn is_quiet(&self, end: &RepetitionEnd<'_>, used_ns: u64) -> bool {
        let Some((now_ns, then_ns)) = end.busy_ns.zip(self.busy_ns) else {
            return false;
        };
        let busy_ns = now_ns.saturating_sub(then_ns);
        let others_s = busy_ns.saturating_sub(used_ns) as f64 * 1e-9;
        let default = CPUS_MAX.max(SHARE_MAX * self.cores);
        let max = end.other_cpus_max.unwrap_or(default);
        others_s <= max * end.seconds + SLACK_SECONDS + self.cores * end.sample_age_s
    }
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
    pub byte_trace: ByteTrace,
    pub demand_trace: DemandTrace,
    pub varied: VariedTime,
    pub ended_ns: u64,
    pub last: Option<ProgramSample>,
    /// Age of the last sample before the end of the program.
    pub sample_age_s: f64,
    /// Busy time of the program's CPUs at its end; `None` if it could not be read.
    pub busy_ns: Option<u64>,
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

    /// Returns the end of a repetition on CPUs that were busy for `busy_s` since the start.
    fn end(
        at_ns: u64,
        seconds: f64,
        last: Option<&ProgramSample>,
        busy_s: u64,
    ) -> RepetitionEnd<'_> {
        RepetitionEnd {
            at_ns,
            seconds,
            last,
            sample_age_s: 0.0,
            busy_ns: Some(busy_s * SECOND),
            other_cpus_max: None,
        }
    }

    /// Returns an interval of a program that was placed on four idle CPUs.
    fn placed() -> PlacementInterval {
        let mut interval = PlacementInterval::new(10 * SECOND, 0.0);
        interval.moved(10 * SECOND, 4.0, Some(0));
        interval
    }

    #[test]
    fn an_undisturbed_repetition_is_a_point_for_every_source() {
        let mut interval = placed();
        let first = interval
            .repeated(&end(12 * SECOND, 2.0, Some(&sample(6, 100.0)), 6))
            .unwrap();
        let point = first.repetition;
        assert_eq!(
            (point.cores, point.rate, point.busy_cpus),
            (4.0, 0.5, Some(3.0))
        );
        let next = interval
            .repeated(&end(16 * SECOND, 4.0, Some(&sample(10, 300.0)), 10))
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
        let interval = placed();
        let mut moved = interval;
        moved.moved(11 * SECOND, 2.0, Some(0));
        assert_eq!(moved.repeated(&end(12 * SECOND, 2.0, None, 0)), None);
        let mut stopped = interval;
        stopped.interrupted(11 * SECOND);
        assert_eq!(stopped.repeated(&end(12 * SECOND, 2.0, None, 0)), None);
        let mut disturbed = interval;
        disturbed.disturbed(11 * SECOND, true);
        assert_eq!(disturbed.repeated(&end(12 * SECOND, 2.0, None, 0)), None);
        disturbed.disturbed(13 * SECOND, false);
        assert_eq!(disturbed.repeated(&end(14 * SECOND, 2.0, None, 0)), None);
        assert!(
            disturbed
                .repeated(&end(15 * SECOND, 2.0, None, 0))
                .is_some()
        );
        for seconds in [0.4, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(
                interval
                    .clone()
                    .repeated(&end(12 * SECOND, seconds, None, 0)),
                None
            );
        }
    }

    #[test]
    fn a_repetition_beside_an_unmanaged_busy_program_yields_no_sample() {
        let used = sample(6, 0.0);
        let repeated = |seconds, busy_s| {
            let at_ns = 10 * SECOND + (seconds * 1e9) as u64;
            placed().repeated(&end(at_ns, seconds, Some(&used), busy_s))
        };
        assert!(repeated(10.0, 7).is_some(), "1 s in 10 s is 0.1 CPUs");
        assert_eq!(repeated(10.0, 8), None);
        assert_eq!(repeated(2.0, 7), None);
        // The last sample is 0.5 s old, in which the program can have used 2 s on four CPUs.
        let late = |busy_s| RepetitionEnd {
            sample_age_s: 0.5,
            ..end(12 * SECOND, 2.0, Some(&used), busy_s)
        };
        assert!(placed().repeated(&late(8)).is_some());
        assert_eq!(placed().repeated(&late(9)), None);
        let unknown = RepetitionEnd {
            busy_ns: None,
            ..end(12 * SECOND, 2.0, Some(&used), 6)
        };
        assert_eq!(placed().repeated(&unknown), None);
    }
}
