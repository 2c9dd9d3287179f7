// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that a trace contains every seat, loan and note of a round, in Chrome's trace event
//! format.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is a failure

mod sample;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use usher_report::data::{MixResult, RoundResult};
use usher_report::trace;

fn events(mix: &MixResult, policy: usize) -> (Vec<Value>, &RoundResult) {
    let policy = &mix.policies[policy];
    let trace = trace::perfetto(mix, policy, &policy.rounds[0]);
    let text = serde_json::to_string(&trace).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(trace["otherData"]["policy"], policy.name.as_str());
    (
        trace["traceEvents"].as_array().unwrap().clone(),
        &policy.rounds[0],
    )
}

fn of<'a>(events: &'a [Value], phase: &str) -> Vec<&'a Value> {
    events.iter().filter(|e| e["ph"] == phase).collect()
}

#[test]
fn slices_are_the_spans() {
    let mix = sample::paper();
    for policy in 0..mix.policies.len() {
        let (events, round) = events(&mix, policy);
        let slices: f64 = of(&events, "X")
            .iter()
            .map(|e| e["dur"].as_f64().unwrap())
            .sum();
        let spans = round.timeline.iter();
        let spans: f64 = spans
            .map(|s| (s.end_s - s.start_s) * s.cpus.len() as f64)
            .sum();
        assert!(
            (slices / 1e6 - spans).abs() < 1e-3 * spans,
            "{slices} us, {spans} s"
        );
    }
}

#[test]
fn every_slice_has_a_named_process_and_thread() {
    let mix = sample::crowd();
    let (events, _) = events(&mix, 4);
    let named = |what: &str| -> BTreeSet<(u64, u64)> {
        let metadata = of(&events, "M").into_iter().filter(|e| e["name"] == what);
        metadata
            .map(|e| (e["pid"].as_u64().unwrap(), e["tid"].as_u64().unwrap()))
            .collect()
    };
    let (processes, threads) = (named("process_name"), named("thread_name"));
    assert_eq!(processes.len(), mix.programs.len());
    for slice in of(&events, "X") {
        let (pid, tid) = (
            slice["pid"].as_u64().unwrap(),
            slice["tid"].as_u64().unwrap(),
        );
        assert!(processes.contains(&(pid, 0)) && threads.contains(&(pid, tid)));
        assert!(slice["dur"].as_f64().unwrap() > 0.0);
    }
    assert!(of(&events, "X").iter().any(|e| e["cat"] == "loan"));
}

#[test]
fn notes_are_instants_at_their_time() {
    let mix = sample::paper();
    let (events, round) = events(&mix, 4);
    let instants: Vec<_> = of(&events, "i")
        .iter()
        .map(|e| {
            (
                e["ts"].as_f64().unwrap(),
                e["name"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    assert_eq!(instants.len(), round.notes.len());
    for ((ts, name), (at, note)) in instants.iter().zip(&round.notes) {
        assert!((ts - at * 1e6).abs() < 1.0 && name == note);
    }
}

#[test]
fn counters_equal_the_cpus_of_each_program() {
    let mix = sample::paper();
    let (events, round) = events(&mix, 4);
    let mut series: BTreeMap<u64, Vec<(f64, u64, u64)>> = BTreeMap::new();
    for e in of(&events, "C") {
        let count = |key: &str| e["args"][key].as_u64().unwrap();
        let entry = (
            e["ts"].as_f64().unwrap() / 1e6,
            count("owned"),
            count("borrowed"),
        );
        series
            .entry(e["pid"].as_u64().unwrap())
            .or_default()
            .push(entry);
    }
    for (index, program) in mix.programs.iter().enumerate() {
        let counter = &series[&(index as u64 + 1)];
        assert!(counter.windows(2).all(|w| w[0].0 < w[1].0));
        for step in 1..200 {
            // Sampling times are chosen so that they do not coincide with starts and ends of spans.
            let at = (f64::from(step) + 0.37) / 201.0 * round.length_s();
            let own_spans = round.timeline.iter().filter(|s| s.program == program.name);
            let now: Vec<_> = own_spans
                .filter(|s| s.start_s <= at && at < s.end_s)
                .collect();
            let cpus = |lent: bool| -> BTreeSet<u32> {
                let such = now.iter().filter(|s| s.borrowed_from.is_some() == lent);
                such.flat_map(|s| s.cpus.iter()).collect()
            };
            let shown = counter.iter().rev().find(|c| c.0 <= at).unwrap();
            assert_eq!(
                (shown.1, shown.2),
                (cpus(false).len() as u64, cpus(true).len() as u64)
            );
        }
    }
}
