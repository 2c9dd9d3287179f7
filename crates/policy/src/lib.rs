// SPDX-License-Identifier: MIT OR Apache-2.0
//! Usher's decisions: policies that turn observations of the machine and its programs into seats,
//! freezes and demotions. This crate uses no clock, file, thread, environment variable, random
//! number or hash-ordered iteration.
//!
//! [`by_name`] creates the policy with a given name from four layers:
//!
//! - the seating policy: `linux`, `equal`, `casas` or `usher`;
//! - [`FixedSeats`], which gives programs a fixed number of cores;
//! - [`SuspendablePolicy`], which gives no seats while another daemon plans the machine;
//! - [`RegulatedPolicy`], which regulates background work.

mod action_diff;
pub mod advise;
pub mod background;
pub mod baselines;
mod casas;
pub mod copies;
mod decide;
pub mod fit;
pub mod fixed;
pub mod planfile;
pub mod seating;
mod simple;
mod suspendable;
pub mod timeshare;
pub mod usher;
pub mod variation;

pub use background::{RegulatedPolicy, Thresholds};
pub use casas::Casas;
pub use decide::Policy;
pub use fixed::FixedSeats;
pub use simple::{Equal, Linux};
pub use suspendable::SuspendablePolicy;
pub use usher::Usher;

use usher_model::Topology;

/// Names of the policies on the command line.
pub const NAMES: [&str; 4] = ["linux", "equal", "casas", "usher"];

/// Creates the policy `name` for a machine; `None` if the name is unknown. The policy regulates
/// background programs with paper 2's thresholds.
pub fn by_name(name: &str, topology: &Topology) -> Option<Box<dyn Policy + Send>> {
    by_name_with(name, topology, Thresholds::default())
}

/// Creates the policy `name` with the given thresholds of paper 2's regulations; `None` if the name
/// is unknown.
pub fn by_name_with(
    name: &str,
    topology: &Topology,
    thresholds: Thresholds,
) -> Option<Box<dyn Policy + Send>> {
    let name = NAMES.into_iter().find(|known| *known == name)?;
    let machine = topology.clone();
    let seating = SuspendablePolicy::new(
        topology.clone(),
        Box::new(move || {
            let inner = seating(name, machine.clone());
            Box::new(FixedSeats::new(machine.clone(), inner))
        }),
    );
    Some(Box::new(
        RegulatedPolicy::new(seating).with_thresholds(thresholds),
    ))
}

/// Creates the seating policy with the given name, which must be one of [`NAMES`].
fn seating(name: &str, topology: Topology) -> Box<dyn Policy + Send> {
    match name {
        "equal" => Box::new(Equal::new(topology)),
        "casas" => Box::new(Casas::new(topology)),
        "usher" => Box::new(Usher::new(topology)),
        _ => Box::new(Linux::new(topology)),
    }
}
