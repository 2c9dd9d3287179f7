// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must hold whatever goes wrong, checked on the simulated machine as it
//! is and knowing nothing of how a policy decides.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::{Action, CpuSet, Decision, Event, Observation, Plan, ProgramId, SeatMode};

use super::case::Case;
use super::{idle, work};
use crate::world::{Guest, SimWorld};

/// Nobody may be stopped by `usher` for longer: three others' turns, and a
/// second for an observation that is lost or a loop that is late.
const STOPPED_NS_MAX: u64 = 1_500_000_000;
/// `casas` stops everybody for a newcomer's trial: eight steps of 0.3 s, given
/// up after twice that; and newcomers come one after another.
const TRIAL_NS_MAX: u64 = 4_800_000_000;
/// In so long a program that would run all the time has some CPU time...
const STARVED_NS: u64 = 2_000_000_000;
/// ...which is this share of one CPU. Seven programs on one CPU get a seventh
/// each, and four that take turns a quarter.
const STARVED_SHARE: f64 = 0.01;

/// What is known of one program.
#[derive(Debug, Clone, Default)]
struct Known {
    /// The last action that moved it failed: where it is is not known.
    doubted: bool,
    stopped_since_ns: Option<u64>,
    /// Since when it has wanted CPU time at every look, and what it had then.
    wants_since: Option<(u64, u64)>,
}

/// What has been seen so far.
#[derive(Debug)]
pub(super) struct Checks {
    pub broken: Option<String>,
    policy: &'static str,
    guests: BTreeMap<ProgramId, Guest>,
    known: BTreeMap<ProgramId, Known>,
    /// The plan in force, and what its policy believed to be on line.
    plan: Option<Plan>,
    usable: CpuSet,
    /// Seats were moved without a plan, as `casas` does for its trials.
    unplanned: bool,
    told_gone: BTreeSet<ProgramId>,
    pub looked_ns: u64,
    /// CPU time that there was, CPUs that were off line left out.
    cpu_time_ns: u64,
    idle: idle::Idle,
}

impl Checks {
    pub fn new(case: &Case) -> Self {
        let guest = |guest: &Guest| (guest.arrival.id, guest.clone());
        Self {
            broken: None,
            policy: case.policy,
            guests: case.guests.iter().map(guest).collect(),
            known: BTreeMap::new(),
            plan: None,
            usable: case.topology.all_cpus(),
            unplanned: false,
            told_gone: BTreeSet::new(),
            looked_ns: 0,
            cpu_time_ns: 0,
            idle: idle::Idle::new(&case.topology),
        }
    }

