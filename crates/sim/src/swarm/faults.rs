// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulated world in which things go wrong, and what happens when the
//! daemon has been killed.

use std::collections::BTreeMap;
use std::io::Write;

use oorandom::Rand32;
use usher_control::{Recorder, World};
use usher_model::{
    Action, CpuSet, Decision, Event, FailedAction, Observation, ProgramId, ProgramSample,
};

use super::case::{Case, RUN_NS};
use super::checks::Checks;
use super::log::{Deed, Log};
use super::{Broken, Passed};
use crate::engine::Engine;
use crate::hands::{Hands, Stop, Trouble, close, undo};
use crate::machine::{Costs, Machine};
use crate::world::{SimWorld, Until};

/// The checks look at least so often.
const LOOK_NS: u64 = 20_000_000;
const MS: u64 = 1_000_000;

/// What was seen at the last look.
#[derive(Debug, Clone)]
struct Seen {
    at_ns: u64,
    usable: CpuSet,
    programs: Vec<ProgramSample>,
}

/// The world of one case.
pub(super) struct Faulty<'a> {
    case: &'a Case,
    pub(super) inner: SimWorld,
    hands: Hands,
    random: Rand32,
    /// Every program that ever came, gone ones too.
    jobs: BTreeMap<ProgramId, usize>,
    /// What has happened and is not told yet.
    events: Vec<Event>,
    /// Programs that have gone unnoticed, until then.
    unnoticed: Vec<(u64, ProgramId)>,
    seen: Option<Seen>,
    pub(super) checks: Checks,
    log: Log,
    recorder: Option<Recorder<Box<dyn Write>>>,
    /// Killed between two looks.
    killed: bool,
    passed: Passed,
}

impl<'a> Faulty<'a> {
    pub fn new(case: &'a Case) -> Self {
        let machine = Machine::new(case.topology.clone(), Costs::default());
        let engine = Engine::new(machine, case.kernel.clone(), case.seed);
        let until = Until {
            repetitions: usize::MAX,
            at_ns: RUN_NS,
        };
        let mut world = Self {
            inner: SimWorld::new(engine, case.guests.clone(), until),
            hands: Hands::new(case.backend),
            random: Rand32::new(case.seed ^ 0x5eed),
            jobs: BTreeMap::new(),
            events: Vec::new(),
            unnoticed: Vec::new(),
            seen: None,
            checks: Checks::new(case),
            log: Log::default(),
            recorder: None,
            killed: false,
            passed: Passed::default(),
            case,
        };
        world.hear();
        world
    }

    pub fn record(&mut self, recorder: Recorder<Box<dyn Write>>) {
        self.recorder = Some(recorder);
    }

    pub fn daemon_is_dead(&self) -> bool {
        self.checks.broken.is_none() && (self.killed || self.hands.is_dead())
    }

