// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of `usher-lab`: options of a guest, the list of kernels, preparation, and the
//! report of the result. The guest itself is run by `vm`.

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
The machine is emulated (QEMU, in software), the kernel is one of Debian's, fetched when
it is first needed, and the files are the host's: read-only, but for the current folder and
what --writable names; /tmp and /var/tmp can be written in and are forgotten. The command is
root there, in a Linux system of its own with cgroup v2, BPF, tracing and CPUs that can be
taken offline. It reads nothing (its standard input is empty); what it writes comes back.

A guest is good for counts, placement and order, with --virtual-time also for fairness and
latency, and never for throughput: its CPUs take turns on one of the host's, and its caches
and hardware threads cost nothing. docs/lab.md has more.

Exit status: the command's (128+N where signal N ended it); 124 where time was up, 125
where the guest died (its console's last lines are shown) or could not be started, 126 where
the command cannot be run, 127 where it is not there.

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
    /// The machine, as for `usher topo --from`; CPUs that share a cache become a die
    #[arg(
        long,
        value_name = "DESCRIPTION",
        default_value = "package:2 core:2 pu:2"
    )]
    topology: String,
    /// A series (7.2), a release, or the newest or oldest available; or list
    #[arg(long, value_name = "KERNEL", default_value = "newest")]
    kernel: String,
    /// Count time in instructions, of 1 ns each or NS, a power of two (needs QEMU 10, which is
    /// fetched if it is not installed)
    #[arg(long, value_name = "NS", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    virtual_time: Option<u32>,
    /// With --virtual-time: idle time passes in real time instead of at once
    #[arg(long, requires = "virtual_time")]
    idle_waits: bool,
    /// CPUs that are offline when the command starts
    #[arg(long, value_name = "CPUS", default_value = "")]
    cpus_off: CpuSet,
    /// Memory in MiB, allocated on the host as it is used
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    memory: usize,
    /// A host directory that the command may write in, besides the current one
    #[arg(long, value_name = "DIR")]
    writable: Vec<PathBuf>,
    /// A directory with discarded writes, besides /tmp and /var/tmp
    #[arg(long, value_name = "DIR")]
    scratch: Vec<PathBuf>,
    /// A variable for the command, in addition to the environment
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Time limit, from the guest's start
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Additional words for the kernel's command line
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        allow_hyphen_values = true
    )]
    append: String,
    /// Write the guest's console output to a file
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
    /// Write the result and the times as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The cache of kernels [default: $XDG_CACHE_HOME/usher/lab]
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
    /// As --prepare, and check for newer kernels
    #[arg(long, conflicts_with = "command")]
    update: bool,
    /// Print --kernel list as JSON
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    parts
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| "NAME=VALUE is due".to_owned())
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() {
                crate::OWN_FAILURE
            } else {
                0
            });
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

/// Returns whether the error is only a closed standard output (`lab/vm … | head`).
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
        return list(&kernels::here(&cache)?, offered.ok(), args.json);
    }
    anyhow::ensure!(!args.command.is_empty(), "no command; see lab/vm --help");
    run(args)
}

/// Prints the cached and the available kernels.
fn list(here: &[Kernel], offered: Option<Vec<String>>, json: bool) -> anyhow::Result<u8> {
    let out = &mut io::stdout().lock();
    if json {
        writeln!(out, "{:#}", json!({ "here": here, "offered": offered }))?;
        return Ok(0);
    }
    for kernel in here {
        writeln!(out, "here     {}", kernel.release)?;
    }
    let is_here = |release: &String| here.iter().any(|kernel| kernel.release == *release);
    for release in offered
        .into_iter()
        .flatten()
        .filter(|release| !is_here(release))
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
        serde_json::to_writer_pretty(file, &outcome).context("writing the report")?;
    }
    report_end(&outcome, args.timeout);
    match outcome.end {
        GuestEnd::Interrupted => Ok((128 + interrupts.last()) as u8),
        _ => Ok(outcome.status()),
    }
}

/// Prints the reason of an end that the exit status alone does not explain.
fn report_end(outcome: &GuestOutcome, timeout_s: u64) {
    let kernel = &outcome.kernel;
    match &outcome.end {
        GuestEnd::Exited { .. } | GuestEnd::Interrupted => return,
        GuestEnd::Refused { reason, .. } => return eprintln!("lab: the guest: {reason}"),
        GuestEnd::Died => eprintln!("lab: the guest with kernel {kernel} died; its console:"),
        GuestEnd::TimedOut => {
            eprintln!(
                "lab: the guest with kernel {kernel} exceeded the time limit of {timeout_s} s; its console:"
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
