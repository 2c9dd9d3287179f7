// SPDX-License-Identifier: MIT OR Apache-2.0
//! One disk or interface under `usher`: when background work may use it.
//!
//! A gate watches the foreground's requests of one device and answers one
//! question: from when on may background work use the device, if the foreground
//! makes no further request? Each request moves that time, and so shuts the gate
//! in the faces of those who use the device. It opens when both hold:
//!
//! 1. *quiet*: [`QUIET_NS_MIN`] have passed since the last request, and three
//!    times the foreground's mean gap between requests of late, at most
//!    [`QUIET_NS_MAX`]. A foreground that asks every 30 ms has not gone because it
//!    has been silent for 20;
//! 2. *budget* (module `budget`): the account covers one wrong guess.
//!
//! With an account that was full before the last wrong guess, 20 ms are enough,
//! whatever the gaps: what cannot be saved may as well be spent. A foreground with
//! a request every 200 ms, whose gaps would never let background work on, so
//! leaves it a share: a run of 180 ms for every *d* that the budget earns.
//!
//! Both the quiet and *d* are settled with each request, and only then: a gate
//! that is open stays so until the foreground makes one. This is what tells a
//! stop from a whim.
//!
//! *What a wrong guess costs* is estimated from what can be seen:
//!
//! - the reaction: from the request to the look that finds it, measured each
//!   time;
//! - what background work has under way on the device, which is done first:
//!   eight requests at the pace at which it makes them, or one for each program
//!   where these are slow, and a floor for the device's kind;
//! - what it goes on to ask for when it has been stopped, as its sockets do:
//!   counted after each meeting, and charged for at the pace at which it asks;
//! - long stalls, where a deep queue has to drain: a foreground that asks, and
//!   goes on asking at its pace only 60 ms later, has been stalled for as long.
//!   This takes a burst of several requests to see, and is believed as far as 32
//!   of the background's requests would explain it; of disks only, as who sends
//!   fills a buffer first and then waits for the network in any case.
//!
//! *One request and then silence* is ambiguous: the foreground may have gone, or
//! wait behind a deep queue on a slow disk. After such a meeting the quiet is that
//! of ten background requests, at most [`AMBIGUOUS_NS_MAX`], so that a second
//! one is waited for and a stall can be told.
//!
//! *Looks*: while the gate is shut the next look is due when it would open.
//! In the midst of a burst that time moves with each request, and looks would be
//! [`QUIET_NS_MIN`] apart: the longer the burst has lasted, the longer it may
//! take to notice its end, up to `LOOK_NS_MAX`.

use super::budget::Budget;
use super::drain::Drain;

/// The foreground has gone, at the earliest, after this.
pub const QUIET_NS_MIN: u64 = 20_000_000;
/// It has gone after this, however rare its requests are.
pub const QUIET_NS_MAX: u64 = 1_000_000_000;
/// Quiet of so many mean gaps.
const GAPS: f64 = 3.0;
/// Looks in the midst of a burst are apart by this share of its age...
const LOOK_SHARE: u64 = 16;
/// ... and by no more than this.
const LOOK_NS_MAX: u64 = 50_000_000;
/// Without a bell, looks are apart by this, and the quiet is not less.
pub const BLIND_NS: u64 = 100_000_000;
/// How long a rate is remembered.
const MEMORY_NS: f64 = 500e6;
/// The reaction that is assumed before one was measured.
const REACTION_NS: f64 = 2e6;
/// Neither a reaction, nor a request of the background's, counts for more.
const PART_NS_MAX: f64 = 20e6;
/// A stall, and what comes of who is stopped, counts for no more than this.
pub const STALL_NS_MAX: f64 = 100e6;
/// The account of a device is overdrawn by no more.
const DEBT_NS: f64 = 20e6;
/// So many of the background's requests are taken to be under way at once, where
/// that is no more than this: how deep its queue is cannot be seen.
const DEPTH: f64 = 8.0;
const DEPTH_NS_MAX: f64 = 8e6;
/// What a stall is explained by: so many of the background's requests.
const STALL_DEPTH: f64 = 32.0;
/// After one request, whose sender may be stalled, so many of the background's
/// are waited for...
const AMBIGUOUS_DEPTH: f64 = 10.0;
/// ... and no longer than this.
pub const AMBIGUOUS_NS_MAX: u64 = 100_000_000;
/// A burst tells of a stall with so many requests.
const BURST_MIN: u64 = 4;

