// SPDX-License-Identifier: MIT OR Apache-2.0
//! Implements the trait [`World`] for the real machine: observes programs through probes, acts
//! through the actuator, and waits on descriptors.
//!
//! Between two iterations of the control loop, its thread sleeps in `poll` until one of these
//! events:
//!
//! - a request arrives (eventfd of the request channel);
//! - the last process of a program ends (`cgroup.events`, or the pidfd of its root);
//! - the meter sends a notification;
//! - the keeper dies (after a failed replacement, the next attempt follows after 1 s, then 2 s, and
//!   so on up to 60 s);
//! - the deadline set by the policy passes;
//! - 20 ms have passed and a scan of a released program is unfinished;
//! - a scan for copies inside a program is due (`copies.rs`);
//! - a process executes a program while the watch for this is armed (`exec_notifications.rs`);
//! - a second has passed and programs are managed; the housekeeping then checks for CPUs that went
//!   offline or online, and for threads outside their affinity mask.
//!
//! The deadline of the policy, notifications and scans wait while the CPU time for periodic work is
//! used up (`cpu_budget.rs`).
//!
//! Only arrivals, ends, repetitions, changed CPUs, notifications and the policy's deadline cause an
//! iteration with a decision. A request for the state causes no iteration.
//!
//! An iteration costs one sample of each program, or only one sample of the meter if nothing else
//! is due. The processes and threads of the programs that have run since the last housekeeping
//! determine its cost (`rest.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::BufWriter;
use std::sync::Arc;

use usher_act::keeper::KeeperHandle;
use usher_act::{Actuator, WorkClass};
use usher_control::{Recorder, World};
use usher_model::{
    Action, CpuId, CpuSet, Decision, Event, FailedAction, Observation, Plan, ProgramId,
    ProgramSample, Topology,
};
use usher_probe::{CpuQuotas, MachineProbe, Roots, usable_cpus};

use super::background::BackgroundMetering;
use super::burst_scans::BurstBudget;
use super::clock::{now_ns, thread_cpu_ns};
use super::config::AdoptedProgram;
use super::cpu_budget::CpuBudget;
use super::exec_notifications::ExecNotifications;
use super::learn::EndedProgram;
use super::log::{ChangeLog, LogChange};
use super::member::ManagedProgram;
use super::profiles::Profiles;
use super::request_channel::{Reply, RequestReceiver};
use super::soft_seats::SoftSeats;
use super::status::TimedNote;
use super::warning::{WarningTopic, Warnings};

/// Interval of housekeeping, while there are programs.
pub(super) const HOUSEKEEPING_NS: u64 = 1_000_000_000;
/// Interval between steps of the scans that restore masks and priorities.
pub(super) const SCAN_NS: u64 = 20_000_000;
/// Minimum pause after a failed replacement of the keeper. Each further failure doubles the pause.
const KEEPER_NS_MIN: u64 = 1_000_000_000;
/// Maximum pause after a failed replacement of the keeper.
const KEEPER_NS_MAX: u64 = 60_000_000_000;

/// The machine, the programs and the loop's state.
pub(super) struct RealWorld {
    pub topology: Topology,
    pub roots: Roots,
    pub machine: MachineProbe,
    pub quotas: CpuQuotas,
    pub policy: &'static str,
    pub actuator: Actuator,
    pub keeper: Option<KeeperHandle>,
    pub requests: RequestReceiver,
    pub profiles: Arc<Profiles>,
    /// A sched_ext scheduler that can implement soft seats.
    pub soft: Option<Arc<dyn SoftSeats>>,
    pub recorder: Option<Recorder<BufWriter<File>>>,
    /// Services that do not count as foreground, in addition to the default list.
    pub ignore: Vec<String>,
    /// Maximum number of managed programs per user other than root.
    pub programs_per_user: usize,
    /// CPUs that unmanaged programs may use beside a repetition that yields a profile sample;
    /// `None` for the default.
    pub other_cpus_max: Option<f64>,
    /// Whether copies inside programs get parts of the program's seat.
    pub places_copies: bool,
    pub exec_notifications: ExecNotifications,
    pub burst_budget: BurstBudget,
    pub state: LoopState,
}

