// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drawing of one domain: a box with a column for every core, or a summary and a list of CPUs if
//! the cores are too many for a box.
//!
//! A row has at most 16 cores, and at least one even if the width is smaller. The number of rows is
//! not limited here; module `draw` folds the drawing of a large machine.

use std::collections::BTreeMap;

use usher_model::{CoreId, CpuId, CpuSet, Domain, DomainId, Topology};

use super::canvas::{Block, Line, Style};
use super::seats::Seats;
use super::words::{cache, count, is_hybrid, span};

/// Maximum number of columns of cores in a box, for readable rows.
const COLUMNS_MAX: usize = 16;
/// Number of blanks between columns.
const GAP: usize = 2;

/// Properties of the whole machine that the drawing of each domain depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct MachineProperties {
    /// Whether any shared cache is known. If no shared cache is known, the heading of the drawing
    /// states that fact once.
    pub(super) any_llc: bool,
    /// Whether the cores have different capacities.
    pub(super) is_hybrid: bool,
}

impl MachineProperties {
    pub(super) fn of(topology: &Topology) -> Self {
        Self {
            any_llc: topology.domains.iter().any(|domain| domain.llc.is_some()),
            is_hybrid: is_hybrid(topology),
        }
    }
}

/// The cores of the domain, grouped by capacity, fastest first.
fn by_capacity(topology: &Topology, domain: &Domain) -> Vec<(f64, Vec<CoreId>)> {
    let mut kinds: Vec<(f64, Vec<CoreId>)> = Vec::new();
    for &core in &domain.cores {
        let capacity = topology.cores[core].capacity;
        match kinds.iter_mut().find(|(of, _)| *of == capacity) {
            Some((_, cores)) => cores.push(core),
            None => kinds.push((capacity, vec![core])),
        }
    }
    kinds.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    kinds
}

/// Returns a title such as `domain 3 · L3 32 MiB`.
pub(super) fn title(
    topology: &Topology,
    id: DomainId,
    machine: MachineProperties,
    dot: &str,
) -> Line {
    let domain = &topology.domains[id];
    let mut line = Line::new(Style::Strong, format!("domain {id}"));
    if machine.any_llc {
        line.push(Style::Plain, format!("{dot}{}", cache(domain.llc)));
    }
    if let [(capacity, _)] = by_capacity(topology, domain)[..]
        && machine.is_hybrid
    {
        line.push(Style::Plain, format!("{dot}capacity {capacity:.2}"));
    }
    line
}

/// Draws the cores of a domain: a column for each core, with the hardware threads of the core below
/// one another. Cores of different capacity are in separate rows.
pub(super) fn cells(topology: &Topology, id: DomainId, seats: &Seats, width: usize) -> Block {
    let kinds = by_capacity(topology, &topology.domains[id]);
    let mut block = Block::default();
    for (capacity, cores) in &kinds {
        let label = match kinds.len() {
            1 => String::new(),
            _ => format!("capacity {capacity:.2}  "),
        };
        block.below(bands(topology, cores, seats, &label, width));
    }
    block
}

/// Divides the cores into rows with similar numbers of columns, up to the width.
fn bands(topology: &Topology, cores: &[CoreId], seats: &Seats, label: &str, width: usize) -> Block {
    let digits = topology
        .cpus
        .last()
        .map_or(1, |cpu| cpu.os.to_string().len());
    let column = digits + seats.mark_width() + GAP;
    let fit = ((width.saturating_sub(label.len()) + GAP) / column).clamp(1, COLUMNS_MAX);
    let rows = cores.len().div_ceil(fit);
    let columns = cores.len().div_ceil(rows.max(1)).max(1);
    let threads = cores
        .iter()
        .map(|&core| topology.cores[core].cpus.len())
        .max();
    let mut block = Block::default();
    for (row, band) in cores.chunks(columns).enumerate() {
        if row > 0 && threads > Some(1) {
            block.0.push(Line::default());
        }
        let cpus: Vec<Vec<CpuId>> = band
            .iter()
            .map(|&core| topology.cores[core].cpus.iter().collect())
            .collect();
        let height = cpus.iter().map(Vec::len).max().unwrap_or(0);
        for thread in 0..height {
            let first = row == 0 && thread == 0;
            let lead = if first {
                label.to_owned()
            } else {
                " ".repeat(label.len())
            };
            let mut line = Line::new(Style::Faint, lead);
            for (column, core) in cpus.iter().enumerate() {
                let gap = if column > 0 { GAP } else { 0 };
                line.push(Style::Plain, " ".repeat(gap));
                line.append(seats.cell(core.get(thread).copied(), digits));
            }
            block.0.push(line);
        }
    }
    block
}

/// Returns the common properties of equal domains, such as `8 cores, SMT 2, L3 32 MiB`.
pub(super) fn shape(topology: &Topology, id: DomainId, machine: MachineProperties) -> String {
    let domain = &topology.domains[id];
    let kinds = by_capacity(topology, domain);
    let describe = |(capacity, cores): &(f64, Vec<CoreId>)| {
        let threads = span(cores.iter().map(|&core| topology.cores[core].cpus.len()));
        let mut text = count(cores.len(), "core");
        if threads != "1" {
            text += &format!(", SMT {threads}");
        }
        if machine.is_hybrid {
            text += &format!(", capacity {capacity:.2}");
        }
        text
    };
    let cores: Vec<String> = kinds.iter().map(describe).collect();
    match machine.any_llc {
        true => format!("{}, {}", cores.join(" + "), cache(domain.llc)),
        false => cores.join(" + "),
    }
}

/// The domain's CPUs in the kernel's list format; with seats, split by program.
pub(super) fn cpu_list(topology: &Topology, id: DomainId, seats: &Seats) -> Vec<(Style, String)> {
    let cpus = &topology.domains[id].cpus;
    let mut split: BTreeMap<Option<usize>, CpuSet> = BTreeMap::new();
    for cpu in cpus.iter() {
        split.entry(seats.of(cpu)).or_default().insert(cpu);
    }
    split
        .into_iter()
        .rev()
        .map(|(seat, cpus)| match seat {
            Some(seat) => (Style::Seat(seat), format!("{}:{cpus}", seats.mark(seat))),
            None => (Style::Plain, cpus.to_string()),
        })
        .collect()
}
