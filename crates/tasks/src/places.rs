// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where workers run, and whose caches are near.
//!
//! Tasks that run close in time share what they find in a cache that cores share,
//! so that workers are kept together: one after another they fill the cores of one
//! last-level cache (LLC), then those of the next in the same package, and only then
//! SMT siblings. A worker is bound to the CPUs of its LLC, not to one of them, and
//! the kernel chooses among these: it knows what else runs there.
//!
//! Nobody is bound where there is nothing to choose (one LLC), or where workers
//! outnumber CPUs.
//!
//! A program may have several runtimes: cores that the workers of one are meant for
//! count as taken when the next one is placed, which so begins with the LLC that has
//! most left. What a runtime may use is what the thread that makes it may, but for what
//! we have bound that thread to ourselves, where it is a worker.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::path::Path;

use usher_model::{CpuId, CpuSet, Topology};

use crate::llc::{self, Llc};
use crate::sync::StaticMutex;

/// Where the workers of a runtime run, and in which order they look at one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// By worker: its CPUs; `None`: it is not bound.
    cpus: Vec<Option<CpuSet>>,
    /// By worker: the others with how far they are, the nearest first.
    near: Vec<Vec<(usize, Distance)>>,
}

/// How far two workers are from one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// They share an LLC, as far as is known.
    Llc,
    /// They share a package.
    Package,
    /// They share the machine's memory.
    Machine,
}

impl Distance {
    /// The nearest first.
    pub const ALL: [Self; 3] = [Self::Llc, Self::Package, Self::Machine];
}

impl Places {
    /// So many workers, bound to nothing, all as near.
    pub fn anywhere(workers: usize) -> Self {
        Self::new(vec![None; workers], |_, _| Distance::Llc)
    }

    /// So many workers on that machine, from the LLC of CPU `home` on.
    ///
    /// ```
    /// # // A machine as data, of one package with two LLCs of two cores.
    /// use usher_tasks::Places;
    /// use usher_model::Topology;
    /// # fn of(topology: &Topology) {
    /// let places = Places::on(topology, 4, None);
    /// assert_eq!(places.workers(), 4);
    /// # }
    /// ```
    pub fn on(topology: &Topology, workers: usize, home: Option<CpuId>) -> Self {
        Self::on_llcs(&llc::of(topology), workers, home, &[])
    }

    /// `taken`: what workers of other runtimes are bound to.
    fn on_llcs(llcs: &[Llc], workers: usize, home: Option<CpuId>, taken: &[CpuSet]) -> Self {
        let cpus: usize = llcs.iter().map(|llc| llc.cpus.len()).sum();
        if llcs.len() < 2 || workers > cpus {
            return Self::anywhere(workers);
        }
        let of_worker = fill(llcs, workers, home, taken);
        let cpus = of_worker.iter().map(|&llc| Some(llcs[llc].cpus.clone()));
        Self::new(cpus.collect(), |one, other| {
            let (one, other) = (of_worker[one], of_worker[other]);
            match one == other {
                true => Distance::Llc,
                false if llcs[one].package == llcs[other].package => Distance::Package,
                false => Distance::Machine,
            }
        })
    }

    fn new(cpus: Vec<Option<CpuSet>>, distance: impl Fn(usize, usize) -> Distance) -> Self {
        let workers = cpus.len();
        let of = |worker: usize| {
            let others = (1..workers).map(|step| (worker + step) % workers);
            let mut near: Vec<_> = others
                .map(|other| (other, distance(worker, other)))
                .collect();
            // Among those as far each begins with another: they do not all ask the same.
            near.sort_by_key(|&(_, distance)| distance);
            near
        };
        let near = (0..workers).map(of).collect();
        Self { cpus, near }
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.cpus.len()
    }

    /// The CPUs that a worker is bound to; `None`: all that its process has.
    pub fn cpus(&self, worker: usize) -> Option<&CpuSet> {
        self.cpus[worker].as_ref()
    }