/// The state that changes from iteration to iteration.
#[derive(Default)]
pub(super) struct LoopState {
    pub members: BTreeMap<ProgramId, ManagedProgram>,
    /// Programs with a prepared home but without a process yet, with the user that launches each
    /// program and the class of work of its home.
    pub prepared: BTreeMap<ProgramId, (u32, WorkClass)>,
    pub last_id: u64,
    pub started_ns: u64,
    pub usable: CpuSet,
    pub housekeeping_ns: u64,
    /// The CPU time that the periodic work may use.
    pub cpu_budget: CpuBudget,
    /// Time of the last step of the scans of released programs.
    pub scanned_ns: u64,
    /// The fraction of CPU time that the hypervisor recently gave to other virtual machines.
    pub steal: f64,
    /// Number of housekeeping rounds.
    pub rounds: u64,
    /// Whether programs have been sampled since the last housekeeping round.
    pub sampled: bool,
    /// Programs that may have ended before their observation began. Such an end causes no event.
    pub unwatched: Vec<ProgramId>,
    /// Events for the policy's next decision.
    pub events: Vec<Event>,
    /// Requests that wait for the first decision about their program.
    pub arriving: Vec<(AdoptedProgram, Reply<AdoptedProgram>)>,
    /// Ended programs; their last repetition may still be reported.
    pub ended: VecDeque<EndedProgram>,
    pub plan: Plan,
    pub background: BackgroundMetering,
    pub notes: VecDeque<TimedNote>,
    pub log: ChangeLog,
    pub warnings: Warnings,
    /// Earliest time of the next replacement of a dead keeper. `keeper_pause_ns` is the pause after
    /// this replacement, if it fails.
    pub keeper_due_ns: u64,
    pub keeper_pause_ns: u64,
    /// The reason why no seats may be given, if any.
    pub seating_forbidden: Option<String>,
    pub decisions: u64,
    pub failed_actions: u64,
    /// Whether `usable` has changed since the last observation.
    pub cpus_changed: bool,
    /// Online CPUs that `topology` does not contain.
    pub unknown_cpus: CpuSet,
    /// Whether the seats must be planned again because of `unknown_cpus`.
    pub needs_replan: bool,
    pub stopping: bool,
    /// Whether the policy permits soft seats.
    pub soft_seats: bool,
    /// The identity of the scheduler that implements the seats ([`SoftSeats::running`]).
    pub kept_by: Option<u64>,
}

impl LoopState {
    /// Creates the state at the start of the loop.
    pub fn new(at_ns: u64, usable: CpuSet, log: ChangeLog) -> Self {
        Self {
            started_ns: at_ns,
            usable,
            log,
            ..Self::default()
        }
    }
}

