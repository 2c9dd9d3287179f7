// SPDX-License-Identifier: MIT OR Apache-2.0
//! Throttle of one disk or network interface under the regulation `usher`: decides when background
//! work may use the device.
//!
//! From the foreground's requests to the device, the throttle computes the time from which on
//! background work may use the device if the foreground makes no further request. Each foreground
//! request moves that time into the future, and thus stops the background programs that use the
//! device. The device is *open* for background work when two conditions hold:
//!
//! 1. *Quiet*: since the last foreground request, three times the recent mean gap between
//!    foreground requests has passed, but at least [`QUIET_NS_MIN`] and at most [`QUIET_NS_MAX`]. A
//!    foreground with a request every 30 ms has not gone when it has been silent for 20 ms.
//! 2. *Budget* (module `budget`): the budget covers one misprediction.
//!
//! Let *d* be the estimated cost of one misprediction. If the budget lacks at most *d* to be full,
//! a quiet time of 20 ms suffices whatever the gaps are, because a full budget would stop
//! refilling. Background work thus gets a share even beside a foreground with a request every 200
//! ms: a run of 180 ms for each *d* of refill. The gaps of such a foreground alone would never
//! permit background work.
//!
//! The required quiet time and *d* change only at foreground requests. An open device stays open
//! until the foreground makes a request, so that every stop has an observable reason.
//!
//! A *misprediction* is a continuation of background work after which the foreground soon uses the
//! device again. A *burst* is the sequence of foreground requests since the device was last open.
//!
//! *The cost of a misprediction* is estimated from these figures:
//!
//! - the reaction time, from the request to the sample that reports the request, measured at each
//!   *collision*, which is a foreground request while background work uses the device;
//! - the outstanding background requests, which the device completes first. The estimate is eight
//!   requests at the recent mean gap of background requests, at most 8 ms; or one request per
//!   program, if requests are slow. The minimum is 1.5 ms for disks and 8 ms for interfaces;
//! - further background requests after the stop, because sockets still send buffered data: they are
//!   counted after each collision, and each is charged the mean gap of background requests;
//! - long stalls while a deep queue drains. A foreground that makes a request, and continues at its
//!   usual pace only 60 ms later, was stalled for 60 ms. A stall is visible only in a burst of
//!   several requests, and is limited to the time of 32 background requests. Stalls are estimated
//!   only for disks, because a sender first fills a buffer and then waits for the network in any
//!   case.
//!
//! *One request followed by silence* is ambiguous: either the foreground has gone, or its request
//! still waits behind a deep queue on a slow disk. After a collision with a single request, the
//! required quiet time is therefore the time of ten background requests, at most
//! [`AMBIGUOUS_NS_MAX`]. During the quiet time, a second request can arrive and reveal a stall.
//!
//! *Sampling*: while the device is closed, the next sample is due when the device would open.
//! During a burst of foreground requests, each request moves that time, which alone would cause a
//! sample every [`QUIET_NS_MIN`]. The interval between samples therefore grows with the length of
//! the burst, up to `SAMPLE_NS_MAX`, although a longer interval delays the detection of the end of
//! the burst.
//!
//! *Limits.* *d* is at most 120 ms: a reaction time of at most 20 ms, and a delay of at most
//! [`STALL_NS_MAX`]. The debt of the budget is at most 20 ms. A closed device opens after the
//! required quiet time, but not before the refill covers the debt and *d*: after at most 14 s
//! without a foreground request. Without notifications, the quiet time is at least
//! [`NO_NOTIFY_NS`]. A sample takes constant time.

use super::budget::DelayBudget;
use super::drain::DeviceDrain;

/// Least quiet time after which the foreground counts as gone.
pub const QUIET_NS_MIN: u64 = 20_000_000;
/// Quiet time after which the foreground counts as gone, however rare its requests are.
pub const QUIET_NS_MAX: u64 = 1_000_000_000;
/// Required quiet time, as a number of mean gaps between foreground requests.
const GAPS: f64 = 3.0;
/// The sampling interval during a burst is the age of the burst divided by this number.
const SAMPLE_DIVISOR: u64 = 16;
/// Longest sampling interval during a burst.
const SAMPLE_NS_MAX: u64 = 50_000_000;
/// Sampling interval, and least quiet time, if foreground requests send no notifications.
pub const NO_NOTIFY_NS: u64 = 100_000_000;
/// Time constant with which the influence of past requests on a request rate decays.
const MEMORY_NS: f64 = 500e6;
/// Reaction time that is assumed before the first measurement.
const REACTION_NS: f64 = 2e6;
/// Upper limit of a reaction time and of the time of one background request.
const PART_NS_MAX: f64 = 20e6;
/// Upper limit of a stall, and of the delay by background requests after a stop.
pub const STALL_NS_MAX: f64 = 100e6;
/// Largest debt of a device's budget in nanoseconds. Cost beyond this debt is not charged.
const MAX_DEBT_NS: f64 = 20e6;
/// Number of background requests assumed to be outstanding, since the queue depth is not visible;
/// their total time is limited to `DEPTH_NS_MAX`.
const DEPTH: f64 = 8.0;
const DEPTH_NS_MAX: f64 = 8e6;
/// Upper limit of a stall, as a number of background requests at their mean gap.
const STALL_DEPTH: f64 = 32.0;
/// Required quiet time after a single foreground request that may be stalled, as a number of
/// background requests at their mean gap.
const AMBIGUOUS_DEPTH: f64 = 10.0;
/// Upper limit of the required quiet time after a single foreground request that may be stalled.
pub const AMBIGUOUS_NS_MAX: u64 = 100_000_000;
/// Least number of requests in a burst from which a stall is estimated.
const BURST_MIN: u64 = 4;

