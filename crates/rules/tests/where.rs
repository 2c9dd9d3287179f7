// SPDX-License-Identifier: MIT OR Apache-2.0
//! The choice of an idle CPU, against looking at every one of them.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use usher_model::{CpuSet, Topology};
use usher_rules::where_to::{self, CpuWords, Outlook, Place, words_of};
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

/// What a thread that wakes finds.
struct Scene {
    idle: CpuSet,
    allowed: CpuSet,
    home: CpuSet,
    guests: CpuSet,
}

impl Scene {
    /// Of a thread without a seat.
    fn new(idle: CpuSet, allowed: CpuSet) -> Self {
        Self {
            idle,
            home: allowed.clone(),
            allowed,
            guests: CpuSet::new(),
        }
    }

    fn whole_cores(&self, machine: &Topology) -> CpuSet {
        let idle = machine.cores.iter().map(|core| &core.cpus);
        let idle = idle.filter(|cpus| cpus.is_subset(&self.idle));
        idle.fold(CpuSet::new(), |all, cpus| all.or(cpus))
    }
}

/// What the scheduler has looked at where it knows which of these CPUs are idle.
fn outlook(machine: &Topology, scene: &Scene, seen: &CpuSet) -> Outlook {
    Outlook {
        idle: words_of(&scene.idle.and(seen)),
        cores: words_of(&scene.whole_cores(machine).and(seen)),
        allowed: words_of(&scene.allowed),
        home: words_of(&scene.home),
        guests: words_of(&scene.guests),
        ..Outlook::default()
    }
}

fn place(around: &Around) -> Place {
    Place {
        known: 1,
        core: words_of(&around.core),
        near: words_of(&around.near),
        node: words_of(&around.node),
        ..Place::default()
    }
}

fn chosen(machine: &Topology, smt: bool, scene: &Scene, last: u32) -> Option<u32> {
    let sees = outlook(machine, scene, &machine.all_cpus());
    where_to::choose_cpu(smt, &sees, last, &place(&around(machine, last)))
}

/// The same by what is known of one node.
fn chosen_on_node(machine: &Topology, smt: bool, scene: &Scene, last: u32) -> Option<u32> {
    let around = around(machine, last);
    let sees = outlook(machine, scene, &around.node);
    where_to::choose_best(smt, &sees, last, &place(&around))
}

/// Of idle cores alone.
fn chosen_core(machine: &Topology, scene: &Scene, last: u32) -> Option<u32> {
    let sees = outlook(machine, scene, &machine.all_cpus());
    where_to::choose_core(&sees, last, &place(&around(machine, last)))
}

/// Every CPU that could be had, ranked: at home on an idle core, in a guest's
/// place, as a guest on an idle core, at home beside somebody; then the nearest.
fn best(machine: &Topology, smt: bool, scene: &Scene, last: u32) -> Option<u32> {
    let around = around(machine, last);
    let whole = match smt {
        true => scene.whole_cores(machine),
        false => scene.idle.clone(),
    };
    let rank = |cpu: u32| {
        let at_home = scene.home.contains(cpu);
        let kind = match scene.idle.contains(cpu) {
            true if whole.contains(cpu) && at_home => 0,
            true if whole.contains(cpu) => 2,
            true if at_home => 3,
            false if scene.guests.contains(cpu) && at_home => 1,
            _ => return None,
        };
        let distance = match cpu {
            _ if cpu == last => 0,
            _ if around.near.contains(cpu) => 1,
            _ if around.node.contains(cpu) => 2,
            _ => 3,
        };
        Some((kind, distance, cpu))
    };
    let ranks = scene.allowed.iter().filter_map(rank);
    ranks.min().map(|(_, _, cpu)| cpu)
}

