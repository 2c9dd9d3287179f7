// SPDX-License-Identifier: MIT OR Apache-2.0
//! Throttle of the CPUs under the regulation `usher`: decides when background work may run on the
//! CPUs.
//!
//! *Problem.* Background threads are `SCHED_IDLE`: they leave a CPU within microseconds when a
//! foreground thread wakes on the CPU. Background threads still delay the foreground in three
//! cases: foreground threads queue on one CPU while background threads run on other CPUs; the
//! kernel divides CPU time among sessions (autogroups) instead of threads; or the kernel does not
//! preempt `SCHED_IDLE` threads at once. In all three cases, foreground threads are runnable and
//! wait. Paper 2's test does not detect such waits: with one foreground thread and 48 background
//! threads, the background share is 98 %, however much the foreground thread is delayed.
//!
//! *Idea.* The time for which foreground threads wait while background work runs is measured in
//! windows of at least [`WINDOW_NS_MIN`], and charged to the delay budget (module `budget`). In
//! contrast to devices, no prediction is needed. A wait is charged only if
//!
//! - less than 25 % of the CPU time is idle (the paper's threshold), because a thread that waits
//!   beside idle CPUs does not wait for background work; and
//! - the wait exceeds the *base waits*, which are the waits of the foreground without background
//!   work: a foreground with more threads than CPUs always waits. Base waits are measured at every
//!   stop. The weight of the measurement fades to zero within `BASE_NS`, because an old measurement
//!   must not excuse new waits.
//!
//! If the foreground uses *c* CPUs, the budget refills max(*c*, 1) times as fast, because the bound
//! applies to the mean slow-down of the foreground's threads.
//!
//! *Stop.* Background work stops when
//!
//! 1. the budget is negative, or
//! 2. the waits in a window exceed the refill in the window, and also exceed a quarter of the CPU
//!    time that background work used in the window, or
//! 3. a run-queue imbalance is reported (module `imbalance`).
//!
//! *Continue.* Background work continues when the budget is half full and half a CPU was idle over
//! a window. While no foreground work runs, the budget only has to be 0 or more. If a kernel timer
//! reports idle CPUs, it is enough that a CPU was idle for [`WINDOW_NS_MIN`]. While the foreground
//! leaves no CPU idle, the throttle stays closed; module `usher` ends a long stop by a short grace
//! run. If the foreground has used no CPU for `DEBT_CLEAR_NS`, a negative budget is set to 0.
//! Without this rule, the refill of 1 % would keep background work stopped for seconds although no
//! foreground work runs.
//!
//! *Result.* If the kernel keeps background threads from delaying foreground threads, waits stay
//! below the refill, and background work is never stopped. If the kernel does not prevent delays,
//! background work gets the share that the budget permits, in intervals of a second or more.
//!
//! *Limits.* A wait is detected by the next sample: within 20 ms while CPU time is scarce
//! ([`CONTENDED_NS`]), and within 50 ms otherwise ([`ACTIVE_NS`]). With the kernel timer, samples
//! are 100 ms apart ([`NOTIFIED_NS`]), but notifications cause earlier samples. The debt of the
//! budget is limited to 100 ms: longer waits in one window are not charged. A sample takes linear
//! time in the number of background programs.

use usher_model::{IdleCpus, Metering};

use super::budget::{CAP_NS, DelayBudget, REFILL_RATE};
use super::imbalance::ImbalanceFilter;

/// Shortest window that is evaluated.
pub const WINDOW_NS_MIN: u64 = 15_000_000;
/// Interval between samples while CPUs may be contended. If two foreground threads wake on one CPU
/// while background work runs on another CPU, one of the threads waits until a sample detects the
/// wait and background work is stopped.
pub const CONTENDED_NS: u64 = 20_000_000;
/// Interval between samples while background work runs on CPUs that the foreground does not want,
/// on machines without a kernel timer that reports when the foreground wants them.
pub const ACTIVE_NS: u64 = 50_000_000;
/// Interval between samples on machines where a kernel timer sends notifications of imbalance and
/// of CPUs that become idle. Waits for other reasons are detected only by samples.
pub const NOTIFIED_NS: u64 = 100_000_000;
/// Mean number of idle CPUs in a window that is required to continue background work.
const IDLE_CPUS_MIN: f64 = 0.5;
/// Waits of foreground threads are out of proportion if they exceed this share of the CPU time that
/// background work used.
const WAIT_SHARE_MAX: f64 = 0.25;
/// The use of fewer CPUs than this number counts as no use.
pub const USED_CPUS_MIN: f64 = 0.02;
/// Largest debt of the budget in nanoseconds: the possible cost of one window. Cost beyond this
/// debt is not charged.
const MAX_DEBT_NS: f64 = 100e6;
/// Time in which the weight of measured base waits fades to zero.
const BASE_NS: f64 = 5e9;
/// Time without foreground work on the CPUs after which a debt is cleared.
///
/// The time must be shorter than the 100 ms within which background work must continue. A shorter
/// time than 60 ms would permit more delay: each return of the foreground costs the waits of one
/// sampling interval, and the debt may be cleared before the next return.
const DEBT_CLEAR_NS: u64 = 60_000_000;