/// Properties of a kind of device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceKind {
    /// Least time to complete the outstanding background requests, in nanoseconds.
    outstanding_ns: f64,
    /// Whether silence of the foreground may mean that its last request is stalled. False for
    /// interfaces: the first calls of a sender fill a buffer, and later calls wait for the network
    /// in any case.
    stalls: bool,
}

/// Disks.
pub const DISK: DeviceKind = DeviceKind {
    outstanding_ns: 1.5e6,
    stalls: true,
};
/// Network interfaces.
pub const LINK: DeviceKind = DeviceKind {
    outstanding_ns: 8e6,
    stalls: false,
};

/// Requests to one device, by foreground or background.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Total number of requests.
    pub total: u64,
    /// Time of the last request, where known.
    pub last_ns: Option<u64>,
}

/// A rate of requests, in which the influence of past requests decays exponentially.
#[derive(Debug, Clone, Copy, Default)]
struct DecayingRate {
    time_ns: f64,
    count: f64,
}

impl DecayingRate {
    fn add(&mut self, time_ns: u64, count: u64) {
        let time_ns = time_ns as f64;
        let kept = MEMORY_NS / (MEMORY_NS + time_ns);
        self.time_ns = self.time_ns * kept + time_ns;
        self.count = self.count * kept + count as f64;
    }

    /// Mean time between two requests; infinite without requests.
    fn gap_ns(self) -> f64 {
        self.time_ns / self.count
    }

    /// Mean time between two requests; 0 without requests.
    fn gap_or_zero_ns(self) -> f64 {
        let gap_ns = self.gap_ns();
        if gap_ns.is_finite() { gap_ns } else { 0.0 }
    }
}

/// Foreground requests since the device was last open.
#[derive(Debug, Clone, Copy)]
struct RequestBurst {
    first_ns: u64,
    /// Time of the second request of the burst, estimated from the samples.
    second_ns: Option<u64>,
    requests: u64,
    /// Whether background work used the device during the burst.
    collided: bool,
}

/// One sample of a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceSample {
    /// Time of the sample.
    pub at_ns: u64,
    /// Requests of the foreground.
    pub foreground: Requests,
    /// Requests of all regulated background programs.
    pub background: u64,
    /// Number of background programs that used the device since the last sample.
    pub users: u32,
    /// Whether foreground requests send a notification.
    pub notifies: bool,
}

impl DeviceSample {
    fn collided(&self) -> bool {
        self.users > 0
    }
}

/// Requests between two samples.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecentUse {
    /// Foreground requests.
    pub foreground: u64,
    /// Requests of regulated background programs.
    pub background: u64,
    /// Length of the interval in nanoseconds.
    pub window_ns: u64,
}

/// State of one device.
#[derive(Debug, Clone)]
pub struct DeviceThrottle {
    kind: DeviceKind,
    budget: DelayBudget,
    sampled_ns: u64,
    seen: Requests,
    seen_background: u64,
    /// Time of the foreground's last request; `None`: unknown.
    last_ns: Option<u64>,
    foreground: DecayingRate,
    background: DecayingRate,
    reaction_ns: f64,
    stall_ns: f64,
    burst: Option<RequestBurst>,
    /// Number of background programs at the last collision. The cost of the next misprediction is
    /// estimated for the same number, although no program uses the device during a stop.
    users: u32,
    notifies: bool,
    /// Estimated delay by background requests after a stop; `drain` is the measurement in progress.
    residual_ns: f64,
    drain: Option<DeviceDrain>,
    /// Cost of one misprediction. `quiet_ns` is the quiet time of three mean gaps. `cost_ns` and
    /// `quiet_ns` were computed at the last foreground request.
    cost_ns: f64,
    quiet_ns: u64,
    /// Time of the last charge for a misprediction.
    charged_ns: u64,
    recent: RecentUse,
}

