// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles the requests to the control loop's thread: prepare, adopt, find, release and report
//! programs (`admission`, `departure`), forbid or permit seats, and return the state.
//!
//! - A request to adopt a program is rejected if the requesting user has reached the quota of
//!   programs. `arrival` has already checked that the process belongs to the user.
//! - A request to release a program or to report a repetition is rejected if the program belongs to
//!   another user. Root may act on all programs.
//! - The other requests are answered at once, without a check of the user.
//!
//! If the sender of a request is gone, its answer is discarded. No request is retried. A status
//! request samples every program.

use std::collections::BTreeMap;

use usher_model::{Event, ProgramId};

use super::clock::{now_ns, thread_cpu_ns};
use super::request_channel::Request;
use super::status::{BackgroundStatus, ProgramStatus, Status};
use super::world::RealWorld;

impl RealWorld {
    pub fn handle(&mut self, request: Request) {
        // If the sender of a request is gone, its answer is discarded.
        match request {
            Request::Prepare {
                launcher,
                work,
                reply,
            } => drop(reply.send(self.prepare(launcher, work))),
            Request::PrepareFor {
                launcher,
                work,
                asking,
                reply,
            } => drop(reply.send(self.prepare_for(launcher, work, asking))),
            Request::Abandon(id) => self.abandon(id),
            Request::Adopt {
                prepared,
                arriving,
                reply,
            } => self.adopt(prepared, *arriving, reply),
            Request::Repeated {
                id,
                seconds,
                asking,
                reply,
            } => drop(reply.send(self.repeated(id, seconds, asking))),
            Request::Release {
                id,
                group,
                asking,
                reply,
            } => drop(reply.send(self.release(id, group.as_deref(), asking))),
            Request::ProgramOf { pid, reply } => drop(reply.send(Ok(self.program_of(pid)))),
            Request::Seating { forbidden } => self.set_seating(forbidden),
            Request::Topology(reply) => drop(reply.send(Ok(self.topology.clone()))),
            Request::ProgramCount(reply) => drop(reply.send(Ok(self.state.members.len()))),
            Request::Status(reply) => {
                // Without programs, there is no housekeeping that reports it.
                self.report_profile_store();
                drop(reply.send(Ok(self.status())));
            }
            Request::Log { since, reply } => drop(reply.send(Ok(self.state.log.since(since)))),
            Request::Stop => self.state.stopping = true,
        }
    }

    fn set_seating(&mut self, forbidden: Option<String>) {
        if self.state.seating_forbidden != forbidden {
            self.drop_general_notes();
            self.state.seating_forbidden = forbidden.clone();
            self.state.events.push(Event::Seating { forbidden });
        }
    }

    /// Returns the program to which a process belongs.
    fn program_of(&self, pid: i32) -> Option<ProgramId> {
        let found = self.actuator.program_of(pid);
        found.filter(|id| self.state.members.contains_key(id))
    }

    fn status(&mut self) -> Status {
        let at_ns = now_ns();
        let steal = self.state.steal;
        for (&id, member) in &mut self.state.members {
            let is_frozen = self.actuator.frozen_since(id).is_some();
            member.sample(at_ns, steal, is_frozen);
        }
        let ids: Vec<ProgramId> = self.state.members.keys().copied().collect();
        let background: BTreeMap<ProgramId, BackgroundStatus> = ids
            .into_iter()
            .filter_map(|id| Some((id, self.background_status(id, at_ns)?)))
            .collect();
        let state = &self.state;
        Status {
            policy: self.policy.to_owned(),
            acting: self.actuator.describe().clone(),
            kept_by_scheduler: state.kept_by.is_some(),
            seating_forbidden: state.seating_forbidden.clone(),
            keeper_pid: self
                .keeper
                .as_ref()
                .filter(|keeper| keeper.lives())
                .map(|keeper| keeper.id().pid),
            machine: self.topology.name.clone(),
            usable: state.usable.clone(),
            uptime_seconds: at_ns.saturating_sub(state.started_ns) as f64 * 1e-9,
            decisions: state.decisions,
            failed_actions: state.failed_actions,
            loop_cpu_seconds: thread_cpu_ns() as f64 * 1e-9,
            plan: state.plan.clone(),
            programs: (state.members.values())
                .map(|member| {
                    let is_frozen = self.actuator.frozen_since(member.id()).is_some();
                    ProgramStatus {
                        background: background.get(&member.id()).cloned(),
                        ..member.status(at_ns, &state.plan, is_frozen)
                    }
                })
                .collect(),
            notes: state.notes.iter().cloned().collect(),
            warnings: state.warnings.texts(),
        }
    }
}
