// SPDX-License-Identifier: MIT OR Apache-2.0
//! The real machine as a [`World`]: looks through probes, acts through the
//! actuator, waits on descriptors.
//!
//! Between two turns the thread sleeps in `poll` until one of these happens:
//! a request comes in (the mailbox's bell), a program's last process ends (its
//! `cgroup.events`, or its root's pidfd), the keeper dies, the time is up that
//! the policy asked for, or a second has passed with programs to look after
//! (CPUs that went off- or online, threads that slipped out of an affinity
//! mask). Only arrivals, ends, repetitions, changed CPUs and the policy's own
//! time make a turn; a question about the state does not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::BufWriter;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use usher_act::Actuator;
use usher_act::keeper::KeeperHandle;
use usher_control::{Recorder, World};
use usher_model::{
    Action, CpuId, CpuSet, Decision, Event, FailedAction, Observation, Plan, ProgramId,
    ProgramSample, Topology,
};
use usher_probe::{CpuQuotas, MachineProbe, Roots, usable_cpus};

use super::background::Background;
use super::config::Adopted;
use super::learn::Late;
use super::log::{Change, Log};
use super::mailbox::{Mailbox, Reply};
use super::member::Member;
use super::profiles::Profiles;
use super::reports::{Topic, Warning};
use super::softly::SoftSeats;
use super::status::TimedNote;

/// CPUs and threads are looked after so often, while there are programs.
const HOUSEKEEPING_NS: u64 = 1_000_000_000;
/// Between two steps of the scans that give masks and priorities back.
const SCAN_NS: u64 = 20_000_000;
/// Pause after a keeper could not be replaced, at first and at most.
const KEEPER_NS_MIN: u64 = 1_000_000_000;
const KEEPER_NS_MAX: u64 = 60_000_000_000;

/// The machine, the programs and everything that is known of them.
pub(super) struct RealWorld {
    pub topology: Topology,
    pub roots: Roots,
    pub machine: MachineProbe,
    pub quotas: CpuQuotas,
    pub policy: &'static str,
    pub actuator: Actuator,
    pub keeper: Option<KeeperHandle>,
    pub mailbox: Mailbox,
    pub profiles: Arc<Profiles>,
    /// A scheduler that may keep seats.
    pub soft: Option<Arc<dyn SoftSeats>>,
    pub recorder: Option<Recorder<BufWriter<File>>>,
    /// Services whose use is not foreground's, besides the usual ones.
    pub ignore: Vec<String>,
    /// Programs that one user other than root may have managed at a time.
    pub programs_per_user: usize,
    pub state: State,
}

/// What changes from turn to turn.
#[derive(Default)]
pub(super) struct State {
    pub members: BTreeMap<ProgramId, Member>,
    /// Programs with a home whose process is not there yet.
    pub prepared: BTreeSet<ProgramId>,
    pub last_id: u64,
    pub started_ns: u64,
    pub usable: CpuSet,
    pub looked_after_ns: u64,
    /// When the scans of released programs were last continued.
    pub scanned_ns: u64,
    /// Part of CPU times that the hypervisor took, of late.
    pub steal: f64,
    /// How often that was.
    pub rounds: u64,
    /// Whether programs were looked at since.
    pub sampled: bool,
    /// Programs that may have ended before they were watched, which raises no
    /// event.
    pub unwatched: Vec<ProgramId>,
    /// What the policy has not heard of yet.
    pub events: Vec<Event>,
    /// Who waits for the first decision about a program.
    pub arriving: Vec<(Adopted, Reply<Adopted>)>,
    /// Ended programs whose last repetition may still be reported.
    pub late: VecDeque<Late>,
    pub plan: Plan,
    pub background: Background,
    pub notes: VecDeque<TimedNote>,
    pub log: Log,
    pub warnings: VecDeque<Warning>,
    /// When a dead keeper may be replaced again, and the pause after that.
    pub keeper_due_ns: u64,
    pub keeper_pause_ns: u64,
    /// The reason for which no seats may be given, if any.
    pub seating_forbidden: Option<String>,
    pub decisions: u64,
    pub failed_actions: u64,
    /// The policy is to look because of `usable`.
    pub cpus_changed: bool,
    /// CPUs are online that `topology` does not contain.
    pub strange_cpus: CpuSet,
    /// The machine is to be planned anew because of them.
    pub outgrown: bool,
    pub stopping: bool,
    /// The policy says that seats need not be kept firmly.
    pub soft_seats: bool,
    /// The scheduler that keeps them ([`SoftSeats::running`]).
    pub kept_by: Option<u64>,
}

