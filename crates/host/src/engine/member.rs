// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of one managed program in the control loop: its last sample, mask, pinned CPUs, stops
//! and freezes, and the placement that follows from this state under the current plan.
//!
//! A program younger than 2 s counts as busy, because its use of CPU time is not known yet. An
//! older program is busy if it used more than 0.05 CPUs since its arrival or in the last sampling
//! interval. A sample reads the program's processes and threads; the other functions take time in
//! proportion to the seats and loans of the plan.

use usher_act::PinnedCpus;
use usher_learn::{ByteTrace, DemandTrace, VariedTime, WaitBehaviour};
use usher_model::{
    Action, CpuSet, Event, Plan, ProcessTree, Program, ProgramId, ProgramKey, ProgramSample,
    Progress, ProgressSource, SeatMode, StoredCopies,
};
use usher_policy::copies::hints::thread_count;

use super::config::{HintRequest, ThreadHints};
use super::copy_tracker::CopyTracker;
use super::learn::{PlacementInterval, QUIET_CPUS};
use super::log::ProgramPlacement;
use super::progress_window::ProgressWindow;
use super::rest::RestCheck;
use super::status::ProgramStatus;
use super::watch::ProgramObserver;

/// Age from which the use of CPU time shows whether a program is busy. A younger program counts as
/// busy.
const NEW_NS: u64 = 2_000_000_000;
/// Shortest time over which the use of CPUs is averaged. The kernel may count CPU time in steps of
/// 10 ms.
const BUSY_NS: u64 = 100_000_000;

/// A managed program.
#[derive(Debug)]
pub(super) struct ManagedProgram {
    pub program: Program,
    pub home: ProcessTree,
    pub uid: u32,
    /// The user that requested the management.
    pub requesting_user: u32,
    /// The name under which further process trees join the program.
    pub group: Option<String>,
    /// The job of a batch system to which the program belongs.
    pub job: Option<String>,
    /// Whether the program ran already when it came under management.
    pub was_running: bool,
    pub command: String,
    pub key: Option<ProgramKey>,
    /// Progress sources that were inaccurate for the program in earlier runs.
    pub misleading: Vec<ProgressSource>,
    /// The bytes that the program has read and written in its present run.
    pub byte_trace: ByteTrace,
    /// The CPU time and the waits of its present run.
    pub demand_trace: DemandTrace,
    /// Time on seats of deliberate variation.
    pub varied: VariedTime,
    pub watch: ProgramObserver,
    /// The copies that launchers inside the program start; `None` if they are not recognised.
    pub copies: Option<CopyTracker>,
    /// The copies that launchers inside the program started in an earlier run.
    pub stored_copies: Option<StoredCopies>,
    /// The request for variables that set the number of threads, until the program has its seat.
    pub hint_request: Option<HintRequest>,
    /// The variables that the program's launcher has set.
    pub hints: Option<ThreadHints>,
    pub arrived_ns: u64,
    /// The CPUs of the program's seat; `None` if the program has no seat.
    pub seat: Option<CpuSet>,
    /// Whether the seat is a soft seat, which the scheduler implements and which permits other
    /// CPUs.
    pub soft: bool,
    /// The CPUs to which threads of the program pinned themselves. `pinned_ns` is the time at which
    /// pinned threads were last found.
    pub pins: Option<PinnedCpus>,
    pub pinned_ns: u64,
    /// Whether the user had stopped the program at the last sample.
    pub stopped: bool,
    /// The periodic checks that are omitted while the program is at rest.
    pub checks: RestChecks,
    /// The last logged placement.
    pub placement: Option<ProgramPlacement>,
    pub interval: PlacementInterval,
    /// The last sample.
    pub last: Option<(u64, ProgramSample)>,
    /// The CPUs that the program used on average, between two samples at least [`BUSY_NS`] apart.
    pub busy_cpus: f64,
    /// Time and CPU time of the second of these samples.
    pub busy_at: Option<(u64, u64)>,
    /// Progress over the last seconds.
    pub window: ProgressWindow,
}

/// The periodic checks of a program that are omitted while the program is at rest.
#[derive(Debug, Default)]
pub(super) struct RestChecks {
    /// Masks, members and limits of the program (housekeeping).
    pub refresh: RestCheck,
    /// Pinned threads.
    pub pins: RestCheck,
    /// Whether the user has stopped the program.
    pub stopped: RestCheck,
    /// New processes.
    pub copies: RestCheck,
}

impl ManagedProgram {
    pub fn id(&self) -> ProgramId {
        self.program.id
    }

