// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler of paper 1, as the paper describes it (section 3.3, figure 6).
//!
//! The policy plans only when a program arrives or ends, or when limits or usable CPUs change. The
//! behaviour of a program is assumed to be constant.
//!
//! - *A program arrives.* All other programs are stopped. The new program runs alone for a short
//!   trial at several core counts, each of whole dies (of single cores if there is only one die).
//!   Its progress per second at each count is its scalability curve. Then all programs get the
//!   seats with the least predicted ANTT, the weighted mean of the slow-downs against a run alone.
//!   A trial takes 300 ms for each of at most 8 core counts. After twice that time (4.8 s), the
//!   trial ends with the core counts that have been measured.
//! - *A program ends.* The curves of the remaining programs are known. These programs get the seats
//!   with the least predicted ANTT.
//!
//! The policy gives seats even if the predicted ANTT is worse than without seats. The policy lends
//! no cores. Where progress cannot be measured while a program runs (no PMU, no heartbeat), a curve
//! from the profile store replaces the trial. Without a curve from the profile store, the program
//! is assumed to scale perfectly; a note reports the assumption.
//!
//! Several new programs have their trials one after another: all other programs stay stopped for
//! the sum of the trials. If the planner rejects the programs, all programs are left to the kernel,
//! and a note reports the error. A failed action causes a new plan; the number of retries is not
//! limited. Module `seating` states the cost of a plan.

use std::collections::{BTreeMap, VecDeque};

use usher_model::{
    CpuSet, Curve, CurvePoint, Decision, Event, Note, Observation, Program, ProgramId,
    ProgramSample, Topology,
};

use crate::Policy;
use crate::action_diff::ActionDiff;
use crate::seating::seat;
use crate::simple::{apply_limits, desired_seats, linear, remove_pinned, request, shared_plan};

/// Time for which the new program runs on a number of cores before its progress on these cores is
/// measured.
const SETTLE_NS: u64 = 50_000_000;
/// Time of the measurement at each core count.
const MEASURE_NS: u64 = 250_000_000;
/// Maximum number of core counts in a trial; the counts are spread evenly.
const STEPS_MAX: usize = 8;

/// The policy `casas`.
#[derive(Debug)]
pub struct Casas {
    machine: Topology,
    /// The machine, restricted to the CPUs that may be used now.
    topology: Topology,
    programs: BTreeMap<ProgramId, Program>,
    curves: BTreeMap<ProgramId, Curve>,
    waiting: VecDeque<ProgramId>,
    trial: Option<CoreCountTrial>,
    diff: ActionDiff,
    notes: Vec<Note>,
}

/// Trial of a new program alone, at one core count after another.
#[derive(Debug)]
struct CoreCountTrial {
    program: ProgramId,
    steps: Vec<CpuSet>,
    points: Vec<CurvePoint>,
    state: TrialState,
    /// Time at which the trial ends even if core counts have not been measured. Without a deadline,
    /// the other programs would stay stopped for a program without progress figures.
    deadline_ns: u64,
}

#[derive(Debug, Clone, Copy)]
enum TrialState {
    /// Until this time, the program runs on the CPUs of the next step without a measurement.
    Settle { until_ns: u64 },
    /// Since this time, the progress of the program has been measured.
    Measure { since_ns: u64, total: f64 },
}

impl Casas {
    /// Creates the policy for a machine.
    pub fn new(topology: Topology) -> Self {
        Self {
            machine: topology.clone(),
            topology,
            programs: BTreeMap::new(),
            curves: BTreeMap::new(),
            waiting: VecDeque::new(),
            trial: None,
            diff: ActionDiff::default(),
            notes: Vec::new(),
        }
    }

