// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replaces the topology and the policy when CPUs come online that are not in the topology.
//!
//! The kernel describes only CPUs that are online. The topology and the policy therefore do
//! not contain CPUs that were offline at the start. When such CPUs come online, the machine is read
//! again, and a new policy replaces the old policy:
//!
//! 1. Every program is continued and released.
//! 2. The new policy gets the arrival of every program.
//!
//! The measurements of the old policy are lost, but the measurements in the profile store are kept.
//! A recording of the run ends, because its head contains the old machine. Reading the machine is
//! attempted once for each set of new CPUs; after a failure, the old policy continues. Step 1 takes
//! about 50 ms at most per program; an error of step 1 is a warning.

use usher_control::World;
use usher_model::{Action, Event, Plan, ProgramId};
use usher_policy::Policy;

use super::config::PolicyFactory;
use super::warning::WarningTopic;
use super::world::RealWorld;

impl RealWorld {
    /// Returns whether the loop has stopped because CPUs have come online that are not in the
    /// topology.
    pub fn needs_replan(&self) -> bool {
        self.state.needs_replan && !self.state.stopping
    }

    /// Reads the machine again. Returns the policy for the new topology. On failure, adds a warning
    /// and returns `None`; the old policy then continues.
    pub fn replan(
        &mut self,
        policy_factory: Option<&PolicyFactory>,
    ) -> Option<Box<dyn Policy + Send>> {
        self.state.needs_replan = false;
        let none =
            || Err("this daemon can use only the CPUs that were online when it started".to_owned());
        let (topology, policy) = match policy_factory.map_or_else(none, PolicyFactory::make) {
            Ok(made) => made,
            Err(reason) => {
                let cpus = usher_report::text::cpus(&self.state.unknown_cpus.to_string());
                let text = format!("{cpus} came online and cannot get programs: {reason}");
                self.warn_about(WarningTopic::Cpus, text);
                return None;
            }
        };
        if self.recorder.take().is_some() {
            let text = "the record ends, because CPUs came online that the recorded machine lacks";
            self.warn(text.to_owned());
        }
        self.topology = topology;
        self.read_usable();
        self.restart_programs();
        Some(policy)
    }

    /// Undoes all actions, and queues the arrival of every program.
    fn restart_programs(&mut self) {
        let ids: Vec<ProgramId> = self.state.members.keys().copied().collect();
        for &program in &ids {
            for action in [Action::Thaw { program }, Action::Release { program }] {
                if let Err(error) = self.act(&action) {
                    self.warn_about(WarningTopic::Program(program), error);
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
            // A restriction that contains all usable CPUs restricts nothing, and is dropped.
            let bound = member.program.bound_to.take();
            member.program.bound_to = bound.filter(|cpus| !usable.is_subset(cpus));
            let arrived = Box::new(member.program.clone());
            self.state.events.push(Event::Arrived(arrived));
        }
    }
}
