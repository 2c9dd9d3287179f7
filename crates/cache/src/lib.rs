// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model of a set-associative cache: computes the hits, misses and evictions of a sequence of
//! accesses.
//!
//! An access searches a set for the line of a byte address. A miss inserts the line and, if the
//! set is full, evicts a line by the [`Replacement`] policy. An access costs O(ways) steps; the
//! memory is eight bytes per line of the cache. The number of sets and the bytes of a line (at
//! least 2) must be powers of two; other sizes are an error.
//!
//! The model has no clock. The caller defines the cost of a miss, and connects several caches if it
//! models a hierarchy.

/// Replacement policy: which line of a full set is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replacement {
    /// The least recently used line.
    #[default]
    Lru,
    /// The line that was inserted first, even if it has been used since.
    Fifo,
}

/// Size and structure of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    sets: usize,
    ways: usize,
    line_bytes: usize,
}

/// The error for sizes that no cache can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a cache cannot have {bytes} bytes, {ways} ways and lines of {line_bytes} bytes: the bytes \
     of a line (at least 2) and the number of sets must be powers of two, and sets x ways x line \
     must equal the size"
)]
pub struct GeometryError {
    /// Total bytes.
    pub bytes: usize,
    /// Lines per set.
    pub ways: usize,
    /// Bytes per line.
    pub line_bytes: usize,
}

impl Geometry {
    /// A cache of `bytes` bytes in sets of `ways` lines.
    ///
    /// # Errors
    /// The number of sets or the bytes of a line are not a power of two.
    pub fn new(bytes: usize, ways: usize, line_bytes: usize) -> Result<Self, GeometryError> {
        let error = GeometryError {
            bytes,
            ways,
            line_bytes,
        };
        let set_bytes = ways.checked_mul(line_bytes).filter(|&set| set > 0);
        let sets = bytes / set_bytes.ok_or(error)?;
        let fills = sets * ways * line_bytes == bytes;
        // Lines of one byte are rejected, because their line numbers could be `u64::MAX`, which
        // marks an empty entry.
        let is_line = line_bytes.is_power_of_two() && line_bytes > 1;
        match fills && sets.is_power_of_two() && is_line {
            true => Ok(Self {
                sets,
                ways,
                line_bytes,
            }),
            false => Err(error),
        }
    }

    /// Number of sets.
    pub fn sets(&self) -> usize {
        self.sets
    }

    /// Lines per set.
    pub fn ways(&self) -> usize {
        self.ways
    }

    /// Bytes per line.
    pub fn line_bytes(&self) -> usize {
        self.line_bytes
    }

    /// Total bytes.
    pub fn bytes(&self) -> usize {
        self.sets * self.ways * self.line_bytes
    }

    /// Number of the line that contains an address.
    pub fn line(&self, address: u64) -> u64 {
        address / self.line_bytes as u64
    }

    /// Index of the set that an address maps to.
    pub fn set(&self, address: u64) -> usize {
        self.line(address) as usize & (self.sets - 1)
    }
}

/// Result of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessOutcome {
    /// The line was cached.
    Hit,
    /// The line was not cached and has been inserted.
    Miss {
        /// Number of the evicted line, if the set was full.
        evicted: Option<u64>,
    },
}

impl AccessOutcome {
    /// Whether the line was cached.
    pub fn is_hit(self) -> bool {
        self == Self::Hit
    }
}

/// A cache with its contents.
#[derive(Debug, Clone)]
pub struct Cache {
    geometry: Geometry,
    replacement: Replacement,
    /// The line numbers of all sets. Set `s` occupies the `ways` entries from index `s * ways` on,
    /// with the next line to evict last. Empty entries are `EMPTY`, at the end of each set.
    lines: Vec<u64>,
}

/// Marks an empty entry.
const EMPTY: u64 = u64::MAX;

impl Cache {
    /// Creates an empty cache.
    pub fn new(geometry: Geometry, replacement: Replacement) -> Self {
        Self {
            geometry,
            replacement,
            lines: vec![EMPTY; geometry.sets * geometry.ways],
        }
    }

    /// Size and structure.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Accesses an address, for reading or writing. After the access, the line of the address is
    /// cached.
    pub fn access(&mut self, address: u64) -> AccessOutcome {
        let line = self.geometry.line(address);
        let replacement = self.replacement;
        let set = self.set_mut(address);
        let Some(way) = set.iter().position(|&other| other == line) else {
            set.rotate_right(1);
            let last = std::mem::replace(&mut set[0], line);
            let evicted = (last != EMPTY).then_some(last);
            return AccessOutcome::Miss { evicted };
        };
        if replacement == Replacement::Lru {
            set[..=way].rotate_right(1);
        }
        AccessOutcome::Hit
    }

