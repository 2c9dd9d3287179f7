// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simple and slow reference model of the chip, with which tests compare `ChipMachine`. A clock
//! advances by one cycle at a time, and each core acts when its time has come. Caches are lists of
//! lines, in the order in which the lines will be replaced.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use usher_chip::{AccessKind, CacheCounts, Chip, MissModel, TaskGraph};
use usher_tasks::dispatch::{Dispatcher, Groups};

/// Bytes of a row of memory, and number of memory banks. Each bank has one row open.
const ROW_BYTES: u64 = 2048;
const BANKS: u64 = 4;
/// Indices of the data cache and the instruction cache of a core.
const DATA: usize = 0;
const INSTRUCTIONS: usize = 1;

/// A cache as a list of lines for each set. The line at the front is replaced next.
struct Lists {
    sets: Vec<VecDeque<u64>>,
    ways: usize,
    line: u64,
    lru: bool,
}

impl Lists {
    fn new(bytes: usize, ways: usize, line: usize, lru: bool) -> Self {
        Self {
            sets: vec![VecDeque::new(); bytes / ways / line],
            ways,
            line: line as u64,
            lru,
        }
    }

    /// Returns the list of an address's set, and the position of its line in the list; `None` if
    /// the cache does not contain the line.
    fn find(&mut self, address: u64) -> (&mut VecDeque<u64>, Option<usize>) {
        let line = address / self.line;
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(line % count) as usize];
        let place = set.iter().position(|&other| other == line);
        (set, place)
    }

    fn holds(&mut self, address: u64) -> bool {
        self.find(address).1.is_some()
    }

    /// Reads a line. Returns whether the read hit, and after a miss the replaced line.
    fn read(&mut self, address: u64) -> (bool, Option<u64>) {
        let (line, ways, lru) = (address / self.line, self.ways, self.lru);
        let (set, place) = self.find(address);
        match place {
            Some(place) if lru => {
                set.remove(place);
                set.push_back(line);
            }
            Some(_) => {}
            None => set.push_back(line),
        }
        let gone = (set.len() > ways).then(|| set.pop_front());
        (place.is_some(), gone.flatten())
    }

    fn lose(&mut self, address: u64) {
        let (set, place) = self.find(address);
        if let Some(place) = place {
            set.remove(place);
        }
    }
}

/// A part of a task: work, followed by an access to a first-level line unless `bytes` is 0.
#[derive(Clone, Copy)]
struct Part {
    work: u64,
    kind: AccessKind,
    address: u64,
    bytes: u64,
}

/// What a core does next: the points at which the order of the cores matters.
#[derive(Clone, Copy)]
enum Step {
    Lock(Option<usize>),
    Touch(Part),
    Halted,
}

/// State of caches, write buffers and memory.
struct Slow<'a> {
    graph: &'a TaskGraph,
    chip: Chip,
    /// First-level caches of each core.
    first: Vec<[Lists; 2]>,
    second: Lists,
    /// Dirty lines in the second-level cache.
    written: BTreeSet<u64>,
    arrives: BTreeMap<u64, u64>,
    second_free: u64,
    memory_free: u64,
    open: BTreeMap<u64, u64>,
    /// For each core, the completion times of its missed stores.
    stores: Vec<Vec<u64>>,
    counts: CacheCounts,
}

impl<'a> Slow<'a> {
    fn new(graph: &'a TaskGraph, chip: Chip) -> Self {
        let caches = chip.caches;
        let (bytes, ways, line) = (caches.l1_bytes, caches.l1_ways, caches.l1_line_bytes);
        let l1 = || Lists::new(bytes, ways, line, false);
        Self {
            graph,
            chip,
            first: (0..chip.cores).map(|_| [l1(), l1()]).collect(),
            second: Lists::new(caches.l2_bytes, caches.l2_ways, caches.l2_line_bytes, true),
            written: BTreeSet::new(),
            arrives: BTreeMap::new(),
            second_free: 0,
            memory_free: 0,
            open: BTreeMap::new(),
            stores: vec![Vec::new(); chip.cores],
            counts: CacheCounts::default(),
        }
    }

    /// Returns the start of a core's private memory. The private memories follow the shared memory;
    /// each has a whole number of second-level lines, one more than needed.
    fn own_memory(&self, core: usize) -> u64 {
        let (shared, private) = self.graph.extent().unwrap();
        let lines = |bytes: u64| bytes.div_ceil(self.second.line);
        (lines(shared) + (lines(private) + 1) * core as u64) * self.second.line
    }

