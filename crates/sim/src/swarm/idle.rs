// SPDX-License-Identifier: MIT OR Apache-2.0
//! No core stays idle while somebody waits for one.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::{CpuId, CpuSet, Plan, ProgramId, SeatMode, Topology};

use crate::world::{Guest, SimWorld};

/// The kernel evens its queues out every 4 ms and whenever a CPU would idle.
const KERNEL_NS_MAX: u64 = 40_000_000;
/// A seat that is left idle is lent within: 100 ms to the next look, if nothing
/// was going on; two ticks of 8 ms that show who waits and who idles, two more
/// of a borrower that has just been content; at most 40 ms that an owner lends
/// nothing after it has taken its cores back. That is 172 ms at the worst.
const LENDING_NS_MAX: u64 = 200_000_000;

/// Who waits for this share of the time between two looks waits all the time.
const WAITS_SHARE: f64 = 0.8;

/// Since when each core has been idle and each program has waited.
#[derive(Debug)]
pub(super) struct Idle {
    /// CPUs of each core.
    cores: Vec<CpuSet>,
    /// By core: since when, and how busy its CPUs had been.
    idle: Vec<(u64, u64)>,
    waits: BTreeMap<ProgramId, Waits>,
    disturbed_ns: u64,
}

/// A program's waiting for CPUs.
#[derive(Debug)]
struct Waits {
    /// A thread of it has waited all the time since then; the time of the last
    /// look where it does not wait.
    since_ns: u64,
    seen_ns: u64,
    /// How long it had waited at the last look.
    wait_ns: u64,
    /// Where it may run, and since when.
    mask: CpuSet,
    moved_ns: u64,
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
        self.disturbed_ns = self.disturbed_ns.max(at_ns);
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
        for (&id, waits) in &self.waits {
            let split = world
                .present()
                .get(&id)
                .map(|&job| world.engine().is_split(job));
            for (core, cpus) in self.cores.iter().enumerate() {
                let since_ns = waits.since_ns.max(self.idle[core].0).max(self.disturbed_ns);
                // The kernel is to even out, or the policy to lend.
                let (whose, bound_ns, since_ns) = match waits.mask.intersects(cpus) {
                    true => (
                        Some("which it may use, "),
                        KERNEL_NS_MAX,
                        since_ns.max(waits.moved_ns),
                    ),
                    false => (None, LENDING_NS_MAX, since_ns),
                };
                let to_lend =
                    || plan.is_some_and(|plan| self.is_to_be_lent(plan, guests, id, cpus));
                let wrong = match whose {
                    Some(_) => split == Some(false),
                    None => now_ns.saturating_sub(since_ns) > bound_ns && to_lend(),
                };
                if wrong && now_ns.saturating_sub(since_ns) > bound_ns {
                    let seconds = (now_ns.saturating_sub(since_ns)) as f64 / 1e9;
                    return Err(format!(
                        "program {id} waits on {} while {cpus}, {}has idled for {seconds:.3} s",
                        waits.mask,
                        whose.unwrap_or_default()
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
            let through = |before: &&Waits| {
                let waited_ns = ledger.wait_ns - before.wait_ns;
                waited_ns as f64 >= WAITS_SHARE * (now_ns - before.seen_ns) as f64
            };
            let mask = world.engine().mask_of(job);
            let stays = before.filter(|before| before.mask == mask);
            let new = Waits {
                since_ns: before
                    .filter(through)
                    .map_or(now_ns, |before| before.since_ns),
                seen_ns: now_ns,
                wait_ns: ledger.wait_ns,
                moved_ns: stays.map_or(now_ns, |before| before.moved_ns),
                mask,
            };
            waits.insert(id, new);
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
        let seated = seat(borrower).is_some_and(|seat| seat.mode == SeatMode::Seated);
        let borrows: BTreeSet<ProgramId> = plan.loans.iter().map(|loan| loan.borrower).collect();
        let lent = plan.loans.iter().any(|loan| loan.cpus.intersects(cpus));
        let mut owners = plan.seats.iter().filter(|seat| seat.cpus.intersects(cpus));
        let lends = owners.all(|seat| {
            let id = seat.program;
            seat.mode == SeatMode::Seated
                && guests[&id].arrival.profile.is_some()
                && self
                    .waits
                    .get(&id)
                    .is_none_or(|waits| waits.since_ns == waits.seen_ns)
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
    rises && !guest.script.settles && arrival.spinners == 0 && arrival.bound_to.is_none()
}
