// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses the cores of programs with a fixed number of cores.
//!
//! 1. A seat in force is kept if it still has the right number of cores, lies inside the binding of
//!    its program, and overlaps with no other kept seat. Seats are kept in the order of the ids.
//! 2. The other programs follow, the largest number of cores first, then by id. A program first
//!    gets whole free domains, the largest that fit. The remaining cores come from the smallest
//!    free part of a domain that is large enough, so that other programs keep as many whole domains
//!    as possible. If no part is large enough, the largest part is used up. Among equals, a package
//!    in which the program already has cores wins, then the first in the order of the hardware.
//! 3. If too few cores are free, the program shares the cores with the fewest fixed programs.
//!
//! A core counts if the program may use at least one of its hardware threads; cores of which it may
//! use all threads come first. Inside a domain, faster cores come first. A program that may use
//! fewer cores than it requests gets all of them. The placement takes time of order programs x
//! cores x domains.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::{CoreId, CpuSet, DomainId, ProgramId, Topology};

/// A program with a fixed number of cores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedRequest {
    /// The program.
    pub id: ProgramId,
    /// Number of cores, at least 1.
    pub cores: usize,
    /// CPUs to which the program is bound; `None`: all.
    pub bound_to: Option<CpuSet>,
}

/// Returns the CPUs of each program on a machine. `before`: the seats in force.
pub fn place(
    topology: &Topology,
    requests: &[FixedRequest],
    before: &BTreeMap<ProgramId, CpuSet>,
) -> BTreeMap<ProgramId, CpuSet> {
    let mut placement = Placement {
        topology,
        load: vec![0; topology.cores.len()],
    };
    let mut seats = BTreeMap::new();
    let mut order: Vec<&FixedRequest> = requests.iter().collect();
    order.sort_by_key(|request| request.id);
    for request in &order {
        if let Some(seat) = before.get(&request.id)
            && placement.keeps(request, seat)
        {
            placement.add_load(&topology.cores_in(seat));
            seats.insert(request.id, seat.clone());
        }
    }
    order.retain(|request| !seats.contains_key(&request.id));
    order.sort_by_key(|request| (std::cmp::Reverse(request.cores), request.id));
    for request in order {
        let cores = placement.choose(request);
        placement.add_load(&cores);
        let cpus = topology.cpus_of_cores(cores);
        seats.insert(request.id, placement.allowed(request).and(&cpus));
    }
    seats
}

struct Placement<'a> {
    topology: &'a Topology,
    /// Number of fixed programs on each core.
    load: Vec<usize>,
}

impl Placement<'_> {
    /// CPUs that a program may use. A binding to CPUs that do not exist is ignored.
    fn allowed(&self, request: &FixedRequest) -> CpuSet {
        let all = self.topology.all_cpus();
        let bound = request.bound_to.as_ref().map(|bound| bound.and(&all));
        bound.filter(|bound| !bound.is_empty()).unwrap_or(all)
    }

    fn add_load(&mut self, cores: &[CoreId]) {
        cores.iter().for_each(|&core| self.load[core] += 1);
    }

    /// Returns whether a seat in force is still right.
    fn keeps(&self, request: &FixedRequest, seat: &CpuSet) -> bool {
        let allowed = self.allowed(request);
        let cores = self.topology.cores_in(seat);
        let is_complete = |&core: &CoreId| {
            let usable = self.topology.cores[core].cpus.and(&allowed);
            usable.is_subset(seat)
        };
        seat.is_subset(&allowed)
            && cores.len() == request.cores
            && cores.iter().all(|&core| self.load[core] == 0)
            && cores.iter().all(is_complete)
    }

    /// Returns the cores of a program.
    fn choose(&self, request: &FixedRequest) -> Vec<CoreId> {
        let allowed = self.allowed(request);
        let mut usable = self.topology.cores_in(&allowed);
        let is_partial = |core: CoreId| !self.topology.cores[core].cpus.is_subset(&allowed);
        // A stable sort: cores with fewer fixed programs first, then whole cores.
        usable.sort_by_key(|&core| (self.load[core], is_partial(core)));
        let wanted = request.cores.min(usable.len());
        let last = usable.get(wanted.saturating_sub(1)).copied();
        let last = last.map(|core| (self.load[core], is_partial(core)));
        let class = |core: CoreId| Some((self.load[core], is_partial(core)));
        // The cores of better classes are all needed; the last class has a choice.
        let (mut chosen, mut choice) = (Vec::new(), Vec::new());
        for core in usable {
            match class(core).cmp(&last) {
                std::cmp::Ordering::Less => chosen.push(core),
                std::cmp::Ordering::Equal => choice.push(core),
                std::cmp::Ordering::Greater => {}
            }
        }
        let missing = wanted - chosen.len();
        self.pack(choice, missing, &mut chosen);
        chosen
    }

    /// Moves `missing` of the cores `choice` to `chosen`, and breaks as few domains as possible.
    fn pack(&self, choice: Vec<CoreId>, mut missing: usize, chosen: &mut Vec<CoreId>) {
        let cores = &self.topology.cores;
        let mut parts: BTreeMap<DomainId, Vec<CoreId>> = BTreeMap::new();
        for core in choice {
            parts.entry(cores[core].domain).or_default().push(core);
        }
        let package = |domain: DomainId| self.topology.domains[domain].package;
        while missing > 0 {
            let packages: BTreeSet<_> = chosen.iter().map(|&c| package(cores[c].domain)).collect();
            let is_whole = |domain: DomainId, part: &[CoreId]| {
                part.len() == self.topology.domains[domain].cores.len()
            };
            let best = parts.iter().min_by_key(|&(&domain, part)| {
                let size = part.len();
                let rank = match size {
                    size if size <= missing && is_whole(domain, part) => (0, missing - size),
                    size if size >= missing => (1, size),
                    size => (2, missing - size),
                };
                (rank, !packages.contains(&package(domain)), domain)
            });
            let Some((&domain, _)) = best else {
                return;
            };
            let mut part = parts.remove(&domain).unwrap_or_default();
            part.sort_by(|&a, &b| cores[b].capacity.total_cmp(&cores[a].capacity));
            part.truncate(missing);
            missing -= part.len();
            chosen.append(&mut part);
        }
    }
}
