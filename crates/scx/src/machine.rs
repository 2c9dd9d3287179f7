// SPDX-License-Identifier: GPL-2.0-only
//! Converts a topology to the tables of the BPF programs. The tables contain a `struct place` for
//! each CPU, which gives its core, LLC and node. They also contain the number of LLCs, the number
//! of cores, and the bitmask of nodes.
//!
//! The tables have one of two sizes (module `tables`), and a larger CPU number is an error. LLC n
//! from [`LLCS_MAX`] on shares the queues of LLC n modulo [`LLCS_MAX`]. The scheduler requests idle masks per node only if there are several
//! nodes with CPUs, their numbers are below 64, and each CPU is in one of these nodes.
//!
//! The conversion takes quadratic time in the number of CPUs. A CPU outside all nodes counts as in
//! node 0, with the CPUs of its LLC.

use usher_model::{Cpu, CpuSet, NumaNode, Topology};
use usher_rules::select_cpu::{LLCS_MAX, PLACE_ISOLATED, Place, words_of};

use crate::tables::TableSize;
use crate::{ScxError, capacity};

/// Upper limit for the numbers of nodes with idle masks of their own.
const NODES_MAX: u32 = 64;

/// Tables of the BPF programs: the bytes of `struct place` by CPU number, and properties of the
/// whole machine.
#[derive(Debug)]
pub(crate) struct Tables {
    pub size: TableSize,
    pub places: Vec<(u32, Vec<u8>)>,
    pub llcs: u32,
    /// Number of cores. The counter of scheduler events starts with all cores idle.
    pub cores: u64,
    /// Whether a core has several hardware threads.
    pub has_threads: bool,
    /// Number of classes of cores by capacity.
    pub classes: u32,
    /// Whether a CPU is isolated.
    pub isolates: bool,
    /// Bitmask of the NUMA nodes, if the conditions for idle masks per node hold; else 0.
    pub nodes: u64,
    /// Number of words of a CPU set that contain CPUs.
    pub cpu_words: u64,
}

/// Builds the tables.
///
/// `isolated` has the isolated CPUs, which are in the cores, LLCs and nodes of no other CPU.
///
/// # Errors
/// A CPU number exceeds the largest tables.
pub(crate) fn tables(machine: &Topology, isolated: &CpuSet) -> Result<Tables, ScxError> {
    // At least one CPU has to run the threads that are not bound to isolated CPUs.
    let isolated = match machine.all_cpus().is_subset(isolated) {
        true => &CpuSet::new(),
        false => isolated,
    };
    let size = TableSize::of(machine.cpus.iter().map(|cpu| cpu.os))?;
    let words = machine.cpus.iter().map(|cpu| cpu.os / 64);
    let words = words.fold(0, |words, word| words | 1 << word);
    let capacities: Vec<f64> = machine.cores.iter().map(|core| core.capacity).collect();
    let classes = capacity::classes(&capacities);
    let places = machine.cpus.iter().map(|cpu| {
        let core = &machine.cores[cpu.core];
        let domain = &machine.domains[core.domain];
        let node = machine.nodes.iter().find(|node| node.cpus.contains(cpu.os));
        let seen = |cpus: &CpuSet| cpus.minus(isolated).or(&CpuSet::single(cpu.os));
        let (node, number) = node.map_or((&domain.cpus, 0), |node| (&node.cpus, node.os));
        let place = Place {
            known: match isolated.contains(cpu.os) {
                true => PLACE_ISOLATED,
                false => 1,
            },
            llc: llc_of(core.domain),
            node_number: number,
            capacity: capacity::scaled(core.capacity),
            capacity_class: classes[cpu.core],
            node_llcs: llcs_of(machine, node),
            core: words_of(&seen(&core.cpus)),
            near: words_of(&seen(&domain.cpus)),
            node: words_of(&seen(node)),
            ..Place::default()
        };
        (cpu.os, bytes_of(&place.with_word_masks(words), size))
    });
    Ok(Tables {
        size,
        places: places.collect(),
        llcs: machine.domains.len().min(LLCS_MAX) as u32,
        cores: machine.cores.len() as u64,
        has_threads: machine.cpus.len() > machine.cores.len(),
        isolates: machine.all_cpus().intersects(isolated),
        classes: classes
            .iter()
            .max()
            .map_or(1, |slowest| u32::from(*slowest) + 1),
        nodes: nodes(machine),
        cpu_words: machine
            .cpus
            .iter()
            .map(|cpu| u64::from(cpu.os) / 64 + 1)
            .max()
            .unwrap_or(0),
    })
}

