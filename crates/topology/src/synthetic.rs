// SPDX-License-Identifier: MIT OR Apache-2.0
//! One-line descriptions of a machine, in the synthetic syntax of hwloc 2 and 3.
//!
//! A description is a list of levels from large to small, each with a type and the number of
//! objects in each object of the level above: `package:4 die:2 core:6 pu:1`. Attributes follow a
//! level in parentheses. `[NUMANode(memory=8GB)]` attaches memory to each object of the level
//! before it. `lstopo --of synthetic` writes descriptions in this syntax.
//!
//! 1. `parse` reads the text and checks each level, with the position of the first error.
//! 2. `indexes` expands `indexes=`, the numbers of the CPUs or NUMA nodes.
//! 3. `build` converts the levels to the facts from which `assemble.rs` builds the machine.
//!
//! The result is that of hwloc 2.9 (test `hwloc_builds_the_same_machine`), with these differences:
//! hwloc ignores an invalid `indexes=`, which is an error here; a last level that is not `pu` gets
//! one hardware thread per core; the level `Machine` is accepted; a bracket may contain a
//! memory-side cache with its NUMA node. The size of a memory-side cache (`memorysidecachesize`, or
//! `MemCache` in brackets) has no effect, because such a cache is no last-level cache of the cores.
//! An unknown attribute has no effect, and a note reports it.
//!
//! Limits: 65,536 bytes of ASCII, 8,192 CPUs, 8,192 as the number of a single level and of attached
//! NUMA nodes, 126 levels. The time is of order text + levels x CPUs x log CPUs.

mod build;
mod generic;
mod indexes;
mod level;
mod numbers;
mod parse;

use crate::assemble::HwlocFacts;
use level::LevelType;

/// Checks the description, without building the machine.
///
/// # Errors
/// Returns one line with the reason and its position, without the description itself.
pub(crate) fn check(description: &str) -> Result<(), String> {
    parse::levels(description).map(|_| ())
}

/// The level of a data or unified cache from level 2 up: 3 for `L3Cache` or `L3`.
pub(crate) fn cache_level(type_name: &str) -> Option<u8> {
    match parse::type_of(type_name)? {
        LevelType::Cache(level @ 2..) => Some(level),
        _ => None,
    }
}

/// Returns the facts about the described machine.
///
/// # Errors
/// As [`check`].
pub(crate) fn facts(description: &str) -> Result<HwlocFacts, String> {
    let levels = parse::levels(description)?;
    let name = description.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(build::facts(&levels, name))
}

#[cfg(test)]
mod tests;
