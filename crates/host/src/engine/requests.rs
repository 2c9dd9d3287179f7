// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles the requests to the control loop's thread: prepare, adopt, find, release and report
//! programs, forbid or permit seats, and return the state. Also handles the ends of programs.
//!
//! - A request to adopt a program is rejected if the requesting user has reached the quota of
//!   programs. `arrival.rs` has already checked that the process belongs to the user. The answer
//!   follows after the next decision of the policy.
//! - A request to release a program or to report a repetition is rejected if the program belongs to
//!   another user. Root may act on all programs.
//! - The other requests are answered at once, without a check of the user.
//!
//! If a step of an admission fails, the completed steps are undone. If the sender of a request is
//! gone, its answer is discarded. No request is retried. A status request samples every program; a
//! release retries for at most 1 s.

use std::collections::BTreeMap;

use usher_act::{ActError, HomeDirs, PreparedHome, WorkClass};
use usher_learn::{ByteRate, ByteTrace, DemandTrace, ProfileSample, ProfileUpdate, WaitBehaviour};
use usher_model::{CpuSet, Event, Note, ProcessId, ProcessTree, Program, ProgramId, ProgramKey};

use super::arrival::ArrivingProgram;
use super::clock::{now_ns, thread_cpu_ns};
use super::config::{AdoptedProgram, EngineError};
use super::copy_tracker::CopyTracker;
use super::learn::{ENDED_MAX, EndedProgram, PlacementInterval, RepetitionEnd};
use super::log::LogChange;
use super::member::ManagedProgram;
use super::request_channel::{Reply, Request};
use super::status::{BackgroundStatus, ProgramStatus, Status};
use super::warning::WarningTopic;
use super::watch::ProgramObserver;
use super::world::{RealWorld, busy_on};

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
            Request::Release { id, asking, reply } => drop(reply.send(self.release(id, asking))),
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

    fn next_id(&mut self) -> ProgramId {
        self.state.last_id += 1;
        ProgramId(self.state.last_id)
    }

    fn prepare(
        &mut self,
        launcher: ProcessId,
        work: WorkClass,
    ) -> Result<(ProgramId, PreparedHome), EngineError> {
        let id = self.next_id();
        let home = self.actuator.prepare(id, launcher, work)?;
        let asking = rustix::process::geteuid().as_raw();
        self.state.prepared.insert(id, (asking, work));
        Ok((id, home))
    }

    fn prepare_for(
        &mut self,
        launcher: ProcessId,
        work: WorkClass,
        asking: u32,
    ) -> Result<(ProgramId, HomeDirs), EngineError> {
        self.check_quota(asking, None)?;
        let id = self.next_id();
        if asking != 0 {
            self.actuator.restrict_to(id, asking);
        }
        let home = self.actuator.prepare_for(id, launcher, work);
        let home = home.map_err(admission_error)?;
        self.state.prepared.insert(id, (asking, work));
        Ok((id, home))
    }

    fn abandon(&mut self, id: ProgramId) {
        if self.state.prepared.remove(&id).is_some()
            && let Err(error) = self.actuator.depart(id)
        {
            self.warn(error.to_string());
        }
    }

    fn adopt(
        &mut self,
        prepared: Option<ProgramId>,
        arriving: ArrivingProgram,
        reply: Reply<AdoptedProgram>,
    ) {
        match self.admit(prepared, arriving) {
            Ok(adopted) => self.state.arriving.push((adopted, reply)),
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    fn admit(
        &mut self,
        prepared: Option<ProgramId>,
        mut arriving: ArrivingProgram,
    ) -> Result<AdoptedProgram, EngineError> {
        if let Err(error) = self.check_quota(arriving.asking, prepared) {
            prepared.into_iter().for_each(|id| self.abandon(id));
            return Err(error);
        }
        let work = work_of(&arriving.program);
        let prepared = self.usable_home(prepared, work);
        let id = prepared.unwrap_or_else(|| self.next_id());
        if arriving.asking != 0 {
            self.actuator.restrict_to(id, arriving.asking);
        }
        // A running program stays in its cgroup. A launched program may get a cgroup of its own.
        let ready = match arriving.held && prepared.is_none() {
            true => self.actuator.prepare_held(id, arriving.root, work),
            false => Ok(()),
        };
        let admitted = ready.and_then(|()| self.actuator.admit(id, arriving.root, work));
        if admitted.is_err() {
            self.abandon(id);
        }
        self.state.prepared.remove(&id);
        let home = admitted.map_err(admission_error)?;
        let (heartbeat, held) = (arriving.heartbeat.take(), arriving.held);
        let trusts_bytes = arriving.trusts_bytes;
        let errors = std::mem::take(&mut arriving.source_errors);
        let proc_root = &self.roots.proc;
        match ProgramObserver::open(&home, proc_root, heartbeat, held, trusts_bytes, errors) {
            Ok(mut watch) => {
                let adopted = AdoptedProgram {
                    id,
                    home: home.clone(),
                    key: arriving.key.clone(),
                    seat: None,
                    warnings: watch.take_warnings(),
                    background: arriving.program.background,
                    hints: None,
                };
                let review = arriving.review.take();
                self.arrive(arriving, home, watch);
                self.report_placement(id, held);
                if let Some(text) = review {
                    let program = Some(id);
                    self.keep_note(now_ns(), Note { program, text }, true);
                }
                Ok(adopted)
            }
            Err(error) => {
                // A program that cannot be observed is not managed; its admission is undone.
                let _ = self.actuator.depart(id);
                Err(error)
            }
        }
    }

    /// Returns the prepared home if it was prepared for this class of work. A rule may have changed
    /// the class since; the home is then removed.
    fn usable_home(&mut self, prepared: Option<ProgramId>, work: WorkClass) -> Option<ProgramId> {
        let id = prepared?;
        let (_, prepared_for) = self.state.prepared.get(&id)?;
        if *prepared_for == work {
            return Some(id);
        }
        self.abandon(id);
        None
    }

    /// Checks that the user may have one more managed program. Each prepared home except `excluded`
    /// counts as a program.
    fn check_quota(&self, uid: u32, excluded: Option<ProgramId>) -> Result<(), EngineError> {
        let limit = self.programs_per_user;
        let state = &self.state;
        let managed = state.members.values().filter(|one| one.uid == uid);
        let prepared = state.prepared.iter();
        let prepared = prepared.filter(|(id, (owner, _))| *owner == uid && Some(**id) != excluded);
        match uid == 0 || managed.count() + prepared.count() < limit {
            true => Ok(()),
            false => Err(EngineError::TooMany { uid, limit }),
        }
    }

    /// Logs the reason for which a program has no cgroup of its own. Adds a warning if the creation
    /// of a cgroup failed. `is_launched`: the program has not executed its file yet.
    fn report_placement(&mut self, id: ProgramId, is_launched: bool) {
        let Some(in_place) = self.actuator.no_cgroup_reason(id).cloned() else {
            return;
        };
        let result = match is_launched {
            true => "the program stays in the cgroup that it was launched in",
            false => "the program has no cgroup of its own",
        };
        let text = format!("{result}: {}", in_place.reason);
        if in_place.failed {
            self.warn_about(WarningTopic::Program(id), text.clone());
        }
        let note = Note {
            program: Some(id),
            text,
        };
        self.keep_note(now_ns(), note, true);
    }

    fn arrive(&mut self, arriving: ArrivingProgram, home: ProcessTree, watch: ProgramObserver) {
        if arriving.program.background.is_none() {
            self.drop_general_notes();
        }
        if self.state.members.is_empty() {
            self.resume_housekeeping();
        }
        let pins = self.actuator.pins(home.program);
        let program = Program {
            id: home.program,
            bound_to: self.bound_to(home.program, arriving.program.bound_to, pins.is_some()),
            pinned_to: pins.as_ref().map(|pins| pins.cpus.clone()),
            cpu_quota: self.quotas.of(arriving.root.pid),
            // The policy must know whether the cgroup's freezer stops the program, or stop signals,
            // which the program's parent notices.
            stops_unseen: self.actuator.freezes_unseen(home.program),
            ..arriving.program
        };
        let at_ns = now_ns();
        let is_launched = arriving.held;
        let copies = self
            .places_copies
            .then(|| CopyTracker::new(&self.roots.proc, home.root, is_launched, at_ns));
        let mut member = ManagedProgram {
            copies,
            // Policies that place no copies set no variables either, unless the user requests them.
            stored_copies: arriving.stored_copies.filter(|_| self.places_copies),
            hint_request: arriving.hints,
            hints: None,
            interval: PlacementInterval::new(at_ns, 0.0),
            program: program.clone(),
            home,
            uid: arriving.uid,
            command: arriving.command,
            key: arriving.key,
            misleading: arriving.misleading,
            byte_trace: ByteTrace::new(at_ns),
            demand_trace: DemandTrace::new(at_ns),
            varied: Default::default(),
            watch,
            arrived_ns: at_ns,
            seat: None,
            soft: false,
            pins,
            pinned_ns: at_ns,
            stopped: false,
            placement: None,
            last: None,
            before_last: None,
            window: Default::default(),
        };
        self.begin_interval(&mut member, at_ns);
        let arrived = LogChange::Arrived {
            program: program.id,
            name: program.name.clone(),
        };
        self.state.log.add(at_ns, arrived);
        self.state.unwatched.push(program.id);
        if program.background.is_some() {
            self.meter_program(&member.home);
        }
        self.state.members.insert(program.id, member);
        if let Some(id) = arriving.similar_to {
            self.note_similar_profile(at_ns, program.id, &id);
        }
        self.state.events.push(Event::Arrived(Box::new(program)));
    }

    /// Returns the CPUs to which an arriving program is bound; `None` if it may use all usable CPUs.
    /// `main` are the CPUs of its main thread.
    fn bound_to(&self, id: ProgramId, main: Option<CpuSet>, has_pins: bool) -> Option<CpuSet> {
        // If the program has pinned threads, the mask of its main thread does not show the CPUs of
        // the program. In this case the union of the masks of all threads at the attach is used.
        let bound_to = match has_pins {
            true => self.actuator.initial_cpus(id).cloned(),
            false => main,
        };
        bound_to.filter(|cpus| !self.state.usable.is_subset(cpus))
    }

    /// Starts the measurements of a program that arrives.
    fn begin_interval(&self, member: &mut ManagedProgram, at_ns: u64) {
        let reach = member.reach(&self.state.usable);
        let cores = self.topology.capacity_of(&reach);
        let busy_ns = busy_on(&self.roots, &reach);
        member.interval.moved(at_ns, cores, busy_ns);
        member.demand_trace.moved(cores);
    }

    /// Prepares the state for the first managed program: the usable CPUs are not checked while no
    /// program is managed.
    fn resume_housekeeping(&mut self) {
        self.read_usable();
        self.state.housekeeping_ns = now_ns();
    }

    /// Keeps the note that a program uses the profile `id` of other arguments.
    fn note_similar_profile(&mut self, at_ns: u64, program: ProgramId, id: &str) {
        let text = format!(
            "the program has no profile for these arguments: Usher uses the profile {id} of other \
             arguments, and requires a higher predicted gain"
        );
        let program = Some(program);
        self.keep_note(at_ns, Note { program, text }, true);
    }

    /// Checks that the program is managed and that the user may make requests about it.
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
        let ended = self.state.ended.iter_mut().find(|ended| ended.id == id);
        if let Some(ended) = ended.filter(|ended| asking == 0 || asking == ended.uid) {
            let sample = ended.interval.repeated(&RepetitionEnd {
                at_ns: ended.ended_ns,
                seconds,
                last: ended.last.as_ref(),
                sample_age_s: ended.sample_age_s,
                busy_ns: ended.busy_ns,
                other_cpus_max: self.other_cpus_max,
            });
            let bytes = ended.byte_trace.ended(ended.ended_ns);
            let demand = ended.demand_trace.ended(seconds);
            let demand = demand.filter(|_| self.profiles.corrects() && ended.waits.spinners == 0);
            let sample = sample.or(demand.map(|demand| ProfileSample::corrected(demand.point)));
            let run = demand.map(|demand| demand.finished(seconds, &ended.varied));
            let update = profile_update(ended.key.clone(), &ended.name, ended.waits, sample, bytes);
            self.add_update(update.map(|update| ProfileUpdate { run, ..update }));
            return Ok(());
        }
        self.check_owner(id, asking)?;
        self.update_disturbed(at_ns);
        let steal = self.state.steal;
        let is_frozen = self.actuator.frozen_since(id).is_some();
        if let Some(member) = self.state.members.get_mut(&id) {
            let sample = member.sample(at_ns, steal, is_frozen);
            let reach = member.reach(&self.state.usable);
            let sample = member.interval.repeated(&RepetitionEnd {
                at_ns,
                seconds,
                last: sample.as_ref(),
                sample_age_s: 0.0,
                busy_ns: busy_on(&self.roots, &reach),
                other_cpus_max: self.other_cpus_max,
            });
            let update = profile_update(
                member.key.clone(),
                &member.program.name,
                member.waits(),
                sample,
                member.byte_trace.ended(at_ns),
            );
            let program = id;
            self.state.events.push(Event::Repeated { program, seconds });
            self.add_update(update);
        }
        Ok(())
    }

    fn add_update(&self, update: Option<ProfileUpdate>) {
        update
            .into_iter()
            .for_each(|update| self.profiles.queue(update));
    }

    /// Returns the program to which a process belongs.
    fn program_of(&self, pid: i32) -> Option<ProgramId> {
        let found = self.actuator.program_of(pid);
        found.filter(|id| self.state.members.contains_key(id))
    }

    fn release(&mut self, id: ProgramId, asking: u32) -> Result<(), EngineError> {
        self.check_owner(id, asking)?;
        self.depart(id)
    }

    /// Checks whether a program has ended, and handles its end. If a program's cgroup is empty, the
    /// program may still have processes that have moved to other cgroups.
    pub fn check_ended(&mut self, id: ProgramId) {
        let Some(member) = self.state.members.get_mut(&id) else {
            return;
        };
        if !member.watch.has_ended() {
            return;
        }
        match self.actuator.find_leavers(id) {
            Ok(leavers) => member.watch.follow(&leavers),
            Err(error) => self.warn_about(WarningTopic::Refresh(id), error.to_string()),
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
        self.record_remaining(id);
        self.update_disturbed(at_ns);
        let reach = self
            .state
            .members
            .get(&id)
            .map(|member| member.reach(&self.state.usable));
        let busy_ns = reach.and_then(|reach| busy_on(&self.roots, &reach));
        self.unseat(id);
        let steal = self.state.steal;
        let is_frozen = self.actuator.frozen_since(id).is_some();
        if let Some(mut member) = self.state.members.remove(&id) {
            if member.program.background.is_none() {
                self.drop_general_notes();
            }
            let sampled_ns = member
                .last
                .as_ref()
                .map_or(member.arrived_ns, |last| last.0);
            let has_sample = member.sample(at_ns, steal, is_frozen).is_some();
            if member.watch.has_ended() {
                self.forget_copies(&member);
            }
            member.varied.set(at_ns, None);
            if self.state.ended.len() == ENDED_MAX {
                self.state.ended.pop_front();
            }
            self.state.ended.push_back(EndedProgram {
                id,
                key: member.key.take(),
                name: member.program.name.clone(),
                waits: member.waits(),
                interval: member.interval,
                byte_trace: member.byte_trace,
                demand_trace: member.demand_trace,
                varied: member.varied,
                ended_ns: at_ns,
                last: member.last.take().map(|(_, sample)| sample),
                // Without a cgroup, the CPU time between the last sample and the end is lost.
                sample_age_s: match has_sample && member.home.cgroup.is_some() {
                    true => 0.0,
                    false => at_ns.saturating_sub(sampled_ns) as f64 * 1e-9,
                },
                busy_ns,
                uid: member.uid,
            });
        }
        let mut others = self.state.members.values();
        let is_last = !others.any(|member| member.program.background.is_some());
        self.state.background.remove_program(id, is_last);
        self.drop_notes_of(id);
        self.state
            .log
            .add(at_ns, LogChange::Departed { program: id });
        self.state.events.push(Event::Departed(id));
        let rejected = self
            .state
            .arriving
            .extract_if(.., |(adopted, _)| adopted.id == id);
        for (adopted, reply) in rejected {
            let pid = adopted.home.root.pid;
            let _ = reply.send(Err(EngineError::Gone { pid }));
        }
        Ok(self.actuator.depart(id)?)
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

/// Returns the profile update of a repetition; `None` if the program has no key or the repetition
/// no sample.
fn profile_update(
    key: Option<ProgramKey>,
    name: &str,
    waits: WaitBehaviour,
    sample: Option<ProfileSample>,
    bytes: Option<ByteRate>,
) -> Option<ProfileUpdate> {
    Some(ProfileUpdate {
        key: key?,
        name: name.to_owned(),
        sample: sample?.with_bytes(bytes),
        waits,
        distrusts_bytes: bytes.is_some_and(|rate| !rate.is_progress()),
        run: None,
    })
}

/// Converts an error of the admission of a process.
fn admission_error(error: ActError) -> EngineError {
    match error {
        ActError::Managed { pid, program: id } => EngineError::Managed { pid, id },
        other => other.into(),
    }
}

/// Returns the class of work of a program.
fn work_of(program: &Program) -> WorkClass {
    match program.background {
        Some(_) => WorkClass::Background,
        None => WorkClass::Foreground,
    }
}
