// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layout of a timeline as rectangles: spans of CPU sets become blocks of adjacent rows.
//!
//! Each CPU is a row, in hardware order.
//!
//! 1. The spans of a row are cut at every start and end; between two cuts the set of programs is
//!    constant.
//! 2. Adjacent equal pieces in time are joined.
//! 3. Equal pieces of adjacent rows of one domain are joined.
//!
//! The result has few rectangles even if many spans overlap. Programs that share CPUs are in one
//! block. For n spans, a row has fewer than 2n pieces. Each piece is compared with all spans of the
//! row and with all pieces of the row above. The cost is therefore at most proportional to CPUs
//! times spans squared, plus the sort of the programs of each piece.

use usher_model::{CpuId, DomainId, PackageId};

use crate::data::{Lender, MixResult, RoundResult, SeatSpan, SpanMode};

/// The row of one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// CPU number of the operating system.
    pub cpu: CpuId,
    /// Last-level-cache domain of the CPU.
    pub domain: DomainId,
    /// Package of the CPU.
    pub package: PackageId,
}

/// A program in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// Index of the program in [`Layout::names`].
    pub program: usize,
    /// Mode of the program.
    pub mode: SpanMode,
    /// Owner of the CPUs, if they are borrowed.
    pub lender: Option<Lender>,
}

/// A period with the same occupants on adjacent rows.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineBlock {
    /// First row.
    pub first: usize,
    /// Last row, inclusive; in the same domain as the first.
    pub last: usize,
    /// Start in seconds since the start of the round.
    pub start_s: f64,
    /// End in seconds since the start of the round; after `start_s`.
    pub end_s: f64,
    /// The programs of the block in the order of the mix; never empty. For lent CPUs, `occupants`
    /// contains the borrower and not the owner.
    pub occupants: Vec<Occupant>,
}

/// Rows and blocks of one round.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Programs: those of the mix, then programs that occur only in the timeline.
    pub names: Vec<String>,
    /// CPUs from top to bottom.
    pub rows: Vec<Row>,
    /// The blocks to draw.
    pub blocks: Vec<TimelineBlock>,
}

/// Computes the layout of a round's timeline. Empty, reversed and non-finite spans are skipped.
/// CPUs that the topology does not contain are skipped, too.
pub fn layout(mix: &MixResult, round: &RoundResult) -> Layout {
    let names = names(mix, round);
    let rows = rows(mix);
    let spans: Vec<(&SeatSpan, Occupant)> = round
        .timeline
        .iter()
        .filter(|s| s.start_s.is_finite() && s.end_s.is_finite() && s.end_s > s.start_s)
        .map(|s| (s, occupant(s, &names)))
        .collect();
    let mut blocks: Vec<TimelineBlock> = Vec::new();
    let mut above: Vec<usize> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let same_domain = at > 0 && rows[at - 1].domain == row.domain;
        let candidates = if same_domain { above.as_slice() } else { &[] };
        let mut current = Vec::new();
        for piece in pieces(row.cpu, &spans) {
            let joined = candidates
                .iter()
                .copied()
                .find(|&b| blocks[b].same_but_row(&piece));
            match joined {
                Some(b) => blocks[b].last = at,
                None => blocks.push(TimelineBlock {
                    first: at,
                    last: at,
                    ..piece
                }),
            }
            current.push(joined.unwrap_or(blocks.len() - 1));
        }
        above = current;
    }
    Layout {
        names,
        rows,
        blocks,
    }
}

impl TimelineBlock {
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

/// The machine's CPUs in hardware order.
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

/// The periods of one CPU in order of time; the caller sets the rows.
fn pieces(cpu: CpuId, spans: &[(&SeatSpan, Occupant)]) -> Vec<TimelineBlock> {
    let own: Vec<_> = spans.iter().filter(|(s, _)| s.cpus.contains(cpu)).collect();
    let mut cuts: Vec<f64> = own.iter().flat_map(|(s, _)| [s.start_s, s.end_s]).collect();
    cuts.sort_by(f64::total_cmp);
    cuts.dedup();
    let mut pieces: Vec<TimelineBlock> = Vec::new();
    for cut in cuts.windows(2) {
        let (start_s, end_s) = (cut[0], cut[1]);
        let covering = own
            .iter()
            .filter(|(s, _)| s.start_s <= start_s && s.end_s >= end_s);
        let occupants = resolve_occupants(covering.map(|(_, o)| o.clone()).collect());
        match pieces.last_mut() {
            _ if occupants.is_empty() => {}
            Some(b) if b.end_s == start_s && b.occupants == occupants => b.end_s = end_s,
            _ => pieces.push(TimelineBlock {
                first: 0,
                last: 0,
                start_s,
                end_s,
                occupants,
            }),
        }
    }
    pieces
}

/// Removes duplicates, sorts by program, and removes owners of borrowed CPUs.
fn resolve_occupants(mut occupants: Vec<Occupant>) -> Vec<Occupant> {
    if occupants.iter().any(|o| o.lender.is_some()) {
        occupants.retain(|o| o.lender.is_some() || o.mode == SpanMode::Shared);
    }
    occupants.sort_by_key(|o| o.program);
    occupants.dedup();
    occupants
}
