// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connects the simulated machine to the control loop: [`SimWorld`] implements the loop's interface
//! [`World`], so that the shipped loop runs in virtual time.
//!
//! A run has planned arrivals and a stop condition. More arrivals can be planned during the run
//! ([`SimWorld::plan_arrival`]).
//!
//! 1. `wait` advances the engine to the next event that concerns the policy.
//! 2. `observe` returns arrivals, departures and samples of all programs as an observation.
//! 3. `act` carries out an action on the simulated kernel.
//!
//! `wait` and `observe` take time in proportion to the programs and CPUs, in addition to the
//! simulated events. `act` takes the time of the operation in module `threads`. All plans of a run
//! are kept in memory. Priorities are not modelled, so that demotions are rejected; an action on a
//! departed program is an error, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use usher_control::World;
use usher_model::{
    Action, Arrival, CpuSet, Decision, Event, FailedAction, Observation, Plan, ProgramId,
    ProgramSample, Progress, ProgressSource,
};

use crate::engine::{Engine, SimEvent};
use crate::script::{BarrierWait, Script};
use crate::sim_kernel::SimKernel;

/// Reason for rejecting priority changes of background work.
pub(crate) const NO_PRIORITIES: &str = "the simulator does not model priorities of programs";

/// A program with the time of its arrival.
#[derive(Debug, Clone)]
pub struct PlannedArrival {
    /// The arrival, as it is reported to the policy: weight, profile, the program's own binding to
    /// CPUs.
    pub arrival: Arrival,
    /// Script with the steps of the program's threads.
    pub script: Arc<Script>,
    /// Time of arrival in virtual nanoseconds.
    pub at_ns: u64,
    /// Whether the program restarts each time that it ends.
    pub repeats: bool,
}

/// Conditions that end a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StopCondition {
    /// The run ends when each program has completed this number of repetitions or has ended.
    pub repetitions: usize,
    /// Latest end of the run in virtual nanoseconds.
    pub at_ns: u64,
}

/// The simulated world of one run.
#[derive(Debug)]
pub struct SimWorld {
    engine: Engine,
    arrivals: Vec<PlannedArrival>,
    /// The programs that run: for each program identifier of the control loop, the program's index
    /// in the engine.
    present: BTreeMap<ProgramId, usize>,
    events: Vec<Event>,
    online: CpuSet,
    stop: StopCondition,
    /// For each program, the duration of each repetition in seconds, in the order of `arrivals`.
    seconds: Vec<Vec<f64>>,
    /// For each program, by its index in the engine, its index in `arrivals`.
    arrival_of: Vec<usize>,
    /// Departure time of each program, in the order of `arrivals`.
    left_ns: Vec<Option<u64>>,
    plans: Vec<(u64, Plan)>,
    acted: usize,
}

impl SimWorld {
    /// Creates the world of a run in which these programs arrive.
    pub fn new(engine: Engine, mut arrivals: Vec<PlannedArrival>, stop: StopCondition) -> Self {
        arrivals.sort_by_key(|planned| (planned.at_ns, planned.arrival.id));
        let online = engine.machine().topology().all_cpus();
        let mut world = Self {
            seconds: vec![Vec::new(); arrivals.len()],
            left_ns: vec![None; arrivals.len()],
            engine,
            arrivals,
            present: BTreeMap::new(),
            events: Vec::new(),
            online,
            stop,
            arrival_of: Vec::new(),
            plans: Vec::new(),
            acted: 0,
        };
        world.admit_due();
        world
    }

    /// Returns for each program the duration of each completed repetition in seconds, in the order
    /// of arrival.
    pub fn seconds(&self) -> &[Vec<f64>] {
        &self.seconds
    }

    /// Returns the planned arrivals, in the order of arrival.
    pub fn arrivals(&self) -> &[PlannedArrival] {
        &self.arrivals
    }