impl State {
    /// Nothing yet.
    pub fn new(at_ns: u64, usable: CpuSet, log: Log) -> Self {
        Self {
            started_ns: at_ns,
            usable,
            log,
            ..Self::default()
        }
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// CPU time of this thread in nanoseconds.
pub(super) fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl World for RealWorld {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        if !failed.is_empty() {
            // A CPU that has just gone is the likeliest reason.
            self.read_usable();
        }
        self.look_for_pins_at_change();
        let at_ns = now_ns();
        let wants_all = self.looks_at_all(&failed);
        // First: its figures are of this moment, and the rest takes its time.
        let mut metering = self.state.background.sample(at_ns);
        let programs = match wants_all {
            true => self.look_at_programs(at_ns),
            false => Vec::new(),
        };
        self.state.cpus_changed = false;
        self.look_for_waiters(at_ns);
        if let Some(metering) = &mut metering {
            metering.blocked = self.state.background.waiters();
        }
        Observation {
            programs,
            at_ns,
            usable: self.state.usable.clone(),
            events: std::mem::take(&mut self.state.events),
            failed,
            metering,
        }
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        let id = action.program();
        if !self.state.members.contains_key(&id) {
            // It ended between the look and the decision.
            return Ok(());
        }
        if let Err(error) = self.carry_out(action) {
            self.state.failed_actions += 1;
            let text = error.to_string();
            let arriving = self.state.arriving.iter_mut();
            for (adopted, _) in arriving.filter(|(adopted, _)| adopted.id == id) {
                adopted.warnings.push(text.clone());
            }
            return Err(text);
        }
        if let Some(member) = self.state.members.get_mut(&id) {
            // A seat that is given again does not interrupt a repetition.
            let is_same =
                matches!(action, Action::Seat { cpus, .. } if member.seat.as_ref() == Some(cpus));
            member.acted(action, now_ns());
            if !is_same {
                let reach = member.reach(&self.state.usable);
                let cores = self.topology.capacity_of(&reach);
                member.stay.moved(now_ns(), cores);
            }
        }
        Ok(())
    }

    fn decided(&mut self, observation: &Observation, decision: &Decision) {
        self.state.decisions += 1;
        if let Some(recorder) = &mut self.recorder
            && let Err(error) = recorder.step(observation, decision)
        {
            self.recorder = None;
            self.warn(format!("the record was given up: {error}"));
        }
        let at_ns = now_ns();
        self.state.background.decided(decision);
        if let Some(soft_seats) = decision.soft_seats {
            self.state.soft_seats = soft_seats;
        }
        self.follow_scheduler();
        if let Some(plan) = &decision.plan {
            self.drop_outdated_notes(plan);
            self.state.plan = plan.clone();
            let abstains = plan.abstains;
            self.state.log.add(at_ns, Change::Planned { abstains });
        }
        self.keep_notes(at_ns, decision);
        self.log_places(at_ns);
        self.note_neighbours(at_ns);
        for (mut adopted, reply) in std::mem::take(&mut self.state.arriving) {
            let member = self.state.members.get(&adopted.id);
            adopted.seat = member.and_then(|member| member.seat.clone());
            // Whoever asked may be gone; the program is managed all the same.
            let _ = reply.send(Ok(adopted));
        }
    }

    fn wait(&mut self, at_most_ns: Option<u64>) -> bool {
        let deadline_ns = at_most_ns.map(|ns| now_ns().saturating_add(ns));
        loop {
            for request in self.mailbox.take() {
                self.handle(request);
            }
            if self.state.stopping || self.state.outgrown {
                return false;
            }
            for id in std::mem::take(&mut self.state.unwatched) {
                self.look_for_end(id);
            }
            if self.state.looked_after_ns + HOUSEKEEPING_NS <= now_ns() {
                self.look_after();
                if self.state.outgrown {
                    return false;
                }
            }
            self.continue_scans();
            let due = deadline_ns.is_some_and(|deadline| deadline <= now_ns());
            self.state.background.due = due;
            let rang = self.state.background.rang;
            if due || rang || self.state.cpus_changed || !self.state.events.is_empty() {
                return true;
            }
            for id in self.sleep_until(deadline_ns) {
                self.look_for_end(id);
            }
        }
    }
}

impl RealWorld {
    /// Whether this look covers every program: not where only the meter is
    /// asked for, or its bell rang before it was time for more.
    fn looks_at_all(&self, failed: &[FailedAction]) -> bool {
        let state = &self.state;
        let happened = state.cpus_changed || !state.events.is_empty() || !failed.is_empty();
        happened || state.background.wants_all()
    }

