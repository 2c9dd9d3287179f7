// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPUs under `usher`: decides when background work may run on them.
//!
//! *Problem.* Background threads are `SCHED_IDLE`, so they leave a CPU within microseconds when a
//! foreground thread wakes on it. Three cases remain: foreground threads queue on one CPU while
//! background threads run on others; sessions are weighted against one another; the kernel lacks
//! the mechanism. Their effect is visible as the time for which foreground threads were runnable
//! and waited. Paper 2's test does not see it: one foreground thread beside 48 background threads
//! leaves the background a share of 98 %, however much the thread is delayed.
//!
//! *Idea.* No prediction is needed here. Foreground waits while background work runs are charged to
//! the delay budget (module `budget`) as they are measured. A wait is charged only if
//!
//! - little CPU time is idle (the paper's 25 %): a thread that waits beside idle CPUs does not wait
//!   for background work;
//! - it exceeds the foreground's own waits, since a foreground with more threads than CPUs waits
//!   without background work, too. These base waits are measured at every stop. Their weight fades
//!   to zero within `BASE_NS`, so that an old measurement does not excuse new waits.
//!
//! A foreground that uses *c* CPUs refills the budget *c* times as fast, at least once: the bound
//! applies to the mean slow-down of its threads.
//!
//! *Stop.* Background work stops when
//!
//! 1. the budget is empty, or
//! 2. the waits are out of proportion: more than the refill, and more than a quarter of the CPU
//!    time that background work got for them, or
//! 3. a run-queue imbalance is reported (module `imbalance`); this stops it at once.
//!
//! *Continue.* Background work continues when the budget is half full and half a CPU was idle over
//! a window. Where a kernel timer watches for idle CPUs, one CPU that was idle for the minimum
//! length of a window is enough. A foreground that leaves no CPU idle is not disturbed. Where the
//! foreground has used no CPU for `DEBT_CLEAR_NS`, a negative budget is set to 0. Otherwise the
//! refill of 1 % would keep background work stopped for seconds although no foreground work runs.
//!
//! *Result.* Where the kernel separates the two well, waits stay below the refill and background
//! work is never stopped. Elsewhere background work gets the share that the budget permits, in
//! intervals of a second or more.

use usher_model::{IdleCpus, Metering};

use super::budget::{Budget, CAP_NS, EARN};
use super::crowds::Crowds;

/// Shortest window that is evaluated.
pub const WINDOW_NS_MIN: u64 = 15_000_000;
/// Interval between samples while CPUs may be contended. Two foreground threads that woke on one
/// CPU, with background work on another, wait for each other until background work is stopped and
/// the kernel finds an idle CPU for one of them.
pub const CONTENDED_NS: u64 = 20_000_000;
/// Interval between samples while background work runs on CPUs that the foreground does not want,
/// and no kernel timer sends a notification when that changes.
pub const ALERT_NS: u64 = 50_000_000;
/// Interval between samples where a kernel timer sends a notification about imbalance and about
/// CPUs that become idle. The samples detect all other waits.
pub const WATCHED_NS: u64 = 100_000_000;
/// Idle CPUs required to continue background work.
const ROOM_CPUS: f64 = 0.5;
/// Waits above this share of the CPU time that background work got are out of proportion.
const BARGAIN: f64 = 0.25;
/// Use below this many CPUs counts as none.
pub const SOME_CPUS: f64 = 0.02;
/// Largest debt of the budget: the possible cost of one window.
const DEBT_NS: f64 = 100e6;
/// Time in which the weight of the base waits fades to zero.
const BASE_NS: f64 = 5e9;
/// Time without foreground work on the CPUs after which a debt is cleared. It is shorter than the
/// 100 ms within which background work must continue. It is long enough that each return of the
/// foreground, which costs the waits of one sampling interval, is at least this far apart from the
/// last.
const FORGIVEN_NS: u64 = 60_000_000;

/// CPU figures at one reading.
#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    at_ns: u64,
    idle_ns: u64,
    foreground_ns: u64,
    wait_ns: u64,
    background_ns: u64,
}

