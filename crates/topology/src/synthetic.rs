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
mod numbers;
mod parse;

use crate::assemble::HwlocFacts;
use crate::error::quoted;

/// Maximum number of logical CPUs of a description: the maximum of Linux (`CONFIG_NR_CPUS` on
/// x86-64).
pub(crate) const CPUS_MAX: u64 = 8_192;
/// Maximum length of a description in bytes. A list of the numbers of 8,192 CPUs has 38,849 bytes.
const LENGTH_MAX: usize = 65_536;

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

/// The type of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LevelType {
    Machine,
    Package,
    Die,
    Group,
    NumaNode,
    /// A data or unified cache of this level.
    Cache(u8),
    /// An instruction cache of this level.
    InstructionCache(u8),
    /// A memory-side cache, which is only valid in brackets.
    MemoryCache,
    Core,
    Pu,
}

impl LevelType {
    fn is_cache(self) -> bool {
        matches!(
            self,
            Self::Cache(_) | Self::InstructionCache(_) | Self::MemoryCache
        )
    }
}

/// The attributes of a level or of attached memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Attributes {
    /// Size of the cache or of the memory, in bytes.
    bytes: Option<u64>,
    /// The value of `indexes=` and its position.
    indexes: Option<(String, usize)>,
}

/// Objects of one type, with the same number of objects in each object of the level above.
#[derive(Debug, Clone)]
struct Level {
    level_type: LevelType,
    /// Total number of objects of this level.
    width: u64,
    attributes: Attributes,
    /// The memory that is attached to each object: sizes in bytes.
    attached: Vec<u64>,
    /// The numbers of the objects, if the description gives them.
    numbers: Option<Vec<u32>>,
}

/// The levels of a checked description: first the machine, last the logical CPUs.
#[derive(Debug, Clone)]
struct Levels {
    all: Vec<Level>,
    /// The numbers of the attached NUMA nodes, if the description gives them.
    attached_numbers: Option<Vec<u32>>,
    /// The parts of the description that have no effect, one line each.
    notes: Vec<String>,
}

/// The text of an error with its position, counted in characters from 1.
fn at(position: usize, reason: impl std::fmt::Display) -> String {
    format!("at character {}: {reason}", position + 1)
}

#[cfg(test)]
mod tests;
