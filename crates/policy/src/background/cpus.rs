// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CPUs under `usher`: when background work may use them.
//!
//! Demoted to `SCHED_IDLE`, background threads leave a CPU within microseconds
//! of a foreground thread that wakes on it. What is left is what that does not
//! cover: foreground threads queue on one CPU while background threads run on
//! others, sessions that are weighed against one another, a kernel without the
//! means. The kernel tells how much that is, in the only terms that matter: the
//! time for which foreground threads were able to run and waited. Paper 2's test
//! cannot: one foreground thread beside 48 background threads leaves the
//! background with a share of 98 %, whatever the thread suffers.
//!
//! So nothing has to be guessed: *foreground waits while background work runs
//! are charged to the delay budget* (module `budget`) as they are measured, where
//!
//! - little CPU time is idle (the paper's 25 %): who waits beside idle CPUs does
//!   not wait for background work;
//! - they exceed what the foreground waits with background work stopped: a
//!   foreground with more threads than CPUs waits by itself. That base is
//!   measured at every stop and fades in `BASE_NS`, so that it cannot excuse
//!   for long what has changed since.
//!
//! Foreground threads that use *c* CPUs earn as *c* threads do, one at least:
//! their mean slow-down is what is bounded. An empty account stops background
//! work, and so does a *bad bargain*: waits that cost more than is earned and more
//! than a quarter of what background work got for them; and a *crowd* (module
//! `crowds`), at once. It goes on when half of the account is there again and half
//! a CPU was idle over a window, or one CPU all the time for as long as a window has
//! to be, where somebody watches: a foreground that leaves nothing is left alone. Where
//! the foreground has used no CPU for `FORGIVEN_NS` the account owes nothing any more:
//! at a hundredth of the time a debt would keep background work off for seconds in which
//! there is nobody to be spared. Where the kernel does its part, waits stay below what is earned and background work
//! is never stopped; where it does not, background work gets the partial share
//! that the budget pays for, in turns of a second and more.

use usher_model::{Metering, Vacancy};

use super::budget::{Budget, CAP_NS, EARN};
use super::crowds::Crowds;

/// Figures over less than this say nothing.
pub const WINDOW_NS_MIN: u64 = 15_000_000;
/// Between looks while CPUs may be contended for: two foreground threads that
/// woke on one CPU, with background work on another, wait for one another until
/// background work is stopped and the kernel finds an idle CPU to move one to.
pub const CONTENDED_NS: u64 = 20_000_000;
/// Between looks while background work is on CPUs and nobody else wants them, where
/// nobody watches and rings when that ends.
pub const ALERT_NS: u64 = 50_000_000;
/// Between looks where somebody watches for crowds and for CPUs that become idle,
/// and rings: for the waits that are neither.
pub const WATCHED_NS: u64 = 100_000_000;
/// Idle CPUs that are worth running for.
const ROOM_CPUS: f64 = 0.5;
/// Waits of more than this share of what background work got were not worth it.
const BARGAIN: f64 = 0.25;
/// Who uses less than this, in CPUs, uses none.
pub const SOME_CPUS: f64 = 0.02;
/// The account is overdrawn by no more: what one window may cost.
const DEBT_NS: f64 = 100e6;
/// How long the foreground's own waits are remembered.
const BASE_NS: f64 = 5e9;
/// After so long without a foreground on the CPUs a debt is forgiven: shorter than
/// the 100 ms within which background work is to be back, and long enough that each
/// return of the foreground buys one look's waits for no less than this.
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

/// What was found in the last window, in CPUs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    /// How long it was, in nanoseconds.
    pub window_ns: u64,
    /// Used by the foreground.
    pub foreground: f64,
    /// Foreground threads that waited.
    pub waits: f64,
    /// Used by background work.
    pub background: f64,
    /// Idle, of that many.
    pub idle: f64,
}

/// What the account must hold for background work to go on.
fn needed_ns(is_alone: bool) -> f64 {
    if is_alone { 0.0 } else { CAP_NS / 2.0 }
}

/// The state of the CPUs.
#[derive(Debug, Clone)]
pub struct Cpus {
    budget: Budget,
    last: Option<Reading>,
    found: Found,
    /// What the foreground waits by itself, in CPUs, and when that was measured.
    base: (f64, u64),
    /// Since when background work has been kept off.
    shut_ns: Option<u64>,
    /// Since when no reading found foreground on CPUs.
    alone_ns: Option<u64>,
    crowds: Crowds,
    /// Idle CPUs, where somebody watches.
    vacancy: Option<Vacancy>,
    /// A crowd is why they are shut.
    is_crowd: bool,
    contended: bool,
}