    /// Returns whether the line of an address is cached. The query does not count as a use of the
    /// line.
    pub fn contains(&self, address: u64) -> bool {
        let line = self.geometry.line(address);
        let first = self.geometry.set(address) * self.geometry.ways;
        self.lines[first..first + self.geometry.ways].contains(&line)
    }

    /// Removes the line of an address; returns whether it was cached.
    pub fn invalidate(&mut self, address: u64) -> bool {
        let line = self.geometry.line(address);
        let set = self.set_mut(address);
        let Some(way) = set.iter().position(|&other| other == line) else {
            return false;
        };
        set[way..].rotate_left(1);
        set[set.len() - 1] = EMPTY;
        true
    }

    /// Removes all lines.
    pub fn clear(&mut self) {
        self.lines.fill(EMPTY);
    }

    fn set_mut(&mut self, address: u64) -> &mut [u64] {
        let ways = self.geometry.ways;
        let first = self.geometry.set(address) * ways;
        &mut self.lines[first..first + ways]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rejects_impossible_geometries() {
        let is_rejected = |bytes, ways, line| Geometry::new(bytes, ways, line).is_err();
        assert!(is_rejected(0, 1, 64) && is_rejected(8192, 0, 64) && is_rejected(8192, 2, 0));
        assert!(is_rejected(8192, 2, 96) && is_rejected(8192, 3, 64) && is_rejected(8200, 2, 64));
        assert!(is_rejected(8192, usize::MAX, 64) && is_rejected(64, 2, 1));
        let whole = Geometry::new(32_768, 8, 64).unwrap();
        assert_eq!((whole.sets(), whole.bytes()), (64, 32_768));
        assert_eq!((whole.line(0x1040), whole.set(0x1040)), (0x41, 1));
    }

    #[test]
    fn a_use_delays_eviction_under_lru_only() {
        for (replacement, keeps) in [(Replacement::Lru, true), (Replacement::Fifo, false)] {
            let mut cache = Cache::new(Geometry::new(128, 2, 64).unwrap(), replacement);
            for address in [0, 64, 0, 128] {
                cache.access(address);
            }
            assert_eq!(cache.contains(0), keeps, "{replacement:?}");
            assert_eq!(cache.contains(64), !keeps, "{replacement:?}");
        }
    }

    /// The reference model, with which a test compares the cache: one list of lines per set, the
    /// oldest line first.
    struct ReferenceCache {
        geometry: Geometry,
        replacement: Replacement,
        sets: Vec<VecDeque<u64>>,
    }

    impl ReferenceCache {
        fn access(&mut self, address: u64) -> AccessOutcome {
            let line = address / self.geometry.line_bytes() as u64;
            let set = &mut self.sets[(line % self.geometry.sets() as u64) as usize];
            if let Some(at) = set.iter().position(|&other| other == line) {
                if self.replacement == Replacement::Lru {
                    set.remove(at);
                    set.push_back(line);
                }
                return AccessOutcome::Hit;
            }
            set.push_back(line);
            let full = set.len() > self.geometry.ways();
            let evicted = if full { set.pop_front() } else { None };
            AccessOutcome::Miss { evicted }
        }

        fn invalidate(&mut self, address: u64) -> bool {
            let line = address / self.geometry.line_bytes() as u64;
            let set = &mut self.sets[(line % self.geometry.sets() as u64) as usize];
            let at = set.iter().position(|&other| other == line);
            at.is_some_and(|at| set.remove(at).is_some())
        }
    }

    proptest! {
        #[test]
        fn behaves_as_the_reference_model(
            sets_log in 0..4_u32, ways in 1..6_usize, fifo: bool,
            steps in prop::collection::vec((0..4096_u64, prop::bool::weighted(0.1)), 0..400),
        ) {
            let geometry = Geometry::new((ways * 64) << sets_log, ways, 64).unwrap();
            let replacement = if fifo { Replacement::Fifo } else { Replacement::Lru };
            let mut cache = Cache::new(geometry, replacement);
            let sets = vec![VecDeque::new(); geometry.sets()];
            let mut reference = ReferenceCache { geometry, replacement, sets };
            for (address, drops) in steps {
                match drops {
                    true => prop_assert_eq!(cache.invalidate(address), reference.invalidate(address)),
                    false => {
                        prop_assert_eq!(cache.access(address), reference.access(address));
                        prop_assert!(cache.contains(address));
                    }
                }
            }
        }
    }
}
