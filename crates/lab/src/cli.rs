// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of `usher-lab`: parses the options of a guest, runs the command in the guest by
//! `vm`, and reports the result. It also prints the list of kernels, and fetches kernels and
//! emulators.
//!
//! By default, a guest has 4096 MiB of memory and a time limit of 300 s. If the guest has died or
//! has exceeded the limit, the last 40 lines of its console are printed. Errors before the command
//! starts have the exit status 125.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use serde_json::json;
use usher_model::CpuSet;

use crate::kernels::{self, Kernel, KernelChoice};
use crate::vm::{Clock, GuestEnd, GuestOutcome, IdleTime, Streams, Vm};
use crate::{LabCache, interrupts::Interrupts};

/// Number of console lines that are shown when a guest has died.
const CONSOLE_LINES: usize = 40;

/// Runs a command under a kernel with sched_ext on a machine of any topology.
#[derive(Debug, Parser)]
#[command(
    name = "usher-lab",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "\
The command runs as root in a guest: a machine that QEMU emulates in software, with a kernel
of Debian, which is fetched when it is first needed. The guest has cgroup v2, BPF, tracing and
CPUs that can be taken offline. The command sees the files of the host: the current directory and
the directories of --writable can be written, /tmp and /var/tmp discard all writes, and all other
files are read-only. The standard input of the command is empty; the lab prints its output.

A guest shows counts of events, the placement of threads and the order of events; with
--virtual-time also fairness and latency. A guest never shows throughput, because all its CPUs
take turns on one CPU of the host, and the guest has no caches and no contention between
hardware threads. docs/lab.md describes the lab.

Exit status: the exit status of the command (128+N if signal N ended it); 124 if the command
exceeded --timeout, 125 if the guest died or could not be started (the last lines of its
console are printed), 126 if the command cannot be executed, 127 if the command does not exist.

Examples:
  lab/vm -- uname -r
  lab/vm --topology \"package:4 die:2 core:6\" -- target/debug/usher topo
  lab/vm --topology \"package:2 [numa:1] core:2 pu:2\" --kernel 7.2 -- lscpu
  lab/vm --cpus-off 2-3 -- cat /sys/devices/system/cpu/online
  lab/vm --virtual-time -- stress-ng --cpu 8 --timeout 2
  lab/vm --writable /srv/results --timeout 3600 -- ./measure
  lab/vm --kernel list"
)]
struct Args {
    /// Emulate the machine that DESCRIPTION describes, in the form of `usher topo --from`; CPUs
    /// that share a cache become a die
    #[arg(
        long,
        value_name = "DESCRIPTION",
        default_value = "package:2 core:2 pu:2"
    )]
    topology: String,
    /// Boot this kernel: a series (7.2), a release, `newest` or `oldest`; `list` prints the
    /// available kernels
    #[arg(long, value_name = "KERNEL", default_value = "newest")]
    kernel: String,
    /// Advance the guest's clock by NS nanoseconds for each instruction; NS is a power of two, by
    /// default 1 (requires QEMU 10, which is fetched if it is not installed)
    #[arg(long, value_name = "NS", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    virtual_time: Option<u32>,
    /// With --virtual-time, let idle time of the guest pass in real time instead of instantly
    #[arg(long, requires = "virtual_time")]
    idle_waits: bool,
    /// Take these CPUs of the guest offline before the command starts
    #[arg(long, value_name = "CPUS", default_value = "")]
    cpus_off: CpuSet,
    /// Give the guest this much memory in MiB; the host allocates it when the guest uses it
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    memory: usize,
    /// Let the command write to this directory of the host, besides the current directory; may be
    /// repeated
    #[arg(long, value_name = "DIR")]
    writable: Vec<PathBuf>,
    /// Discard all writes of the command to this directory, as for /tmp and /var/tmp; may be
    /// repeated
    #[arg(long, value_name = "DIR")]
    scratch: Vec<PathBuf>,
    /// Set an environment variable of the command; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// End the guest SECONDS after its start
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Append these words to the kernel's command line
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        allow_hyphen_values = true
    )]
    append: String,
    /// Write the output of the guest's console to FILE
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
    /// Write the result and the times to FILE as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Keep fetched kernels in DIR [default: $XDG_CACHE_HOME/usher/lab]
    #[arg(
        long,
        value_name = "DIR",
        env = "USHER_LAB_CACHE",
        hide_env_values = true
    )]
    cache: Option<PathBuf>,
    /// Fetch everything that guests need, without running a command
    #[arg(long, conflicts_with = "command")]
    prepare: bool,
    /// Fetch everything that guests need, and newer kernels, without running a command
    #[arg(long, conflicts_with = "command")]
    update: bool,
    /// Print the list of kernels (--kernel list) as JSON
    #[arg(long)]
    json: bool,
    /// Command to run in the guest, with its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    parts
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| "the variable must have the form NAME=VALUE".to_owned())
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let printed = error.print().and_then(|()| io::stdout().flush());
            return match printed {
                _ if error.use_stderr() => ExitCode::from(crate::OWN_FAILURE),
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    eprintln!("lab: writing to standard output: {error}");
                    ExitCode::from(crate::OWN_FAILURE)
                }
                _ => ExitCode::SUCCESS,
            };
        }
    };
    match perform(&args) {
        Ok(status) => ExitCode::from(status),
        Err(error) if is_closed_output(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::from(crate::OWN_FAILURE)
        }
    }
}