    /// Processes failed actions, a change of the usable CPUs, and events. Returns whether a new
    /// plan is needed.
    fn handle_changes(&mut self, observation: &Observation) -> bool {
        let mut stale = !observation.failed.is_empty();
        self.diff.mark_failed(&observation.failed);
        let changed = self.topology.all_cpus() != observation.usable;
        if changed && let Ok(topology) = self.machine.restrict(&observation.usable) {
            self.topology = topology;
            stale = true;
        }
        for event in &observation.events {
            match event {
                Event::Arrived(program) => {
                    self.programs.insert(program.id, (**program).clone());
                    self.waiting.push_back(program.id);
                }
                Event::Departed(program) => {
                    self.forget(*program);
                    stale = true;
                }
                Event::Limited { program, .. } => {
                    if let Some(program) = self.programs.get_mut(program) {
                        stale |= apply_limits(program, event);
                    }
                }
                Event::Repeated { .. } | Event::Seating { .. } => {}
            }
        }
        stale
    }

    fn forget(&mut self, program: ProgramId) {
        self.programs.remove(&program);
        self.curves.remove(&program);
        self.waiting.retain(|&waiting| waiting != program);
        self.diff.forget(program);
        self.trial.take_if(|trial| trial.program == program);
    }

    /// Advances the present trial, or starts the next trial. Returns whether the curve of a program
    /// has become known.
    fn advance_trials(&mut self, observation: &Observation) -> bool {
        let mut learnt = false;
        if let Some(trial) = &mut self.trial {
            let sample = observation
                .programs
                .iter()
                .find(|sample| sample.id == trial.program);
            if trial.advance(observation.at_ns, sample, &self.topology) {
                let (program, points) = (trial.program, std::mem::take(&mut trial.points));
                self.trial = None;
                let curve = Curve::new(points).ok();
                self.learn(
                    program,
                    curve,
                    "the trial of the program measured no progress",
                );
                learnt = true;
            }
        }
        while self.trial.is_none() {
            let Some(program) = self.waiting.pop_front() else {
                break;
            };
            let sample = observation
                .programs
                .iter()
                .find(|sample| sample.id == program);
            let measurable = sample
                .and_then(|s| s.progress)
                .is_some_and(|p| p.may_plan());
            if measurable {
                self.trial = Some(CoreCountTrial::new(
                    program,
                    observation.at_ns,
                    &self.topology,
                ));
            } else {
                let known = self.programs.get(&program).filter(|p| p.has_own_profile());
                let profile = known.and_then(|p| p.profile.clone());
                self.learn(
                    program,
                    profile,
                    "the program's progress cannot be measured, and the profile store has no \
                     profile of it",
                );
                learnt = true;
            }
        }
        learnt
    }

    fn learn(&mut self, program: ProgramId, curve: Option<Curve>, reason: &str) {
        let curve = curve.unwrap_or_else(|| {
            let text = format!("Usher assumes that the program scales perfectly: {reason}");
            self.notes.push(Note::new(Some(program), text));
            linear(&self.topology)
        });
        self.curves.insert(program, curve);
    }

    /// Seats the new program on the trial's CPUs and stops all other programs.
    fn trial_actions(
        &mut self,
        trial_program: ProgramId,
        cpus: CpuSet,
    ) -> Vec<usher_model::Action> {
        let freeze: Vec<_> = self
            .programs
            .keys()
            .map(|&id| (id, id != trial_program))
            .collect();
        let mut actions = self.diff.freeze_where(freeze);
        let place = (cpus != self.topology.all_cpus()).then_some(cpus);
        actions.extend(self.diff.move_to(&[(trial_program, place)].into()));
        actions
    }

    fn plan(&mut self, decision: &mut Decision) {
        let requests: Vec<_> = (self.programs.values())
            .filter_map(|program| {
                Some(request(
                    program,
                    &self.topology,
                    self.curves.get(&program.id)?.clone(),
                ))
            })
            .collect();
        let plan = match seat(&self.topology, &requests) {
            Ok(seating) => seating.plan,
            Err(error) => {
                let text =
                    format!("no program has a seat, and all programs share all CPUs: {error}");
                self.notes.push(Note::new(None, text));
                shared_plan(&self.topology, self.programs.keys())
            }
        };
        let mut wanted = desired_seats(&plan, &self.topology.all_cpus());
        remove_pinned(&mut wanted, self.programs.values());
        decision.actions.extend(self.diff.move_to(&wanted));
        let thawed: Vec<_> = self.programs.keys().map(|&id| (id, false)).collect();
        decision.actions.extend(self.diff.freeze_where(thawed));
        decision.plan = Some(plan);
    }
}

