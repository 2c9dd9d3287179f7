// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps measurements away from a busy machine. Other programs that run beside a measurement make
//! the measured program slower, and its scalability curve wrong.
//!
//! 1. Before the measurement, [`LoadGuard::wait_until_quiet`] measures the other programs over
//!    windows of 0.5 s. It returns after the first window that is within the limits, and refuses
//!    after 60 s of waiting in all, by default ([`WAIT_MAX`]).
//! 2. Each run lies between [`LoadGuard::begin`] and [`LoadGuard::end`]. A run that was disturbed is
//!    discarded, and repeated after another wait. The measurement is refused after three discarded
//!    runs ([`DISCARDED_MAX`]).
//! 3. With [`LoadCheck::Force`], nothing waits and no run is discarded. The guard keeps the first
//!    disturbance ([`LoadGuard::disturbance`]), and a disturbed measurement is not stored.
//!
//! **Limits.** Other programs may use 0.1 CPUs on average ([`CPUS_MAX`]), or 1 % of the machine's
//! CPUs ([`SHARE_MAX`]) if this is more, plus 0.05 s of CPU time ([`SLACK_SECONDS`]) for the
//! resolution of the counters. Many short runs are also added up, so that their slack does not
//! hide a disturbance. The hypervisor may take 10 % of the CPU time ([`STEAL_MAX`]). During a wait,
//! when no measured program runs, some task may wait for a CPU 25 % of the time ([`WAITING_MAX`]),
//! where the kernel reports pressure.
//!
//! The CPU time of other programs is that of [`LoadSnapshot`].

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use usher_probe::{LoadSnapshot, OtherLoad, Roots};

pub use crate::load_limits::{CPUS_MAX, SHARE_MAX, SLACK_SECONDS};
use crate::measured::{RunError, wait_readable};
use crate::text;

/// Fraction of the wanted CPU time that the hypervisor may give to other virtual machines.
pub const STEAL_MAX: f64 = 0.10;
/// Fraction of the time of a wait in which some task of the machine may wait for a CPU.
pub const WAITING_MAX: f64 = 0.25;
/// Default upper limit of all waits of one measurement together.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// Number of discarded runs after which a measurement is refused.
pub const DISCARDED_MAX: u32 = 3;
/// Duration of a window in which a wait measures the other programs.
const WINDOW: Duration = Duration::from_millis(500);

/// What a measurement does on a busy machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LoadCheck {
    /// Measures without a check, for callers that ensure a quiet machine themselves.
    #[default]
    Off,
    /// Waits, and refuses if the machine stays busy.
    Wait,
    /// Measures on a busy machine, too, and marks the result as disturbed.
    Force,
}

/// The rule by which a measurement checks for other programs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadRule {
    /// What to do on a busy machine.
    pub check: LoadCheck,
    /// Number of CPUs that other programs may use; `None` for the default. A value of at least the
    /// number of the machine's CPUs disables the check.
    pub cpus_max: Option<f64>,
    /// Upper limit of all waits of one measurement together.
    pub wait_max: Duration,
}

impl Default for LoadRule {
    fn default() -> Self {
        Self {
            check: LoadCheck::default(),
            cpus_max: None,
            wait_max: WAIT_MAX,
        }
    }
}

/// The machine is too busy for a measurement.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "the machine is too busy to measure: {reason}; end the other programs and try again, or use \
     --force to measure with a warning"
)]
pub struct BusyMachine {
    /// Use by other programs, the limit, and the busiest processes.
    pub reason: String,
}

/// Checks a measurement for disturbances by other programs.
#[derive(Debug)]
pub struct LoadGuard {
    rule: LoadRule,
    roots: Roots,
    /// Number of CPUs of the machine.
    cpus: f64,
    waited: Duration,
    discarded: u32,
    /// Use of all accepted runs together.
    accepted: OtherLoad,
    disturbance: Option<String>,
}

impl LoadGuard {
    /// Creates the guard of one measurement on a machine with this number of CPUs.
    pub fn new(rule: LoadRule, roots: &Roots, cpus: usize) -> Self {
        let cpus = cpus as f64;
        let is_off = rule.cpus_max.is_some_and(|max| max >= cpus);
        let check = if is_off { LoadCheck::Off } else { rule.check };
        Self {
            rule: LoadRule { check, ..rule },
            roots: roots.clone(),
            cpus,
            waited: Duration::ZERO,
            discarded: 0,
            accepted: OtherLoad::default(),
            disturbance: None,
        }
    }

