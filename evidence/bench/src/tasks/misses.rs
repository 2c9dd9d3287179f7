// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `misses`: counts the cache misses and instructions of a task with valgrind's cachegrind,
//! which simulates first-level and second-level caches with the sizes of a current core. Other
//! programs do not influence the counts.
//!
//! Counts of a frame = (counts of a run with 3 frames - counts of a run with 1 frame) / 2; the
//! start of the program therefore does not count. Both runs must have chosen the same order of
//! tasks; at most five pairs of runs are tried. Limits: only the contestants that this program
//! contains are measured; valgrind runs one thread at a time and simulates no prefetcher.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;
use usher_report::text;

use super::contestants::{
    Contestant, HINTED, ORDER_TS, ORDERS, PAPER, PLAIN, Program, Runtime, TRACED, WAVEFRONT_PEERS,
};
use super::inside::CHOSEN;
use super::overhead::FRAME_720P;
use super::rounds;
use super::toolchain::Programs;
use crate::bars::{Bar, Part, Table};
use crate::cachegrind::{self, CacheShape, CachegrindOutput, Counts};

const TASKS: f64 = 80.0 * 45.0 * 8.0;
/// Sizes of the first-level and the second-level cache of a current core.
const CACHES: [CacheShape; 2] = [
    CacheShape {
        bytes: 32 << 10,
        ways: 8,
        line_bytes: 64,
    },
    CacheShape {
        bytes: 256 << 10,
        ways: 8,
        line_bytes: 64,
    },
];
/// Numbers of frames of the two runs.
const FRAMES: [u32; 2] = [1, 3];
/// Maximum number of pairs of runs until a run of each length has chosen the same order.
const ATTEMPTS: usize = 5;
/// Bar: largest permitted ratio of the misses of usher-tasks to those of the loop over macroblocks.
const LIMIT: f64 = 1.1;

/// Counts of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct CountsPerFrame {
    instructions: f64,
    d1: f64,
    ll: f64,
}

/// Counts of a frame for a contestant and a case.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ContestantCounts {
    label: String,
    form: String,
    case: String,
    frame: CountsPerFrame,
}

/// Returns the contestants that this program contains. The C++ programs are left out, because they
/// are compiled for the instruction set of this machine, which valgrind may not support.
fn contestants() -> Vec<Contestant> {
    let all = [HINTED, PLAIN, PAPER]
        .into_iter()
        .chain(WAVEFRONT_PEERS)
        .chain(ORDERS);
    all.filter(|one| one.program == Program::Own).collect()
}

/// Runs all contestants under valgrind, and computes the part.
///
/// # Errors
/// Valgrind is not installed, or a run fails.
pub fn run(programs: &Programs, scratch: &Path) -> Result<Part> {
    let mut rows = Vec::new();
    for one in contestants() {
        eprintln!("tasks: misses, {}", one.label);
        rows.push(count(programs, &one, "memory:4096", scratch)?);
    }
    let is_runtime = |one: &Contestant| one.runtime != Runtime::None;
    let runtimes = contestants().into_iter().filter(is_runtime);
    for one in runtimes.chain([TRACED]) {
        rows.push(count(programs, &one, "empty", scratch)?);
    }
    Ok(format(&rows))
}

fn count(
    programs: &Programs,
    one: &Contestant,
    case: &str,
    scratch: &Path,
) -> Result<ContestantCounts> {
    let run = |frames| run_once(programs, one, case, frames, scratch);
    let (order, [few, more]) = of_one_order(run)?;
    let frames = f64::from(FRAMES[1] - FRAMES[0]);
    let each = |of: fn(&Counts) -> u64| (of(&more) as f64 - of(&few) as f64) / frames;
    Ok(ContestantCounts {
        label: match order {
            Some(order) => format!("{}: {order}", one.label),
            None => one.label.to_owned(),
        },
        form: one.form.to_owned(),
        case: case.to_owned(),
        frame: CountsPerFrame {
            instructions: each(|c| c.instructions),
            d1: each(|c| c.first),
            ll: each(|c| c.last),
        },
    })
}

/// Returns the counts of two runs with the lengths [`FRAMES`] that chose the same order. The choice
/// depends on measured times; two runs may therefore choose different orders of equal quality.
fn of_one_order(
    run: impl Fn(u32) -> Result<(Option<String>, Counts)>,
) -> Result<(Option<String>, [Counts; 2])> {
    let mut seen: [Vec<(Option<String>, Counts)>; 2] = Default::default();
    for _ in 0..ATTEMPTS {
        for (runs, frames) in seen.iter_mut().zip(FRAMES) {
            runs.push(run(frames)?);
        }
        let [few, more] = &seen;
        let same = |(order, few): &(Option<String>, Counts)| {
            let more = more.iter().find(|(other, _)| other == order)?;
            Some((order.clone(), [*few, more.1]))
        };
        if let Some(pair) = few.iter().find_map(same) {
            return Ok(pair);
        }
    }
    bail!("in {ATTEMPTS} attempts, the runs of both lengths never chose the same order")
}

