// SPDX-License-Identifier: MIT OR Apache-2.0
//! Placement of workers, by the caches that they share.
//!
//! Tasks that run close in time are faster if their cores share a cache. Workers are therefore
//! assigned to CPUs as follows:
//!
//! 1. One worker per core, beginning with the cores of one last-level cache (LLC), then of the next
//!    LLC in the same package, then of other packages.
//! 2. If there are more workers than cores, one more worker per SMT sibling, in the same order.
//! 3. Each worker is bound to all CPUs of its LLC. The kernel chooses among these CPUs, because the
//!    kernel knows the load of other programs.
//!
//! Workers are not bound if the machine has only one LLC, if there are more workers than CPUs, or
//! if the kernel does not report caches.
//!
//! A program may have several runtimes. The cores that were assigned to the workers of one runtime
//! count as taken during the placement of the next runtime. That placement begins with an LLC
//! without taken cores if there is such an LLC. A runtime uses the CPUs that are allowed for the
//! thread that creates it. If that thread is itself a bound worker, the runtime uses the CPUs that
//! were allowed for the thread before it was bound.
//!
//! For w workers, the placement takes O(w^2) time and memory, because each worker has
//! a list of the others. A thread that cannot be bound runs on the CPUs that are allowed; this is
//! no error.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::path::Path;

use usher_model::{CpuId, CpuSet, Topology};

use crate::llc::{self, Llc};
use crate::sync::StaticMutex;

/// The CPUs on which each worker of a runtime may run, and the order in which each worker searches
/// the other workers for tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPlaces {
    /// The CPUs to which each worker is bound, by worker; `None` if the worker is not bound.
    cpus: Vec<Option<CpuSet>>,
    /// For each worker, the other workers with their distances from it, the nearest first.
    near: Vec<Vec<(usize, WorkerDistance)>>,
}

/// The distance of two workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerDistance {
    /// The workers share an LLC, or their caches are unknown.
    Llc,
    /// The workers share a package, but no LLC.
    Package,
    /// The workers share only the machine's memory.
    Machine,
}

impl WorkerDistance {
    /// All distances, the nearest first.
    pub const ALL: [Self; 3] = [Self::Llc, Self::Package, Self::Machine];
}

impl WorkerPlaces {
    /// Returns places of unbound workers that all have the same distance from one another.
    pub fn anywhere(workers: usize) -> Self {
        Self::new(vec![None; workers], |_, _| WorkerDistance::Llc)
    }

    /// Places `workers` workers on the machine that `topology` describes, beginning with the LLC of
    /// CPU `home`.
    ///
    /// ```
    /// # // A machine as data, of one package with two LLCs of two cores.
    /// use usher_tasks::WorkerPlaces;
    /// use usher_model::Topology;
    /// # fn of(topology: &Topology) {
    /// let places = WorkerPlaces::on(topology, 4, None);
    /// assert_eq!(places.workers(), 4);
    /// # }
    /// ```
    pub fn on(topology: &Topology, workers: usize, home: Option<CpuId>) -> Self {
        Self::on_llcs(&llc::of(topology), workers, home, &[])
    }

    /// Places workers on the LLCs. `taken` holds the CPU sets of workers of other runtimes.
    fn on_llcs(llcs: &[Llc], workers: usize, home: Option<CpuId>, taken: &[CpuSet]) -> Self {
        let cpus: usize = llcs.iter().map(|llc| llc.cpus.len()).sum();
        if llcs.len() < 2 || workers > cpus {
            return Self::anywhere(workers);
        }
        let of_worker = assign_llcs(llcs, workers, home, taken);
        let cpus = of_worker.iter().map(|&llc| Some(llcs[llc].cpus.clone()));
        Self::new(cpus.collect(), |one, other| {
            let (one, other) = (of_worker[one], of_worker[other]);
            match one == other {
                true => WorkerDistance::Llc,
                false if llcs[one].package == llcs[other].package => WorkerDistance::Package,
                false => WorkerDistance::Machine,
            }
        })
    }

