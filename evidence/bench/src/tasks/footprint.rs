// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `footprint`: measures the memory of a registered task in bytes, and checks that ten million
//! tasks (one million with --quick) can wait at the same time and that all of them then run.
//!
//! A hidden command of this program (`inside::footprint`) registers the tasks and prints the growth
//! of its resident memory per task. The growth includes the overhead of the allocator and free
//! entries of the hash table. The bar is 96 bytes.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;
use usher_report::text;

use super::{inside, numbers, rounds};
use crate::bars::{Bar, Part, Table};

/// Number of tasks that are registered at the same time to measure their memory.
const TASKS: u64 = 1_000_000;
/// Number of tasks that are registered before the first task is ready.
const FLIGHT: u64 = 10_000_000;
const FLIGHT_QUICK: u64 = 1_000_000;
/// Bar: largest permitted memory of a task, in bytes.
const BYTES_MOST: f64 = 96.0;

/// Runs the hidden commands, and computes the part.
///
/// # Errors
/// A hidden command cannot be run or fails.
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
        // The bar applies to tasks with a closure that contains a pointer, because a task of paper
        // 5 consists of a function and its argument.
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
