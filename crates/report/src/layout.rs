// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who sat where, as rectangles: spans of CPU sets become blocks of
//! neighbouring rows.
//!
//! Each CPU is a row, in the order of the hardware. A row's spans are cut at
//! every start and end, so that between two cuts the same programs are there;
//! equal neighbours in time are joined, then equal neighbours among the rows
//! of one domain. What is left is few rectangles even where many spans
//! overlap. Programs that share CPUs stand in one block together.

use usher_model::{CpuId, DomainId, PackageId};

use crate::data::{Lender, MixResult, RoundResult, SeatSpan, SpanMode};

/// One CPU's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The operating system's number.
    pub cpu: CpuId,
    /// Its last-level-cache domain.
    pub domain: DomainId,
    /// Its package.
    pub package: PackageId,
}

/// A program in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// Place of the program in [`Layout::names`].
    pub program: usize,
    /// How it runs there.
    pub mode: SpanMode,
    /// Whose the CPUs are, where they are borrowed.
    pub lender: Option<Lender>,
}

/// The same occupants on neighbouring rows for a while.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// First row.
    pub first: usize,
    /// Last row, inclusive; in the same domain.
    pub last: usize,
    /// Seconds since the start of the round.
    pub start_s: f64,
    /// The same; after `start_s`.
    pub end_s: f64,
    /// Who is there, in the order of the mix; never empty. Where CPUs are
    /// lent the borrower stands here and the owner does not.
    pub occupants: Vec<Occupant>,
}

/// Rows and blocks of one round.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Programs: those of the mix, then any that only the timeline names.
    pub names: Vec<String>,
    /// CPUs from top to bottom.
    pub rows: Vec<Row>,
    /// What to draw.
    pub blocks: Vec<Block>,
}

/// Lays a round's timeline out on the machine's CPUs. Spans that are empty,
/// run backwards or are not finite are left out, as are CPUs that the
/// topology does not have.
pub fn layout(mix: &MixResult, round: &RoundResult) -> Layout {
    let names = names(mix, round);
    let rows = rows(mix);
    let spans: Vec<(&SeatSpan, Occupant)> = round
        .timeline
        .iter()
        .filter(|s| s.start_s.is_finite() && s.end_s.is_finite() && s.end_s > s.start_s)
        .map(|s| (s, occupant(s, &names)))
        .collect();
    let mut blocks: Vec<Block> = Vec::new();
    let mut above: Vec<usize> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let same_domain = at > 0 && rows[at - 1].domain == row.domain;
        let candidates = if same_domain { above.as_slice() } else { &[] };
        let mut here = Vec::new();
        for stretch in stretches(row.cpu, &spans) {
            let joined = candidates
                .iter()
                .copied()
                .find(|&b| blocks[b].same_but_row(&stretch));
            match joined {
                Some(b) => blocks[b].last = at,
                None => blocks.push(Block {
                    first: at,
                    last: at,
                    ..stretch
                }),
            }
            here.push(joined.unwrap_or(blocks.len() - 1));
        }
        above = here;
    }
    Layout {
        names,
        rows,
        blocks,
    }
}

impl Block {
    fn same_but_row(&self, other: &Self) -> bool {
        self.start_s == other.start_s
            && self.end_s == other.end_s
            && self.occupants == other.occupants
    }
}

fn names(mix: &MixResult, round: &RoundResult) -> Vec<String> {
    let mut names: Vec<String> = mix.programs.iter().map(|p| p.name.clone()).collect();
    for span in &round.timeline {
        if !names.contains(&span.program) {
            names.push(span.program.clone());
        }
    }
    names
}

/// The machine's CPUs in the order of the hardware.
pub fn rows(mix: &MixResult) -> Vec<Row> {
    let topology = &mix.machine.topology;
    let mut rows = Vec::new();
    for (package, p) in topology.packages.iter().enumerate() {
        for &domain in &p.domains {
            let cores = topology.domains.get(domain).map(|d| d.cores.as_slice());
            let cores = cores.unwrap_or_default().iter();
            let cpus = cores.filter_map(|&core| topology.cores.get(core));
            for cpu in cpus.flat_map(|core| core.cpus.iter()) {
                rows.push(Row {
                    cpu,
                    domain,
                    package,
                });
            }
        }
    }
    rows
}

fn occupant(span: &SeatSpan, names: &[String]) -> Occupant {
    let program = names.iter().position(|name| *name == span.program);
    Occupant {
        program: program.unwrap_or(names.len()),
        mode: span.mode,
        lender: span.borrowed_from.clone(),
    }
}

/// What happens on one CPU, in order of time; rows are set by the caller.
fn stretches(cpu: CpuId, spans: &[(&SeatSpan, Occupant)]) -> Vec<Block> {
    let mine: Vec<_> = spans.iter().filter(|(s, _)| s.cpus.contains(cpu)).collect();
    let mut cuts: Vec<f64> = mine
        .iter()
        .flat_map(|(s, _)| [s.start_s, s.end_s])
        .collect();
    cuts.sort_by(f64::total_cmp);
    cuts.dedup();
    let mut stretches: Vec<Block> = Vec::new();
    for cut in cuts.windows(2) {
        let (start_s, end_s) = (cut[0], cut[1]);
        let there = mine
            .iter()
            .filter(|(s, _)| s.start_s <= start_s && s.end_s >= end_s);
        let occupants = settle(there.map(|(_, o)| o.clone()).collect());
        match stretches.last_mut() {
            _ if occupants.is_empty() => {}
            Some(b) if b.end_s == start_s && b.occupants == occupants => b.end_s = end_s,
            _ => stretches.push(Block {
                first: 0,
                last: 0,
                start_s,
                end_s,
                occupants,
            }),
        }
    }
    stretches
}

/// Each program once, in order; an owner gives way to its borrowers.
fn settle(mut occupants: Vec<Occupant>) -> Vec<Occupant> {
    if occupants.iter().any(|o| o.lender.is_some()) {
        occupants.retain(|o| o.lender.is_some() || o.mode == SpanMode::Shared);
    }
    occupants.sort_by_key(|o| o.program);
    occupants.dedup();
    occupants
}
