// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates the coherent second-level caches of a machine with several CPUs, and counts requests
//! and misses.
//!
//! Each CPU has a cache of its own with LRU replacement. A write invalidates the line in all other
//! caches; the next access of another CPU to the line therefore misses. An access of a CPU to the
//! line that it accessed last is a hit in the first level, and is not counted. Limit: the first
//! level is not modelled further, because a task accesses more than its 16 KB between two walks.

use usher_cache::{Cache, Geometry, Replacement};

/// Counters of the requests of one kind of access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheRequests {
    /// Number of reads and writes that reached the second level.
    pub requests: u64,
    /// Number of requests that missed the second level.
    pub misses: u64,
}

impl CacheRequests {
    /// Returns misses / requests; 0 without requests.
    pub fn miss_ratio(self) -> f64 {
        match self.requests {
            0 => 0.0,
            requests => self.misses as f64 / requests as f64,
        }
    }
}

impl std::ops::Sub for CacheRequests {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            requests: self.requests - earlier.requests,
            misses: self.misses - earlier.misses,
        }
    }
}

/// The caches of all CPUs.
#[derive(Debug, Clone)]
pub struct CoherentCaches {
    caches: Vec<Cache>,
    /// The last accessed line of each CPU.
    last: Vec<u64>,
}

/// Value for no line.
const NONE: u64 = u64::MAX;

impl CoherentCaches {
    /// Creates empty caches with LRU replacement.
    pub fn new(cpus: usize, geometry: Geometry) -> Self {
        Self {
            caches: vec![Cache::new(geometry, Replacement::Lru); cpus],
            last: vec![NONE; cpus],
        }
    }

    /// Reads a line. If the read reaches the second level, it is added to `counters`.
    #[inline]
    pub fn read(&mut self, cpu: usize, address: u64, counters: &mut CacheRequests) {
        let cache = &mut self.caches[cpu];
        let line = cache.geometry().line(address);
        if self.last[cpu] == line {
            return;
        }
        self.last[cpu] = line;
        counters.requests += 1;
        counters.misses += u64::from(!cache.access(address).is_hit());
    }

    /// Writes a line, and invalidates it in all other caches. If the write reaches the second
    /// level, it is added to `counters`.
    #[inline]
    pub fn write(&mut self, cpu: usize, address: u64, counters: &mut CacheRequests) {
        self.read(cpu, address, counters);
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

    /// Reference model: the content of each CPU's cache as a list of lines, in the order of their
    /// last accesses.
    struct Lists {
        lines: Vec<Vec<u64>>,
        last: Vec<Option<u64>>,
        sets: u64,
        ways: usize,
    }

    impl Lists {
        /// Accesses a line. Returns whether the request hit the CPU's second level; `None` if the
        /// first level served the request.
        fn access(&mut self, cpu: usize, line: u64) -> Option<bool> {
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
        fn matches_a_model_of_lists_of_lines(
            steps in prop::collection::vec((0..3_usize, 0..24_u64, prop::bool::weighted(0.2)), 0..300),
        ) {
            let mut memory = CoherentCaches::new(3, Geometry::new(256, 2, 32).unwrap());
            let mut lists = Lists { lines: vec![vec![]; 3], last: vec![None; 3], sets: 4, ways: 2 };
            for (cpu, line, writes) in steps {
                let mut requests = CacheRequests::default();
                match writes {
                    true => memory.write(cpu, line * 32 + 4, &mut requests),
                    false => memory.read(cpu, line * 32 + 8, &mut requests),
                }
                let had = lists.access(cpu, line);
                prop_assert_eq!(requests.requests, u64::from(had.is_some()));
                prop_assert_eq!(requests.misses, u64::from(had == Some(false)));
                if writes {
                    lists.written(cpu, line);
                }
            }
        }
    }
}
