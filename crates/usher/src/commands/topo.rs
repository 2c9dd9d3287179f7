// SPDX-License-Identifier: GPL-2.0-only
//! `usher topo`: draws the packages, dies, caches, cores, hardware threads and NUMA nodes of this
//! machine or of a described machine. The drawing is `usher_topology::draw`.

use usher_topology::{DrawOptions, Source};

use crate::failure::Outcome;
use crate::output::{self, Output};

/// Draws the machine: packages, dies, caches, cores, SMT, NUMA
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A domain is the unit of seating: the cores that share one last-level cache.

Examples:
  usher topo                                       this machine
  usher topo --from \"package:4 die:2 core:6 pu:1\"  a machine in one line of text
  usher topo --from epyc.xml                       a file of `lstopo epyc.xml`
  usher topo --from ./capture                      a directory of hwloc-gather-topology
  usher topo --json | jq '.domains | length'       the number of domains")]
pub struct Args {
    /// Another machine: a one-line description, an hwloc XML file, or a directory with a copy of
    /// its /sys
    #[arg(long, value_name = "SPEC|FILE|DIR")]
    from: Option<String>,
}

/// Draws the machine.
pub fn run(args: &Args, out: Output) -> Outcome {
    let source = match &args.from {
        Some(text) => Source::parse(text)?,
        None => Source::ThisMachine,
    };
    let topology = usher_topology::load(source)?;
    out.answer(&topology, || usher_topology::draw(&topology, &drawing(out)))?;
    Ok(0)
}

/// Returns options for the terminal's width and character set.
pub fn drawing(out: Output) -> DrawOptions {
    DrawOptions {
        width: out.width(),
        colour: out.color,
        unicode: output::speaks_unicode(),
        ..DrawOptions::default()
    }
}