/// Returns whether the cause of the error is that the reader of standard output has closed the pipe
/// (`lab/vm … | head`).
fn is_closed_output(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

fn perform(args: &Args) -> anyhow::Result<u8> {
    let cache = || LabCache::open(args.cache.as_deref());
    if args.prepare || args.update {
        let kernels = kernels::prepare(&cache()?, args.update)?;
        crate::emulator::Emulator::find(&cache()?, true)?;
        return list(&kernels, None, args.json);
    }
    if args.kernel == "list" {
        let cache = cache()?;
        let offered = kernels::offered(&cache);
        if let Err(error) = &offered {
            eprintln!("lab: {error}");
        }
        return list(&kernels::cached(&cache)?, offered.ok(), args.json);
    }
    anyhow::ensure!(
        !args.command.is_empty(),
        "a command is missing; see lab/vm --help"
    );
    run(args)
}

/// Prints the cached kernels, and the kernels that the archive offers.
fn list(cached: &[Kernel], offered: Option<Vec<String>>, json: bool) -> anyhow::Result<u8> {
    let out = &mut io::stdout().lock();
    if json {
        writeln!(out, "{:#}", json!({ "here": cached, "offered": offered }))?;
        return Ok(0);
    }
    for kernel in cached {
        writeln!(out, "here     {}", kernel.release)?;
    }
    let is_cached = |release: &String| cached.iter().any(|kernel| kernel.release == *release);
    for release in offered
        .into_iter()
        .flatten()
        .filter(|release| !is_cached(release))
    {
        writeln!(out, "offered  {release}")?;
    }
    Ok(0)
}

fn clock(args: &Args) -> Clock {
    let idle = if args.idle_waits {
        IdleTime::Waits
    } else {
        IdleTime::Skipped
    };
    args.virtual_time
        .map_or(Clock::Host, |ns| Clock::Instructions { ns, idle })
}

fn vm(args: &Args) -> anyhow::Result<Vm> {
    let kernel = args.kernel.parse::<KernelChoice>();
    let kernel = kernel.map_err(|why| anyhow::anyhow!("--kernel {}: {why}", args.kernel))?;
    Ok(Vm {
        kernel,
        clock: clock(args),
        cpus_off: args.cpus_off.clone(),
        memory_mib: args.memory,
        writable: args.writable.clone(),
        scratch: args.scratch.clone(),
        environment: args.env.clone(),
        timeout: Duration::from_secs(args.timeout),
        append: args.append.clone(),
        cache: args.cache.clone(),
        ..Vm::new(&args.topology)?
    })
}

fn run(args: &Args) -> anyhow::Result<u8> {
    let vm = vm(args)?;
    let interrupts = Interrupts::new()?;
    let create =
        |path: &PathBuf| File::create(path).with_context(|| format!("writing {}", path.display()));
    let mut console = args.console.as_ref().map(create).transpose()?;
    let report = args.report.as_ref().map(create).transpose()?;
    let outcome = vm.run(
        &args.command,
        &mut Streams {
            out: &mut io::stdout(),
            err: &mut io::stderr(),
            console: console.as_mut().map(|file| file as &mut dyn Write),
            interrupt: Some(interrupts.wake()),
        },
    )?;
    if let Some(file) = report {
        serde_json::to_writer_pretty(file, &outcome).context("writing the report of the run")?;
    }
    report_end(&outcome, args.timeout);
    match outcome.end {
        GuestEnd::Interrupted => Ok((128 + interrupts.last()) as u8),
        _ => Ok(outcome.status()),
    }
}

/// Prints how the guest ended, if the exit status does not show it.
fn report_end(outcome: &GuestOutcome, timeout_s: u64) {
    let kernel = &outcome.kernel;
    match &outcome.end {
        GuestEnd::Exited { .. } | GuestEnd::Interrupted => return,
        GuestEnd::Refused { reason, .. } => {
            return eprintln!("lab: the guest could not run the command: {reason}");
        }
        GuestEnd::Died => {
            eprintln!("lab: the guest with kernel {kernel} died; the last lines of its console:")
        }
        GuestEnd::TimedOut => {
            eprintln!(
                "lab: the guest with kernel {kernel} exceeded the time limit of {timeout_s} s; \
                 the last lines of its console:"
            );
        }
    }
    let lines: Vec<&str> = outcome.console.lines().collect();
    for line in &lines[lines.len().saturating_sub(CONSOLE_LINES)..] {
        eprintln!("  {}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_definition_is_valid() {
        Args::command().debug_assert();
    }

    #[test]
    fn variables_have_a_name() {
        assert_eq!(variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(variable("=b").is_err() && variable("A").is_err());
    }
}