fn run_once(
    programs: &Programs,
    one: &Contestant,
    case: &str,
    frames: u32,
    scratch: &Path,
) -> Result<(Option<String>, Counts)> {
    let file = scratch.join("cachegrind.out");
    let words = cachegrind::words(CACHES[0], CACHES[1], &file);
    let mut command = rounds::command_under(&words, programs, one)?;
    command
        .args(["1", "0", &frames.to_string()])
        .args(FRAME_720P)
        .arg(case);
    let (_, stderr) =
        rounds::outputs(&mut command).with_context(|| format!("{} under valgrind", one.label))?;
    let order = stderr.lines().find_map(|line| line.strip_prefix(CHOSEN));
    let text = std::fs::read_to_string(&file).context("what cachegrind wrote")?;
    let counts = CachegrindOutput::read(&text)?.all()?;
    Ok((order.map(str::to_owned), counts))
}

fn format(rows: &[ContestantCounts]) -> Part {
    let mut part = Part::new("misses", "Cache misses of tasks");
    let of = |one: Contestant, case: &str| {
        let mut rows = rows
            .iter()
            .filter(|row| row.form == one.form && row.case == case);
        rows.next().map(|row| row.frame)
    };
    let reference = of(ORDER_TS, "memory:4096");
    let ratio = |frame: CountsPerFrame, pick: fn(&CountsPerFrame) -> f64| {
        reference.map(|reference| pick(&frame) / pick(&reference))
    };
    let hinted = of(HINTED, "memory:4096");
    for (what, pick) in [
        ("D1", (|c| c.d1) as fn(&CountsPerFrame) -> f64),
        ("LL", |c| c.ll),
    ] {
        let measured = hinted.and_then(|hinted| ratio(hinted, pick));
        let what = format!("{what} misses, with hints / T/S order");
        part.bars.push(Bar::at_most(what, measured, LIMIT, "times"));
    }
    let head = [
        "a 720p frame with 4 KB per macroblock",
        "D1 misses, thousands",
        "/ T/S",
        "LL misses, thousands",
        "/ T/S",
    ];
    let thousands = |value: f64| text::number(value / 1e3, 0);
    let row = |row: &ContestantCounts| {
        let times = |pick| text::number(ratio(row.frame, pick), 2);
        vec![
            row.label.clone(),
            thousands(row.frame.d1),
            times(|c| c.d1),
            thousands(row.frame.ll),
            times(|c| c.ll),
        ]
    };
    let in_memory = rows.iter().filter(|row| row.case != "empty");
    part.tables = vec![
        Table {
            head: head.map(str::to_owned).to_vec(),
            rows: in_memory.map(row).collect(),
        },
        instructions_table(rows),
    ];
    part.notes = vec![format!(
        "Counted by valgrind's cachegrind with {} and {}, on one thread, for a 720p frame \
         (28,800 tasks). A figure is the difference of runs with {} and {} frames after the \
         frames in which the runtime chose an order; the chosen order is behind the name. The \
         runtime chooses an order by measured times, which valgrind distorts; without valgrind, it \
         may choose another order. The table shows data misses of reads and writes. The state of a frame \
         has 14.7 MB, so every order misses each of its 230,400 lines once.",
        CACHES[0].option("D1"),
        CACHES[1].option("LL"),
        FRAMES[1],
        FRAMES[0]
    )];
    part.raw = json!(rows);
    part
}

fn instructions_table(rows: &[ContestantCounts]) -> Table {
    let empty = rows.iter().filter(|row| row.case == "empty");
    let row = |row: &ContestantCounts| {
        let each = text::number(row.frame.instructions / TASKS, 1);
        vec![row.label.clone(), each]
    };
    Table {
        head: ["empty tasks on 1 thread", "instructions a task"]
            .map(str::to_owned)
            .to_vec(),
        rows: empty.map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_different_orders_are_not_compared() {
        let counts = |each: u32| Counts {
            instructions: u64::from(each),
            ..Counts::default()
        };
        let run = |orders: [&'static [&'static str]; 2]| {
            let turns = std::cell::Cell::new([0; 2]);
            of_one_order(move |frames| {
                let long = usize::from(frames == FRAMES[1]);
                let mut now = turns.get();
                let turn = now[long];
                now[long] += 1;
                turns.set(now);
                let order = orders[long][turn % orders[long].len()];
                Ok((Some(order.to_owned()), counts(100 * frames + turn as u32)))
            })
        };
        let (order, pair) = run([&["a", "b"], &["c", "d", "b"]]).unwrap();
        assert_eq!(order.as_deref(), Some("b"));
        assert_eq!(pair, [counts(101), counts(302)]);
        assert!(run([&["a"], &["b"]]).is_err());
        let plain = of_one_order(|frames| Ok((None, counts(frames)))).unwrap();
        assert_eq!(plain, (None, FRAMES.map(counts)));
    }
}
