// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated machine as the control loop sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use usher_control::World;
use usher_model::{
    Action, Arrival, CpuSet, Decision, Event, FailedAction, Observation, Plan, ProgramId,
    ProgramSample, Progress, ProgressSource,
};

use crate::engine::{Engine, News};
use crate::script::{Script, Wait};

/// Why the simulator regulates no background work.
pub(crate) const NO_PRIORITIES: &str = "simulated programs have no priorities";

/// Somebody who is to arrive.
#[derive(Debug, Clone)]
pub struct Guest {
    /// What the policy is told of it: weight, profile, what it binds itself to.
    pub arrival: Arrival,
    /// What it does.
    pub script: Arc<Script>,
    /// When it comes, in virtual nanoseconds.
    pub at_ns: u64,
    /// Whether it starts again whenever it ends.
    pub repeats: bool,
}

/// When a run is over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Until {
    /// Every program has completed its work so often, or has ended.
    pub repetitions: usize,
    /// At the latest then, in virtual nanoseconds.
    pub at_ns: u64,
}

/// A simulated world for one run.
#[derive(Debug)]
pub struct SimWorld {
    engine: Engine,
    guests: Vec<Guest>,
    /// Program numbers of the engine, by the loop's.
    present: BTreeMap<ProgramId, usize>,
    events: Vec<Event>,
    online: CpuSet,
    until: Until,
    /// Seconds of each program's repetitions, by the order of `guests`.
    seconds: Vec<Vec<f64>>,
    /// The guest that each of the engine's programs is.
    guest_of: Vec<usize>,
    /// When each guest left, by the order of `guests`.
    left_ns: Vec<Option<u64>>,
    plans: Vec<(u64, Plan)>,
    acted: usize,
}

impl SimWorld {
    /// A machine to which these guests come.
    pub fn new(engine: Engine, mut guests: Vec<Guest>, until: Until) -> Self {
        guests.sort_by_key(|guest| (guest.at_ns, guest.arrival.id));
        let online = engine.machine().topology().all_cpus();
        let mut world = Self {
            seconds: vec![Vec::new(); guests.len()],
            left_ns: vec![None; guests.len()],
            engine,
            guests,
            present: BTreeMap::new(),
            events: Vec::new(),
            online,
            until,
            guest_of: Vec::new(),
            plans: Vec::new(),
            acted: 0,
        };
        world.let_in();
        world
    }

    /// Seconds of each program's completed repetitions, in the order of arrival.
    pub fn seconds(&self) -> &[Vec<f64>] {
        &self.seconds
    }

    /// The guests, in the order of arrival.
    pub fn guests(&self) -> &[Guest] {
        &self.guests
    }

    /// When a guest left, in virtual nanoseconds, if it did; by the order of
    /// arrival.
    pub fn left_ns(&self, guest: usize) -> Option<u64> {
        self.left_ns[guest]
    }

    /// The machine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Every plan that was made, and when.
    pub fn plans(&self) -> &[(u64, Plan)] {
        &self.plans
    }

    /// How many actions were carried out.
    pub fn acted(&self) -> usize {
        self.acted
    }

    /// Ends a program at once.
    pub fn kill(&mut self, id: ProgramId) {
        if let Ok(program) = self.program(id) {
            self.engine.kill(program);
            self.hear_news();
        }
    }

    /// Only these CPUs are on line from now on.
    pub fn set_online(&mut self, cpus: CpuSet) {
        self.engine.set_online(&cpus);
        self.online = cpus;
    }

    /// Work that every guest has done since it came, in their order.
    pub fn works_ns(&mut self) -> Vec<f64> {
        self.engine.settle();
        let programs = 0..self.guest_of.len();
        programs
            .map(|program| self.engine.work_ns(program))
            .collect()
    }

    /// CPUs that are on line.
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// The programs that are there, each with its number in the engine.
    pub fn present(&self) -> &BTreeMap<ProgramId, usize> {
        &self.present
    }

    /// What each of the engine's programs is, in the order of arrival.
    pub fn arrived(&self) -> impl Iterator<Item = &Guest> {
        self.guest_of.iter().map(|&index| &self.guests[index])
    }

