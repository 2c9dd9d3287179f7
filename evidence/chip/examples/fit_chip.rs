// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fits the parameters that paper 5 does not give ([`usher_chip::FittedParameters`]) to Tables 2
//! and 3 of the paper. One set of parameters applies to all cells of the tables: `fit_chip [ROUNDS]
//! [NAME=VALUE]...`.
//!
//! 1. Each round multiplies and divides each parameter by a factor, and keeps a change that reduces
//!    `study::distance`. The factors become smaller every second round.
//! 2. The fit ends after ROUNDS rounds, or after a round that reduces the distance by at most
//!    0.001. With 0 rounds, the program only prints the results of the start values.
//! 3. The program prints simulated and published figures of all cells, and the parameters.
//!
//! The environment variables `FRAMES=1` and `CORES=1,4,6` (their default values) set the number of
//! frames to simulate, and the numbers of cores. Only cells with these numbers of cores are used.
//!
//! With `HOLD_OUT=1`, the fit starts from round values that were chosen without the tables, and
//! uses only four of the seven curves of Table 2. The program prints the other three curves
//! (including that of the paper's main result) and Table 3 separately, as predictions of the model.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use usher_chip::h264::Input;
use usher_chip::study::{
    CellComparison, FrameCounts, cells, compare, distance, peaks, ratios, share_within, table_3,
};
use usher_chip::{FittedParameters, Pattern};

/// Names of the parameters, with the factor of a step, the minimum and the maximum.
const KNOBS: [(&str, f64, f64, f64); 15] = [
    ("macroblock_cycles", 1.15, 500.0, 20_000.0),
    ("code_percent", 1.25, 25.0, 400.0),
    ("workspace_bytes", 1.25, 128.0, 32_768.0),
    ("stack_bytes", 1.2, 256.0, 32_768.0),
    ("stack_writes", 1.5, 1.0, 16.0),
    ("tables_bytes", 1.3, 64.0, 32_768.0),
    ("slots", 1.5, 1.0, 16.0),
    ("lead", 1.5, 0.0, 8.0),
    ("parsed_bytes", 1.2, 256.0, 8192.0),
    ("state_bytes", 1.4, 128.0, 2048.0),
    ("line_busy_cycles", 1.06, 20.0, 250.0),
    ("first_word_cycles", 1.2, 40.0, 200.0),
    ("row_cycles", 1.4, 1.0, 200.0),
    ("write_buffer", 2.0, 1.0, 32.0),
    ("locked_percent", 1.5, 5.0, 100.0),
];

/// The curves of Table 2 (picture size, KiB of the second-level cache) that a fit with `HOLD_OUT=1`
/// uses.
const TRAINING_CELLS: [(Input, usize); 4] = [
    (Input::Wvga, 64),
    (Input::Wvga, 256),
    (Input::Qvga, 128),
    (Input::Vga, 128),
];
/// Start values of a fit with `HOLD_OUT=1`.
const ROUND: [(&str, f64); 15] = [
    ("macroblock_cycles", 6000.0),
    ("code_percent", 100.0),
    ("workspace_bytes", 1024.0),
    ("stack_bytes", 1024.0),
    ("stack_writes", 2.0),
    ("tables_bytes", 2048.0),
    ("slots", 4.0),
    ("lead", 1.0),
    ("parsed_bytes", 1024.0),
    ("state_bytes", 256.0),
    ("line_busy_cycles", 120.0),
    ("first_word_cycles", 80.0),
    ("row_cycles", 20.0),
    ("write_buffer", 4.0),
    ("locked_percent", 50.0),
];

fn is_training_cell(row: &CellComparison) -> bool {
    TRAINING_CELLS.contains(&(row.cell.input, row.cell.l2_kb))
}

fn holds_out() -> bool {
    std::env::var("HOLD_OUT").is_ok_and(|value| value == "1")
}

fn set(fitted: &FittedParameters, name: &str, value: f64) -> FittedParameters {
    let mut all = json!(fitted);
    assert!(all.get(name).is_some(), "no parameter {name}");
    // Sizes are rounded to multiples of 64 bytes, so that code and data start at line boundaries.
    let step = if name.ends_with("_bytes") { 64.0 } else { 1.0 };
    all[name] = Value::from(((value / step).round() * step) as u64);
    serde_json::from_value(all).unwrap()
}

fn get(fitted: &FittedParameters, name: &str) -> f64 {
    json!(fitted)[name].as_f64().unwrap()
}

