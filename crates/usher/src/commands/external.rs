// SPDX-License-Identifier: GPL-2.0-only
//! `usher NAME` for a NAME that is no command of `usher`: executes the external program
//! `usher-NAME` in this process, and passes it all further arguments.
//!
//! The program is searched first in the directory of this executable, where programs have the same
//! version, and then in `PATH`. A NAME with other characters than letters, digits, `-` and `_` is
//! an unknown command, and so is a NAME without a program; both have exit status 125. A program
//! that cannot be executed has exit status 126.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::bail;
use usher_host::launch::{LaunchError, LaunchSpec, exec_in_place};

use crate::cli;
use crate::failure::Outcome;

/// The NAME of the benchmarks. They are documented but not always installed, so that a missing
/// `usher-bench` has a message of its own.
const BENCH: &str = "bench";
const NO_BENCH: &str = "the program usher-bench is not installed: build the program with 'make \
                        install' in Usher's sources, which contain usher-bench in evidence/";

/// Executes `usher-NAME`; returns only on failure.
pub fn run(words: &[OsString]) -> Outcome {
    let Some((name, args)) = words.split_first() else {
        bail!("a command is missing; 'usher --help' lists the commands");
    };
    let name = name.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.chars().all(plain) {
        bail!(cli::unknown_command(words));
    }
    let program = format!("usher-{name}");
    let own = std::env::current_exe().ok();
    match find(&program, own.as_deref()) {
        Ok(path) => Err(become_program(&path, args)),
        Err(LaunchError::NotFound { .. }) if name == BENCH => bail!(NO_BENCH),
        Err(LaunchError::NotFound { .. }) => bail!(cli::unknown_command(words)),
        Err(error) => Err(error.into()),
    }
}

/// The program beside this program comes first, because it belongs to the same release.
fn find(program: &str, own: Option<&Path>) -> Result<PathBuf, LaunchError> {
    let beside = own.map(|own| own.with_file_name(program));
    match beside.map(|path| LaunchSpec::new([path]).resolve()) {
        None | Some(Err(LaunchError::NotFound { .. })) => LaunchSpec::new([program]).resolve(),
        Some(found) => found,
    }
}

/// Executes the program in this process; returns only the error.
pub fn become_program(path: &Path, args: &[OsString]) -> anyhow::Error {
    let words = std::iter::once(path.as_os_str()).chain(args.iter().map(OsString::as_os_str));
    exec_in_place(&LaunchSpec::new(words)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_beside_usher_precedes_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("usher");
        let sh = || find("sh", Some(&own));
        assert_eq!(sh().unwrap(), find("sh", None).unwrap());
        let beside = own.with_file_name("sh");
        std::os::unix::fs::symlink("/bin/true", &beside).unwrap();
        assert_eq!(sh().unwrap(), beside);
        assert!(find("usher-missing", Some(&own)).is_err());
    }
}