/// Returns the bitmask of the nodes with idle masks of their own; 0: the kernel keeps one mask for
/// all nodes.
fn nodes(machine: &Topology) -> u64 {
    let with_cpus = machine.nodes.iter().filter(|node| !node.cpus.is_empty());
    let nodes: Vec<&NumaNode> = with_cpus.collect();
    let in_one = |cpu: &Cpu| nodes.iter().any(|node| node.cpus.contains(cpu.os));
    let are_apart = nodes.len() > 1
        && nodes.iter().all(|node| node.os < NODES_MAX)
        && machine.cpus.iter().all(in_one);
    if !are_apart {
        return 0;
    }
    nodes.iter().map(|node| 1 << node.os).sum()
}

/// Returns the number of an LLC in the tables. LLCs with equal numbers share queues.
fn llc_of(domain: usize) -> u32 {
    (domain % LLCS_MAX) as u32
}

/// Returns the bitmask of the LLCs with a CPU in the node.
fn llcs_of(machine: &Topology, node: &CpuSet) -> u64 {
    let domains = machine.domains.iter().enumerate();
    let within = domains.filter(|(_, domain)| domain.cpus.iter().any(|cpu| node.contains(cpu)));
    within.fold(0, |llcs, (number, _)| llcs | 1 << llc_of(number))
}

/// Returns the size of `struct place` in bytes.
pub(crate) fn place_bytes(size: TableSize) -> usize {
    8 * 4 + 8 + 3 * 8 * size.words()
}

