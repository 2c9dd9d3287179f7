// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes and compares the lengths of runs. A *run* is the time for which a thread runs until
//! another thread runs on the same CPU.
//!
//! With longer runs there are fewer switches, even under a scheduler that ignores address spaces.
//! Usher is therefore also compared with EEVDF with several base slices. A note selects the base
//! slice with the mean run that is most similar in length to Usher's (smallest ratio), and compares
//! the numbers of address-space switches. The mean run is CPU time / switches; if CPUs are idle at
//! times, this is an upper bound.

use super::medians::{cell, ratio};
use super::schedulers::ComparedScheduler;

/// Number of CPUs of the guest. All of them are busy until the first program ends.
pub const CPUS: f64 = 2.0;

/// Those figures of a scheduler that depend on the length of runs.
#[derive(Debug, Clone, Copy)]
pub struct RunLengths<'a> {
    pub scheduler: &'a ComparedScheduler,
    pub run_ms: Option<f64>,
    /// Number of switches to another address space.
    pub spaces: Option<f64>,
    /// 99th percentile of the sleeping thread's wake-up delay in ms; `None` without a sleeping
    /// thread.
    pub late_ms: Option<f64>,
}

/// Returns the mean length of a run in milliseconds: CPU time until the end of the last program /
/// number of switches.
pub fn mean_ms(last_s: Option<f64>, switches: Option<f64>) -> Option<f64> {
    Some(1e3 * CPUS * ratio(last_s, switches)?)
}

/// Returns a sentence that compares Usher with EEVDF at the base slice with the most similar length
/// of runs. The sentence starts with `begin`, which is "Of", or a condition followed by "of".
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
            // 7.0 is nearer to 4.0 than 1.5 is, because lengths are compared by their ratio.
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
