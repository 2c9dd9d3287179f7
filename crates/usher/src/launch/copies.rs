// SPDX-License-Identifier: GPL-2.0-only
//! `usher run --copies N`: runs N copies of a command as N programs, each with a fixed seat.
//!
//! 1. Divide the physical cores that this process may use evenly: each copy gets `--cores` cores,
//!    or the number of cores divided by N, rounded down. With more copies than cores, each copy has
//!    a seat of one core, which it shares with other copies.
//! 2. Replace `{cpus}` in the command by the number of CPUs of a copy, and `{copy}` by the number of
//!    the copy, from 1.
//! 3. Start one launcher (`usher run --cores`) per copy, and forward signals to all of them. The
//!    first copy reads the standard input of this command; the standard inputs of the other copies
//!    are empty. All copies write to the same output and error streams.
//! 4. Wait until all copies have ended. A copy that fails does not end the others. The exit status
//!    is that of the first copy, by its number, that failed.
//!
//! Bounds: at most [`COPIES_MAX`] copies. If a launcher cannot be started, the started ones receive
//! SIGTERM, and the command returns when they have ended.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, bail};
use usher_host::launch::{
    ChildProcess, Forwarder, LaunchError, LaunchSpec, Stream, hold, wait_for_all,
};
use usher_model::Topology;
use usher_policy::advise::candidates::{CopyConfig, MachineSize};
use usher_report::text;

use super::{HintMode, RunOptions, check_named, placeholders};
use crate::cli::options::{explicit_store, report_other_store};
use crate::client::Daemon;
use crate::failure::Outcome;
use crate::machine::usable_machine;

/// Largest number of copies.
pub const COPIES_MAX: u32 = 4096;

/// Returns the seat of each copy. `cores`: the number of cores of each copy, if given.
///
/// # Errors
/// The copies need more cores than the machine has.
pub fn divide(topology: &Topology, copies: u32, cores: Option<u32>) -> anyhow::Result<CopyConfig> {
    let size = MachineSize::of(topology);
    let Some(each) = cores else {
        return Ok(size.divided(copies));
    };
    let wanted = u64::from(each) * u64::from(copies);
    if wanted > u64::from(size.cores) {
        bail!(
            "{} with {} each need {wanted} cores, and this process may use {}; reduce --copies or \
             --cores, or omit --cores to divide the cores evenly",
            text::copies(copies as usize),
            text::count(each as usize, "core"),
            size.cores
        );
    }
    Ok(size.with_cores(copies, each))
}

/// Runs the copies and returns the exit status.
pub fn run(options: &RunOptions, copies: u32) -> Outcome {
    check_named(&options.argv)?;
    let dir = options.runtime_dir.as_deref();
    let share = divide(&usable_machine()?, copies, options.cores)?;
    // The program of every copy is checked, since its name may contain a placeholder.
    let commands: Vec<Vec<OsString>> = (1..=copies as usize)
        .map(|copy| placeholders::replace(&options.argv, share.cpus as usize, copy))
        .collect();
    for command in &commands {
        LaunchSpec::new(command).resolve()?;
    }
    let mut signals = Forwarder::new(false).map_err(|source| LaunchError::System {
        program: options.argv.first().cloned().unwrap_or_default(),
        doing: "catching signals",
        source,
    })?;
    let mut store = explicit_store(options.store.as_deref());
    if let Some(mut daemon) = store.and_then(|_| Daemon::find(dir)) {
        report_other_store(&mut daemon, store);
        // A running daemon uses its own store, which each launcher would report again.
        store = None;
    }
    signals.keep_pending();
    let mut children = Vec::new();
    let mut failure = None;
    for (at, command) in commands.iter().enumerate() {
        match start(options, share, store, command, at == 0) {
            Ok(child) => children.push(child),
            Err(error) => {
                children
                    .iter()
                    .for_each(|child| child.signal(libc::SIGTERM));
                failure = Some(error);
                break;
            }
        }
    }
    let exits = wait_for_all(&mut children, &mut signals).context("waiting for the copies")?;
    if let Some(error) = failure {
        return Err(error);
    }
    let codes = exits.iter().map(|exit| exit.code());
    Ok(codes.into_iter().find(|&code| code != 0).unwrap_or(0))
}

/// Starts the launcher of one copy.
fn start(
    options: &RunOptions,
    share: CopyConfig,
    store: Option<&Path>,
    command: &[OsString],
    reads_input: bool,
) -> anyhow::Result<ChildProcess> {
    let own = std::env::current_exe().context("finding Usher's own executable")?;
    let mut words: Vec<OsString> = vec![own.into(), "run".into()];
    words.extend(["--cores".into(), share.cores.to_string().into()]);
    let mut option = |name: &str, value: Option<OsString>| {
        words.extend(value.into_iter().flat_map(|value| [name.into(), value]));
    };
    option("--name", options.name.clone().map(Into::into));
    option("--weight", options.weight.map(|w| w.to_string().into()));
    option("--runtime-dir", options.runtime_dir.clone().map(Into::into));
    option("--store", store.map(Into::into));
    words.extend(match options.hints {
        HintMode::AfterCopies => None,
        HintMode::Always => Some("--hints".into()),
        HintMode::Never => Some("--no-hints".into()),
    });
    words.push("--".into());
    words.extend(command.iter().cloned());
    let spec = LaunchSpec {
        stdin: if reads_input {
            Stream::Inherit
        } else {
            Stream::Null
        },
        ..LaunchSpec::new(words)
    };
    Ok(hold(&spec)?.release()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::synthetic;

    #[test]
    fn too_many_cores_are_an_error_with_the_numbers() {
        let machine = synthetic("core:4 pu:1").unwrap();
        assert_eq!(divide(&machine, 2, Some(2)).unwrap().cores, 2);
        let error = divide(&machine, 3, Some(2)).unwrap_err().to_string();
        let expected = "3 copies with 2 cores each need 6 cores, and this process may use 4";
        assert!(error.starts_with(expected), "{error}");
    }
}
