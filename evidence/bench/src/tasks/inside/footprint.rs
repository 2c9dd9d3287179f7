// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hidden commands of the part `footprint`: measure the memory of waiting tasks, and register
//! millions of tasks before the first task is ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use usher_tasks::{GraphBuilder, Groups, Runtime};

use crate::machine::print_line;

pub fn number(words: &[String], at: usize) -> Result<u64> {
    let word = words.get(at).context("how many?")?;
    word.parse()
        .with_context(|| format!("'{word}' is not a number"))
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").context("reading /proc/self/statm")?;
    let pages = text
        .split(' ')
        .nth(1)
        .context("/proc/self/statm has no second number")?;
    Ok(pages.parse::<u64>()? * rustix::param::page_size() as u64)
}

/// Prints the bytes of a waiting task in three cases: the closure captures nothing, the closure
/// captures a pointer, and the task is part of a graph.
pub fn footprint(words: &[String]) -> Result<()> {
    let count = number(words, 0)?;
    let each = |before: u64, after: u64| (after - before) as f64 / count as f64;

    let runtime = Runtime::new(1)?;
    let before = resident_bytes()?;
    for token in 0..count {
        runtime.register(token, 1, Groups::NONE, || {})?;
    }
    print_line(format_args!("bare {}", each(before, resident_bytes()?)))?;

    let counter = Arc::new(AtomicU64::new(0));
    let other = Runtime::new(1)?;
    let before = resident_bytes()?;
    for token in 0..count {
        let counter = Arc::clone(&counter);
        other.register(token, 1, Groups::NONE, move || {
            counter.fetch_add(1, Ordering::Relaxed);
        })?;
    }
    print_line(format_args!("pointer {}", each(before, resident_bytes()?)))?;

    let before = resident_bytes()?;
    let mut builder = GraphBuilder::new();
    for task in 0..count as usize {
        builder.task();
        if task > 0 {
            builder.after(task, task - 1);
        }
    }
    let graph = builder.build(|_| {})?;
    print_line(format_args!("graph {}", each(before, resident_bytes()?)))?;
    drop(graph);
    ensure!(
        runtime.cancel() as u64 == count && other.cancel() as u64 == count,
        "some tasks ran although they had to wait"
    );
    Ok(())
}

/// Registers `count` tasks before the first task is ready, resolves the dependency of each task,
/// waits for all tasks, and prints the number of tasks that ran.
pub fn flight(words: &[String]) -> Result<()> {
    let count = number(words, 0)?;
    let runtime = Runtime::new(number(words, 1)? as usize)?;
    let ran = Arc::new(AtomicU64::new(0));
    for token in 0..count {
        let ran = Arc::clone(&ran);
        runtime.register(token, 1, Groups::NONE, move || {
            ran.fetch_add(1, Ordering::Relaxed);
        })?;
    }
    for token in 0..count {
        runtime.resolve(token)?;
    }
    runtime.wait()?;
    print_line(format_args!("ran {}", ran.load(Ordering::Relaxed)))
}
