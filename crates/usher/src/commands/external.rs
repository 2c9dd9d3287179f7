// SPDX-License-Identifier: GPL-2.0-only
//! `usher NAME`: a program of its own, `usher-NAME` in PATH.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::bail;
use usher_host::launch::{LaunchError, LaunchSpec};

use crate::cli;
use crate::failure::Outcome;

/// Becomes `usher-NAME`; returns only where that cannot be.
pub fn run(words: &[OsString]) -> Outcome {
    let Some((name, args)) = words.split_first() else {
        bail!("no command was given; see 'usher --help'");
    };
    let name = name.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.chars().all(plain) {
        bail!(cli::unknown_command(words));
    }
    let program = format!("usher-{name}");
    match LaunchSpec::new([&program]).resolve() {
        Ok(path) => Err(become_program(&path, args)),
        Err(LaunchError::NotFound { .. }) => bail!(cli::unknown_command(words)),
        Err(error) => Err(error.into()),
    }
}

/// Executes the program in place of this one; returns only why it could not.
pub fn become_program(path: &Path, args: &[OsString]) -> anyhow::Error {
    let source = Command::new(path).args(args).exec();
    LaunchError::CannotExecute {
        program: path.into(),
        source,
    }
    .into()
}