impl World for RealWorld {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        if !failed.is_empty() {
            // The usable CPUs are read again, because the likeliest cause of a failed action is a
            // CPU that has just gone offline.
            self.read_usable();
        }
        self.scan_pins_at_change();
        let at_ns = now_ns();
        let wants_all = self.samples_all(&failed);
        // The meter is read first, because its values must be from the time `at_ns`, and the other
        // readings take time.
        let mut metering = self.state.background.sample(at_ns);
        let programs = match wants_all {
            true => self.sample_programs(at_ns),
            false => Vec::new(),
        };
        self.state.cpus_changed = false;
        self.find_blocked(at_ns);
        if let Some(metering) = &mut metering {
            metering.blocked = self.state.background.blocked();
        }
        Observation {
            programs,
            at_ns,
            usable: self.state.usable.clone(),
            events: std::mem::take(&mut self.state.events),
            failed,
            metering,
        }
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        let id = action.program();
        if !self.state.members.contains_key(&id) {
            // The program ended between the observation and the action, which is no failure.
            return Ok(());
        }
        if let Err(error) = self.carry_out(action) {
            self.state.failed_actions += 1;
            let text = error.to_string();
            let arriving = self.state.arriving.iter_mut();
            for (adopted, _) in arriving.filter(|(adopted, _)| adopted.id == id) {
                adopted.warnings.push(text.clone());
            }
            return Err(text);
        }
        if let Some(member) = self.state.members.get_mut(&id) {
            // An action that gives the program its present seat again does not interrupt a
            // repetition.
            let is_same =
                matches!(action, Action::Seat { cpus, .. } if member.seat.as_ref() == Some(cpus));
            member.record_action(action);
            if !is_same {
                let reach = member.reach(&self.state.usable);
                let cores = self.topology.capacity_of(&reach);
                let busy_ns = busy_on(&self.roots, &reach);
                member.interval.moved(now_ns(), cores, busy_ns);
                member.demand_trace.moved(cores);
                if matches!(action, Action::Freeze { .. }) {
                    member.demand_trace.interrupted();
                }
            }
        }
        Ok(())
    }

    fn decided(&mut self, observation: &Observation, decision: &Decision) {
        self.state.decisions += 1;
        if let Some(recorder) = &mut self.recorder
            && let Err(error) = recorder.step(observation, decision)
        {
            self.recorder = None;
            self.warn(format!("recording stopped because of an error: {error}"));
        }
        let at_ns = now_ns();
        self.state.background.decided(decision);
        if let Some(soft_seats) = decision.soft_seats {
            self.state.soft_seats = soft_seats;
        }
        self.follow_scheduler();
        if let Some(plan) = &decision.plan {
            self.drop_outdated_notes(plan);
            self.state.plan = plan.clone();
            let abstains = plan.abstains;
            self.state.log.add(at_ns, LogChange::Planned { abstains });
        }
        self.keep_notes(at_ns, decision);
        self.update_varied(at_ns);
        self.log_placements(at_ns);
        self.update_disturbed(at_ns);
        for (mut adopted, reply) in std::mem::take(&mut self.state.arriving) {
            if let Some(member) = self.state.members.get_mut(&adopted.id) {
                adopted.seat = member.seat.clone();
                adopted.hints = member.choose_hints(&self.state.usable);
            }
            // An error is ignored: if the client is gone, the program is still managed.
            let _ = reply.send(Ok(adopted));
        }
    }

    fn wait(&mut self, at_most_ns: Option<u64>) -> bool {
        let deadline_ns = at_most_ns.map(|ns| now_ns().saturating_add(ns));
        loop {
            self.state.cpu_budget.charge(now_ns(), thread_cpu_ns());
            for request in self.requests.take() {
                self.handle(request);
            }
            if self.state.stopping || self.state.needs_replan {
                return false;
            }
            self.take_opened_meter();
            for id in std::mem::take(&mut self.state.unwatched) {
                self.check_ended(id);
            }
            if self.state.housekeeping_ns + HOUSEKEEPING_NS <= now_ns() {
                self.housekeeping();
                if self.state.needs_replan {
                    return false;
                }
            }
            // Requests, ends and housekeeping are not charged: they are handled in a pause, too, and
            // would prolong it.
            self.state.cpu_budget.skip(thread_cpu_ns());
            let is_paused = self.is_paused();
            // The launcher of an arriving program waits for the decision.
            if !is_paused && self.state.arriving.is_empty() {
                self.continue_scans();
                self.follow_copies();
            }
            let due = deadline_ns.is_some_and(|deadline| deadline <= now_ns());
            self.state.background.due = due;
            let is_periodic = !is_paused && (due || self.state.background.notified);
            if is_periodic || self.state.cpus_changed || !self.state.events.is_empty() {
                return true;
            }
            for id in self.sleep_until(deadline_ns) {
                self.check_ended(id);
            }
        }
    }
}

