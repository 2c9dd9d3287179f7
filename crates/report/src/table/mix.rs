// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables of a mix's results for a terminal: ANTT of each policy with the conclusion, NTT of every
//! program under every policy, and ANTT ratios of several mixes. Missing values become "–". The
//! table of one ANTT costs one bootstrap per policy (`stats`).

use comfy_table::Cell;

use crate::data::{MixResult, PolicyResult, PolicyRole};
use crate::stats::Estimate;
use crate::summary as study;
use crate::table::{TerminalStyle, coloured, lines, table, verdict_colour};
use crate::text;

/// ANTT of each policy with interval, ratio to the baseline and abstentions; below it the
/// conclusion.
pub fn summary(mix: &MixResult, style: TerminalStyle) -> String {
    let head = [
        "policy",
        "ANTT",
        "95 % interval",
        "/ baseline",
        "95 % interval",
        "rounds",
        "abstained",
    ];
    let mut out = table(style, &head, 1..);
    for policy in &mix.policies {
        let antt = study::antt(mix, policy);
        let ratio = policy.comparison.as_ref().and_then(|c| c.antt);
        out.add_row(vec![
            Cell::new(&policy.label),
            Cell::new(text::number(antt.map(|e| e.value), 3)),
            Cell::new(interval(antt)),
            coloured(
                text::number(ratio.map(|e| e.value), 3),
                style,
                verdict_colour(ratio),
            ),
            Cell::new(interval(ratio)),
            Cell::new(policy.rounds.len()),
            Cell::new(policy.abstentions()),
        ]);
    }
    let headline = study::headline(mix);
    let simulated = if mix.simulated { "SIMULATED. " } else { "" };
    let mut all = format!("{}\n\n{simulated}{}\n", lines(&out), headline.sentence);
    for remark in headline.remarks {
        all.push_str(&format!("- {remark}\n"));
    }
    all
}

fn interval(estimate: Option<Estimate>) -> String {
    match estimate.and_then(|e| Some((e.low?, e.high?))) {
        Some((low, high)) => format!("{} .. {}", text::number(low, 3), text::number(high, 3)),
        None => text::NONE.to_owned(),
    }
}

/// NTT of every program (rows) under every policy (columns) over the rounds. A value is green or
/// red if the interval of its ratio to the baseline excludes 1.
pub fn ntt(mix: &MixResult, style: TerminalStyle) -> String {
    let mut head = vec!["program", "best alone"];
    head.extend(mix.policies.iter().map(|p| p.label.as_str()));
    let mut out = table(style, &head, 1..);
    for program in &mix.programs {
        let mut row = vec![
            Cell::new(&program.name),
            Cell::new(text::seconds(program.alone_best_seconds)),
        ];
        row.extend(
            mix.policies
                .iter()
                .map(|p| ntt_cell(p, &program.name, style)),
        );
        out.add_row(row);
    }
    let mut last = vec![Cell::new("ANTT"), Cell::new("")];
    let antt = |p: &PolicyResult| text::number(study::antt(mix, p).map(|e| e.value), 2);
    last.extend(mix.policies.iter().map(|p| Cell::new(antt(p))));
    out.add_row(last);
    lines(&out)
}

fn ntt_cell(policy: &PolicyResult, program: &str, style: TerminalStyle) -> Cell {
    let spread = study::spread(&policy.ntts(program));
    let programs = policy.comparison.iter().flat_map(|c| &c.programs);
    let ratio = programs
        .filter(|(name, _)| name == program)
        .find_map(|p| p.1);
    let shown = match spread {
        Some(s) if s.n > 1 => format!(
            "{} ({}..{})",
            text::number(s.mean, 2),
            text::number(s.low, 2),
            text::number(s.high, 2)
        ),
        other => text::number(other.map(|s| s.mean), 2),
    };
    coloured(shown, style, verdict_colour(ratio))
}

/// Several mixes, one row each, with the ANTT ratios of every candidate; the last row is the
/// geometric mean over the mixes.
pub fn mixes(mixes: &[MixResult], style: TerminalStyle) -> String {
    let mut names: Vec<&str> = Vec::new();
    let policies = mixes.iter().flat_map(|m| &m.policies);
    for policy in policies.filter(|p| p.role != PolicyRole::Baseline) {
        if !names.contains(&policy.name.as_str()) {
            names.push(&policy.name);
        }
    }
    let mut head = vec!["mix"];
    head.extend(&names);
    let mut out = table(style, &head, 1..);
    for mix in mixes {
        let ratio = |name: &str| mix.policy(name)?.comparison.as_ref()?.antt;
        let cells = names.iter().map(|name| ratio_cell(ratio(name), style));
        out.add_row([Cell::new(&mix.title)].into_iter().chain(cells));
    }
    let seed = mixes.first().map_or(0, |m| m.protocol.seed);
    let across = names
        .iter()
        .map(|name| ratio_cell(study::across_mixes(mixes, name, seed), style));
    out.add_row([Cell::new("geometric mean")].into_iter().chain(across));
    lines(&out)
}

fn ratio_cell(ratio: Option<Estimate>, style: TerminalStyle) -> Cell {
    let shown = match ratio {
        Some(e) => match e.low.zip(e.high) {
            Some((low, high)) => format!(
                "{} ({}..{})",
                text::number(e.value, 3),
                text::number(low, 3),
                text::number(high, 3)
            ),
            None => text::number(e.value, 3),
        },
        None => text::NONE.to_owned(),
    };
    coloured(shown, style, verdict_colour(ratio))
}