    /// Returns the parts of a task on a core.
    fn parts(&self, core: usize, task: usize) -> VecDeque<Part> {
        let line = self.chip.caches.l1_line_bytes as u64;
        let mut parts = VecDeque::new();
        for access in &self.graph.tasks[task].accesses {
            let base = if access.private {
                self.own_memory(core)
            } else {
                0
            };
            let part = |work, address, bytes| Part {
                work,
                kind: access.kind,
                address,
                bytes,
            };
            parts.push_back(part(u64::from(access.cycles), 0, 0));
            for row in 0..u64::from(access.rows) {
                let from = base + access.address + row * u64::from(access.stride);
                let to = from + u64::from(access.bytes);
                for number in from / line..to.div_ceil(line) {
                    let (begin, end) = (from.max(number * line), to.min((number + 1) * line));
                    if begin < end {
                        parts.push_back(part(0, begin, end - begin));
                    }
                }
            }
        }
        parts
    }

    /// Accesses a line at the time `now`. Returns the cycles for which the core stalls.
    fn touch(&mut self, core: usize, part: Part, now: u64) -> u64 {
        let Part {
            kind,
            address,
            bytes,
            ..
        } = part;
        let words = bytes.div_ceil(4);
        let hit = match kind {
            AccessKind::Fetch => {
                self.counts.fetched_words += words;
                self.first[core][INSTRUCTIONS].read(address).0
            }
            AccessKind::Load => {
                self.counts.data_words += words;
                self.first[core][DATA].read(address).0
            }
            // A store does not load a missing line into the core's own cache. The line is removed
            // from the caches of all other cores.
            AccessKind::Store => {
                self.counts.data_words += words;
                self.written.insert(address / self.second.line);
                let others = (0..self.first.len()).filter(|&other| other != core);
                others.for_each(|other| self.first[other][DATA].lose(address));
                self.first[core][DATA].holds(address)
            }
        };
        if hit {
            return 0;
        }
        match kind {
            AccessKind::Fetch => self.counts.l1_fetch_misses += 1,
            AccessKind::Load | AccessKind::Store => self.counts.l1_data_misses += 1,
        }
        match (self.chip.mode, kind) {
            (MissModel::Uniform, _) => self.always_the_same(address),
            (MissModel::Contended, AccessKind::Store) => self.buffer(core, address, now),
            (MissModel::Contended, _) => self.arrival(address, now) - now,
        }
    }

    /// Accesses a line in the second level. Returns whether the access hit, and the line that must
    /// be written back.
    fn second_level(&mut self, address: u64) -> (bool, Option<u64>) {
        let (hit, gone) = self.second.read(address);
        self.counts.l2_misses += u64::from(!hit);
        let back = gone.filter(|gone| self.written.remove(gone));
        self.counts.written_back += u64::from(back.is_some());
        (hit, back)
    }

    fn always_the_same(&mut self, address: u64) -> u64 {
        let timing = self.chip.timing;
        match self.second_level(address).0 {
            true => timing.l1_miss_cycles,
            false => timing.l1_miss_cycles + timing.l2_miss_cycles,
        }
    }

    /// Returns the arrival time of a word that is requested at the time `now`.
    fn arrival(&mut self, address: u64, now: u64) -> u64 {
        let timing = self.chip.timing;
        let line = address / self.second.line;
        let requested_at = now.max(self.second_free);
        self.second_free = requested_at + timing.l2_busy_cycles;
        let replied_at = requested_at + timing.l1_miss_cycles;
        let (hit, back) = self.second_level(address);
        if hit {
            return replied_at.max(*self.arrives.get(&line).unwrap_or(&0));
        }
        let there = self.moves(address, replied_at) + timing.first_word_cycles;
        self.arrives.insert(line, there);
        // The write-back follows directly after the transfer, before other requests to memory.
        if let Some(back) = back {
            self.moves(back * self.second.line, self.memory_free);
        }
        there
    }

    /// Transfers a line at the time `at`, or as soon as memory is free. Returns the time at which
    /// the row of the line is open.
    fn moves(&mut self, address: u64, at: u64) -> u64 {
        let timing = self.chip.timing;
        let row = address / ROW_BYTES;
        let begins = at.max(self.memory_free);
        let open = match self.open.insert(row % BANKS, row) {
            Some(before) if before == row => begins,
            _ => begins + timing.row_cycles,
        };
        self.memory_free = open + timing.line_busy_cycles;
        self.counts.bus_cycles += self.memory_free - begins;
        open
    }

    /// Puts a missed store into the write buffer. Returns the cycles for which the core waits
    /// because the buffer is full. Stores complete in the order in which they were issued.
    fn buffer(&mut self, core: usize, address: u64, now: u64) -> u64 {
        let done = self.arrival(address, now);
        let stores = &mut self.stores[core];
        let pending_stores = stores.iter().filter(|&&done| done > now).count();
        let wait = match pending_stores >= self.chip.timing.write_buffer {
            true => stores[stores.len() - self.chip.timing.write_buffer] - now,
            false => 0,
        };
        stores.push(stores.last().map_or(done, |&last| done.max(last)));
        wait
    }
}

/// A core of the reference model.
#[derive(Clone)]
struct SlowCore {
    /// Time of the core's next step.
    at: u64,
    /// Time from which the core waits for the step.
    requested_at: u64,
    step: Step,
    /// Remaining parts of the core's task.
    rest: VecDeque<Part>,
    task: usize,
}

