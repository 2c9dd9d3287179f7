// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that pin their threads: finding that out, and reporting it to the
//! policy, which then gives them no seat.
//!
//! Every program is looked at once a second, and before each decision that an
//! arrival or a departure causes. Some runtimes bind a thread for a moment only
//! (hwloc, while it reads the machine), so pins count until none was seen for
//! [`HOLD_NS`]: seats would otherwise be given and taken in turn.

use usher_model::ProgramId;

use super::log::Change;
use super::world::{RealWorld, now_ns};

/// How long pins count after they were last seen.
const HOLD_NS: u64 = 3_000_000_000;

impl RealWorld {
    /// Finds out which foreground programs pin their threads, and where to.
    pub fn look_for_pins(&mut self) {
        let members = self.state.members.values();
        let foreground = members.filter(|member| member.program.background.is_none());
        let ids: Vec<ProgramId> = foreground.map(|member| member.id()).collect();
        for id in ids {
            self.look_for_pins_of(id);
        }
    }

    fn look_for_pins_of(&mut self, id: ProgramId) {
        let at_ns = now_ns();
        let pins = self.actuator.pins(id);
        let Some(member) = self.state.members.get_mut(&id) else {
            return;
        };
        if pins.is_some() {
            member.pinned_ns = at_ns;
        }
        let is_held = pins.is_none() && at_ns < member.pinned_ns + HOLD_NS;
        if is_held || pins == member.pins {
            return;
        }
        member.pins = pins;
        let pinned_to = member.pins.as_ref().map(|pins| pins.cpus.clone());
        member.program.pinned_to.clone_from(&pinned_to);
        let reach = member.reach(&self.state.usable);
        member.stay.moved(at_ns, self.topology.capacity_of(&reach));
        let text = match &pinned_to {
            Some(cpus) => format!("its threads are pinned to CPUs {cpus} by the program itself"),
            None => "its threads are no longer pinned by the program itself".to_owned(),
        };
        let event = member.limits();
        let program = Some(id);
        self.state.log.add(at_ns, Change::Said { program, text });
        self.state.events.push(event);
    }
}