/// Figures of the last window, in CPUs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    /// Length of the window in nanoseconds.
    pub window_ns: u64,
    /// Used by the foreground.
    pub foreground: f64,
    /// Mean number of waiting foreground threads.
    pub waits: f64,
    /// Used by background work.
    pub background: f64,
    /// Idle, summed over all CPUs.
    pub idle: f64,
}

/// Budget level required to continue background work.
fn needed_ns(is_alone: bool) -> f64 {
    if is_alone { 0.0 } else { CAP_NS / 2.0 }
}

/// Throttle of background work on the CPUs.
#[derive(Debug, Clone)]
pub struct Cpus {
    budget: Budget,
    last: Option<Reading>,
    found: Found,
    /// The foreground's base waits in CPUs, and the time of their measurement.
    base: (f64, u64),
    /// Time since which background work is stopped.
    shut_ns: Option<u64>,
    /// Time since which no reading found foreground work on the CPUs.
    alone_ns: Option<u64>,
    crowds: Crowds,
    /// Idle CPUs, where a kernel timer watches for them.
    idle_cpus: Option<IdleCpus>,
    /// Whether an imbalance caused the present stop.
    is_crowd: bool,
    contended: bool,
}

impl Cpus {
    /// Permits background work, with the budget of an earlier instance or a full one.
    pub fn new(at_ns: u64, account: Option<Budget>) -> Self {
        Self {
            budget: account.unwrap_or_else(|| Budget::new(at_ns, DEBT_NS)),
            last: None,
            found: Found::default(),
            base: (0.0, 0),
            shut_ns: None,
            alone_ns: None,
            crowds: Crowds::default(),
            idle_cpus: None,
            is_crowd: false,
            contended: true,
        }
    }

    /// Processes a sample. CPUs count as short while less than `idle_threshold` of their time is
    /// idle.
    pub fn look(&mut self, at_ns: u64, metering: &Metering, idle_threshold: f64) {
        if self
            .crowds
            .look(at_ns, metering.rq_imbalances, self.is_open())
        {
            (self.shut_ns, self.is_crowd) = (Some(at_ns), true);
        }
        self.idle_cpus = metering.idle_cpus;
        self.read(at_ns, metering, idle_threshold);
        self.fill_vacancy(at_ns);
    }

    /// Processes CPU times, if they have been read again.
    fn read(&mut self, at_ns: u64, metering: &Metering, idle_threshold: f64) {
        let each = metering.background.values();
        let now = Reading {
            at_ns: metering.cpu_read_ns,
            idle_ns: metering.idle_ns,
            foreground_ns: metering.foreground.cpu_ns,
            wait_ns: metering.foreground.wait_ns,
            background_ns: each.map(|usage| usage.cpu_ns).sum(),
        };
        let Some(before) = self.last else {
            self.last = Some(now);
            return;
        };
        let window_ns = now.at_ns.saturating_sub(before.at_ns);
        if window_ns < WINDOW_NS_MIN {
            return;
        }
        self.last = Some(now);
        let per = |now: u64, before: u64| now.saturating_sub(before) as f64 / window_ns as f64;
        self.found = Found {
            window_ns,
            foreground: per(now.foreground_ns, before.foreground_ns),
            waits: per(now.wait_ns, before.wait_ns),
            background: per(now.background_ns, before.background_ns),
            idle: per(now.idle_ns, before.idle_ns),
        };
        let is_short = self.found.idle < idle_threshold * f64::from(metering.cpus.max(1));
        let is_bargain = self.settle(at_ns, is_short);
        self.turn(at_ns, before.at_ns, metering.cpus, is_bargain);
    }

    /// Permits background work again after a CPU was idle long enough during the stop. This needs
    /// no new reading of the threads' CPU times.
    fn fill_vacancy(&mut self, at_ns: u64) {
        let (Some(shut_ns), Some(idle_cpus)) = (self.shut_ns, self.idle_cpus) else {
            return;
        };
        let Some(since_ns) = idle_cpus.since_ns else {
            return;
        };
        // Foreground use as of the last reading: reading again would be too expensive here.
        self.budget.earn(at_ns, self.found.foreground.max(1.0));
        if let Some(alone_ns) = idle_cpus.background_only_since_ns {
            self.forgive(at_ns, alone_ns);
        }
        let is_alone = idle_cpus.background_only_since_ns.is_some();
        let is_long = at_ns >= since_ns.max(shut_ns) + WINDOW_NS_MIN;
        if is_long && self.budget.level_ns() >= needed_ns(is_alone) {
            self.open();
        }
    }