    /// Samples the program. Returns `None` if the program cannot be read any more. `is_frozen`
    /// means that Usher has frozen the program.
    pub fn sample(&mut self, at_ns: u64, steal: f64, is_frozen: bool) -> Option<ProgramSample> {
        let mut sample = self.watch.sample(at_ns, steal)?;
        if let Some(bytes) = self.watch.bytes() {
            self.byte_trace.add(at_ns, bytes);
        }
        if let Some(demand) = self.watch.demand() {
            self.demand_trace.add(demand);
        }
        let was_stopped = self.stopped;
        self.check_stopped(at_ns, is_frozen);
        sample.stopped = was_stopped || self.stopped;
        let misleads = |progress: &Progress| self.misleading.contains(&progress.source);
        if let Some(progress) = sample.progress.as_mut().filter(|p| misleads(p)) {
            progress.confidence = 0.0;
        }
        if let Some(progress) = sample.progress {
            self.window.add(at_ns, progress);
        }
        self.note_cpu_time(at_ns, sample.cpu_ns);
        self.last = Some((at_ns, sample.clone()));
        Some(sample)
    }

    /// Returns the pid of the program's oldest living process or, if there is none, of its root
    /// process.
    pub fn main_process(&self) -> i32 {
        self.watch.oldest_process().unwrap_or(self.home.root.pid)
    }

    /// Checks whether the user has stopped the program. A stop by the user cannot be detected while
    /// Usher itself has frozen the program.
    pub fn check_stopped(&mut self, at_ns: u64, is_frozen: bool) {
        if is_frozen {
            self.checks.stopped.reset();
            return;
        }
        let cpu_ns = self.watch.summed_cpu_ns();
        if !self.checks.stopped.is_due(at_ns, cpu_ns) {
            return;
        }
        let was_stopped = self.stopped;
        self.stopped = self.watch.is_stopped();
        if self.stopped || was_stopped {
            self.interval.interrupted(at_ns);
            self.demand_trace.interrupted();
        }
    }

