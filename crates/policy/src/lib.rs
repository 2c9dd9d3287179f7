// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Usher decides, and nothing else: no clock, no file, no thread, no
//! environment, no randomness, no hash-ordered iteration.

pub mod background;
mod casas;
pub mod fit;
pub mod planfile;
pub mod rivals;
pub mod seating;
mod simple;
mod stage;
pub mod timeshare;
pub mod usher;
mod yielding;

pub use background::{Regulated, Thresholds};
pub use casas::Casas;
pub use simple::{Equal, Linux};
pub use usher::Usher;
pub use yielding::Yielding;

use usher_model::{Decision, Observation, Topology};

/// Something that decides. It keeps state between calls and nothing else: the
/// same observations in the same order give the same decisions.
pub trait Policy {
    /// Its name, as on the command line.
    fn name(&self) -> &'static str;

    /// What to do, given what is seen.
    fn decide(&mut self, observation: &Observation) -> Decision;
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        (**self).decide(observation)
    }
}

/// The policies' names, as on the command line.
pub const NAMES: [&str; 4] = ["linux", "equal", "casas", "usher"];

/// The policy of that name for that machine, which regulates background
/// programs with paper 2's thresholds; `None` for an unknown name.
pub fn by_name(name: &str, topology: &Topology) -> Option<Box<dyn Policy + Send>> {
    by_name_with(name, topology, Thresholds::default())
}

/// The same with thresholds of the machine's own.
pub fn by_name_with(
    name: &str,
    topology: &Topology,
    thresholds: Thresholds,
) -> Option<Box<dyn Policy + Send>> {
    let name = NAMES.into_iter().find(|known| *known == name)?;
    let machine = topology.clone();
    let seating = Yielding::new(
        topology.clone(),
        Box::new(move || seating(name, machine.clone())),
    );
    Some(Box::new(
        Regulated::new(seating).with_thresholds(thresholds),
    ))
}

/// A new instance of a seating policy, by one of [`NAMES`].
fn seating(name: &str, topology: Topology) -> Box<dyn Policy + Send> {
    match name {
        "equal" => Box::new(Equal::new(topology)),
        "casas" => Box::new(Casas::new(topology)),
        "usher" => Box::new(Usher::new(topology)),
        _ => Box::new(Linux::new(topology)),
    }
}
