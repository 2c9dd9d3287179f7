// SPDX-License-Identifier: MIT OR Apache-2.0
//! Marks programs on the drawing of the machine.
//!
//! Every program has a letter beside its CPUs, so that a drawing without colours has the same
//! information. Beyond 52 programs, the letter is `*`.
//!
//! The legend takes time in proportion to the programs times the CPUs.

use std::collections::BTreeMap;

use usher_model::{CpuId, CpuSet, Topology};

use super::canvas::{Block, Line, Style};

/// Letters of the programs, in the order of their labels. If there are more programs than letters,
/// the remaining programs have the last letter.
const MARKS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ*";

/// The programs' labels, and the program on each CPU.
pub(super) struct Seats {
    labels: Vec<String>,
    of_cpu: BTreeMap<CpuId, usize>,
}

impl Seats {
    pub(super) fn new(seats: &BTreeMap<CpuId, String>) -> Self {
        let mut labels: Vec<String> = Vec::new();
        let mut of_cpu = BTreeMap::new();
        for (&cpu, label) in seats {
            let known = labels.iter().position(|known| known == label);
            let index = known.unwrap_or_else(|| {
                labels.push(label.clone());
                labels.len() - 1
            });
            of_cpu.insert(cpu, index);
        }
        Self { labels, of_cpu }
    }

    pub(super) fn of(&self, cpu: CpuId) -> Option<usize> {
        self.of_cpu.get(&cpu).copied()
    }

    pub(super) fn mark(&self, seat: usize) -> char {
        MARKS.chars().nth(seat).unwrap_or('*')
    }

    /// Number of columns for the letter beside a CPU number; 0 without programs.
    pub(super) fn mark_width(&self) -> usize {
        usize::from(!self.labels.is_empty())
    }

    /// A CPU's number with its letter; blank for no CPU.
    pub(super) fn cell(&self, cpu: Option<CpuId>, digits: usize) -> Line {
        let Some(cpu) = cpu else {
            return Line::new(Style::Plain, " ".repeat(digits + self.mark_width()));
        };
        match self.of(cpu) {
            Some(seat) => {
                let text = format!("{cpu:>digits$}{}", self.mark(seat));
                Line::new(Style::Seat(seat), text)
            }
            None => {
                let blank = " ".repeat(self.mark_width());
                Line::new(Style::Plain, format!("{cpu:>digits$}{blank}"))
            }
        }
    }

    /// Returns the legend: the letter of each program with all its CPUs, and the free CPUs.
    pub(super) fn legend(&self, topology: &Topology) -> Block {
        let mut block = Block::default();
        if self.labels.is_empty() {
            return block;
        }
        let name_width = self.labels.iter().map(|l| l.chars().count()).max();
        let name_width = name_width.unwrap_or(0).max("free".len());
        for (seat, label) in self.labels.iter().enumerate() {
            let cpus: CpuSet = (self.of_cpu.iter())
                .filter(|(_, of)| **of == seat)
                .map(|(&cpu, _)| cpu)
                .collect();
            let mut line = Line::new(Style::Seat(seat), self.mark(seat).to_string());
            line.push(Style::Plain, format!(" {label:<name_width$}  {cpus}"));
            block.0.push(line);
        }
        let seated: CpuSet = self.of_cpu.keys().copied().collect();
        let free = topology.all_cpus().minus(&seated);
        if !free.is_empty() {
            let text = format!("  {:<name_width$}  {free}", "free");
            block.0.push(Line::new(Style::Faint, text));
        }
        block
    }
}
