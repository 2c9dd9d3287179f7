// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model of a set-associative cache: which accesses hit, and what they throw out.
//!
//! Addresses are bytes of whatever memory the caller models. There are no clocks
//! here: what a miss costs is the caller's business, and so is what several caches
//! are to one another.

/// Which line of a full set makes room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replacement {
    /// The one whose last use is longest ago.
    #[default]
    Lru,
    /// The one that came first, used since or not.
    Fifo,
}

/// How large a cache is, and how it is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    sets: usize,
    ways: usize,
    line_bytes: usize,
}

/// A cache that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a cache of {bytes} bytes, {ways} ways, lines of {line_bytes}: the bytes of a line, two at \
     least, and the number of sets must be powers of two, and fill it"
)]
pub struct GeometryError {
    /// Bytes of the whole.
    pub bytes: usize,
    /// Lines a set.
    pub ways: usize,
    /// Bytes a line.
    pub line_bytes: usize,
}

impl Geometry {
    /// A cache of `bytes` bytes in sets of `ways` lines.
    ///
    /// # Errors
    /// Where sets or the bytes of a line would not be a power of two in number.
    pub fn new(bytes: usize, ways: usize, line_bytes: usize) -> Result<Self, GeometryError> {
        let wrong = GeometryError {
            bytes,
            ways,
            line_bytes,
        };
        let set_bytes = ways.checked_mul(line_bytes).filter(|&set| set > 0);
        let sets = bytes / set_bytes.ok_or(wrong)?;
        let fills = sets * ways * line_bytes == bytes;
        // With lines of a byte their numbers would be all that there are.
        let is_line = line_bytes.is_power_of_two() && line_bytes > 1;
        match fills && sets.is_power_of_two() && is_line {
            true => Ok(Self {
                sets,
                ways,
                line_bytes,
            }),
            false => Err(wrong),
        }
    }

    /// How many sets there are.
    pub fn sets(&self) -> usize {
        self.sets
    }

    /// Lines a set.
    pub fn ways(&self) -> usize {
        self.ways
    }

    /// Bytes a line.
    pub fn line_bytes(&self) -> usize {
        self.line_bytes
    }

    /// Bytes of the whole.
    pub fn bytes(&self) -> usize {
        self.sets * self.ways * self.line_bytes
    }

    /// The number of the line that an address lies in.
    pub fn line(&self, address: u64) -> u64 {
        address / self.line_bytes as u64
    }

    /// The set that an address belongs to.
    pub fn set(&self, address: u64) -> usize {
        self.line(address) as usize & (self.sets - 1)
    }
}

/// What became of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The line was there.
    Hit,
    /// It was not, and is now.
    Miss {
        /// The number of the line that made room, if the set was full.
        evicted: Option<u64>,
    },
}

impl Access {
    /// Whether the line was there.
    pub fn is_hit(self) -> bool {
        self == Self::Hit
    }
}

/// A cache and what is in it.
#[derive(Debug, Clone)]
pub struct Cache {
    geometry: Geometry,
    replacement: Replacement,
    /// Set `s` is those from `s * ways` on, the first to go last; `NONE` after all.
    lines: Vec<u64>,
}

/// A place without a line.
const NONE: u64 = u64::MAX;

impl Cache {
    /// An empty one.
    pub fn new(geometry: Geometry, replacement: Replacement) -> Self {
        Self {
            geometry,
            replacement,
            lines: vec![NONE; geometry.sets * geometry.ways],
        }
    }

    /// How large it is.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Reads or writes at an address; the line is there afterwards.
    pub fn access(&mut self, address: u64) -> Access {
        let line = self.geometry.line(address);
        let replacement = self.replacement;
        let set = self.set_of(address);
        let Some(way) = set.iter().position(|&other| other == line) else {
            set.rotate_right(1);
            let last = std::mem::replace(&mut set[0], line);
            let evicted = (last != NONE).then_some(last);
            return Access::Miss { evicted };
        };
        if replacement == Replacement::Lru {
            set[..=way].rotate_right(1);
        }
        Access::Hit
    }

    /// Whether the line of that address is there; changes nothing.
    pub fn holds(&self, address: u64) -> bool {
        let line = self.geometry.line(address);
        let first = self.geometry.set(address) * self.geometry.ways;
        self.lines[first..first + self.geometry.ways].contains(&line)
    }

    /// Drops the line of that address; whether it was there.
    pub fn invalidate(&mut self, address: u64) -> bool {
        let line = self.geometry.line(address);
        let set = self.set_of(address);
        let Some(way) = set.iter().position(|&other| other == line) else {
            return false;
        };
        set[way..].rotate_left(1);
        set[set.len() - 1] = NONE;
        true
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.lines.fill(NONE);
    }

    fn set_of(&mut self, address: u64) -> &mut [u64] {
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
    fn what_cannot_be_is_refused() {
        let refused = |bytes, ways, line| Geometry::new(bytes, ways, line).is_err();
        assert!(refused(0, 1, 64) && refused(8192, 0, 64) && refused(8192, 2, 0));
        assert!(refused(8192, 2, 96) && refused(8192, 3, 64) && refused(8200, 2, 64));
        assert!(refused(8192, usize::MAX, 64) && refused(64, 2, 1));
        let whole = Geometry::new(32_768, 8, 64).unwrap();
        assert_eq!((whole.sets(), whole.bytes()), (64, 32_768));
        assert_eq!((whole.line(0x1040), whole.set(0x1040)), (0x41, 1));
    }

    #[test]
    fn a_use_keeps_a_line_under_lru_and_not_under_fifo() {
        for (replacement, keeps) in [(Replacement::Lru, true), (Replacement::Fifo, false)] {
            let mut cache = Cache::new(Geometry::new(128, 2, 64).unwrap(), replacement);
            for address in [0, 64, 0, 128] {
                cache.access(address);
            }
            assert_eq!(cache.holds(0), keeps, "{replacement:?}");
            assert_eq!(cache.holds(64), !keeps, "{replacement:?}");
        }
    }

    /// The same by lists of whole lines, oldest in front.
    struct Lists {
        geometry: Geometry,
        replacement: Replacement,
        sets: Vec<VecDeque<u64>>,
    }

    impl Lists {
        fn access(&mut self, address: u64) -> Access {
            let line = address / self.geometry.line_bytes() as u64;
            let set = &mut self.sets[(line % self.geometry.sets() as u64) as usize];
            if let Some(at) = set.iter().position(|&other| other == line) {
                if self.replacement == Replacement::Lru {
                    set.remove(at);
                    set.push_back(line);
                }
                return Access::Hit;
            }
            set.push_back(line);
            let full = set.len() > self.geometry.ways();
            let evicted = if full { set.pop_front() } else { None };
            Access::Miss { evicted }
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
        fn as_lists_of_lines_do(
            sets_log in 0..4_u32, ways in 1..6_usize, fifo: bool,
            steps in prop::collection::vec((0..4096_u64, prop::bool::weighted(0.1)), 0..400),
        ) {
            let geometry = Geometry::new((ways * 64) << sets_log, ways, 64).unwrap();
            let replacement = if fifo { Replacement::Fifo } else { Replacement::Lru };
            let mut cache = Cache::new(geometry, replacement);
            let sets = vec![VecDeque::new(); geometry.sets()];
            let mut lists = Lists { geometry, replacement, sets };
            for (address, drops) in steps {
                match drops {
                    true => prop_assert_eq!(cache.invalidate(address), lists.invalidate(address)),
                    false => {
                        prop_assert_eq!(cache.access(address), lists.access(address));
                        prop_assert!(cache.holds(address));
                    }
                }
            }
        }
    }
}
