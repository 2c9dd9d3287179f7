// SPDX-License-Identifier: MIT OR Apache-2.0
//! Divides a seat among the copies of one program.
//!
//! 1. Up to one copy per core, each copy gets whole cores. The cores of the seat are ordered by
//!    last-level cache, and each copy gets consecutive cores. The numbers of cores differ by at
//!    most one.
//! 2. With more copies than cores, and up to one copy per CPU, each copy gets consecutive hardware
//!    threads. The numbers of threads differ by at most one.
//! 3. With more copies than CPUs, each copy gets one CPU. The numbers of copies per CPU differ by
//!    at most one.
//!
//! In the first two cases, some copies get one unit more than others. The division chooses these
//! copies so that as few copies as possible have units in several caches (first case) or on several
//! cores (second case). The choice is a dynamic program over the number of copies and of larger
//! copies: time O(copies * units).

use usher_model::{CpuSet, Topology};

/// Returns the CPUs of each of `copies` copies in a seat. Empty if there are no copies. Every copy
/// gets the whole seat if the topology contains none of its CPUs.
pub fn divide(topology: &Topology, seat: &CpuSet, copies: usize) -> Vec<CpuSet> {
    let cores = cores(topology, seat);
    let threads: usize = cores.iter().map(|core| core.cpus.len()).sum();
    if threads == 0 {
        return vec![seat.clone(); copies];
    }
    if copies <= cores.len() {
        return runs(&cores, copies);
    }
    let single: Vec<Unit> = (0..)
        .zip(&cores)
        .flat_map(|(group, core)| core.cpus.iter().map(move |cpu| (group, cpu)))
        .map(|(group, cpu)| Unit {
            group,
            cpus: CpuSet::single(cpu),
        })
        .collect();
    if copies <= threads {
        return runs(&single, copies);
    }
    (0..copies)
        .map(|copy| single[copy * threads / copies].cpus.clone())
        .collect()
}

/// A unit of the division: a core or a hardware thread. Units of one group belong together: cores
/// of one cache, or hardware threads of one core.
struct Unit {
    group: usize,
    cpus: CpuSet,
}

/// Returns the cores of a seat, restricted to the seat, ordered by cache.
fn cores(topology: &Topology, seat: &CpuSet) -> Vec<Unit> {
    let mut order = topology.cores_in(seat);
    let domain = |core: usize| topology.cores[core].domain;
    order.sort_by_key(|&core| (topology.domains[domain(core)].package, domain(core), core));
    let unit = |core: usize| Unit {
        group: domain(core),
        cpus: topology.cores[core].cpus.and(seat),
    };
    order.into_iter().map(unit).collect()
}

/// Divides the units into consecutive runs, one for each copy, of which as few as possible contain
/// units of several groups. There are at least as many units as copies.
fn runs(units: &[Unit], copies: usize) -> Vec<CpuSet> {
    if copies == 0 {
        return Vec::new();
    }
    let (least, larger) = (units.len() / copies, units.len() % copies);
    let is_split = |first: usize, length: usize| {
        usize::from(units[first].group != units[first + length - 1].group)
    };
    let first = |copy: usize, used: usize| copy * least + used;
    // `costs[copy][used]` is the least number of split runs from this copy on, if `used` of the
    // copies before it are larger. `None`: impossible.
    let mut costs = vec![vec![None; larger + 1]; copies + 1];
    costs[copies][larger] = Some(0);
    for copy in (0..copies).rev() {
        for used in 0..=larger.min(copy) {
            costs[copy][used] = (0..=1)
                .filter(|extra| used + extra <= larger)
                .filter_map(|extra| {
                    let rest: usize = costs[copy + 1][used + extra]?;
                    Some(rest + is_split(first(copy, used), least + extra))
                })
                .min();
        }
    }
    let mut used = 0;
    let mut divided = Vec::with_capacity(copies);
    for copy in 0..copies {
        let begin = first(copy, used);
        // Among equal choices, the earlier copies are the larger ones.
        let with = |extra: usize| {
            let rest = costs[copy + 1].get(used + extra).copied().flatten()?;
            Some(rest + is_split(begin, least + extra))
        };
        let extra = usize::from(used < larger && with(1).is_some() && with(1) == costs[copy][used]);
        let run = &units[begin..begin + least + extra];
        divided.push(
            run.iter()
                .fold(CpuSet::new(), |cpus, unit| cpus.or(&unit.cpus)),
        );
        used += extra;
    }
    divided
}
