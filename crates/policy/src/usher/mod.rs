// SPDX-License-Identifier: MIT OR Apache-2.0
//! The policy `usher`, Usher's own policy for seats.
//!
//! Like the policy of paper 1, `usher` gives each program whole cores along cache boundaries, with
//! the least predicted ANTT. (ANTT is the weighted mean of the slow-downs against a run alone.)
//! `usher` differs from paper 1 in these points:
//!
//! - *No trials that stop other programs.* A program with a profile is planned at once. A new
//!   program without a profile, but with measurable progress, gets an equal share (its *fair
//!   start*). The program is measured on this share and on half of this share. If other programs
//!   can give up half of their seats, it is also measured on a wide seat (module `survey`).
//!   Measurements on later seats refine the fitted law. If a new program reports no progress that a
//!   plan may be based on, all programs are left to the kernel, since no gain can be predicted.
//! - *Seats only where they gain enough*: the predicted ANTT of the best seating must be better
//!   than the ANTT of time sharing by more than [`MARGIN`] plus the possible error of the curves.
//!   Time sharing is predicted from the curves (module `timeshare`), or measured if the programs
//!   report progress while they share CPUs (module `compare`).
//! - *Phases*: a permanent change of a program's rate (module `meter`) invalidates its
//!   measurements, and the plan is made again. A new plan for which measurements are the only
//!   reason is made at most once per hold time. The hold time is 1 s at first, and doubles, up to
//!   32 s, if the next such plan follows soon.
//! - *Pinned programs*: a program that pins its threads gets no seat. The other programs are
//!   planned on the rest of the machine.
//! - *Idle seats are lent* (module `lend`).
//! - *No narrowing of programs that spin*: GNU OpenMP and MPI choose at their start, from the
//!   number of cores, how threads wait for one another. A program that waits in such a runtime
//!   keeps, until it ends, the number of cores at its start or as many cores as it has threads,
//!   whichever is smaller. The program does not borrow cores, because its runtime might restart on
//!   borrowed cores that are then returned. Until it is known how a program waits, the program is
//!   treated as if it waited in such a runtime.
//! - *Turns*: programs that spin and their neighbours take turns on all cores (module `turns`) if
//!   turns are much better than seats and time sharing. Attached programs are never stopped for
//!   turns.
//! - *Deliberate variation*: some runs of programs without a counter of progress get narrower seats,
//!   so that the store gets points of their curves (module `variation`). Module `crate::variation`
//!   states the bound of the loss.
//! - *More programs than cores*: besides time sharing of all CPUs, partitions with a few programs
//!   per core (module `partitions`) are considered.
//!
//! Because moves have a cost, a new plan replaces the present plan only if its predicted ANTT is
//! better by more than [`KEEP_MARGIN`]. Exception: a new plan after programs or CPUs were added or
//! removed always replaces the present plan.
//!
//! *Steps of a decision*:
//!
//! 1. Process events, failed actions and samples.
//! 2. Advance the survey and the comparison.
//! 3. Make a new plan if there is a reason (module `planning`).
//! 4. Lend idle cores, and advance the turns.
//! 5. Request the actions that lead to the desired state.
//!
//! *Limits.* After five failed actions on one program, no program gets a seat until no action on
//! that program has failed for 60 s. A further failure starts the 60 s again. The next decision is
//! due after 8 ms while cores are lent or wanted, and after 20 to 100 ms while seats are in use
//! otherwise. While all programs share all CPUs, a decision is due after 0.1 to 4 s.
//!
//! *Cost.* A decision without a new plan takes the time of the lender: quadratic in the number of
//! programs. A new plan adds a fit per program (module `fit`), the search of module `seating`
//! (tenths of a second at its limit), and the mapping of module `remap`.

mod compare;
mod curve_data;
mod fewer_cores;
mod intervals;

pub mod lend;
mod managed_program;
pub mod meter;
pub mod pair;
mod partitions;
mod planning;
pub mod remap;
mod seat_decision;
mod survey;
pub mod turns;
mod variation;