    pub fn fail(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    fn ships(&self) -> bool {
        usher_policy::NAMES.contains(&self.policy)
    }

    // What the loop does.

    /// Something out of the ordinary has happened: what takes its time in good
    /// order begins again.
    pub fn disturbed(&mut self, at_ns: u64) {
        self.idle.disturbed(at_ns);
    }

    /// Nobody is in charge.
    pub fn nobody_plans(&mut self) {
        self.plan = None;
    }

    /// A new daemon knows nobody.
    pub fn begun_again(&mut self) {
        self.plan = None;
        self.told_gone.clear();
        self.unplanned = false;
        for known in self.known.values_mut() {
            known.doubted = false;
        }
    }

    pub fn told(&mut self, events: &[Event]) {
        for event in events {
            if let Event::Departed(id) = event {
                self.told_gone.insert(*id);
                self.known.remove(id);
            }
        }
    }

    pub fn acted(&mut self, at_ns: u64, action: &Action, done: &Result<(), String>) {
        let id = action.program();
        if self.told_gone.contains(&id) {
            self.fail(format!(
                "acts on program {id}, of which it was told that it has gone"
            ));
        }
        if let Action::Seat { cpus, .. } = action
            && cpus.is_empty()
        {
            self.fail(format!("seats program {id} on no CPU"));
        }
        if done.is_err() {
            self.disturbed(at_ns);
        }
        if matches!(action, Action::Seat { .. } | Action::Release { .. }) {
            self.known.entry(id).or_default().doubted = done.is_err();
        }
    }

    pub fn decided(&mut self, observation: &Observation, decision: &Decision) {
        let moves =
            |action: &Action| !matches!(action, Action::Freeze { .. } | Action::Thaw { .. });
        self.unplanned |= decision.actions.iter().any(moves);
        if let Some(plan) = &decision.plan {
            self.check_plan(plan, &observation.usable);
            // Other seats: everybody's idleness is looked at anew.
            if self
                .plan
                .as_ref()
                .is_none_or(|before| before.seats != plan.seats)
            {
                self.disturbed(observation.at_ns.max(self.looked_ns));
            }
            self.plan = Some(plan.clone());
            self.unplanned = false;
        }
        self.usable.clone_from(&observation.usable);
    }

    /// Seats in a plan are disjoint and nobody's is empty; what is lent is
    /// somebody's own or nobody's.
    fn check_plan(&mut self, plan: &Plan, usable: &CpuSet) {
        let mut taken = CpuSet::new();
        for seat in &plan.seats {
            if seat.cpus.is_empty() {
                self.fail(format!("program {} has an empty seat", seat.program));
            }
            if seat.mode == SeatMode::Seated {
                if seat.cpus.intersects(&taken) {
                    let both = seat.cpus.and(&taken);
                    self.fail(format!("the plan has {both} in two seats"));
                }
                taken = taken.or(&seat.cpus);
            }
        }
        for loan in &plan.loans {
            let is_owner = |seat: &&usher_model::Seat| Some(seat.program) == loan.owner;
            let owner = plan.seats.iter().find(is_owner);
            let lender = owner.map_or_else(|| usable.minus(&taken), |seat| seat.cpus.clone());
            if loan.owner.is_some() && owner.is_none() {
                let what = format!("{} is lent by a program that is not there", loan.cpus);
                self.fail(what);
            } else if !loan.cpus.and(usable).is_subset(&lender) {
                self.fail(format!("{} is lent out of {lender}", loan.cpus));
            }
            if loan.owner == Some(loan.borrower) {
                self.fail(format!("program {} borrows from itself", loan.borrower));
            }
        }
    }

    // What the machine is.

    /// Looks at the machine.
    pub fn look(&mut self, world: &mut SimWorld) {
        let online = world.online().len() as u64;
        world.engine_mut().settle();
        let now_ns = world.engine().now_ns();
        self.cpu_time_ns += (now_ns - self.looked_ns) * online;
        self.looked_ns = now_ns;
        if let Err(what) = world.engine().audit() {
            self.fail(what);
        }
        self.check_cpu_time(world);
        self.check_stops(world);
        self.check_starvation(world);
        if self.plan.is_some() && *world.online() == self.usable {
            self.check_seats(world);
            self.check_overlaps(world);
        }
        let usher_seats = self.plan.as_ref().filter(|_| self.policy == "usher");
        if let Err(what) = self.idle.look(world, usher_seats, &self.guests) {
            self.fail(what);
        }
    }

    /// Nobody has had CPU time that there was not.
    fn check_cpu_time(&mut self, world: &SimWorld) {
        let engine = world.engine();
        let used_ns: u64 = (0..engine.programs())
            .map(|job| engine.ledger(job).cpu_ns)
            .sum();
        let busy_ns: u64 = engine.cpu_ledgers().iter().map(|cpu| cpu.busy_ns).sum();
        if used_ns != busy_ns {
            self.fail(format!(
                "programs have had {used_ns} ns of {busy_ns} ns that CPUs were busy"
            ));
        }
        if used_ns > self.cpu_time_ns {
            let there = self.cpu_time_ns;
            self.fail(format!(
                "programs have had {used_ns} ns of {there} ns that there were"
            ));
        }
    }

    fn check_stops(&mut self, world: &SimWorld) {
        let now_ns = world.engine().now_ns();
        let bound_ns = match self.policy {
            "usher" => STOPPED_NS_MAX,
            _ => TRIAL_NS_MAX * self.guests.len() as u64,
        };
        for (&id, &job) in world.present() {
            let known = self.known.entry(id).or_default();
            if world.engine().ledger(job).stopped == 0 {
                known.stopped_since_ns = None;
                continue;
            }
            let since_ns = *known.stopped_since_ns.get_or_insert(now_ns);
            if now_ns - since_ns > bound_ns {
                let seconds = (now_ns - since_ns) as f64 / 1e9;
                self.fail(format!("program {id} has stood still for {seconds:.3} s"));
            }
        }
    }

    fn check_starvation(&mut self, world: &SimWorld) {
        let now_ns = world.engine().now_ns();
        for (&id, &job) in world.present() {
            let ledger = world.engine().ledger(job);
            let known = self.known.entry(id).or_default();
            // A trial of `casas` stops others for longer.
            let trial = ledger.stopped > 0 && self.policy != "usher";
            let wants = ledger.runnable > 0 || ledger.stopped > 0;
            let (since_ns, had_ns) = *known.wants_since.get_or_insert((now_ns, ledger.cpu_ns));
            let (waited_ns, got_ns) = (now_ns - since_ns, ledger.cpu_ns - had_ns);
            let fed = got_ns as f64 >= STARVED_SHARE * STARVED_NS as f64;
            if trial || !wants || fed {
                known.wants_since = None;
            } else if waited_ns > STARVED_NS {
                let (waited, got) = (waited_ns as f64 / 1e9, got_ns as f64 / 1e6);
                self.fail(format!(
                    "program {id} has had {got:.1} ms of CPU time in {waited:.3} s"
                ));
            }
        }
    }

    /// Programs sit where the plan says.
    fn check_seats(&mut self, world: &SimWorld) {
        let Some(plan) = &self.plan else { return };
        if !self.ships() || self.unplanned && self.policy == "casas" {
            return;
        }
        let all = world.online();
        let mut wrong = None;
        for (id, job) in self.sure(world) {
            let Some(seat) = plan.seats.iter().find(|seat| seat.program == id) else {
                continue;
            };
            let borrowed = plan.loans.iter().filter(|loan| loan.borrower == id);
            let wanted = borrowed.fold(seat.cpus.clone(), |cpus, loan| cpus.or(&loan.cpus));
            let wanted = if plan.abstains { all.clone() } else { wanted };
            let own = self.guests[&id].arrival.bound_to.as_ref();
            let Some(wanted) = effective(&wanted, own, all) else {
                continue;
            };
            let real = world.engine().mask_of(job);
            if real != wanted || world.engine().is_split(job) {
                wrong.get_or_insert(format!(
                    "program {id} may run on {real}, and the plan says {wanted}"
                ));
            }
        }
        wrong.into_iter().for_each(|what| self.fail(what));
    }

    /// Nobody who runs sits on another's seat, unless it is lent.
    fn check_overlaps(&mut self, world: &SimWorld) {
        let Some(plan) = &self.plan else { return };
        // That rival lends without saying so in its plan.
        if plan.abstains || self.policy == "lending" {
            return;
        }
        let own = |id: ProgramId| self.guests[&id].arrival.bound_to.as_ref();
        let seated = |id: ProgramId| {
            let seat = plan.seats.iter().find(|seat| seat.program == id);
            seat.is_some_and(|seat| {
                seat.mode == SeatMode::Seated
                    && effective(&seat.cpus, own(id), world.online()).is_some()
            })
        };
        let sure: Vec<(ProgramId, usize)> = self
            .sure(world)
            .filter(|&(id, job)| seated(id) && !world.engine().is_frozen(job))
            .collect();
        let mut wrong = None;
        for (at, &(one, job)) in sure.iter().enumerate() {
            for &(other, other_job) in &sure[at + 1..] {
                let engine = world.engine();
                let both = engine.mask_of(job).and(&engine.mask_of(other_job));
                let lent = plan
                    .loans
                    .iter()
                    .filter(|loan| [one, other].contains(&loan.borrower));
                let both = lent.fold(both, |both, loan| both.minus(&loan.cpus));
                if !both.is_empty() {
                    wrong.get_or_insert(format!(
                        "programs {one} and {other} are both seated on {both}"
                    ));
                }
            }
        }
        wrong.into_iter().for_each(|what| self.fail(what));
    }

    /// Programs that are where they were last put, or were never moved.
    fn sure(&self, world: &SimWorld) -> impl Iterator<Item = (ProgramId, usize)> {
        let doubted = |id: &ProgramId| self.known.get(id).is_some_and(|known| known.doubted);
        let present = world.present().iter();
        let sure = present.filter(move |&(id, _)| !doubted(id));
        sure.map(|(&id, &job)| (id, job))
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// The run is over: nothing of anybody's work was lost.
    pub fn end(&mut self, world: &mut SimWorld) {
        self.look(world);
        for (job, guest) in world.arrived().enumerate() {
            let ledger = world.engine().ledger(job);
            let (least, most) = work::of(&guest.script);
            let count = f64::from(ledger.repetitions);
            let done = ledger.work_finished_ns;
            // What is left of a step when it counts as done, and rounding.
            let slack = 1e-6 * (1.0 + count * most);
            if done < count * least - slack || done > count * most + slack {
                let id = guest.arrival.id;
                self.broken.get_or_insert(format!(
                    "program {id} has done {done} ns of work in {count} repetitions of {least} to {most} ns"
                ));
            }
        }
    }
}

/// Where a program that is put on these CPUs and binds itself may run; `None`
/// where nothing is left of either, when it is up to the kernel.
fn effective(wanted: &CpuSet, own: Option<&CpuSet>, online: &CpuSet) -> Option<CpuSet> {
    let wanted = wanted.and(online);
    let own = own.map_or_else(|| wanted.clone(), |own| own.and(&wanted));
    (!own.is_empty()).then_some(own)
}