impl SlowCore {
    /// Continues with the rest of the core's task at the time `at`.
    fn advance_to(&mut self, at: u64) {
        let (at, step) = match self.rest.pop_front() {
            Some(part) => (at + part.work, Step::Touch(part)),
            None => (at, Step::Lock(Some(self.task))),
        };
        (self.at, self.requested_at, self.step) = (at, at, step);
    }
}

/// All tasks and cores of the reference model.
struct SlowChip<'a> {
    slow: Slow<'a>,
    dispatcher: &'a mut dyn Dispatcher<u32>,
    cores: Vec<SlowCore>,
    waits: Vec<usize>,
    ended: Vec<u64>,
    lock_free: u64,
}

impl SlowChip<'_> {
    fn ready(&mut self, task: usize) {
        let spec = &self.slow.graph.tasks[task];
        let groups = Groups::new(spec.t, spec.s);
        self.dispatcher.ready(task as u32, groups);
    }

    fn resolve(&mut self, of: usize) {
        let graph = self.slow.graph;
        for (after, spec) in graph.tasks.iter().enumerate() {
            for _ in spec.after.iter().filter(|&&other| other as usize == of) {
                self.waits[after] -= 1;
                if self.waits[after] == 0 {
                    self.ready(after);
                }
            }
        }
    }

    /// Executes a dispatch on a core that has the lock. `of` is the task that the core has
    /// completed.
    fn dispatch(&mut self, core: usize, now: u64, of: Option<usize>) {
        if let Some(of) = of {
            self.ended[of] = self.cores[core].requested_at;
            self.resolve(of);
        }
        let chip = self.slow.chip;
        self.lock_free = now + chip.locked_cycles;
        let next = self.dispatcher.next(core);
        let own = &mut self.cores[core];
        match next {
            Some(next) => {
                own.task = next.item as usize;
                own.rest = self.slow.parts(core, own.task);
                let work = u64::from(self.slow.graph.tasks[own.task].cycles);
                own.advance_to(now + chip.dispatch_cycles + work);
            }
            None => (own.at, own.step) = (self.lock_free, Step::Halted),
        }
        let mut wake = match of {
            Some(_) => self.dispatcher.len(),
            None => 0,
        };
        for (other, plan) in self.cores.iter_mut().enumerate() {
            if wake > 0 && other != core && matches!(plan.step, Step::Halted) {
                wake -= 1;
                plan.step = Step::Lock(None);
                (plan.at, plan.requested_at) = (self.lock_free, self.lock_free);
            }
        }
    }

    fn act(&mut self, core: usize, now: u64) {
        match self.cores[core].step {
            Step::Halted => {}
            Step::Lock(_) if self.lock_free > now => self.cores[core].at = self.lock_free,
            Step::Lock(of) => self.dispatch(core, now, of),
            Step::Touch(part) => {
                let stall = match part.bytes {
                    0 => 0,
                    _ => self.slow.touch(core, part, now),
                };
                self.cores[core].advance_to(now + stall);
            }
        }
    }

    /// Returns the core that acts next at the time `now`.
    fn first(&self, now: u64) -> Option<usize> {
        let acts = |core: &SlowCore| core.at == now && !matches!(core.step, Step::Halted);
        let order = (0..self.cores.len()).filter(|&core| acts(&self.cores[core]));
        order.min_by_key(|&core| (self.cores[core].requested_at, core))
    }
}

/// Result of a run of the reference model.
pub struct SlowRunResult {
    pub cycles: u64,
    /// End time of each task.
    pub ended: Vec<u64>,
    pub counts: CacheCounts,
}

/// Runs a graph cycle by cycle.
pub fn slowly(
    graph: &TaskGraph,
    chip: Chip,
    dispatcher: &mut dyn Dispatcher<u32>,
) -> SlowRunResult {
    let core = SlowCore {
        at: 0,
        requested_at: 0,
        step: Step::Lock(None),
        rest: VecDeque::new(),
        task: 0,
    };
    let mut all = SlowChip {
        slow: Slow::new(graph, chip),
        dispatcher,
        cores: vec![core; chip.cores],
        waits: graph.tasks.iter().map(|task| task.after.len()).collect(),
        ended: vec![0; graph.tasks.len()],
        lock_free: 0,
    };
    for task in 0..graph.tasks.len() {
        if graph.tasks[task].after.is_empty() {
            all.ready(task);
        }
    }
    let is_halted = |core: &SlowCore| matches!(core.step, Step::Halted);
    for now in 0..10_000_000 {
        while let Some(core) = all.first(now) {
            all.act(core, now);
        }
        if all.cores.iter().all(is_halted) {
            let halted = all.cores.iter().map(|core| core.at).max();
            return SlowRunResult {
                cycles: halted.unwrap_or(0),
                ended: all.ended,
                counts: all.slow.counts,
            };
        }
    }
    panic!("it never ends");
}
