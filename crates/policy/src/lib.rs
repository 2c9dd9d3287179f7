// SPDX-License-Identifier: MIT OR Apache-2.0
//! Usher's decisions. This crate uses no clock, file, thread, environment, random number or
//! hash-ordered iteration.

mod action_diff;
pub mod background;
pub mod baselines;
mod casas;
mod decide;
pub mod fit;
pub mod planfile;
pub mod seating;
mod simple;
mod suspendable;
pub mod timeshare;
pub mod usher;

pub use background::{RegulatedPolicy, Thresholds};
pub use casas::Casas;
pub use decide::Policy;
pub use simple::{Equal, Linux};
pub use suspendable::SuspendablePolicy;
pub use usher::Usher;

use usher_model::Topology;

/// Names of the policies on the command line.
pub const NAMES: [&str; 4] = ["linux", "equal", "casas", "usher"];

/// Creates a policy for a machine, which regulates background programs with paper 2's thresholds;
/// `None` for an unknown name.
pub fn by_name(name: &str, topology: &Topology) -> Option<Box<dyn Policy + Send>> {
    by_name_with(name, topology, Thresholds::default())
}

/// Creates a policy with the given thresholds.
pub fn by_name_with(
    name: &str,
    topology: &Topology,
    thresholds: Thresholds,
) -> Option<Box<dyn Policy + Send>> {
    let name = NAMES.into_iter().find(|known| *known == name)?;
    let machine = topology.clone();
    let seating = SuspendablePolicy::new(
        topology.clone(),
        Box::new(move || seating(name, machine.clone())),
    );
    Some(Box::new(
        RegulatedPolicy::new(seating).with_thresholds(thresholds),
    ))
}

/// Creates a seating policy by one of [`NAMES`].
fn seating(name: &str, topology: Topology) -> Box<dyn Policy + Send> {
    match name {
        "equal" => Box::new(Equal::new(topology)),
        "casas" => Box::new(Casas::new(topology)),
        "usher" => Box::new(Usher::new(topology)),
        _ => Box::new(Linux::new(topology)),
    }
}