/// What is known of a kind of device beforehand.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// What is under way of background work, at least, in nanoseconds.
    flight_ns: f64,
    /// Whether a foreground that makes no request has been stalled by the one
    /// before. Who sends is not: the first calls fill a buffer, and then wait
    /// for the network, whoever else uses it.
    stalls: bool,
}

/// Disks.
pub const DISK: Kind = Kind {
    flight_ns: 1.5e6,
    stalls: true,
};
/// Network interfaces.
pub const LINK: Kind = Kind {
    flight_ns: 8e6,
    stalls: false,
};

/// Requests of one party to one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// So far.
    pub total: u64,
    /// When the last was made, where that is known.
    pub last_ns: Option<u64>,
}

/// A rate that forgets.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    time_ns: f64,
    count: f64,
}

impl Rate {
    fn add(&mut self, time_ns: u64, count: u64) {
        let time_ns = time_ns as f64;
        let kept = MEMORY_NS / (MEMORY_NS + time_ns);
        self.time_ns = self.time_ns * kept + time_ns;
        self.count = self.count * kept + count as f64;
    }

    /// Mean time between two; infinite where there were none.
    fn gap_ns(self) -> f64 {
        self.time_ns / self.count
    }

    /// The same; 0 where there were none.
    fn known_gap_ns(self) -> f64 {
        let gap_ns = self.gap_ns();
        if gap_ns.is_finite() { gap_ns } else { 0.0 }
    }
}

/// Foreground requests since the gate was last open.
#[derive(Debug, Clone, Copy)]
struct Burst {
    first_ns: u64,
    /// When the second came, as far as looks can tell.
    second_ns: Option<u64>,
    requests: u64,
    /// Whether background work was in its way.
    met: bool,
}

/// One look at a device.
#[derive(Debug, Clone, Copy)]
pub struct Glance {
    /// When.
    pub at_ns: u64,
    /// What the foreground has asked of it.
    pub foreground: Requests,
    /// What regulated background programs have, all together.
    pub background: u64,
    /// How many of these have been using it since the last look.
    pub users: u32,
    /// Whether foreground requests ring a bell.
    pub bell: bool,
}

impl Glance {
    fn met(&self) -> bool {
        self.users > 0
    }
}

/// What was asked for between two looks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Recent {
    /// By the foreground.
    pub foreground: u64,
    /// By regulated background programs.
    pub background: u64,
    /// In so many nanoseconds.
    pub window_ns: u64,
}

/// The state of one device.
#[derive(Debug, Clone)]
pub struct Gate {
    kind: Kind,
    budget: Budget,
    looked_ns: u64,
    seen: Requests,
    seen_background: u64,
    /// The foreground's last request; `None`: not known.
    last_ns: Option<u64>,
    foreground: Rate,
    background: Rate,
    reaction_ns: f64,
    stall_ns: f64,
    burst: Option<Burst>,
    /// How many used it when it was last found contended: as many will be met by
    /// the next wrong guess, though none uses it while all are stopped.
    users: u32,
    bell: bool,
    /// What was asked for after it was stopped, as learnt, and as it goes on.
    drained_ns: f64,
    drain: Option<Drain>,
    /// What one wrong guess costs, and the quiet that three gaps ask for, as of
    /// the last request.
    cost_ns: f64,
    quiet_ns: u64,
    /// When a wrong guess was last paid for.
    charged_ns: u64,
    recent: Recent,
}

