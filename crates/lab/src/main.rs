// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `usher-lab` runs a command in a guest: an emulated machine with another topology and
//! another kernel than the host. If the kernel of a guest starts this program as its first process,
//! the program is the guest's init process.

use std::process::ExitCode;

fn main() -> ExitCode {
    usher_lab::become_guest();
    usher_lab::cli::main()
}
