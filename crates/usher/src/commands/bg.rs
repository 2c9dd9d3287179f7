// SPDX-License-Identifier: GPL-2.0-only
//! `usher bg`: runs or attaches background work, which uses idle resources and stops while
//! foreground work needs them.
//!
//! 1. A daemon regulates the program. If none listens, the command starts one, with the options
//!    `--thresholds` and `--ignore`. Beside a daemon that listens, these options are errors.
//! 2. If no daemon can be started, the program runs at the lowest priority.
//! 3. With `--attach`, running processes become background work. An ancestor of this command and a
//!    process of Usher end the command before any process is attached.
//! 4. A process that the daemon refuses does not prevent the attachment of the other processes. The
//!    exit status is then 125.
//!
//! The rules by which background work stops and continues are in `usher_policy::background`.

use std::ffi::OsString;

use clap::ValueEnum;
use usher_model::Regulation;

use crate::answers::{BackgroundAnswer, BackgroundProgram};
use crate::autostart;
use crate::cli::options::{Global, RegulationArgs, StoreArg, report_other_store};
use crate::client::{self, AttachOptions, Daemon, WaitLimits};
use crate::daemon::own_process;
use crate::failure::{self, Outcome};
use crate::launch::{self, HintMode, RunOptions};
use crate::output::Output;

/// Runs a program as background work, and stops it while other programs need the machine
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "usher bg [OPTIONS] -- CMD...\n       usher bg [OPTIONS] --attach PID...",
    after_help = "\
All processes of the program get the lowest priority for CPU and disks. Usher stops the program
while foreground work uses the same disk or network interface, or waits for CPUs that the
program uses. Usher continues the program within milliseconds after the disk, the interface or
the CPUs become idle. Foreground work is every process except background work, kernel threads,
always-on services and threads of the class SCHED_IDLE. If this command or the daemon dies, the
program continues and its priority is restored. Buffered writes and data in socket buffers are
not stopped, because the kernel has already accepted them.

A daemon regulates the program, and `usher status`, `top` and `explain` show the program. If
no daemon listens, this command starts one, which ends 5 s after its last program.
--thresholds and --ignore apply only to a daemon that this command starts; `usher daemon` has
the same options. If Usher cannot regulate the program, for example because its runtime
directory is full, the program still runs at the lowest priority, and one line names the cause.

Policies:
  usher  reacts within milliseconds, separately for each disk and network interface, and
         limits the delay of foreground work by a budget
  eii    stops the program for 1 s while the foreground uses the same resource, and
         doubles that time up to 16 s (published policy, for comparisons)
  ipd    continues the program only when all resources are idle (published policy, for
         comparisons)

Examples:
  usher bg -- restic backup /home
  usher bg --name scan -- clamscan -r /srv
  usher bg --policy ipd -- boinc
  usher bg --attach $(pidof updatedb)
  usher bg --no-daemon -- make docs      lowest priority only: never stopped
  nohup usher bg -- rsync -a /data host:/backup &"
)]
pub struct Args {
    /// Choose the policy that decides when to stop and when to continue the program
    #[arg(long, value_enum, default_value_t)]
    policy: Policy,
    /// Use this name for the program in reports; by default, the name of the command's file
    #[arg(long, value_parser = crate::cli::options::program_name)]
    name: Option<String>,
    /// Regulate the running processes with these pids, instead of starting a command
    #[arg(
        long,
        value_name = "PID",
        num_args = 1..,
        value_parser = crate::cli::target::process,
        allow_negative_numbers = true,
        conflicts_with = "command"
    )]
    attach: Vec<i32>,
    /// Run the program at the lowest priority, and neither use nor start a daemon, so that the
    /// program is never stopped
    #[arg(long, conflicts_with_all = ["attach", "thresholds", "ignore"])]
    no_daemon: bool,
    #[command(flatten)]
    regulation: RegulationArgs,
    #[command(flatten)]
    store: StoreArg,
    /// Command to run, with its arguments
    #[arg(
        required_unless_present = "attach",
        trailing_var_arg = true,
        value_name = "CMD",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,
}

impl Args {
    /// Returns whether the command attaches running processes instead of starting a program.
    pub fn attaches(&self) -> bool {
        !self.attach.is_empty()
    }
}

/// A policy by its name on the command line.
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

/// Runs the command as background work, or attaches running processes.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    if args.attaches() {
        return args.take_in(global, out);
    }
    launch::run(&RunOptions {
        argv: args.command.clone(),
        name: args.name.clone(),
        weight: None,
        cores: None,
        hints: HintMode::Never,
        background: Some(args.policy.into()),
        no_daemon: args.no_daemon,
        regulation: args.regulation.clone(),
        runtime_dir: global.runtime_dir.clone(),
        store: args.store.path.clone(),
    })
}

/// Returns whether this process is `pid` or descends from it.
fn runs_below(pid: i32) -> bool {
    let parent = |pid: i32| -> Option<i32> {
        // The name of the process precedes the parsed fields of the line, and may contain any
        // bytes.
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
        let pids = super::attach::distinct(&self.attach);
        let dir = global.runtime_dir.as_deref();
        if let Some(mut daemon) = Daemon::find(dir) {
            self.regulation.refuse_beside_daemon()?;
            report_other_store(&mut daemon, self.store.path.as_deref());
        }
        for &pid in &pids {
            own_process::check(pid)?;
            anyhow::ensure!(
                !runs_below(pid),
                "process {pid} cannot be managed, because it is an ancestor of this command"
            );
        }
        let options = self.regulation.daemon_options(self.store.path.clone());
        let limits = WaitLimits::default();
        let (mut attached, mut refused) = (Vec::new(), Vec::new());
        for pid in pids {
            let result = client::check_unmanaged(dir, pid).and_then(|()| {
                autostart::call(dir, &options, &limits, |daemon| {
                    daemon.attach(
                        pid,
                        AttachOptions {
                            name: self.name.clone(),
                            background: Some(policy),
                            ..AttachOptions::default()
                        },
                    )
                })
            });
            match result {
                Ok((daemon, reply)) => attached.push(BackgroundProgram {
                    pid,
                    id: reply.id,
                    policy: policy.name(),
                    runtime_dir: daemon.dir().to_owned(),
                }),
                Err(error) => refused.push(Err(error)),
            }
        }
        let answer = BackgroundAnswer { attached };
        let line = |one: &BackgroundProgram| {
            format!(
                "process {} is managed as background work (program {})\n",
                one.pid, one.id
            )
        };
        let printed = out.answer(&answer, || answer.attached.iter().map(line).collect());
        failure::combine(refused.into_iter().chain([printed]))
    }
}
