// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates the caches and the memory of the chip, and computes the cost of each access in cycles
//! of a core.
//!
//! Each core has an instruction cache and a data cache (first level). All cores share the
//! second-level cache in front of memory. A store that misses the data cache does not load the line
//! into the data cache. A store to shared memory invalidates the line in the data caches of all
//! other cores.
//!
//! There are two cost models of a miss ([`MissModel`]). The behaviour of the caches does not depend
//! on the cost model.
//!
//! - *Uniform*, as in the paper's simulator: each first-level miss stalls its core for 10 cycles,
//!   and each second-level miss for another 200 cycles, independent of other accesses.
//! - *Contended*, as on the paper's board: accesses queue. The second level serves one access at a
//!   time. Memory transfers one line at a time, and takes longer if another row of the memory bank
//!   is open. A load or fetch stalls its core until the requested word has arrived, which is before
//!   the rest of the line; this also applies if another core has already requested the line. A
//!   store enters the core's write buffer, and stalls the core only if the buffer is full.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use usher_cache::{AccessOutcome as Found, Cache, Geometry, GeometryError, Replacement};

use crate::graph::AccessKind;

/// Cost model of misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissModel {
    /// Constant costs (the paper's simulator, Table 3).
    Uniform,
    /// Accesses queue for shared resources (the paper's board, Table 2).
    Contended,
}

/// Caches of the chip (paper 5, Table 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caches {
    /// Size of each core's instruction cache, and of its data cache.
    pub l1_bytes: usize,
    /// Number of ways of a first-level cache.
    pub l1_ways: usize,
    /// Line size of the first level in bytes.
    pub l1_line_bytes: usize,
    /// Size of the shared second level.
    pub l2_bytes: usize,
    /// Number of ways of the second-level cache.
    pub l2_ways: usize,
    /// Line size of the second level in bytes.
    pub l2_line_bytes: usize,
    /// Replacement policies of the first level and of the second level.
    pub replacement: (Replacement, Replacement),
}

impl Caches {
    /// Returns the caches of the paper's chip, with a second-level cache of `l2_bytes` bytes.
    pub fn paper(l2_bytes: usize) -> Self {
        Self {
            l1_bytes: 8 << 10,
            l1_ways: 2,
            l1_line_bytes: 64,
            l2_bytes,
            l2_ways: 4,
            l2_line_bytes: 256,
            replacement: (Replacement::Fifo, Replacement::Lru),
        }
    }
}

/// Latencies, in cycles of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// Cost of a first-level miss that hits the second level.
    pub l1_miss_cycles: u64,
    /// Additional cost of a second-level miss in the uniform model: until the whole line has
    /// arrived.
    pub l2_miss_cycles: u64,
    /// Additional cost of a second-level miss in the contended model with idle memory: until the
    /// requested word has arrived, ahead of the rest of the line.
    pub first_word_cycles: u64,
    /// Time for which an access occupies the second-level cache.
    pub l2_busy_cycles: u64,
    /// Time for which the transfer of a line occupies memory.
    pub line_busy_cycles: u64,
    /// Additional time for opening another row of a memory bank.
    pub row_cycles: u64,
    /// Maximum number of outstanding stores of a core.
    pub write_buffer: usize,
}

/// Counters of cache and memory events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCounts {
    /// Number of instruction words of four bytes that were fetched.
    pub fetched_words: u64,
    /// Number of data words of four bytes that were loaded or stored.
    pub data_words: u64,
    /// Misses of the instruction caches.
    pub l1_fetch_misses: u64,
    /// Misses of the data caches.
    pub l1_data_misses: u64,
    /// Misses of the shared cache.
    pub l2_misses: u64,
    /// Lines written back to memory.
    pub written_back: u64,
    /// Cycles in which memory was busy.
    pub bus_cycles: u64,
}

impl CacheCounts {
    /// Misses of the instruction caches and the data caches.
    pub fn l1_misses(&self) -> u64 {
        self.l1_fetch_misses + self.l1_data_misses
    }

