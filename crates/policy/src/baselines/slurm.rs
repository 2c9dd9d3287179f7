// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two ways in which Slurm shares a node among jobs. Used only for comparison in simulations.
//!
//! - [`Oversubscribe`]: `OverSubscribe=FORCE`. Jobs are stacked: each job runs on the cores that
//!   were allocated to it, and the kernel shares these cores among the jobs.
//! - [`Gang`]: `PreemptMode=GANG`. Jobs are stacked in the same way, but jobs with a core in common
//!   run in turn. All other jobs are suspended as a whole.
//!
//! Rows of jobs (Slurm: select/cons_tres) do not overlap inside a row:
//!
//! 1. A job that arrives gets the lowest free cores of the first row with enough of them. Only
//!    whole cores are allocated, with all their CPUs.
//! 2. A job without a row waits, suspended. When a job departs, waiting jobs get a row in the order
//!    of their arrival; a job that does not fit is passed over.
//! 3. A job keeps its cores until it departs.
//!
//! Slices of [`Gang`] (Slurm: `gang.c`): at the end of each slice, the jobs that ran move to the
//! end of the list. Then the jobs run, in the order of the list, that have no core in common with a
//! job before them that runs. Slices have a fixed length. A job that departs during a slice is
//! replaced at once.
//!
//! A decision takes time in proportion to the square of the number of jobs, times the cores.

use std::collections::BTreeMap;

use usher_model::{
    CpuSet, Decision, Event, Observation, Plan, Program, ProgramId, Seat, SeatMode, Topology,
};

use crate::Policy;
use crate::action_diff::ActionDiff;
use crate::simple::track_programs;

/// Number of cores that each job requests, by name. A job without an entry requests all cores.
pub type RequestedCores = BTreeMap<String, usize>;

/// The jobs of a node and the cores that are allocated to them.
#[derive(Debug)]
struct JobRows {
    topology: Topology,
    requested: RequestedCores,
    rows_max: usize,
    programs: BTreeMap<ProgramId, Program>,
    /// Jobs with cores, in the order of arrival or, under gang scheduling, of the next slice.
    running: Vec<AllocatedJob>,
    /// Jobs without cores, in the order of arrival.
    waiting: Vec<ProgramId>,
    diff: ActionDiff,
}

#[derive(Debug, Clone)]
struct AllocatedJob {
    id: ProgramId,
    row: usize,
    /// Indices of the allocated cores.
    cores: Vec<usize>,
    cpus: CpuSet,
}

impl JobRows {
    fn new(topology: Topology, requested: RequestedCores, rows_max: usize) -> Self {
        Self {
            topology,
            requested,
            rows_max: rows_max.max(1),
            programs: BTreeMap::new(),
            running: Vec::new(),
            waiting: Vec::new(),
            diff: ActionDiff::default(),
        }
    }

    /// Processes arrivals and departures. Returns whether jobs have arrived or departed.
    fn update(&mut self, observation: &Observation) -> bool {
        self.diff.mark_failed(&observation.failed);
        let changed = track_programs(&mut self.programs, &observation.events);
        for event in &observation.events {
            match event {
                Event::Arrived(program) => self.waiting.push(program.id),
                Event::Departed(id) => {
                    self.running.retain(|job| job.id != *id);
                    self.waiting.retain(|other| other != id);
                    self.diff.forget(*id);
                }
                _ => {}
            }
        }
        if changed {
            let waiting = std::mem::take(&mut self.waiting);
            for id in waiting {
                match self.allocate(id) {
                    Some(job) => self.running.push(job),
                    None => self.waiting.push(id),
                }
            }
        }
        changed
    }

    /// Returns the cores for a job; `None` if no row has enough free cores.
    fn allocate(&self, id: ProgramId) -> Option<AllocatedJob> {
        let all = self.topology.cores.len();
        let name = &self.programs.get(&id)?.name;
        let requested = self.requested.get(name).copied().unwrap_or(all);
        let requested = requested.clamp(1, all);
        (0..self.rows_max).find_map(|row| {
            let used = |core: &usize| {
                let in_row = self.running.iter().filter(|job| job.row == row);
                in_row.into_iter().any(|job| job.cores.contains(core))
            };
            let cores: Vec<usize> = (0..all)
                .filter(|core| !used(core))
                .take(requested)
                .collect();
            (cores.len() == requested).then(|| AllocatedJob {
                id,
                row,
                cpus: self.topology.cpus_of_cores(cores.iter().copied()),
                cores,
            })
        })
    }

