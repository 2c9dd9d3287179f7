// SPDX-License-Identifier: MIT OR Apache-2.0
//! Length of a run: the time for which a thread runs until another thread runs on that CPU.
//!
//! Longer runs mean fewer switches, even if the scheduler ignores address spaces. The comparison
//! with Usher therefore includes EEVDF with several base slices, and a note compares Usher with the
//! slice that gives the nearest mean run, by the ratio of the lengths. The mean is CPU time /
//! switches, and so an upper bound if CPUs are idle at times.

use super::medians::{cell, ratio};
use super::schedulers::ComparedScheduler;

/// CPUs of the guest. All of them are busy until the first program ends.
pub const CPUS: f64 = 2.0;

/// A scheduler's figures that depend on the length of runs.
#[derive(Debug, Clone, Copy)]
pub struct RunLengths<'a> {
    pub scheduler: &'a ComparedScheduler,
    pub run_ms: Option<f64>,
    /// Switches to another address space.
    pub spaces: Option<f64>,
    /// Upper bound of 99 % of the sleeper's waits, if there is a sleeper.
    pub late_ms: Option<f64>,
}

/// Mean length of a run in milliseconds: CPU time until the last program ended / switches.
pub fn mean_ms(last_s: Option<f64>, switches: Option<f64>) -> Option<f64> {
    Some(1e3 * CPUS * ratio(last_s, switches)?)
}

/// Compares usher with EEVDF at the slice that gives runs of the nearest length, in a sentence
/// that starts with `begin`: "Of", or a condition followed by "of".
pub fn nearest(begin: &str, all: &[RunLengths]) -> Option<String> {
    let ours = all
        .iter()
        .find(|runs| *runs.scheduler == ComparedScheduler::Usher)?;
    let run_ms = ours.run_ms?;
    let is_eevdf = |runs: &&RunLengths| {
        matches!(
            runs.scheduler,
            ComparedScheduler::Eevdf | ComparedScheduler::EevdfSlice { .. }
        )
    };
    let far = |runs: &RunLengths| {
        let run = runs.run_ms;
        run.map_or(f64::INFINITY, |ms| (ms / run_ms).ln().abs())
    };
    let nearest = all.iter().filter(is_eevdf);
    let nearest = nearest.min_by(|a, b| far(a).total_cmp(&far(b)))?;
    let share = ratio(ours.spaces, nearest.spaces)?;
    let late = ratio(ours.late_ms, nearest.late_ms).map(|late| {
        let late = cell(Some(late), 2);
        format!(", and the 99th percentile of the sleeper's wake-up delay is {late} times as long")
    });
    Some(format!(
        "{begin} the measured slices of EEVDF, the slice whose mean run is nearest to that of \
         usher ({} ms) is {} ({} ms): usher switches to another address space {} times as often \
         as EEVDF with that slice{}.",
        cell(Some(run_ms), 1),
        nearest.scheduler.label(),
        cell(nearest.run_ms, 1),
        cell(Some(share), 2),
        late.unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slice_with_the_nearest_run_length_is_found() {
        let slices = [2, 8].map(|ms| ComparedScheduler::EevdfSlice { ms });
        let runs = |scheduler, run_ms, spaces, late_ms| RunLengths {
            scheduler,
            run_ms,
            spaces: Some(spaces),
            late_ms,
        };
        let all = [
            runs(&ComparedScheduler::Usher, Some(4.0), 100.0, None),
            runs(&slices[0], Some(1.5), 900.0, None),
            // Nearer than 1.5: what counts is the ratio.
            runs(&slices[1], Some(7.0), 400.0, Some(1.0)),
            runs(&ComparedScheduler::Fifo, Some(4.0), 1.0, None),
        ];
        let note = nearest("Of", &all).unwrap();
        assert!(
            note.starts_with("Of the measured slices of EEVDF"),
            "{note}"
        );
        let found = "EEVDF, slices of 8 ms (7.0 ms): usher switches to another address space 0.25 \
                     times";
        assert!(note.contains(found), "{note}");
        assert!(!note.contains("sleeper"), "{note}");
        assert_eq!(nearest("Of", &all[1..]), None);
        assert_eq!(mean_ms(Some(2.0), Some(1000.0)), Some(4.0));
    }
}