    fn new(cpus: Vec<Option<CpuSet>>, distance: impl Fn(usize, usize) -> WorkerDistance) -> Self {
        let workers = cpus.len();
        let of = |worker: usize| {
            // At equal distance, the list of each worker begins with a different other worker, so
            // that idle workers do not all try the same worker first.
            let others = (1..workers).map(|step| (worker + step) % workers);
            let others = others.map(|other| (other, distance(worker, other)));
            let mut near = Vec::with_capacity(workers);
            for wanted in WorkerDistance::ALL {
                near.extend(others.clone().filter(|&(_, distance)| distance == wanted));
            }
            near
        };
        let near = (0..workers).map(of).collect();
        Self { cpus, near }
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.cpus.len()
    }

    /// Returns the CPUs to which a worker is bound; `None` if the worker may run on all CPUs of the
    /// process.
    pub fn cpus(&self, worker: usize) -> Option<&CpuSet> {
        self.cpus[worker].as_ref()
    }

    /// Returns the other workers with their distances from `worker`, the nearest first.
    pub fn near(&self, worker: usize) -> &[(usize, WorkerDistance)] {
        &self.near[worker]
    }
}

/// The CPU sets of the bound workers of all runtimes of this process.
static CLAIMED_CPUS: StaticMutex<Vec<CpuSet>> = StaticMutex::new(Vec::new());

/// The CPU sets of one runtime in [`CLAIMED_CPUS`]. Dropping this value removes them.
#[derive(Debug)]
pub(crate) struct CpuClaim(Vec<CpuSet>);

impl CpuClaim {
    /// Adds the CPU sets of the bound workers in `places` to [`CLAIMED_CPUS`].
    pub fn of(places: &WorkerPlaces) -> Self {
        Self::take(places, &mut CLAIMED_CPUS.lock())
    }

    fn take(places: &WorkerPlaces, taken: &mut Vec<CpuSet>) -> Self {
        let bound: Vec<CpuSet> = places.cpus.iter().flatten().cloned().collect();
        taken.extend(bound.iter().cloned());
        Self(bound)
    }
}

impl Drop for CpuClaim {
    fn drop(&mut self) {
        let mut taken = CLAIMED_CPUS.lock();
        for claimed in &self.0 {
            if let Some(at) = taken.iter().position(|one| one == claimed) {
                taken.swap_remove(at);
            }
        }
    }
}

/// Places workers on the CPUs that are allowed for the calling thread. Workers are not bound if the
/// kernel does not report the caches.
pub(crate) fn on_this_machine(workers: usize) -> (WorkerPlaces, CpuClaim) {
    let allowed = (workers > 1).then(allowed_cpus).flatten();
    let llcs = allowed.and_then(|cpus| llc::read(Path::new("/"), &cpus));
    let mut taken = CLAIMED_CPUS.lock();
    let places = WorkerPlaces::on_llcs(&llcs.unwrap_or_default(), workers, current_cpu(), &taken);
    let claim = CpuClaim::take(&places, &mut taken);
    (places, claim)
}

thread_local! {
    /// The CPUs allowed for this thread before it was bound as a worker; `None` if it is not bound.
    static UNBOUND_CPUS: RefCell<Option<CpuSet>> = const { RefCell::new(None) };
}

/// Returns the CPUs allowed for this thread before it was bound as a worker; `None` if it was not
/// bound.
pub(crate) fn unbound_cpus() -> Option<CpuSet> {
    UNBOUND_CPUS.with_borrow(Clone::clone)
}

fn allowed_cpus() -> Option<CpuSet> {
    unbound_cpus().or_else(own_cpus)
}

fn own_cpus() -> Option<CpuSet> {
    let mask = rustix::thread::sched_getaffinity(None).ok()?;
    let all = 0..rustix::thread::CpuSet::MAX_CPU;
    Some(
        all.filter(|&cpu| mask.is_set(cpu))
            .map(|cpu| cpu as CpuId)
            .collect(),
    )
}

/// Binds the calling thread, a new worker, to `cpus`. If the creator of the runtime is itself a
/// bound worker, `unbound` contains the CPUs that were allowed for the creator before it was bound.
pub(crate) fn bind_worker(cpus: Option<&CpuSet>, unbound: Option<CpuSet>) {
    match (cpus, unbound) {
        (Some(cpus), unbound) => {
            UNBOUND_CPUS.set(unbound.or_else(own_cpus));
            bind(cpus);
        }
        (None, Some(unbound)) => bind(&unbound),
        (None, None) => {}
    }
}

