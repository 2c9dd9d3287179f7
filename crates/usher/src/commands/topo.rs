// SPDX-License-Identifier: GPL-2.0-only
//! `usher topo`: draws the packages, dies, caches, cores, hardware threads and NUMA nodes of this
//! machine or of a described machine. The drawing is `usher_topology::draw`, in the width of the
//! terminal, or 80 columns without a terminal.

use schemars::JsonSchema;
use serde::Serialize;
use usher_model::{CpuSet, Topology};
use usher_topology::{DescribedMachine, DrawOptions, Source};

use crate::failure::{self, Outcome};
use crate::output::{self, Output};

/// Draws the machine: packages, dies, caches, cores, SMT, NUMA
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The picture shows the domains of the machine. A domain consists of the cores that share one
last-level cache; seats follow the boundaries of domains.

Examples:
  usher topo                                       draws this machine
  usher topo --from \"package:4 die:2 core:6 pu:1\"  draws 4 packages of 2 dies of 6 cores
  usher topo --from epyc.xml                       reads a file written by `lstopo epyc.xml`
  usher topo --from ./capture                      reads hwloc-gather-topology's directory
  usher topo --json | jq '.domains | length'       prints the number of domains")]
pub struct Args {
    /// Draw the machine in this one-line description, hwloc XML file or copy of a /sys directory
    #[arg(long, value_name = "SPEC|FILE|DIR")]
    from: Option<String>,
}

/// A machine, with the CPUs that its description excludes from use.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TopoAnswer<'a> {
    /// The machine with all online CPUs.
    #[serde(flatten)]
    topology: &'a Topology,
    /// CPUs that exist and are offline; in none of the other sets. Empty if none is known.
    offline: &'a CpuSet,
    /// Online CPUs outside of the cgroup in which the description was made, which a plan does not
    /// use. Empty if none is known.
    disallowed: &'a CpuSet,
}

impl<'a> TopoAnswer<'a> {
    fn new(machine: &'a DescribedMachine) -> Self {
        Self {
            topology: &machine.topology,
            offline: &machine.offline,
            disallowed: &machine.disallowed,
        }
    }
}

/// Draws the machine.
pub fn run(args: &Args, out: Output) -> Outcome {
    let source = match &args.from {
        Some(text) => Source::parse(text)?,
        None => Source::ThisMachine,
    };
    let machine = usher_topology::describe(source)?;
    failure::print_notes(&machine.notes);
    out.answer(&TopoAnswer::new(&machine), || {
        let options = DrawOptions {
            offline: machine.offline.clone(),
            disallowed: machine.disallowed.clone(),
            ..drawing(out)
        };
        usher_topology::draw(&machine.topology, &options)
    })?;
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
