// SPDX-License-Identifier: MIT OR Apache-2.0
//! The world of a fuzz case: a simulated machine with injected faults, and the recovery after the
//! daemon's death.
//!
//! At each opportunity (sample, action, wait), a random number decides whether a fault is injected:
//! a lost or stale sample, a failed or half-done action, a late loop, CPU hotplug, a killed program
//! or a killed daemon. After the death of the daemon, the keeper or the launchers undo its actions
//! by the journal, as on a real machine. A new daemon then admits the running programs. The
//! invariants (module `checks`) are checked at least every 20 ms of virtual time.
//!
//! Limits: a run ends after 6 virtual seconds, plus the time of a recovery in progress. A departure
//! is reported up to 0.5 s late, a loop wakes up to 0.3 s late. A recovery by the keeper takes at
//! most 0.3 s, or 1.3 s if the keeper dies half-way. A recovery without the keeper takes at most
//! 0.2 s per launcher and 1.5 s more. The next daemon starts up to 0.2 s later. The number of
//! injected faults is not limited. The first violation or fault of the simulation ends the run.

use std::collections::BTreeMap;
use std::io::Write;

use oorandom::Rand32;
use usher_control::{Recorder, World};
use usher_model::{
    Action, CpuSet, Decision, Event, FailedAction, Observation, ProgramId, ProgramSample,
};

use super::case::{FuzzCase, RUN_NS};
use super::checks::CheckerState;
use super::log::{ActionLog, LogEntry};
use super::{FuzzStats, Violation};
use crate::actuator::{InjectedFault, SimActError, SimActuator, close, undo};
use crate::engine::Engine;
use crate::machine::{Costs, Machine};
use crate::world::{SimWorld, StopCondition};

/// Maximum virtual time between two checks of the invariants.
const CHECK_NS: u64 = 20_000_000;
const MS: u64 = 1_000_000;

/// The last observation that the policy received.
#[derive(Debug, Clone)]
struct LastObservation {
    at_ns: u64,
    usable: CpuSet,
    programs: Vec<ProgramSample>,
}

/// The world of one fuzz case.
pub(super) struct FaultyWorld<'a> {
    case: &'a FuzzCase,
    pub(super) inner: SimWorld,
    actuator: SimActuator,
    random: Rand32,
    /// Engine index of each program that has arrived, whether it runs or has ended.
    jobs: BTreeMap<ProgramId, usize>,
    /// Events that have not been reported yet.
    events: Vec<Event>,
    /// Departed programs, with the time at which the departure is reported.
    delayed_departures: Vec<(u64, ProgramId)>,
    last_observation: Option<LastObservation>,
    pub(super) checks: CheckerState,
    log: ActionLog,
    recorder: Option<Recorder<Box<dyn Write>>>,
    /// Whether the daemon was killed between two iterations of the control loop.
    killed: bool,
    stats: FuzzStats,
}

impl<'a> FaultyWorld<'a> {
    pub fn new(case: &'a FuzzCase) -> Self {
        let machine = Machine::new(case.topology.clone(), Costs::default());
        let engine = Engine::new(machine, case.kernel.clone(), case.seed);
        let until = StopCondition {
            repetitions: usize::MAX,
            at_ns: RUN_NS,
        };
        let mut world = Self {
            inner: SimWorld::new(engine, case.arrivals.clone(), until),
            actuator: SimActuator::new(case.backend),
            random: Rand32::new(case.seed ^ 0x5eed),
            jobs: BTreeMap::new(),
            events: Vec::new(),
            delayed_departures: Vec::new(),
            last_observation: None,
            checks: CheckerState::new(case),
            log: ActionLog::default(),
            recorder: None,
            killed: false,
            stats: FuzzStats::default(),
            case,
        };
        world.collect_events();
        world
    }

    pub fn record(&mut self, recorder: Recorder<Box<dyn Write>>) {
        self.recorder = Some(recorder);
    }

    pub fn daemon_is_dead(&self) -> bool {
        self.checks.violation.is_none() && (self.killed || self.actuator.is_dead())
    }