    fn look_at_programs(&mut self, at_ns: u64) -> Vec<ProgramSample> {
        self.state.sampled = true;
        let (members, steal) = (self.state.members.values_mut(), self.state.steal);
        let mut samples: Vec<_> = members.filter_map(|m| m.sample(at_ns, steal)).collect();
        if self.state.kept_by.is_some() {
            // Of which cores they made it is not known.
            let progress = samples.iter_mut().filter_map(|s| s.progress.as_mut());
            progress.for_each(|progress| progress.confidence = 0.0);
        }
        samples
    }

    /// Reads which CPUs may be used; true when that has changed. A reading
    /// that fails or leaves none changes nothing.
    pub fn read_usable(&mut self) -> bool {
        let usable = match usable_cpus(&self.roots) {
            Ok(usable) => usable,
            Err(error) => {
                let text = format!("which CPUs may be used is not known: {error}");
                self.warn_about(Topic::Cpus, text);
                return false;
            }
        };
        self.resolved(Topic::Cpus);
        let strange = usable.minus(&self.topology.all_cpus());
        // Tried once for each set of new CPUs.
        self.state.outgrown |= !strange.is_empty() && strange != self.state.strange_cpus;
        self.state.strange_cpus = strange;
        let usable = usable.and(&self.topology.all_cpus());
        let changed = !usable.is_empty() && usable != self.state.usable;
        if changed {
            self.state.usable = usable;
        }
        changed
    }

    /// What is done once a second while there are programs.
    fn look_after(&mut self) {
        self.state.looked_after_ns = now_ns();
        self.state.rounds += 1;
        if self.read_usable() {
            self.state.cpus_changed = true;
        }
        if std::mem::take(&mut self.state.sampled)
            && let Ok(sample) = self.machine.sample()
        {
            self.state.steal = sample.steal_in_cpu_time;
        }
        self.follow_scheduler();
        self.refresh_programs();
        self.look_for_pins();
        let warnings = self.profiles.take_warnings();
        warnings.into_iter().for_each(|text| self.warn(text));
    }

    /// Catches up with threads and processes that were born since the last call.
    fn refresh_programs(&mut self) {
        for id in self.state.members.keys().copied().collect::<Vec<_>>() {
            match self.actuator.refresh(id) {
                Ok(()) => self.resolved(Topic::Catching(id)),
                Err(error) => self.warn_about(Topic::Catching(id), error.to_string()),
            }
            let leavers = self.actuator.leavers(id);
            let Some(member) = self.state.members.get_mut(&id) else {
                continue;
            };
            member.watch.follow(&leavers);
            member.look_for_stop(now_ns());
            let cpu_quota = self.quotas.of(member.main_process());
            if member.program.cpu_quota != cpu_quota {
                member.program.cpu_quota = cpu_quota;
                let limits = member.limits();
                self.state.events.push(limits);
            }
            for text in member.take_warnings() {
                self.warn_about(Topic::Program(id), text);
            }
        }
    }

    /// Continues to give masks and priorities back to programs that were
    /// released or left, while threads may inherit them.
    fn continue_scans(&mut self) {
        let is_due = self.state.scanned_ns + SCAN_NS <= now_ns();
        if !is_due || !self.actuator.is_scanning() {
            return;
        }
        if let Err(error) = self.actuator.continue_scans() {
            self.warn(error.to_string());
        }
        self.state.scanned_ns = now_ns();
    }

