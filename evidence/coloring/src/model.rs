// SPDX-License-Identifier: MIT OR Apache-2.0
//! The task structures and other data of the tasks in simulated memory (paper 3a). All data are in
//! random blocks of 8 KiB; the structures are at the start of their blocks or coloured. Each access
//! goes through the simulated cache of the accessing CPU, and the requests to the cache are
//! counted. The values of the structures' fields are stored, too.

use oorandom::Rand64;

use crate::SimulationError;
use crate::kernel::{BLOCK_BYTES, Field, Structures};
use crate::machine::{Colors, SmpMachine};
use crate::memory::{CacheRequests, CoherentCaches};

/// Number of words that are stored per structure.
const WORDS: usize = 17;

/// Field values and addresses of the task structures, and the caches through which CPUs access
/// them. The scheduler identifies the task with the index `n` in the workload by the number
/// [`TaskStructures::number`]`(n)`.
#[derive(Debug)]
pub struct TaskStructures {
    memory: CoherentCaches,
    /// Field values of the list head and of each task.
    words: Vec<[u32; WORDS]>,
    /// Addresses of the list head and of each task's structure.
    structures: Vec<u64>,
    /// Address of each task's private lines.
    own: Vec<u64>,
    /// Addresses of the blocks with the common lines.
    common: Vec<u64>,
    lock: u64,
    random: Rand64,
    /// The CPU that executes the accesses.
    cpu: usize,
    /// Requests to the second-level caches since the last [`Self::take`].
    requests: CacheRequests,
}

/// The scheduler's number of the list head. The tasks have the following numbers.
const HEAD: u32 = 1;

impl TaskStructures {
    /// Places all data in random blocks. The addresses of the tasks are therefore independent of
    /// the order in which the tasks were created.
    pub fn new(
        machine: &SmpMachine,
        cpus: usize,
        tasks: usize,
        colors: Colors,
        seed: u64,
    ) -> Result<Self, SimulationError> {
        let mut random = Rand64::new(u128::from(seed));
        let common_blocks = machine.common_bytes.div_ceil(BLOCK_BYTES);
        let mut blocks = random_blocks(machine, 2 * tasks + common_blocks + 1, &mut random)?;
        let place = colors.placer()?;
        let kernel = blocks.split_off(2 * tasks + common_blocks)[0];
        let common = blocks.split_off(2 * tasks);
        let own = blocks.split_off(tasks);
        let head = kernel + 256;
        let structures = std::iter::once(head).chain(blocks.into_iter().map(place));
        Ok(Self {
            memory: CoherentCaches::new(cpus, machine.geometry()?),
            words: vec![[0; WORDS]; tasks + 1],
            structures: structures.collect(),
            own,
            common,
            lock: kernel,
            random,
            cpu: 0,
            requests: CacheRequests::default(),
        })
    }

    /// Returns the scheduler's number of the task with the index `task`.
    pub fn number(task: usize) -> u32 {
        task as u32 + HEAD + 1
    }

    /// Returns the index of the task with the scheduler's number `number`.
    pub fn place(number: u32) -> usize {
        (number - HEAD - 1) as usize
    }

    /// Sets the CPU that executes the following accesses.
    pub fn on(&mut self, cpu: usize) -> &mut Self {
        self.cpu = cpu;
        self
    }

    /// Returns the second-level requests since the last call, and resets their counters.
    pub fn take(&mut self) -> CacheRequests {
        std::mem::take(&mut self.requests)
    }

    /// Writes the cache line of the lock.
    pub fn touch_lock(&mut self) {
        self.memory.write(self.cpu, self.lock, &mut self.requests);
    }

    /// Executes the accesses of an operation: writes to private lines of the task, and reads of
    /// common lines.
    pub fn touch_operation(&mut self, machine: &SmpMachine, task: usize) {
        let line = machine.line_bytes as u64;
        let own_lines = machine.own_bytes as u64 / line;
        let first = self.random.rand_u64() % own_lines;
        for nth in 0..machine.own_lines as u64 {
            let address = self.own[task] + (first + nth) % own_lines * line;
            self.memory.write(self.cpu, address, &mut self.requests);
        }
        let lines = BLOCK_BYTES as u64 / line;
        for _ in 0..machine.common_lines {
            let drawn = self.random.rand_u64();
            let block = self.common[(drawn >> 32) as usize % self.common.len()];
            let address = block + drawn % lines * line;
            self.memory.read(self.cpu, address, &mut self.requests);
        }
    }

    /// Draws a CPU with equal probability. A fixed rule, such as the number of the task modulo the
    /// number of CPUs, would put all threads of the same kind on the same CPU if the number of CPUs
    /// divides the number of threads of a chat member.
    pub fn draw_cpu(&mut self, cpus: usize) -> u32 {
        self.random.rand_range(0..cpus as u64) as u32
    }

