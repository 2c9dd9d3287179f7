// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher-bench`: Usher's benchmarks, found by `usher bench`.
//!
//! Each benchmark *runs* and saves what it measured as JSON in a dated folder,
//! is then *studied* (bars held against figures) and *formatted* (a page).

mod background;
mod bars;
mod cachegrind;
mod chart;
mod chip;
mod cli;
mod coloring;
mod here;
mod hosts;
mod machine;
mod page;
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
