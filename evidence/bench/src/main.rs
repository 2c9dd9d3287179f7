// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher-bench`: Usher's benchmarks, found by `usher bench`.
//!
//! Each benchmark *runs* and saves its data as JSON in a dated folder. The data is then *studied*
//! (figures are compared with their bars) and *formatted* (as a page).

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
