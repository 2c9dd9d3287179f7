// SPDX-License-Identifier: GPL-2.0-only
//! `usher seated`, a hidden command that `usher run --hints` launches in place of the program.
//!
//! 1. Count the CPUs that this process may use: those of its affinity mask (its seat), or fewer if
//!    the CPU quota of its cgroups is smaller.
//! 2. Set `OMP_NUM_THREADS` and similar variables to this number, unless they are set.
//! 3. Execute the program in this process. A missing program has exit status 127, a program that
//!    cannot be executed 126.

use std::ffi::OsString;

use usher_host::launch::{LaunchSpec, exec_in_place};

use crate::failure::Outcome;

/// Executes a program with the number of its CPUs in OMP_NUM_THREADS and similar variables
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Command to run, with its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// Executes the program; returns only on failure.
pub fn run(args: &Args) -> Outcome {
    let seats = std::thread::available_parallelism()?.get();
    let spec = LaunchSpec::new(&args.command).thread_hints(seats);
    Err(exec_in_place(&spec).into())
}
