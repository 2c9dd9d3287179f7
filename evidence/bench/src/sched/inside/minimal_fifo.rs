// SPDX-License-Identifier: MIT OR Apache-2.0
//! A hidden command that loads the minimal FIFO scheduler (`bpf/minimal_fifo.bpf.c`) and runs it
//! until a signal arrives, as the programs of other schedulers do.

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, ObjectBuilder};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The hidden command that is run in a guest.
pub const COMMAND: &str = "sched-minimal-fifo";
/// The name of the scheduler in the kernel, and of the map with its callbacks.
const NAME: &str = "minimal_fifo";

/// The compiled programs, with the alignment that the ELF reader requires.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
    env!("OUT_DIR"),
    "/minimal_fifo.bpf.o"
)));

/// Runs the scheduler until SIGINT or SIGTERM.
///
/// # Errors
/// The kernel rejects the scheduler, or runs another one.
pub fn run() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("receiving signals")?;
    let open = ObjectBuilder::default().open_memory(&OBJECT.0);
    let open = open.context("reading the minimal FIFO")?;
    let mut object = open.load().context("loading the minimal FIFO")?;
    let mut callbacks = object
        .maps_mut()
        .find(|map| map.name() == NAME)
        .context("the minimal FIFO has no callbacks")?;
    let link = callbacks.attach_struct_ops();
    let _link = link.context("starting the minimal FIFO")?;
    signals.forever().next();
    Ok(())
}
