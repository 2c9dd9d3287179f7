// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lending: an idle core of a seat goes to a program with waiting threads, and returns to its owner
//! when the owner needs it.
//!
//! Each *tick* compares two samples of every seated program:
//!
//! - *busy*: the CPU time used, divided by the length of the tick. If whole cores of a seat stay
//!   unused for `IDLE_TICKS` successive ticks, the owner can lend these cores. The owner's own
//!   affinity mask is never narrowed: a thread of the owner that wakes may run on a lent core at
//!   once, beside the borrower.
//! - *wait*: the share of the tick during which a runnable thread of the program had no CPU (PSI's
//!   `some`). A program borrows if it waits, has more threads than CPUs, and is not known to slow
//!   down with more cores. An owner that waits while its cores are lent gets all of them back in
//!   the same tick.
//!
//! After such a recall, the owner lends nothing for a *hold* of `HOLD_NS_MIN`. The hold doubles
//! with each recall that follows within 400 ms after the end of a hold, from 10 ms up to
//! `HOLD_NS_MAX` (40 ms). Without the hold, cores would be lent and recalled all the time when a
//! program alternates between sleeping and running.
//!
//! Cores outside all seats are lent in the same way and need no recall. A borrower returns its
//! cores when it has not waited for `IDLE_TICKS` successive ticks.
//!
//! *Bounds.* The owner's need is found at the next tick: after [`TICK_NS`] (8 ms) while cores are
//! lent, if the caller keeps that interval. Only whole cores are lent, and each to a single
//! borrower; the number of loans is not limited otherwise. A tick takes quadratic time in the
//! number of programs. Each core that a tick lends adds time in proportion to the number of
//! lendable cores.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::{CoreId, CpuSet, Loan, ProgramId, ProgramSample, Topology};

/// Tick length while cores are lent or may soon be lent.
pub const TICK_NS: u64 = 8_000_000;
/// Number of successive idle ticks after which an owner lends.
const IDLE_TICKS: u32 = 2;
/// Use in CPUs that is neglected when the used cores of a seat are counted: 1.15 busy CPUs count as
/// one core.
const IDLE_SHARE: f64 = 0.15;
/// Wait share above which an owner gets its cores back.
pub(super) const RECALL_WAIT: f64 = 0.10;
/// Wait share above which a program borrows.
const BORROW_WAIT: f64 = 0.25;
/// Length of the first hold after a recall, and greatest length of a hold.
const HOLD_NS_MIN: u64 = 10_000_000;
const HOLD_NS_MAX: u64 = 40_000_000;

/// Input of the lender: the present seats and predicates on their owners.
pub struct LendingContext<'a> {
    /// The machine.
    pub topology: &'a Topology,
    /// Seats by owner; programs with the same seat lend its cores together.
    pub seats: &'a BTreeMap<ProgramId, CpuSet>,
    /// `gains(program, from, to)`: whether the program is expected to be faster on `to` cores than
    /// on `from` cores.
    pub gains: &'a dyn Fn(ProgramId, f64, f64) -> bool,
    /// Whether a program may lend; false while it is measured on its seat.
    pub lends: &'a dyn Fn(ProgramId) -> bool,
}

impl LendingContext<'_> {
    /// All programs with the same seat as `owner`, including `owner`.
    fn same_seat(&self, owner: ProgramId) -> Vec<ProgramId> {
        let Some(seat) = self.seats.get(&owner) else {
            return Vec::new();
        };
        let same = self.seats.iter().filter(|&(_, other)| other == seat);
        same.map(|(&id, _)| id).collect()
    }
}

/// Cores of which all hardware threads are in `cpus`. Other cores cannot be lent, because another
/// program is bound to one of their hardware threads.
fn whole_cores(topology: &Topology, cpus: &CpuSet) -> Vec<CoreId> {
    let mut cores = topology.cores_in(cpus);
    cores.retain(|&core| topology.cores[core].cpus.is_subset(cpus));
    cores
}

/// Number of whole cores that `busy_cpus` leave unused.
fn unused_cores(cores: usize, busy_cpus: f64) -> usize {
    let used = (busy_cpus - IDLE_SHARE).max(0.0).ceil() as usize;
    cores.saturating_sub(used)
}