    /// The other workers, the nearest first.
    pub fn near(&self, worker: usize) -> &[(usize, Distance)] {
        &self.near[worker]
    }
}

/// Where workers of this process are bound, each runtime's.
static TAKEN: StaticMutex<Vec<CpuSet>> = StaticMutex::new(Vec::new());

/// What the workers of a runtime have taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Seats(Vec<CpuSet>);

impl Seats {
    /// Those of workers that are placed by somebody else.
    pub fn of(places: &Places) -> Self {
        Self::take(places, &mut TAKEN.lock())
    }

    fn take(places: &Places, taken: &mut Vec<CpuSet>) -> Self {
        let bound: Vec<CpuSet> = places.cpus.iter().flatten().cloned().collect();
        taken.extend(bound.iter().cloned());
        Self(bound)
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        let mut taken = TAKEN.lock();
        for seat in &self.0 {
            if let Some(at) = taken.iter().position(|one| one == seat) {
                taken.swap_remove(at);
            }
        }
    }
}

/// Places on this machine, as far as this thread may use it; anywhere, where that
/// cannot be told.
pub(crate) fn here(workers: usize) -> (Places, Seats) {
    let allowed = (workers > 1).then(allowed_cpus).flatten();
    let llcs = allowed.and_then(|cpus| llc::read(Path::new("/"), &cpus));
    let mut taken = TAKEN.lock();
    let places = Places::on_llcs(&llcs.unwrap_or_default(), workers, current_cpu(), &taken);
    let seats = Seats::take(&places, &mut taken);
    (places, seats)
}

thread_local! {
    /// What this thread could use before we bound it.
    static OUTER: RefCell<Option<CpuSet>> = const { RefCell::new(None) };
}

/// What this thread could use before we bound it; `None`: we have not.
pub(crate) fn outer() -> Option<CpuSet> {
    OUTER.with_borrow(Clone::clone)
}