    /// Returns the first disturbance of the measurement; `None` if it was undisturbed or is not
    /// checked.
    pub fn disturbance(&self) -> Option<&str> {
        self.disturbance.as_deref()
    }

    /// Waits until other programs are within the limits. `on_busy` is called once, with a line for
    /// the user, if the machine is busy. With [`LoadCheck::Force`], only measures one window, and
    /// only before the first run.
    ///
    /// # Errors
    /// The machine stays busy, the counters cannot be read, or `cancel` was set.
    pub fn wait_until_quiet(
        &mut self,
        cancel: &AtomicBool,
        on_busy: &mut dyn FnMut(&str),
    ) -> Result<(), RunError> {
        let is_first = self.accepted.seconds == 0.0 && self.discarded == 0;
        match self.rule.check {
            LoadCheck::Off => return Ok(()),
            LoadCheck::Force if !is_first => return Ok(()),
            LoadCheck::Wait | LoadCheck::Force => {}
        }
        let mut reported = false;
        let left = self.rule.wait_max.saturating_sub(self.waited);
        loop {
            let began = Instant::now();
            let load = self.window(cancel)?;
            let waiting = load.waiting_share.filter(|share| *share > WAITING_MAX);
            let Some(reason) = self.excess(&load).or_else(|| waiting.map(waiting_text)) else {
                return Ok(());
            };
            if self.rule.check == LoadCheck::Force {
                on_busy(&format!(
                    "the result will be inaccurate, because the machine is busy: {reason}"
                ));
                self.disturbance.get_or_insert(reason);
                return Ok(());
            }
            self.waited += began.elapsed();
            if self.waited >= self.rule.wait_max {
                return Err(BusyMachine { reason }.into());
            }
            if !std::mem::replace(&mut reported, true) {
                let left = text::seconds(left.as_secs_f64());
                on_busy(&format!(
                    "waiting up to {left} for a quiet machine, because {reason}"
                ));
            }
        }
    }

    /// Measures the other programs over one window.
    fn window(&self, cancel: &AtomicBool) -> Result<OtherLoad, RunError> {
        let before = self.snapshot()?;
        let began = Instant::now();
        while began.elapsed() < WINDOW {
            wait_readable(&[], cancel)?;
        }
        Ok(self.snapshot()?.since(&before))
    }

    /// Starts a run; `None` if the measurement is not checked.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn begin(&self) -> Result<Option<LoadSnapshot>, RunError> {
        match self.rule.check {
            LoadCheck::Off => Ok(None),
            LoadCheck::Wait | LoadCheck::Force => self.snapshot().map(Some),
        }
    }

    /// Ends a run, before the processes of the run are killed. Returns why the run must be
    /// repeated; `None` if the run counts.
    ///
    /// # Errors
    /// Too many runs were disturbed, or the counters cannot be read.
    pub fn end(&mut self, before: Option<&LoadSnapshot>) -> Result<Option<String>, RunError> {
        let Some(before) = before else {
            return Ok(None);
        };
        let load = self.snapshot()?.since(before);
        self.evaluate(&load)
    }

    fn evaluate(&mut self, load: &OtherLoad) -> Result<Option<String>, RunError> {
        let sum = add(&self.accepted, load);
        let reason = self.excess(load).or_else(|| self.excess(&sum));
        let Some(reason) = reason else {
            self.accepted = sum;
            return Ok(None);
        };
        if self.rule.check == LoadCheck::Force {
            self.accepted = sum;
            self.disturbance.get_or_insert(reason);
            return Ok(None);
        }
        self.discarded += 1;
        match self.discarded > DISCARDED_MAX {
            true => Err(BusyMachine { reason }.into()),
            false => Ok(Some(reason)),
        }
    }

    fn snapshot(&self) -> Result<LoadSnapshot, RunError> {
        let own = std::process::id().cast_signed();
        LoadSnapshot::take(&self.roots, own).map_err(|error| RunError::System {
            doing: "reading the CPU time of other programs",
            source: std::io::Error::other(error.to_string()),
        })
    }

    fn cpus_max(&self) -> f64 {
        let default = CPUS_MAX.max(SHARE_MAX * self.cpus);
        self.rule.cpus_max.unwrap_or(default)
    }

    /// Returns the description of a use beyond the limits.
    fn excess(&self, load: &OtherLoad) -> Option<String> {
        let max = self.cpus_max();
        if load.cpus * load.seconds > max * load.seconds + SLACK_SECONDS {
            let list: Vec<_> = (load.busiest.iter())
                .map(|one| format!("{} (pid {}) {:.1}", one.name, one.pid, one.cpus))
                .collect();
            let list = match list.is_empty() {
                true => String::new(),
                false => format!(": {}", list.join(", ")),
            };
            return Some(format!(
                "other programs use {:.1} of {:.0} CPUs (limit {max:.1}){list}",
                load.cpus, self.cpus
            ));
        }
        (load.steal_share > STEAL_MAX && load.seconds * self.cpus > 1.0).then(|| {
            format!(
                "the hypervisor gives {:.0} % of the CPU time to other virtual machines (limit \
                 {:.0} %)",
                100.0 * load.steal_share,
                100.0 * STEAL_MAX
            )
        })
    }
}

