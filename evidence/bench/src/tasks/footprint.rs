// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `footprint`: the memory of a registered task in bytes, and whether ten million tasks (one
//! million with --quick) can wait at the same time and then all run.
//!
//! A hidden command of this program registers the tasks (`inside::footprint`) and prints the growth
//! of its resident memory, which contains the allocator's overhead and free hash table entries.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;
use usher_report::text;

use super::{inside, rounds};
use crate::bars::{Bar, Part, Table};

/// Tasks registered at once to measure their memory.
const TASKS: u64 = 1_000_000;
/// Number of tasks that are registered before any is ready.
const FLIGHT: u64 = 10_000_000;
const FLIGHT_QUICK: u64 = 1_000_000;
/// Bar: memory of a task at most, in bytes.
const BYTES_MOST: f64 = 96.0;

/// Runs the commands and computes the part.
///
/// # Errors
/// The executable of this program cannot be run, or it fails.
pub fn run(threads: u32, quick: bool) -> Result<Part> {
    eprintln!("tasks: footprint");
    let program = std::env::current_exe()?;
    let print = |words: &[String]| {
        let mut command = Command::new(&program);
        rounds::output(command.arg(inside::COMMAND).args(words))
    };
    let bytes = print(&["footprint".to_owned(), TASKS.to_string()]).context("footprint")?;
    let bytes = numbers(&bytes);
    let flight = if quick { FLIGHT_QUICK } else { FLIGHT };
    let ran = print(&["flight".to_owned(), flight.to_string(), threads.to_string()]);
    let failed = ran
        .as_ref()
        .err()
        .map(|error| format!("measuring the memory of tasks in flight: {error:#}"));
    let ran = ran.ok().and_then(|text| numbers(&text).get("ran").copied());

    let mut part = Part::new("footprint", "Memory of tasks");
    let of = |name: &str| bytes.get(name).copied();
    part.bars = vec![
        // The closure holds a pointer, because a task of paper 5 is a function and its argument.
        Bar::at_most(
            "memory of a registered task whose closure has a pointer",
            of("pointer"),
            BYTES_MOST,
            "bytes",
        ),
        Bar::at_most(
            format!(
                "{} tasks in flight that have not run",
                text::number(flight as f64, 0)
            ),
            ran.map(|ran| flight as f64 - ran),
            0.0,
            "tasks",
        ),
    ];
    let rows = [
        (
            "registered by token, waiting, with an empty closure",
            "bare",
        ),
        (
            "registered by token, waiting, with a closure that has a pointer",
            "pointer",
        ),
        ("in a graph, with one dependency each", "graph"),
    ];
    part.tables = vec![Table {
        head: ["", "bytes a task"].map(str::to_owned).to_vec(),
        rows: rows
            .map(|(what, name)| vec![what.to_owned(), text::number(of(name), 1)])
            .to_vec(),
    }];
    part.notes = vec![format!(
        "The figures are the growth of the resident memory by {TASKS} tasks, divided by their \
         number; they include the overhead of the allocator and free entries of hash tables."
    )];
    part.notes.extend(failed);
    part.raw = json!({ "bytes": bytes, "flight": flight, "ran": ran });
    Ok(part)
}

/// Parses lines of a name and a number.
fn numbers(text: &str) -> BTreeMap<String, f64> {
    let number = |line: &str| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    text.lines().filter_map(number).collect()
}
