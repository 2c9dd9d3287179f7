// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks the invariants of a fuzz case, which must hold under all injected faults:
//!
//! - Seats are disjoint, and programs run on the seats of the plan.
//! - No work of a program is lost.
//! - No program is stopped for longer than 1.5 s under policy `usher`, or 4.8 s per program of the
//!   case under other policies.
//! - A program with permanent demand gets at least 1 % of a CPU (20 ms) within 2 s.
//! - No core stays idle for longer than 40 to 200 ms while a program waits for it (module `idle`).
//! - Programs use no more CPU time than was available.
//!
//! The checks read the actual state of the simulated machine, not the state of the policy. An
//! injected fault restarts the time limit of idle cores, because the policy may need time to
//! recover. The limits of stops and of starvation include a margin for faults instead. A check
//! visits all threads and CPUs, and pairs of programs to find overlapping seats. Only the first
//! violation is kept.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::{Action, CpuSet, Decision, Event, Observation, Plan, ProgramId, SeatMode};

use super::case::FuzzCase;
use super::{idle, work};
use crate::world::{PlannedArrival, SimWorld};

/// Maximum time for which the policy `usher` may keep a program stopped: the turns of three other
/// programs, and a second for a lost observation or a late loop.
const STOPPED_NS_MAX: u64 = 1_500_000_000;
/// Maximum time for which the policy `casas` may stop all other programs for the trials of new
/// programs. A trial has eight steps of 0.3 s, and is abandoned after twice that time. Trials of
/// several new programs follow one another.
const TRIAL_NS_MAX: u64 = 4_800_000_000;
/// Period in which a program with permanent demand must receive [`STARVED_SHARE`] of one CPU.
const STARVED_NS: u64 = 2_000_000_000;
/// A program with less than this share of one CPU counts as starved. The share is far below a fair
/// share: seven programs on one CPU get a seventh each, and four programs that take turns get a
/// quarter each.
const STARVED_SHARE: f64 = 0.01;

/// State of the checks of one program.
#[derive(Debug, Clone, Default)]
struct ProgramCheck {
    /// Whether the last change of the program's seat failed, so that its seat is unknown.
    seat_unknown: bool,
    stopped_since_ns: Option<u64>,
    /// Start of the period in which the program has always demanded CPU time, and the CPU time that
    /// it had used at that moment.
    demand_since: Option<(u64, u64)>,
}

/// State of all checks of a run.
#[derive(Debug)]
pub(super) struct CheckerState {
    pub violation: Option<String>,
    policy: &'static str,
    arrivals: BTreeMap<ProgramId, PlannedArrival>,
    programs: BTreeMap<ProgramId, ProgramCheck>,
    /// The plan in force, and the usable CPUs of the policy's last observation.
    plan: Option<Plan>,
    usable: CpuSet,
    /// Whether seats have changed without a new plan, as in trials of `casas`.
    unplanned: bool,
    reported_departed: BTreeSet<ProgramId>,
    pub checked_ns: u64,
    /// Total CPU time available on online CPUs.
    cpu_time_ns: u64,
    idle: idle::IdleCheck,
}

impl CheckerState {
    pub fn new(case: &FuzzCase) -> Self {
        let planned = |planned: &PlannedArrival| (planned.arrival.id, planned.clone());
        Self {
            violation: None,
            policy: case.policy,
            arrivals: case.arrivals.iter().map(planned).collect(),
            programs: BTreeMap::new(),
            plan: None,
            usable: case.topology.all_cpus(),
            unplanned: false,
            reported_departed: BTreeSet::new(),
            checked_ns: 0,
            cpu_time_ns: 0,
            idle: idle::IdleCheck::new(&case.topology),
        }
    }

