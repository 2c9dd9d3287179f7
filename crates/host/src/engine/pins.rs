// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detects programs that pin their threads and reports the pinned CPUs to the policy, which gives
//! such programs no seat.
//!
//! 1. Every foreground program is scanned once a second, a program at rest every 5 s (`rest.rs`). A
//!    scan covers at most 4096 threads of a program.
//! 2. Before a decision caused by an event other than a repetition, programs that have run since
//!    their last scan are scanned until 5 ms ([`SCAN_MAX_NS`]) have passed. The scan of one program
//!    is not interrupted. This limit exists because listing the processes of a program without a
//!    cgroup reads all of `/proc`.
//! 3. Some libraries pin a thread only for a moment, such as hwloc while it reads the machine. A
//!    program therefore counts as pinned until no scan has found a pinned thread for
//!    [`PIN_HOLD_NS`] (3 s). Without this time, the program would alternately get and lose its
//!    seat.

use usher_model::{Event, ProgramId};

use super::clock::now_ns;
use super::log::LogChange;
use super::world::{RealWorld, busy_on};

/// Time for which a program counts as pinned after a scan last found a pinned thread.
const PIN_HOLD_NS: u64 = 3_000_000_000;
/// Time after which no scan of a further program begins before a decision.
const SCAN_MAX_NS: u64 = 5_000_000;

impl RealWorld {
    /// Scans all foreground programs for pinned threads.
    pub fn scan_pins(&mut self) {
        self.scan_pins_within(u64::MAX);
    }

    /// Scans all foreground programs before a decision, if programs have arrived or departed.
    pub fn scan_pins_at_change(&mut self) {
        let is_change = |event: &Event| !matches!(event, Event::Repeated { .. });
        if self.state.events.iter().any(is_change) {
            self.scan_pins_within(SCAN_MAX_NS);
        }
    }

    fn scan_pins_within(&mut self, most_ns: u64) {
        let begun_ns = now_ns();
        let members = self.state.members.values();
        let foreground = members.filter(|member| member.program.background.is_none());
        let ids: Vec<ProgramId> = foreground.map(|member| member.id()).collect();
        for id in ids {
            if now_ns().saturating_sub(begun_ns) > most_ns {
                break;
            }
            self.scan_pins_of(id);
        }
    }

    fn scan_pins_of(&mut self, id: ProgramId) {
        let at_ns = now_ns();
        let Some(member) = self.state.members.get_mut(&id) else {
            return;
        };
        let cpu_ns = member.watch.summed_cpu_ns();
        if !member.checks.pins.is_due(at_ns, cpu_ns) {
            return;
        }
        let pins = self.actuator.pins(id);
        if pins.is_some() {
            member.pinned_ns = at_ns;
        }
        let is_held = pins.is_none() && at_ns < member.pinned_ns + PIN_HOLD_NS;
        if is_held || pins == member.pins {
            return;
        }
        member.pins = pins;
        let pinned_to = member.pins.as_ref().map(|pins| pins.cpus.clone());
        member.program.pinned_to.clone_from(&pinned_to);
        let reach = member.reach(&self.state.usable);
        member.interval.moved(
            at_ns,
            self.topology.capacity_of(&reach),
            busy_on(&self.roots, &reach),
        );
        let text = match &pinned_to {
            Some(cpus) => format!(
                "the program pinned threads to {}, and gets no seat",
                usher_report::text::cpus(&cpus.to_string())
            ),
            None => "the program no longer pins threads, and may get a seat".to_owned(),
        };
        let event = member.limits();
        let program = Some(id);
        self.state.log.add(at_ns, LogChange::Note { program, text });
        self.state.events.push(event);
    }
}