/// Returns the bytes of `struct place`, which has no padding.
fn bytes_of(place: &Place, size: TableSize) -> Vec<u8> {
    let capacity = u32::from(place.capacity) | u32::from(place.capacity_class) << 16;
    let numbers = [
        place.known,
        place.llc,
        place.node_number,
        capacity,
        place.core_words,
        place.near_words,
        place.node_words,
        place.all_words,
    ];
    let sets = [&place.core, &place.near, &place.node];
    let sets = sets.map(|set| &set[..size.words()]);
    let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u32::to_ne_bytes).collect();
    bytes.extend(place.node_llcs.to_ne_bytes());
    bytes.extend(
        sets.into_iter()
            .flatten()
            .flat_map(|word| word.to_ne_bytes()),
    );
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fields_of;

    const NONE: CpuSet = CpuSet::new();

    fn machine(description: &str) -> Topology {
        usher_topology::load(usher_topology::Source::Synthetic(description.to_owned())).unwrap()
    }

    #[test]
    fn place_contains_core_llc_and_node() {
        let tables = tables(&machine("package:2 l3:2 core:2 pu:2"), &NONE).unwrap();
        assert_eq!((tables.llcs, tables.cores, tables.places.len()), (4, 8, 16));
        assert_eq!(tables.cpu_words, 1);
        assert!(tables.has_threads);
        let (cpu, bytes) = &tables.places[5];
        assert_eq!(tables.size, TableSize::Small);
        assert_eq!(bytes.len(), place_bytes(tables.size));
        let words: Vec<u64> = crate::layout::words(bytes).collect();
        assert_eq!(*cpu, 5);
        assert_eq!(words[0], 1 | 1 << 32);
        assert_eq!(words[1], 1024 << 32, "node 0, full capacity, class 0");
        assert_eq!(words[2..4], [1 | 1 << 32, 1 | 1 << 32], "masks of words");
        assert_eq!(words[4], 0b1111, "one node");
        assert_eq!(words[5..7], [0b11_0000, 0b1111_0000]);
    }

    #[test]
    fn nodes_are_separate_if_there_are_several() {
        let of = |description: &str| tables(&machine(description), &NONE).unwrap();
        assert_eq!(of("package:2 core:4").nodes, 0);
        let several = of("package:2 [numa:1] core:2");
        assert_eq!(several.nodes, 0b11);
        let word = |at: usize, word| crate::layout::words(&several.places[at].1).nth(word);
        let number = |at: usize| word(at, 1).map(|word| word as u32);
        assert_eq!([number(0), number(3)], [Some(0), Some(1)]);
        assert_eq!([word(0, 4), word(3, 4)], [Some(0b1), Some(0b10)]);
        let mut far = machine("package:2 [numa:1] core:2");
        far.nodes[1].os = 64;
        assert_eq!(
            tables(&far, &NONE).unwrap().nodes,
            0,
            "no place for its number"
        );
        let mut bare = machine("package:2 [numa:1] core:2");
        bare.nodes[1].cpus = CpuSet::default();
        assert_eq!(tables(&bare, &NONE).unwrap().nodes, 0, "CPUs of no node");
    }

    #[test]
    fn classes_follow_the_capacities_of_cores() {
        let mut hybrid = machine("package:1 core:4");
        assert_eq!(tables(&hybrid, &NONE).unwrap().classes, 1);
        hybrid.cores[1].capacity = 0.5;
        hybrid.cores[2].capacity = 0.97;
        let tables = tables(&hybrid, &NONE).unwrap();
        assert_eq!(tables.classes, 2);
        let second = |at: usize| crate::layout::words(&tables.places[at].1).nth(1);
        assert_eq!(second(1), Some(512 << 32 | 1 << 48));
        assert_eq!(second(2), Some(993 << 32));
    }

    #[test]
    fn isolated_cpus_are_in_no_set_of_other_cpus() {
        let machine = machine("package:1 core:2 pu:2");
        let isolated: CpuSet = "1,7".parse().unwrap();
        let tables = tables(&machine, &isolated).unwrap();
        assert!(tables.isolates);
        let sets = |at: usize| {
            let words: Vec<u64> = crate::layout::words(&tables.places[at].1).collect();
            let sets = [5, 6, 7].map(|at| words[at]);
            (words[0] as u32, sets)
        };
        assert_eq!(sets(0), (1, [0b1, 0b1101, 0b1101]));
        assert_eq!(sets(1), (PLACE_ISOLATED, [0b11, 0b1111, 0b1111]));
        let all = super::tables(&machine, &"0-3".parse().unwrap()).unwrap();
        assert!(!all.isolates, "a machine needs a CPU that is not isolated");
    }

    #[test]
    fn detects_cores_without_smt() {
        assert!(
            !tables(&machine("package:2 core:3"), &NONE)
                .unwrap()
                .has_threads
        );
    }

    #[test]
    fn place_layout_matches_both_builds() {
        for size in TableSize::ALL {
            let place = fields_of(size, "place");
            assert_eq!(place.bytes(), place_bytes(size));
            let value = place.filled(|name| {
                let names = place.names();
                names.iter().position(|known| *known == name).unwrap() as u64 + 1
            });
            let mut ours = Place {
                known: 1,
                llc: 2,
                node_number: 3,
                capacity: 4,
                capacity_class: 5,
                core_words: 6,
                near_words: 7,
                node_words: 8,
                all_words: 9,
                node_llcs: 10,
                ..Place::default()
            };
            (ours.core[0], ours.near[0], ours.node[0]) = (11, 12, 13);
            assert_eq!(bytes_of(&ours, size), value);
        }
    }

    #[test]
    fn masks_of_words_of_a_large_machine_name_the_words_of_each_set() {
        let tables = tables(&machine("package:4 l3:16 core:16 pu:2"), &NONE).unwrap();
        assert_eq!((tables.size, tables.llcs), (TableSize::Large, 64));
        assert_eq!((tables.places.len(), tables.cpu_words), (2048, 32));
        let (cpu, bytes) = tables.places.last().unwrap();
        let masks: Vec<u64> = crate::layout::words(bytes).skip(2).take(2).collect();
        assert_eq!(*cpu, 2047);
        let last = 1_u64 << 31;
        assert_eq!(masks[0], last | last << 32, "core and LLC");
        assert_eq!(masks[1] >> 32, u64::from(u32::MAX), "machine");
    }

    #[test]
    fn rejects_machine_beyond_the_tables() {
        let error = tables(&machine("package:2049 core:1"), &NONE).unwrap_err();
        assert!(matches!(error, ScxError::TooManyCpus { cpu: 2048, .. }));
        assert_eq!(error.to_string().lines().count(), 1);
    }
}
