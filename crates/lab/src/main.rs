// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher-lab`: runs a command under another kernel on another machine.

use std::process::ExitCode;

fn main() -> ExitCode {
    usher_lab::become_guest();
    usher_lab::cli::main()
}
