// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that no core stays idle for too long while a program waits for a CPU. If the waiting
//! program may use the core, the kernel must balance within 40 ms. If the core belongs to another
//! program's seat, the policy must lend it within 200 ms; cases in which the design does not
//! require a loan are exempt. A check compares each program with each core.
//!
//! An injected fault, a new plan and, for the kernel's limit, a change of the program's CPUs
//! restart the time. Programs whose threads have different CPUs are exempt from the kernel's limit.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::{CpuId, CpuSet, Plan, ProgramId, SeatMode, Topology};

use crate::world::{PlannedArrival, SimWorld};

/// Limit for the kernel, which balances its queues every 4 ms and each time that a CPU becomes
/// idle.
const KERNEL_NS_MAX: u64 = 40_000_000;
/// Limit for lending an idle seat. It is above the sum of these times, which is at most 172 ms:
///
/// - 100 ms to the next observation in a quiet system;
/// - two ticks of 8 ms that reveal waiting and idle programs;
/// - two more ticks, if the borrower has only just begun to wait;
/// - at most 40 ms during which an owner lends nothing after reclaiming its cores.
const LENDING_NS_MAX: u64 = 200_000_000;

/// A program that waits for this share of the time between two checks counts as waiting for the
/// whole time.
const WAITS_SHARE: f64 = 0.8;

/// State of the check: the idle period of each core, and the waiting period of each program.
#[derive(Debug)]
pub(super) struct IdleCheck {
    /// CPUs of each core.
    cores: Vec<CpuSet>,
    /// For each core: start of its idle period, and the busy time of its CPUs at that moment.
    idle: Vec<(u64, u64)>,
    waits: BTreeMap<ProgramId, WaitState>,
    disturbed_ns: u64,
}

/// Waiting state of a program.
#[derive(Debug)]
struct WaitState {
    /// Start of the period in which a thread of the program has always waited; the time of the last
    /// check if no thread waits.
    since_ns: u64,
    seen_ns: u64,
    /// Total waiting time at the last check.
    wait_ns: u64,
    /// The program's allowed CPUs, and the time of their last change.
    mask: CpuSet,
    moved_ns: u64,
}

impl IdleCheck {
    pub fn new(topology: &Topology) -> Self {
        Self {
            cores: topology
                .cores
                .iter()
                .map(|core| core.cpus.clone())
                .collect(),
            idle: vec![(0, 0); topology.cores.len()],
            waits: BTreeMap::new(),
            disturbed_ns: 0,
        }
    }

    /// Restarts the time limits at `at_ns`, after an unusual event.
    pub fn disturbed(&mut self, at_ns: u64) {
        self.disturbed_ns = self.disturbed_ns.max(at_ns);
    }

    /// Checks all programs and cores. `plan` is `Some` if the policy must lend idle seats.
    ///
    /// # Errors
    /// A description with the waiting program and the idle core.
    pub fn check(
        &mut self,
        world: &SimWorld,
        plan: Option<&Plan>,
        arrivals: &BTreeMap<ProgramId, PlannedArrival>,
    ) -> Result<(), String> {
        let now_ns = world.engine().now_ns();
        self.update_cores(world, now_ns);
        self.update_waits(world, now_ns);
        for (&id, waits) in &self.waits {
            let split = world
                .present()
                .get(&id)
                .map(|&job| world.engine().is_split(job));
            for (core, cpus) in self.cores.iter().enumerate() {
                let since_ns = waits.since_ns.max(self.idle[core].0).max(self.disturbed_ns);
                // If the program may use the core, the kernel must balance; otherwise the policy
                // must lend the core.
                let (usable, bound_ns, since_ns) = match waits.mask.intersects(cpus) {
                    true => (
                        Some("which the program may use, "),
                        KERNEL_NS_MAX,
                        since_ns.max(waits.moved_ns),
                    ),
                    false => (None, LENDING_NS_MAX, since_ns),
                };
                let to_lend =
                    || plan.is_some_and(|plan| self.must_be_lent(plan, arrivals, id, cpus));
                let wrong = match usable {
                    Some(_) => split == Some(false),
                    None => now_ns.saturating_sub(since_ns) > bound_ns && to_lend(),
                };
                if wrong && now_ns.saturating_sub(since_ns) > bound_ns {
                    let seconds = (now_ns.saturating_sub(since_ns)) as f64 / 1e9;
                    return Err(format!(
                        "a thread of program {id} waits on the CPUs {} although the core with the \
                         CPUs {cpus}, {}has been idle for {seconds:.3} s, longer than the limit",
                        waits.mask,
                        usable.unwrap_or_default()
                    ));
                }
            }
        }
        Ok(())
    }