    /// Returns the errors of the observation of this program since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        let name = &self.program.name;
        let warnings = self.watch.take_warnings().into_iter();
        warnings.map(|text| format!("'{name}': {text}")).collect()
    }

    /// Records an action that has been carried out.
    pub fn record_action(&mut self, action: &Action) {
        if let (Action::Seat { .. } | Action::Release { .. }, Some(copies)) =
            (action, &mut self.copies)
        {
            copies.masks_changed();
        }
        // The action may have changed masks, priorities and the cgroup of a program at rest.
        self.checks = RestChecks::default();
        match action {
            Action::Seat { cpus, .. } => self.seat = Some(cpus.clone()),
            Action::Release { .. } => self.seat = None,
            // The actuator stores whether a program is frozen or demoted.
            Action::Freeze { .. } | Action::Thaw { .. } | Action::Demote { .. } => {}
        }
    }

    /// Returns an event with the limits of the program's cgroups and the CPUs to which the program
    /// has pinned threads.
    pub fn limits(&self) -> Event {
        Event::Limited {
            program: self.id(),
            cpu_quota: self.program.cpu_quota,
            pinned_to: self.program.pinned_to.clone(),
            bound_to: None,
        }
    }

    /// Returns whether some of the program's threads are pinned and others are not. In this case,
    /// the number of cores that contributed to its progress is unknown.
    pub fn is_partly_pinned(&self) -> bool {
        self.pins.as_ref().is_some_and(|pins| !pins.every_thread)
    }

    /// Returns the CPUs on which the program may run.
    pub fn reach(&self, usable: &CpuSet) -> CpuSet {
        let seat = self.seat.as_ref().unwrap_or(usable);
        let pins = self.pins.as_ref().filter(|pins| pins.every_thread);
        if let Some(pins) = pins {
            return usable.and(&pins.cpus);
        }
        let bound = self.program.bound_to.as_ref();
        bound.map_or_else(|| seat.clone(), |bound| seat.and(bound))
    }

    /// Chooses the number of threads that the launcher sets in variables of the program. Called
    /// when the program has its first seat.
    pub fn choose_hints(&mut self, usable: &CpuSet) -> Option<ThreadHints> {
        self.hints = match self.hint_request.take()? {
            HintRequest::Given(hints) => Some(hints),
            HintRequest::Choose {
                variables,
                always,
                cpus,
            } => {
                let reach = u32::try_from(self.reach(usable).len()).unwrap_or(u32::MAX);
                let threads = thread_count(always, self.stored_copies, cpus.min(reach));
                threads
                    .filter(|_| !variables.is_empty())
                    .map(|threads| ThreadHints {
                        threads,
                        variables,
                        from_copies: self.stored_copies.is_some(),
                    })
            }
        };
        self.hints.clone()
    }

    /// Returns the placement of the program under the plan.
    pub fn placement(&self, plan: &Plan, usable: &CpuSet, is_frozen: bool) -> ProgramPlacement {
        let loans = plan.loans.iter().filter(|loan| loan.borrower == self.id());
        let borrowed: Vec<_> = loans.map(|loan| (loan.owner, loan.cpus.clone())).collect();
        let reach = self.reach(usable);
        let own = borrowed
            .iter()
            .fold(reach, |own, (_, cpus)| own.minus(cpus));
        ProgramPlacement {
            own,
            borrowed,
            mode: match self.seat {
                Some(_) => self.mode(plan).unwrap_or(SeatMode::Seated),
                None => self
                    .mode(plan)
                    .filter(|&mode| mode == SeatMode::InTurn)
                    .unwrap_or(SeatMode::Shared),
            },
            frozen: is_frozen,
        }
    }

    fn mode(&self, plan: &Plan) -> Option<SeatMode> {
        let seat = plan.seats.iter().find(|seat| seat.program == self.id());
        seat.map(|seat| seat.mode)
    }

    /// Returns whether the program uses enough CPU time to disturb a neighbour. A new program
    /// counts as busy. A background program never counts as busy, because it yields to other
    /// programs, and a frozen program does not run.
    pub fn is_busy(&self, at_ns: u64, is_frozen: bool) -> bool {
        let age_ns = at_ns.saturating_sub(self.arrived_ns);
        let cpu_ns = self.last.as_ref().map_or(0, |(_, sample)| sample.cpu_ns);
        !is_frozen
            && self.program.background.is_none()
            && (age_ns < NEW_NS
                || cpu_ns as f64 > QUIET_CPUS * age_ns as f64
                || self.busy_cpus > QUIET_CPUS)
    }

    /// Returns how the program's threads waited at the last sample.
    pub fn waits(&self) -> WaitBehaviour {
        let last = self.last.as_ref();
        last.map_or_else(WaitBehaviour::default, |(_, sample)| WaitBehaviour {
            spinners: sample.spinners,
            active_wait: sample.active_wait,
        })
    }

    fn note_cpu_time(&mut self, at_ns: u64, cpu_ns: u64) {
        let (then_ns, then_cpu_ns) = *self.busy_at.get_or_insert((at_ns, cpu_ns));
        let elapsed_ns = at_ns.saturating_sub(then_ns);
        if elapsed_ns >= BUSY_NS {
            self.busy_cpus = cpu_ns.saturating_sub(then_cpu_ns) as f64 / elapsed_ns as f64;
            self.busy_at = Some((at_ns, cpu_ns));
        }
    }

    pub fn status(&self, at_ns: u64, plan: &Plan, is_frozen: bool) -> ProgramStatus {
        let seat = plan.seats.iter().find(|seat| seat.program == self.id());
        let of = |pick: &dyn Fn(&usher_model::Loan) -> bool| {
            let loans = plan.loans.iter().filter(|loan| pick(loan));
            loans.fold(CpuSet::new(), |set, loan| set.or(&loan.cpus))
        };
        let seconds = at_ns.saturating_sub(self.arrived_ns) as f64 * 1e-9;
        // The count of progress began before the arrival of the program, on a slow machine
        // considerably earlier.
        let counted = self.watch.seconds(at_ns);
        let sample = self.last.as_ref().map(|(_, sample)| sample);
        let progress = sample.and_then(|s| s.progress);
        ProgramStatus {
            id: self.id(),
            name: self.program.name.clone(),
            pid: self.main_process(),
            uid: self.uid,
            job: self.job.clone(),
            command: self.command.clone(),
            weight: self.program.weight,
            cores: self.program.cores,
            was_running: self.was_running,
            seconds,
            cpus: self.seat.clone(),
            soft: self.soft,
            borrowed: of(&|loan| loan.borrower == self.id()),
            lent: of(&|loan| loan.owner == Some(self.id())),
            domains: seat.map_or_else(Vec::new, |seat| seat.domains.clone()),
            mode: seat.map(|seat| seat.mode),
            frozen: is_frozen,
            stopped_by_user: self.stopped,
            ntt: seat.and_then(|seat| seat.ntt),
            threads: sample.map_or(0, |s| s.threads),
            spinners: sample.map_or(0, |s| s.spinners),
            active_wait: sample
                .and_then(|s| s.active_wait)
                .or(self.program.active_wait),
            cpu_seconds: sample.map_or(0.0, |s| s.cpu_ns as f64 * 1e-9),
            busy_cpus: self.busy_cpus,
            progress,
            progress_per_second: self.window.per_second().or(progress
                .filter(|_| counted > 0.0)
                .map(|progress| progress.total / counted)),
            profile: self.program.profile.clone(),
            profile_match: self.program.profile_match,
            bound_to: self.program.bound_to.clone(),
            pinned_to: self.program.pinned_to.clone(),
            cpu_quota: self.program.cpu_quota,
            background: None,
            copies: self
                .copies
                .as_ref()
                .map_or_else(Vec::new, CopyTracker::groups),
            hints: self.hints.clone(),
            unrecognised_workers: self.copies.as_ref().map_or(0, CopyTracker::unrecognised),
        }
    }
}
