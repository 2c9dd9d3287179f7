// SPDX-License-Identifier: GPL-2.0-only
//! The `usher` command: parses the command line, warns of unknown variables `USHER_…`, runs the
//! command, and turns errors into one line and an exit status.
//!
//! If the stack limit is less than 2 MiB, the command runs on a thread with a stack of 8 MiB. If
//! this thread cannot be started, the command runs on the main thread. A write beyond the limit of
//! file sizes returns an error instead of ending the process.

// Text reaches a terminal through `output` and `failure`, which filter it.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod answers;
mod api;
mod autostart;
mod cli;
mod client;
mod commands;
mod copies;
mod daemon;
mod failure;
mod launch;
mod machine;
mod measure;
mod output;
mod peer;
mod progress;
mod runtime;

use std::panic::resume_unwind;
use std::process::ExitCode;

use rustix::process::{Resource, getrlimit};

/// Stack of the thread that runs the command, in bytes: an upper limit of what a command needs.
const STACK_BYTES: usize = 8 << 20;
/// If the main thread has less stack than this, another thread runs the command.
const STACK_MIN_BYTES: u64 = 2 << 20;

fn main() -> ExitCode {
    // The caller may have chosen attributes with which Usher could not work.
    usher_host::launch::adjust_attributes();
    let stack = getrlimit(Resource::Stack).current;
    if stack.is_none_or(|bytes| bytes >= STACK_MIN_BYTES) {
        return run();
    }
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    match thread.spawn(run) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
        Err(_) => run(),
    }
}

fn run() -> ExitCode {
    match cli::parse(std::env::args_os()) {
        Ok((cli, out)) => failure::exit_code(commands::run(cli, &out)),
        Err(code) => code,
    }
}