impl Gate {
    /// A gate that is open unless the foreground has just been there, with the
    /// account that there was, or a full one.
    pub fn new(kind: Kind, first: &Glance, account: Option<Budget>) -> Self {
        Self {
            kind,
            budget: account.unwrap_or_else(|| Budget::new(first.at_ns, DEBT_NS)),
            looked_ns: first.at_ns,
            seen: first.foreground,
            seen_background: first.background,
            last_ns: first.foreground.last_ns,
            foreground: Rate::default(),
            background: Rate::default(),
            reaction_ns: REACTION_NS,
            stall_ns: 0.0,
            burst: None,
            users: 1,
            bell: first.bell,
            cost_ns: REACTION_NS + kind.flight_ns,
            quiet_ns: QUIET_NS_MIN,
            drained_ns: 0.0,
            drain: None,
            charged_ns: 0,
            recent: Recent::default(),
        }
    }

    /// Takes a look in.
    pub fn look(&mut self, glance: &Glance) {
        let elapsed_ns = glance.at_ns.saturating_sub(self.looked_ns);
        let asked = glance.foreground.total.saturating_sub(self.seen.total);
        let background = glance.background.saturating_sub(self.seen_background);
        self.budget.earn(glance.at_ns, 1.0);
        self.foreground.add(elapsed_ns, asked);
        if glance.met() {
            self.background.add(elapsed_ns, background);
        } else if let Some(drain) = &mut self.drain {
            let gap_ns = self.background.known_gap_ns();
            let more_ns = drain.look(glance.at_ns, glance.background, gap_ns);
            self.budget.spend(more_ns);
        }
        self.bell = glance.bell;
        // Requests close to one another are one burst, however late they are seen.
        let apart = asked == 0 || glance.met() || elapsed_ns / asked >= QUIET_NS_MIN;
        if apart && self.is_open(glance.at_ns) {
            self.end_burst();
        }
        if asked > 0 {
            self.recent = Recent {
                foreground: asked,
                background,
                window_ns: elapsed_ns,
            };
            self.asked(asked, elapsed_ns, glance);
        }
        self.seen = glance.foreground;
        self.seen_background = glance.background;
        self.looked_ns = glance.at_ns;
    }

    fn asked(&mut self, asked: u64, elapsed_ns: u64, glance: &Glance) {
        let told = glance.foreground.last_ns.filter(|_| glance.bell);
        let last_ns = told.map_or(glance.at_ns, |ns| ns.min(glance.at_ns));
        if glance.met() {
            let reaction_ns = match told {
                Some(last_ns) => glance.at_ns.saturating_sub(last_ns),
                None => elapsed_ns / 2,
            };
            let sample_ns = (reaction_ns as f64).min(PART_NS_MAX);
            self.reaction_ns += (sample_ns - self.reaction_ns) / 4.0;
        }
        self.settle(glance);
        self.last_ns = Some(last_ns);
        match &mut self.burst {
            None => {
                self.burst = Some(Burst {
                    first_ns: last_ns,
                    second_ns: None,
                    requests: asked,
                    met: glance.met(),
                });
            }
            Some(burst) => {
                let since_ns = self.looked_ns.max(burst.first_ns);
                let step_ns = last_ns.saturating_sub(since_ns) / asked;
                burst.second_ns.get_or_insert(since_ns + step_ns);
                burst.requests += asked;
                burst.met |= glance.met();
            }
        }
    }

    /// Settles what a wrong guess costs and what quiet is needed, and pays for
    /// the guess that was wrong, if there was one.
    fn settle(&mut self, glance: &Glance) {
        if glance.met() {
            self.users = glance.users;
        }
        let gap_ns = self.background_gap_ns();
        let one_each_ns = f64::from(self.users) * gap_ns.min(PART_NS_MAX);
        let deep_ns = one_each_ns.max((DEPTH * gap_ns).min(DEPTH_NS_MAX));
        let known_ns = deep_ns.clamp(self.kind.flight_ns, STALL_NS_MAX);
        let flight_ns = known_ns.max(self.drained_ns);
        self.cost_ns = self.stall_ns.max(self.reaction_ns + flight_ns);
        let gaps_ns = (GAPS * self.foreground.gap_ns()).min(QUIET_NS_MAX as f64);
        self.quiet_ns = (gaps_ns as u64).max(QUIET_NS_MIN);
        self.budget.hold(self.cost_ns);
        if glance.met() {
            // Nobody is delayed by more time than has passed.
            let passed_ns = glance.at_ns.saturating_sub(self.charged_ns) as f64;
            self.budget.spend(self.cost_ns.min(passed_ns));
            self.charged_ns = glance.at_ns;
            self.drain = Some(Drain::new(glance.at_ns, glance.background, flight_ns));
        }
    }

