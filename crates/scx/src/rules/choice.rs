// SPDX-License-Identifier: GPL-2.0-only
//! The choice of an idle CPU, against looking at every one of them.

use proptest::prelude::*;
use usher_model::{CpuSet, Topology};
use usher_topology::Source;

use super::{Outlook, Place, rules_choose_cpu};
use crate::machine::words_of;

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

struct Around {
    core: CpuSet,
    near: CpuSet,
    node: CpuSet,
}

fn around(machine: &Topology, cpu: u32) -> Around {
    let core = &machine.cores[machine.cpu(cpu).unwrap().core];
    let mut nodes = machine.nodes.iter();
    Around {
        core: core.cpus.clone(),
        near: machine.domains[core.domain].cpus.clone(),
        node: nodes
            .find(|node| node.cpus.contains(cpu))
            .unwrap()
            .cpus
            .clone(),
    }
}

fn chosen(machine: &Topology, smt: bool, idle: &CpuSet, allowed: &CpuSet, last: u32) -> i32 {
    let whole = machine
        .cores
        .iter()
        .filter(|core| core.cpus.is_subset(idle));
    let whole = whole.fold(CpuSet::new(), |all, core| all.or(&core.cpus));
    let around = around(machine, last);
    let sees = Outlook {
        idle: words_of(idle),
        cores: words_of(&whole),
        allowed: words_of(allowed),
    };
    let here = Place {
        known: 1,
        llc: 0,
        core: words_of(&around.core),
        near: words_of(&around.near),
        node: words_of(&around.node),
    };
    // SAFETY: both are laid out as the header has them, and only read.
    unsafe { rules_choose_cpu(smt, &sees, last, &here) }
}

/// Every idle CPU that is allowed, ranked: idle cores first, then the nearest.
fn best(machine: &Topology, smt: bool, idle: &CpuSet, allowed: &CpuSet, last: u32) -> i32 {
    let home = around(machine, last);
    let rank = |cpu: u32| {
        let core = &machine.cores[machine.cpu(cpu).unwrap().core].cpus;
        let shares = smt && !core.iter().all(|thread| idle.contains(thread));
        let distance = match cpu {
            _ if cpu == last => 0,
            _ if home.near.contains(cpu) => 1,
            _ if home.node.contains(cpu) => 2,
            _ => 3,
        };
        (shares, distance, cpu)
    };
    let candidates = idle.iter().filter(|cpu| allowed.contains(*cpu));
    candidates
        .min_by_key(|cpu| rank(*cpu))
        .map_or(-1, |cpu| cpu as i32)
}

fn subset(machine: &Topology, mask: u128) -> CpuSet {
    let cpus = machine.all_cpus();
    cpus.iter().filter(|cpu| mask >> cpu & 1 == 1).collect()
}

proptest! {
    #[test]
    fn no_better_cpu_is_left(
        at in 0..MACHINES.len(),
        smt: bool,
        idle: u128,
        some: u128,
        anywhere: bool,
        last: u32,
    ) {
        let machine = machine(at);
        let last = last % machine.cpus.len() as u32;
        let idle = subset(&machine, idle);
        let allowed = subset(&machine, if anywhere { u128::MAX } else { some });
        prop_assert_eq!(
            chosen(&machine, smt, &idle, &allowed, last),
            best(&machine, smt, &idle, &allowed, last)
        );
    }
}

#[test]
fn an_idle_core_comes_before_the_cpu_last_used() {
    let machine = machine(1);
    let all = machine.all_cpus();
    let idle = all.minus(&CpuSet::single(1));
    assert_eq!(chosen(&machine, true, &idle, &all, 0), 2);
    assert_eq!(chosen(&machine, false, &idle, &all, 0), 0);
    assert_eq!(chosen(&machine, true, &idle, &CpuSet::range(0, 1), 0), 0);
}
