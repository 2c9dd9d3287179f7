// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that the results of a mix survive a round trip through JSON, that old files with missing
//! fields are read, and that comparisons are computed from pairs.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is a failure

mod sample;

use usher_report::data::{MixResult, PolicyRole, ProgramRound, RoundResult};
use usher_report::html;

#[test]
fn json_round_trip_preserves_results() {
    for mix in [sample::small(), sample::paper()] {
        let json = serde_json::to_string(&mix).unwrap();
        let back: MixResult = serde_json::from_str(&json).unwrap();
        assert_eq!(back, mix);
        assert_eq!(html::page(&back), html::page(&mix));
    }
}

#[test]
fn round_computes_its_ntts_and_antt() {
    let mut facts = sample::programs(2, 2);
    (facts[0].alone_best_seconds, facts[0].weight) = (Some(2.0), 3.0);
    (facts[1].alone_best_seconds, facts[1].weight) = (Some(4.0), 1.0);
    let program = |i: usize, seconds: &[f64]| ProgramRound {
        name: facts[i].name.clone(),
        ntt: None,
        seconds: seconds.to_vec(),
        reps: seconds.len() as u32,
        progress_source: None,
        confidence: None,
        failure: None,
    };
    let round = RoundResult::new(&facts, vec![program(0, &[3.0, 5.0]), program(1, &[6.0])]);
    let ntts: Vec<_> = round.programs.iter().map(|p| p.ntt).collect();
    assert_eq!(ntts, [Some(2.0), Some(1.5)]);
    assert_eq!(round.antt, Some((3.0 * 2.0 + 1.5) / 4.0));
    let lost = RoundResult::new(&facts, vec![program(0, &[3.0]), program(1, &[])]);
    assert_eq!((lost.programs[1].ntt, lost.antt), (None, None));
}

#[test]
fn policies_are_compared_round_by_round() {
    let mut mix = sample::small();
    let antts = |mix: &mut MixResult, policy: usize, values: &[Option<f64>]| {
        for (round, antt) in mix.policies[policy].rounds.iter_mut().zip(values) {
            round.antt = *antt;
        }
    };
    antts(&mut mix, 0, &[Some(1.0), Some(2.0), Some(4.0)]);
    antts(&mut mix, 4, &[Some(0.5), None, Some(8.0)]);
    mix.compare();
    assert_eq!(mix.policies[0].role, PolicyRole::Baseline);
    assert_eq!(mix.policies[0].comparison, None);
    // The expected value follows from the pairs (0.5, 1) and (8, 4): the second round is
    // incomplete, and is skipped for both policies.
    let antt = mix.policies[4].comparison.as_ref().unwrap().antt.unwrap();
    assert!((antt.value - 1.0).abs() < 1e-12);
    assert_eq!((antt.n, antt.low), (2, None));
}
