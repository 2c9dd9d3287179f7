// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regulation of background work, which uses the resources that the foreground leaves unused.
//!
//! [`RegulatedPolicy`] wraps the policy that seats programs. Programs that arrive as background
//! work ([`usher_model::Program::background`]) go to the regulator, which stops and continues them.
//! All other programs go to the seating policy, which never receives background programs. Without
//! background work, the seating policy receives every observation unchanged.
//!
//! There are three regulations. The regulations `eii` and `ipd` are those of paper 2 and use its
//! contention test (module [`contention`]). The regulation `usher` has a throttle for each disk and
//! interface (module [`device_throttle`]) and a throttle for the CPUs (module [`cpus`]), each with
//! a delay budget (module [`budget`]).
//!
//! *Two sampling rates*. Regulation samples the meter tens of times per second. A complete sample,
//! which includes every program, is more expensive; the seating policy requests a complete sample
//! when needed. [`RegulatedPolicy`] therefore requests samples of the meter alone
//! ([`SampleScope::Meter`]), and complete samples when the seating policy is due. The seating
//! policy receives only complete samples, since a meter sample contains no programs. Events that
//! arrive with a meter sample are queued, and a complete sample is requested at once.
//!
//! *Limits*. A complete sample is requested at most three times in succession. If the third sample
//! contains no programs either, the sample is passed to the seating policy as it is. A decision
//! takes linear time in the number of programs and events, plus the time of the regulator and of
//! the seating policy.

pub mod budget;
pub mod contention;
pub mod cpus;
pub mod device_throttle;
mod drain;
mod eii;
mod history;
mod imbalance;
pub mod ipd;
mod regulator;
pub mod thresholds;
pub mod usher;

use std::collections::BTreeSet;

use usher_model::{
    CpuSet, Decision, Event, FailedAction, Observation, ProgramId, ProgramSample, SampleScope,
};

pub use self::thresholds::{ThresholdError, Thresholds};

use self::regulator::Regulator;
use crate::Policy;

/// Number of requests for a complete sample after which even a sample without programs is accepted,
/// because the samples of all programs may really be late.
const FULL_REQUESTS_MAX: u32 = 3;

/// A seating policy combined with the regulation of background programs.
#[derive(Debug)]
pub struct RegulatedPolicy<P> {
    inner: P,
    regulator: Regulator,
    /// Programs known to the seating policy.
    foreground: BTreeSet<ProgramId>,
    /// Events that the seating policy has not received yet.
    pending: PendingInput,
    /// Time at which the seating policy must be called next.
    due_ns: Option<u64>,
    /// Usable CPUs in the last observation that the seating policy received.
    usable: Option<CpuSet>,
    /// Number of requests for a complete sample since the last call of the seating policy.
    full_requests: u32,
    /// Background programs that departed at this sample and at the previous sample. Reports about
    /// departed programs may arrive late.
    departed: [BTreeSet<ProgramId>; 2],
}

#[derive(Debug, Default)]
struct PendingInput {
    events: Vec<Event>,
    failed: Vec<FailedAction>,
}

impl<P: Policy> RegulatedPolicy<P> {
    /// Wraps a policy, with paper 2's thresholds.
    pub fn new(inner: P) -> Self {
        Self {
            inner,
            regulator: Regulator::default(),
            foreground: BTreeSet::new(),
            pending: PendingInput::default(),
            due_ns: None,
            usable: None,
            full_requests: 0,
            departed: [BTreeSet::new(), BTreeSet::new()],
        }
    }

    /// Replaces the thresholds; to be called before the first decision.
    #[must_use]
    pub fn with_thresholds(mut self, thresholds: Thresholds) -> Self {
        self.regulator = Regulator::new(thresholds);
        self
    }

    /// The seating policy.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Whether a program is background work, or was background work until the previous sample.
    fn is_background(&self, id: ProgramId) -> bool {
        self.regulator.contains(id) || self.departed.iter().any(|departed| departed.contains(&id))
    }

    /// Routes each event to the regulator or to the seating policy's queue.
    fn route_events(&mut self, observation: &Observation) {
        for event in &observation.events {
            let (id, is_background) = match event {
                Event::Seating { .. } => {
                    self.pending.events.push(event.clone());
                    continue;
                }
                Event::Arrived(program) => (program.id, program.background.is_some()),
                Event::Departed(id)
                | Event::Repeated { program: id, .. }
                | Event::Limited { program: id, .. } => (*id, self.is_background(*id)),
            };
            if is_background {
                self.regulator.handle_event(observation.at_ns, event);
                if matches!(event, Event::Departed(_)) {
                    self.departed[0].insert(id);
                }
                continue;
            }
            self.track_foreground(event);
            self.pending.events.push(event.clone());
        }
        let of_background = |f: &FailedAction| self.is_background(f.action.program());
        let (background, foreground): (Vec<_>, Vec<_>) =
            observation.failed.iter().cloned().partition(of_background);
        self.pending.failed.extend(foreground);
        self.regulator
            .handle_failures(observation.at_ns, &background);
    }