    /// Learns from a burst that is over what it met, and how long its first
    /// request was stalled.
    fn end_burst(&mut self) {
        if let Some(drain) = self.drain.take() {
            self.drained_ns += (drain.cost_ns() - self.drained_ns) / 2.0;
        }
        let told = self
            .burst
            .take()
            .filter(|burst| burst.met && self.kind.stalls);
        let Some(burst) = told else {
            return;
        };
        let (Some(second_ns), Some(last_ns)) = (burst.second_ns, self.last_ns) else {
            return;
        };
        if burst.requests < BURST_MIN {
            return;
        }
        let pace_ns = last_ns.saturating_sub(second_ns) / (burst.requests - 2);
        let first_ns = second_ns.saturating_sub(burst.first_ns);
        let explained_ns = (STALL_DEPTH * self.background_gap_ns()).min(STALL_NS_MAX);
        let stall_ns = (first_ns.saturating_sub(pace_ns) as f64).min(explained_ns);
        self.stall_ns += (stall_ns - self.stall_ns) / 2.0;
    }

    /// Mean time between the background's requests as it runs; 0: not known.
    fn background_gap_ns(&self) -> f64 {
        self.background.known_gap_ns()
    }

    /// Whether the foreground has asked once, met background work, and may be
    /// waiting for it still.
    fn is_ambiguous(&self) -> bool {
        self.burst
            .is_some_and(|burst| burst.met && burst.requests == 1)
    }

    /// The least quiet after which anybody is let go on.
    fn floor_ns(&self) -> u64 {
        let floor_ns = if self.bell { QUIET_NS_MIN } else { BLIND_NS };
        if !self.is_ambiguous() {
            return floor_ns;
        }
        let drained_ns = (AMBIGUOUS_DEPTH * self.background_gap_ns()) as u64;
        drained_ns.clamp(floor_ns, AMBIGUOUS_NS_MAX.max(floor_ns))
    }

    /// From when on background work may use the device, if the foreground makes
    /// no further request.
    pub fn opens_at_ns(&self) -> u64 {
        let Some(last_ns) = self.last_ns else {
            return 0;
        };
        let floor_ns = self.floor_ns();
        let covered_ns = self.budget.reaches_at_ns(self.cost_ns);
        let spare_ns = self.budget.cap_ns() - self.cost_ns;
        let full_ns = self.budget.reaches_at_ns(spare_ns.max(self.cost_ns));
        let patient_ns = (last_ns + self.quiet_ns.max(floor_ns)).max(covered_ns);
        let rich_ns = (last_ns + floor_ns).max(full_ns);
        patient_ns.min(rich_ns)
    }

    /// Whether background work may use the device now.
    pub fn is_open(&self, at_ns: u64) -> bool {
        at_ns >= self.opens_at_ns()
    }

    /// When to look again while somebody waits for it to open.
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
        opens_ns.max(at_ns + (age_ns / LOOK_SHARE).min(LOOK_NS_MAX))
    }

    /// The account.
    pub fn account(&self) -> Budget {
        self.budget
    }

    /// Delay that the foreground may still be caused, in nanoseconds.
    pub fn budget_ns(&self) -> f64 {
        self.budget.level_ns()
    }

    /// What the last look found that found the foreground at it.
    pub fn recent(&self) -> Recent {
        self.recent
    }

    /// The quiet that is needed now, from the last request on, in nanoseconds.
    pub fn needs_ns(&self) -> u64 {
        let last_ns = self.last_ns.unwrap_or(0);
        self.opens_at_ns().saturating_sub(last_ns)
    }
}