    /// Returns the difference to an earlier state of the counters.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            fetched_words: self.fetched_words - before.fetched_words,
            data_words: self.data_words - before.data_words,
            l1_fetch_misses: self.l1_fetch_misses - before.l1_fetch_misses,
            l1_data_misses: self.l1_data_misses - before.l1_data_misses,
            l2_misses: self.l2_misses - before.l2_misses,
            written_back: self.written_back - before.written_back,
            bus_cycles: self.bus_cycles - before.bus_cycles,
        }
    }
}

/// Number of memory banks, and size of a row of a bank in bytes. In each bank, one row is open.
const BANKS: usize = 4;
const ROW_BYTES: u64 = 2048;

/// The memory behind the caches, which transfers one line at a time.
#[derive(Debug, Clone)]
struct Bus {
    free: u64,
    busy: u64,
    open: [u64; BANKS],
}

impl Bus {
    /// Transfers the line of `address` at the time `at`, or as soon as memory is free. Returns the
    /// start time, and whether another row had to be opened.
    fn occupy(&mut self, at: u64, address: u64, timing: &Timing) -> (u64, bool) {
        let row = address / ROW_BYTES;
        let open = &mut self.open[row as usize % BANKS];
        let changes_row = std::mem::replace(open, row) != row;
        let begins = at.max(self.free);
        let more = if changes_row { timing.row_cycles } else { 0 };
        self.free = begins + timing.line_busy_cycles + more;
        self.busy += self.free - begins;
        (begins, changes_row)
    }
}

/// A line of memory in the second level.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    /// Time at which the requested word of the line arrives from memory.
    arrives: u64,
    /// Whether the line was written and differs from memory.
    dirty: bool,
}

/// An access to a first-level line, with the work before the access. If `bytes` is 0, there is only
/// work.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryAccess {
    pub kind: AccessKind,
    pub address: u64,
    pub bytes: u64,
    /// Whether other cores may have the line in their caches.
    pub shared: bool,
    /// Cycles of work before the access.
    pub cycles: u64,
}

/// State of all caches, of memory and of the write buffers.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    mode: MissModel,
    timing: Timing,
    fetch: Vec<Cache>,
    data: Vec<Cache>,
    l2: Cache,
    lines: Vec<Line>,
    l2_free: u64,
    bus: Bus,
    /// For each core, the completion times of the stores in its write buffer.
    writes: Vec<VecDeque<u64>>,
    pub counts: CacheCounts,
}

impl Memory {
    /// Creates empty caches in front of `bytes` bytes of memory.
    pub fn new(
        caches: &Caches,
        cores: usize,
        bytes: u64,
        timing: Timing,
        mode: MissModel,
    ) -> Result<Self, GeometryError> {
        let l1 = Geometry::new(caches.l1_bytes, caches.l1_ways, caches.l1_line_bytes)?;
        let l2 = Geometry::new(caches.l2_bytes, caches.l2_ways, caches.l2_line_bytes)?;
        let first = Cache::new(l1, caches.replacement.0);
        Ok(Self {
            mode,
            timing,
            fetch: vec![first.clone(); cores],
            data: vec![first; cores],
            l2: Cache::new(l2, caches.replacement.1),
            lines: vec![Line::default(); l2.line(bytes) as usize + 1],
            l2_free: 0,
            bus: Bus {
                free: 0,
                busy: 0,
                open: [u64::MAX; BANKS],
            },
            writes: vec![VecDeque::new(); cores],
            counts: CacheCounts::default(),
        })
    }

    /// Line size of the first level in bytes.
    pub fn l1_line_bytes(&self) -> u64 {
        self.data
            .first()
            .map_or(1, |cache| cache.geometry().line_bytes() as u64)
    }

