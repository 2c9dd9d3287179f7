// SPDX-License-Identifier: MIT OR Apache-2.0
//! Estimates how long a run would have taken alone on the CPUs of its seat. The input is the CPU
//! time of the program, and the waits of its threads for CPUs. Runs beside other programs thereby
//! give points of the program's curve.
//!
//! In an interval of a run, a program uses `b` CPUs on average, and `r` of its threads are
//! runnable, `r - b` of which wait for a CPU. Alone on `c` cores, the same work would have taken
//! this fraction of the interval:
//!
//! - `b / min(r, c)` if `r >= 1`: the program would have used all its runnable threads, or all
//!   cores;
//! - `1 - (r - b)` if `r < 1`: the time in which no thread was runnable stays the same.
//!
//! 1. The trace adds up the interval, its CPU time and its time alone, separately for each number
//!    of cores. An interval in which a thread ended is left out, because the last wait of the
//!    thread is unknown.
//! 2. At the end of the run, each number of cores with at least a quarter of the time gives a point.
//!    Its part of the run's work is its part of the CPU time. The rate is this part divided by the
//!    time alone.
//! 3. The relative error is 5 % for a run without waits on one number of cores. Waits for other
//!    programs and time on other numbers of cores increase it.
//!
//! There is no point in these cases:
//!
//! - the run was shorter than 1 s;
//! - the readings cover less than 70 % of the run, or less than 0.7 s on this number of cores;
//! - less than a quarter of the covered time was spent on this number of cores;
//! - the time alone is less than a twentieth of the time;
//! - the user or Usher stopped the program.
//!
//! *Limits.* CPU time that a program wastes while its threads busy-wait counts as work. The effect
//! of other programs on caches and memory is not removed.

use std::collections::BTreeMap;

use usher_model::{CurvePoint, DemandReading};
use usher_policy::variation::FinishedRun;

use crate::varied_time::VariedTime;

/// Minimum duration of a run.
const SECONDS_MIN: f64 = 1.0;
/// Minimum part of the run that the readings cover.
const COVERED_MIN: f64 = 0.7;
/// Minimum part of the run on the number of cores of a point.
const PART_MIN: f64 = 0.25;
/// Maximum ratio of the time to the time alone.
const STRETCH_MAX: f64 = 20.0;
/// Additional relative error of a run in which the waits equal the time alone; proportional to the
/// ratio of the two times.
const WAIT_ERROR: f64 = 0.02;
/// Additional relative error of a run without time on the number of cores of the point;
/// proportional to the part of the time on other numbers of cores.
const PART_ERROR: f64 = 0.10;

/// The demand of one run over time.
#[derive(Debug, Clone, PartialEq)]
pub struct DemandTrace {
    last: DemandReading,
    cores: f64,
    /// Sums by number of cores, in thousandths of a core.
    sums: BTreeMap<u64, DemandSum>,
    /// CPU time on seats of deliberate variation, in seconds.
    varied_cpu_s: f64,
    is_varied: bool,
    is_interrupted: bool,
}

/// Sums over the intervals on one number of cores, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct DemandSum {
    seconds: f64,
    cpu_s: f64,
    alone_s: f64,
}

/// What a run shows about the program.
#[derive(Debug, Clone, PartialEq)]
pub struct RunDemand {
    /// The points of the curve, that on the number of cores with the longest time first.
    pub points: Vec<CurvePoint>,
    /// CPUs that the program would have used alone; 0 without readings.
    pub cpus: f64,
    /// Part of the CPU time on seats of deliberate variation, 0..=1.
    pub varied_part: f64,
}

impl RunDemand {
    /// Returns the run of `seconds` for the history of deliberate variation. A run without points is
    /// no ordinary run; `None` if it was not varied either. The time that a varied run has lost
    /// always counts.
    pub fn finished(&self, seconds: f64, varied: &VariedTime) -> Option<FinishedRun> {
        let counts = !self.points.is_empty() || varied.seconds > 0.0;
        counts.then_some(FinishedRun {
            seconds,
            cpus: self.cpus,
            varied_seconds: varied.seconds,
            varied_part: self.varied_part,
            lost_seconds: varied.lost_seconds,
        })
    }
}

impl DemandTrace {
    /// Starts the trace of a run that begins now.
    pub fn new(at_ns: u64) -> Self {
        Self {
            last: DemandReading {
                at_ns,
                cpu_ns: 0,
                delay_ns: 0,
                is_complete: true,
            },
            cores: 0.0,
            sums: BTreeMap::new(),
            varied_cpu_s: 0.0,
            is_varied: false,
            is_interrupted: false,
        }
    }

    /// Sets the number of cores that the program may use from now on.
    pub fn moved(&mut self, cores: f64) {
        self.cores = cores;
    }

    /// Sets whether the program is on a seat of deliberate variation from now on.
    pub fn set_varied(&mut self, is_varied: bool) {
        self.is_varied = is_varied;
    }

