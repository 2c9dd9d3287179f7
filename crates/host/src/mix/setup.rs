// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prepares the measurement of a mix:
//!
//! 1. Check that all programs can be executed.
//! 2. Run the setup commands with missing outputs. Each command may take at most one day.
//! 3. Check that all input files exist and all output files can be written.
//!
//! A setup command runs alone, and is not retried. The first failure ends the preparation: a
//! non-zero exit status, a missing output, a time-out or a cancellation by the user.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::fs::{Access, access};

use super::error::MixError;
use super::file::{MixFile, SetupCommand};
use super::options::MixEvent;
use crate::engine::AdoptOptions;
use crate::launch::{LaunchError, LaunchSpec, Stream};
use crate::measured::{MeasuredProcess, RunCondition, RunError};

/// Time limit of a setup command: one day.
const TIMEOUT: Duration = Duration::from_secs(86_400);

/// Checks that every program can be executed.
pub(super) fn check_programs(mix: &MixFile) -> Result<(), MixError> {
    for program in &mix.programs {
        let spec = program.spec(&mix.dir, Stream::Null, true);
        spec.resolve().map_err(|source| MixError::Program {
            name: program.name.clone(),
            package: program.package.clone(),
            source,
        })?;
    }
    Ok(())
}

/// Checks that every input file exists and every output file can be written.
pub(super) fn check_files(mix: &MixFile) -> Result<(), MixError> {
    for program in &mix.programs {
        if let Some(path) = program.stdin.as_ref().map(|path| mix.dir.join(path)) {
            std::fs::File::open(&path).map_err(|source| MixError::Input {
                name: program.name.clone(),
                what: "input",
                path,
                source,
            })?;
        }
        if let Some(path) = program.output.as_ref().map(|path| mix.dir.join(path)) {
            check_output(&path).map_err(|source| MixError::Program {
                name: program.name.clone(),
                package: None,
                source: LaunchError::Stream {
                    stream: "output",
                    path,
                    source,
                },
            })?;
        }
    }
    Ok(())
}

/// Checks that a file can be written, without creating or opening it.
fn check_output(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(meta) if meta.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(access(path, Access::WRITE_OK)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            let dir = dir.unwrap_or(Path::new("."));
            Ok(access(dir, Access::WRITE_OK | Access::EXEC_OK)?)
        }
        Err(error) => Err(error),
    }
}

/// Runs the setup commands with missing outputs.
pub(super) fn make_inputs(
    mix: &MixFile,
    cancel: &AtomicBool,
    on_event: &mut dyn FnMut(MixEvent<'_>),
) -> Result<(), MixError> {
    let is_there = |path: &Path| mix.dir.join(path).exists();
    for setup in &mix.setup {
        if setup.unless_exists.as_deref().is_some_and(is_there) {
            continue;
        }
        let command = words(&setup.argv);
        on_event(MixEvent::Setup { command: &command });
        run(setup, &mix.dir, &command, cancel)?;
        if let Some(path) = setup.unless_exists.clone().filter(|path| !is_there(path)) {
            return Err(MixError::MissingOutput { command, path });
        }
    }
    Ok(())
}

fn run(
    setup: &SetupCommand,
    dir: &Path,
    command: &str,
    cancel: &AtomicBool,
) -> Result<(), MixError> {
    let stderr = tempfile::NamedTempFile::new().map_err(|source| RunError::System {
        doing: "making a temporary file for the setup command's standard error stream",
        source,
    })?;
    let spec = LaunchSpec {
        cwd: Some(dir.to_owned()),
        stdin: Stream::Null,
        stdout: Stream::Null,
        new_session: true,
        ..LaunchSpec::new(&setup.argv)
    };
    let mut process =
        MeasuredProcess::launch(None, spec, AdoptOptions::new(&setup.argv), stderr.path())?;
    process.start()?;
    let ended = process.wait(TIMEOUT, cancel, || ())?;
    match ended.map(|repetition| repetition.exit) {
        Some(exit) if exit.success() => Ok(()),
        Some(exit) => Err(MixError::Setup {
            command: command.to_owned(),
            exit,
            stderr: process.stderr_tail(),
        }),
        None => Err(MixError::Run(RunError::TimedOut {
            name: command.to_owned(),
            condition: RunCondition::Policy("setup".to_owned()),
            seconds: TIMEOUT.as_secs_f64(),
        })),
    }
}

fn words(argv: &[OsString]) -> String {
    let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}
