// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the loop's thread does when it is asked for something.

use std::collections::BTreeMap;

use usher_act::{ActError, PreparedHome, Work};
use usher_model::{CpuSet, Event, Note, ProcessId, ProcessTree, Program, ProgramId, ProgramKey};

use super::config::{Adopted, EngineError};
use super::learn::{LATE_MAX, Late, Stay, Taught};
use super::log::Change;
use super::mailbox::{Reply, Request};
use super::member::Member;
use super::newcomer::Newcomer;
use super::profiles::{Lesson, Waits};
use super::reports::Topic;
use super::status::{BackgroundStatus, ProgramStatus, Status};
use super::watch::Watch;
use super::world::{RealWorld, now_ns, thread_cpu_ns};

impl RealWorld {
    pub fn handle(&mut self, request: Request) {
        // An asker that is gone does not mind that its answer is lost.
        match request {
            Request::Prepare {
                launcher,
                work,
                reply,
            } => drop(reply.send(self.prepare(launcher, work))),
            Request::Abandon(id) => self.abandon(id),
            Request::Adopt {
                prepared,
                newcomer,
                reply,
            } => self.adopt(prepared, *newcomer, reply),
            Request::Repeated {
                id,
                seconds,
                asking,
                reply,
            } => drop(reply.send(self.repeated(id, seconds, asking))),
            Request::LetGo { id, asking, reply } => drop(reply.send(self.let_go(id, asking))),
            Request::ProgramOf { pid, reply } => drop(reply.send(Ok(self.program_of(pid)))),
            Request::Seating { forbidden } => self.set_seating(forbidden),
            Request::Topology(reply) => drop(reply.send(Ok(self.topology.clone()))),
            Request::Status(reply) => drop(reply.send(Ok(self.status()))),
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

    fn next_id(&mut self) -> ProgramId {
        self.state.last_id += 1;
        ProgramId(self.state.last_id)
    }

    fn prepare(
        &mut self,
        launcher: ProcessId,
        work: Work,
    ) -> Result<(ProgramId, PreparedHome), EngineError> {
        let id = self.next_id();
        let home = self.actuator.prepare(id, launcher, work)?;
        self.state.prepared.insert(id);
        Ok((id, home))
    }

    fn abandon(&mut self, id: ProgramId) {
        if self.state.prepared.remove(&id)
            && let Err(error) = self.actuator.depart(id)
        {
            self.warn(error.to_string());
        }
    }

    fn adopt(&mut self, prepared: Option<ProgramId>, newcomer: Newcomer, reply: Reply<Adopted>) {
        match self.admit(prepared, newcomer) {
            Ok(adopted) => self.state.arriving.push((adopted, reply)),
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    fn admit(
        &mut self,
        prepared: Option<ProgramId>,
        mut newcomer: Newcomer,
    ) -> Result<Adopted, EngineError> {
        if let Err(error) = self.check_quota(newcomer.asking) {
            prepared.into_iter().for_each(|id| self.abandon(id));
            return Err(error);
        }
        let id = prepared.unwrap_or_else(|| self.next_id());
        let work = work_of(&newcomer.program);
        if newcomer.asking != 0 {
            self.actuator.restrict_to(id, newcomer.asking);
        }
        // A running program stays in its cgroup; one that is launched may get
        // one of its own.
        let ready = match newcomer.held && prepared.is_none() {
            true => self.actuator.prepare_held(id, newcomer.root, work),
            false => Ok(()),
        };
        let admitted = ready.and_then(|()| self.actuator.admit(id, newcomer.root, work));
        if admitted.is_err() {
            self.abandon(id);
        }
        self.state.prepared.remove(&id);
        let home = admitted.map_err(|error| match error {
            ActError::Managed { pid, program: id } => EngineError::Managed { pid, id },
            other => other.into(),
        })?;
        let (heartbeat, held) = (newcomer.heartbeat.take(), newcomer.held);
        match Watch::open(&home, &self.roots.proc, heartbeat, held) {
            Ok(mut watch) => {
                let adopted = Adopted {
                    id,
                    home: home.clone(),
                    key: newcomer.key.clone(),
                    seat: None,
                    warnings: watch.take_warnings(),
                };
                self.arrive(newcomer, home, watch);
                self.report_placement(id);
                Ok(adopted)
            }
            Err(error) => {
                // It cannot be seen, so it cannot be managed.
                let _ = self.actuator.depart(id);
                Err(error)
            }
        }
    }

    /// Whether a user may have one more program managed.
    fn check_quota(&self, uid: u32) -> Result<(), EngineError> {
        let limit = self.programs_per_user;
        let theirs = self.state.members.values().filter(|one| one.uid == uid);
        match uid == 0 || theirs.count() < limit {
            true => Ok(()),
            false => Err(EngineError::TooMany { uid, limit }),
        }
    }

    /// Logs why a launched program has no cgroup of its own, and warns where an
    /// attempt to make one failed.
    fn report_placement(&mut self, id: ProgramId) {
        let Some(in_place) = self.actuator.why_in_place(id).cloned() else {
            return;
        };
        let text = format!(
            "it stays in the cgroup that it was launched in: {}",
            in_place.reason
        );
        if in_place.failed {
            let name = self
                .state
                .members
                .get(&id)
                .map(|one| one.program.name.clone());
            let text = format!("'{}': {text}", name.unwrap_or_default());
            self.warn_about(Topic::Program(id), text);
        }
        let note = Note {
            program: Some(id),
            text,
        };
        self.keep_note(now_ns(), note, true);
    }

    fn arrive(&mut self, newcomer: Newcomer, home: ProcessTree, watch: Watch) {
        if newcomer.program.background.is_none() {
            self.drop_general_notes();
        }
        if self.state.members.is_empty() {
            // Nobody has looked after the CPUs while there was nobody.
            self.read_usable();
            self.state.looked_after_ns = now_ns();
        }
        let usable = &self.state.usable;
        let bound = |cpus: &CpuSet| !usable.is_subset(cpus);
        let pins = self.actuator.pins(home.program);
        // With pinned threads the main thread's mask is no binding of the program;
        // the union of all masks at the attach is.
        let whole = self.actuator.initial_cpus(home.program).cloned();
        let bound_to = match pins {
            Some(_) => whole,
            None => newcomer.program.bound_to,
        };
        let program = Program {
            id: home.program,
            bound_to: bound_to.filter(bound),
            pinned_to: pins.as_ref().map(|pins| pins.cpus.clone()),
            cpu_quota: self.quotas.of(newcomer.root.pid),
            // By its cgroup's freezer; elsewhere it would be sent signals.
            stops_unseen: self.actuator.freezes_unseen(home.program),
            ..newcomer.program
        };
        let at_ns = now_ns();
        let mut member = Member {
            stay: Stay::new(at_ns, 0.0),
            program: program.clone(),
            home,
            uid: newcomer.uid,
            command: newcomer.command,
            key: newcomer.key,
            misleading: newcomer.misleading,
            watch,
            arrived_ns: at_ns,
            seat: None,
            soft: false,
            frozen: false,
            pins,
            pinned_ns: at_ns,
            stopped: false,
            frozen_ns: None,
            place: None,
            last: None,
            before_last: None,
        };
        let reach = member.reach(usable);
        member.stay.moved(at_ns, self.topology.capacity_of(&reach));
        let arrived = Change::Arrived {
            program: program.id,
            name: program.name.clone(),
        };
        self.state.log.add(at_ns, arrived);
        self.state.unwatched.push(program.id);
        if program.background.is_some() {
            self.meter_program(&member.home);
        }
        self.state.members.insert(program.id, member);
        self.state.events.push(Event::Arrived(Box::new(program)));
    }

    /// The program, where this user may say something about it.
    fn check_owner(&self, id: ProgramId, asking: u32) -> Result<(), EngineError> {
        let member = self
            .state
            .members
            .get(&id)
            .ok_or(EngineError::Unknown(id))?;
        match asking == 0 || asking == member.uid {
            true => Ok(()),
            false => Err(EngineError::NotYours {
                pid: member.home.root.pid,
                owner: member.uid,
                asking,
            }),
        }
    }

    fn repeated(&mut self, id: ProgramId, seconds: f64, asking: u32) -> Result<(), EngineError> {
        let at_ns = now_ns();
        let late = self.state.late.iter_mut().find(|late| late.id == id);
        if let Some(late) = late.filter(|late| asking == 0 || asking == late.uid) {
            let taught = late
                .stay
                .repeated(late.ended_ns, seconds, late.last.as_ref());
            let lesson = lesson(late.key.clone(), &late.name, late.waits, taught);
            self.teach(lesson);
            return Ok(());
        }
        self.check_owner(id, asking)?;
        self.note_neighbours(at_ns);
        let steal = self.state.steal;
        if let Some(member) = self.state.members.get_mut(&id) {
            let sample = member.sample(at_ns, steal);
            let taught = member.stay.repeated(at_ns, seconds, sample.as_ref());
            let lesson = lesson(
                member.key.clone(),
                &member.program.name,
                member.waits(),
                taught,
            );
            let program = id;
            self.state.events.push(Event::Repeated { program, seconds });
            self.teach(lesson);
        }
        Ok(())
    }

    fn teach(&self, lesson: Option<Lesson>) {
        lesson
            .into_iter()
            .for_each(|lesson| self.profiles.teach(lesson));
    }

    /// The program that a process is part of.
    fn program_of(&self, pid: i32) -> Option<ProgramId> {
        let found = self.actuator.program_of(pid);
        found.filter(|id| self.state.members.contains_key(id))
    }

    fn let_go(&mut self, id: ProgramId, asking: u32) -> Result<(), EngineError> {
        self.check_owner(id, asking)?;
        self.depart(id)
    }

    /// Takes note where a program has ended. An empty cgroup is not the end of
    /// a program of which processes have moved elsewhere.
    pub fn look_for_end(&mut self, id: ProgramId) {
        let Some(member) = self.state.members.get_mut(&id) else {
            return;
        };
        if !member.watch.has_ended() {
            return;
        }
        match self.actuator.find_leavers(id) {
            Ok(leavers) => member.watch.follow(&leavers),
            Err(error) => self.warn_about(Topic::Catching(id), error.to_string()),
        }
        let member = self.state.members.get_mut(&id);
        if member.is_some_and(|member| member.watch.has_ended())
            && let Err(error) = self.depart(id)
        {
            self.warn(error.to_string());
        }
    }

    fn depart(&mut self, id: ProgramId) -> Result<(), EngineError> {
        let at_ns = now_ns();
        self.note_neighbours(at_ns);
        self.unseat(id);
        let steal = self.state.steal;
        if let Some(mut member) = self.state.members.remove(&id) {
            if member.program.background.is_none() {
                self.drop_general_notes();
            }
            member.sample(at_ns, steal);
            if self.state.late.len() == LATE_MAX {
                self.state.late.pop_front();
            }
            self.state.late.push_back(Late {
                id,
                key: member.key.take(),
                name: member.program.name.clone(),
                waits: member.waits(),
                stay: member.stay,
                ended_ns: at_ns,
                last: member.last.take().map(|(_, sample)| sample),
                uid: member.uid,
            });
        }
        let mut others = self.state.members.values();
        let is_last = !others.any(|member| member.program.background.is_some());
        self.state.background.depart(id, is_last);
        self.drop_notes_of(id);
        self.state.log.add(at_ns, Change::Departed { program: id });
        self.state.events.push(Event::Departed(id));
        let told = self
            .state
            .arriving
            .extract_if(.., |(adopted, _)| adopted.id == id);
        for (adopted, reply) in told {
            let pid = adopted.home.root.pid;
            let _ = reply.send(Err(EngineError::Gone { pid }));
        }
        Ok(self.actuator.depart(id)?)
    }

    fn status(&mut self) -> Status {
        let at_ns = now_ns();
        let steal = self.state.steal;
        for member in self.state.members.values_mut() {
            member.sample(at_ns, steal);
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
                .map(|member| ProgramStatus {
                    background: background.get(&member.id()).cloned(),
                    ..member.status(at_ns, &state.plan)
                })
                .collect(),
            notes: state.notes.iter().cloned().collect(),
            warnings: state.warnings.iter().map(|one| one.text.clone()).collect(),
        }
    }
}

/// What there is to teach, if there is.
fn lesson(
    key: Option<ProgramKey>,
    name: &str,
    waits: Waits,
    taught: Option<Taught>,
) -> Option<Lesson> {
    Some(Lesson {
        key: key?,
        name: name.to_owned(),
        taught: taught?,
        waits,
    })
}

/// What sort of work a program does.
fn work_of(program: &Program) -> Work {
    match program.background {
        Some(_) => Work::Background,
        None => Work::Foreground,
    }
}
