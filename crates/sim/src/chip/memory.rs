// SPDX-License-Identifier: MIT OR Apache-2.0
//! The caches of the chip, what lies behind them, and what an access costs.
//!
//! Each core has a cache for instructions and one for data; all share the second
//! level, behind which is memory. A store that misses a data cache goes past it, and a
//! line that one core writes is dropped from the others'. Two modes tell what a miss
//! costs; which accesses miss is the caches' business and the same code in both:
//!
//! *Uniform*, as the paper's simulator: each miss of the first level stalls its core
//! for 10 cycles, each of the second for 200 more, whatever else goes on.
//!
//! *Contended*, as its board: before the latencies there are queues. The second
//! level answers one access at a time, memory fills or writes back one line at a
//! time, and takes longer where the bank has another row open. A load or a fetch
//! waits for its word, also in a line that is on its way for somebody else; the word
//! comes ahead of the rest of its line. A store goes into the core's write buffer
//! and stalls only where that is full.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use usher_cache::{AccessOutcome as Found, Cache, Geometry, GeometryError, Replacement};

use super::graph::Kind;

/// What a miss costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Always the same (the paper's simulator, Table 3).
    Uniform,
    /// Who comes when another is served waits (the paper's board, Table 2).
    Contended,
}

/// Caches of the chip (paper 5, Table 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caches {
    /// Bytes of each core's instruction cache, and of its data cache.
    pub l1_bytes: usize,
    /// Lines a set there.
    pub l1_ways: usize,
    /// Bytes a line there.
    pub l1_line_bytes: usize,
    /// Bytes of the cache that all share.
    pub l2_bytes: usize,
    /// Lines a set there.
    pub l2_ways: usize,
    /// Bytes a line there.
    pub l2_line_bytes: usize,
    /// What makes room in the first level, and in the second.
    pub replacement: (Replacement, Replacement),
}

impl Caches {
    /// As on the chip, with a second level of `l2_bytes`.
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

/// Times in cycles of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// A miss of the first level that the second answers.
    pub l1_miss_cycles: u64,
    /// What a miss of the second level adds, where it is always the same: until the
    /// whole line is there.
    pub l2_miss_cycles: u64,
    /// What it adds on an idle bus, else: until the word that is waited for is
    /// there, ahead of the rest of the line.
    pub first_word_cycles: u64,
    /// The second level is busy with one access.
    pub l2_busy_cycles: u64,
    /// Memory is busy with one line.
    pub line_busy_cycles: u64,
    /// What another row of a bank adds to that.
    pub row_cycles: u64,
    /// Stores of a core that may be under way.
    pub write_buffer: usize,
}

/// How often what happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Words of four bytes fetched.
    pub fetched_words: u64,
    /// Words of four bytes loaded or stored.
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

impl Counts {
    /// Misses of both first-level caches.
    pub fn l1_misses(&self) -> u64 {
        self.l1_fetch_misses + self.l1_data_misses
    }

    /// What has been added since.
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

/// Banks of the memory, and what one has open at a time.
const BANKS: usize = 4;
const ROW_BYTES: u64 = 2048;

/// Memory behind the caches: one line at a time.
#[derive(Debug, Clone)]
struct Bus {
    free: u64,
    busy: u64,
    open: [u64; BANKS],
}

impl Bus {
    /// Moves the line of `address`, not before `at`; when it began, and whether
    /// another row had to be opened.
    fn occupy(&mut self, at: u64, address: u64, timing: &Timing) -> (u64, bool) {
        let row = address / ROW_BYTES;
        let open = &mut self.open[row as usize % BANKS];
        let other_row = std::mem::replace(open, row) != row;
        let begins = at.max(self.free);
        let more = if other_row { timing.row_cycles } else { 0 };
        self.free = begins + timing.line_busy_cycles + more;
        self.busy += self.free - begins;
        (begins, other_row)
    }
}

/// A line of memory as the second level sees it.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    /// When it is there, if it has been on its way.
    arrives: u64,
    /// It differs from memory.
    dirty: bool,
}

/// A line of the first level that a task touches, or, without bytes, work alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Touch {
    pub kind: Kind,
    pub address: u64,
    pub bytes: u64,
    /// Others may have it in their caches.
    pub shared: bool,
    /// Work before it.
    pub cycles: u64,
}

/// Caches, buses, buffers.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    mode: Mode,
    timing: Timing,
    fetch: Vec<Cache>,
    data: Vec<Cache>,
    l2: Cache,
    lines: Vec<Line>,
    l2_free: u64,
    bus: Bus,
    /// By core: when each store under way is done.
    writes: Vec<VecDeque<u64>>,
    pub counts: Counts,
}