    pub fn broken(&self, what: String) -> Broken {
        Broken {
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

    fn say(&mut self, what: impl Into<String>) {
        let now_ns = self.now_ns();
        self.log.add(now_ns, Deed::Said(what.into()));
    }

    fn happens(&mut self, chance: f64) -> bool {
        let happens = chance > 0.0 && f64::from(self.random.rand_float()) < chance;
        if happens {
            let now_ns = self.now_ns();
            self.checks.disturbed(now_ns);
        }
        happens
    }

    fn up_to(&mut self, most: u32) -> u32 {
        self.random.rand_range(0..most + 1)
    }

    /// Takes in what has happened; some departures are noticed later.
    fn hear(&mut self) {
        let now_ns = self.now_ns();
        for (index, guest) in self.inner.arrived().enumerate() {
            self.jobs.insert(guest.arrival.id, index);
        }
        for event in self.inner.take_events() {
            if !matches!(event, Event::Repeated { .. }) {
                self.checks.disturbed(now_ns);
            }
            match event {
                Event::Departed(id) if self.happens(self.case.faults.unnoticed) => {
                    let late_ns = u64::from(self.up_to(500)) * MS;
                    self.unnoticed.push((now_ns + late_ns, id));
                }
                event => self.events.push(event),
            }
        }
        let (due, later) = std::mem::take(&mut self.unnoticed)
            .into_iter()
            .partition::<Vec<_>, _>(|(until_ns, _)| *until_ns <= now_ns);
        self.unnoticed = later;
        if !due.is_empty() {
            self.checks.disturbed(now_ns);
        }
        self.events
            .extend(due.into_iter().map(|(_, id)| Event::Departed(id)));
    }

    /// Lets time pass until then, or until there is something to tell; the
    /// checks look on.
    fn pass(&mut self, until_ns: u64) {
        loop {
            let next_ns = until_ns.min(self.now_ns() + LOOK_NS);
            let noticed_ns = self.unnoticed.iter().map(|(at_ns, _)| *at_ns).min();
            self.inner.pass(next_ns.min(noticed_ns.unwrap_or(u64::MAX)));
            self.hear();
            self.checks.look(&mut self.inner);
            let over = self.inner.is_over() || self.checks.broken.is_some();
            if over || !self.events.is_empty() || self.now_ns() >= until_ns {
                return;
            }
        }
    }

    /// The same, whatever happens meanwhile.
    pub(super) fn pass_all(&mut self, ns: u64) {
        let until_ns = self.now_ns() + ns;
        let runs = |world: &Self| world.inner.engine().fault().is_none();
        while self.now_ns() < until_ns && self.checks.broken.is_none() && runs(self) {
            let next_ns = until_ns.min(self.now_ns() + LOOK_NS);
            self.inner.pass(next_ns);
            self.hear();
            self.checks.look(&mut self.inner);
        }
    }

    /// The daemon takes programs in and lets them go, as its policy is told.
    fn manage(&mut self, events: &[Event]) {
        for event in events {
            let id = match event {
                Event::Arrived(program) => program.id,
                Event::Departed(id) => *id,
                Event::Repeated { .. } | Event::Limited { .. } | Event::Seating { .. } => continue,
            };
            let job = self.jobs[&id];
            let engine = self.inner.engine_mut();
            // Death is asked for below.
            let _ = match event {
                Event::Arrived(_) => self.hands.admit(engine, id, job),
                _ => self.hands.depart(engine, id, job),
            };
        }
        self.checks.told(events);
    }

    /// Lights what goes wrong in an action some steps on.
    fn light(&mut self, action: &Action) {
        let faults = &self.case.faults;
        if self.happens(faults.killed_acting) {
            let torn = self.up_to(255) as u8;
            let steps = self.up_to(12);
            self.hands.light(steps, Trouble::Dies(torn));
        } else if self.happens(faults.dies) {
            let steps = self.up_to(4);
            self.hands.light(steps, Trouble::ProgramDies);
        } else if self.happens(faults.half) {
            let job = self.jobs[&action.program()];
            let threads = self.inner.engine().threads_of(job).len() as u32;
            let (steps, count) = (self.up_to(2 * threads), 1 + self.up_to(3));
            self.hands.light(steps, Trouble::Fails(count));
        }
    }

    fn carry_out(&mut self, action: &Action) -> Result<(), String> {
        if self.happens(self.case.faults.fails) {
            return Err("it fails".to_owned());
        }
        self.light(action);
        let job = self.jobs[&action.program()];
        let done = self.hands.act(self.inner.engine_mut(), job, action);
        self.hands.put_out();
        // Who was killed over it is heard of.
        let now_ns = self.now_ns();
        self.inner.pass(now_ns);
        self.hear();
        match done {
            Ok(()) if self.happens(self.case.faults.denied) => {
                Err("it is said to have failed".to_owned())
            }
            Ok(()) => Ok(()),
            Err(Stop::Failed(why)) => Err(why),
            Err(Stop::Dead) => Err("the daemon is dead".to_owned()),
        }
    }

    fn change_cpus(&mut self) {
        let all = self.case.topology.all_cpus();
        let online = all.iter().filter(|_| self.random.rand_range(0..4) != 0);
        let mut online: CpuSet = online.collect();
        if online.is_empty() {
            online = all;
        }
        self.checks.look(&mut self.inner);
        self.say(format!("CPUs on line: {online}"));
        self.inner.set_online(online);
    }

    /// The daemon is dead: the keeper undoes what the journal says, or each
    /// launcher its own program and the next start the rest; then another
    /// daemon takes the programs in as they run.
    pub fn restart(&mut self) {
        self.passed.deaths += 1;
        self.killed = false;
        self.recorder = None;
        self.say("the daemon is killed");
        self.checks.nobody_plans();
        let hands = std::mem::replace(&mut self.hands, Hands::new(self.case.backend));
        let mut journal = hands.into_journal();
        if self.happens(self.case.faults.keeper_dies) {
            self.undo_without_keeper(&mut journal);
        } else {
            self.undo_by_keeper(&journal);
        }
        self.all_is_undone("after the daemon's death");
        let to_the_start_ns = u64::from(self.up_to(200)) * MS;
        self.pass_all(to_the_start_ns);
        self.inner.announce_again();
        (self.events, self.seen) = (Vec::new(), None);
        self.unnoticed.clear();
        self.hear();
        self.checks.begun_again();
    }

    fn undo_by_keeper(&mut self, journal: &[u8]) {
        let soon_ns = u64::from(self.up_to(300)) * MS;
        self.pass_all(soon_ns);
        if self.happens(self.case.faults.keeper_dies / 2.0) {
            let steps = self.up_to(20);
            self.say(format!("the keeper dies after {steps} steps"));
            self.undo(journal, None, Some(steps));
            let later_ns = u64::from(self.up_to(1_000)) * MS;
            self.pass_all(later_ns);
        }
        self.say("the journal is undone");
        self.undo(journal, None, None);
    }

    fn undo_without_keeper(&mut self, journal: &mut Vec<u8>) {
        self.say("the keeper is dead too");
        // Those that were attached have no launcher.
        let launched: Vec<ProgramId> = self
            .jobs
            .keys()
            .copied()
            .filter(|id| id.0 % 2 == 1)
            .collect();
        for id in launched {
            let ns = u64::from(self.up_to(200)) * MS;
            self.pass_all(ns);
            self.say(format!("its launcher undoes program {id}"));
            self.undo(journal, Some(id), None);
            close(journal, id);
        }
        let ns = u64::from(self.up_to(1_500)) * MS;
        self.pass_all(ns);
        self.say("the next start undoes the rest");
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
            let guest = self.case.guests.iter().find(|guest| guest.arrival.id == id);
            let own = guest.and_then(|guest| guest.arrival.bound_to.as_ref());
            if let Some(what) = self.inner.engine().is_bothered(job, own) {
                self.checks.fail(format!("program {id} {what} {when}"));
            }
        }
    }

    /// The last daemon ends, in good order or not.
    pub fn finish(mut self) -> Result<Passed, Broken> {
        if self.checks.broken.is_none() {
            self.end();
        }
        if let Some(what) = self.checks.broken.take() {
            return Err(self.broken(what));
        }
        if let Some(fault) = self.inner.engine().fault() {
            let what = format!("the simulation cannot go on: {fault}");
            return Err(self.broken(what));
        }
        self.passed.events = self.inner.engine().events();
        Ok(self.passed)
    }

    fn end(&mut self) {
        self.checks.nobody_plans();
        if self.up_to(1) == 0 && !self.hands.is_dying() {
            let held: Vec<ProgramId> = self.hands.held().collect();
            for id in held {
                let engine = self.inner.engine_mut();
                let _ = self.hands.depart(engine, id, self.jobs[&id]);
            }
            let now_ns = self.now_ns();
            self.checks.disturbed(now_ns);
            let left = self.hands.held().count();
            if left > 0 {
                let what =
                    format!("{left} programs are left in the journal of a daemon that ended");
                self.checks.fail(what);
            }
        } else {
            let hands = std::mem::replace(&mut self.hands, Hands::new(self.case.backend));
            let journal = hands.into_journal();
            self.undo(&journal, None, None);
        }
        self.all_is_undone("at the end");
        self.checks.end(&mut self.inner);
    }
}

impl World for Faulty<'_> {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        self.checks.look(&mut self.inner);
        let mut observation = self.inner.observe(failed);
        let faults = &self.case.faults;
        let now = Seen {
            at_ns: observation.at_ns,
            usable: observation.usable.clone(),
            programs: observation.programs.clone(),
        };
        let before = self.seen.take();
        if let Some(before) = before.clone().filter(|_| self.happens(faults.stale)) {
            // Nothing newer has come in: neither samples nor events.
            if self.up_to(1) == 0 {
                observation.at_ns = before.at_ns;
            }
            observation.usable.clone_from(&before.usable);
            observation.programs.clone_from(&before.programs);
            self.seen = Some(before);
            return observation;
        }
        observation.events = std::mem::take(&mut self.events);
        self.manage(&observation.events);
        observation.programs.retain(|_| !self.happens(faults.lost));
        for sample in &mut observation.programs {
            let old = before.iter().flat_map(|seen| &seen.programs);
            let old = old.into_iter().find(|old| old.id == sample.id);
            if let Some(old) = old.filter(|_| self.happens(faults.late)) {
                *sample = old.clone();
            }
        }
        self.seen = Some(now);
        observation
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        if self.hands.is_dead() {
            return Err("the daemon is dead".to_owned());
        }
        let done = self.carry_out(action);
        self.passed.actions += 1;
        self.passed.failed += u64::from(done.is_err());
        let now_ns = self.now_ns();
        self.checks.acted(now_ns, action, &done);
        self.log
            .add(now_ns, Deed::Acted(action.clone(), done.clone()));
        done
    }

    fn decided(&mut self, observation: &Observation, decision: &Decision) {
        if self.hands.is_dead() {
            return;
        }
        self.passed.decisions += 1;
        if let Some(recorder) = &mut self.recorder
            && let Err(error) = recorder.step(observation, decision)
        {
            self.checks.fail(format!("writing the record: {error}"));
        }
        self.checks.decided(observation, decision);
    }

    fn wait(&mut self, at_most_ns: Option<u64>) -> bool {
        let faults = &self.case.faults;
        if self.checks.broken.is_some() || self.hands.is_dead() {
            return false;
        }
        if self.happens(faults.killed) {
            self.killed = true;
            return false;
        }
        if self.happens(faults.offline) {
            self.change_cpus();
        }
        let late_ns = match self.happens(faults.sleepy) {
            true => u64::from(self.up_to(300)) * MS,
            false => 0,
        };
        let now_ns = self.now_ns();
        let wanted_ns = at_most_ns.map_or(RUN_NS, |ns| now_ns.saturating_add(ns));
        if late_ns > 0 {
            self.checks.disturbed(now_ns + late_ns);
            self.pass_all(late_ns.min(RUN_NS.saturating_sub(now_ns)));
        }
        if self.events.is_empty() {
            self.pass(wanted_ns.min(RUN_NS).max(self.now_ns()));
        }
        !self.inner.is_over() && self.checks.broken.is_none()
    }
}