impl DeviceThrottle {
    /// Creates a throttle, which is open unless the foreground has just used the device. `budget`:
    /// the budget of an earlier throttle; `None`: a full budget.
    pub fn new(kind: DeviceKind, first: &DeviceSample, budget: Option<DelayBudget>) -> Self {
        Self {
            kind,
            budget: budget.unwrap_or_else(|| DelayBudget::new(first.at_ns, MAX_DEBT_NS)),
            sampled_ns: first.at_ns,
            seen: first.foreground,
            seen_background: first.background,
            last_ns: first.foreground.last_ns,
            foreground: DecayingRate::default(),
            background: DecayingRate::default(),
            reaction_ns: REACTION_NS,
            stall_ns: 0.0,
            burst: None,
            users: 1,
            notifies: first.notifies,
            cost_ns: REACTION_NS + kind.outstanding_ns,
            quiet_ns: QUIET_NS_MIN,
            residual_ns: 0.0,
            drain: None,
            charged_ns: 0,
            recent: RecentUse::default(),
        }
    }

    /// Processes a sample.
    pub fn update(&mut self, sample: &DeviceSample) {
        let elapsed_ns = sample.at_ns.saturating_sub(self.sampled_ns);
        let new_requests = sample.foreground.total.saturating_sub(self.seen.total);
        let background = sample.background.saturating_sub(self.seen_background);
        self.budget.refill(sample.at_ns, 1.0);
        self.foreground.add(elapsed_ns, new_requests);
        if sample.collided() {
            self.background.add(elapsed_ns, background);
        } else if let Some(drain) = &mut self.drain {
            let gap_ns = self.background.gap_or_zero_ns();
            let more_ns = drain.update(sample.at_ns, sample.background, gap_ns);
            self.budget.charge(more_ns);
        }
        self.notifies = sample.notifies;
        // Requests close to one another are one burst, however late they are sampled.
        let is_apart =
            new_requests == 0 || sample.collided() || elapsed_ns / new_requests >= QUIET_NS_MIN;
        if is_apart && self.is_open(sample.at_ns) {
            self.end_burst();
        }
        if new_requests > 0 {
            self.recent = RecentUse {
                foreground: new_requests,
                background,
                window_ns: elapsed_ns,
            };
            self.add_requests(new_requests, elapsed_ns, sample);
        }
        self.seen = sample.foreground;
        self.seen_background = sample.background;
        self.sampled_ns = sample.at_ns;
    }

    fn add_requests(&mut self, new_requests: u64, elapsed_ns: u64, sample: &DeviceSample) {
        let notified_ns = sample.foreground.last_ns.filter(|_| sample.notifies);
        let last_ns = notified_ns.map_or(sample.at_ns, |ns| ns.min(sample.at_ns));
        if sample.collided() {
            let reaction_ns = match notified_ns {
                Some(last_ns) => sample.at_ns.saturating_sub(last_ns),
                None => elapsed_ns / 2,
            };
            let sample_ns = (reaction_ns as f64).min(PART_NS_MAX);
            self.reaction_ns += (sample_ns - self.reaction_ns) / 4.0;
        }
        self.update_estimates(sample);
        self.last_ns = Some(last_ns);
        match &mut self.burst {
            None => {
                self.burst = Some(RequestBurst {
                    first_ns: last_ns,
                    second_ns: None,
                    requests: new_requests,
                    collided: sample.collided(),
                });
            }
            Some(burst) => {
                let since_ns = self.sampled_ns.max(burst.first_ns);
                let step_ns = last_ns.saturating_sub(since_ns) / new_requests;
                burst.second_ns.get_or_insert(since_ns + step_ns);
                burst.requests += new_requests;
                burst.collided |= sample.collided();
            }
        }
    }

    /// Updates the cost of a misprediction and the required quiet time. Charges a misprediction if
    /// the request collided with background work.
    fn update_estimates(&mut self, sample: &DeviceSample) {
        if sample.collided() {
            self.users = sample.users;
        }
        let gap_ns = self.background_gap_ns();
        let one_each_ns = f64::from(self.users) * gap_ns.min(PART_NS_MAX);
        let deep_ns = one_each_ns.max((DEPTH * gap_ns).min(DEPTH_NS_MAX));
        let visible_ns = deep_ns.clamp(self.kind.outstanding_ns, STALL_NS_MAX);
        let outstanding_ns = visible_ns.max(self.residual_ns);
        self.cost_ns = self.stall_ns.max(self.reaction_ns + outstanding_ns);
        let gaps_ns = (GAPS * self.foreground.gap_ns()).min(QUIET_NS_MAX as f64);
        self.quiet_ns = (gaps_ns as u64).max(QUIET_NS_MIN);
        self.budget.raise_cap(self.cost_ns);
        if sample.collided() {
            // The delay cannot exceed the time since the last charge.
            let passed_ns = sample.at_ns.saturating_sub(self.charged_ns) as f64;
            self.budget.charge(self.cost_ns.min(passed_ns));
            self.charged_ns = sample.at_ns;
            self.drain = Some(DeviceDrain::new(
                sample.at_ns,
                sample.background,
                outstanding_ns,
            ));
        }
    }