    /// The machine, for whoever acts on it past [`World::act`]; what happened
    /// meanwhile is heard of when time passes.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Lets time pass until then, at the latest until something happens that a
    /// policy would hear of, and takes in who has come and gone.
    pub fn pass(&mut self, until_ns: u64) {
        let next = self.guests.get(self.guest_of.len());
        let next_ns = next.map_or(until_ns, |guest| guest.at_ns);
        if self.engine.run(until_ns.min(next_ns)).is_err() {
            return;
        }
        self.hear_news();
        self.let_in();
    }

    /// What has happened and no observation has told.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Whether the run is over, or cannot go on.
    pub fn is_over(&self) -> bool {
        let all_came = self.guest_of.len() == self.guests.len();
        let enough = |(index, seconds): (usize, &Vec<f64>)| {
            seconds.len() >= self.until.repetitions
                || !self.present.contains_key(&self.guests[index].arrival.id)
        };
        self.engine.fault().is_some()
            || self.engine.now_ns() >= self.until.at_ns
            || all_came && self.seconds.iter().enumerate().all(enough)
    }

    /// Whoever decides next hears of the programs that are there as of programs
    /// that ran before, and of nothing else that has happened.
    pub fn announce_again(&mut self) {
        self.events.clear();
        for program in self.present.values() {
            let guest = &self.guests[self.guest_of[*program]];
            let arrival = Arrival {
                ran_before: true,
                ..guest.arrival.clone()
            };
            self.events.push(Event::Arrived(Box::new(arrival)));
        }
    }

    fn hear_news(&mut self) {
        for news in self.engine.take_news() {
            self.hear(news);
        }
    }

    fn let_in(&mut self) {
        let come = self.guest_of.len();
        for index in come..self.guests.len() {
            let guest = &self.guests[index];
            if guest.at_ns > self.engine.now_ns() {
                return;
            }
            let program = self.engine.arrive(Arc::clone(&guest.script), guest.repeats);
            if let Some(cpus) = &guest.arrival.bound_to {
                self.engine.bind(program, cpus);
            }
            self.guest_of.push(index);
            self.present.insert(guest.arrival.id, program);
            self.events
                .push(Event::Arrived(Box::new(guest.arrival.clone())));
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Repeated { program, seconds } => {
                let index = self.guest_of[program];
                self.seconds[index].push(seconds);
                self.events.push(Event::Repeated {
                    program: self.guests[index].arrival.id,
                    seconds,
                });
            }
            News::Ended(program) => {
                let index = self.guest_of[program];
                let id = self.guests[index].arrival.id;
                self.left_ns[index] = Some(self.engine.now_ns());
                self.present.remove(&id);
                self.events.push(Event::Departed(id));
            }
        }
    }

    fn program(&self, id: ProgramId) -> Result<usize, String> {
        let program = self.present.get(&id).copied();
        program.ok_or_else(|| format!("program {id} has gone"))
    }
}

impl World for SimWorld {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        let mut programs = Vec::new();
        self.engine.settle();
        for (&id, &program) in &self.present {
            programs.push(self.engine.sample(program, id));
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
        self.pass(wanted_ns.min(self.until.at_ns));
        !self.is_over()
    }
}

impl Engine {
    /// What a probe would tell of a program that is credited with all it did.
    fn sample(&self, program: usize, id: ProgramId) -> ProgramSample {
        let job = &self.jobs[program];
        let waits_now = job.wait_since_ns.map_or(0, |since| self.now_ns - since);
        let spins = !matches!(job.script.wait, Wait::Block);
        ProgramSample {
            id,
            cpu_ns: job.cpu_ns,
            wait_ns: Some(job.wait_ns + waits_now),
            threads: job.script.threads(),
            spinners: 0,
            active_wait: Some(job.script.settles),
            progress: Some(Progress {
                total: job.work + job.spun_ns,
                source: ProgressSource::Instructions,
                confidence: ProgressSource::Instructions.confidence(spins && job.script.settles),
            }),
            stopped: false,
        }
    }
}