use std::collections::BTreeMap;

use usher_model::{
    Action, CpuSet, Decision, Event, Note, Observation, Plan, ProgramId, ProgressSource,
    SampleScope, Topology,
};

use self::compare::{Comparison, ComparisonSamples};
use self::intervals::{CALM_NS, MEASURE_NS};
use self::lend::{Lender, LendingContext, TICK_NS};
use self::managed_program::{ManagedProgram, MeasuredPlacement};
use self::meter::SampleOutcome;
use self::survey::Survey;
use self::turns::{ProgramTurn, TurnSchedule};
use self::variation::Variation;
use crate::Policy;
use crate::action_diff::{ActionDiff, DesiredSeats};
use crate::simple::{apply_limits, desired_seats, remove_pinned};

/// Relative advantage over time sharing that seats must be predicted to have.
pub const MARGIN: f64 = 0.03;
/// Relative advantage over the present seating that a new seating must be predicted to have.
pub const KEEP_MARGIN: f64 = 0.03;
/// First and greatest hold time. After a new plan for which measurements were the only reason, no
/// further such plan is made during the hold time.
const HOLD_NS_MIN: u64 = 1_000_000_000;
const HOLD_NS_MAX: u64 = 32_000_000_000;
/// Number of failed actions on one program after which no program gets a seat. The number of a
/// program returns to 0 when no action on that program has failed for `FORGIVEN_NS`.
const FAILURES_MAX: u32 = 5;
const FORGIVEN_NS: u64 = 60_000_000_000;
/// Interval between samples while programs share all CPUs.
const SHARED_NS: u64 = 1_000_000_000;
/// Interval between samples while programs share all CPUs and one of them has run for less than
/// `YOUNG_NS`. Short runs thereby have enough samples for a point of their curve.
const SHARED_YOUNG_NS: u64 = 250_000_000;
const YOUNG_NS: u64 = 10_000_000_000;
/// Interval between samples while programs share all CPUs and have used almost no CPU time
/// recently.
const REST_NS: u64 = 4_000_000_000;
/// Number of CPUs used by all programs together below which the programs count as at rest.
const REST_CPUS: f64 = 0.01;

/// The policy `usher`.
#[derive(Debug)]
pub struct Usher {
    machine: Topology,
    topology: Topology,
    members: BTreeMap<ProgramId, ManagedProgram>,
    plan: Plan,
    /// Present seats, including trials: the CPUs that each program owns now.
    seats: BTreeMap<ProgramId, CpuSet>,
    /// The last seat of each program. The program's memory is near that seat.
    last_seats: BTreeMap<ProgramId, CpuSet>,
    lender: Lender,
    turns: TurnSchedule,
    comparison: Comparison,
    samples: ComparisonSamples,
    survey: Survey,
    variation: Variation,
    /// The plan that the comparison measured with two programs on the union of their seats.
    pair: Option<Plan>,
    /// Whether the comparison with the present programs favoured seats; `None`: no comparison was
    /// made.
    comparison_favours_seats: Option<bool>,
    /// State of the comparison when the plan was last made.
    planned_at: Option<Comparison>,
    /// Turns of the plan; empty without turns.
    planned_turns: Vec<ProgramTurn>,
    diff: ActionDiff,
    notes: Vec<Note>,
    hold_until_ns: u64,
    hold_ns: u64,
    /// The reason why the plan must be made again; `None`: the plan is up to date.
    replan_reason: Option<ReplanReason>,
    /// Time of the last sample, and the CPU time of all programs at that time.
    last_sample: (u64, u64),
    at_rest: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReplanReason {
    /// New measurements exist.
    Measured,
    /// A comparison or a survey moves on to its next step.
    Step,
    /// Programs or CPUs were added or removed.
    Changed,
}

impl Usher {
    /// Creates the policy for a machine.
    pub fn new(topology: Topology) -> Self {
        Self {
            machine: topology.clone(),
            topology,
            members: BTreeMap::new(),
            plan: Plan::default(),
            seats: BTreeMap::new(),
            last_seats: BTreeMap::new(),
            lender: Lender::default(),
            turns: TurnSchedule::default(),
            comparison: Comparison::Due(0),
            samples: ComparisonSamples::default(),
            survey: Survey::default(),
            variation: Variation::default(),
            pair: None,
            comparison_favours_seats: None,
            planned_at: None,
            planned_turns: Vec::new(),
            diff: ActionDiff::default(),
            notes: Vec::new(),
            hold_until_ns: 0,
            hold_ns: HOLD_NS_MIN,
            replan_reason: None,
            last_sample: (0, 0),
            at_rest: false,
        }
    }

