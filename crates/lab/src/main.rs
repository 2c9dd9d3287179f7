// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `usher-lab`: runs a command under another kernel on another machine. If it is
//! started as the first process of a guest, it acts as the guest's init.

use std::process::ExitCode;

fn main() -> ExitCode {
    usher_lab::become_guest();
    usher_lab::cli::main()
}
