// SPDX-License-Identifier: GPL-2.0-only
//! `usher bg`: background work that foreground work does not feel.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::json;
use usher_model::Regulation;

use crate::cli::{Global, StoreArg};
use crate::client::Daemon;
use crate::failure::{self, Outcome};
use crate::launch::{self, Wish};
use crate::output::Output;
use crate::regulate::{Regulator, Stop};

/// Runs a program on what is idle, and stops it when others need the machine
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "usher bg [OPTIONS] -- CMD...\n       usher bg [OPTIONS] --attach PID...",
    after_help = "\
CPU, disks and network: the program, with all its processes, gets the lowest
priority there is, and is stopped while foreground work (everything that is not
background work, the kernel's own threads and always-on services apart) uses the
same disk or network interface, or waits for CPUs that it holds. It goes on when
they are idle, within milliseconds. Whatever dies, nothing stays stopped or lowered.
Work already handed over goes on: buffered writes, what is in a socket's buffer.

With a daemon, the daemon does this, and `usher status`, `top` and `explain` show it;
without one, this process does, until the program has ended. --thresholds and
--ignore are for the latter: a daemon is told them as it starts.

Policies: usher (ours: milliseconds, each disk and interface by itself, on a budget
of delay for the foreground), eii (stops for 1 s, doubling to 16 s while others need
the same), ipd (goes on only when all is idle); the last two as in the paper.

Examples:
  usher bg -- restic backup /home
  usher bg --name scan -- clamscan -r /srv
  usher bg --policy ipd -- boinc
  usher bg --attach $(pidof updatedb)
  nohup usher bg -- rsync -a /data host:/backup &"
)]
pub struct Args {
    /// When to stop it and when to let it go on
    #[arg(long, value_enum, default_value_t)]
    policy: Policy,
    /// What to call it; else the command's file name
    #[arg(long, value_parser = crate::cli::program_name)]
    name: Option<String>,
    /// Numbers of running processes to take in instead of a command
    #[arg(long, value_name = "PID", num_args = 1.., conflicts_with = "command")]
    attach: Vec<i32>,
    #[command(flatten)]
    regulation: RegulationArgs,
    #[command(flatten)]
    store: StoreArg,
    /// The command and its arguments
    #[arg(
        required_unless_present = "attach",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// How background work is told from foreground, and when it is in the way.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct RegulationArgs {
    /// File with thresholds for background work; else what `usher bench
    /// calibrate` found, else paper 2's
    #[arg(long, value_name = "FILE")]
    pub thresholds: Option<PathBuf>,
    /// A service, by its name in `ps -o comm`, whose use of the machine is not
    /// foreground's; may be given again
    #[arg(long, value_name = "NAME")]
    pub ignore: Vec<String>,
}

impl RegulationArgs {
    /// Refuses what the daemon that runs has been told already.
    ///
    /// # Errors
    /// One of the options is there.
    pub fn refuse_beside_daemon(&self) -> anyhow::Result<()> {
        let given = match (&self.thresholds, self.ignore.first()) {
            (Some(file), _) => format!("--thresholds {}", file.display()),
            (None, Some(name)) => format!("--ignore {name}"),
            (None, None) => return Ok(()),
        };
        anyhow::bail!("a daemon runs, and regulates by its own: `usher daemon {given}` tells it")
    }
}

/// A policy's name on the command line.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Policy {
    #[default]
    Usher,
    Eii,
    Ipd,
}

impl From<Policy> for Regulation {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Usher => Self::Usher,
            Policy::Eii => Self::Eii,
            Policy::Ipd => Self::Ipd,
        }
    }
}

/// Runs or attaches.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    if !args.attach.is_empty() {
        return args.take_in(global, out);
    }
    launch::run(&Wish {
        argv: args.command.clone(),
        name: args.name.clone(),
        weight: None,
        hints: false,
        background: Some(args.policy.into()),
        regulation: args.regulation.clone(),
        runtime_dir: global.runtime_dir.clone(),
        store: args.store.path.clone(),
    })
}

/// Whether this process is that one or descends from it.
fn runs_below(pid: i32) -> bool {
    let parent = |pid: i32| -> Option<i32> {
        // The name, which comes first, may be any bytes.
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        let (_, after_name) = stat.rsplit_once(") ")?;
        after_name.split(' ').nth(1)?.parse().ok()
    };
    let own = rustix::process::getpid().as_raw_nonzero().get();
    std::iter::successors(Some(own), |&pid| parent(pid).filter(|&pid| pid > 0))
        .any(|above| above == pid)
}

impl Args {
    fn take_in(&self, global: &Global, out: Output) -> Outcome {
        let policy = self.policy.into();
        let Some(mut daemon) = Daemon::find(global.runtime_dir.as_deref()) else {
            let store = self.store.path.as_deref();
            let dir = global.runtime_dir.as_deref();
            let stop = Stop::catch()?;
            let regulator = Regulator::start(dir, store, &self.regulation)?;
            return regulator.attend(&self.attach, self.name.as_deref(), policy, &stop);
        };
        self.regulation.refuse_beside_daemon()?;
        for &pid in &self.attach {
            anyhow::ensure!(
                !runs_below(pid),
                "process {pid} cannot be managed: this command itself runs below it"
            );
        }
        let attached = self.attach.iter().map(|&pid| {
            let reply = daemon.attach(pid, self.name.clone(), None, Some(policy))?;
            let value = json!({ "pid": pid, "id": reply.id, "policy": policy.name() });
            out.answer(&value, || {
                format!("process {pid} is program {}, background work", reply.id)
            })
        });
        failure::of_parts(attached)
    }
}