    /// Updates the estimates after a burst: the delay by requests after the stop, and the stall of
    /// the first request.
    fn end_burst(&mut self) {
        if let Some(drain) = self.drain.take() {
            self.residual_ns += (drain.cost_ns() - self.residual_ns) / 2.0;
        }
        let collision = self
            .burst
            .take()
            .filter(|burst| burst.collided && self.kind.stalls);
        let Some(burst) = collision else {
            return;
        };
        let (Some(second_ns), Some(last_ns)) = (burst.second_ns, self.last_ns) else {
            return;
        };
        if burst.requests < BURST_MIN {
            return;
        }
        let mean_gap_ns = last_ns.saturating_sub(second_ns) / (burst.requests - 2);
        let first_ns = second_ns.saturating_sub(burst.first_ns);
        let explained_ns = (STALL_DEPTH * self.background_gap_ns()).min(STALL_NS_MAX);
        let stall_ns = (first_ns.saturating_sub(mean_gap_ns) as f64).min(explained_ns);
        self.stall_ns += (stall_ns - self.stall_ns) / 2.0;
    }

    /// Mean time between requests of running background work; 0 if unknown.
    fn background_gap_ns(&self) -> f64 {
        self.background.gap_or_zero_ns()
    }

    /// Whether the foreground made a single request that collided with background work and may
    /// still be outstanding.
    fn is_ambiguous(&self) -> bool {
        self.burst
            .is_some_and(|burst| burst.collided && burst.requests == 1)
    }

    /// Least quiet time before background work may continue.
    fn floor_ns(&self) -> u64 {
        let floor_ns = if self.notifies {
            QUIET_NS_MIN
        } else {
            NO_NOTIFY_NS
        };
        if !self.is_ambiguous() {
            return floor_ns;
        }
        let residual_ns = (AMBIGUOUS_DEPTH * self.background_gap_ns()) as u64;
        residual_ns.clamp(floor_ns, AMBIGUOUS_NS_MAX.max(floor_ns))
    }

    /// Time from which on background work may use the device, if the foreground makes no further
    /// request.
    pub fn opens_at_ns(&self) -> u64 {
        let Some(last_ns) = self.last_ns else {
            return 0;
        };
        let floor_ns = self.floor_ns();
        let affordable_ns = self.budget.reaches_at_ns(self.cost_ns);
        let spare_ns = self.budget.cap_ns() - self.cost_ns;
        let full_ns = self.budget.reaches_at_ns(spare_ns.max(self.cost_ns));
        let open_when_quiet_ns = (last_ns + self.quiet_ns.max(floor_ns)).max(affordable_ns);
        let open_when_full_ns = (last_ns + floor_ns).max(full_ns);
        open_when_quiet_ns.min(open_when_full_ns)
    }

    /// Whether background work may use the device now.
    pub fn is_open(&self, at_ns: u64) -> bool {
        at_ns >= self.opens_at_ns()
    }

    /// Time of the next sample while a program waits for the device.
    pub fn wake_ns(&self, at_ns: u64) -> u64 {
        let opens_ns = self.opens_at_ns();
        let (Some(last_ns), Some(burst)) = (self.last_ns, self.burst) else {
            return opens_ns;
        };
        if self.is_ambiguous() {
            return opens_ns.min(at_ns + QUIET_NS_MIN);
        }
        let lull_ns = (2.0 * self.foreground.gap_ns()).clamp(2e6, QUIET_NS_MIN as f64 / 2.0);
        if at_ns.saturating_sub(last_ns) as f64 > lull_ns {
            return opens_ns;
        }
        let age_ns = at_ns.saturating_sub(burst.first_ns);
        opens_ns.max(at_ns + (age_ns / SAMPLE_DIVISOR).min(SAMPLE_NS_MAX))
    }

    /// The delay budget.
    pub fn budget(&self) -> DelayBudget {
        self.budget
    }

    /// Remaining delay that may be caused to the foreground, in nanoseconds.
    pub fn budget_ns(&self) -> f64 {
        self.budget.level_ns()
    }

    /// Requests in the last sampling interval that contained a foreground request.
    pub fn recent(&self) -> RecentUse {
        self.recent
    }

    /// Quiet time that is required now, counted from the last request, in nanoseconds.
    pub fn required_quiet_ns(&self) -> u64 {
        let last_ns = self.last_ns.unwrap_or(0);
        self.opens_at_ns().saturating_sub(last_ns)
    }
}