/// Manages the loans.
#[derive(Debug, Clone, Default)]
pub struct Lender {
    usages: BTreeMap<ProgramId, UsageSample>,
    /// The lent cores, each with its owner (`None` for a core outside all seats) and its borrower.
    lent: BTreeMap<CoreId, (Option<ProgramId>, ProgramId)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct UsageSample {
    /// Whether there is an earlier sample to compare with.
    known: bool,
    at_ns: u64,
    cpu_ns: u64,
    wait_ns: u64,
    threads: u32,
    busy_cpus: f64,
    wait_share: f64,
    idle_ticks: u32,
    satisfied_ticks: u32,
    hold_until_ns: u64,
    hold_ns: u64,
}

impl Lender {
    /// Ends all loans, and forgets all samples and holds, for example when seats change.
    pub fn recall_all(&mut self) {
        self.lent.clear();
        self.usages.clear();
    }

    /// Processes samples and moves cores; returns whether a loan began or ended.
    pub fn tick(&mut self, at_ns: u64, samples: &[ProgramSample], ctx: &LendingContext) -> bool {
        let before = self.lent.clone();
        for sample in samples
            .iter()
            .filter(|sample| ctx.seats.contains_key(&sample.id))
        {
            let cores = ctx.topology.cores_in(&ctx.seats[&sample.id]).len();
            self.usages
                .entry(sample.id)
                .or_default()
                .read(at_ns, sample, cores);
        }
        self.usages.retain(|id, _| ctx.seats.contains_key(id));
        self.end_loans(at_ns, ctx);
        self.start_loans(at_ns, ctx);
        self.lent != before
    }

    /// The present loans.
    pub fn loans(&self, topology: &Topology) -> Vec<Loan> {
        let mut by_pair: BTreeMap<_, CpuSet> = BTreeMap::new();
        for (&core, &pair) in &self.lent {
            let cpus = by_pair.entry(pair).or_default();
            *cpus = cpus.or(&topology.cores[core].cpus);
        }
        by_pair
            .into_iter()
            .map(|((owner, borrower), cpus)| Loan {
                owner,
                borrower,
                cpus,
            })
            .collect()
    }

    /// Whether short ticks are worth their cost: cores are lent, or a program waits.
    pub fn needs_short_ticks(&self) -> bool {
        let waits = |usage: &UsageSample| usage.wait_share > BORROW_WAIT;
        !self.lent.is_empty() || self.usages.values().any(waits)
    }

    /// Whether any program used a CPU in the last tick.
    pub fn is_busy(&self) -> bool {
        self.usages.values().any(|usage| usage.busy_cpus > 0.01)
    }

    fn end_loans(&mut self, at_ns: u64, ctx: &LendingContext) {
        let owners: BTreeSet<_> = self.lent.values().filter_map(|&(owner, _)| owner).collect();
        for owner in owners {
            let same_seat = ctx.same_seat(owner);
            let waits = |id| {
                self.usages
                    .get(id)
                    .is_none_or(|a| a.wait_share > RECALL_WAIT)
            };
            if same_seat.is_empty() || same_seat.iter().any(waits) {
                for id in &same_seat {
                    self.usages.entry(*id).or_default().recall(at_ns);
                }
                self.lent.retain(|_, &mut (o, _)| o != Some(owner));
            }
        }
        let usages = &self.usages;
        self.lent.retain(|_, &mut (_, borrower)| {
            let seated = ctx.seats.contains_key(&borrower);
            seated
                && usages
                    .get(&borrower)
                    .is_some_and(|usage| usage.satisfied_ticks < IDLE_TICKS)
        });
    }

    fn start_loans(&mut self, at_ns: u64, ctx: &LendingContext) {
        let mut supply = self.supply(at_ns, ctx);
        // In each round, every waiting program borrows the nearest core. Within a round, the
        // program with the largest wait share comes first.
        let mut waiting: Vec<_> = self
            .usages
            .iter()
            .filter(|(_, usage)| usage.wait_share > BORROW_WAIT)
            .map(|(&id, _)| id)
            .collect();
        waiting.sort_by(|a, b| {
            self.usages[b]
                .wait_share
                .total_cmp(&self.usages[a].wait_share)
                .then(a.cmp(b))
        });
        while !supply.is_empty() && !waiting.is_empty() {
            waiting.retain(|&borrower| {
                let Some(core) = self.match_core(borrower, &supply, ctx) else {
                    return false;
                };
                let Some(owner) = supply.remove(&core) else {
                    return false;
                };
                self.lent.insert(core, (owner, borrower));
                true
            });
        }
    }