impl RealWorld {
    /// Returns whether this observation covers every program. An observation covers only the meter
    /// if only a sample of the meter is due, or if a notification arrived before other samples were
    /// due.
    fn samples_all(&self, failed: &[FailedAction]) -> bool {
        let state = &self.state;
        let happened = state.cpus_changed || !state.events.is_empty() || !failed.is_empty();
        happened || state.background.wants_all()
    }

    fn sample_programs(&mut self, at_ns: u64) -> Vec<ProgramSample> {
        self.state.sampled = true;
        let (members, steal) = (self.state.members.values_mut(), self.state.steal);
        let actuator = &self.actuator;
        let sample = |m: &mut ManagedProgram| {
            let is_frozen = actuator.frozen_since(m.id()).is_some();
            m.sample(at_ns, steal, is_frozen)
        };
        let mut samples: Vec<_> = members.filter_map(sample).collect();
        if self.state.kept_by.is_some() {
            // Programs with soft seats may borrow CPUs. The number of cores that contributed to
            // their progress is then unknown.
            let progress = samples.iter_mut().filter_map(|s| s.progress.as_mut());
            progress.for_each(|progress| progress.confidence = 0.0);
        }
        samples
    }

    /// Reads the usable CPUs. Returns whether they have changed. If the reading fails or is empty,
    /// the known CPUs are kept.
    pub fn read_usable(&mut self) -> bool {
        let usable = match usable_cpus(&self.roots) {
            Ok(usable) => usable,
            Err(error) => {
                let text = format!(
                    "the usable CPUs cannot be read, so Usher keeps the set that it last read: \
                     {error}"
                );
                self.warn_about(WarningTopic::Cpus, text);
                return false;
            }
        };
        self.resolved(WarningTopic::Cpus);
        let unknown = usable.minus(&self.topology.all_cpus());
        // A new plan is attempted only once for each set of unknown CPUs.
        self.state.needs_replan |= !unknown.is_empty() && unknown != self.state.unknown_cpus;
        self.state.unknown_cpus = unknown;
        let usable = usable.and(&self.topology.all_cpus());
        let changed = !usable.is_empty() && usable != self.state.usable;
        if changed {
            self.state.usable = usable;
        }
        changed
    }

    /// Executes the periodic checks, once a second while programs are managed.
    fn housekeeping(&mut self) {
        self.state.housekeeping_ns = now_ns();
        self.state.rounds += 1;
        if self.read_usable() {
            self.state.cpus_changed = true;
        }
        if std::mem::take(&mut self.state.sampled)
            && let Ok(sample) = self.machine.sample()
        {
            self.state.steal = sample.steal_in_cpu_time;
        }
        self.follow_scheduler();
        self.actuator.finish_departures();
        self.refresh_programs();
        self.scan_pins();
        self.report_profile_store();
    }

    /// Extends the seats and demotions of programs to threads and processes that they have created
    /// since the last call.
    fn refresh_programs(&mut self) {
        for id in self.state.members.keys().copied().collect::<Vec<_>>() {
            self.refresh_program(id);
            let warnings = self
                .state
                .members
                .get_mut(&id)
                .map(|one| one.take_warnings());
            for text in warnings.into_iter().flatten() {
                self.warn_about(WarningTopic::Program(id), text);
            }
        }
    }