    /// Accesses a line in a first-level cache of a core. Returns whether the access hit; after a
    /// miss, the caller must call [`Self::fill`].
    pub fn touch(&mut self, core: usize, touch: &MemoryAccess) -> bool {
        let MemoryAccess { kind, address, .. } = *touch;
        let words = touch.bytes.div_ceil(4);
        let cache = match kind {
            AccessKind::Fetch => {
                self.counts.fetched_words += words;
                &mut self.fetch[core]
            }
            AccessKind::Load | AccessKind::Store => {
                self.counts.data_words += words;
                &mut self.data[core]
            }
        };
        let hit = match kind {
            AccessKind::Store => cache.contains(address),
            AccessKind::Fetch | AccessKind::Load => cache.access(address).is_hit(),
        };
        if kind == AccessKind::Store {
            self.lines[self.l2.geometry().line(address) as usize].dirty = true;
            if touch.shared {
                for (other, cache) in self.data.iter_mut().enumerate() {
                    if other != core {
                        cache.invalidate(address);
                    }
                }
            }
        }
        hit
    }

    /// Requests a line from the second level after a first-level miss at the time `now`. Returns
    /// the cycles for which the core stalls.
    pub fn fill(&mut self, core: usize, kind: AccessKind, address: u64, now: u64) -> u64 {
        match kind {
            AccessKind::Fetch => self.counts.l1_fetch_misses += 1,
            AccessKind::Load | AccessKind::Store => self.counts.l1_data_misses += 1,
        }
        let found = self.l2.access(address);
        self.counts.l2_misses += u64::from(!found.is_hit());
        match self.mode {
            MissModel::Uniform => {
                self.write_back(found, now);
                let beyond = if found.is_hit() {
                    0
                } else {
                    self.timing.l2_miss_cycles
                };
                self.timing.l1_miss_cycles + beyond
            }
            MissModel::Contended => {
                let there = self.there(found, address, now);
                match kind {
                    AccessKind::Store => self.buffer(core, now, there),
                    AccessKind::Fetch | AccessKind::Load => there - now,
                }
            }
        }
    }

    /// Returns the time at which the core has the word that it requested at the time `now`.
    fn there(&mut self, found: Found, address: u64, now: u64) -> u64 {
        let timing = self.timing;
        let begins = now.max(self.l2_free);
        self.l2_free = begins + timing.l2_busy_cycles;
        let replied_at = begins + timing.l1_miss_cycles;
        let line = self.l2.geometry().line(address) as usize;
        if found.is_hit() {
            return replied_at.max(self.lines[line].arrives);
        }
        let (moved, changes_row) = self.bus.occupy(replied_at, address, &timing);
        let more = if changes_row { timing.row_cycles } else { 0 };
        let there = moved + timing.first_word_cycles + more;
        self.lines[line].arrives = there;
        self.write_back(found, self.bus.free);
        self.counts.bus_cycles = self.bus.busy;
        there
    }

    /// Writes the evicted line back to memory if it is dirty.
    fn write_back(&mut self, found: Found, at: u64) {
        let Found::Miss {
            evicted: Some(line),
        } = found
        else {
            return;
        };
        if !std::mem::take(&mut self.lines[line as usize].dirty) {
            return;
        }
        self.counts.written_back += 1;
        if self.mode == MissModel::Contended {
            let address = line * self.l2.geometry().line_bytes() as u64;
            self.bus.occupy(at, address, &self.timing);
        }
    }