    fn cores_max(&self) -> f64 {
        self.topology.capacity_of(&self.topology.all_cpus())
    }

    fn log(&mut self, program: Option<ProgramId>, text: impl Into<String>) {
        self.notes.push(Note::new(program, text.into()));
    }

    fn request_replan(&mut self, replan_reason: ReplanReason) {
        self.replan_reason = self.replan_reason.max(Some(replan_reason));
    }

    /// Processes the changes since the last observation.
    fn handle_changes(&mut self, observation: &Observation) {
        let changed = self.topology.all_cpus() != observation.usable;
        if changed && let Ok(topology) = self.machine.restrict(&observation.usable) {
            self.topology = topology;
            // Loans contain core numbers, which are different in the new topology.
            self.lender.recall_all();
            self.forget_comparison(observation.at_ns);
            self.request_replan(ReplanReason::Changed);
        }
        for failed in &observation.failed {
            if let Some(member) = self.members.get_mut(&failed.action.program()) {
                member.failures += 1;
                member.failed_ns = observation.at_ns;
                self.request_replan(ReplanReason::Changed);
            }
        }
        let long_ago = |member: &ManagedProgram| {
            member.failures > 0 && observation.at_ns.saturating_sub(member.failed_ns) >= FORGIVEN_NS
        };
        let mut again = false;
        for member in self.members.values_mut().filter(|member| long_ago(member)) {
            again |= member.failures >= FAILURES_MAX;
            member.failures = 0;
        }
        if again {
            self.request_replan(ReplanReason::Changed);
        }
        self.diff.mark_failed(&observation.failed);
        for event in &observation.events {
            self.handle_event(observation.at_ns, event);
        }
    }

    fn handle_event(&mut self, at_ns: u64, event: &Event) {
        match event {
            Event::Arrived(program) => {
                let all = self.topology.all_cpus();
                let usable_cores = program.confined_to().map_or(all.clone(), |b| b.and(&all));
                let usable_cores = self.topology.cores_in(&usable_cores).len() as u32;
                let member = ManagedProgram::new((**program).clone(), at_ns, usable_cores);
                self.members.insert(program.id, member);
                self.request_replan(ReplanReason::Changed);
            }
            Event::Departed(program) => {
                if self.members.remove(program).is_some() {
                    self.last_seats.remove(program);
                    self.diff.forget(*program);
                    self.request_replan(ReplanReason::Changed);
                }
            }
            Event::Repeated { program, seconds } => self.repeated(at_ns, *program, *seconds),
            Event::Limited { program, .. } => {
                if let Some(member) = self.members.get_mut(program) {
                    apply_limits(&mut member.program, event);
                    self.request_replan(ReplanReason::Changed);
                }
            }
            Event::Seating { .. } => {}
        }
        if !matches!(event, Event::Repeated { .. }) {
            self.forget_comparison(at_ns);
        }
    }

