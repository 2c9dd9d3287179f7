// SPDX-License-Identifier: GPL-2.0-only
//! The `usher` command: reads the command line, calls the command, and turns
//! what went wrong into one line and an exit status.

// Text reaches a terminal through `output` and `failure`, which filter it.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod api;
mod cli;
mod client;
mod commands;
mod daemon;
mod failure;
mod launch;
mod measure;
mod output;
mod progress;
mod regulate;
mod remember;
mod runtime;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::parse(std::env::args_os()) {
        Ok((cli, out)) => failure::exit_code(commands::run(cli, &out)),
        Err(code) => code,
    }
}
