// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the selection of an idle CPU, by the functions of choose.h alone. The selected CPU is
//! compared with the result of a search over all CPUs.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use usher_model::{CpuSet, Topology};
use usher_rules::select_cpu::{self, CpuWords, IdleScanCtx, Place, words_of};
use usher_topology::Source;

const MACHINES: [&str; 5] = [
    "package:1 core:2 pu:1",
    "package:2 core:2 pu:2",
    "numa:2 l3:2 core:2 pu:2",
    "package:1 core:3 pu:4",
    "numa:2 l3:3 core:12 pu:1",
];

fn machine(at: usize) -> Topology {
    usher_topology::load(Source::Synthetic(MACHINES[at].to_owned())).unwrap()
}

struct Neighbours {
    core: CpuSet,
    near: CpuSet,
    node: CpuSet,
}

fn neighbours(machine: &Topology, cpu: u32) -> Neighbours {
    let core = &machine.cores[machine.cpu(cpu).unwrap().core];
    let mut nodes = machine.nodes.iter();
    Neighbours {
        core: core.cpus.clone(),
        near: machine.domains[core.domain].cpus.clone(),
        node: nodes
            .find(|node| node.cpus.contains(cpu))
            .unwrap()
            .cpus
            .clone(),
    }
}

/// State of the machine when a thread wakes.
struct WakeupCase {
    idle: CpuSet,
    allowed: CpuSet,
    preferred_cpus: CpuSet,
    borrowers: CpuSet,
}

impl WakeupCase {
    /// Returns the case of a thread without a seat.
    fn new(idle: CpuSet, allowed: CpuSet) -> Self {
        Self {
            idle,
            preferred_cpus: allowed.clone(),
            allowed,
            borrowers: CpuSet::new(),
        }
    }

    fn whole_cores(&self, machine: &Topology) -> CpuSet {
        let idle = machine.cores.iter().map(|core| &core.cpus);
        let idle = idle.filter(|cpus| cpus.is_subset(&self.idle));
        idle.fold(CpuSet::new(), |all, cpus| all.or(cpus))
    }
}

/// Returns the scheduler's CPU sets after it has read the idle CPUs among the CPUs in `seen`.
fn scan_ctx(machine: &Topology, case: &WakeupCase, seen: &CpuSet) -> IdleScanCtx {
    IdleScanCtx {
        idle: words_of(&case.idle.and(seen)),
        cores: words_of(&case.whole_cores(machine).and(seen)),
        allowed: words_of(&case.allowed),
        preferred_cpus: words_of(&case.preferred_cpus),
        borrowers: words_of(&case.borrowers),
        words: u32::MAX,
        ..IdleScanCtx::default()
    }
}

fn place(neighbours: &Neighbours) -> Place {
    Place {
        known: 1,
        core: words_of(&neighbours.core),
        near: words_of(&neighbours.near),
        node: words_of(&neighbours.node),
        ..Place::default()
    }
    .with_word_masks(u32::MAX)
}

fn chosen(machine: &Topology, smt: bool, case: &WakeupCase, last: u32) -> Option<u32> {
    let scan = scan_ctx(machine, case, &machine.all_cpus());
    select_cpu::choose_cpu(smt, &scan, last, &place(&neighbours(machine, last)))
}

/// Returns the CPU that `choose_best` selects when only the idle CPUs of the node of `last` have
/// been read.
fn chosen_on_node(machine: &Topology, smt: bool, case: &WakeupCase, last: u32) -> Option<u32> {
    let neighbours = neighbours(machine, last);
    let scan = scan_ctx(machine, case, &neighbours.node);
    select_cpu::choose_best(smt, &scan, last, &place(&neighbours))
}

/// Returns the CPU of an idle core that `choose_core` selects.
fn chosen_core(machine: &Topology, case: &WakeupCase, last: u32) -> Option<u32> {
    let scan = scan_ctx(machine, case, &machine.all_cpus());
    select_cpu::choose_core(&scan, last, &place(&neighbours(machine, last)))
}

/// Returns the best CPU, by a search over all allowed CPUs. The order is: preferred idle core,
/// borrower's CPU, other idle core, preferred idle CPU of a busy core; then distance, then number.
fn best(machine: &Topology, smt: bool, case: &WakeupCase, last: u32) -> Option<u32> {
    let neighbours = neighbours(machine, last);
    let whole = match smt {
        true => case.whole_cores(machine),
        false => case.idle.clone(),
    };
    let rank = |cpu: u32| {
        let is_preferred = case.preferred_cpus.contains(cpu);
        let kind = match case.idle.contains(cpu) {
            true if whole.contains(cpu) && is_preferred => 0,
            true if whole.contains(cpu) => 2,
            true if is_preferred => 3,
            false if case.borrowers.contains(cpu) && is_preferred => 1,
            _ => return None,
        };
        let distance = match cpu {
            _ if cpu == last => 0,
            _ if neighbours.near.contains(cpu) => 1,
            _ if neighbours.node.contains(cpu) => 2,
            _ => 3,
        };
        Some((kind, distance, cpu))
    };
    let ranks = case.allowed.iter().filter_map(rank);
    ranks.min().map(|(_, _, cpu)| cpu)
}