/// Totals of CPU time, idle time and waiting time when CPU times were read.
#[derive(Debug, Clone, Copy, Default)]
struct CpuReading {
    at_ns: u64,
    idle_ns: u64,
    foreground_ns: u64,
    wait_ns: u64,
    background_ns: u64,
}

/// Use of the CPUs in the last window: each time divided by the length of the window.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuWindow {
    /// Length of the window in nanoseconds.
    pub window_ns: u64,
    /// CPUs that the foreground used.
    pub foreground: f64,
    /// Mean number of waiting foreground threads.
    pub waits: f64,
    /// CPUs that background work used.
    pub background: f64,
    /// CPUs that were idle.
    pub idle: f64,
}

/// Budget level required to continue background work; `is_alone`: no foreground work runs on the
/// CPUs.
fn needed_ns(is_alone: bool) -> f64 {
    if is_alone { 0.0 } else { CAP_NS / 2.0 }
}

/// Throttle of background work on the CPUs.
#[derive(Debug, Clone)]
pub struct CpuThrottle {
    budget: DelayBudget,
    last: Option<CpuReading>,
    window: CpuWindow,
    /// Mean number of foreground threads that wait without background work, and the time of the
    /// measurement.
    base: (f64, u64),
    /// Time since which background work is stopped.
    stopped_ns: Option<u64>,
    /// Time since which no reading found foreground work on the CPUs.
    alone_ns: Option<u64>,
    imbalance: ImbalanceFilter,
    /// Idle CPUs, on machines where a kernel timer reports them.
    idle_cpus: Option<IdleCpus>,
    /// Whether an imbalance caused the present stop.
    is_imbalance: bool,
    contended: bool,
}

impl CpuThrottle {
    /// Creates a throttle that permits background work. `budget`: the budget of an earlier
    /// throttle; `None`: a full budget.
    pub fn new(at_ns: u64, budget: Option<DelayBudget>) -> Self {
        Self {
            budget: budget.unwrap_or_else(|| DelayBudget::new(at_ns, MAX_DEBT_NS)),
            last: None,
            window: CpuWindow::default(),
            base: (0.0, 0),
            stopped_ns: None,
            alone_ns: None,
            imbalance: ImbalanceFilter::default(),
            idle_cpus: None,
            is_imbalance: false,
            contended: true,
        }
    }

    /// Processes a sample. CPU time counts as scarce while its idle share is less than
    /// `idle_threshold`.
    pub fn update(&mut self, at_ns: u64, metering: &Metering, idle_threshold: f64) {
        if self
            .imbalance
            .update(at_ns, metering.rq_imbalances, self.is_open())
        {
            (self.stopped_ns, self.is_imbalance) = (Some(at_ns), true);
        }
        self.idle_cpus = metering.idle_cpus;
        self.read(at_ns, metering, idle_threshold);
        self.continue_if_idle(at_ns);
    }

