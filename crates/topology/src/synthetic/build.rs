// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the levels of a description to facts.
//!
//! The objects of a level with width `w` divide the CPUs, in the order of the description, into `w`
//! equal ranges. hwloc sorts the children of each object by their lowest CPU number; the order of
//! the facts is the same. Attached NUMA nodes are numbered in post-order: the nodes inside an
//! object come before the nodes attached to the object. A description without memory has one NUMA
//! node of 1 GiB.

use usher_model::{Cache, CpuId, CpuSet};

use super::level::{Level, LevelType, Levels};
use crate::assemble::{HwlocFacts, Node};

/// Memory of a NUMA node without an attribute, as in hwloc.
const MEMORY_BYTES: u64 = 1 << 30;

pub(super) fn facts(levels: &Levels, name: String) -> HwlocFacts {
    let all = &levels.all;
    let described = cpus(all);
    let pus = in_hardware_order(all, &described);
    let sets = |wanted: LevelType| -> Vec<CpuSet> {
        let of_type = all.iter().filter(|level| level.level_type == wanted);
        of_type
            .flat_map(|level| ranges(&pus, level.width))
            .collect()
    };
    HwlocFacts {
        name,
        cores: sets(LevelType::Core),
        caches: caches(all, &pus),
        dies: sets(LevelType::Die),
        packages: sets(LevelType::Package)
            .into_iter()
            .map(|cpus| (cpus, None))
            .collect(),
        nodes: nodes(levels, &described),
        notes: levels.notes.clone(),
        pus,
        ..HwlocFacts::default()
    }
}

/// The numbers of the CPUs, in the order of the description.
fn cpus(levels: &[Level]) -> Vec<CpuId> {
    let Some(last) = levels.last() else {
        return Vec::new();
    };
    match &last.numbers {
        Some(numbers) => numbers.clone(),
        None => (0..last.width as CpuId).collect(),
    }
}

/// Sorts the children of each object by their lowest CPU number, from small objects to large ones.
fn in_hardware_order(levels: &[Level], described: &[CpuId]) -> Vec<CpuId> {
    let mut order = described.to_vec();
    for pair in levels.windows(2).rev() {
        let parent = order.len() / pair[0].width as usize;
        let child = order.len() / pair[1].width as usize;
        if parent == child {
            continue;
        }
        for range in order.chunks_mut(parent) {
            let mut children: Vec<Vec<CpuId>> = range.chunks(child).map(<[_]>::to_vec).collect();
            children.sort_by_key(|cpus| cpus.iter().min().copied());
            range.copy_from_slice(&children.concat());
        }
    }
    order
}

/// The CPU sets of the objects of a level.
fn ranges(cpus: &[CpuId], width: u64) -> impl Iterator<Item = CpuSet> {
    cpus.chunks(cpus.len() / width as usize)
        .map(|range| range.iter().copied().collect())
}

/// Data and unified caches from level 2 up.
fn caches(levels: &[Level], pus: &[CpuId]) -> Vec<(Cache, CpuSet)> {
    let mut caches = Vec::new();
    for level in levels {
        let LevelType::Cache(number @ 2..) = level.level_type else {
            continue;
        };
        // The size of a cache without an attribute, as in hwloc: 4 MiB for an L2, 4 times as much
        // for each further level.
        let bytes = level.attributes.bytes.filter(|&bytes| bytes > 0);
        let bytes = bytes.unwrap_or((256 << 10) << (2 * number));
        let cache = Cache {
            level: number,
            bytes,
        };
        caches.extend(ranges(pus, level.width).map(|cpus| (cache, cpus)));
    }
    caches.sort_by_key(|(cache, _)| cache.level);
    caches
}

fn nodes(levels: &Levels, described: &[CpuId]) -> Vec<Node> {
    let all = &levels.all;
    if let Some(level) = all.iter().find(|l| l.level_type == LevelType::NumaNode) {
        let bytes = level.attributes.bytes.filter(|&bytes| bytes > 0);
        let sets = ranges(described, level.width).enumerate();
        let node = |(object, near): (usize, CpuSet)| Node {
            os: number(level.numbers.as_ref(), object),
            near,
            bytes: bytes.unwrap_or(MEMORY_BYTES),
        };
        return sets.map(node).collect();
    }
    let mut attached = AttachedNodes {
        levels,
        described,
        nodes: Vec::new(),
    };
    attached.visit(0, 0);
    if attached.nodes.is_empty() {
        attached.nodes.push(Node {
            os: 0,
            near: described.iter().copied().collect(),
            bytes: MEMORY_BYTES,
        });
    }
    attached.nodes
}

fn number(numbers: Option<&Vec<u32>>, object: usize) -> u32 {
    numbers.map_or(object as u32, |numbers| numbers[object])
}

/// The attached NUMA nodes in the order of their numbers.
struct AttachedNodes<'a> {
    levels: &'a Levels,
    described: &'a [CpuId],
    nodes: Vec<Node>,
}

impl AttachedNodes<'_> {
    /// Adds the nodes inside an object of the level `depth`, then the nodes attached to the object.
    fn visit(&mut self, depth: usize, object: usize) {
        let all = &self.levels.all;
        if all[depth..].iter().all(|level| level.attached.is_empty()) {
            return;
        }
        if let Some(below) = all.get(depth + 1) {
            let children = (below.width / all[depth].width) as usize;
            for child in 0..children {
                self.visit(depth + 1, object * children + child);
            }
        }
        let size = self.described.len() / all[depth].width as usize;
        let near = &self.described[object * size..(object + 1) * size];
        for &bytes in &all[depth].attached {
            let os = number(self.levels.attached_numbers.as_ref(), self.nodes.len());
            self.nodes.push(Node {
                os,
                near: near.iter().copied().collect(),
                bytes,
            });
        }
    }
}