fn waiting_text(share: f64) -> String {
    format!(
        "other programs wait for CPUs {:.0} % of the time (limit {:.0} %)",
        100.0 * share,
        100.0 * WAITING_MAX
    )
}

/// Returns the use of two runs together. The busiest processes are those of the second run.
fn add(first: &OtherLoad, second: &OtherLoad) -> OtherLoad {
    let seconds = first.seconds + second.seconds;
    let mean = |a: f64, b: f64| match seconds > 0.0 {
        true => (a * first.seconds + b * second.seconds) / seconds,
        false => 0.0,
    };
    OtherLoad {
        seconds,
        cpus: mean(first.cpus, second.cpus),
        steal_share: mean(first.steal_share, second.steal_share),
        waiting_share: None,
        busiest: second.busiest.clone(),
    }
}

#[cfg(test)]
mod tests {
    use usher_probe::BusyProcess;

    use super::*;

    fn guard(check: LoadCheck, cpus_max: Option<f64>) -> LoadGuard {
        let rule = LoadRule {
            check,
            cpus_max,
            ..LoadRule::default()
        };
        LoadGuard::new(rule, &Roots::default(), 2)
    }

    fn load(seconds: f64, cpus: f64) -> OtherLoad {
        OtherLoad {
            seconds,
            cpus,
            busiest: vec![BusyProcess {
                pid: 7,
                name: "loop".to_owned(),
                cpus,
            }],
            ..OtherLoad::default()
        }
    }

    #[test]
    fn a_disturbed_run_is_discarded_and_the_fourth_ends_the_measurement() {
        let mut guard = guard(LoadCheck::Wait, None);
        assert_eq!(guard.evaluate(&load(1.0, 0.1)).unwrap(), None);
        let reason = "other programs use 1.9 of 2 CPUs (limit 0.1): loop (pid 7) 1.9";
        for _ in 0..DISCARDED_MAX {
            let found = guard.evaluate(&load(1.0, 1.9)).unwrap();
            assert_eq!(found.as_deref(), Some(reason));
        }
        let error = guard.evaluate(&load(1.0, 1.9)).unwrap_err().to_string();
        assert!(
            error.contains(reason) && error.contains("--force"),
            "{error}"
        );
        assert_eq!(guard.disturbance(), None);
    }

    #[test]
    fn a_forced_measurement_keeps_the_run_and_the_disturbance() {
        let mut guard = guard(LoadCheck::Force, None);
        assert_eq!(guard.evaluate(&load(1.0, 1.9)).unwrap(), None);
        assert!(guard.disturbance().unwrap().contains("1.9 of 2 CPUs"));
    }

    #[test]
    fn short_runs_are_added_up() {
        let mut guard = guard(LoadCheck::Wait, None);
        // Each run of 20 ms is within the slack, because the busy loop gets 20 ms of CPU time.
        let discarded = (0..10).filter_map(|_| guard.evaluate(&load(0.02, 1.0)).ok()?);
        assert!(discarded.count() > 0);
    }

    #[test]
    fn stolen_time_is_a_disturbance() {
        let stolen = |seconds| OtherLoad {
            steal_share: 0.2,
            seconds,
            ..OtherLoad::default()
        };
        let mut guard = guard(LoadCheck::Wait, None);
        assert_eq!(guard.evaluate(&stolen(0.1)).unwrap(), None);
        let reason = guard.evaluate(&stolen(5.0)).unwrap().unwrap();
        assert!(reason.contains("20 % of the CPU time"), "{reason}");
    }

    #[test]
    fn the_limit_can_be_raised_up_to_no_check() {
        let mut raised = guard(LoadCheck::Wait, Some(1.5));
        assert_eq!(raised.evaluate(&load(1.0, 1.4)).unwrap(), None);
        assert!(raised.evaluate(&load(1.0, 1.9)).unwrap().is_some());
        let off = guard(LoadCheck::Wait, Some(2.0));
        assert!(off.begin().unwrap().is_none());
    }
}