    /// Plans another arrival, for example of a program that runs again. An arrival before the
    /// current time takes place when virtual time next advances.
    pub fn plan_arrival(&mut self, planned: PlannedArrival) {
        let arrived = self.arrival_of.len();
        let rank = |planned: &PlannedArrival| (planned.at_ns, planned.arrival.id);
        let later = self.arrivals[arrived..].partition_point(|p| rank(p) <= rank(&planned));
        self.arrivals.insert(arrived + later, planned);
        self.seconds.insert(arrived + later, Vec::new());
        self.left_ns.insert(arrived + later, None);
    }

    /// Returns the departure time of the program with this index in `arrivals`, in virtual
    /// nanoseconds; `None` while the program runs.
    pub fn left_ns(&self, planned: usize) -> Option<u64> {
        self.left_ns[planned]
    }

    /// Returns the simulated machine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns every plan, with the virtual time of its decision.
    pub fn plans(&self) -> &[(u64, Plan)] {
        &self.plans
    }

    /// Returns the number of actions that have been carried out.
    pub fn acted(&self) -> usize {
        self.acted
    }

    /// Kills a program.
    pub fn kill(&mut self, id: ProgramId) {
        if let Ok(program) = self.program(id) {
            self.engine.kill(program);
            self.collect_sim_events();
        }
    }

    /// Sets the online CPUs.
    pub fn set_online(&mut self, cpus: CpuSet) {
        self.engine.set_online(&cpus);
        self.online = cpus;
    }

    /// Returns the work that each program has done since its arrival, in the order of arrival.
    pub fn works_ns(&mut self) -> Vec<f64> {
        self.engine.charge_all();
        let programs = 0..self.arrival_of.len();
        programs
            .map(|program| self.engine.work_ns(program))
            .collect()
    }

    /// Returns the online CPUs.
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// Returns the programs that run, each with its index in the engine.
    pub fn present(&self) -> &BTreeMap<ProgramId, usize> {
        &self.present
    }

    /// Returns the programs that have arrived, in the order of arrival.
    pub fn arrived(&self) -> impl Iterator<Item = &PlannedArrival> {
        self.arrival_of.iter().map(|&index| &self.arrivals[index])
    }

    /// Returns the engine for changes that bypass [`World::act`]. Events that result from such
    /// changes are collected when virtual time advances.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Advances virtual time to `until_ns` or to the first event that concerns the policy; then
    /// handles arrivals and departures.
    pub fn advance_to(&mut self, until_ns: u64) {
        let next = self.arrivals.get(self.arrival_of.len());
        let next_ns = next.map_or(until_ns, |planned| planned.at_ns);
        let next_ns = next_ns.max(self.engine.now_ns());
        if self.engine.run(until_ns.min(next_ns)).is_err() {
            return;
        }
        self.collect_sim_events();
        self.admit_due();
    }

    /// Removes and returns the events that no observation has reported yet.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Returns whether the stop condition holds, or the run cannot continue.
    pub fn is_over(&self) -> bool {
        let all_came = self.arrival_of.len() == self.arrivals.len();
        let enough = |(index, seconds): (usize, &Vec<f64>)| {
            seconds.len() >= self.stop.repetitions
                || !self.present.contains_key(&self.arrivals[index].arrival.id)
        };
        self.engine.fault().is_some()
            || self.engine.now_ns() >= self.stop.at_ns
            || all_came && self.seconds.iter().enumerate().all(enough)
    }

    /// Replaces the pending events by one arrival per running program, marked `ran_before`. A newly
    /// started policy is thereby informed of the programs that run, but not of earlier events.
    pub fn announce_running(&mut self) {
        self.events.clear();
        for program in self.present.values() {
            let planned = &self.arrivals[self.arrival_of[*program]];
            let arrival = Arrival {
                ran_before: true,
                ..planned.arrival.clone()
            };
            self.events.push(Event::Arrived(Box::new(arrival)));
        }
    }