    /// Records that the user or Usher stopped the program.
    pub fn interrupted(&mut self) {
        self.is_interrupted = true;
    }

    /// Adds a reading. An equal or earlier reading is ignored.
    pub fn add(&mut self, now: DemandReading) {
        if now.at_ns <= self.last.at_ns {
            return;
        }
        let seconds = (now.at_ns - self.last.at_ns) as f64 * 1e-9;
        let cpu_s = now.cpu_ns.saturating_sub(self.last.cpu_ns) as f64 * 1e-9;
        let delay_s = now.delay_ns.saturating_sub(self.last.delay_ns) as f64 * 1e-9;
        self.last = now;
        if self.cores <= 0.0 || !now.is_complete {
            return;
        }
        let busy = (cpu_s / seconds).min(self.cores);
        let runnable = busy + delay_s / seconds;
        let alone = match runnable >= 1.0 {
            true => busy / runnable.min(self.cores.max(1.0)),
            false => 1.0 - (runnable - busy),
        };
        let sum = self
            .sums
            .entry((self.cores * 1e3).round() as u64)
            .or_default();
        sum.seconds += seconds;
        sum.cpu_s += cpu_s;
        self.varied_cpu_s += if self.is_varied { cpu_s } else { 0.0 };
        sum.alone_s += alone.clamp(0.0, 1.0) * seconds;
    }

    /// Ends a run of `seconds`. Returns the points that it gives, and its demand.
    pub fn ended(&self, seconds: f64) -> RunDemand {
        let mut all = DemandSum::default();
        for one in self.sums.values() {
            all.seconds += one.seconds;
            all.cpu_s += one.cpu_s;
            all.alone_s += one.alone_s;
        }
        let points = self.points(&all, seconds);
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let cpus = ratio(all.cpu_s, all.alone_s);
        let longest = points.first().and_then(|point| point.busy_cpus);
        RunDemand {
            points,
            cpus: longest.map_or(cpus, |busy| busy.max(cpus)),
            varied_part: ratio(self.varied_cpu_s, all.cpu_s).min(1.0),
        }
    }

    /// Returns the points of a run of `seconds`. `all` is the sum over all numbers of cores.
    fn points(&self, all: &DemandSum, seconds: f64) -> Vec<CurvePoint> {
        let covered = all.seconds / seconds;
        if self.is_interrupted || seconds < SECONDS_MIN || covered < COVERED_MIN {
            return Vec::new();
        }
        let mut longest: Vec<_> = self.sums.iter().collect();
        longest.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
        let points = longest.into_iter().filter_map(|(&milli, sum)| {
            let point = sum.point(all, milli as f64 * 1e-3)?;
            // The time that no reading covers counts at the mean rate of the covered time.
            let rate = point.rate * covered.min(1.0);
            Some(CurvePoint { rate, ..point })
        });
        points.collect()
    }
}