    fn track_foreground(&mut self, event: &Event) {
        match event {
            Event::Arrived(program) => self.foreground.insert(program.id),
            Event::Departed(id) => self.foreground.remove(id),
            Event::Repeated { .. } | Event::Limited { .. } | Event::Seating { .. } => false,
        };
    }

    /// Whether no background program is present, arrives now or departed at one of the last two
    /// samples, and no input of the seating policy is pending.
    fn has_no_background(&self, observation: &Observation) -> bool {
        let arrives = |event: &Event| matches!(event, Event::Arrived(p) if p.background.is_some());
        let is_idle = self.pending.events.is_empty() && self.pending.failed.is_empty();
        let departed = self.departed.iter().all(BTreeSet::is_empty);
        self.regulator.is_empty() && is_idle && departed && !observation.events.iter().any(arrives)
    }

    /// Whether the seating policy must be called now.
    fn is_inner_due(&self, observation: &Observation) -> bool {
        let is_due = self
            .due_ns
            .is_some_and(|due_ns| observation.at_ns >= due_ns);
        let moved = (self.usable.as_ref()).is_none_or(|usable| *usable != observation.usable);
        let has_pending = !self.pending.events.is_empty() || !self.pending.failed.is_empty();
        is_due || moved || has_pending
    }

    /// Whether the sample covers all programs.
    fn is_full(&self, observation: &Observation) -> bool {
        let no_foreground = self.foreground.is_empty();
        no_foreground || !observation.programs.is_empty() || self.full_requests >= FULL_REQUESTS_MAX
    }

    /// Calls the seating policy.
    fn call_inner(&mut self, observation: &Observation) -> Decision {
        self.full_requests = 0;
        self.usable = Some(observation.usable.clone());
        let decision = self.inner.decide(observation);
        let due = |after_ns| observation.at_ns.saturating_add(after_ns);
        self.due_ns = decision.wake_after_ns.map(due);
        decision
    }

    /// Calls the seating policy with an observation that contains no background work.
    fn call_inner_without_background(&mut self, observation: &Observation) -> Decision {
        let pending = std::mem::take(&mut self.pending);
        let is_foreground = |sample: &&ProgramSample| !self.is_background(sample.id);
        let foreground_only = Observation {
            at_ns: observation.at_ns,
            usable: observation.usable.clone(),
            events: pending.events,
            failed: pending.failed,
            programs: observation
                .programs
                .iter()
                .filter(is_foreground)
                .cloned()
                .collect(),
            metering: None,
        };
        self.call_inner(&foreground_only)
    }

    /// Merges the decisions of the regulator and the seating policy.
    fn decide_both(&mut self, observation: &Observation) -> Decision {
        let at_ns = observation.at_ns;
        let outcome = self.regulator.update(observation);
        let inner_due = self.is_inner_due(observation);
        let needs_full = inner_due && !self.is_full(observation);
        let mut decision = Decision::default();
        if needs_full {
            self.full_requests += 1;
            self.due_ns = Some(at_ns);
        } else if inner_due {
            decision = self.call_inner_without_background(observation);
        }
        let meter_first = match (outcome.wake_ns, self.due_ns) {
            (Some(wake_ns), Some(due_ns)) => wake_ns < due_ns,
            (wake_ns, _) => wake_ns.is_some(),
        };
        let next_ns = if meter_first {
            outcome.wake_ns
        } else {
            self.due_ns
        };
        decision.wake_after_ns = next_ns.map(|next_ns| next_ns.saturating_sub(at_ns));
        decision.scope = if meter_first {
            SampleScope::Meter
        } else {
            SampleScope::All
        };
        decision.actions = [outcome.actions, decision.actions].concat();
        decision.notes.extend(outcome.notes);
        decision.background_states = outcome.background_states;
        decision
    }
}

impl<P: Policy> Policy for RegulatedPolicy<P> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        self.departed.swap(0, 1);
        self.departed[0].clear();
        if self.has_no_background(observation) {
            observation
                .events
                .iter()
                .for_each(|event| self.track_foreground(event));
            return self.call_inner(observation);
        }
        self.route_events(observation);
        self.decide_both(observation)
    }
}