fn cpus_of(words: &CpuWords) -> CpuSet {
    let bits = (0..512).filter(|cpu| words[cpu / 64] >> (cpu % 64) & 1 == 1);
    bits.map(|cpu| cpu as u32).collect()
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
        seat: u128,
        seated: bool,
        guests: u128,
        last: u32,
    ) {
        let machine = machine(at);
        let last = last % machine.cpus.len() as u32;
        let idle = subset(&machine, idle);
        let allowed = subset(&machine, if anywhere { u128::MAX } else { some });
        let guests = subset(&machine, guests).minus(&idle);
        let seat = if seated { subset(&machine, seat) } else { machine.all_cpus() };
        let home = where_to::find_home(&words_of(&allowed), &words_of(&seat));
        let home = home.map(|words| cpus_of(&words));
        let both = allowed.and(&seat);
        prop_assert_eq!(&home, &(!both.is_empty()).then_some(both));
        let home = home.unwrap_or_else(|| allowed.clone());
        let scene = Scene { idle, allowed, home, guests };
        let due = best(&machine, smt, &scene, last);
        prop_assert_eq!(chosen(&machine, smt, &scene, last), due);
        let on_node = chosen_on_node(&machine, smt, &scene, last);
        prop_assert!(on_node.is_none() || on_node == due, "{:?} on the node", on_node);
        let cores = Scene { idle: scene.whole_cores(&machine), guests: CpuSet::new(), ..scene };
        prop_assert_eq!(chosen_core(&machine, &cores, last), best(&machine, true, &cores, last));
    }

    #[test]
    fn a_core_is_left_to_guests_where_nobody_else_works(
        at in 0..MACHINES.len(),
        idle: u128,
        guests: u128,
        core: usize,
    ) {
        let machine = machine(at);
        let idle = subset(&machine, idle);
        let guests = subset(&machine, guests).minus(&idle);
        let core = &machine.cores[core % machine.cores.len()].cpus;
        let alone = core.iter().all(|cpu| idle.contains(cpu) || guests.contains(cpu));
        let scene = Scene { guests, ..Scene::new(idle, machine.all_cpus()) };
        let sees = outlook(&machine, &scene, &machine.all_cpus());
        prop_assert_eq!(where_to::is_left_to_guests(&words_of(core), &sees), alone);
    }
}

#[test]
fn an_idle_core_comes_before_the_cpu_last_used() {
    let machine = machine(1);
    let all = machine.all_cpus();
    let idle = all.minus(&CpuSet::single(1));
    let anywhere = Scene::new(idle.clone(), all);
    assert_eq!(chosen(&machine, true, &anywhere, 0), Some(2));
    assert_eq!(chosen(&machine, false, &anywhere, 0), Some(0));
    let on_one_core = Scene::new(idle, CpuSet::range(0, 1));
    assert_eq!(chosen(&machine, true, &on_one_core, 0), Some(0));
}

/// Two cores of two threads each in each of two packages; the thread's program
/// has the first package.
#[test]
fn a_guest_gives_way_to_whoever_is_at_home() {
    let machine = machine(1);
    let all = machine.all_cpus();
    let scene = |idle: CpuSet, guests: CpuSet| Scene {
        idle,
        allowed: all.clone(),
        home: CpuSet::range(0, 3),
        guests,
    };
    let guest = CpuSet::single(2);
    let idle = CpuSet::range(4, 7);
    // Before it would be a guest itself.
    assert_eq!(
        chosen(&machine, true, &scene(idle.clone(), guest.clone()), 0),
        Some(2)
    );
    assert_eq!(
        chosen(&machine, true, &scene(idle.clone(), CpuSet::new()), 0),
        Some(4)
    );
    // Nobody else's core is shared.
    let half = CpuSet::single(5);
    assert_eq!(chosen(&machine, true, &scene(half, CpuSet::new()), 0), None);
    let beside = CpuSet::single(1);
    assert_eq!(
        chosen(&machine, true, &scene(beside, CpuSet::new()), 0),
        Some(1)
    );
}
