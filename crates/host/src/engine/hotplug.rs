// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPUs that come online and were unknown when the engine started.
//!
//! The kernel describes only CPUs that are online, so neither the topology nor
//! the policy made for it contains the new ones. The machine is read again, and
//! a new policy takes over:
//!
//! 1. Every program is continued and released.
//! 2. The new policy gets the arrival of every program.
//!
//! What the old policy had measured is lost; the profile store keeps what it
//! was taught. A recording ends, as its header holds the old machine.

use usher_control::World;
use usher_model::{Action, Event, Plan, ProgramId};
use usher_policy::Policy;

use super::config::Remake;
use super::reports::Topic;
use super::world::RealWorld;

impl RealWorld {
    /// Whether the loop has stopped because of new CPUs.
    pub fn has_outgrown(&self) -> bool {
        self.state.outgrown && !self.state.stopping
    }

    /// Reads the machine again. Returns the policy for it; `None` where the old
    /// one goes on, with a warning.
    pub fn grow(&mut self, remake: Option<&Remake>) -> Option<Box<dyn Policy + Send>> {
        self.state.outgrown = false;
        let none = || Err("this engine plans one machine only".to_owned());
        let (topology, policy) = match remake.map_or_else(none, Remake::make) {
            Ok(made) => made,
            Err(reason) => {
                let cpus = &self.state.strange_cpus;
                let text = format!("CPUs {cpus} came online and are not used: {reason}");
                self.warn_about(Topic::Cpus, text);
                return None;
            }
        };
        if self.recorder.take().is_some() {
            let text = "the record ends here: CPUs came online that its machine does not have";
            self.warn(text.to_owned());
        }
        self.topology = topology;
        self.read_usable();
        self.begin_anew();
        Some(policy)
    }

    /// Takes everything back and presents all programs as newcomers.
    fn begin_anew(&mut self) {
        let ids: Vec<ProgramId> = self.state.members.keys().copied().collect();
        for &program in &ids {
            for action in [Action::Thaw { program }, Action::Release { program }] {
                if let Err(error) = self.act(&action) {
                    self.warn_about(Topic::Program(program), error);
                }
            }
        }
        self.drop_general_notes();
        self.state.plan = Plan::default();
        self.state.events.clear();
        if let Some(reason) = self.state.seating_forbidden.clone() {
            let forbidden = Some(reason);
            self.state.events.push(Event::Seating { forbidden });
        }
        let usable = &self.state.usable;
        for member in self.state.members.values_mut() {
            member.program.ran_before = true;
            // A mask of all CPUs binds to none.
            let bound = member.program.bound_to.take();
            member.program.bound_to = bound.filter(|cpus| !usable.is_subset(cpus));
            let arrived = Box::new(member.program.clone());
            self.state.events.push(Event::Arrived(arrived));
        }
    }
}