    /// Discards the results of comparisons, which were obtained with other programs or other usable
    /// CPUs.
    fn forget_comparison(&mut self, at_ns: u64) {
        self.comparison = Comparison::Due(at_ns);
        self.comparison_favours_seats = None;
        self.pair = None;
        for member in self.members.values_mut() {
            member.curve_data.forget_shared();
            member.drifted = false;
            if member.placement == MeasuredPlacement::Shared {
                member.meter.moved(at_ns);
            }
        }
    }

    /// Adds the time of a whole repetition, which is the best available measure of progress.
    /// Ignores the time if the placement changed during the repetition.
    fn repeated(&mut self, at_ns: u64, program: ProgramId, seconds: f64) {
        let Some(member) = self.members.get_mut(&program) else {
            return;
        };
        let repetition = ProgressSource::Repetition;
        member.source = Some(member.source.map_or(repetition, |s| s.min(repetition)));
        member.restarted();
        let began_ns = at_ns as f64 - seconds * 1e9;
        if !(seconds.is_finite() && seconds > 0.0 && began_ns >= member.placed_ns as f64) {
            return;
        }
        if member.repeated(seconds) {
            self.request_replan(ReplanReason::Measured);
        }
    }

    /// Updates whether all programs are at rest.
    fn update_rest(&mut self, observation: &Observation) {
        let (then_ns, before_ns) = self.last_sample;
        let cpu_ns = observation.programs.iter().map(|sample| sample.cpu_ns);
        let cpu_ns: u64 = cpu_ns.fold(0, u64::saturating_add);
        let elapsed_ns = observation.at_ns.saturating_sub(then_ns);
        let used_ns = cpu_ns.saturating_sub(before_ns);
        // After an event, the totals cannot be compared: a new program has used no CPU time yet,
        // and the sum lacks the total of a departed program.
        let unchanged = observation.events.is_empty();
        self.at_rest = unchanged && (used_ns as f64) < REST_CPUS * elapsed_ns as f64;
        self.last_sample = (observation.at_ns, cpu_ns);
    }

    /// Processes the samples of all programs.
    fn measure(&mut self, observation: &Observation) {
        let at_ns = observation.at_ns;
        let paired = self.is_paired();
        let mut new_phases = Vec::new();
        let mut news = false;
        for sample in &observation.programs {
            let Some(member) = self.members.get_mut(&sample.id) else {
                continue;
            };
            if sample.stopped {
                // The rate is affected by the user's pause.
                member.interrupted(at_ns);
                continue;
            }
            let trusted = sample.progress.is_some_and(|p| p.may_plan());
            news |= member.update_from_sample(sample);
            match member.meter.read(at_ns, sample) {
                SampleOutcome::Nothing => {}
                SampleOutcome::Chunk => {
                    news |= member
                        .meter
                        .estimate()
                        .is_some_and(|e| trusted && member.learn(e))
                }
                SampleOutcome::NewPhase if !trusted => {}
                // If programs share CPUs, a new phase of another program may be the cause.
                SampleOutcome::NewPhase
                    if member.placement == MeasuredPlacement::Shared || paired =>
                {
                    if !self.comparison.is_on() {
                        member.drifted = true;
                        self.comparison.new_phase(at_ns);
                    }
                }
                SampleOutcome::NewPhase if member.placement == MeasuredPlacement::Mixed => {}
                SampleOutcome::NewPhase => {
                    member.forget_phase(at_ns);
                    self.comparison.new_phase(at_ns);
                    new_phases.push(sample.id);
                }
            }
        }
        if news || !new_phases.is_empty() {
            self.request_replan(ReplanReason::Measured);
        }
        for id in new_phases {
            self.log(
                Some(id),
                "the program's rate of progress has changed for good: Usher measures the new phase",
            );
        }
    }

