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

use std::path::Path;

use usher_model::{CpuId, CpuSet, Topology};

use crate::llc::{self, Llc};

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
        Self::on_llcs(&llc::of(topology), workers, home)
    }

    fn on_llcs(llcs: &[Llc], workers: usize, home: Option<CpuId>) -> Self {
        let cpus: usize = llcs.iter().map(|llc| llc.cpus.len()).sum();
        if llcs.len() < 2 || workers > cpus {
            return Self::anywhere(workers);
        }
        let of_worker = fill(llcs, workers, home);
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

/// Places on this machine, as far as this thread may use it; anywhere, where that
/// cannot be told.
pub(crate) fn here(workers: usize) -> Places {
    let allowed = (workers > 1).then(allowed_cpus).flatten();
    let llcs = allowed.and_then(|cpus| llc::read(Path::new("/"), &cpus));
    Places::on_llcs(&llcs.unwrap_or_default(), workers, current_cpu())
}

fn allowed_cpus() -> Option<CpuSet> {
    let mask = rustix::thread::sched_getaffinity(None).ok()?;
    let all = 0..rustix::thread::CpuSet::MAX_CPU;
    Some(
        all.filter(|&cpu| mask.is_set(cpu))
            .map(|cpu| cpu as CpuId)
            .collect(),
    )
}

fn current_cpu() -> Option<CpuId> {
    // SAFETY: takes and returns numbers. (rustix asks the vDSO for it itself, which
    // programs under valgrind do not have.)
    CpuId::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Binds this thread to those CPUs, as far as it may have them.
pub(crate) fn go(cpus: &CpuSet) {
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
fn fill(llcs: &[Llc], workers: usize, home: Option<CpuId>) -> Vec<usize> {
    let order = order(llcs, home);
    let times = |count: fn(&Llc) -> usize| {
        let of = move |&llc: &usize| std::iter::repeat_n(llc, count(&llcs[llc]));
        order.iter().flat_map(of)
    };
    // Each core once before any is given out a second time.
    let by_core = times(|llc| llc.cores);
    let siblings = times(|llc| llc.cpus.len().saturating_sub(llc.cores));
    let mut of_worker: Vec<usize> = by_core.chain(siblings).take(workers).collect();
    of_worker.sort_by_key(|llc| order.iter().position(|other| other == llc));
    of_worker
}

/// LLCs as they are filled: that of `home`, others of its package, the rest.
fn order(llcs: &[Llc], home: Option<CpuId>) -> Vec<usize> {
    let count = llcs.len();
    let at_home = |llc: &Llc| home.is_some_and(|cpu| llc.cpus.contains(cpu));
    let first = llcs.iter().position(at_home).unwrap_or(0);
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
