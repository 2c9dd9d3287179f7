// SPDX-License-Identifier: MIT OR Apache-2.0
//! Levels of the type `Cache` without a number, which hwloc 1 writes and reads, and hwloc 2 writes with
//! the flag `no_extended_types` of `lstopo --export-synthetic-flags`.
//!
//! 1. As in hwloc 1, the innermost cache is the L1, the next one the L2 and so on; a single cache is
//!    an L2.
//! 2. hwloc 2 writes the L1 instruction cache as a further level inside the L1 data cache. The
//!    innermost of several caches is an instruction cache if the cache above it has as many
//!    objects, and both have at most 256 KiB. Without sizes, it is one if there are at least four
//!    caches.

use super::level::{Level, LevelType, at};

/// The type of a level that is not yet numbered.
pub(super) const GENERIC: LevelType = LevelType::Cache(0);

/// Maximum size of an L1 cache.
const L1_BYTES_MAX: u64 = 256 << 10;

/// Numbers the generic caches. `positions` are those of the levels in the description.
///
/// # Errors
/// Returns an error with a position, if there are more than five caches.
pub(super) fn number(levels: &mut [Level], positions: &[usize]) -> Result<(), String> {
    let mut caches: Vec<usize> = (0..levels.len())
        .filter(|&index| levels[index].level_type == GENERIC)
        .collect();
    let has_instructions = ends_with_instructions(levels, &caches);
    if has_instructions && let Some(last) = caches.pop() {
        levels[last].level_type = LevelType::InstructionCache(1);
    }
    let single = caches.len() == 1 && !has_instructions;
    for (place, &cache) in caches.iter().rev().enumerate() {
        let level = place + 1 + usize::from(single);
        if level > 5 {
            return Err(at(
                positions[cache],
                "the description has more than 5 caches",
            ));
        }
        levels[cache].level_type = LevelType::Cache(level as u8);
    }
    Ok(())
}

fn ends_with_instructions(levels: &[Level], caches: &[usize]) -> bool {
    let [.., data, last] = caches else {
        return false;
    };
    let (data, last) = (&levels[*data], &levels[*last]);
    let is_small = |bytes: u64| bytes <= L1_BYTES_MAX;
    let small = match (data.attributes.bytes, last.attributes.bytes) {
        (Some(data), Some(last)) => is_small(data) && is_small(last),
        _ => caches.len() >= 4,
    };
    data.width == last.width && small
}