    /// Puts the plan into force: seats, trials and loans. Returns whether any program was moved.
    fn apply_plan(&mut self, at_ns: u64, replanned: bool) -> bool {
        let all = self.topology.all_cpus();
        let mut seats = BTreeMap::new();
        let narrowed = self.plan.seats.iter().filter(|seat| seat.cpus != all);
        for seat in narrowed.filter(|_| !self.plan.abstains) {
            let member = self.members.get(&seat.program);
            let Some(member) = member.filter(|member| !member.is_pinned()) else {
                continue;
            };
            let trial = member.trial_seat(seat, &self.topology);
            seats.insert(seat.program, trial.unwrap_or_else(|| seat.cpus.clone()));
        }
        if let Some(surveyed) = self.survey.seats() {
            seats.clone_from(surveyed);
        }
        let took_turns = self.turns.are_taken();
        self.turns.set_turns(at_ns, &self.planned_turns);
        let moved = seats != self.seats || took_turns != self.turns.are_taken();
        if moved {
            self.lender.recall_all();
            if !self.survey.is_on() {
                self.last_seats.extend(seats.clone());
            }
            self.seats = seats;
        }
        if moved || replanned {
            self.update_places(at_ns);
        }
        moved
    }

    /// Whether a program is being measured on a seat. During the measurement, the program must not
    /// run outside of its seat.
    fn measures_on_seats(&self) -> bool {
        let explores = self.members.values().any(ManagedProgram::explores);
        explores || self.survey.is_on() || self.comparison.is_on() || self.variation.is_on()
    }

    /// Starts and ends loans; returns whether a loan began or ended.
    fn lend(&mut self, observation: &Observation) -> bool {
        if self.seats.is_empty() || self.survey.is_on() || self.variation.is_on() {
            return false;
        }
        let (members, cores_max) = (&self.members, self.cores_max());
        let gains = |id: ProgramId, from: f64, to: f64| {
            members
                .get(&id)
                .is_some_and(|m| m.gains(from, to, cores_max))
        };
        let ctx = LendingContext {
            topology: &self.topology,
            seats: &self.seats,
            gains: &gains,
            lends: &|id| members.get(&id).is_some_and(|m| !m.explores()),
        };
        let moved = self
            .lender
            .tick(observation.at_ns, &observation.programs, &ctx);
        if moved {
            self.update_places(observation.at_ns);
        }
        moved
    }

    /// The actions to take now. Freezes come first, then changes of seats, then thaws. Two owners
    /// thus never use a CPU at the same time.
    fn actions(&mut self, wanted: &DesiredSeats) -> Vec<Action> {
        let stops = |&id: &ProgramId| (id, self.turns.stops(id));
        let stops: Vec<_> = self.members.keys().map(stops).collect();
        let is_stop = |action: &Action| matches!(action, Action::Freeze { .. });
        let changes = self.diff.freeze_where(stops).into_iter();
        let (mut actions, thaws): (Vec<_>, Vec<_>) = changes.partition(is_stop);
        actions.extend(self.diff.move_to(wanted));
        actions.extend(thaws);
        actions
    }

    /// Updates the placement of each program. A program with a changed placement starts a new
    /// measurement.
    fn update_places(&mut self, at_ns: u64) {
        let loans = self.lender.loans(&self.topology);
        for (id, member) in &mut self.members {
            let trades = loans
                .iter()
                .any(|loan| loan.owner == Some(*id) || loan.borrower == *id);
            let placement = match self.seats.get(id) {
                None if self.turns.are_taken() => MeasuredPlacement::Mixed,
                None => MeasuredPlacement::Shared,
                Some(seat) if trades || self.seats.values().filter(|s| *s == seat).count() > 1 => {
                    MeasuredPlacement::Mixed
                }
                Some(seat) => MeasuredPlacement::Seat(self.topology.capacity_of(seat)),
            };
            if placement != member.placement {
                member.moved(at_ns, placement);
            }
        }
        self.plan.loans = loans;
    }

    /// The plan with the seats in force, which differ from the planned seats during trials and
    /// surveys.
    fn plan_as_it_stands(&self) -> Plan {
        let mut plan = self.plan.clone();
        for seat in &mut plan.seats {
            if let Some(cpus) = self
                .seats
                .get(&seat.program)
                .filter(|&cpus| *cpus != seat.cpus)
            {
                seat.domains = self.topology.domains_in(cpus);
                seat.cpus = cpus.clone();
            }
        }
        plan
    }

