// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher-bench`: Usher's benchmarks. `usher bench` finds and starts this program.
//!
//! Each benchmark works in three steps: it measures, and saves its data as JSON in a dated folder;
//! it compares the figures with their limits (bars); it writes a page.

// `println!` panics if standard output cannot be written; `machine::print_line` returns an error.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod background;
mod bars;
mod cachegrind;
mod chart;
mod chip;
mod cli;
mod coloring;
mod first;
mod here;
mod hosts;
mod machine;
mod media;
mod page;
mod parts;
mod processes;
mod progress;
mod sched;
mod seats;
mod sim;
mod tasks;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    usher_lab::become_guest();
    cli::main()
}
