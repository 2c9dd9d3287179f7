// SPDX-License-Identifier: MIT OR Apache-2.0
//! Before anything is measured: are the programs there, are their inputs?

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::fs::{Access, access};

use super::MixEvent;
use super::file::{MixFile, Setup};
use crate::cast::Cast;
use crate::engine::Adopt;
use crate::error::MeasureError;
use crate::launch::{LaunchError, LaunchSpec, Stream};

/// Setup may take as long as it needs; a day is taken for a hang.
const PATIENCE: Duration = Duration::from_secs(86_400);

/// Whether every program can be executed.
pub(super) fn check_programs(mix: &MixFile) -> Result<(), MeasureError> {
    for program in &mix.programs {
        let spec = program.spec(&mix.dir, Stream::Null, true);
        spec.resolve().map_err(|source| MeasureError::Program {
            name: program.name.clone(),
            package: program.package.clone(),
            source,
        })?;
    }
    Ok(())
}

/// Whether every file that is read is there, and every one that is written can
/// be.
pub(super) fn check_files(mix: &MixFile) -> Result<(), MeasureError> {
    for program in &mix.programs {
        if let Some(path) = program.stdin.as_ref().map(|path| mix.dir.join(path)) {
            std::fs::File::open(&path).map_err(|source| MeasureError::Input {
                name: program.name.clone(),
                what: "input",
                path,
                source,
            })?;
        }
        if let Some(path) = program.output.as_ref().map(|path| mix.dir.join(path)) {
            check_output(&path).map_err(|source| MeasureError::Program {
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

/// Whether a file can be written there; nothing is made or opened.
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

/// Runs the commands whose products are not there.
pub(super) fn make_inputs(
    mix: &MixFile,
    cancel: &AtomicBool,
    tell: &mut dyn FnMut(MixEvent<'_>),
) -> Result<(), MeasureError> {
    let is_there = |path: &Path| mix.dir.join(path).exists();
    for setup in &mix.setup {
        if setup.creates.as_deref().is_some_and(is_there) {
            continue;
        }
        let command = words(&setup.argv);
        tell(MixEvent::Setup { command: &command });
        run(setup, &mix.dir, &command, cancel)?;
        if let Some(path) = setup.creates.clone().filter(|path| !is_there(path)) {
            return Err(MeasureError::NotMade { command, path });
        }
    }
    Ok(())
}

fn run(setup: &Setup, dir: &Path, command: &str, cancel: &AtomicBool) -> Result<(), MeasureError> {
    let stderr = tempfile::NamedTempFile::new().map_err(|source| MeasureError::System {
        doing: "making a file for what setup says",
        source,
    })?;
    let spec = LaunchSpec {
        cwd: Some(dir.to_owned()),
        stdin: Stream::Null,
        stdout: Stream::Null,
        new_session: true,
        ..LaunchSpec::new(&setup.argv)
    };
    let mut cast = Cast::launch(None, spec, Adopt::new(&setup.argv), stderr.path())?;
    cast.start()?;
    let ended = cast.wait(PATIENCE, cancel, || ())?;
    match ended.map(|repetition| repetition.exit) {
        Some(exit) if exit.success() => Ok(()),
        Some(exit) => Err(MeasureError::Setup {
            command: command.to_owned(),
            exit,
            stderr: cast.last_words(),
        }),
        None => Err(MeasureError::Hangs {
            name: command.to_owned(),
            policy: "setup".to_owned(),
            seconds: PATIENCE.as_secs_f64(),
        }),
    }
}

fn words(argv: &[OsString]) -> String {
    let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}