    /// Desired CPUs of each program: its seat and the CPUs that it borrows.
    fn wanted(&self) -> DesiredSeats {
        let mut wanted = desired_seats(&self.plan, &self.topology.all_cpus());
        if self.plan.abstains {
            wanted.values_mut().for_each(|cpus| *cpus = None);
        }
        remove_pinned(&mut wanted, self.members.values().map(|m| &m.program));
        let all = self.topology.all_cpus();
        for (&id, seat) in &self.seats {
            let borrowed = self.plan.loans.iter().filter(|loan| loan.borrower == id);
            let cpus = borrowed.fold(seat.clone(), |cpus, loan| cpus.or(&loan.cpus));
            wanted.insert(id, (cpus != all).then_some(cpus));
        }
        wanted
    }

    /// Updates the number of cores that each program may use.
    fn update_usable_cores(&mut self, wanted: &DesiredSeats) {
        let all = self.topology.all_cpus();
        for (id, member) in &mut self.members {
            let cpus = wanted.get(id).and_then(Option::as_ref).unwrap_or(&all);
            let bound = member.program.confined_to();
            let cpus = bound.map_or_else(|| cpus.clone(), |bound| cpus.and(bound));
            member.usable_cores = self.topology.cores_in(&cpus).len() as u32;
        }
    }

    /// Whether a program has arrived recently.
    fn is_any_young(&self, at_ns: u64) -> bool {
        let age_ns = |member: &ManagedProgram| at_ns.saturating_sub(member.arrived_ns);
        self.members
            .values()
            .any(|member| age_ns(member) < YOUNG_NS)
    }

    fn wake_after_ns(&self, at_ns: u64) -> Option<u64> {
        if self.members.is_empty() {
            return None;
        }
        let measures = self.members.values().any(ManagedProgram::has_live_source);
        let pace = match () {
            () if self.turns.are_taken() => self.turns.wake_after_ns(at_ns),
            () if self.seats.is_empty() && measures => MEASURE_NS,
            () if self.seats.is_empty() && self.at_rest => REST_NS,
            () if self.seats.is_empty() && self.is_any_young(at_ns) => SHARED_YOUNG_NS,
            () if self.seats.is_empty() => SHARED_NS,
            () if self.lender.needs_short_ticks() => TICK_NS,
            () if self.lender.is_busy() => CALM_NS,
            () => MEASURE_NS,
        };
        let hold = self
            .replan_reason
            .map(|_| self.hold_until_ns.saturating_sub(at_ns).max(TICK_NS));
        Some(hold.map_or(pace, |hold| hold.min(pace)))
    }
}

impl Policy for Usher {
    fn name(&self) -> &'static str {
        "usher"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let at_ns = observation.at_ns;
        self.handle_changes(observation);
        self.update_rest(observation);
        self.measure(observation);
        if self.survey(at_ns) {
            self.request_replan(ReplanReason::Step);
        }
        if self.compare(at_ns) {
            self.request_replan(ReplanReason::Step);
        }
        self.spend_variation(at_ns);
        let replanned = self.replan(at_ns);
        // A trial can begin or end without a new plan.
        let moved = self.apply_plan(at_ns, replanned);
        let lent = self.lend(observation);
        self.turns
            .update(at_ns, &observation.programs, self.at_rest);
        let wanted = self.wanted();
        self.update_usable_cores(&wanted);
        Decision {
            actions: self.actions(&wanted),
            plan: (replanned || moved || lent).then(|| self.plan_as_it_stands()),
            notes: std::mem::take(&mut self.notes),
            wake_after_ns: self.wake_after_ns(at_ns),
            scope: SampleScope::All,
            background_states: None,
            soft_seats: Some(!self.measures_on_seats()),
        }
    }
}
