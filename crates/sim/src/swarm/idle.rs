// SPDX-License-Identifier: MIT OR Apache-2.0
//! No core stays idle while somebody waits for one.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::{CpuId, CpuSet, Mode, Plan, ProgramId, Topology};

use crate::world::{Guest, SimWorld};

/// The kernel evens its queues out every 4 ms and whenever a CPU would idle.
const KERNEL_NS_MAX: u64 = 40_000_000;
/// A seat that is left idle is lent within: 100 ms to the next look, if nothing
/// was going on; two ticks of 8 ms that show who waits and who idles, two more
/// of a borrower that has just been content; at most 40 ms that an owner lends
/// nothing after it has taken its cores back. Twice that is too long.
const LENDING_NS_MAX: u64 = 400_000_000;

/// Who waits for this share of the time between two looks waits all the time.
const WAITS_SHARE: f64 = 0.8;

/// Since when each core has been idle and each program has waited.
#[derive(Debug)]
pub(super) struct Idle {
    /// CPUs of each core.
    cores: Vec<CpuSet>,
    /// By core: since when, and how busy its CPUs had been.
    idle: Vec<(u64, u64)>,
    /// By program: since when a thread of it has waited all the time, and when
    /// it was seen last, with its waiting time then.
    waits: BTreeMap<ProgramId, (u64, u64, u64)>,
    disturbed_ns: u64,
}

impl Idle {
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

    /// Whatever takes its time begins again.
    pub fn disturbed(&mut self, at_ns: u64) {
        self.disturbed_ns = at_ns;
    }

    /// Looks at the machine; `plan` is where idle seats are to be lent.
    ///
    /// # Errors
    /// Who waits, and which core idles.
    pub fn look(
        &mut self,
        world: &SimWorld,
        plan: Option<&Plan>,
        guests: &BTreeMap<ProgramId, Guest>,
    ) -> Result<(), String> {
        let now_ns = world.engine().now_ns();
        self.see_cores(world, now_ns);
        self.see_programs(world, now_ns);
        for (&id, &(since_ns, ..)) in &self.waits {
            let Some(&job) = world.present().get(&id) else {
                continue;
            };
            let mask = world.engine().mask_of(job);
            for (core, cpus) in self.cores.iter().enumerate() {
                let since_ns = since_ns.max(self.idle[core].0).max(self.disturbed_ns);
                let waited_ns = now_ns - since_ns;
                let kernel = mask.intersects(cpus) && !world.engine().is_split(job);
                let lending =
                    || plan.is_some_and(|plan| self.is_to_be_lent(plan, guests, id, cpus));
                let bound_ns = match kernel {
                    true => KERNEL_NS_MAX,
                    false => LENDING_NS_MAX,
                };
                if waited_ns > bound_ns && (kernel || !mask.intersects(cpus) && lending()) {
                    let seconds = waited_ns as f64 / 1e9;
                    let whose = if kernel { "which it may use, " } else { "" };
                    return Err(format!(
                        "program {id} waits on {mask} while {cpus}, {whose}has idled for {seconds:.3} s"
                    ));
                }
            }
        }
        Ok(())
    }

    fn see_cores(&mut self, world: &SimWorld, now_ns: u64) {
        let ledgers: BTreeMap<CpuId, (bool, u64)> = world
            .engine()
            .cpu_ledgers()
            .into_iter()
            .map(|cpu| (cpu.os, (cpu.online, cpu.busy_ns)))
            .collect();
        for (cpus, idle) in self.cores.iter().zip(&mut self.idle) {
            let here: Vec<_> = cpus.iter().filter_map(|cpu| ledgers.get(&cpu)).collect();
            let online = here.iter().all(|(online, _)| *online);
            let busy_ns = here.iter().map(|(_, busy_ns)| busy_ns).sum();
            if !online || busy_ns != idle.1 {
                *idle = (now_ns, busy_ns);
            }
        }
    }

    fn see_programs(&mut self, world: &SimWorld, now_ns: u64) {
        let mut waits = BTreeMap::new();
        for (&id, &job) in world.present() {
            let ledger = world.engine().ledger(job);
            let before = self.waits.get(&id);
            // Somebody waited nearly all the time between.
            let through = |&&(_, seen_ns, wait_ns): &&(u64, u64, u64)| {
                (ledger.wait_ns - wait_ns) as f64 >= WAITS_SHARE * (now_ns - seen_ns) as f64
            };
            let since_ns = before.filter(through).map(|&(since_ns, ..)| since_ns);
            waits.insert(id, (since_ns.unwrap_or(now_ns), now_ns, ledger.wait_ns));
        }
        self.waits = waits;
    }

    /// Whether a core ought to be lent to a program that waits. Left out is what
    /// the design does not lend, and to whom: programs that are, or may be,
    /// measured (they have no profile), that spin or settle, or are bound, or
    /// are not believed to gain; and the cores of such, or of somebody who
    /// waits himself or borrows.
    fn is_to_be_lent(
        &self,
        plan: &Plan,
        guests: &BTreeMap<ProgramId, Guest>,
        borrower: ProgramId,
        cpus: &CpuSet,
    ) -> bool {
        let seat = |id: ProgramId| plan.seats.iter().find(|seat| seat.program == id);
        let seated = seat(borrower).is_some_and(|seat| seat.mode == Mode::Seated);
        let borrows: BTreeSet<ProgramId> = plan.loans.iter().map(|loan| loan.borrower).collect();
        let lent = plan.loans.iter().any(|loan| loan.cpus.intersects(cpus));
        let mut owners = plan.seats.iter().filter(|seat| seat.cpus.intersects(cpus));
        let lends = owners.all(|seat| {
            let id = seat.program;
            seat.mode == Mode::Seated
                && guests[&id].arrival.profile.is_some()
                && self.waits.get(&id).is_none_or(|waits| waits.0 == waits.1)
                && !borrows.contains(&id)
        });
        !plan.abstains && seated && !lent && lends && gains(&guests[&borrower])
    }
}

/// Whether a program is believed, and rightly, to gain from every core more.
fn gains(guest: &Guest) -> bool {
    let arrival = &guest.arrival;
    let rises = arrival.profile.as_ref().is_some_and(|curve| {
        let rates = curve.points().iter().map(|point| point.rate);
        rates.is_sorted()
    });
    rises
        && !guest.script.settles
        && arrival.spinners == 0
        && arrival.bound_to.is_none()
        && matches!(guest.script.wait, crate::script::Wait::Block)
}
