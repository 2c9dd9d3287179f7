// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formatting of counts, sizes, ranges and names in the drawing of a machine, and the description
//! of a machine in one sentence.
//!
//! At most three NUMA nodes are listed one by one; more nodes are listed as a range.

use std::collections::BTreeMap;

use usher_model::{Cache, NodeId, Topology};

/// Formats a count: `1 core`, `2 cores`.
pub(super) fn count(number: usize, thing: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{s}")
}

/// Formats a size in the largest binary unit in which it is at least 1, with one decimal unless the
/// decimal is 0.
pub(super) fn size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut scaled = bytes as f64;
    // The limit is below 1024, because 1023.95 would be formatted as 1024.0.
    while scaled >= 1023.95 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let text = format!("{scaled:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    format!("{text} {}", units[unit])
}

/// Formats a cache: `L3 32 MiB`.
pub(super) fn cache(llc: Option<Cache>) -> String {
    match llc {
        Some(Cache { level, bytes: 0 }) => format!("L{level}"),
        Some(Cache { level, bytes }) => format!("L{level} {}", size(bytes)),
        None => "no shared cache known".to_owned(),
    }
}

/// Formats the range of a figure over the machine: `2`, or `1-2` if the figure varies.
pub(super) fn span(figures: impl Iterator<Item = usize> + Clone) -> String {
    let least = figures.clone().min().unwrap_or(0);
    let most = figures.max().unwrap_or(0);
    match least == most {
        true => most.to_string(),
        false => format!("{least}-{most}"),
    }
}

/// Formats nodes: `node 0, 16 GiB + node 4, 4 GiB, memory only`; more than three nodes as `nodes
/// 0-7, 128 GiB`.
pub(super) fn nodes(topology: &Topology, ids: &[NodeId]) -> String {
    const LISTED: usize = 3;
    if ids.len() > LISTED {
        let numbers: usher_model::CpuSet = ids.iter().map(|&id| topology.nodes[id].os).collect();
        let bytes = ids.iter().map(|&id| topology.nodes[id].bytes).sum();
        return match bytes {
            0 => format!("nodes {numbers}"),
            bytes => format!("nodes {numbers}, {}", size(bytes)),
        };
    }
    ids.iter()
        .map(|&id| {
            let node = &topology.nodes[id];
            let mut text = format!("node {}", node.os);
            if node.bytes > 0 {
                text += &format!(", {}", size(node.bytes));
            }
            if node.cpus.is_empty() {
                text += ", memory only";
            }
            text
        })
        .collect::<Vec<_>>()
        .join(" + ")
}

/// Returns whether the cores have different capacities.
pub(super) fn is_hybrid(topology: &Topology) -> bool {
    topology.cores.iter().any(|core| core.capacity < 1.0)
}

/// Formats the classes of cores of a hybrid machine, fastest first: ` (4 of capacity 1.00, 8 of 0.72)`.
/// More than four classes are formatted as a range. Empty for a machine with equal cores.
fn classes(topology: &Topology) -> String {
    const LISTED: usize = 4;
    if !is_hybrid(topology) {
        return String::new();
    }
    // Capacities that look alike are one class.
    let mut classes: BTreeMap<u32, usize> = BTreeMap::new();
    for core in &topology.cores {
        *classes
            .entry((core.capacity * 100.0).round() as u32)
            .or_default() += 1;
    }
    let shown = |hundredths: u32| format!("{:.2}", f64::from(hundredths) / 100.0);
    if classes.len() > LISTED {
        let ends = classes.keys().next().zip(classes.keys().last());
        return ends.map_or_else(String::new, |(&least, &most)| {
            format!(" (of capacity {} to {})", shown(least), shown(most))
        });
    }
    let class = |(place, (&capacity, &cores)): (usize, (&u32, &usize))| match place {
        0 => format!("{cores} of capacity {}", shown(capacity)),
        _ => format!("{cores} of {}", shown(capacity)),
    };
    let classes: Vec<String> = classes.iter().rev().enumerate().map(class).collect();
    format!(" ({})", classes.join(", "))
}

/// Describes the machine in one sentence.
pub(super) fn headline(topology: &Topology) -> String {
    let threads = topology.cores.iter().map(|core| core.cpus.len());
    let domains = topology.domains.len();
    let domains = match topology.domains.iter().all(|d| d.llc.is_none()) {
        true => count(domains, "domain") + " (no shared cache known)",
        false => count(domains, "LLC domain"),
    };
    let mut cpus = count(topology.cpus.len(), "CPU");
    if topology.cpus.len() > topology.cores.len() {
        cpus += &format!(" (SMT {})", span(threads));
    }
    let dies: usize = topology.packages.iter().map(|p| p.dies.len()).sum();
    let mut facts = vec![count(topology.packages.len(), "package")];
    if dies > topology.packages.len() {
        facts.push(count(dies, "die"));
    }
    facts.push(domains);
    facts.push(count(topology.cores.len(), "core") + &classes(topology));
    facts.push(cpus);
    if !topology.nodes.is_empty() {
        facts.push(count(topology.nodes.len(), "NUMA node"));
    }
    let bytes: u64 = topology
        .nodes
        .iter()
        .fold(0, |sum, node| sum.saturating_add(node.bytes));
    if bytes > 0 {
        facts.push(size(bytes));
    }
    facts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_for_reading() {
        for (bytes, expected) in [
            (0, "0 bytes"),
            (512 << 10, "512 KiB"),
            (5118 << 10, "5 MiB"),
            (32 << 20, "32 MiB"),
            ((1 << 30) - 1, "1 GiB"),
            (10_026_692_608, "9.3 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn counts_and_ranges_are_formatted() {
        assert_eq!(
            (count(1, "core"), count(2, "core")),
            ("1 core".into(), "2 cores".into())
        );
        assert_eq!(span([2, 1, 2].into_iter()), "1-2");
        assert_eq!(span([4, 4].into_iter()), "4");
    }
}
