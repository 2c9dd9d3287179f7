// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arithmetic of a calibration: from readings of runs to the errors of the sources.

use std::collections::BTreeMap;

use usher_learn::BYTES_MIN;
use usher_model::{ProgressSource, SourceErrors};

use super::program::CalibrationProgram;

/// The work of one run of a calibration program, and the units that a source counted in the same
/// time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SourceReading {
    /// The program.
    pub program: CalibrationProgram,
    /// Number of cores of the run.
    pub cores: u32,
    /// The source.
    pub source: ProgressSource,
    /// Work done, as the program itself counts it.
    pub work: f64,
    /// Units that the source counted.
    pub units: f64,
}

/// Returns the errors of the sources.
///
/// 1. The units per work of a source, for one program on one number of cores, are the units of all
///    runs divided by the work of all runs.
/// 2. The error for a program is the greatest relative error of a speed-up between two numbers of
///    cores: the greatest units per work, divided by the least, minus 1.
/// 3. The error of a source is its greatest error for a program. Programs with busy-waiting threads
///    are separate.
///
/// If a source counted nothing in one run of a program, the source has no error for this program. A
/// count of less than 1 MiB of bytes is ignored, as in ordinary runs ([`BYTES_MIN`]). A source
/// without readings on two numbers of cores has no error.
pub fn source_errors(readings: &[SourceReading]) -> SourceErrors {
    let mut totals: BTreeMap<(CalibrationProgram, ProgressSource), BTreeMap<u32, (f64, f64)>> =
        BTreeMap::new();
    for one in readings {
        let by_cores = totals.entry((one.program, one.source)).or_default();
        let total = by_cores.entry(one.cores).or_insert((0.0, 0.0));
        let least = match one.source {
            ProgressSource::Bytes => BYTES_MIN as f64,
            _ => f64::MIN_POSITIVE,
        };
        let is_valid = one.work > 0.0 && one.units >= least;
        let (units, work) = match is_valid {
            true => (one.units, one.work),
            false => (f64::NAN, f64::NAN),
        };
        *total = (total.0 + units, total.1 + work);
    }
    let mut errors = SourceErrors::default();
    for ((program, source), by_cores) in totals {
        let units_per_work: Vec<f64> = by_cores
            .values()
            .map(|(units, work)| units / work)
            .collect();
        let Some(error) = speed_up_error(&units_per_work) else {
            continue;
        };
        let busy_waits = program.busy_waits();
        let other = errors.get(source, busy_waits).unwrap_or(0.0);
        errors.set(source, busy_waits, error.max(other));
    }
    errors
}

