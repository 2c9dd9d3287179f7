// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures one cell of the matrix (a combination of foreground, background, disk and usage degree)
//! under each treatment, which is a way to run background work.
//!
//! 1. The amount of work of the load generators `Disk` and `Net` is fitted. It begins with 200
//!    units and grows by a factor of 2 to 20, until the foreground alone takes more than 40 % of
//!    the wanted time. It is then scaled to the wanted time. Another program has a fixed amount of
//!    work and runs twice alone.
//! 2. In each round, each treatment that needs a further pair gets a pair: one run of the
//!    foreground alone, and one beside the background. The order of the treatments and of the two
//!    runs rotates from pair to pair.
//! 3. Each treatment gets [`Limits::pairs_min`] pairs. The treatment `usher` gets more pairs until
//!    its confidence interval is narrow ([`super::study`]), at most [`Limits::pairs_max`]. The
//!    comparison of two runs alone continues as long as any treatment does.
//!
//! A foreground beside the background is stopped after [`Limits::cut`] times its time alone, but
//! not before 5 s. A foreground alone may take at most 10 minutes; otherwise the measurement fails.
//!
//! The background must start within 10 s, and must run until the foreground has ended. An error in
//! a pair ends the measurement of that treatment only. An error before the first pair ends the
//! measurement of the cell.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::actors::{Background, ForegroundRun, foreground};
use super::experiments::{Cell, Task};
use super::fixture::BackgroundFixture;
use super::jobs::{Job, JobKind, WorkAmount};
use super::load::PERIOD_MS;
use super::study::{CellResult, Pair, TreatmentPairs};
use super::treatments::{BackgroundMethod, RegulatorFixture};
use crate::processes::wait_for;

/// Limits on the number of pairs and on the time of a foreground.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Minimum number of pairs of each treatment.
    pub pairs_min: usize,
    /// Maximum number of pairs of a treatment that gets pairs until its confidence interval is
    /// narrow.
    pub pairs_max: usize,
    /// A foreground beside the background is stopped after this multiple of its time alone.
    pub cut: f64,
    /// Time that the background runs before the foreground starts.
    pub lead: Duration,
}

/// Measures cells.
pub struct Bench<'a> {
    /// The set-up.
    pub fixture: &'a mut BackgroundFixture,
    /// Daemon, cgroup and folder of the treatments.
    pub regulator: &'a mut RegulatorFixture,
    /// Limits on pairs and times.
    pub limits: Limits,
}

/// The foreground command of a cell, with its fitted amount of work.
struct FittedForeground {
    job: Job,
    /// Approximate time of the foreground alone, in seconds.
    alone_s: f64,
}

/// Returns whether a treatment gets pairs until its confidence interval is narrow.
fn must_resolve(treatment: BackgroundMethod) -> bool {
    treatment == BackgroundMethod::Usher
}

/// Returns whether a treatment needs another pair. `others_continue`: another treatment does.
fn needs_more_pairs(tally: &TreatmentPairs, limits: &Limits, others_continue: bool) -> bool {
    let n = tally.pairs.len();
    if tally.error.is_some() {
        return false;
    }
    match tally.treatment {
        _ if n < limits.pairs_min => true,
        // The noise band of two runs alone gets pairs as long as a treatment that is compared with
        // the band needs pairs.
        BackgroundMethod::Alone => others_continue,
        treatment => must_resolve(treatment) && n < limits.pairs_max && !tally.is_resolved(),
    }
}