fn current_cpu() -> Option<CpuId> {
    // SAFETY: `sched_getcpu` takes no arguments and returns a number. The call is not made by
    // rustix, which would use the vDSO: programs under valgrind have none.
    CpuId::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Binds the calling thread to the intersection of `cpus` and the allowed CPUs.
fn bind(cpus: &CpuSet) {
    let mut mask = rustix::thread::CpuSet::new();
    let known = |&cpu: &CpuId| (cpu as usize) < rustix::thread::CpuSet::MAX_CPU;
    cpus.iter()
        .filter(known)
        .for_each(|cpu| mask.set(cpu as usize));
    // The call fails if the kernel has removed all CPUs in `mask` from this process meanwhile. The
    // worker then runs on the CPUs that are allowed.
    let _ = rustix::thread::sched_setaffinity(None, &mask);
}

/// Returns the LLC of each worker.
fn assign_llcs(llcs: &[Llc], workers: usize, home: Option<CpuId>, taken: &[CpuSet]) -> Vec<usize> {
    let free: Vec<usize> = llcs.iter().map(|llc| free_cores(llc, taken)).collect();
    let order = order(llcs, &free, home);
    let times = |count: &dyn Fn(usize) -> usize| -> Vec<usize> {
        let of = |&llc: &usize| std::iter::repeat_n(llc, count(llc));
        order.iter().flat_map(of).collect()
    };
    // Workers get the free cores first, then the cores taken by other runtimes, then the further
    // hardware threads of all cores.
    let by_core = times(&|llc| free[llc]);
    let taken = times(&|llc| llcs[llc].cores - free[llc]);
    let siblings = times(&|llc| llcs[llc].cpus.len().saturating_sub(llcs[llc].cores));
    let all = by_core.into_iter().chain(taken).chain(siblings);
    let of_workers: Vec<usize> = all.take(workers).collect();
    let count = |llc: usize| of_workers.iter().filter(|&&other| other == llc).count();
    times(&count)
}

/// Returns the number of cores of an LLC that are not assigned to workers of other runtimes.
fn free_cores(llc: &Llc, taken: &[CpuSet]) -> usize {
    let there = taken.iter().filter(|cpus| cpus.intersects(&llc.cpus));
    llc.cores.saturating_sub(there.count())
}

/// Returns the LLCs in the order in which workers are assigned to them. The first LLC is the LLC of
/// `home`. If another runtime has taken cores of that LLC, the first LLC is instead an LLC without
/// taken cores, or else the LLC with most free cores. The other LLCs of the same package follow,
/// then the LLCs of other packages.
fn order(llcs: &[Llc], free: &[usize], home: Option<CpuId>) -> Vec<usize> {
    let count = llcs.len();
    let at_home = |llc: &Llc| home.is_some_and(|cpu| llc.cpus.contains(cpu));
    let home = llcs.iter().position(at_home).unwrap_or(0);
    let from_home = |llc: usize| (llc + count - home) % count;
    let is_full = |llc: usize| free[llc] < llcs[llc].cores;
    let by_room = (0..count).min_by_key(|&llc| (is_full(llc), Reverse(free[llc]), from_home(llc)));
    let first = match is_full(home) {
        true => by_room.unwrap_or(home),
        false => home,
    };
    let package = llcs[first].package;
    let from_first = (0..count).map(|step| (first + step) % count);
    let (mut order, others): (Vec<usize>, Vec<usize>) =
        from_first.partition(|&llc| llcs[llc].package == package);
    order.extend(others);
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use usher_model::DomainId;
    use usher_topology::{Source, load};

    use super::*;

    fn machine(synthetic: &str) -> Topology {
        load(Source::parse(synthetic).unwrap()).unwrap()
    }

    /// Returns the LLC domain that each worker is bound to.
    fn domains(topology: &Topology, places: &WorkerPlaces) -> Vec<Option<DomainId>> {
        let of = |worker| {
            let cpus = places.cpus(worker)?;
            topology
                .domains
                .iter()
                .position(|domain| domain.cpus == *cpus)
        };
        (0..places.workers()).map(of).collect()
    }

    #[test]
    fn an_llc_is_filled_before_the_next_and_cores_before_siblings() {
        let machine = machine("package:2 l3:2 core:2 pu:2");
        let on = |workers, home| {
            let places = WorkerPlaces::on(&machine, workers, home);
            let of = domains(&machine, &places);
            of.into_iter()
                .map(|domain| domain.unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(on(2, None), [0, 0]);
        assert_eq!(on(3, None), [0, 0, 1]);
        assert_eq!(on(8, None), [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(on(9, None), [0, 0, 0, 1, 1, 2, 2, 3, 3]);
        let of_last = machine.domains[3].cpus.first();
        assert_eq!(on(5, of_last), [3, 3, 2, 2, 0]);
    }

    #[test]
    fn several_runtimes_use_different_llcs() {
        let machine = machine("package:2 l3:2 core:2 pu:2");
        let llcs = llc::of(&machine);
        let mut taken: Vec<CpuSet> = Vec::new();
        let mut place = |workers| {
            let places = WorkerPlaces::on_llcs(&llcs, workers, None, &taken);
            taken.extend(places.cpus.iter().flatten().cloned());
            let of = domains(&machine, &places);
            of.into_iter().flatten().collect::<Vec<DomainId>>()
        };
        assert_eq!(place(2), [0, 0]);
        assert_eq!(place(3), [1, 1, 2], "LLC 0 is full");
        assert_eq!(place(2), [3, 3]);
        assert_eq!(place(2), [2, 2], "a core is free there, and then nowhere");
        assert_eq!(place(2), [0, 0], "all are full");
    }

    #[test]
    fn claims_are_released() {
        let machine = machine("package:2 l3:2 core:2 pu:2");
        let places = WorkerPlaces::on(&machine, 3, None);
        let claimed = places.cpus(0).unwrap();
        let count = || {
            CLAIMED_CPUS
                .lock()
                .iter()
                .filter(|cpus| *cpus == claimed)
                .count()
        };
        let before = count();
        let claim = CpuClaim::of(&places);
        assert_eq!(count(), before + 2);
        drop(claim);
        assert_eq!(count(), before);
    }

    #[test]
    fn a_runtime_made_by_a_worker_may_use_all_cpus() {
        let all = own_cpus().unwrap();
        let one = CpuSet::single(all.first().unwrap());
        let bound = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                bind_worker(Some(&one), None);
                let inner = std::thread::scope(|scope| {
                    let unbound = unbound_cpus();
                    let of_one = scope.spawn(|| {
                        bind_worker(None, unbound);
                        own_cpus()
                    });
                    of_one.join().unwrap()
                });
                (own_cpus(), allowed_cpus(), inner)
            });
            thread.join().unwrap()
        });
        assert_eq!(bound, (Some(one), Some(all.clone()), Some(all)));
    }

    #[test]
    fn workers_that_share_more_are_nearer() {
        let machine = machine("package:2 l3:2 core:2 pu:1");
        let places = WorkerPlaces::on(&machine, 8, None);
        let near: Vec<_> = places
            .near(3)
            .iter()
            .map(|&(other, distance)| (other, distance))
            .collect();
        use WorkerDistance::{Llc, Machine, Package};
        let expected = [
            (2, Llc),
            (0, Package),
            (1, Package),
            (4, Machine),
            (5, Machine),
            (6, Machine),
            (7, Machine),
        ];
        assert_eq!(near, expected);
    }

    #[test]
    fn workers_are_not_bound_without_a_choice() {
        for (synthetic, workers) in [("core:4 pu:1", 2), ("l3:2 core:2 pu:1", 5)] {
            let places = WorkerPlaces::on(&machine(synthetic), workers, None);
            assert!((0..workers).all(|worker| places.cpus(worker).is_none()));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_worker_searches_all_others(
            packages in 1..3_usize, llcs in 1..4_usize, cores in 1..4_usize, pus in 1..3_usize,
            workers in 1..30_usize, home in 0..40_u32,
        ) {
            let synthetic = format!("package:{packages} l3:{llcs} core:{cores} pu:{pus}");
            let places = WorkerPlaces::on(&machine(&synthetic), workers, Some(home));
            prop_assert_eq!(places.workers(), workers);
            for worker in 0..workers {
                let mut others: Vec<usize> = places.near(worker).iter().map(|&(other, _)| other).collect();
                others.push(worker);
                others.sort_unstable();
                prop_assert_eq!(others, (0..workers).collect::<Vec<_>>());
                prop_assert!(places.near(worker).is_sorted_by_key(|&(_, distance)| distance));
            }
        }
    }
}