    /// The most suitable core for a borrower; `None` if the borrower cannot use another core.
    fn match_core(
        &self,
        borrower: ProgramId,
        supply: &BTreeMap<CoreId, Option<ProgramId>>,
        ctx: &LendingContext,
    ) -> Option<CoreId> {
        let seat = ctx.seats.get(&borrower)?;
        let borrowed = ctx.topology.cpus_of_cores(
            self.lent
                .iter()
                .filter(|(_, pair)| pair.1 == borrower)
                .map(|(&core, _)| core),
        );
        let held = seat.or(&borrowed);
        let usage = self.usages.get(&borrower)?;
        let now = ctx.topology.capacity_of(&held);
        if usage.threads as usize <= held.len() {
            return None;
        }
        let near = ctx.topology.domains_in(seat);
        let core = supply
            .iter()
            .filter(|&(_, &owner)| owner != Some(borrower))
            .map(|(&core, _)| core)
            .min_by_key(|&core| (!near.contains(&ctx.topology.cores[core].domain), core))?;
        (ctx.gains)(borrower, now, now + ctx.topology.cores[core].capacity).then_some(core)
    }

    /// Cores that can be lent: cores outside all seats, and cores that their owners leave idle.
    fn supply(&self, at_ns: u64, ctx: &LendingContext) -> BTreeMap<CoreId, Option<ProgramId>> {
        let owned = ctx
            .seats
            .values()
            .fold(CpuSet::new(), |all, seat| all.or(seat));
        let free = ctx.topology.all_cpus().minus(&owned);
        let mut supply: BTreeMap<_, _> = whole_cores(ctx.topology, &free)
            .into_iter()
            .map(|core| (core, None))
            .collect();
        for (&owner, seat) in ctx.seats {
            let same_seat = ctx.same_seat(owner);
            if same_seat.first() != Some(&owner) {
                continue;
            }
            let usages: Option<Vec<_>> = same_seat.iter().map(|id| self.usages.get(id)).collect();
            let Some(usages) = usages else { continue };
            if !same_seat.iter().all(|&id| (ctx.lends)(id)) {
                continue;
            }
            let is_idle = |a: &&UsageSample| a.idle_ticks >= IDLE_TICKS && at_ns >= a.hold_until_ns;
            let borrows = self
                .lent
                .values()
                .any(|(_, borrower)| same_seat.contains(borrower));
            if borrows || !usages.iter().all(is_idle) {
                continue;
            }
            let whole = whole_cores(ctx.topology, seat);
            let busy_cpus = usages.iter().map(|usage| usage.busy_cpus).sum();
            let unused = unused_cores(whole.len(), busy_cpus);
            supply.extend(
                whole
                    .into_iter()
                    .rev()
                    .take(unused)
                    .map(|core| (core, Some(owner))),
            );
        }
        supply.retain(|core, _| !self.lent.contains_key(core));
        supply
    }
}

impl UsageSample {
    /// Processes a sample; `cores` is the number of cores of the program's seat.
    fn read(&mut self, at_ns: u64, sample: &ProgramSample, cores: usize) {
        let wait_ns = sample.wait_ns.unwrap_or(0);
        let elapsed_ns = at_ns.saturating_sub(self.at_ns);
        if self.known && elapsed_ns > 0 {
            self.busy_cpus = sample.cpu_ns.saturating_sub(self.cpu_ns) as f64 / elapsed_ns as f64;
            self.wait_share = wait_ns.saturating_sub(self.wait_ns) as f64 / elapsed_ns as f64;
            // A program without a wait figure counts as waiting, because a later need of its lent
            // cores could not be detected.
            let waits = sample.wait_ns.is_none() || self.wait_share > RECALL_WAIT;
            let idle = !waits && unused_cores(cores, self.busy_cpus) > 0;
            self.idle_ticks = if idle { self.idle_ticks + 1 } else { 0 };
            let content = !waits && self.busy_cpus < cores as f64;
            self.satisfied_ticks = if content { self.satisfied_ticks + 1 } else { 0 };
        }
        self.known = true;
        (self.at_ns, self.cpu_ns, self.wait_ns, self.threads) =
            (at_ns, sample.cpu_ns, wait_ns, sample.threads);
    }

    fn recall(&mut self, at_ns: u64) {
        let again_soon = at_ns < self.hold_until_ns + 10 * HOLD_NS_MAX;
        self.hold_ns = if again_soon {
            (2 * self.hold_ns).clamp(HOLD_NS_MIN, HOLD_NS_MAX)
        } else {
            HOLD_NS_MIN
        };
        self.hold_until_ns = at_ns + self.hold_ns;
        self.idle_ticks = 0;
    }
}