impl Bench<'_> {
    /// Measures a cell under those of the `treatments` that are realistic for the cell's
    /// background. Calls `progress` after every pair.
    pub fn cell(
        &mut self,
        cell: Cell,
        treatments: &[BackgroundMethod],
        progress: &mut dyn FnMut(&TreatmentPairs),
    ) -> Result<CellResult> {
        for task in [cell.fg, cell.bg] {
            self.fixture.prepare(task, cell.place, cell.bg_count)?;
        }
        let fg = self.fit(&cell)?;
        let sensible = treatments.iter().filter(|t| t.is_sensible(cell.bg));
        let mut tallies: Vec<TreatmentPairs> = sensible.map(|&t| TreatmentPairs::new(t)).collect();
        for round in 0.. {
            let needs_pair = |tally: &TreatmentPairs, others_continue| {
                needs_more_pairs(tally, &self.limits, others_continue)
            };
            let others_continue = tallies.iter().any(|tally| needs_pair(tally, false));
            let turns: Vec<usize> = (0..tallies.len())
                .filter(|&i| needs_pair(&tallies[i], others_continue))
                .collect();
            if turns.is_empty() {
                break;
            }
            for turn in 0..turns.len() {
                let tally = &mut tallies[turns[(turn + round) % turns.len()]];
                match self.pair(
                    &cell,
                    &fg,
                    tally.treatment,
                    (round + turn).is_multiple_of(2),
                ) {
                    Ok(pair) => tally.pairs.push(pair),
                    Err(error) => tally.error = Some(format!("{error:#}")),
                }
                progress(tally);
            }
        }
        let notes = vec![format!(
            "the foreground work alone takes about {:.2} s",
            fg.alone_s
        )];
        Ok(CellResult {
            cell,
            tallies,
            notes,
        })
    }

    /// Finds the amount of work with which the foreground alone takes the wanted time.
    fn fit(&mut self, cell: &Cell) -> Result<FittedForeground> {
        let job = |fixture: &BackgroundFixture, work| {
            fixture.job(cell.fg, JobKind::Fg(work), cell.place, cell.usage)
        };
        if !matches!(cell.fg, Task::Disk | Task::Net) {
            let job = job(self.fixture, None)?;
            // The first run fills the caches.
            self.alone(cell, &job, true)?;
            let alone_s = self.alone(cell, &job, true)?.seconds;
            return Ok(FittedForeground { job, alone_s });
        }
        let target_s = self.fixture.size.fg_seconds;
        let mut units = 200;
        loop {
            let by_clock = WorkAmount { units, burst: None };
            let seconds = self
                .alone(cell, &job(self.fixture, Some(by_clock))?, true)?
                .seconds;
            ensure!(
                units < 1 << 40,
                "{} does no work in the foreground",
                cell.fg.name()
            );
            if seconds > 0.4 * target_s {
                let rate = units as f64 / seconds;
                let work = WorkAmount {
                    units: (rate * target_s).ceil() as u64,
                    burst: (cell.usage < 100.0).then(|| (rate * PERIOD_MS / 1e3).ceil() as u64),
                };
                return Ok(FittedForeground {
                    job: job(self.fixture, Some(work))?,
                    alone_s: target_s,
                });
            }
            let growth = (0.7 * target_s / seconds.max(0.02)).clamp(2.0, 20.0);
            units = (units as f64 * growth) as u64;
        }
    }

    fn alone(&self, cell: &Cell, job: &Job, own_session: bool) -> Result<ForegroundRun> {
        self.fixture.refresh(cell.fg, cell.place)?;
        let timed = foreground(&job.words, own_session, Duration::from_secs(600))?;
        ensure!(
            !timed.cut,
            "the foreground work alone took longer than 10 minutes"
        );
        Ok(timed)
    }

    fn pair(
        &mut self,
        cell: &Cell,
        fg: &FittedForeground,
        treatment: BackgroundMethod,
        alone_first: bool,
    ) -> Result<Pair> {
        self.regulator.prepare(treatment)?;
        let own = treatment.separates_sessions();
        let mut alone_s = f64::NAN;
        if alone_first {
            alone_s = self.alone(cell, &fg.job, own)?.seconds;
        }
        let (timed, done) = match treatment {
            BackgroundMethod::Alone => (self.alone(cell, &fg.job, own)?, Default::default()),
            _ => self.measure_with_background(cell, fg, treatment)?,
        };
        if !alone_first {
            alone_s = self.alone(cell, &fg.job, own)?.seconds;
        }
        Ok(Pair {
            alone_s,
            beside_s: timed.seconds,
            cut: timed.cut,
            alone_first,
            done,
        })
    }

    fn measure_with_background(
        &mut self,
        cell: &Cell,
        fg: &FittedForeground,
        treatment: BackgroundMethod,
    ) -> Result<(ForegroundRun, super::study::BackgroundWork)> {
        let jobs: Vec<Job> = (1..=cell.bg_count)
            .map(|number| {
                let job = self
                    .fixture
                    .job(cell.bg, JobKind::Bg(number), cell.place, cell.usage)?;
                let words = self.regulator.wrap(treatment, number, job.words)?;
                Ok(Job { words, ..job })
            })
            .collect::<Result<_>>()?;
        self.fixture.refresh(cell.fg, cell.place)?;
        let mut background = Background::start(&jobs, self.regulator.runtime())?;
        wait_for(
            "the start of the background work",
            Duration::from_secs(10),
            || !background.processes().is_empty(),
        )?;
        std::thread::sleep(self.limits.lead);
        background.must_run()?;
        background.begin();
        let at_most = Duration::from_secs_f64((fg.alone_s * self.limits.cut).max(5.0));
        let timed = foreground(&fg.job.words, treatment.separates_sessions(), at_most)?;
        let done = background.done();
        background.must_run()?;
        background.end().with_context(|| {
            format!(
                "ending the background {} under {}",
                cell.bg.name(),
                treatment.name()
            )
        })?;
        Ok((timed, done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::study::BackgroundWork;

    const LIMITS: Limits = Limits {
        pairs_min: 5,
        pairs_max: 8,
        cut: 20.0,
        lead: Duration::ZERO,
    };

    fn tally(treatment: BackgroundMethod, ratios: &[f64]) -> TreatmentPairs {
        let mut tally = TreatmentPairs::new(treatment);
        tally.pairs = ratios
            .iter()
            .map(|&beside_s| Pair {
                alone_s: 1.0,
                beside_s,
                cut: false,
                alone_first: true,
                done: BackgroundWork::default(),
            })
            .collect();
        tally
    }

    #[test]
    fn pairs_are_added_until_usher_is_resolved_or_the_limit() {
        let needs_more = |t: &TreatmentPairs| needs_more_pairs(t, &LIMITS, false);
        assert!(needs_more(&tally(BackgroundMethod::Nice, &[1.0; 4])));
        assert!(!needs_more(&tally(
            BackgroundMethod::Nice,
            &[1.0, 2.0, 3.0, 4.0, 5.0]
        )));
        assert!(!needs_more(&tally(BackgroundMethod::Usher, &[1.0; 5])));
        assert!(needs_more(&tally(
            BackgroundMethod::Usher,
            &[1.0, 1.0, 1.0, 1.0, 1.5]
        )));
        assert!(!needs_more(&tally(
            BackgroundMethod::Usher,
            &[1.0, 1.5].repeat(4)
        )));
    }

    #[test]
    fn the_band_grows_with_the_treatments_compared_with_it() {
        let aa = tally(BackgroundMethod::Alone, &[1.0; 5]);
        assert!(needs_more_pairs(&aa, &LIMITS, true));
        assert!(!needs_more_pairs(&aa, &LIMITS, false));
    }

    #[test]
    fn a_treatment_that_failed_is_left() {
        let mut failed = tally(BackgroundMethod::Usher, &[]);
        failed.error = Some("no".to_owned());
        assert!(!needs_more_pairs(&failed, &LIMITS, true));
    }
}