    /// Sleeps until a descriptor says something or it is time. Returns the
    /// programs that something happened to.
    fn sleep_until(&mut self, deadline_ns: Option<u64>) -> Vec<ProgramId> {
        let look_after = self.state.looked_after_ns + HOUSEKEEPING_NS;
        let look_after = (!self.state.members.is_empty()).then_some(look_after);
        let hears_ns = self.state.background.hears_from_ns();
        let deaf_ns = hears_ns.filter(|from_ns| *from_ns > now_ns());
        let scan_ns = self.state.scanned_ns + SCAN_NS;
        let scan_ns = self.actuator.is_scanning().then_some(scan_ns);
        let until_ns = [deadline_ns, look_after, deaf_ns, scan_ns]
            .into_iter()
            .flatten()
            .min();
        let timeout = until_ns.map(|until_ns| timespec(until_ns.saturating_sub(now_ns())));
        let bell = PollFd::from_borrowed_fd(self.mailbox.bell(), PollFlags::IN);
        // A dead one's pidfd stays readable: polled on, the loop would spin.
        let is_due = self.state.keeper_due_ns <= now_ns();
        let keeper = self.keeper.as_ref().filter(|_| is_due);
        let keeper = keeper.map(|k| PollFd::from_borrowed_fd(k.pidfd(), PollFlags::IN));
        let hears = hears_ns.is_some() && deaf_ns.is_none();
        let meter = self.state.background.bell().filter(|_| hears);
        let meter = meter.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let members = self.state.members.values().map(|m| m.watch.poll_fd());
        let has_meter = meter.is_some();
        let mut fds: Vec<_> = [bell]
            .into_iter()
            .chain(meter)
            .chain(keeper)
            .chain(members)
            .collect();
        if poll(&mut fds, timeout.as_ref()).is_err() {
            // Interrupted, or out of memory: the loop looks again.
            return Vec::new();
        }
        let first = fds.len() - self.state.members.len();
        let others = 1 + usize::from(has_meter);
        let rang = fds[1..others].iter().any(|fd| !fd.revents().is_empty());
        let keeper_died = fds[others..first].iter().any(|fd| !fd.revents().is_empty());
        let told = fds[first..].iter().zip(self.state.members.keys());
        let told = told.filter(|(fd, _)| !fd.revents().is_empty());
        let told = told.map(|(_, id)| *id).collect();
        drop(fds);
        self.state.background.rang |= rang;
        if keeper_died {
            self.replace_keeper();
        }
        told
    }

    fn replace_keeper(&mut self) {
        let Some(keeper) = &mut self.keeper else {
            return;
        };
        let replaced = keeper.replace();
        let state = &mut self.state;
        if let Err(error) = replaced {
            let pause_ns = state.keeper_pause_ns.clamp(KEEPER_NS_MIN, KEEPER_NS_MAX);
            state.keeper_due_ns = now_ns() + pause_ns;
            state.keeper_pause_ns = pause_ns * 2;
            let text = format!("the keeper died and cannot be replaced now: {error}");
            self.warn_about(Topic::Keeper, text);
        } else {
            state.keeper_pause_ns = KEEPER_NS_MIN;
            self.resolved(Topic::Keeper);
        }
    }

    fn log_places(&mut self, at_ns: u64) {
        let state = &mut self.state;
        for (&program, member) in &mut state.members {
            let place = member.place_now(&state.plan, &state.usable);
            if member.place.as_ref() != Some(&place) {
                member.place = Some(place.clone());
                state.log.add(at_ns, Change::Placed { program, place });
            }
        }
    }

    /// Marks the programs that run where another busy one may run too.
    pub fn note_neighbours(&mut self, at_ns: u64) {
        let mut busy_on: BTreeMap<CpuId, u32> = BTreeMap::new();
        let state = &mut self.state;
        for member in state.members.values().filter(|m| m.is_busy(at_ns)) {
            for cpu in member.reach(&state.usable).iter() {
                *busy_on.entry(cpu).or_default() += 1;
            }
        }
        for member in state.members.values_mut() {
            let own = u32::from(member.is_busy(at_ns));
            let crowded = |cpu| busy_on.get(&cpu).is_some_and(|&n| n > own);
            let disturbed = state.kept_by.is_some()
                || member.is_partly_pinned()
                || member.reach(&state.usable).iter().any(crowded);
            member.stay.disturbed(at_ns, disturbed);
        }
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}