impl Cpus {
    /// CPUs that background work may use, with the account that there was, or
    /// a full one.
    pub fn new(at_ns: u64, account: Option<Budget>) -> Self {
        Self {
            budget: account.unwrap_or_else(|| Budget::new(at_ns, DEBT_NS)),
            last: None,
            found: Found::default(),
            base: (0.0, 0),
            shut_ns: None,
            alone_ns: None,
            crowds: Crowds::default(),
            vacancy: None,
            is_crowd: false,
            contended: true,
        }
    }

    /// Takes a look in. With less than that share idle, CPUs are short.
    pub fn look(&mut self, at_ns: u64, metering: &Metering, idle_threshold: f64) {
        if self
            .crowds
            .look(at_ns, metering.rq_imbalances, self.is_open())
        {
            (self.shut_ns, self.is_crowd) = (Some(at_ns), true);
        }
        self.vacancy = metering.vacancy;
        self.read(at_ns, metering, idle_threshold);
        self.fill_vacancy(at_ns);
    }

    /// Takes CPU times in, where they have been read anew.
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

    /// Opens where a CPU has been idle for long enough with background work kept
    /// off: no need to know what all threads did meanwhile.
    fn fill_vacancy(&mut self, at_ns: u64) {
        let (Some(shut_ns), Some(vacancy)) = (self.shut_ns, self.vacancy) else {
            return;
        };
        let Some(since_ns) = vacancy.since_ns else {
            return;
        };
        // As at the last reading: this is no time to read again.
        self.budget.earn(at_ns, self.found.foreground.max(1.0));
        if let Some(alone_ns) = vacancy.alone_ns {
            self.forgive(at_ns, alone_ns);
        }
        let is_alone = vacancy.alone_ns.is_some();
        let is_long = at_ns >= since_ns.max(shut_ns) + WINDOW_NS_MIN;
        if is_long && self.budget.level_ns() >= needed_ns(is_alone) {
            self.open();
        }
    }

    /// The foreground has not been on the CPUs since then.
    fn forgive(&mut self, at_ns: u64, since_ns: u64) {
        if at_ns >= since_ns + FORGIVEN_NS {
            self.budget.forgive();
        }
    }

    fn open(&mut self) {
        self.shut_ns = None;
        self.contended = true;
    }

    /// Earns, and pays for the waits; whether they were worth it.
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

    /// Shuts or opens.
    fn turn(&mut self, at_ns: u64, window_from_ns: u64, cpus: u32, is_bargain: bool) {
        let is_alone = self.found.foreground < SOME_CPUS;
        let alone_ns = self.alone_ns.filter(|_| is_alone);
        self.alone_ns = is_alone.then(|| alone_ns.unwrap_or(window_from_ns));
        let seen_alone_ns = self.vacancy.and_then(|vacancy| vacancy.alone_ns);
        if let Some(alone_ns) = seen_alone_ns.or(self.alone_ns) {
            self.forgive(at_ns, alone_ns);
        }
        // Who caused the waits of this window is known; whether anybody is left to wait
        // is another matter.
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

    /// Whether background work may use them.
    pub fn is_open(&self) -> bool {
        self.shut_ns.is_none()
    }

    /// How long one may go without a look: `else_ns` where nobody watches, or a CPU
    /// is idle that background work is kept off.
    pub fn pause_ns(&self, else_ns: u64) -> u64 {
        match self.vacancy {
            None => else_ns,
            Some(vacancy) if vacancy.since_ns.is_some() && !self.is_open() => else_ns,
            Some(_) => WATCHED_NS,
        }
    }

    /// Whether a crowd is why not.
    pub fn is_crowd(&self) -> bool {
        self.is_crowd
    }

    /// Whether little of them was idle of late.
    pub fn is_contended(&self) -> bool {
        self.contended
    }

    /// What the last window showed.
    pub fn found(&self) -> Found {
        self.found
    }

    /// The account.
    pub fn account(&self) -> Budget {
        self.budget
    }

    /// Delay that the foreground may still be caused, in nanoseconds.
    pub fn budget_ns(&self) -> f64 {
        self.budget.level_ns()
    }
}
