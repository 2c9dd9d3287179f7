// SPDX-License-Identifier: GPL-2.0-only
//! Options that several commands share: the global options, the profile store, the options of
//! measurements on a busy machine, the options for background work, and the parser of program names.
//!
//! A program name has 1 to 256 bytes and no control characters. The options for background work are
//! rejected if a daemon runs, because a daemon uses the options of its own command line. A profile
//! store beside a running daemon with another store is reported.

use std::path::{Path, PathBuf};
use std::time::Duration;

use usher_host::quiet::{LoadCheck, LoadRule, WAIT_MAX};
use usher_model::CpuSet;
use usher_policy::background::Thresholds;

use super::numbers::{cpus, wait};
use crate::autostart::DaemonOptions;
use crate::client::Daemon;
use crate::failure;
use crate::output::{Color, quoted};
use crate::runtime;

/// Upper limit of the length of a program's name in bytes, because a name must fit into a table.
const NAME_BYTES_MAX: usize = 256;

/// Upper limit of the bytes of a list of CPUs: enough for every second CPU of a Linux machine.
const CPU_LIST_BYTES_MAX: usize = 32 * 1024;

/// Upper limit of the bytes of the name of a job or of a group.
const JOB_BYTES_MAX: usize = 128;

/// Environment variable that names the profile store.
pub const STORE: &str = "USHER_STORE";

/// Checks the name of a program.
///
/// # Errors
/// Why the name is rejected.
pub fn program_name(text: &str) -> Result<String, String> {
    let odd = text.is_empty() || text.len() > NAME_BYTES_MAX || text.contains(char::is_control);
    match odd {
        true => Err(format!(
            "a program name must have 1 to {NAME_BYTES_MAX} bytes and no control characters"
        )),
        false => Ok(text.to_owned()),
    }
}

/// Parses a list of CPUs, which must not be empty.
///
/// # Errors
/// Why the list is rejected.
pub fn cpu_list(text: &str) -> Result<CpuSet, String> {
    if text.len() > CPU_LIST_BYTES_MAX {
        return Err(format!(
            "the list of CPUs has {} bytes; at most {CPU_LIST_BYTES_MAX} bytes are accepted",
            text.len()
        ));
    }
    let cpus: CpuSet = text.parse().map_err(|error| format!("{error}"))?;
    match cpus.is_empty() {
        true => Err("the list of CPUs is empty; give CPUs such as 0-3,8".to_owned()),
        false => Ok(cpus),
    }
}

/// Checks the name of a job or of a group of processes.
///
/// # Errors
/// Why the name is rejected.
pub fn job_name(text: &str) -> Result<String, String> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._+:[]-".contains(&byte);
    let is_valid = (1..=JOB_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_known);
    match is_valid {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "a job or a group must have 1 to {JOB_BYTES_MAX} letters, digits and characters of \
             ._+:[]-"
        )),
    }
}

/// Options of every command.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Print the result as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Choose when to colour the output
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub color: Color,
    /// Use DIR for the daemon's socket and its journal; by default, /run/usher as root, else
    /// $XDG_RUNTIME_DIR/usher
    #[arg(long, global = true, value_name = "DIR", env = runtime::RUNTIME_DIR, hide_env_values = true)]
    pub runtime_dir: Option<PathBuf>,
}

/// The profile store, for the commands that use it.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct StoreArg {
    /// Use FILE as the profile store, which holds the measurements of earlier runs; by default,
    /// /var/lib/usher/profiles.db as root, else usher/profiles.db in $XDG_DATA_HOME or
    /// ~/.local/share
    #[arg(
        long = "store",
        value_name = "FILE",
        env = STORE,
        hide_env_values = true
    )]
    pub path: Option<PathBuf>,
}

/// Returns the store that the option `--store` names; `None` if only the environment names it, which
/// is no request to this command alone.
pub fn explicit_store(given: Option<&Path>) -> Option<&Path> {
    let from_environment = std::env::var_os(STORE).map(PathBuf::from);
    given.filter(|path| from_environment.as_deref() != Some(*path))
}

