// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the timeline layout: its rectangles cover exactly the spans, at every time and on every
//! CPU, compared with an independent evaluation of the spans.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is a failure

mod sample;

use std::collections::BTreeSet;

use proptest::prelude::*;
use usher_report::data::{Lender, MixResult, RoundResult, SeatSpan, SpanMode};
use usher_report::layout::{Layout, layout};

/// Returns the programs drawn on a CPU at a time, according to the blocks.
fn drawn(layout: &Layout, row: usize, at: f64) -> BTreeSet<(String, bool)> {
    let here = layout
        .blocks
        .iter()
        .filter(|b| b.first <= row && row <= b.last);
    here.filter(|b| b.start_s <= at && at < b.end_s)
        .flat_map(|b| &b.occupants)
        .map(|o| (layout.names[o.program].clone(), o.lender.is_some()))
        .collect()
}

/// Returns the programs according to the spans: all programs whose spans cover the time. An owner
/// counts only if its CPUs are not borrowed.
fn expected(round: &RoundResult, cpu: u32, at: f64) -> BTreeSet<(String, bool)> {
    let covers = |s: &&SeatSpan| s.cpus.contains(cpu) && s.start_s <= at && at < s.end_s;
    let spans: Vec<_> = round.timeline.iter().filter(covers).collect();
    let lent = spans.iter().any(|s| s.borrowed_from.is_some());
    let gone = |s: &SeatSpan| lent && s.borrowed_from.is_none() && s.mode != SpanMode::Shared;
    spans
        .into_iter()
        .filter(|s| !gone(s))
        .map(|s| (s.program.clone(), s.borrowed_from.is_some()))
        .collect()
}

fn check(mix: &MixResult, round: &RoundResult) {
    let layout = layout(mix, round);
    let mut cuts: Vec<f64> = round
        .timeline
        .iter()
        .flat_map(|s| [s.start_s, s.end_s])
        .collect();
    cuts.sort_by(f64::total_cmp);
    for (row, place) in layout.rows.iter().enumerate() {
        for pair in cuts.windows(2).filter(|w| w[1] > w[0]) {
            let at = (pair[0] + pair[1]) / 2.0;
            assert_eq!(
                drawn(&layout, row, at),
                expected(round, place.cpu, at),
                "CPU {} at {at}",
                place.cpu
            );
        }
    }
    for block in &layout.blocks {
        assert!(block.start_s < block.end_s && !block.occupants.is_empty());
        assert_eq!(
            layout.rows[block.first].domain,
            layout.rows[block.last].domain
        );
    }
}

#[test]
fn samples_are_drawn_correctly() {
    for mix in [sample::small(), sample::paper(), sample::crowd()] {
        for policy in &mix.policies {
            check(&mix, &policy.rounds[0]);
        }
    }
}

#[test]
fn layout_needs_few_rectangles() {
    let mix = sample::paper();
    let blocks = |policy: usize| layout(&mix, &mix.policies[policy].rounds[0]).blocks.len();
    // All programs share all CPUs: one block per domain.
    assert_eq!(blocks(0), 8);
    // Two domains per program: one block per domain.
    assert_eq!(blocks(2), 8);
}

fn span() -> impl Strategy<Value = SeatSpan> {
    let mode = prop_oneof![
        Just((SpanMode::Seated, None)),
        Just((SpanMode::Shared, None)),
        Just((SpanMode::Frozen, None)),
        Just((SpanMode::Seated, Some(Lender::Unowned))),
        Just((SpanMode::Seated, Some(Lender::Program("sort".to_owned())))),
    ];
    let names = prop_oneof![Just("pigz"), Just("sort"), Just("stranger")];
    (names, 0..8_u32, 1..6_u32, 0..16_u32, 0..53_u64, mode).prop_map(
        |(name, start, length, first, width, (mode, borrowed_from))| SeatSpan {
            program: name.to_owned(),
            start_s: f64::from(start),
            end_s: f64::from(start + length),
            cpus: (0..64)
                .filter(|&c| c >= first && u64::from(c - first) <= width)
                .collect(),
            mode,
            borrowed_from,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_spans_are_drawn_correctly(spans in prop::collection::vec(span(), 0..12)) {
        let mix = sample::mix("random", sample::topology("48", 4, 2, 6), 2, 1);
        let mut round = mix.policies[0].rounds[0].clone();
        round.timeline = spans;
        check(&mix, &round);
    }
}
