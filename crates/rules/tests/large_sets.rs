// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the selection of a CPU on machines whose CPU sets have several words: random numbers of
//! CPUs, LLCs of uneven sizes, CPU numbers in random order, and offline CPUs. The CPU that the
//! scheduler selects is compared with a search over all CPUs.

mod common;

use common::rig::set;
use common::{MS, SETTINGS};
use oorandom::Rand64;
use usher_rules::sched::{HostSched, HostSettings, HostVariant, Task};
use usher_rules::select_cpu::Place;

const MACHINES: u64 = 60;
const WAKEUPS: usize = 20;
/// Up to this number of words, the first search covers all words with idle CPUs, and the nearest
/// CPU is selected.
const WORDS_OF_EXACT_SEARCH: usize = 5;

/// A machine with two CPUs per core. The CPUs are in the order of the topology, each with its number.
struct Machine {
    numbers: Vec<usize>,
    /// LLC and node of each core.
    cores: Vec<(usize, usize)>,
}

impl Machine {
    fn random(random: &mut Rand64, cores: usize) -> Self {
        let mut numbers: Vec<usize> = (0..2 * cores).collect();
        if random.rand_range(0..2) == 1 {
            for at in (1..numbers.len()).rev() {
                numbers.swap(at, random.rand_range(0..at as u64 + 1) as usize);
            }
        }
        let (mut llc, mut node, mut left) = (0, 0, 0);
        let mut of_cores = Vec::new();
        for _ in 0..cores {
            if left == 0 && !of_cores.is_empty() && llc < 63 {
                llc += 1;
                node += random.rand_range(0..2) as usize;
            }
            if left == 0 {
                left = random.rand_range(1..48);
            }
            left -= 1;
            of_cores.push((llc, node));
        }
        Self {
            numbers,
            cores: of_cores,
        }
    }

    fn place_of(&self, cpu: usize) -> (usize, usize, usize) {
        let at = self.numbers.iter().position(|&number| number == cpu);
        let core = at.map_or(0, |at| at / 2);
        (core, self.cores[core].0, self.cores[core].1)
    }

    fn places(&self) -> Vec<Place> {
        let all: Vec<_> = (0..self.numbers.len())
            .map(|cpu| self.place_of(cpu))
            .collect();
        let like = |is: &dyn Fn((usize, usize, usize)) -> bool| {
            set((0..all.len()).filter(|&cpu| is(all[cpu])))
        };
        let places = all.iter().map(|&(core, llc, node)| Place {
            known: 1,
            llc: llc as u32,
            node_number: node as u32,
            node_llcs: self
                .cores
                .iter()
                .filter(|core| core.1 == node)
                .fold(0, |llcs, core| llcs | 1 << core.0),
            core: like(&|other| other.0 == core),
            near: like(&|other| other.1 == llc),
            node: like(&|other| other.2 == node),
            ..Place::default()
        });
        places.collect()
    }
}

/// Returns the rank of each suitable CPU: idle cores come first, then the distance, then the number.
fn rank(machine: &Machine, idle: &[bool], last: usize, cpu: usize) -> (bool, usize, usize) {
    let (core, llc, node) = machine.place_of(cpu);
    let (_, last_llc, last_node) = machine.place_of(last);
    let siblings = [2 * core, 2 * core + 1].map(|at| machine.numbers[at]);
    let is_shared = siblings.iter().any(|&sibling| !idle[sibling]);
    let distance = match () {
        () if cpu == last => 0,
        () if llc == last_llc => 1,
        () if node == last_node => 2,
        () => 3,
    };
    (is_shared, distance, cpu)
}

/// Takes a random part of the CPUs off line, or lets them run a thread. Returns which CPUs are idle.
fn occupy(sched: &mut HostSched, random: &mut Rand64, cpus: usize) -> Vec<bool> {
    let mut idle = vec![true; cpus];
    let busy = random.rand_range(0..101);
    for (cpu, is_idle) in idle.iter_mut().enumerate() {
        *is_idle = random.rand_range(0..100) >= busy;
        if *is_idle {
            continue;
        }
        if random.rand_range(0..4) == 0 {
            sched.set_online(cpu, false);
            continue;
        }
        let task = sched.new_task(&Task {
            ran_ns: 1,
            cpu: cpu as u32,
            cpus: set([cpu]),
            ..Task::default()
        });
        sched.wake(task, cpu);
        while let Some(cpu) = sched.next_resched() {
            sched.schedule(cpu);
        }
    }
    idle
}

fn check(seed: u64, cores: usize, by_node: bool) {
    let random = &mut Rand64::new(u128::from(seed));
    let machine = Machine::random(random, cores);
    let cpus = machine.numbers.len();
    let settings = HostSettings {
        llcs: machine
            .cores
            .iter()
            .map(|core| core.0 as u32 + 1)
            .max()
            .unwrap_or(1),
        ..SETTINGS
    };
    let nodes = machine
        .cores
        .iter()
        .fold(0, |nodes, core| nodes | 1 << core.1);
    let variant = HostVariant {
        nodes: if by_node { nodes } else { 0 },
        ..HostVariant::default()
    };
    let mut sched = HostSched::with_variant(&machine.places(), &settings, variant, seed);
    sched.set_now(MS);
    let mut idle = occupy(&mut sched, random, cpus);
    for _ in 0..WAKEUPS {
        let last = random.rand_range(0..cpus as u64) as usize;
        let share = [3, 30, 100][random.rand_range(0..3) as usize];
        let allowed: Vec<usize> = (0..cpus)
            .filter(|_| random.rand_range(0..100) < share)
            .collect();
        if allowed.len() < 2 {
            continue;
        }
        let ranks = allowed.iter().filter(|&&cpu| idle[cpu]);
        let best = ranks.map(|&cpu| rank(&machine, &idle, last, cpu)).min();
        let task = sched.new_task(&Task {
            ran_ns: 1,
            cpu: last as u32,
            cpus: set(allowed.iter().copied()),
            ..Task::default()
        });
        sched.wake(task, last);
        let cpu = sched.task(task).cpu as usize;
        let is_placed = allowed.contains(&cpu) && idle[cpu];
        assert_eq!(
            is_placed,
            best.is_some(),
            "seed {seed}: CPU {cpu} for {best:?}"
        );
        let Some(best) = best else {
            sched.remove(task);
            continue;
        };
        let chosen = rank(&machine, &idle, last, cpu);
        let is_exact = cpus.div_ceil(64) <= WORDS_OF_EXACT_SEARCH;
        if is_exact || (!best.0 && best.1 <= 1) {
            assert_eq!(chosen, best, "seed {seed}: from CPU {last}");
        }
        while let Some(cpu) = sched.next_resched() {
            sched.schedule(cpu);
        }
        assert_eq!(sched.task(task).is_queued, 0);
        idle[cpu] = false;
    }
}

#[test]
fn nearest_idle_cpu_is_selected_on_machines_with_uneven_llcs() {
    for seed in 0..MACHINES {
        check(
            seed,
            1 + seed as usize * 159 / MACHINES as usize,
            seed % 3 == 0,
        );
    }
}

#[test]
fn idle_core_of_the_llc_is_selected_on_large_machines() {
    for seed in 0..6 {
        check(1_000 + seed, [600, 1024][seed as usize % 2], seed % 3 == 0);
    }
}
