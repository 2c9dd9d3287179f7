// SPDX-License-Identifier: MIT OR Apache-2.0
//! The levels of a description, and the limits and error texts that its readers share.

/// Maximum number of logical CPUs of a description: the maximum of Linux (`CONFIG_NR_CPUS` on
/// x86-64).
pub(super) const CPUS_MAX: u64 = 8_192;
/// Maximum length of a description in bytes. A list of the numbers of 8,192 CPUs has 38,849 bytes.
pub(super) const LENGTH_MAX: usize = 65_536;

/// The type of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LevelType {
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
    pub(super) fn is_cache(self) -> bool {
        matches!(
            self,
            Self::Cache(_) | Self::InstructionCache(_) | Self::MemoryCache
        )
    }
}

/// The attributes of a level or of attached memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    /// Size of the cache or of the memory, in bytes.
    pub(super) bytes: Option<u64>,
    /// The value of `indexes=` and its position.
    pub(super) indexes: Option<(String, usize)>,
}

/// Objects of one type, with the same number of objects in each object of the level above.
#[derive(Debug, Clone)]
pub(super) struct Level {
    pub(super) level_type: LevelType,
    /// Total number of objects of this level.
    pub(super) width: u64,
    pub(super) attributes: Attributes,
    /// The memory that is attached to each object: sizes in bytes.
    pub(super) attached: Vec<u64>,
    /// The numbers of the objects, if the description gives them.
    pub(super) numbers: Option<Vec<u32>>,
}

/// The levels of a checked description: first the machine, last the logical CPUs.
#[derive(Debug, Clone)]
pub(super) struct Levels {
    pub(super) all: Vec<Level>,
    /// The numbers of the attached NUMA nodes, if the description gives them.
    pub(super) attached_numbers: Option<Vec<u32>>,
    /// The parts of the description that have no effect, one line each.
    pub(super) notes: Vec<String>,
}

/// The text of an error with its position, counted in characters from 1.
pub(super) fn at(position: usize, reason: impl std::fmt::Display) -> String {
    format!("at character {}: {reason}", position + 1)
}