    fn collect_sim_events(&mut self) {
        for event in self.engine.take_sim_events() {
            self.record_sim_event(event);
        }
    }

    fn admit_due(&mut self) {
        let arrived = self.arrival_of.len();
        for index in arrived..self.arrivals.len() {
            let planned = &self.arrivals[index];
            if planned.at_ns > self.engine.now_ns() {
                return;
            }
            let program = self
                .engine
                .arrive(Arc::clone(&planned.script), planned.repeats);
            if let Some(cpus) = &planned.arrival.bound_to {
                self.engine.bind(program, cpus);
            }
            self.arrival_of.push(index);
            self.present.insert(planned.arrival.id, program);
            self.events
                .push(Event::Arrived(Box::new(planned.arrival.clone())));
        }
    }

    fn record_sim_event(&mut self, event: SimEvent) {
        match event {
            SimEvent::Repeated { program, seconds } => {
                let index = self.arrival_of[program];
                self.seconds[index].push(seconds);
                self.events.push(Event::Repeated {
                    program: self.arrivals[index].arrival.id,
                    seconds,
                });
            }
            SimEvent::Ended(program) => {
                let index = self.arrival_of[program];
                let id = self.arrivals[index].arrival.id;
                self.left_ns[index] = Some(self.engine.now_ns());
                self.present.remove(&id);
                self.events.push(Event::Departed(id));
            }
        }
    }

    fn program(&self, id: ProgramId) -> Result<usize, String> {
        let program = self.present.get(&id).copied();
        program.ok_or_else(|| format!("program {id} has departed"))
    }
}

impl World for SimWorld {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        let mut programs = Vec::new();
        self.engine.charge_all();
        for (&id, &program) in &self.present {
            programs.push(sample(&self.engine, program, id));
        }
        Observation {
            at_ns: self.engine.now_ns(),
            usable: self.online.clone(),
            programs,
            events: std::mem::take(&mut self.events),
            failed,
            metering: None,
        }
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        self.acted += 1;
        let program = self.program(action.program())?;
        match action {
            Action::Seat { cpus, .. } => self.engine.seat(program, Some(cpus)),
            Action::Release { .. } => self.engine.seat(program, None),
            Action::Freeze { .. } => self.engine.freeze(program, true),
            Action::Thaw { .. } => self.engine.freeze(program, false),
            Action::Demote { .. } => return Err(NO_PRIORITIES.to_owned()),
        }
        Ok(())
    }

    fn decided(&mut self, observation: &Observation, decision: &Decision) {
        if let Some(plan) = &decision.plan {
            self.plans.push((observation.at_ns, plan.clone()));
        }
    }

    fn wait(&mut self, at_most_ns: Option<u64>) -> bool {
        let now_ns = self.engine.now_ns();
        let wanted_ns = at_most_ns.map_or(u64::MAX, |ns| now_ns.saturating_add(ns));
        self.advance_to(wanted_ns.min(self.stop.at_ns));
        !self.is_over()
    }
}

/// Returns the sample that a probe would return if it observed all progress of the program.
fn sample(os: &SimKernel, program: usize, id: ProgramId) -> ProgramSample {
    let job = &os.tasks.jobs[program];
    let waits_now = job.wait_since_ns.map_or(0, |since| os.now_ns - since);
    let spins = !matches!(job.script.wait, BarrierWait::Block);
    ProgramSample {
        id,
        cpu_ns: job.cpu_ns,
        wait_ns: Some(job.wait_ns + waits_now),
        threads: job.script.threads(),
        spinners: 0,
        active_wait: Some(job.script.adaptive_spin),
        progress: Some(Progress {
            total: job.work + job.spun_ns,
            source: ProgressSource::Instructions,
            confidence: ProgressSource::Instructions.confidence(spins && job.script.adaptive_spin),
        }),
        stopped: false,
    }
}