    pub fn violation(&self, what: String) -> Violation {
        Violation {
            seed: self.case.seed,
            policy: self.case.policy,
            at_ns: self.now_ns(),
            what,
            last: self.log.lines(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.inner.engine().now_ns()
    }

    fn note(&mut self, what: impl Into<String>) {
        let now_ns = self.now_ns();
        self.log.add(now_ns, LogEntry::Note(what.into()));
    }

    /// Returns true with probability `chance`. If the result is true, a fault is about to be
    /// injected, and the time limit of idle cores is restarted.
    fn draw(&mut self, chance: f64) -> bool {
        let strikes = chance > 0.0 && f64::from(self.random.rand_float()) < chance;
        if strikes {
            let now_ns = self.now_ns();
            self.checks.disturbed(now_ns);
        }
        strikes
    }

    fn random_up_to(&mut self, most: u32) -> u32 {
        self.random.rand_range(0..most + 1)
    }

    /// Collects the events of the machine; some departures are delayed.
    fn collect_events(&mut self) {
        let now_ns = self.now_ns();
        for (index, planned) in self.inner.arrived().enumerate() {
            self.jobs.insert(planned.arrival.id, index);
        }
        for event in self.inner.take_events() {
            if !matches!(event, Event::Repeated { .. }) {
                self.checks.disturbed(now_ns);
            }
            match event {
                Event::Departed(id) if self.draw(self.case.faults.departure_delayed) => {
                    let late_ns = u64::from(self.random_up_to(500)) * MS;
                    self.delayed_departures.push((now_ns + late_ns, id));
                }
                event => self.events.push(event),
            }
        }
        let (due, later) = std::mem::take(&mut self.delayed_departures)
            .into_iter()
            .partition::<Vec<_>, _>(|(until_ns, _)| *until_ns <= now_ns);
        self.delayed_departures = later;
        if !due.is_empty() {
            self.checks.disturbed(now_ns);
        }
        self.events
            .extend(due.into_iter().map(|(_, id)| Event::Departed(id)));
    }

    /// Advances virtual time to `until_ns` or to the first event, and checks the invariants.
    fn advance_to_event(&mut self, until_ns: u64) {
        loop {
            let next_ns = until_ns.min(self.now_ns() + CHECK_NS);
            let reported_ns = self
                .delayed_departures
                .iter()
                .map(|(at_ns, _)| *at_ns)
                .min();
            self.inner
                .advance_to(next_ns.min(reported_ns.unwrap_or(u64::MAX)));
            self.collect_events();
            self.checks.check(&mut self.inner);
            let over = self.inner.is_over() || self.checks.violation.is_some();
            if over || !self.events.is_empty() || self.now_ns() >= until_ns {
                return;
            }
        }
    }

    /// Advances virtual time by `ns`, also beyond events, and checks the invariants.
    pub(super) fn advance(&mut self, ns: u64) {
        let until_ns = self.now_ns() + ns;
        let runs = |world: &Self| world.inner.engine().fault().is_none();
        while self.now_ns() < until_ns && self.checks.violation.is_none() && runs(self) {
            let next_ns = until_ns.min(self.now_ns() + CHECK_NS);
            self.inner.advance_to(next_ns);
            self.collect_events();
            self.checks.check(&mut self.inner);
        }
    }

    /// Lets the daemon admit and release programs according to the events.
    fn manage(&mut self, events: &[Event]) {
        for event in events {
            let id = match event {
                Event::Arrived(program) => program.id,
                Event::Departed(id) => *id,
                Event::Repeated { .. } | Event::Limited { .. } | Event::Seating { .. } => continue,
            };
            let job = self.jobs[&id];
            let engine = self.inner.engine_mut();
            // An error means that the daemon died, which the main loop handles.
            let _ = match event {
                Event::Arrived(_) => self.actuator.admit(engine, id, job),
                _ => self.actuator.depart(engine, id, job),
            };
        }
        self.checks.reported(events);
    }

    /// Draws a fault, and injects it after a random number of steps of the action.
    fn inject_fault(&mut self, action: &Action) {
        let faults = &self.case.faults;
        if self.draw(faults.daemon_killed_acting) {
            let torn = self.random_up_to(255) as u8;
            let steps = self.random_up_to(12);
            self.actuator.inject(steps, InjectedFault::DaemonDies(torn));
        } else if self.draw(faults.program_dies) {
            let steps = self.random_up_to(4);
            self.actuator.inject(steps, InjectedFault::ProgramDies);
        } else if self.draw(faults.action_partial) {
            let job = self.jobs[&action.program()];
            let threads = self.inner.engine().threads_of(job).len() as u32;
            let (steps, count) = (self.random_up_to(2 * threads), 1 + self.random_up_to(3));
            self.actuator.inject(steps, InjectedFault::Fails(count));
        }
    }

    fn carry_out(&mut self, action: &Action) -> Result<(), String> {
        if self.draw(self.case.faults.action_fails) {
            return Err("injected failure".to_owned());
        }
        self.inject_fault(action);
        let job = self.jobs[&action.program()];
        let done = self.actuator.act(self.inner.engine_mut(), job, action);
        self.actuator.clear_fault();
        // If the program was killed during the action, its end is collected now.
        let now_ns = self.now_ns();
        self.inner.advance_to(now_ns);
        self.collect_events();
        match done {
            Ok(()) if self.draw(self.case.faults.false_failure) => {
                Err("injected fault: a completed action is reported as failed".to_owned())
            }
            Ok(()) => Ok(()),
            Err(SimActError::Failed(why)) => Err(why),
            Err(SimActError::Dead) => Err("the simulated daemon is dead".to_owned()),
        }
    }

    fn change_cpus(&mut self) {
        let all = self.case.topology.all_cpus();
        let online = all.iter().filter(|_| self.random.rand_range(0..4) != 0);
        let mut online: CpuSet = online.collect();
        if online.is_empty() {
            online = all;
        }
        self.checks.check(&mut self.inner);
        self.note(format!("online CPUs: {online}"));
        self.inner.set_online(online);
    }

    /// Recovers from the daemon's death. Either the keeper undoes the journal, or each launcher
    /// undoes its own program and the next start undoes the rest. Then a new daemon admits the
    /// running programs.
    pub fn restart(&mut self) {
        self.stats.daemons_killed += 1;
        self.killed = false;
        self.recorder = None;
        self.note("the simulated daemon is killed");
        self.checks.daemon_died();
        let actuator = std::mem::replace(&mut self.actuator, SimActuator::new(self.case.backend));
        let mut journal = actuator.into_journal();
        if self.draw(self.case.faults.keeper_dies) {
            self.undo_without_keeper(&mut journal);
        } else {
            self.undo_by_keeper(&journal);
        }
        self.all_is_undone("after the undo of the killed daemon's changes");
        let to_the_start_ns = u64::from(self.random_up_to(200)) * MS;
        self.advance(to_the_start_ns);
        self.inner.announce_running();
        (self.events, self.last_observation) = (Vec::new(), None);
        self.delayed_departures.clear();
        self.collect_events();
        self.checks.daemon_restarted();
    }

    fn undo_by_keeper(&mut self, journal: &[u8]) {
        let soon_ns = u64::from(self.random_up_to(300)) * MS;
        self.advance(soon_ns);
        if self.draw(self.case.faults.keeper_dies / 2.0) {
            let steps = self.random_up_to(20);
            self.note(format!("the keeper dies after {steps} steps"));
            self.undo(journal, None, Some(steps));
            let later_ns = u64::from(self.random_up_to(1_000)) * MS;
            self.advance(later_ns);
        }
        self.note("the keeper undoes the journal");
        self.undo(journal, None, None);
    }

    fn undo_without_keeper(&mut self, journal: &mut Vec<u8>) {
        self.note("the keeper is killed together with the daemon");
        // In this simulation, programs with even numbers count as attached, and therefore have no
        // launcher.
        let launched: Vec<ProgramId> = self
            .jobs
            .keys()
            .copied()
            .filter(|id| id.0 % 2 == 1)
            .collect();
        for id in launched {
            let ns = u64::from(self.random_up_to(200)) * MS;
            self.advance(ns);
            self.note(format!("the launcher of program {id} undoes its changes"));
            self.undo(journal, Some(id), None);
            close(journal, id);
        }
        let ns = u64::from(self.random_up_to(1_500)) * MS;
        self.advance(ns);
        self.note("the next daemon undoes the remaining changes");
        self.undo(journal, None, None);
    }

    fn undo(&mut self, journal: &[u8], only: Option<ProgramId>, steps_max: Option<u32>) {
        let engine = self.inner.engine_mut();
        undo(journal, engine, &self.jobs, only, steps_max);
        let now_ns = self.now_ns();
        self.checks.disturbed(now_ns);
    }

    fn all_is_undone(&mut self, when: &str) {
        for (&id, &job) in self.inner.present() {
            let planned = self
                .case
                .arrivals
                .iter()
                .find(|planned| planned.arrival.id == id);
            let own = planned.and_then(|planned| planned.arrival.bound_to.as_ref());
            if let Some(what) = self.inner.engine().remaining_effect(job, own) {
                self.checks.fail(format!("program {id} {what} {when}"));
            }
        }
    }

    /// Ends the last daemon, by a clean exit or a kill.
    pub fn finish(mut self) -> Result<FuzzStats, Violation> {
        if self.checks.violation.is_none() {
            self.end();
        }
        if let Some(what) = self.checks.violation.take() {
            return Err(self.violation(what));
        }
        if let Some(fault) = self.inner.engine().fault() {
            let what = format!("the simulation cannot continue: {fault}");
            return Err(self.violation(what));
        }
        self.stats.events = self.inner.engine().events();
        Ok(self.stats)
    }

    fn end(&mut self) {
        self.checks.daemon_died();
        if self.random_up_to(1) == 0 && !self.actuator.is_dying() {
            let held: Vec<ProgramId> = self.actuator.open_programs().collect();
            for id in held {
                let engine = self.inner.engine_mut();
                let _ = self.actuator.depart(engine, id, self.jobs[&id]);
            }
            let now_ns = self.now_ns();
            self.checks.disturbed(now_ns);
            let left = self.actuator.open_programs().count();
            if left > 0 {
                let what = format!(
                    "{left} programs remain in the journal although the daemon exited cleanly"
                );
                self.checks.fail(what);
            }
        } else {
            let actuator =
                std::mem::replace(&mut self.actuator, SimActuator::new(self.case.backend));
            let journal = actuator.into_journal();
            self.undo(&journal, None, None);
        }
        self.all_is_undone("at the end of the run");
        self.checks.end(&mut self.inner);
    }
}

impl World for FaultyWorld<'_> {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        self.checks.check(&mut self.inner);
        let mut observation = self.inner.observe(failed);
        let faults = &self.case.faults;
        let now = LastObservation {
            at_ns: observation.at_ns,
            usable: observation.usable.clone(),
            programs: observation.programs.clone(),
        };
        let before = self.last_observation.take();
        if let Some(before) = before
            .clone()
            .filter(|_| self.draw(faults.observation_stale))
        {
            // The daemon has neither newer samples nor events.
            if self.random_up_to(1) == 0 {
                observation.at_ns = before.at_ns;
            }
            observation.usable.clone_from(&before.usable);
            observation.programs.clone_from(&before.programs);
            self.last_observation = Some(before);
            return observation;
        }
        observation.events = std::mem::take(&mut self.events);
        self.manage(&observation.events);
        observation
            .programs
            .retain(|_| !self.draw(faults.sample_lost));
        for sample in &mut observation.programs {
            let old = before.iter().flat_map(|seen| &seen.programs);
            let old = old.into_iter().find(|old| old.id == sample.id);
            if let Some(old) = old.filter(|_| self.draw(faults.sample_late)) {
                *sample = old.clone();
            }
        }
        self.last_observation = Some(now);
        observation
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        if self.actuator.is_dead() {
            return Err("the simulated daemon is dead".to_owned());
        }
        let done = self.carry_out(action);
        self.stats.actions += 1;
        self.stats.failed += u64::from(done.is_err());
        let now_ns = self.now_ns();
        self.checks.acted(now_ns, action, &done);
        self.log
            .add(now_ns, LogEntry::Acted(action.clone(), done.clone()));
        done
    }