impl CoreCountTrial {
    fn new(program: ProgramId, at_ns: u64, topology: &Topology) -> Self {
        let steps = steps(topology);
        let deadline_ns = at_ns + 2 * steps.len() as u64 * (SETTLE_NS + MEASURE_NS);
        let state = TrialState::Settle {
            until_ns: at_ns + SETTLE_NS,
        };
        Self {
            program,
            steps,
            points: Vec::new(),
            state,
            deadline_ns,
        }
    }

    /// Processes a sample; returns whether the last step has been measured.
    fn advance(&mut self, at_ns: u64, sample: Option<&ProgramSample>, topology: &Topology) -> bool {
        let total = sample.and_then(|s| s.progress).map(|p| p.total);
        match (self.state, total) {
            (TrialState::Settle { until_ns }, Some(total)) if at_ns >= until_ns => {
                self.state = TrialState::Measure {
                    since_ns: at_ns,
                    total,
                };
            }
            (
                TrialState::Measure {
                    since_ns,
                    total: before,
                },
                Some(total),
            ) if at_ns >= since_ns + MEASURE_NS => {
                let rate = (total - before) * 1e9 / (at_ns - since_ns) as f64;
                let cores = topology.capacity_of(&self.steps[self.points.len()]);
                self.points.push(CurvePoint {
                    cores,
                    rate: rate.max(f64::MIN_POSITIVE),
                    relative_error: 0.0,
                    busy_cpus: None,
                });
                self.state = TrialState::Settle {
                    until_ns: at_ns + SETTLE_NS,
                };
            }
            _ => {}
        }
        self.points.len() == self.steps.len() || at_ns >= self.deadline_ns
    }

    fn wait_ns(&self, at_ns: u64) -> u64 {
        let until_ns = match self.state {
            TrialState::Settle { until_ns } => until_ns,
            TrialState::Measure { since_ns, .. } => since_ns + MEASURE_NS,
        };
        until_ns.saturating_sub(at_ns).max(1_000_000)
    }
}

/// The CPUs of each step of a trial, in whole domains, or in single cores if there is only one
/// domain. The at most [`STEPS_MAX`] steps include the smallest and the largest number of domains
/// or cores.
fn steps(topology: &Topology) -> Vec<CpuSet> {
    let units: Vec<CpuSet> = match topology.domains.len() {
        1 => topology
            .cores
            .iter()
            .map(|core| core.cpus.clone())
            .collect(),
        _ => topology
            .domains
            .iter()
            .map(|domain| domain.cpus.clone())
            .collect(),
    };
    let tried = units.len().min(STEPS_MAX);
    let count = |step: usize| {
        if tried == 1 {
            1
        } else {
            1 + step * (units.len() - 1) / (tried - 1)
        }
    };
    (0..tried)
        .map(|step| {
            units[..count(step)]
                .iter()
                .fold(CpuSet::new(), |set, unit| set.or(unit))
        })
        .collect()
}

impl Policy for Casas {
    fn name(&self) -> &'static str {
        "casas"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let stale = self.handle_changes(observation);
        let learnt = self.advance_trials(observation);
        let mut decision = Decision::default();
        if let Some(trial) = &self.trial {
            let (program, cpus) = (trial.program, trial.steps[trial.points.len()].clone());
            decision.wake_after_ns = Some(trial.wait_ns(observation.at_ns));
            decision.actions = self.trial_actions(program, cpus);
        } else if stale || learnt {
            self.plan(&mut decision);
        }
        decision.notes = std::mem::take(&mut self.notes);
        // During a trial no cores may be lent.
        decision.soft_seats = Some(self.trial.is_none());
        decision
    }
}
