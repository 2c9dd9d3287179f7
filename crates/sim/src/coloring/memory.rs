// SPDX-License-Identifier: MIT OR Apache-2.0
//! The second-level caches of a machine with several CPUs, kept coherent.
//!
//! Each CPU has one of its own. A write takes the line out of all others, so that
//! their next look misses. What a CPU looks at again without having looked at
//! another line meanwhile is in its first level and costs nothing here; the rest
//! of the first level is not modelled: between two walks a task runs through more
//! than its 16 KB.

use usher_cache::{Cache, Geometry, Replacement};

/// How often, for one kind of access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Looks {
    /// Reads and writes that reached the second level.
    pub requests: u64,
    /// Those that it did not hold.
    pub misses: u64,
}

impl Looks {
    /// Misses a request; 0 without any.
    pub fn miss_ratio(self) -> f64 {
        match self.requests {
            0 => 0.0,
            requests => self.misses as f64 / requests as f64,
        }
    }
}

impl std::ops::Sub for Looks {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            requests: self.requests - earlier.requests,
            misses: self.misses - earlier.misses,
        }
    }
}

/// The caches.
#[derive(Debug, Clone)]
pub struct Memory {
    caches: Vec<Cache>,
    /// The line that each CPU looked at last.
    last: Vec<u64>,
}

/// No line.
const NONE: u64 = u64::MAX;

impl Memory {
    /// Empty ones, least recently used out first.
    pub fn new(cpus: usize, geometry: Geometry) -> Self {
        Self {
            caches: vec![Cache::new(geometry, Replacement::Lru); cpus],
            last: vec![NONE; cpus],
        }
    }

    /// A CPU reads; what the second level saw of it is added to `looks`.
    #[inline]
    pub fn read(&mut self, cpu: usize, address: u64, looks: &mut Looks) {
        let cache = &mut self.caches[cpu];
        let line = cache.geometry().line(address);
        if self.last[cpu] == line {
            return;
        }
        self.last[cpu] = line;
        looks.requests += 1;
        looks.misses += u64::from(!cache.access(address).is_hit());
    }

    /// A CPU writes: nobody else has the line afterwards.
    #[inline]
    pub fn write(&mut self, cpu: usize, address: u64, looks: &mut Looks) {
        self.read(cpu, address, looks);
        let line = self.last[cpu];
        for (other, cache) in self.caches.iter_mut().enumerate() {
            if other != cpu {
                cache.invalidate(address);
                if self.last[other] == line {
                    self.last[other] = NONE;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What each CPU has, as a list in the order of the last looks.
    struct Lists {
        lines: Vec<Vec<u64>>,
        last: Vec<Option<u64>>,
        sets: u64,
        ways: usize,
    }

    impl Lists {
        /// Whether the CPU's second level was asked, and had it.
        fn look(&mut self, cpu: usize, line: u64) -> Option<bool> {
            if self.last[cpu].replace(line) == Some(line) {
                return None;
            }
            let lines = &mut self.lines[cpu];
            let had = lines.contains(&line);
            lines.retain(|&other| other != line);
            lines.push(line);
            let of_set = |&&other: &&u64| other % self.sets == line % self.sets;
            if lines.iter().filter(of_set).count() > self.ways {
                let oldest = lines.iter().position(|other| of_set(&other));
                lines.remove(oldest.unwrap());
            }
            Some(had)
        }

        fn written(&mut self, by: usize, line: u64) {
            for cpu in (0..self.lines.len()).filter(|&cpu| cpu != by) {
                self.lines[cpu].retain(|&other| other != line);
                self.last[cpu] = self.last[cpu].filter(|&last| last != line);
            }
        }
    }

    proptest! {
        #[test]
        fn as_lists_of_lines_do(
            steps in prop::collection::vec((0..3_usize, 0..24_u64, prop::bool::weighted(0.2)), 0..300),
        ) {
            let mut memory = Memory::new(3, Geometry::new(256, 2, 32).unwrap());
            let mut lists = Lists { lines: vec![vec![]; 3], last: vec![None; 3], sets: 4, ways: 2 };
            for (cpu, line, writes) in steps {
                let mut looks = Looks::default();
                match writes {
                    true => memory.write(cpu, line * 32 + 4, &mut looks),
                    false => memory.read(cpu, line * 32 + 8, &mut looks),
                }
                let had = lists.look(cpu, line);
                prop_assert_eq!(looks.requests, u64::from(had.is_some()));
                prop_assert_eq!(looks.misses, u64::from(had == Some(false)));
                if writes {
                    lists.written(cpu, line);
                }
            }
        }
    }
}