    fn decided(&mut self, observation: &Observation, decision: &Decision) {
        if self.actuator.is_dead() {
            return;
        }
        self.stats.decisions += 1;
        if let Some(recorder) = &mut self.recorder
            && let Err(error) = recorder.step(observation, decision)
        {
            self.checks.fail(format!("writing the record: {error}"));
        }
        self.checks.decided(observation, decision);
    }

    fn wait(&mut self, at_most_ns: Option<u64>) -> bool {
        let faults = &self.case.faults;
        if self.checks.violation.is_some() || self.actuator.is_dead() {
            return false;
        }
        if self.draw(faults.daemon_killed) {
            self.killed = true;
            return false;
        }
        if self.draw(faults.cpus_offline) {
            self.change_cpus();
        }
        let late_ns = match self.draw(faults.wakeup_late) {
            true => u64::from(self.random_up_to(300)) * MS,
            false => 0,
        };
        let now_ns = self.now_ns();
        let wanted_ns = at_most_ns.map_or(RUN_NS, |ns| now_ns.saturating_add(ns));
        if late_ns > 0 {
            self.checks.disturbed(now_ns + late_ns);
            self.advance(late_ns.min(RUN_NS.saturating_sub(now_ns)));
        }
        if self.events.is_empty() {
            self.advance_to_event(wanted_ns.min(RUN_NS).max(self.now_ns()));
        }
        !self.inner.is_over() && self.checks.violation.is_none()
    }
}