/// Returns the greatest relative error of a speed-up; `None` with fewer than two values, or with a
/// value that is not finite.
fn speed_up_error(units_per_work: &[f64]) -> Option<f64> {
    let (least, most) = (units_per_work.iter())
        .fold((f64::INFINITY, 0.0_f64), |(least, most), &value| {
            (least.min(value), most.max(value))
        });
    let is_valid = units_per_work.len() > 1 && units_per_work.iter().all(|v| v.is_finite());
    is_valid.then_some(most / least - 1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use usher_model::ProgressSource::{Bytes, CpuTime, Heartbeat};

    use super::*;
    use CalibrationProgram::{BusyWait, Compute, Stream};

    fn reading(
        program: CalibrationProgram,
        cores: u32,
        source: ProgressSource,
        work: f64,
        units: f64,
    ) -> SourceReading {
        SourceReading {
            program,
            cores,
            source,
            work,
            units,
        }
    }

    #[test]
    fn the_error_is_that_of_the_speed_up() {
        let errors = source_errors(&[
            // The true speed-up is 1.5. CPU time shows 2.0, and heartbeats show 1.5.
            reading(BusyWait, 1, CpuTime, 100.0, 1.0),
            reading(BusyWait, 2, CpuTime, 150.0, 2.0),
            reading(BusyWait, 1, Heartbeat, 100.0, 100.0),
            reading(BusyWait, 2, Heartbeat, 150.0, 150.0),
        ]);
        let error = errors.get(CpuTime, true).unwrap();
        assert!((error - (2.0 / 1.5 - 1.0)).abs() < 1e-12, "{error}");
        assert_eq!(errors.get(Heartbeat, true), Some(0.0));
        assert_eq!(
            errors.get(Heartbeat, false),
            None,
            "programs that busy-wait are separate"
        );
    }

    #[test]
    fn the_worst_program_counts_and_runs_are_added_up() {
        let errors = source_errors(&[
            reading(Compute, 1, CpuTime, 10.0, 10.0),
            reading(Compute, 2, CpuTime, 20.0, 20.0),
            reading(Stream, 1, CpuTime, 10.0, 10.0),
            // 12 units per 10 of work in one run and 10 in the other.
            reading(Stream, 2, CpuTime, 10.0, 12.0),
            reading(Stream, 2, CpuTime, 10.0, 10.0),
        ]);
        let error = errors.get(CpuTime, false).unwrap();
        assert!((error - 0.1).abs() < 1e-12, "{error}");
    }

    #[test]
    fn a_source_is_rated_only_where_it_counts() {
        let one_count = [
            reading(Stream, 2, Heartbeat, 10.0, 12.0),
            reading(Stream, 2, Heartbeat, 10.0, 11.0),
        ];
        assert!(source_errors(&one_count).is_empty());
        let nothing_counted = [
            reading(Compute, 1, Heartbeat, 10.0, 0.0),
            reading(Compute, 2, Heartbeat, 10.0, 5.0),
            reading(Stream, 1, Heartbeat, 0.0, 5.0),
            reading(Stream, 2, Heartbeat, 5.0, 5.0),
            // The program writes a few lines, and no data.
            reading(Compute, 1, Bytes, 10.0, 900.0),
            reading(Compute, 2, Bytes, 20.0, 900.0),
        ];
        assert!(source_errors(&nothing_counted).is_empty());
        assert!(source_errors(&[]).is_empty());
    }

    fn runs() -> impl Strategy<Value = Vec<(u32, f64, f64)>> {
        prop::collection::vec((1_u32..5, 1.0..1e6_f64, 0.5..2.0_f64), 2..20)
    }

    fn errors_of(runs: &[(u32, f64, f64)], unit: f64) -> Option<f64> {
        let readings = (runs.iter()).map(|&(cores, work, factor)| {
            reading(Compute, cores, Heartbeat, work, work * factor * unit)
        });
        source_errors(&readings.collect::<Vec<_>>()).get(Heartbeat, false)
    }

    proptest! {
        #[test]
        fn the_unit_and_the_order_do_not_matter(mut runs in runs(), unit in 1e-3..1e9_f64) {
            let expected = errors_of(&runs, 1.0);
            runs.reverse();
            match (expected, errors_of(&runs, unit)) {
                (Some(a), Some(b)) => prop_assert!((a - b).abs() < 1e-9 * (1.0 + a), "{a} {b}"),
                (a, b) => prop_assert_eq!(a, b),
            }
        }

        #[test]
        fn a_proportional_source_has_no_error(runs in runs(), factor in 1e-3..1e3_f64) {
            let exact: Vec<_> = runs.iter().map(|run| (run.0, run.1, factor)).collect();
            if let Some(error) = errors_of(&exact, 1.0) {
                prop_assert!((0.0..1e-9).contains(&error), "{error}");
            }
        }

        #[test]
        fn every_speed_up_is_within_the_error(runs in runs()) {
            let Some(error) = errors_of(&runs, 1.0) else { return Ok(()) };
            for a in 1..5 {
                for b in 1..5 {
                    let total = |cores| runs.iter().filter(|run| run.0 == cores).fold(
                        (0.0, 0.0), |(work, units), run| (work + run.1, units + run.1 * run.2));
                    let ((work_a, units_a), (work_b, units_b)) = (total(a), total(b));
                    if work_a > 0.0 && work_b > 0.0 {
                        let shown = (units_b / units_a) / (work_b / work_a);
                        prop_assert!(shown <= (1.0 + error) * (1.0 + 1e-9), "{shown} {error}");
                    }
                }
            }
        }
    }
}
