// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that pin their threads: finding that out, and reporting it to the
//! policy, which then gives them no seat.
//!
//! Every program is looked at once a second. Before a decision that an arrival or a
//! departure causes, as many are looked at as [`LOOK_MAX_NS`] allows: finding the
//! processes of a program without a cgroup takes a listing of `/proc`.
//!
//! Some runtimes bind a thread for a moment only (hwloc, while it reads the machine),
//! so pins count until none was seen for [`HOLD_NS`]: seats would otherwise be given
//! and taken in turn.

use usher_model::{Event, ProgramId};

use super::log::Change;
use super::world::{RealWorld, now_ns};

/// How long pins count after they were last seen.
const HOLD_NS: u64 = 3_000_000_000;
/// Time after which a look before a decision goes on to no further program.
const LOOK_MAX_NS: u64 = 5_000_000;

impl RealWorld {
    /// Finds out which foreground programs pin their threads, and where to.
    pub fn look_for_pins(&mut self) {
        self.look_for_pins_within(u64::MAX);
    }

    /// The same before a decision, where programs came or went.
    pub fn look_for_pins_at_change(&mut self) {
        let is_change = |event: &Event| !matches!(event, Event::Repeated { .. });
        if self.state.events.iter().any(is_change) {
            self.look_for_pins_within(LOOK_MAX_NS);
        }
    }

    fn look_for_pins_within(&mut self, most_ns: u64) {
        let begun_ns = now_ns();
        let members = self.state.members.values();
        let foreground = members.filter(|member| member.program.background.is_none());
        let ids: Vec<ProgramId> = foreground.map(|member| member.id()).collect();
        for id in ids {
            if now_ns().saturating_sub(begun_ns) > most_ns {
                break;
            }
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
            Some(cpus) => format!("the program pinned threads to CPUs {cpus}"),
            None => "the program no longer pins threads".to_owned(),
        };
        let event = member.limits();
        let program = Some(id);
        self.state.log.add(at_ns, Change::Said { program, text });
        self.state.events.push(event);
    }
}