    /// Clears a debt if no foreground work has run on the CPUs since `since_ns`.
    fn forgive(&mut self, at_ns: u64, since_ns: u64) {
        if at_ns >= since_ns + FORGIVEN_NS {
            self.budget.forgive();
        }
    }

    fn open(&mut self) {
        self.shut_ns = None;
        self.contended = true;
    }

    /// Refills the budget and charges the waits. Returns whether the waits were in proportion to
    /// the CPU time that background work got.
    fn settle(&mut self, at_ns: u64, is_short: bool) -> bool {
        let found = self.found;
        self.contended = is_short;
        let threads = found.foreground.max(1.0);
        self.budget.earn(at_ns, threads);
        if found.background < SOME_CPUS {
            self.base = (found.waits, at_ns);
            return true;
        }
        if !is_short {
            return true;
        }
        let age_ns = at_ns.saturating_sub(self.base.1) as f64;
        let base = self.base.0 * (1.0 - age_ns / BASE_NS).max(0.0);
        let excess = (found.waits - base).max(0.0);
        self.budget.spend(excess * found.window_ns as f64);
        excess <= EARN * threads || excess <= BARGAIN * found.background
    }

    /// Stops or permits background work.
    fn turn(&mut self, at_ns: u64, window_from_ns: u64, cpus: u32, is_bargain: bool) {
        let is_alone = self.found.foreground < SOME_CPUS;
        let alone_ns = self.alone_ns.filter(|_| is_alone);
        self.alone_ns = is_alone.then(|| alone_ns.unwrap_or(window_from_ns));
        let seen_alone_ns = self
            .idle_cpus
            .and_then(|idle_cpus| idle_cpus.background_only_since_ns);
        if let Some(alone_ns) = seen_alone_ns.or(self.alone_ns) {
            self.forgive(at_ns, alone_ns);
        }
        // The waits of this window are known, but background work must stop only if foreground work
        // is still present.
        let is_over = seen_alone_ns.is_some_and(|ns| at_ns >= ns + WINDOW_NS_MIN);
        match self.shut_ns {
            None if is_over => {}
            None if self.budget.level_ns() < 0.0 || !is_bargain => {
                (self.shut_ns, self.is_crowd) = (Some(at_ns), false);
            }
            None => {}
            Some(shut_ns) => {
                let level_ns = self.budget.level_ns();
                let room = ROOM_CPUS.min(f64::from(cpus) / 2.0);
                let is_after = window_from_ns >= shut_ns || self.found.background < SOME_CPUS;
                if is_after && self.found.idle >= room && level_ns >= needed_ns(is_alone) {
                    self.open();
                }
            }
        }
    }

    /// Whether background work may run on the CPUs.
    pub fn is_open(&self) -> bool {
        self.shut_ns.is_none()
    }

    /// Longest time until the next sample: `else_ns` without a kernel timer, or while background
    /// work is stopped and a CPU is idle.
    pub fn pause_ns(&self, else_ns: u64) -> u64 {
        match self.idle_cpus {
            None => else_ns,
            Some(idle_cpus) if idle_cpus.since_ns.is_some() && !self.is_open() => else_ns,
            Some(_) => WATCHED_NS,
        }
    }

    /// Whether an imbalance caused the stop.
    pub fn is_crowd(&self) -> bool {
        self.is_crowd
    }

    /// Whether little CPU time was idle in the last window.
    pub fn is_contended(&self) -> bool {
        self.contended
    }

    /// Figures of the last window.
    pub fn found(&self) -> Found {
        self.found
    }

    /// The delay budget.
    pub fn account(&self) -> Budget {
        self.budget
    }

    /// Remaining delay that may be caused to the foreground, in nanoseconds.
    pub fn budget_ns(&self) -> f64 {
        self.budget.level_ns()
    }
}