    /// Decides that these jobs run, and that all other jobs are suspended.
    fn decision(&mut self, active: &[ProgramId]) -> Decision {
        let everywhere = self.topology.all_cpus();
        let place = |job: &AllocatedJob| (job.cpus != everywhere).then(|| job.cpus.clone());
        let wanted = self
            .running
            .iter()
            .map(|job| (job.id, place(job)))
            .collect();
        let mut actions = self.diff.move_to(&wanted);
        let suspended = |id: &ProgramId| (*id, !active.contains(id));
        let states: Vec<_> = self.programs.keys().map(suspended).collect();
        actions.extend(self.diff.freeze_where(states));
        let seat = |job: &AllocatedJob| Seat {
            program: job.id,
            cpus: job.cpus.clone(),
            domains: self.topology.domains_in(&job.cpus),
            mode: SeatMode::Shared,
            ntt: None,
        };
        Decision {
            actions,
            plan: Some(Plan {
                seats: self.running.iter().map(seat).collect(),
                ..Plan::default()
            }),
            ..Decision::default()
        }
    }
}

/// Stacks jobs on the cores that were allocated to them (`OverSubscribe=FORCE`).
#[derive(Debug)]
pub struct Oversubscribe {
    jobs: JobRows,
}

impl Oversubscribe {
    /// Creates the policy. `jobs_per_core`: maximum number of jobs on one core, at least 1.
    pub fn new(topology: Topology, requested: RequestedCores, jobs_per_core: usize) -> Self {
        Self {
            jobs: JobRows::new(topology, requested, jobs_per_core),
        }
    }
}

impl Policy for Oversubscribe {
    fn name(&self) -> &'static str {
        "oversubscribe"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        if !self.jobs.update(observation) && observation.failed.is_empty() {
            return Decision::default();
        }
        let active: Vec<ProgramId> = self.jobs.running.iter().map(|job| job.id).collect();
        self.jobs.decision(&active)
    }
}

/// Suspends whole jobs in turn (`PreemptMode=GANG`).
#[derive(Debug)]
pub struct Gang {
    jobs: JobRows,
    slice_ns: u64,
    /// End of the present slice; `None` before the first job.
    slice_end_ns: Option<u64>,
    active: Vec<ProgramId>,
}

impl Gang {
    /// Creates the policy. `jobs_per_core`: maximum number of jobs on one core, at least 1;
    /// `slice_ns`: length of a slice, at least 1.
    pub fn new(
        topology: Topology,
        requested: RequestedCores,
        jobs_per_core: usize,
        slice_ns: u64,
    ) -> Self {
        Self {
            jobs: JobRows::new(topology, requested, jobs_per_core),
            slice_ns: slice_ns.max(1),
            slice_end_ns: None,
            active: Vec::new(),
        }
    }

    /// Moves the jobs of the slice that has ended to the end of the list.
    fn end_slice(&mut self) {
        let active = std::mem::take(&mut self.active);
        let ran = |job: &AllocatedJob| active.contains(&job.id);
        // The sort is stable: the order among the jobs that ran, and among the others, remains.
        self.jobs.running.sort_by_key(ran);
    }

    /// Lets all jobs run that have no core in common with a running job.
    fn fill(&mut self) {
        let running = &self.jobs.running;
        self.active
            .retain(|id| running.iter().any(|job| job.id == *id));
        let mut used: Vec<&AllocatedJob> = running
            .iter()
            .filter(|job| self.active.contains(&job.id))
            .collect();
        for job in running {
            let overlaps = |other: &&AllocatedJob| {
                other.id == job.id || job.cores.iter().any(|core| other.cores.contains(core))
            };
            if !used.iter().any(overlaps) {
                self.active.push(job.id);
                used.push(job);
            }
        }
    }
}

impl Policy for Gang {
    fn name(&self) -> &'static str {
        "gang"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let changed = self.jobs.update(observation);
        let at_ns = observation.at_ns;
        let end_ns = self
            .slice_end_ns
            .unwrap_or(at_ns.saturating_add(self.slice_ns));
        let over = at_ns >= end_ns;
        let end_ns = match over {
            true => end_ns + ((at_ns - end_ns) / self.slice_ns + 1).saturating_mul(self.slice_ns),
            false => end_ns,
        };
        self.slice_end_ns = Some(end_ns);
        let mut decision = Decision::default();
        if changed || over || !observation.failed.is_empty() {
            if over {
                self.end_slice();
            }
            self.fill();
            decision = self.jobs.decision(&self.active.clone());
        }
        decision.wake_after_ns = Some(end_ns - at_ns);
        decision
    }
}
