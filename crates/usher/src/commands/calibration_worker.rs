// SPDX-License-Identifier: GPL-2.0-only
//! `usher calibration-worker`, a hidden command that `usher doctor --calibrate` starts: runs one of
//! the calibration programs of `usher_host::calibrate`.

use std::time::Duration;

use anyhow::Context;
use usher_host::calibrate::{CalibrationProgram, run_calibration_program};

use crate::cli::numbers::whole;
use crate::failure::Outcome;

/// Runs a program that counts its own work
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the program
    #[arg(value_parser = program)]
    program: CalibrationProgram,
    /// Number of threads
    #[arg(value_parser = whole::<u16>(1..=u16::MAX))]
    threads: u16,
    /// Time of the run in milliseconds
    #[arg(value_parser = whole::<u32>(1..=u32::MAX))]
    run_ms: u32,
}

fn program(name: &str) -> Result<CalibrationProgram, String> {
    CalibrationProgram::named(name).ok_or_else(|| {
        let names = CalibrationProgram::ALL.map(CalibrationProgram::name);
        format!("the program must be one of {}", names.join(", "))
    })
}

/// Runs the program.
pub fn run(args: &Args) -> Outcome {
    let time = Duration::from_millis(args.run_ms.into());
    let mut out = std::io::stdout().lock();
    run_calibration_program(args.program, args.threads.into(), time, &mut out)
        .with_context(|| format!("running the calibration program '{}'", args.program.name()))?;
    Ok(0)
}
