// SPDX-License-Identifier: GPL-2.0-only
//! `usher daemon`: parses the options of the service that gives programs their seats, and runs the
//! service. The service itself is in `crate::daemon`.
//!
//! The process stays in the foreground until SIGTERM, SIGINT, `usher daemon stop` or a failure ends
//! it. The exit status is 0 after a signal or a request, and 125 after a failure.

mod reload;
mod stop;

use std::io::Write;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::cli::options::{Global, RegulationArgs, StoreArg};
use crate::daemon::metrics::Address;
use crate::daemon::{self, Config};
use crate::failure::{self, Outcome};
use crate::output::Output;
use crate::runtime;

/// Runs the service that assigns CPUs to programs, until a signal or `usher daemon stop` ends it
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
The daemon listens on $XDG_RUNTIME_DIR/usher/usher.varlink; root's daemon listens on
/run/usher/usher.varlink. To print the interface of the socket, run:
  varlinkctl introspect /run/usher/usher.varlink org.usher.Usher1
If the daemon is killed, its keeper process undoes all its changes within a second and
then becomes the next daemon; under systemd, systemd starts the next daemon. On SIGTERM,
SIGINT and `usher daemon stop`, the daemon releases all programs, which keep running, and
ends.

At its start, the daemon reads settings and rules from the file of --config; options of the
command line take precedence. If the file has an error, the daemon does not start. At `usher
daemon reload` and at SIGHUP, the daemon reads the rules again. The page configuration.md of
the documentation describes the file.

Policies:
  usher  measures programs while they run together, lends idle CPUs, detects phases, and
         may let launched programs that busy-wait run in turn on all CPUs
  casas  stops all other programs to measure a program alone at several core counts
         (published policy, for comparisons)
  equal  gives each program the same number of cores
  linux  changes nothing: all programs share all CPUs; for comparisons

Examples:
  usher daemon &
  usher daemon --policy equal
  usher daemon --metrics 127.0.0.1:9464         serves Prometheus metrics on loopback
  usher daemon --log-level debug                also logs loans, stops and notes
  usher daemon --record run.jsonl               writes a record for `usher replay`
  usher daemon reload                           reads the rules again
  usher daemon stop                             ends the daemon
  systemctl --user start usher                  starts the installed systemd unit"
)]
pub struct Args {
    #[command(subcommand)]
    request: Option<Request>,
    /// Choose the policy that assigns CPUs to programs; by default, usher
    #[arg(long, value_parser = PossibleValuesParser::new(usher_policy::NAMES))]
    policy: Option<String>,
    /// Read settings and rules from FILE; by default, /etc/usher/usher.toml as root, else
    /// usher/usher.toml in $XDG_CONFIG_HOME or ~/.config, if the file exists
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve Prometheus metrics at unix:PATH or a loopback ADDRESS:PORT
    #[arg(long, value_name = "WHERE")]
    metrics: Option<Address>,
    /// Log messages of LEVEL and above to the systemd journal, or to standard error outside a systemd
    /// service: error, warn, info (default) or debug
    #[arg(long, value_name = "LEVEL", value_parser = PossibleValuesParser::new(daemon::LOG_LEVELS)
        .try_map(|name| name.parse::<log::LevelFilter>()), hide_possible_values = true)]
    log_level: Option<log::LevelFilter>,
    /// Write each observation and each decision as a JSON line to FILE; an existing file is renamed
    /// to FILE.old
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// End 5 s after the last program, unless the daemon holds the scheduler; `usher run`, `usher bg`
    /// and `usher sched start` start such a daemon
    #[arg(long)]
    exit_when_idle: bool,
    #[command(flatten)]
    regulation: RegulationArgs,
    #[command(flatten)]
    store: StoreArg,
}

impl Args {
    /// Returns whether the command makes a request to the running daemon instead of serving.
    pub fn is_request(&self) -> bool {
        self.request.is_some()
    }
}

/// A request to the running daemon.
#[derive(Debug, clap::Subcommand)]
enum Request {
    Reload(reload::Args),
    Stop(stop::Args),
}

/// Runs the service until a signal or a failure ends it, or makes a request to the running daemon.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    match &args.request {
        Some(Request::Reload(args)) => return reload::run(args, global, out),
        Some(Request::Stop(args)) => return stop::run(args, global, out),
        None => {}
    }
    let served = daemon::run(&Config {
        runtime_dir: runtime::own_dir(global.runtime_dir.as_deref()),
        policy: args.policy.clone(),
        config_file: args.config.clone(),
        metrics: args.metrics.clone(),
        log_level: args.log_level,
        record: args.record.clone(),
        store: runtime::store_path(args.store.path.as_deref()),
        thresholds: args.regulation.thresholds.clone(),
        ignore: args.regulation.ignore.clone(),
        variation: None,
        exit_when_idle: args.exit_when_idle,
    });
    if let (true, Err(error)) = (args.exit_when_idle, &served) {
        // The command that started this daemon reads the reason from standard output.
        let _ = writeln!(std::io::stdout(), "{}", failure::line(error));
        // `daemon::run` has logged the error already.
        return Ok(failure::OWN);
    }
    served.map(|()| 0)
}