impl DemandSum {
    /// Returns the point on this number of cores, if the time suffices. `all` is the sum over all
    /// numbers of cores.
    fn point(&self, all: &Self, cores: f64) -> Option<CurvePoint> {
        let part = self.seconds / all.seconds;
        let stretch = self.seconds / self.alone_s;
        let is_valid = self.seconds >= SECONDS_MIN * COVERED_MIN
            && part >= PART_MIN
            && self.cpu_s > 0.0
            && stretch <= STRETCH_MAX;
        is_valid.then(|| CurvePoint {
            cores,
            rate: self.cpu_s / all.cpu_s / self.alone_s,
            relative_error: CurvePoint::SINGLE_RUN_ERROR
                + WAIT_ERROR * (stretch - 1.0)
                + PART_ERROR * (1.0 - part),
            busy_cpus: Some(self.cpu_s / self.alone_s),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A phase of a program: CPU time and number of threads.
    type Phase = (f64, u32);

    /// Runs phases beside a load that takes a part of each CPU, with two cores, and reads the
    /// demand at the end of each phase. Returns the trace, the duration, and the duration alone.
    fn run(phases: &[Phase], cores: f64, kept: f64) -> (DemandTrace, f64, f64) {
        let mut trace = DemandTrace::new(1_000);
        trace.moved(cores);
        let (mut at_s, mut cpu_s, mut delay_s, mut alone_s) = (0.0, 0.0, 0.0, 0.0);
        for &(work_s, threads) in phases {
            let threads = f64::from(threads);
            let alone = work_s / threads.min(cores);
            let seconds = alone / kept;
            at_s += seconds;
            cpu_s += work_s;
            delay_s += threads * seconds - work_s;
            alone_s += alone;
            trace.add(DemandReading {
                at_ns: 1_000 + (at_s * 1e9) as u64,
                cpu_ns: (cpu_s * 1e9) as u64,
                delay_ns: (delay_s * 1e9) as u64,
                is_complete: true,
            });
        }
        (trace, at_s, alone_s)
    }

    proptest! {
        #[test]
        fn a_run_beside_a_load_gives_the_duration_alone(
            phases in prop::collection::vec((4.0f64..20.0, 1u32..5), 1..8),
            cores in 1u32..4,
            kept in 0.25f64..1.0,
        ) {
            let (trace, seconds, alone_s) = run(&phases, f64::from(cores), kept);
            let found = trace.ended(seconds).points[0];
            prop_assert!((found.rate * alone_s - 1.0).abs() < 1e-3, "{found:?} {alone_s}");
            prop_assert_eq!(found.cores, f64::from(cores));
            prop_assert!(found.relative_error >= 0.05 && found.relative_error <= 0.13);
        }
    }

    #[test]
    fn sleeps_are_not_shortened() {
        let mut trace = DemandTrace::new(0);
        trace.moved(2.0);
        // Half a second of work and half a second of waits, in 2 s: alone, the run takes 1.5 s.
        trace.add(DemandReading {
            at_ns: 2_000_000_000,
            cpu_ns: 500_000_000,
            delay_ns: 500_000_000,
            is_complete: true,
        });
        let rate = trace.ended(2.0).points[0].rate;
        assert!((rate * 1.5 - 1.0).abs() < 1e-6, "{rate}");
    }

    #[test]
    fn short_partial_stopped_and_divided_runs_give_no_point() {
        let phases = [(4.0, 2)];
        let (trace, seconds, _) = run(&phases, 2.0, 0.5);
        assert_eq!(trace.ended(seconds).points.len(), 1);
        assert_eq!(
            trace.ended(seconds / 0.69).points,
            [],
            "the readings miss too much"
        );
        let (short, seconds, _) = run(&[(0.9, 1)], 2.0, 1.0);
        assert_eq!(short.ended(seconds).points, []);
        let mut stopped = trace.clone();
        stopped.interrupted();
        assert_eq!(stopped.ended(4.0).points, []);
        let (crowded, seconds, _) = run(&phases, 2.0, 0.04);
        assert_eq!(crowded.ended(seconds).points, []);
        let mut ended = trace.clone();
        ended.add(DemandReading {
            at_ns: 9_000_000_000,
            cpu_ns: 8_000_000_000,
            delay_ns: 0,
            is_complete: false,
        });
        assert_eq!(
            ended,
            DemandTrace {
                last: ended.last,
                ..trace.clone()
            }
        );
        // Five numbers of cores with a fifth of the time each.
        let mut divided = DemandTrace::new(0);
        for cores in 1..6 {
            divided.moved(cores as f64);
            divided.add(DemandReading {
                at_ns: cores * 2_000_000_000,
                cpu_ns: cores * 2_000_000_000,
                delay_ns: 0,
                is_complete: true,
            });
        }
        assert_eq!(divided.ended(10.0).points, []);
    }

    #[test]
    fn each_number_of_cores_with_a_quarter_of_the_time_gives_a_point() {
        // 2 s on two cores, then 6 s on one core, with two threads throughout.
        let mut trace = DemandTrace::new(0);
        for (cores, at_s, cpu_s, delay_s) in [(2.0, 2.0, 4.0, 0.0), (1.0, 8.0, 10.0, 6.0)] {
            trace.moved(cores);
            trace.add(DemandReading {
                at_ns: (at_s * 1e9) as u64,
                cpu_ns: (cpu_s * 1e9) as u64,
                delay_ns: (delay_s * 1e9) as u64,
                is_complete: true,
            });
        }
        let points = trace.ended(8.0).points.into_iter();
        let values: Vec<_> = points
            .map(|p| (p.cores, p.rate, p.relative_error))
            .collect();
        for (found, expected) in values.iter().zip([(1.0, 0.1, 0.075), (2.0, 0.2, 0.125)]) {
            assert_eq!(found.0, expected.0);
            assert!((found.1 - expected.1).abs() < 1e-9, "{values:?}");
            assert!((found.2 - expected.2).abs() < 1e-9, "{values:?}");
        }
        assert_eq!(values.len(), 2);
    }

    #[test]
    fn a_varied_run_without_points_still_counts() {
        let varied = |seconds: u64| {
            let mut varied = VariedTime::default();
            varied.set(0, Some(0.25));
            varied.set(seconds * 1_000_000_000, None);
            varied
        };
        let (mut stopped, seconds, _) = run(&[(4.0, 2)], 2.0, 0.5);
        let unread = DemandTrace::new(0);
        assert_eq!(unread.ended(9.0).finished(9.0, &varied(0)), None);
        let finished = unread.ended(9.0).finished(9.0, &varied(4)).unwrap();
        assert_eq!((finished.seconds, finished.varied_seconds), (9.0, 4.0));
        assert_eq!((finished.lost_seconds, finished.varied_part), (1.0, 0.0));
        stopped.interrupted();
        let demand = stopped.ended(seconds);
        assert!(demand.points.is_empty() && demand.cpus > 0.0);
        assert_eq!(demand.finished(seconds, &varied(0)), None);
        assert!(demand.finished(seconds, &varied(1)).is_some());
    }
}