    /// Puts a store that completes at the time `done` into the write buffer. Returns the cycles for
    /// which the core stalls because the buffer is full.
    fn buffer(&mut self, core: usize, now: u64, done: u64) -> u64 {
        let writes = &mut self.writes[core];
        while writes.front().is_some_and(|&first| first <= now) {
            writes.pop_front();
        }
        let mut stall = 0;
        if writes.len() >= self.timing.write_buffer.max(1)
            && let Some(first) = writes.pop_front()
        {
            stall = first - now;
        }
        // Stores complete in the order in which they were issued.
        let done = writes.back().map_or(done, |&last| last.max(done));
        writes.push_back(done);
        stall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing = Timing {
        l1_miss_cycles: 10,
        l2_miss_cycles: 200,
        first_word_cycles: 150,
        l2_busy_cycles: 2,
        line_busy_cycles: 100,
        row_cycles: 20,
        write_buffer: 2,
    };

    fn memory(mode: MissModel) -> Memory {
        Memory::new(&Caches::paper(64 << 10), 2, 1 << 20, TIMING, mode).unwrap()
    }

    /// Returns an access to a shared word of four bytes.
    fn word(kind: AccessKind, address: u64) -> MemoryAccess {
        MemoryAccess {
            kind,
            address,
            bytes: 4,
            shared: true,
            cycles: 0,
        }
    }

    fn load(memory: &mut Memory, core: usize, address: u64, now: u64) -> u64 {
        match memory.touch(core, &word(AccessKind::Load, address)) {
            true => 0,
            false => memory.fill(core, AccessKind::Load, address, now),
        }
    }

    #[test]
    fn uniform_misses_cost_10_and_200_more() {
        let mut memory = memory(MissModel::Uniform);
        assert_eq!(load(&mut memory, 0, 0, 0), 210);
        assert_eq!(load(&mut memory, 0, 0, 0), 0);
        // Another core reads the same second-level line at the same time.
        assert_eq!(load(&mut memory, 0, 64, 0), 10);
        assert_eq!(load(&mut memory, 1, 0, 0), 10);
        assert_eq!((memory.counts.l1_misses(), memory.counts.l2_misses), (3, 1));
    }

    #[test]
    fn contended_accesses_queue() {
        let mut memory = memory(MissModel::Contended);
        // A row must be opened: 10 + 150 + 20 cycles. Memory is busy until cycle 130.
        assert_eq!(load(&mut memory, 0, 0, 0), 180);
        // The second level is busy until cycle 2, memory until cycle 130. The row is already open.
        assert_eq!(load(&mut memory, 1, 256, 0), 130 + 150);
        // The line of the first access has not arrived yet.
        assert_eq!(load(&mut memory, 1, 64, 100), 80);
        assert_eq!(load(&mut memory, 1, 128, 1000), 10);
        assert_eq!(memory.counts.bus_cycles, 220);
    }

    #[test]
    fn stores_stall_when_the_buffer_is_full() {
        let mut memory = memory(MissModel::Contended);
        let mut store = |address, now| {
            assert!(!memory.touch(0, &word(AccessKind::Store, address)));
            memory.fill(0, AccessKind::Store, address, now)
        };
        assert_eq!((store(0, 0), store(256, 0)), (0, 0));
        assert_eq!(store(512, 0), 180, "the first of two is done at 180");
        assert_eq!(store(768, 2000), 0);
    }

    #[test]
    fn writes_invalidate_lines_of_other_cores() {
        let mut memory = memory(MissModel::Uniform);
        load(&mut memory, 0, 0, 0);
        load(&mut memory, 1, 0, 0);
        assert!(memory.touch(0, &word(AccessKind::Store, 0)));
        assert!(memory.touch(0, &word(AccessKind::Load, 0)));
        assert!(!memory.touch(1, &word(AccessKind::Load, 0)));
    }

    #[test]
    fn only_dirty_lines_are_written_back() {
        let mut memory = memory(MissModel::Uniform);
        let sets = (64 << 10) / 4;
        for way in 0..5 {
            let (kind, address) = (
                if way == 0 {
                    AccessKind::Store
                } else {
                    AccessKind::Load
                },
                way * sets,
            );
            memory.touch(0, &word(kind, address));
            memory.fill(0, kind, address, 0);
        }
        assert_eq!(memory.counts.written_back, 1);
        memory.fill(0, AccessKind::Load, 5 * sets, 0);
        assert_eq!(memory.counts.written_back, 1);
    }
}
