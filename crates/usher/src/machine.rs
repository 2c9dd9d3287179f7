// SPDX-License-Identifier: GPL-2.0-only
//! The topologies that commands use: this machine, or a machine that a specification describes.

use usher_model::Topology;
use usher_topology::Source;

/// Returns this machine, restricted to the usable CPUs.
pub fn usable_machine() -> anyhow::Result<Topology> {
    let machine = usher_topology::load(Source::ThisMachine)?;
    let usable = usher_topology::usable_cpus("/".as_ref())?;
    Ok(machine.restrict(&usable)?)
}

/// Returns the machine of a specification such as `package:2 core:4 pu:2`.
///
/// # Errors
/// The specification is invalid.
pub fn synthetic(spec: &str) -> anyhow::Result<Topology> {
    Ok(usher_topology::load(Source::Synthetic(spec.to_owned()))?)
}