    /// Draws a length uniformly from 75 % to 125 % of `length`.
    pub fn draw_length(&mut self, length: u64) -> u64 {
        length - length / 4 + self.random.rand_range(0..length / 2 + 1)
    }

    /// Reads a field without an access to the caches.
    pub fn peek(&self, number: u32, field: Field) -> u32 {
        self.words[(number - HEAD) as usize][field.offset_bytes() as usize / 4]
    }

    /// Writes a field without an access to the caches.
    pub fn poke(&mut self, number: u32, field: Field, value: u32) {
        self.words[(number - HEAD) as usize][field.offset_bytes() as usize / 4] = value;
    }

    fn address(&self, number: u32, field: Field) -> u64 {
        self.structures[(number - HEAD) as usize] + u64::from(field.offset_bytes())
    }
}

impl Structures for TaskStructures {
    fn head(&self) -> u32 {
        HEAD
    }

    fn task(&self, place: usize) -> Option<u32> {
        (place + 1 < self.words.len()).then(|| Self::number(place))
    }

    #[inline]
    fn read(&mut self, task: u32, field: Field) -> u32 {
        let address = self.address(task, field);
        self.memory.read(self.cpu, address, &mut self.requests);
        self.peek(task, field)
    }

    #[inline]
    fn write(&mut self, task: u32, field: Field, value: u32) {
        let address = self.address(task, field);
        self.memory.write(self.cpu, address, &mut self.requests);
        self.poke(task, field, value);
    }
}

/// Draws different random blocks of the memory.
fn random_blocks(
    machine: &SmpMachine,
    count: usize,
    random: &mut Rand64,
) -> Result<Vec<u64>, SimulationError> {
    let all = machine.memory_bytes / BLOCK_BYTES;
    if count > all {
        return Err(SimulationError::CoherentCaches { blocks: count, all });
    }
    let mut blocks: Vec<u64> = (0..all as u64).map(|n| n * BLOCK_BYTES as u64).collect();
    for at in 0..count {
        let other = random.rand_range(at as u64..all as u64) as usize;
        blocks.swap(at, other);
    }
    blocks.truncate(count);
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::kernel::{WalkResult, add, create, empty, walk};

    fn queue(cpus: usize, tasks: usize, colors: Colors) -> TaskStructures {
        let mut model = TaskStructures::new(&SmpMachine::PAPER, cpus, tasks, colors, 7).unwrap();
        empty(&mut model);
        for task in 0..tasks {
            create(&mut model, TaskStructures::number(task), 1, 0);
            add(&mut model, TaskStructures::number(task));
        }
        model
    }

    /// Returns the misses of a repeated walk, computed from the addresses alone. In a repeated
    /// walk, a line hits if the number of lines in its cache set is at most the number of ways.
    fn misses_of_second_walk(model: &TaskStructures) -> u64 {
        let geometry = SmpMachine::PAPER.geometry().unwrap();
        let mut sets: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
        for &structure in &model.structures {
            let address = structure + 0x20;
            sets.entry(geometry.set(address))
                .or_default()
                .insert(geometry.line(address));
        }
        let too_many = sets.values().filter(|lines| lines.len() > geometry.ways());
        too_many.map(|lines| lines.len() as u64).sum()
    }

    #[test]
    fn walk_misses_as_predicted_from_addresses() {
        for (tasks, colors) in [
            (60, Colors::Plain),
            (256, Colors::Plain),
            (2400, Colors::Plain),
            (256, Colors::MODULO),
            (2400, Colors::MODULO),
            (2400, Colors::Colored(8)),
            (2400, Colors::DEFAULT),
        ] {
            let mut model = queue(1, tasks, colors);
            walk(&mut model, 0, 1, WalkResult::NONE);
            model.take();
            let walked = walk(&mut model, 0, 1, WalkResult::NONE);
            let requests = model.take();
            assert_eq!(walked.visits as usize, tasks);
            // The walk reads the list head at its start and again at its end.
            let expected = misses_of_second_walk(&model);
            let seen = requests.misses;
            assert!(
                seen.abs_diff(expected) <= 1,
                "{tasks} {colors:?}: {seen}, {expected}"
            );
            assert!(requests.requests >= tasks as u64);
        }
    }

    #[test]
    fn lines_written_by_another_cpu_are_the_only_misses() {
        let mut model = queue(2, 100, Colors::DEFAULT);
        for cpu in [0, 1, 0, 1] {
            walk(model.on(cpu), 0, 1, WalkResult::NONE);
        }
        for task in [3, 50, 77] {
            model
                .on(1)
                .write(TaskStructures::number(task), Field::HasCpu, 1);
        }
        model.take();
        walk(model.on(0), 0, 1, WalkResult::NONE);
        assert_eq!(model.take().misses, 3);
        walk(model.on(0), 0, 1, WalkResult::NONE);
        assert_eq!(model.take().misses, 0);
    }
}
