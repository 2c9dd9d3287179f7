// SPDX-License-Identifier: GPL-2.0-only
//! `usher daemon`: parses the options of the service that seats programs and runs it. The service
//! itself is in `crate::daemon`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;

use crate::cli::{Global, StoreArg};
use crate::daemon::metrics::Address;
use crate::daemon::{self, Config};
use crate::failure::Outcome;
use crate::runtime;

/// Runs the service that seats programs, until a signal ends it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Listens on $XDG_RUNTIME_DIR/usher/usher.varlink, root's on /run/usher/usher.varlink.
The interface describes itself: varlinkctl introspect …/usher.varlink org.usher.Usher1
If the daemon is killed, its keeper process undoes all its changes within a second and
restarts it. SIGTERM and SIGINT end it in an orderly way: it releases all programs,
which keep running.

Policies: usher (stops no program for a trial, lends idle seats, detects phases, and may
let launched programs that busy-wait take turns), casas (the paper's policy: trials alone
at several core counts), equal (the same number of cores for each program), linux (time
sharing: observes and does nothing).

Examples:
  usher daemon &
  usher daemon --policy equal
  usher daemon --metrics 127.0.0.1:9464         Prometheus, loopback only
  usher daemon --record run.jsonl               for `usher replay`
  systemctl --user start usher                  with the installed unit")]
pub struct Args {
    /// Policy that decides about seats
    #[arg(long, default_value = "usher", value_parser = PossibleValuesParser::new(usher_policy::NAMES))]
    policy: String,
    /// Serve Prometheus metrics at unix:PATH or a loopback ADDRESS:PORT
    #[arg(long, value_name = "WHERE")]
    metrics: Option<Address>,
    /// Write every observation and decision to FILE, one JSON line each; an existing file is kept
    /// as FILE.old
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    regulation: super::bg::RegulationArgs,
    #[command(flatten)]
    store: StoreArg,
}

/// Serves until a signal or a failure ends it.
pub fn run(args: &Args, global: &Global) -> Outcome {
    daemon::run(&Config {
        runtime_dir: runtime::own_dir(global.runtime_dir.as_deref()),
        policy: args.policy.clone(),
        metrics: args.metrics.clone(),
        record: args.record.clone(),
        store: runtime::store_path(args.store.path.as_deref()),
        thresholds: args.regulation.thresholds.clone(),
        ignore: args.regulation.ignore.clone(),
    })?;
    Ok(0)
}
