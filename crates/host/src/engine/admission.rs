// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admits programs to the control loop: prepares cgroups for programs that are about to be launched,
//! checks the quota of the requesting user, and starts the observation of admitted programs.
//!
//! If a step of an admission fails, the completed steps are undone. The answer to a request follows
//! after the next decision of the policy (`world`).

use usher_act::{ActError, HomeDirs, PreparedHome, WorkClass};
use usher_learn::{ByteTrace, DemandTrace};
use usher_model::{CpuSet, Event, Note, ProcessId, ProcessTree, Program, ProgramId};

use super::arrival::ArrivingProgram;
use super::clock::now_ns;
use super::config::{AdoptedProgram, EngineError};
use super::copy_tracker::CopyTracker;
use super::learn::PlacementInterval;
use super::log::LogChange;
use super::member::{ManagedProgram, RestChecks};
use super::request_channel::Reply;
use super::warning::WarningTopic;
use super::watch::ProgramObserver;
use super::world::{RealWorld, busy_on};

impl RealWorld {
    fn next_id(&mut self) -> ProgramId {
        self.state.last_id += 1;
        ProgramId(self.state.last_id)
    }

    pub(super) fn prepare(
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

    pub(super) fn prepare_for(
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

    pub(super) fn abandon(&mut self, id: ProgramId) {
        if self.state.prepared.remove(&id).is_some()
            && let Err(error) = self.actuator.depart(id)
        {
            self.warn(error.to_string());
        }
    }

    pub(super) fn adopt(
        &mut self,
        prepared: Option<ProgramId>,
        arriving: ArrivingProgram,
        reply: Reply<AdoptedProgram>,
    ) {
        let adopted = match self.group_of(&arriving) {
            Some(id) => self.join(id, arriving),
            None => self.admit(prepared, arriving),
        };
        match adopted {
            // Without an event, no decision follows.
            Ok(adopted) if self.state.events.is_empty() => drop(reply.send(Ok(adopted))),
            Ok(adopted) => self.state.arriving.push((adopted, reply)),
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    fn admit(
        &mut self,
        prepared: Option<ProgramId>,
        arriving: ArrivingProgram,
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
        let ready = match arriving.held && !arriving.in_place && prepared.is_none() {
            true => self.actuator.prepare_held(id, arriving.root, work),
            false => Ok(()),
        };
        let admitted = ready.and_then(|()| self.actuator.admit(id, arriving.root, work));
        if admitted.is_err() {
            self.abandon(id);
        }
        self.state.prepared.remove(&id);
        let home = admitted.map_err(admission_error)?;
        self.begin(id, home, arriving)
    }

    /// Starts the observation and the management of a program that was admitted. If the program
    /// cannot be observed, its admission is undone.
    fn begin(
        &mut self,
        id: ProgramId,
        home: ProcessTree,
        mut arriving: ArrivingProgram,
    ) -> Result<AdoptedProgram, EngineError> {
        let (heartbeat, held) = (arriving.heartbeat.take(), arriving.held);
        let trusts_bytes = arriving.trusts_bytes;
        let errors = std::mem::take(&mut arriving.source_errors);
        let proc_root = &self.roots.proc;
        let opened = ProgramObserver::open(&home, proc_root, heartbeat, held, trusts_bytes, errors);
        let mut watch = match opened {
            Ok(watch) => watch,
            Err(error) => {
                let _ = self.actuator.depart(id);
                return Err(error);
            }
        };
        let adopted = AdoptedProgram {
            id,
            home: home.clone(),
            key: arriving.key.clone(),
            seat: None,
            warnings: watch.take_warnings(),
            background: arriving.program.background,
            hints: None,
            joined: false,
        };
        let review = arriving.review.take();
        let is_launched = held && !arriving.in_place;
        self.arrive(arriving, home, watch);
        self.report_placement(id, is_launched);
        if let Some(text) = review {
            let program = Some(id);
            self.keep_note(now_ns(), Note::new(program, text), true);
        }
        Ok(adopted)
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
        self.keep_note(now_ns(), Note::new(Some(id), text), true);
    }

    fn arrive(&mut self, arriving: ArrivingProgram, home: ProcessTree, watch: ProgramObserver) {
        if arriving.program.background.is_none() {
            self.drop_general_notes();
        }
        if self.state.members.is_empty() {
            self.resume_housekeeping();
        }
        let at_ns = now_ns();
        let similar_to = arriving.similar_to.clone();
        let mut member = self.new_member(at_ns, arriving, home, watch);
        self.begin_interval(&mut member, at_ns);
        let program = member.program.clone();
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
        if let Some(id) = similar_to {
            self.note_similar_profile(at_ns, program.id, &id);
        }
        self.state.events.push(Event::Arrived(Box::new(program)));
    }

    /// Returns the state of an arriving program without a placement.
    fn new_member(
        &mut self,
        at_ns: u64,
        arriving: ArrivingProgram,
        home: ProcessTree,
        watch: ProgramObserver,
    ) -> ManagedProgram {
        let pins = self.actuator.pins(home.program);
        let pinned_to = pins.as_ref().map(|pins| pins.cpus.clone());
        let program = self.completed(arriving.program, &home, arriving.root, pinned_to);
        let is_launched = arriving.held;
        let copies = self.places_copies.then(|| {
            let has_notifications = self.exec_notifications.exist();
            CopyTracker::new(
                &self.roots.proc,
                home.root,
                is_launched,
                has_notifications,
                at_ns,
            )
        });
        ManagedProgram {
            copies,
            // Policies that place no copies set no variables either, unless the user requests them.
            stored_copies: arriving.stored_copies.filter(|_| self.places_copies),
            hint_request: arriving.hints,
            hints: None,
            interval: PlacementInterval::new(at_ns, 0.0),
            program,
            home,
            uid: arriving.uid,
            requesting_user: arriving.asking,
            group: arriving.group,
            job: arriving.job,
            was_running: !is_launched,
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
            checks: RestChecks::default(),
            placement: None,
            last: None,
            busy_cpus: 0.0,
            busy_at: None,
            window: Default::default(),
        }
    }

    /// Adds the number and the limits of the program's processes to its description.
    fn completed(
        &mut self,
        program: Program,
        home: &ProcessTree,
        root: ProcessId,
        pinned_to: Option<CpuSet>,
    ) -> Program {
        let has_pins = pinned_to.is_some();
        Program {
            id: home.program,
            bound_to: self.bound_to(home.program, program.bound_to, has_pins),
            pinned_to,
            cpu_quota: self.quotas.of(root.pid),
            // The policy must know whether the cgroup's freezer stops the program, or stop signals,
            // which the program's parent notices.
            stops_unseen: self.actuator.freezes_unseen(home.program),
            ..program
        }
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
        self.keep_note(at_ns, Note::new(program, text), true);
    }
}

/// Converts an error of the admission of a process.
pub(super) fn admission_error(error: ActError) -> EngineError {
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
