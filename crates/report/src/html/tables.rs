// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables of a mix's report page: the ANTT of each policy and round, and NTT, times, cores and
//! sources of progress of every program under every policy. Missing values become "–". The number
//! of cells grows with programs times policies, and each NTT costs a pass over the rounds.

use maud::{Markup, html};

use crate::data::{MixResult, PolicyResult, ProgramFacts, ProgramRound};
use crate::figure::{policy_class, program_class};
use crate::stats::{self, Estimate};
use crate::summary;
use crate::text;

/// ANTT of each policy, then all figures by program and policy.
pub(crate) fn figures(mix: &MixResult) -> Markup {
    html! {
        h2 { "All figures" }
        (policies(mix))
        (programs(mix))
        (rounds(mix))
    }
}

fn policies(mix: &MixResult) -> Markup {
    html! {
        div.scroll { table {
            thead { tr {
                th { "Policy" } th.n { "ANTT" } th.n { "95 % interval" } th.n { "against baseline" } th.n { "95 % interval" } th.n { "rounds" } th.n { "abstained" }
            } }
            tbody { @for policy in &mix.policies { (policy_row(mix, policy)) } }
        } }
    }
}

fn policy_row(mix: &MixResult, policy: &PolicyResult) -> Markup {
    let antt = summary::antt(mix, policy);
    let ratio = policy.comparison.as_ref().and_then(|c| c.antt);
    html! {
        tr {
            td.name data-label="Policy" { (policy_name(mix, policy)) }
            td.n data-label="ANTT" { (text::number(antt.map(|e| e.value), 3)) }
            td.n data-label="95 % interval of ANTT" { (interval(antt)) }
            td.n.good[ratio.is_some_and(|r| r.is_below(1.0))] data-label="against baseline" { (text::number(ratio.map(|e| e.value), 3)) }
            td.n data-label="95 % interval of ratio" { (interval(ratio)) }
            td.n data-label="rounds" { (policy.rounds.len()) }
            td.n data-label="abstained" { (policy.abstentions()) }
        }
    }
}

fn policy_name(mix: &MixResult, policy: &PolicyResult) -> Markup {
    html! { i class={ "bar " (policy_class(mix, &policy.name)) } {} (policy.label) }
}

/// ANTT of every policy in every round. A row contains the values of one round, which are paired in
/// the comparisons.
fn rounds(mix: &MixResult) -> Markup {
    let most = mix
        .policies
        .iter()
        .map(|p| p.rounds.len())
        .max()
        .unwrap_or(0);
    let antt = |policy: &PolicyResult, i: usize| policy.rounds.get(i).and_then(|r| r.antt);
    html! {
        @if most > 0 {
            h3 { "ANTT of each round" }
            div.scroll { table {
                thead { tr { th.n { "Round" } @for policy in &mix.policies { th.n { (policy_name(mix, policy)) } } } }
                tbody {
                    @for i in 0..most {
                        tr { td.n data-label="Round" { (i + 1) } @for policy in &mix.policies { td.n data-label=(policy.label) { (text::number(antt(policy, i), 3)) } } }
                    }
                }
            } }
        }
    }
}

fn interval(estimate: Option<Estimate>) -> String {
    match estimate.and_then(|e| Some((e.low?, e.high?))) {
        Some((low, high)) => format!("{} to {}", text::number(low, 3), text::number(high, 3)),
        None => text::NONE.to_owned(),
    }
}

fn programs(mix: &MixResult) -> Markup {
    html! {
        h3 { "Programs" }
        div.scroll { table.grouped {
            thead { tr {
                th { "Program" } th.n { "alone, best" } th { "Policy" } th.n { "NTT" } th.n { "range" } th.n { "against baseline" }
                th.n { "mean time" } th.n { "runs" } th.n { "cores" } th { "progress from" }
            } }
            tbody {
                @for (i, program) in mix.programs.iter().enumerate() {
                    @for (j, policy) in mix.policies.iter().enumerate() { (program_row(mix, (i, program), (j, policy))) }
                }
            }
        } }
        p.soft { "runs: completed repetitions over all rounds; cores: the cores that the program had for the longest time in the round drawn above; bold: the whole 95 % interval lies below 1." }
    }
}

fn program_row(
    mix: &MixResult,
    (i, program): (usize, &ProgramFacts),
    (j, policy): (usize, &PolicyResult),
) -> Markup {
    let spread = summary::spread(&policy.ntts(&program.name));
    let ratio = ratio_of(policy, &program.name);
    let rounds: Vec<&ProgramRound> = policy
        .rounds
        .iter()
        .filter_map(|r| r.program(&program.name))
        .collect();
    let seconds: Vec<f64> = rounds
        .iter()
        .flat_map(|r| r.seconds.iter().copied())
        .collect();
    let cores = cores(mix, policy, &program.name);
    html! {
        tr.first[j == 0].last[j + 1 == mix.policies.len()] {
            td.name data-label="Program" { @if j == 0 { b class={ "chip " (program_class(i)) } { (text::key(i)) } (program.name) } }
            td.n data-label="alone, best" { @if j == 0 { (text::seconds(program.alone_best_seconds)) } }
            td.name data-label="Policy" { (policy_name(mix, policy)) }
            td.n data-label="NTT" { (text::number(spread.map(|s| s.mean), 3)) }
            td.n data-label="range" { @match spread { Some(s) => { (text::number(s.low, 2)) " to " (text::number(s.high, 2)) }, None => (text::NONE) } }
            td.n.good[ratio.is_some_and(|r| r.is_below(1.0))] data-label="against baseline" { (text::number(ratio.map(|r| r.value), 3)) }
            td.n data-label="mean time" { (text::seconds(stats::mean(&seconds))) }
            td.n data-label="runs" { (seconds.len()) }
            td.n data-label="cores" { (cores) }
            td data-label="progress from" { (source(&rounds)) }
        }
    }
}

/// The number of cores of the program's longest seat, "shared", or a dash if nothing is known.
fn cores(mix: &MixResult, policy: &PolicyResult, program: &str) -> String {
    let round = policy.typical_round();
    let known = round.is_some_and(|r| r.timeline.iter().any(|span| span.program == program));
    match round.and_then(|r| summary::usual_cores(mix, r, program)) {
        Some(cores) => text::short(cores, 2),
        None if known => "shared".to_owned(),
        None => text::NONE.to_owned(),
    }
}

fn ratio_of(policy: &PolicyResult, program: &str) -> Option<Estimate> {
    let programs = &policy.comparison.as_ref()?.programs;
    programs.iter().find(|(name, _)| name == program)?.1
}

/// Distinct sources of progress with their confidence; failures first.
fn source(rounds: &[&ProgramRound]) -> String {
    let mut texts: Vec<String> = Vec::new();
    let failures = rounds
        .iter()
        .filter_map(|r| r.failure.as_ref())
        .map(|why| format!("failed: {why}"));
    let sources = rounds
        .iter()
        .filter_map(|r| Some((r.progress_source?, r.confidence)));
    let sources = sources.map(|(source, confidence)| match confidence {
        Some(_) => format!("{source} ({})", text::percent(confidence)),
        None => source.to_string(),
    });
    for text in failures.chain(sources) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    if texts.is_empty() {
        return text::NONE.to_owned();
    }
    texts.join(", ")
}