/// Prints that an option `--store` has no effect, if a daemon runs and uses another profile store.
pub fn report_other_store(daemon: &mut Daemon, given: Option<&Path>) {
    let Some(given) = explicit_store(given) else {
        return;
    };
    // A daemon that does not answer is reported by the calls of the command.
    let Ok(state) = daemon.status() else {
        return;
    };
    if state
        .store
        .as_deref()
        .map(Path::new)
        .is_some_and(|own| is_same_file(own, given))
    {
        return;
    }
    let own = state.store.map_or_else(
        || "a profile store of its own".to_owned(),
        |own| format!("the profile store {own}"),
    );
    let given = quoted(given);
    failure::print_error(&format!(
        "`--store {given}` has no effect, because a daemon runs and uses {own}: end the daemon \
         ('usher daemon stop') and repeat the command, or start the daemon as `usher daemon \
         --store {given}`"
    ));
}

/// Returns whether two paths name one file, which need not exist.
fn is_same_file(own: &Path, other: &Path) -> bool {
    let absolute = |path: &Path| std::path::absolute(path).ok();
    let real = |path: &Path| path.canonicalize().ok();
    absolute(own) == absolute(other) || (real(own).is_some() && real(own) == real(other))
}

/// Options of measurements that other programs could disturb.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LoadArgs {
    /// Measure on a busy machine, too, with a warning; a disturbed result is not stored
    #[arg(long)]
    pub force: bool,
    /// Accept other programs that use at most CPUS CPUs on average; by default, 0.1 or 1 % of the
    /// machine's CPUs, whichever is more
    #[arg(long, value_name = "CPUS", allow_negative_numbers = true, value_parser = cpus)]
    pub max_other_cpus: Option<f64>,
    /// Wait at most SECONDS for a quiet machine; by default, 60
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = wait)]
    pub max_wait: Option<f64>,
}

impl LoadArgs {
    /// Returns the rule by which a measurement checks for other programs.
    pub fn rule(&self) -> LoadRule {
        LoadRule {
            check: match self.force {
                true => LoadCheck::Force,
                false => LoadCheck::Wait,
            },
            cpus_max: self.max_other_cpus,
            wait_max: self.max_wait.map_or(WAIT_MAX, Duration::from_secs_f64),
        }
    }
}

/// Options that determine which services count as foreground, and the thresholds at which
/// background work is stopped.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct RegulationArgs {
    /// Read the thresholds of background work from FILE; by default, use the result of `usher bench
    /// calibrate`, or else the published values
    #[arg(long, value_name = "FILE")]
    pub thresholds: Option<PathBuf>,
    /// Do not count the service with this name (as in `ps -o comm`) as foreground work; may be
    /// repeated
    #[arg(long, value_name = "NAME")]
    pub ignore: Vec<String>,
}

impl RegulationArgs {
    /// Returns the thresholds of background work: from the given file, or else beside this profile
    /// store.
    ///
    /// # Errors
    /// The file cannot be read, or has another format.
    pub fn thresholds(&self, store: Option<&Path>) -> anyhow::Result<Thresholds> {
        runtime::thresholds(self.thresholds.as_deref(), &runtime::store_path(store))
    }

    /// Returns whether one of the options is given.
    pub fn is_given(&self) -> bool {
        self.thresholds.is_some() || !self.ignore.is_empty()
    }

    /// Returns the options of a daemon that a command starts with these options.
    pub fn daemon_options(&self, store: Option<PathBuf>) -> DaemonOptions {
        DaemonOptions {
            store,
            thresholds: self.thresholds.clone(),
            ignore: self.ignore.clone(),
        }
    }

    /// Rejects these options if a daemon runs, because a daemon uses the options of its own command
    /// line.
    ///
    /// # Errors
    /// One of the options is given.
    pub fn refuse_beside_daemon(&self) -> anyhow::Result<()> {
        let given = match (&self.thresholds, self.ignore.first()) {
            (Some(file), _) => format!("--thresholds {}", file.display()),
            (None, Some(name)) => format!("--ignore {name}"),
            (None, None) => return Ok(()),
        };
        anyhow::bail!(
            "`{given}` has no effect, because a daemon runs and uses its own setting: restart \
             the daemon as `usher daemon {given}`"
        )
    }
}
