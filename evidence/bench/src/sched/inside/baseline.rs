// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hidden command that loads a baseline, which is a small sched_ext scheduler of the folder
//! `bpf`. The command runs the scheduler until SIGINT or SIGTERM, as the programs of other
//! sched_ext schedulers do. If the kernel ends the scheduler earlier, the command continues to wait
//! for the signal.

use anyhow::{Context, Result};
use clap::ValueEnum;
use libbpf_rs::{MapCore, ObjectBuilder, OpenObject};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Name of the hidden command, which runs in a guest.
pub const COMMAND: &str = "sched-baseline";

/// A baseline scheduler of the folder `bpf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Baseline {
    /// The minimal FIFO scheduler, `minimal_fifo.bpf.c`.
    MinimalFifo,
    /// The O(1) scheduler of Linux 2.6, `o1.bpf.c`.
    O1Plain,
    /// The O(1) scheduler with paper 4's improvement.
    O1Aggregate,
}

/// Arguments of the hidden command.
#[derive(Debug, Clone, clap::Args)]
pub struct BaselineArgs {
    /// Scheduler to run
    baseline: Baseline,
}

/// The compiled programs, with the alignment that the ELF reader requires.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static MINIMAL_FIFO: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
    env!("OUT_DIR"),
    "/minimal_fifo.bpf.o"
)));
static O1: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/o1.bpf.o")));
/// Section of the variable of `o1.bpf.c` that switches paper 4's improvement on.
const AGGREGATE: &str = ".rodata.aggregate";

impl Baseline {
    /// Name of the baseline on the command line.
    pub fn argument(self) -> &'static str {
        match self {
            Self::MinimalFifo => "minimal-fifo",
            Self::O1Plain => "o1-plain",
            Self::O1Aggregate => "o1-aggregate",
        }
    }

    /// Name of the scheduler in the kernel, and of the map with its callbacks.
    fn name(self) -> &'static str {
        match self {
            Self::MinimalFifo => "minimal_fifo",
            Self::O1Plain | Self::O1Aggregate => "o1",
        }
    }

    fn open(self) -> Result<OpenObject> {
        let bytes = match self {
            Self::MinimalFifo => &MINIMAL_FIFO.0,
            Self::O1Plain | Self::O1Aggregate => &O1.0,
        };
        let open = ObjectBuilder::default().open_memory(bytes);
        let mut open = open.with_context(|| format!("reading the scheduler {}", self.name()))?;
        if self == Self::O1Aggregate {
            let mut map = open.maps_mut().find(|map| map.name() == AGGREGATE);
            let value = map.as_mut().and_then(|map| map.initial_value_mut());
            let value = value.context("the scheduler o1 has no variable 'aggregate'")?;
            value.copy_from_slice(&1_u32.to_ne_bytes());
        }
        Ok(open)
    }
}

/// Runs the scheduler until SIGINT or SIGTERM.
///
/// # Errors
/// The kernel rejects the scheduler, or runs another one.
pub fn run(args: &BaselineArgs) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("receiving signals")?;
    let name = args.baseline.name();
    let object = args.baseline.open()?.load();
    let mut object = object.with_context(|| format!("loading the scheduler {name}"))?;
    let mut callbacks = object
        .maps_mut()
        .find(|map| map.name() == name)
        .with_context(|| format!("the scheduler {name} has no callbacks"))?;
    let link = callbacks.attach_struct_ops();
    let _link = link.with_context(|| format!("starting the scheduler {name}"))?;
    signals.forever().next();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_open_and_arguments_are_those_of_the_command_line() {
        for &baseline in Baseline::value_variants() {
            let possible = baseline.to_possible_value().unwrap();
            assert_eq!(possible.get_name(), baseline.argument());
            baseline.open().unwrap();
        }
    }
}