    /// Processes CPU times, if they have been read again.
    fn read(&mut self, at_ns: u64, metering: &Metering, idle_threshold: f64) {
        let each = metering.background.values();
        let now = CpuReading {
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
        self.window = CpuWindow {
            window_ns,
            foreground: per(now.foreground_ns, before.foreground_ns),
            waits: per(now.wait_ns, before.wait_ns),
            background: per(now.background_ns, before.background_ns),
            idle: per(now.idle_ns, before.idle_ns),
        };
        let is_short = self.window.idle < idle_threshold * f64::from(metering.cpus.max(1));
        let is_proportionate = self.charge_waits(at_ns, is_short);
        self.stop_or_continue(at_ns, before.at_ns, metering.cpus, is_proportionate);
    }

    /// Permits background work again after a CPU was idle long enough during the stop. The threads'
    /// CPU times need not be read for this decision.
    fn continue_if_idle(&mut self, at_ns: u64) {
        let (Some(stopped_ns), Some(idle_cpus)) = (self.stopped_ns, self.idle_cpus) else {
            return;
        };
        let Some(since_ns) = idle_cpus.since_ns else {
            return;
        };
        // The foreground use is that of the last reading, because reading CPU times again would be
        // too expensive.
        self.budget.refill(at_ns, self.window.foreground.max(1.0));
        if let Some(alone_ns) = idle_cpus.background_only_since_ns {
            self.clear_debt(at_ns, alone_ns);
        }
        let is_alone = idle_cpus.background_only_since_ns.is_some();
        let is_long = at_ns >= since_ns.max(stopped_ns) + WINDOW_NS_MIN;
        if is_long && self.budget.level_ns() >= needed_ns(is_alone) {
            self.open();
        }
    }

    /// Clears a debt if no foreground work has run on the CPUs since `since_ns`.
    fn clear_debt(&mut self, at_ns: u64, since_ns: u64) {
        if at_ns >= since_ns + DEBT_CLEAR_NS {
            self.budget.clear_debt();
        }
    }

    fn open(&mut self) {
        self.stopped_ns = None;
        self.contended = true;
    }

    /// Refills the budget and charges the waits. Returns whether the waits were in proportion to
    /// the CPU time that background work got.
    fn charge_waits(&mut self, at_ns: u64, is_short: bool) -> bool {
        let window = self.window;
        self.contended = is_short;
        let threads = window.foreground.max(1.0);
        self.budget.refill(at_ns, threads);
        if window.background < USED_CPUS_MIN {
            self.base = (window.waits, at_ns);
            return true;
        }
        if !is_short {
            return true;
        }
        let age_ns = at_ns.saturating_sub(self.base.1) as f64;
        let base = self.base.0 * (1.0 - age_ns / BASE_NS).max(0.0);
        let excess = (window.waits - base).max(0.0);
        self.budget.charge(excess * window.window_ns as f64);
        excess <= REFILL_RATE * threads || excess <= WAIT_SHARE_MAX * window.background
    }

    /// Stops or permits background work.
    fn stop_or_continue(
        &mut self,
        at_ns: u64,
        window_from_ns: u64,
        cpus: u32,
        is_proportionate: bool,
    ) {
        let is_alone = self.window.foreground < USED_CPUS_MIN;
        let alone_ns = self.alone_ns.filter(|_| is_alone);
        self.alone_ns = is_alone.then(|| alone_ns.unwrap_or(window_from_ns));
        let reported_alone_ns = self
            .idle_cpus
            .and_then(|idle_cpus| idle_cpus.background_only_since_ns);
        if let Some(alone_ns) = reported_alone_ns.or(self.alone_ns) {
            self.clear_debt(at_ns, alone_ns);
        }
        // Whatever the waits of the window were, background work need not stop if foreground work
        // has gone since.
        let is_over = reported_alone_ns.is_some_and(|ns| at_ns >= ns + WINDOW_NS_MIN);
        match self.stopped_ns {
            None if is_over => {}
            None if self.budget.level_ns() < 0.0 || !is_proportionate => {
                (self.stopped_ns, self.is_imbalance) = (Some(at_ns), false);
            }
            None => {}
            Some(stopped_ns) => {
                let level_ns = self.budget.level_ns();
                let idle_min = IDLE_CPUS_MIN.min(f64::from(cpus) / 2.0);
                let is_after =
                    window_from_ns >= stopped_ns || self.window.background < USED_CPUS_MIN;
                if is_after && self.window.idle >= idle_min && level_ns >= needed_ns(is_alone) {
                    self.open();
                }
            }
        }
    }

    /// Whether background work may run on the CPUs.
    pub fn is_open(&self) -> bool {
        self.stopped_ns.is_none()
    }

    /// Longest time until the next sample. Without a kernel timer, or while background work is
    /// stopped and a CPU is idle, the time is `else_ns`; otherwise [`NOTIFIED_NS`].
    pub fn sample_interval_ns(&self, else_ns: u64) -> u64 {
        match self.idle_cpus {
            None => else_ns,
            Some(idle_cpus) if idle_cpus.since_ns.is_some() && !self.is_open() => else_ns,
            Some(_) => NOTIFIED_NS,
        }
    }

    /// Whether a run-queue imbalance caused the stop.
    pub fn is_imbalance(&self) -> bool {
        self.is_imbalance
    }

    /// Whether little CPU time was idle in the last window.
    pub fn is_contended(&self) -> bool {
        self.contended
    }

    /// Figures of the last window.
    pub fn last_window(&self) -> CpuWindow {
        self.window
    }

    /// The delay budget.
    pub fn budget(&self) -> DelayBudget {
        self.budget
    }

    /// Remaining delay that may be caused to the foreground, in nanoseconds.
    pub fn budget_ns(&self) -> f64 {
        self.budget.level_ns()
    }
}