fn allowed_cpus() -> Option<CpuSet> {
    outer().or_else(own_cpus)
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

/// Puts this thread, a new worker, where it belongs; `outer` is what the thread could
/// use that made its runtime, where that one was bound by us.
pub(crate) fn settle(cpus: Option<&CpuSet>, outer: Option<CpuSet>) {
    match (cpus, outer) {
        (Some(cpus), outer) => {
            OUTER.set(outer.or_else(own_cpus));
            go(cpus);
        }
        (None, Some(outer)) => go(&outer),
        (None, None) => {}
    }
}

fn current_cpu() -> Option<CpuId> {
    // SAFETY: takes and returns numbers. (rustix asks the vDSO for it itself, which
    // programs under valgrind do not have.)
    CpuId::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Binds this thread to those CPUs, as far as it may have them.
fn go(cpus: &CpuSet) {
    let mut mask = rustix::thread::CpuSet::new();
    let known = |&cpu: &CpuId| (cpu as usize) < rustix::thread::CpuSet::MAX_CPU;
    cpus.iter()
        .filter(known)
        .for_each(|cpu| mask.set(cpu as usize));
    // Somebody may have taken them from this process just now: then it runs where it
    // may.
    let _ = rustix::thread::sched_setaffinity(None, &mask);
}

/// The LLC of each worker.
fn fill(llcs: &[Llc], workers: usize, home: Option<CpuId>, taken: &[CpuSet]) -> Vec<usize> {
    let free: Vec<usize> = llcs.iter().map(|llc| free_cores(llc, taken)).collect();
    let order = order(llcs, &free, home);
    let times = |count: &dyn Fn(usize) -> usize| -> Vec<usize> {
        let of = |&llc: &usize| std::iter::repeat_n(llc, count(llc));
        order.iter().flat_map(of).collect()
    };
    // Each core that is free before any that another runtime has, each of these before
    // any is given out a second time.
    let by_core = times(&|llc| free[llc]);
    let taken = times(&|llc| llcs[llc].cores - free[llc]);
    let siblings = times(&|llc| llcs[llc].cpus.len().saturating_sub(llcs[llc].cores));
    let all = by_core.into_iter().chain(taken).chain(siblings);
    let mut of_worker: Vec<usize> = all.take(workers).collect();
    of_worker.sort_by_key(|llc| order.iter().position(|other| other == llc));
    of_worker
}

/// Cores that no worker of another runtime is meant for.
fn free_cores(llc: &Llc, taken: &[CpuSet]) -> usize {
    let there = taken.iter().filter(|cpus| cpus.intersects(&llc.cpus));
    llc.cores.saturating_sub(there.count())
}

/// LLCs as they are filled: that with most cores free, which is that of `home` where
/// others have no more; others of its package, the rest.
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
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&llc| (llcs[llc].package != package, (llc + count - first) % count));
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

    /// The LLC that each worker is bound to.
    fn domains(topology: &Topology, places: &Places) -> Vec<Option<DomainId>> {
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
            let places = Places::on(&machine, workers, home);
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
    fn several_runtimes_spread() {
        let machine = machine("package:2 l3:2 core:2 pu:2");
        let llcs = llc::of(&machine);
        let mut taken: Vec<CpuSet> = Vec::new();
        let mut sit = |workers| {
            let places = Places::on_llcs(&llcs, workers, None, &taken);
            taken.extend(places.cpus.iter().flatten().cloned());
            let of = domains(&machine, &places);
            of.into_iter().flatten().collect::<Vec<DomainId>>()
        };
        assert_eq!(sit(2), [0, 0]);
        assert_eq!(sit(3), [1, 1, 2], "LLC 0 is full");
        assert_eq!(sit(2), [3, 3]);
        assert_eq!(sit(2), [2, 2], "a core is free there, and then nowhere");
        assert_eq!(sit(2), [0, 0], "all are full");
    }

    #[test]
    fn seats_are_given_back() {
        let machine = machine("package:2 l3:2 core:2 pu:2");
        let places = Places::on(&machine, 3, None);
        let seat = places.cpus(0).unwrap();
        let count = || TAKEN.lock().iter().filter(|one| *one == seat).count();
        let before = count();
        let seats = Seats::of(&places);
        assert_eq!(count(), before + 2);
        drop(seats);
        assert_eq!(count(), before);
    }

    #[test]
    fn what_a_worker_is_bound_to_does_not_bind_its_runtimes() {
        let all = own_cpus().unwrap();
        let one = CpuSet::single(all.first().unwrap());
        let bound = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                settle(Some(&one), None);
                let inner = std::thread::scope(|scope| {
                    let outer = outer();
                    let of_one = scope.spawn(|| {
                        settle(None, outer);
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
    fn who_shares_more_is_nearer() {
        let machine = machine("package:2 l3:2 core:2 pu:1");
        let places = Places::on(&machine, 8, None);
        let near: Vec<_> = places
            .near(3)
            .iter()
            .map(|&(other, distance)| (other, distance))
            .collect();
        use Distance::{Llc, Machine, Package};
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
    fn nobody_is_bound_where_it_would_not_help() {
        for (synthetic, workers) in [("core:4 pu:1", 2), ("l3:2 core:2 pu:1", 5)] {
            let places = Places::on(&machine(synthetic), workers, None);
            assert!((0..workers).all(|worker| places.cpus(worker).is_none()));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn everybody_looks_at_everybody_else(
            packages in 1..3_usize, llcs in 1..4_usize, cores in 1..4_usize, pus in 1..3_usize,
            workers in 1..30_usize, home in 0..40_u32,
        ) {
            let synthetic = format!("package:{packages} l3:{llcs} core:{cores} pu:{pus}");
            let places = Places::on(&machine(&synthetic), workers, Some(home));
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