    pub fn fail(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn is_product_policy(&self) -> bool {
        usher_policy::NAMES.contains(&self.policy)
    }

    // Events of the control loop.

    /// Restarts the time limit of idle cores after an unusual event.
    pub fn disturbed(&mut self, at_ns: u64) {
        self.idle.disturbed(at_ns);
    }

    /// Notes that no daemon runs.
    pub fn daemon_died(&mut self) {
        self.plan = None;
    }

    /// Notes that a new daemon has started, which has no state.
    pub fn daemon_restarted(&mut self) {
        self.plan = None;
        self.reported_departed.clear();
        self.unplanned = false;
        for check in self.programs.values_mut() {
            check.seat_unknown = false;
        }
    }

    pub fn reported(&mut self, events: &[Event]) {
        for event in events {
            if let Event::Departed(id) = event {
                self.reported_departed.insert(*id);
                self.programs.remove(id);
            }
        }
    }

    pub fn acted(&mut self, at_ns: u64, action: &Action, done: &Result<(), String>) {
        let id = action.program();
        if self.reported_departed.contains(&id) {
            self.fail(format!(
                "the policy acts on program {id} after its departure was reported"
            ));
        }
        if let Action::Seat { cpus, .. } = action
            && cpus.is_empty()
        {
            self.fail(format!("the policy gives program {id} a seat without CPUs"));
        }
        if done.is_err() {
            self.disturbed(at_ns);
        }
        if matches!(action, Action::Seat { .. } | Action::Release { .. }) {
            self.programs.entry(id).or_default().seat_unknown = done.is_err();
        }
    }

    pub fn decided(&mut self, observation: &Observation, decision: &Decision) {
        let moves =
            |action: &Action| !matches!(action, Action::Freeze { .. } | Action::Thaw { .. });
        self.unplanned |= decision.actions.iter().any(moves);
        if let Some(plan) = &decision.plan {
            self.check_plan(plan, &observation.usable);
            // New seats restart the time limits of the idle check.
            if self
                .plan
                .as_ref()
                .is_none_or(|before| before.seats != plan.seats)
            {
                self.disturbed(observation.at_ns.max(self.checked_ns));
            }
            self.plan = Some(plan.clone());
            self.unplanned = false;
        }
        self.usable.clone_from(&observation.usable);
    }

    /// Checks that a plan's seats are disjoint and non-empty, and that loans come from the owner's
    /// seat or from unowned CPUs.
    fn check_plan(&mut self, plan: &Plan, usable: &CpuSet) {
        let mut taken = CpuSet::new();
        for seat in &plan.seats {
            if seat.cpus.is_empty() {
                self.fail(format!(
                    "the plan gives program {} a seat without CPUs",
                    seat.program
                ));
            }
            if seat.mode == SeatMode::Seated {
                if seat.cpus.intersects(&taken) {
                    let both = seat.cpus.and(&taken);
                    self.fail(format!("the plan has the CPUs {both} in two seats"));
                }
                taken = taken.or(&seat.cpus);
            }
        }
        for loan in &plan.loans {
            let is_owner = |seat: &&usher_model::Seat| Some(seat.program) == loan.owner;
            let owner = plan.seats.iter().find(is_owner);
            let lender = owner.map_or_else(|| usable.minus(&taken), |seat| seat.cpus.clone());
            if loan.owner.is_some() && owner.is_none() {
                let what = format!(
                    "the CPUs {} are lent by a program that has departed",
                    loan.cpus
                );
                self.fail(what);
            } else if !loan.cpus.and(usable).is_subset(&lender) {
                self.fail(format!(
                    "the lent CPUs {} are not all among the lender's CPUs {lender}",
                    loan.cpus
                ));
            }
            if loan.owner == Some(loan.borrower) {
                self.fail(format!(
                    "program {} borrows CPUs from itself",
                    loan.borrower
                ));
            }
        }
    }

    // State of the machine.

    /// Checks all invariants on the machine.
    pub fn check(&mut self, world: &mut SimWorld) {
        let online = world.online().len() as u64;
        world.engine_mut().charge_all();
        let now_ns = world.engine().now_ns();
        self.cpu_time_ns += (now_ns - self.checked_ns) * online;
        self.checked_ns = now_ns;
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
        if let Err(what) = self.idle.check(world, usher_seats, &self.arrivals) {
            self.fail(what);
        }
    }

    /// Checks that programs have not used more CPU time than was available.
    fn check_cpu_time(&mut self, world: &SimWorld) {
        let engine = world.engine();
        let used_ns: u64 = (0..engine.programs())
            .map(|job| engine.totals(job).cpu_ns)
            .sum();
        let busy_ns: u64 = engine.cpu_totals().iter().map(|cpu| cpu.busy_ns).sum();
        if used_ns != busy_ns {
            self.fail(format!(
                "programs used {used_ns} ns of CPU time, but CPUs were busy for {busy_ns} ns"
            ));
        }
        if used_ns > self.cpu_time_ns {
            let there = self.cpu_time_ns;
            self.fail(format!(
                "programs used {used_ns} ns of CPU time, but only {there} ns were available"
            ));
        }
    }

    fn check_stops(&mut self, world: &SimWorld) {
        let now_ns = world.engine().now_ns();
        let bound_ns = match self.policy {
            "usher" => STOPPED_NS_MAX,
            _ => TRIAL_NS_MAX * self.arrivals.len() as u64,
        };
        for (&id, &job) in world.present() {
            let check = self.programs.entry(id).or_default();
            if world.engine().totals(job).stopped == 0 {
                check.stopped_since_ns = None;
                continue;
            }
            let since_ns = *check.stopped_since_ns.get_or_insert(now_ns);
            if now_ns - since_ns > bound_ns {
                let seconds = (now_ns - since_ns) as f64 / 1e9;
                self.fail(format!(
                    "program {id} has been stopped for {seconds:.3} s, which exceeds the limit"
                ));
            }
        }
    }

    fn check_starvation(&mut self, world: &SimWorld) {
        let now_ns = world.engine().now_ns();
        for (&id, &job) in world.present() {
            let totals = world.engine().totals(job);
            let check = self.programs.entry(id).or_default();
            // Under `casas`, the trial of a new program may stop other programs for longer than the
            // limit of `usher`.
            let trial = totals.stopped > 0 && self.policy != "usher";
            let wants = totals.runnable > 0 || totals.stopped > 0;
            let (since_ns, had_ns) = *check.demand_since.get_or_insert((now_ns, totals.cpu_ns));
            let (waited_ns, got_ns) = (now_ns - since_ns, totals.cpu_ns - had_ns);
            let fed = got_ns as f64 >= STARVED_SHARE * STARVED_NS as f64;
            if trial || !wants || fed {
                check.demand_since = None;
            } else if waited_ns > STARVED_NS {
                let (waited, got) = (waited_ns as f64 / 1e9, got_ns as f64 / 1e6);
                self.fail(format!(
                    "program {id} starves: it received {got:.1} ms of CPU time in {waited:.3} s"
                ));
            }
        }
    }

    /// Checks that programs run on the CPUs of the plan.
    fn check_seats(&mut self, world: &SimWorld) {
        let Some(plan) = &self.plan else { return };
        if !self.is_product_policy() || self.unplanned && self.policy == "casas" {
            return;
        }
        let all = world.online();
        let mut wrong = None;
        for (id, job) in self.confirmed_programs(world) {
            let Some(seat) = plan.seats.iter().find(|seat| seat.program == id) else {
                continue;
            };
            let borrowed = plan.loans.iter().filter(|loan| loan.borrower == id);
            let wanted = borrowed.fold(seat.cpus.clone(), |cpus, loan| cpus.or(&loan.cpus));
            let wanted = if plan.abstains { all.clone() } else { wanted };
            let own = self.arrivals[&id].arrival.bound_to.as_ref();
            let Some(wanted) = effective(&wanted, own, all) else {
                continue;
            };
            let real = world.engine().mask_of(job);
            if real != wanted || world.engine().is_split(job) {
                wrong.get_or_insert(format!(
                    "program {id} may run on {real}, but its planned CPUs are {wanted}"
                ));
            }
        }
        wrong.into_iter().for_each(|what| self.fail(what));
    }

    /// Checks that no running program uses the seat of another program, except for borrowed CPUs.
    fn check_overlaps(&mut self, world: &SimWorld) {
        let Some(plan) = &self.plan else { return };
        // The `lending` policy does not list its loans in the plan.
        if plan.abstains || self.policy == "lending" {
            return;
        }
        let own = |id: ProgramId| self.arrivals[&id].arrival.bound_to.as_ref();
        let seated = |id: ProgramId| {
            let seat = plan.seats.iter().find(|seat| seat.program == id);
            seat.is_some_and(|seat| {
                seat.mode == SeatMode::Seated
                    && effective(&seat.cpus, own(id), world.online()).is_some()
            })
        };
        let confirmed: Vec<(ProgramId, usize)> = self
            .confirmed_programs(world)
            .filter(|&(id, job)| seated(id) && !world.engine().is_frozen(job))
            .collect();
        let mut wrong = None;
        for (at, &(one, job)) in confirmed.iter().enumerate() {
            for &(other, other_job) in &confirmed[at + 1..] {
                let engine = world.engine();
                let both = engine.mask_of(job).and(&engine.mask_of(other_job));
                let lent = plan
                    .loans
                    .iter()
                    .filter(|loan| [one, other].contains(&loan.borrower));
                let both = lent.fold(both, |both, loan| both.minus(&loan.cpus));
                if !both.is_empty() {
                    wrong.get_or_insert(format!(
                        "the seats of the programs {one} and {other} both contain the CPUs {both}"
                    ));
                }
            }
        }
        wrong.into_iter().for_each(|what| self.fail(what));
    }

    /// Returns the programs with a known seat: the last change of their seat succeeded, or no
    /// change was requested.
    fn confirmed_programs(&self, world: &SimWorld) -> impl Iterator<Item = (ProgramId, usize)> {
        let seat_unknown = |id: &ProgramId| {
            self.programs
                .get(id)
                .is_some_and(|check| check.seat_unknown)
        };
        let present = world.present().iter();
        let confirmed = present.filter(move |&(id, _)| !seat_unknown(id));
        confirmed
            .map(|(&id, &job)| (id, job))
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Checks at the end of the run that no work was lost.
    pub fn end(&mut self, world: &mut SimWorld) {
        self.check(world);
        for (job, planned) in world.arrived().enumerate() {
            let totals = world.engine().totals(job);
            let (least, most) = work::bounds(&planned.script);
            let count = f64::from(totals.repetitions);
            let done = totals.work_finished_ns;
            // The tolerance covers rounding, and the amount of work that may remain when a step
            // counts as complete.
            let slack = 1e-6 * (1.0 + count * most);
            if done < count * least - slack || done > count * most + slack {
                let id = planned.arrival.id;
                self.violation.get_or_insert(format!(
                    "program {id} did {done} ns of work in {count} repetitions, each of which \
                     has {least} to {most} ns"
                ));
            }
        }
    }
}

/// Returns the CPUs that a program with this seat may use, given its own binding to CPUs. `None` if
/// no CPU is in both sets; in that case the kernel selects the CPUs.
fn effective(wanted: &CpuSet, own: Option<&CpuSet>, online: &CpuSet) -> Option<CpuSet> {
    let wanted = wanted.and(online);
    let own = own.map_or_else(|| wanted.clone(), |own| own.and(&wanted));
    (!own.is_empty()).then_some(own)
}