fn evaluate(
    fitted: &FittedParameters,
    cores: &[usize],
    patterns: &[Pattern],
    all: bool,
) -> (Vec<CellComparison>, [f64; 2]) {
    let mut cells = cells().unwrap();
    cells.retain(|cell| cores.contains(&cell.cores));
    if !all && holds_out() {
        cells.retain(|cell| TRAINING_CELLS.contains(&(cell.input, cell.l2_kb)));
    } else if cores.len() < 6 {
        cells.retain(|cell| {
            cell.input != Input::Vga && (cell.input != Input::Hd || cell.cores == 4)
        });
    }
    let frames = std::env::var("FRAMES").map_or(1, |frames| frames.parse().unwrap());
    let extent = FrameCounts {
        warm_up: u32::from(frames > 1),
        measured: frames,
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let rows = compare(&cells, patterns, fitted, extent, workers).unwrap();
    let [fcfs, a] = table_3(fitted, extent).unwrap();
    (rows, [fcfs.cycles as f64, a.cycles as f64])
}

fn show(rows: &[CellComparison], [fcfs, a]: [f64; 2]) {
    let uniform = fcfs / a;
    for four in rows.chunk_by(|a, b| a.cell == b.cell) {
        let cell = four[0].cell;
        print!("{:>5} {:>3} {}", cell.input.name(), cell.l2_kb, cell.cores);
        for row in four {
            let there = row.published.map_or(f64::NAN, |figures| figures.fps);
            print!(" | {:6.2} {:6.2}", row.simulated.fps, there);
        }
        print!(" || L2/M");
        for row in four {
            let there = row.published.and_then(|figures| figures.l2_misses);
            let millions = |misses: Option<f64>| misses.unwrap_or(f64::NAN) / 1e6;
            print!(
                " {:5.2} {:5.2} |",
                millions(row.simulated.l2_misses),
                millions(there)
            );
        }
        let first = |of: fn(&usher_chip::published::Figures) -> Option<f64>| {
            let there = four[0].published.as_ref().and_then(of);
            (of(&four[0].simulated).unwrap(), there.unwrap_or(f64::NAN))
        };
        let (l1, l1_there) = first(|figures| figures.l1_misses);
        println!(" L1/M {:4.0} {:4.0}", l1 / 1e6, l1_there / 1e6);
    }
    let fps = ratios(rows, |figures| Some(figures.fps));
    let l2 = ratios(rows, |figures| figures.l2_misses);
    println!(
        "share of FPS ratios within 0.10: {:.2}; of L2-miss ratios within 0.15: {:.2}; ratio \
         with uniform penalties {uniform:.3} of {:.2} M cycles; distance {:.3}",
        share_within(&fps, 0.10),
        share_within(&l2, 0.15),
        fcfs / 1e6,
        distance(rows, uniform)
    );
    for peak in peaks(rows)
        .iter()
        .filter(|peak| peak.simulated.abs_diff(peak.published) > 1)
    {
        println!("peak off: {peak:?}");
    }
}

fn main() {
    let mut fitted = FittedParameters::default();
    if holds_out() {
        for (name, value) in ROUND {
            fitted = set(&fitted, name, value);
        }
    }
    let mut rounds = 0;
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some((name, value)) => fitted = set(&fitted, name, value.parse().unwrap()),
            None => rounds = argument.parse().unwrap(),
        }
    }
    let cores = std::env::var("CORES").unwrap_or_else(|_| "1,4,6".to_owned());
    let cores: Vec<usize> = cores
        .split(',')
        .map(|cores| cores.parse().unwrap())
        .collect();
    if rounds == 0 {
        let (rows, uniform) = evaluate(&fitted, &cores, &Pattern::ALL, true);
        show(&rows, uniform);
        return;
    }
    let cost = |fitted: &FittedParameters| {
        let (rows, [fcfs, a]) = evaluate(fitted, &cores, &Pattern::PAPER, false);
        // With `HOLD_OUT=1`, the published gain of Table 3 replaces the simulated gain, and Table 3
        // has no influence on the fit.
        distance(&rows, if holds_out() { 1.1096 } else { fcfs / a })
    };
    let mut best = cost(&fitted);
    for round in 0..rounds {
        let before = best;
        for (name, factor, least, most) in KNOBS {
            let factor = 1.0 + (factor - 1.0) / f64::from(1 + round / 2);
            for factor in [factor, 1.0 / factor] {
                let value = (get(&fitted, name) * factor).clamp(least, most);
                let other = set(&fitted, name, value);
                if other == fitted {
                    continue;
                }
                let now = cost(&other);
                if now < best {
                    (fitted, best) = (other, now);
                    println!("{best:.4} {name} = {}", get(&fitted, name));
                    break;
                }
            }
        }
        println!("round {round}: {best:.4} {}", json!(fitted));
        if best > before - 1e-3 {
            break;
        }
    }
    let (rows, uniform) = evaluate(&fitted, &[1, 2, 3, 4, 5, 6], &Pattern::ALL, true);
    if holds_out() {
        let (training, held_out): (Vec<CellComparison>, _) =
            rows.iter().copied().partition(is_training_cell);
        println!("fitted to:");
        show(&training, uniform);
        println!(
            "cells that were not used for the fit (the gain with uniform penalties was not used \
             either):"
        );
        show(&held_out, uniform);
    } else {
        show(&rows, uniform);
    }
    println!("{fitted:#?}");
}
