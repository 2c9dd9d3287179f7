// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends the management of programs: at their end, or at the request of a user. Also handles the
//! reports of completed repetitions, which may follow the end of a program.
//!
//! A release retries for at most 1 s.

use usher_learn::{ByteRate, ProfileSample, ProfileUpdate, WaitBehaviour};
use usher_model::{Event, ProgramId, ProgramKey};

use super::clock::now_ns;
use super::config::EngineError;
use super::learn::{ENDED_MAX, EndedProgram, RepetitionEnd};
use super::log::LogChange;
use super::warning::WarningTopic;
use super::world::{RealWorld, busy_on};

impl RealWorld {
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

    pub(super) fn repeated(
        &mut self,
        id: ProgramId,
        seconds: f64,
        asking: u32,
    ) -> Result<(), EngineError> {
        let at_ns = now_ns();
        let ended = self.state.ended.iter_mut().find(|ended| ended.id == id);
        if let Some(ended) = ended.filter(|ended| asking == 0 || asking == ended.uid) {
            let update = ended.last_update(seconds, self.other_cpus_max, self.profiles.corrects());
            self.add_update(update);
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
        let update = update.filter(|update| update.sample.is_some() || update.run.is_some());
        if let Some(update) = update {
            self.profiles.queue(update);
        }
    }

    pub(super) fn release(
        &mut self,
        id: ProgramId,
        group: Option<&str>,
        asking: u32,
    ) -> Result<(), EngineError> {
        let of_member = self
            .state
            .members
            .get(&id)
            .and_then(|one| one.group.as_deref());
        if group.is_some() && group != of_member {
            return Err(EngineError::Unknown(id));
        }
        self.check_owner(id, asking)?;
        self.depart(id)
    }

    /// Checks whether a program has ended, and handles its end. If a program's cgroup is empty, the
    /// program may still have processes that have moved to other cgroups.
    pub(super) fn check_ended(&mut self, id: ProgramId) {
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
        self.end_member(id, at_ns, busy_ns);
        let mut others = self.state.members.values();
        let is_last = !others.any(|member| member.program.background.is_some());
        self.state.background.remove_program(id, is_last);
        self.drop_notes_of(id);
        self.state
            .log
            .add(at_ns, LogChange::Departed { program: id });
        self.state.events.push(Event::Departed(id));
        self.reject_arrival(id);
        Ok(self.actuator.depart(id)?)
    }

    /// Removes the state of a departing program, and keeps what its last repetition needs.
    /// `busy_ns`: the CPU time of all programs on its CPUs.
    fn end_member(&mut self, id: ProgramId, at_ns: u64, busy_ns: Option<u64>) {
        let steal = self.state.steal;
        let is_frozen = self.actuator.frozen_since(id).is_some();
        let Some(mut member) = self.state.members.remove(&id) else {
            return;
        };
        if self.state.members.is_empty() {
            self.exec_notifications.forget_active();
        }
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

    /// Rejects the request that brought a program, if the program departs before the first decision
    /// about it.
    fn reject_arrival(&mut self, id: ProgramId) {
        let rejected = self
            .state
            .arriving
            .extract_if(.., |(adopted, _)| adopted.id == id);
        for (adopted, reply) in rejected {
            let pid = adopted.home.root.pid;
            let _ = reply.send(Err(EngineError::Gone { pid }));
        }
    }
}

impl EndedProgram {
    /// Returns the profile update of the last repetition, which was reported after the end.
    /// `corrects`: runs beside other programs are corrected.
    fn last_update(
        &mut self,
        seconds: f64,
        other_cpus_max: Option<f64>,
        corrects: bool,
    ) -> Option<ProfileUpdate> {
        let sample = self.interval.repeated(&RepetitionEnd {
            at_ns: self.ended_ns,
            seconds,
            last: self.last.as_ref(),
            sample_age_s: self.sample_age_s,
            busy_ns: self.busy_ns,
            other_cpus_max,
        });
        let bytes = self.byte_trace.ended(self.ended_ns);
        let mut demand = self.demand_trace.ended(seconds);
        if !corrects || self.waits.spinners > 0 {
            demand.points.clear();
        }
        let run = demand.finished(seconds, &self.varied);
        // A run without disturbance gives a single point.
        if sample.is_some() {
            demand.points.clear();
        }
        let mut points = demand.points.into_iter();
        let sample = sample.or_else(|| points.next().map(ProfileSample::corrected));
        let update = profile_update(self.key.clone(), &self.name, self.waits, sample, bytes);
        update.map(|update| ProfileUpdate {
            run,
            further: points.collect(),
            ..update
        })
    }
}

/// Returns the profile update of a repetition; `None` if the program has no key.
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
        sample: sample.map(|sample| sample.with_bytes(bytes)),
        waits,
        distrusts_bytes: sample.is_some() && bytes.is_some_and(|rate| !rate.is_progress()),
        run: None,
        further: Vec::new(),
    })
}