impl Memory {
    /// Empty caches in front of `bytes` bytes.
    pub fn new(
        caches: &Caches,
        cores: usize,
        bytes: u64,
        timing: Timing,
        mode: Mode,
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
            counts: Counts::default(),
        })
    }

    /// Bytes of a line of the first level.
    pub fn l1_line_bytes(&self) -> u64 {
        self.data
            .first()
            .map_or(1, |cache| cache.geometry().line_bytes() as u64)
    }

    /// A core touches a line of its first level; whether it is there. Where it was
    /// not, [`Self::fill`] has to follow.
    pub fn touch(&mut self, core: usize, touch: &Touch) -> bool {
        let Touch { kind, address, .. } = *touch;
        let words = touch.bytes.div_ceil(4);
        let cache = match kind {
            Kind::Fetch => {
                self.counts.fetched_words += words;
                &mut self.fetch[core]
            }
            Kind::Load | Kind::Store => {
                self.counts.data_words += words;
                &mut self.data[core]
            }
        };
        let hit = match kind {
            Kind::Store => cache.contains(address),
            Kind::Fetch | Kind::Load => cache.access(address).is_hit(),
        };
        if kind == Kind::Store {
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

    /// A core asks for a line that its first level misses at `now`: for how many
    /// cycles that stalls it.
    pub fn fill(&mut self, core: usize, kind: Kind, address: u64, now: u64) -> u64 {
        match kind {
            Kind::Fetch => self.counts.l1_fetch_misses += 1,
            Kind::Load | Kind::Store => self.counts.l1_data_misses += 1,
        }
        let found = self.l2.access(address);
        self.counts.l2_misses += u64::from(!found.is_hit());
        match self.mode {
            Mode::Uniform => {
                self.write_back(found, now);
                let beyond = if found.is_hit() {
                    0
                } else {
                    self.timing.l2_miss_cycles
                };
                self.timing.l1_miss_cycles + beyond
            }
            Mode::Contended => {
                let there = self.there(found, address, now);
                match kind {
                    Kind::Store => self.buffer(core, now, there),
                    Kind::Fetch | Kind::Load => there - now,
                }
            }
        }
    }

    /// When the core has a line that it asked for at `now`.
    fn there(&mut self, found: Found, address: u64, now: u64) -> u64 {
        let timing = self.timing;
        let begins = now.max(self.l2_free);
        self.l2_free = begins + timing.l2_busy_cycles;
        let answered = begins + timing.l1_miss_cycles;
        let line = self.l2.geometry().line(address) as usize;
        if found.is_hit() {
            return answered.max(self.lines[line].arrives);
        }
        let (moved, other_row) = self.bus.occupy(answered, address, &timing);
        let more = if other_row { timing.row_cycles } else { 0 };
        let there = moved + timing.first_word_cycles + more;
        self.lines[line].arrives = there;
        self.write_back(found, self.bus.free);
        self.counts.bus_cycles = self.bus.busy;
        there
    }

    /// Writes back what made room, if it has to be.
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
        if self.mode == Mode::Contended {
            let address = line * self.l2.geometry().line_bytes() as u64;
            self.bus.occupy(at, address, &self.timing);
        }
    }

    /// Puts a store that is done at `done` into the buffer: the stall until there is
    /// room.
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
        // Stores leave in the order in which they came.
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

    fn memory(mode: Mode) -> Memory {
        Memory::new(&Caches::paper(64 << 10), 2, 1 << 20, TIMING, mode).unwrap()
    }

    /// A word that all share.
    fn word(kind: Kind, address: u64) -> Touch {
        Touch {
            kind,
            address,
            bytes: 4,
            shared: true,
            cycles: 0,
        }
    }

    fn load(memory: &mut Memory, core: usize, address: u64, now: u64) -> u64 {
        match memory.touch(core, &word(Kind::Load, address)) {
            true => 0,
            false => memory.fill(core, Kind::Load, address, now),
        }
    }

    #[test]
    fn uniform_misses_cost_10_and_200_more() {
        let mut memory = memory(Mode::Uniform);
        assert_eq!(load(&mut memory, 0, 0, 0), 210);
        assert_eq!(load(&mut memory, 0, 0, 0), 0);
        // The same line of the second level, and another core at the same time.
        assert_eq!(load(&mut memory, 0, 64, 0), 10);
        assert_eq!(load(&mut memory, 1, 0, 0), 10);
        assert_eq!((memory.counts.l1_misses(), memory.counts.l2_misses), (3, 1));
    }

    #[test]
    fn who_comes_second_waits_for_the_first() {
        let mut memory = memory(Mode::Contended);
        // A row has to be opened: 10 + 150 + 20, and the bus is busy until 130.
        assert_eq!(load(&mut memory, 0, 0, 0), 180);
        // The second level is busy until 2, memory until 130; the row is open.
        assert_eq!(load(&mut memory, 1, 256, 0), 130 + 150);
        // The line of the first is still on its way.
        assert_eq!(load(&mut memory, 1, 64, 100), 80);
        assert_eq!(load(&mut memory, 1, 128, 1000), 10);
        assert_eq!(memory.counts.bus_cycles, 220);
    }

    #[test]
    fn stores_stall_where_the_buffer_is_full() {
        let mut memory = memory(Mode::Contended);
        let mut store = |address, now| {
            assert!(!memory.touch(0, &word(Kind::Store, address)));
            memory.fill(0, Kind::Store, address, now)
        };
        assert_eq!((store(0, 0), store(256, 0)), (0, 0));
        assert_eq!(store(512, 0), 180, "the first of two is done at 180");
        assert_eq!(store(768, 2000), 0);
    }

    #[test]
    fn what_a_core_writes_the_others_lose() {
        let mut memory = memory(Mode::Uniform);
        load(&mut memory, 0, 0, 0);
        load(&mut memory, 1, 0, 0);
        assert!(memory.touch(0, &word(Kind::Store, 0)));
        assert!(memory.touch(0, &word(Kind::Load, 0)));
        assert!(!memory.touch(1, &word(Kind::Load, 0)));
    }

    #[test]
    fn only_what_was_written_is_written_back() {
        let mut memory = memory(Mode::Uniform);
        let sets = (64 << 10) / 4;
        for way in 0..5 {
            let (kind, address) = (if way == 0 { Kind::Store } else { Kind::Load }, way * sets);
            memory.touch(0, &word(kind, address));
            memory.fill(0, kind, address, 0);
        }
        assert_eq!(memory.counts.written_back, 1);
        memory.fill(0, Kind::Load, 5 * sets, 0);
        assert_eq!(memory.counts.written_back, 1);
    }
}
