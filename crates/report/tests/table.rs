// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of tables and pictures for terminals: content, alignment, maximum width, and the absence
//! of colours without a terminal.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is a failure

mod sample;

use usher_model::{CpuSet, Curve, Progress, ProgressSource};
use usher_report::data::SpanMode;
use usher_report::table::{self, StatusRow, TerminalStyle};

const COLOUR: TerminalStyle = TerminalStyle {
    colour: true,
    width: None,
};

/// Number of columns of the longest line without ANSI sequences.
fn widest(text: &str) -> usize {
    let mut widest = 0;
    for line in text.lines() {
        let (mut columns, mut escape) = (0, false);
        for letter in line.chars() {
            match letter {
                '\u{1b}' => escape = true,
                'm' if escape => escape = false,
                _ if escape => {}
                _ => columns += 1,
            }
        }
        widest = widest.max(columns);
    }
    widest
}

fn status_rows() -> Vec<StatusRow> {
    let row = |id: u64, name: &str, mode, cpus: &str, borrowed: &str| StatusRow {
        id,
        name: name.to_owned(),
        pid: 4000 + id as i32,
        threads: 2,
        mode,
        cpus: cpus.parse().unwrap(),
        borrowed: borrowed.parse().unwrap(),
        lent: CpuSet::new(),
        rate: Some(0.5),
        progress: Some(Progress {
            total: 1.0,
            source: ProgressSource::Ompt,
            confidence: 0.8,
        }),
        ntt: Some(1.25),
    };
    vec![
        row(1, "pigz", SpanMode::Seated, "0-11", "24-26"),
        row(2, "gmx", SpanMode::Shared, "12-47", ""),
        row(3, "frozen", SpanMode::Frozen, "12-47", ""),
    ]
}

#[test]
fn tables_agree_with_the_mix() {
    let mix = sample::paper();
    let text = table::summary(&mix, TerminalStyle::PLAIN);
    eprintln!("{text}\n{}", table::ntt(&mix, TerminalStyle::PLAIN));
    for policy in &mix.policies {
        let logs: f64 = policy.antts().iter().map(|a| a.ln()).sum();
        let antt = (logs / policy.rounds.len() as f64).exp();
        let line = text
            .lines()
            .find(|l| l.starts_with(&format!("{} ", policy.label)))
            .unwrap();
        assert!(line.contains(&format!(" {antt:.3} ")), "{line}");
    }
    assert!(text.contains("usher beats linux"));
    let ntt = table::ntt(&mix, TerminalStyle::PLAIN);
    assert!(mix.programs.iter().all(|p| ntt.contains(&p.name)));
}

#[test]
fn colours_appear_only_on_request() {
    let mix = sample::paper();
    for (plain, coloured) in [
        (
            table::summary(&mix, TerminalStyle::PLAIN),
            table::summary(&mix, COLOUR),
        ),
        (
            table::ntt(&mix, TerminalStyle::PLAIN),
            table::ntt(&mix, COLOUR),
        ),
        (
            table::status(&status_rows(), TerminalStyle::PLAIN),
            table::status(&status_rows(), COLOUR),
        ),
        (
            table::curve(&sample::curve(0.1, 0.001, 48), TerminalStyle::PLAIN),
            table::curve(&sample::curve(0.1, 0.001, 48), COLOUR),
        ),
    ] {
        assert!(!plain.contains('\u{1b}'), "{plain}");
        assert!(coloured.contains('\u{1b}'), "{coloured}");
        assert_eq!(widest(&plain), widest(&coloured));
    }
}

#[test]
fn tables_fit_the_terminal_width() {
    let mix = sample::paper();
    for width in [60, 80, 132] {
        let style = TerminalStyle {
            colour: false,
            width: Some(width),
        };
        let round = &mix.policies[4].rounds[0];
        for text in [
            table::ntt(&mix, style),
            table::status(&status_rows(), style),
            table::profile(&sample::curve(0.1, 0.0, 48), style),
            table::curve(&sample::curve(0.1, 0.0, 48), style),
            table::seats(&mix, round, style),
        ] {
            assert!(widest(&text) <= width as usize, "{width}:\n{text}");
        }
    }
}

#[test]
fn draws_a_curve() {
    let curve = sample::curve(0.05, 0.002, 48);
    let text = table::curve(&curve, TerminalStyle::PLAIN);
    eprintln!("{text}\n{}", table::profile(&curve, TerminalStyle::PLAIN));
    assert!(text.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)));
    assert!(text.contains("cores") && text.contains("48"));
    let one = Curve::from_rates(&[(1, 2.0)].into()).unwrap();
    let text = table::curve(&one, TerminalStyle::PLAIN);
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
}

#[test]
fn draws_the_seats_of_a_round() {
    let mix = sample::paper();
    let usher = table::seats(&mix, &mix.policies[4].rounds[0], TerminalStyle::PLAIN);
    let linux = table::seats(&mix, &mix.policies[0].rounds[0], TerminalStyle::PLAIN);
    eprintln!("{usher}\n{linux}");
    assert_eq!(usher.lines().count(), mix.programs.len() + 1);
    assert!(linux.contains('░') && !usher.contains('░'));
    let mut none = mix.policies[0].rounds[0].clone();
    none.timeline.clear();
    assert_eq!(
        table::seats(&mix, &none, TerminalStyle::PLAIN),
        "No seats were recorded for this round.\n"
    );
}

#[test]
fn table_of_mixes_ends_with_geometric_mean() {
    let mixes = [sample::small(), sample::paper()];
    let text = table::mixes(&mixes, TerminalStyle::PLAIN);
    eprintln!("{text}");
    let ratio = |i: usize| {
        let usher = mixes[i].policy("usher").unwrap();
        usher.comparison.as_ref().unwrap().antt.unwrap().value
    };
    let mean = (ratio(0) * ratio(1)).sqrt();
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("geometric mean") || last.starts_with(" geometric mean"));
    assert!(last.trim_end().ends_with(&format!("{mean:.3}")), "{last}");
}

#[test]
fn empty_status_is_stated() {
    assert_eq!(
        table::status(&[], TerminalStyle::PLAIN),
        "The daemon manages no program."
    );
    eprintln!("{}", table::status(&status_rows(), TerminalStyle::PLAIN));
}