    fn update_cores(&mut self, world: &SimWorld, now_ns: u64) {
        let totals: BTreeMap<CpuId, (bool, u64)> = world
            .engine()
            .cpu_totals()
            .into_iter()
            .map(|cpu| (cpu.os, (cpu.online, cpu.busy_ns)))
            .collect();
        for (cpus, idle) in self.cores.iter().zip(&mut self.idle) {
            let here: Vec<_> = cpus.iter().filter_map(|cpu| totals.get(&cpu)).collect();
            let online = here.iter().all(|(online, _)| *online);
            let busy_ns = here.iter().map(|(_, busy_ns)| busy_ns).sum();
            if !online || busy_ns != idle.1 {
                *idle = (now_ns, busy_ns);
            }
        }
    }

    fn update_waits(&mut self, world: &SimWorld, now_ns: u64) {
        let mut waits = BTreeMap::new();
        for (&id, &job) in world.present() {
            let totals = world.engine().totals(job);
            let before = self.waits.get(&id);
            // Whether a thread has waited for nearly all the time since the last check.
            let through = |before: &&WaitState| {
                let waited_ns = totals.wait_ns - before.wait_ns;
                waited_ns as f64 >= WAITS_SHARE * (now_ns - before.seen_ns) as f64
            };
            let mask = world.engine().mask_of(job);
            let unmoved = before.filter(|before| before.mask == mask);
            let new = WaitState {
                since_ns: before
                    .filter(through)
                    .map_or(now_ns, |before| before.since_ns),
                seen_ns: now_ns,
                wait_ns: totals.wait_ns,
                moved_ns: unmoved.map_or(now_ns, |before| before.moved_ns),
                mask,
            };
            waits.insert(id, new);
        }
        self.waits = waits;
    }

    /// Returns whether the design requires that a core is lent to a waiting program. No loan is
    /// required in these cases:
    ///
    /// - The borrower has no profile (because Usher measures it or may measure it), has spinning
    ///   threads, spins adaptively, is bound to CPUs, or is not expected to gain from another core.
    /// - The owner of the core has no profile, is not seated, waits for a CPU itself, or borrows a
    ///   CPU.
    fn must_be_lent(
        &self,
        plan: &Plan,
        arrivals: &BTreeMap<ProgramId, PlannedArrival>,
        borrower: ProgramId,
        cpus: &CpuSet,
    ) -> bool {
        let seat = |id: ProgramId| plan.seats.iter().find(|seat| seat.program == id);
        let seated = seat(borrower).is_some_and(|seat| seat.mode == SeatMode::Seated);
        let borrows: BTreeSet<ProgramId> = plan.loans.iter().map(|loan| loan.borrower).collect();
        let lent = plan.loans.iter().any(|loan| loan.cpus.intersects(cpus));
        let mut owners = plan.seats.iter().filter(|seat| seat.cpus.intersects(cpus));
        let lends = owners.all(|seat| {
            let id = seat.program;
            seat.mode == SeatMode::Seated
                && arrivals[&id].arrival.profile.is_some()
                && self
                    .waits
                    .get(&id)
                    .is_none_or(|waits| waits.since_ns == waits.seen_ns)
                && !borrows.contains(&id)
        });
        !plan.abstains && seated && !lent && lends && gains(&arrivals[&borrower])
    }
}

/// Returns whether a program gains from each additional core, and its profile shows this gain.
fn gains(planned: &PlannedArrival) -> bool {
    let arrival = &planned.arrival;
    let rises = arrival.profile.as_ref().is_some_and(|curve| {
        let rates = curve.points().iter().map(|point| point.rate);
        rates.is_sorted()
    });
    rises && !planned.script.adaptive_spin && arrival.spinners == 0 && arrival.bound_to.is_none()
}