    fn refresh_program(&mut self, id: ProgramId) {
        let Some(member) = self.state.members.get_mut(&id) else {
            return;
        };
        let cpu_ns = member.watch.summed_cpu_ns();
        if !member.checks.refresh.is_due(now_ns(), cpu_ns) {
            return;
        }
        let refreshed = self.actuator.refresh(id);
        if refreshed.is_err() || !self.actuator.is_complete(id) {
            member.checks.refresh.reset();
        }
        let leavers = self.actuator.leavers(id);
        member.watch.follow(&leavers);
        let is_frozen = self.actuator.frozen_since(id).is_some();
        member.check_stopped(now_ns(), is_frozen);
        let cpu_quota = self.quotas.of(member.main_process());
        if member.program.cpu_quota != cpu_quota {
            member.program.cpu_quota = cpu_quota;
            let limits = member.limits();
            self.state.events.push(limits);
        }
        match refreshed {
            Ok(()) => self.resolved(WarningTopic::Refresh(id)),
            Err(error) => self.warn_about(WarningTopic::Refresh(id), error.to_string()),
        }
    }

    /// Continues the scans that restore masks and priorities of released programs, because new
    /// threads of such programs may still inherit Usher's values.
    fn continue_scans(&mut self) {
        let is_due = self.state.scanned_ns + SCAN_NS <= now_ns();
        if !is_due || !self.actuator.is_scanning() {
            return;
        }
        if let Err(error) = self.actuator.continue_scans() {
            self.warn(error.to_string());
        }
        self.state.scanned_ns = now_ns();
    }

    pub(super) fn replace_keeper(&mut self) {
        let Some(keeper) = &mut self.keeper else {
            return;
        };
        let replaced = keeper.replace();
        let state = &mut self.state;
        if let Err(error) = replaced {
            let pause_ns = state.keeper_pause_ns.clamp(KEEPER_NS_MIN, KEEPER_NS_MAX);
            state.keeper_due_ns = now_ns() + pause_ns;
            state.keeper_pause_ns = pause_ns * 2;
            let text = format!("the keeper died, and a new keeper cannot be started now: {error}");
            self.warn_about(WarningTopic::Keeper, text);
        } else {
            state.keeper_pause_ns = KEEPER_NS_MIN;
            self.resolved(WarningTopic::Keeper);
        }
    }

    /// Updates the time that each program spends on seats of deliberate variation.
    fn update_varied(&mut self, at_ns: u64) {
        let state = &mut self.state;
        for (id, member) in &mut state.members {
            let loss_rate = state.plan.varied.get(id).copied();
            member.demand_trace.set_varied(loss_rate.is_some());
            member.varied.set(at_ns, loss_rate);
        }
    }

    fn log_placements(&mut self, at_ns: u64) {
        let state = &mut self.state;
        for (&program, member) in &mut state.members {
            let is_frozen = self.actuator.frozen_since(program).is_some();
            let placement = member.placement(&state.plan, &state.usable, is_frozen);
            if member.placement.as_ref() != Some(&placement) {
                member.placement = Some(placement.clone());
                state
                    .log
                    .add(at_ns, LogChange::Placed { program, placement });
            }
        }
    }

    /// Marks the programs with CPUs that another busy program may also use.
    pub fn update_disturbed(&mut self, at_ns: u64) {
        let mut busy_on: BTreeMap<CpuId, u32> = BTreeMap::new();
        let (state, actuator) = (&mut self.state, &self.actuator);
        let is_busy = |member: &ManagedProgram| {
            member.is_busy(at_ns, actuator.frozen_since(member.id()).is_some())
        };
        for member in state.members.values().filter(|m| is_busy(m)) {
            for cpu in member.reach(&state.usable).iter() {
                *busy_on.entry(cpu).or_default() += 1;
            }
        }
        for member in state.members.values_mut() {
            let own = u32::from(is_busy(member));
            let shared = |cpu| busy_on.get(&cpu).is_some_and(|&n| n > own);
            let disturbed = state.kept_by.is_some()
                || member.is_partly_pinned()
                || member.reach(&state.usable).iter().any(shared);
            member.interval.disturbed(at_ns, disturbed);
        }
    }
}

/// Returns the busy time of some CPUs since boot; `None` if it cannot be read.
pub(super) fn busy_on(roots: &Roots, cpus: &CpuSet) -> Option<u64> {
    usher_probe::busy_ns(roots, cpus).ok()
}
