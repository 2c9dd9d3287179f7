// SPDX-License-Identifier: MIT OR Apache-2.0
//! Task structures in simulated memory: each look goes through the caches of the
//! CPU that looks.

use oorandom::Rand64;

use super::SimulationError;
use super::kernel::{BLOCK_BYTES, Field, Structures};
use super::machine::{Colors, Machine};
use super::memory::{Looks, Memory};

/// Words of a structure that are kept.
const WORDS: usize = 17;

/// Structures, caches, and where everything lies. Task `n` of the workload is
/// [`Model::number`]`(n)` to the scheduler.
#[derive(Debug)]
pub struct Model {
    memory: Memory,
    /// Of the head, then of each task.
    words: Vec<[u32; WORDS]>,
    /// Addresses of the same.
    structures: Vec<u64>,
    /// Where each task's own lines begin.
    own: Vec<u64>,
    /// Blocks of the common lines.
    common: Vec<u64>,
    lock: u64,
    random: Rand64,
    /// Who looks.
    cpu: usize,
    /// What structures cost, since the last [`Self::take`].
    looks: Looks,
}

/// A place of the head; tasks follow.
const HEAD: u32 = 1;

impl Model {
    /// Everything in random blocks; a task's number is drawn, too, so that the
    /// order of creation says nothing about addresses.
    pub fn new(
        machine: &Machine,
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
            memory: Memory::new(cpus, machine.geometry()?),
            words: vec![[0; WORDS]; tasks + 1],
            structures: structures.collect(),
            own,
            common,
            lock: kernel,
            random,
            cpu: 0,
            looks: Looks::default(),
        })
    }

    /// The scheduler's number of a task.
    pub fn number(task: usize) -> u32 {
        task as u32 + HEAD + 1
    }

    /// The task of a number.
    pub fn place(number: u32) -> usize {
        (number - HEAD - 1) as usize
    }

    /// Who looks from now on.
    pub fn on(&mut self, cpu: usize) -> &mut Self {
        self.cpu = cpu;
        self
    }

    /// What the second level saw since this was asked last.
    pub fn take(&mut self) -> Looks {
        std::mem::take(&mut self.looks)
    }

    /// Takes the lock's line.
    pub fn touch_lock(&mut self) {
        self.memory.write(self.cpu, self.lock, &mut self.looks);
    }

    /// What an operation of a task touches: lines of its own, written; lines of
    /// all, read.
    pub fn touch_operation(&mut self, machine: &Machine, task: usize) {
        let line = machine.line_bytes as u64;
        let own_lines = machine.own_bytes as u64 / line;
        let first = self.random.rand_u64() % own_lines;
        for nth in 0..machine.own_lines as u64 {
            let address = self.own[task] + (first + nth) % own_lines * line;
            self.memory.write(self.cpu, address, &mut self.looks);
        }
        let lines = BLOCK_BYTES as u64 / line;
        for _ in 0..machine.common_lines {
            let drawn = self.random.rand_u64();
            let block = self.common[(drawn >> 32) as usize % self.common.len()];
            let address = block + drawn % lines * line;
            self.memory.read(self.cpu, address, &mut self.looks);
        }
    }

    /// One of so many CPUs, drawn evenly. A rule in its place, such as the task's
    /// number modulo theirs, would put tasks of one kind together wherever it divides
    /// the threads of a chat's member.
    pub fn draw_cpu(&mut self, cpus: usize) -> u32 {
        self.random.rand_range(0..cpus as u64) as u32
    }

    /// Of `length`, from three quarters to five quarters, evenly.
    pub fn about(&mut self, length: u64) -> u64 {
        length - length / 4 + self.random.rand_range(0..length / 2 + 1)
    }

    /// A field, without looking.
    pub fn peek(&self, number: u32, field: Field) -> u32 {
        self.words[(number - HEAD) as usize][field.offset_bytes() as usize / 4]
    }

    /// Sets a field, without looking.
    pub fn poke(&mut self, number: u32, field: Field, value: u32) {
        self.words[(number - HEAD) as usize][field.offset_bytes() as usize / 4] = value;
    }

    fn address(&self, number: u32, field: Field) -> u64 {
        self.structures[(number - HEAD) as usize] + u64::from(field.offset_bytes())
    }
}

impl Structures for Model {
    fn head(&self) -> u32 {
        HEAD
    }

    fn task(&self, place: usize) -> Option<u32> {
        (place + 1 < self.words.len()).then(|| Self::number(place))
    }

    #[inline]
    fn read(&mut self, task: u32, field: Field) -> u32 {
        let address = self.address(task, field);
        self.memory.read(self.cpu, address, &mut self.looks);
        self.peek(task, field)
    }

    #[inline]
    fn write(&mut self, task: u32, field: Field, value: u32) {
        let address = self.address(task, field);
        self.memory.write(self.cpu, address, &mut self.looks);
        self.poke(task, field, value);
    }
}

/// So many blocks of the memory, each another, in random order.
fn random_blocks(
    machine: &Machine,
    count: usize,
    random: &mut Rand64,
) -> Result<Vec<u64>, SimulationError> {
    let all = machine.memory_bytes / BLOCK_BYTES;
    if count > all {
        return Err(SimulationError::Memory { blocks: count, all });
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

    use super::super::kernel::{Walked, add, create, empty, walk};
    use super::*;

    fn queue(cpus: usize, tasks: usize, colors: Colors) -> Model {
        let mut model = Model::new(&Machine::PAPER, cpus, tasks, colors, 7).unwrap();
        empty(&mut model);
        for task in 0..tasks {
            create(&mut model, Model::number(task), 1, 0);
            add(&mut model, Model::number(task));
        }
        model
    }

    /// Misses of a walk that was walked before, from the addresses alone: a line
    /// is still there if its set's lines, all looked at since, fit into the ways.
    fn misses_of_second_walk(model: &Model) -> u64 {
        let geometry = Machine::PAPER.geometry().unwrap();
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
    fn a_walk_misses_where_the_addresses_say_so() {
        for (tasks, colors) in [
            (60, Colors::Plain),
            (256, Colors::Plain),
            (2400, Colors::Plain),
            (256, Colors::MODULO),
            (2400, Colors::MODULO),
            (2400, Colors::Ours(8)),
            (2400, Colors::OURS),
        ] {
            let mut model = queue(1, tasks, colors);
            walk(&mut model, 0, 1, Walked::NOTHING);
            model.take();
            let walked = walk(&mut model, 0, 1, Walked::NOTHING);
            let looks = model.take();
            assert_eq!(walked.visits as usize, tasks);
            // The head is read once more, at the end: its line was looked at first.
            let expected = misses_of_second_walk(&model);
            let seen = looks.misses;
            assert!(
                seen.abs_diff(expected) <= 1,
                "{tasks} {colors:?}: {seen}, {expected}"
            );
            assert!(looks.requests >= tasks as u64);
        }
    }

    #[test]
    fn what_another_cpu_wrote_is_missed_and_nothing_else() {
        let mut model = queue(2, 100, Colors::OURS);
        for cpu in [0, 1, 0, 1] {
            walk(model.on(cpu), 0, 1, Walked::NOTHING);
        }
        for task in [3, 50, 77] {
            model.on(1).write(Model::number(task), Field::HasCpu, 1);
        }
        model.take();
        walk(model.on(0), 0, 1, Walked::NOTHING);
        assert_eq!(model.take().misses, 3);
        walk(model.on(0), 0, 1, Walked::NOTHING);
        assert_eq!(model.take().misses, 0);
    }
}