fn cpus_of(words: &CpuWords) -> CpuSet {
    let bits =
        (0..usher_rules::select_cpu::CPUS_MAX).filter(|cpu| words[cpu / 64] >> (cpu % 64) & 1 == 1);
    bits.map(|cpu| cpu as u32).collect()
}

fn subset(machine: &Topology, mask: u128) -> CpuSet {
    let cpus = machine.all_cpus();
    cpus.iter().filter(|cpu| mask >> cpu & 1 == 1).collect()
}

proptest! {
    #[test]
    fn selected_cpu_is_the_best_candidate(
        at in 0..MACHINES.len(),
        smt: bool,
        idle: u128,
        some: u128,
        anywhere: bool,
        seat: u128,
        seated: bool,
        borrowers: u128,
        last: u32,
    ) {
        let machine = machine(at);
        let last = last % machine.cpus.len() as u32;
        let idle = subset(&machine, idle);
        let allowed = subset(&machine, if anywhere { u128::MAX } else { some });
        let borrowers = subset(&machine, borrowers).minus(&idle);
        let seat = if seated { subset(&machine, seat) } else { machine.all_cpus() };
        let preferred_cpus = select_cpu::find_preferred(&words_of(&allowed), &words_of(&seat));
        let preferred_cpus = preferred_cpus.map(|words| cpus_of(&words));
        let both = allowed.and(&seat);
        prop_assert_eq!(&preferred_cpus, &(!both.is_empty()).then_some(both));
        let preferred_cpus = preferred_cpus.unwrap_or_else(|| allowed.clone());
        let case = WakeupCase { idle, allowed, preferred_cpus, borrowers };
        let due = best(&machine, smt, &case, last);
        prop_assert_eq!(chosen(&machine, smt, &case, last), due);
        let on_node = chosen_on_node(&machine, smt, &case, last);
        prop_assert!(on_node.is_none() || on_node == due, "{:?} on the node", on_node);
        let cores = WakeupCase { idle: case.whole_cores(&machine), borrowers: CpuSet::new(), ..case };
        prop_assert_eq!(chosen_core(&machine, &cores, last), best(&machine, true, &cores, last));
    }

    #[test]
    fn core_that_runs_only_borrowers_is_detected(
        at in 0..MACHINES.len(),
        idle: u128,
        borrowers: u128,
        core: usize,
    ) {
        let machine = machine(at);
        let idle = subset(&machine, idle);
        let borrowers = subset(&machine, borrowers).minus(&idle);
        let core = &machine.cores[core % machine.cores.len()].cpus;
        let alone = core.iter().all(|cpu| idle.contains(cpu) || borrowers.contains(cpu));
        let case = WakeupCase { borrowers, ..WakeupCase::new(idle, machine.all_cpus()) };
        let scan = scan_ctx(&machine, &case, &machine.all_cpus());
        prop_assert_eq!(select_cpu::only_borrowers_run(&words_of(core), &scan), alone);
    }
}

#[test]
fn idle_core_is_preferred_to_last_cpu() {
    let machine = machine(1);
    let all = machine.all_cpus();
    let idle = all.minus(&CpuSet::single(1));
    let anywhere = WakeupCase::new(idle.clone(), all);
    assert_eq!(chosen(&machine, true, &anywhere, 0), Some(2));
    assert_eq!(chosen(&machine, false, &anywhere, 0), Some(0));
    let on_one_core = WakeupCase::new(idle, CpuSet::range(0, 1));
    assert_eq!(chosen(&machine, true, &on_one_core, 0), Some(0));
}

/// Two packages of two cores with two hardware threads each. The seat is the first package.
#[test]
fn borrower_is_preempted_by_seat_owner() {
    let machine = machine(1);
    let all = machine.all_cpus();
    let case = |idle: CpuSet, borrowers: CpuSet| WakeupCase {
        idle,
        allowed: all.clone(),
        preferred_cpus: CpuSet::range(0, 3),
        borrowers,
    };
    let borrower = CpuSet::single(2);
    let idle = CpuSet::range(4, 7);
    // The thread preempts a borrower in its seat, although an idle core outside the seat exists.
    assert_eq!(
        chosen(&machine, true, &case(idle.clone(), borrower.clone()), 0),
        Some(2)
    );
    assert_eq!(
        chosen(&machine, true, &case(idle.clone(), CpuSet::new()), 0),
        Some(4)
    );
    // A borrower does not share a core with a thread in its seat.
    let half = CpuSet::single(5);
    assert_eq!(chosen(&machine, true, &case(half, CpuSet::new()), 0), None);
    let beside = CpuSet::single(1);
    assert_eq!(
        chosen(&machine, true, &case(beside, CpuSet::new()), 0),
        Some(1)
    );
}
