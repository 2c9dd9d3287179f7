// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates a machine without PMU on which the programs of a mix run repeatedly, and Usher learns
//! from their runs.
//!
//! 1. Each program arrives at a random time. When a run has ended, the next run of the program
//!    arrives after a random pause of up to 1 s.
//! 2. An arriving program gets its profile and its budget of deliberate variation from a profile
//!    store in memory, as in the daemon. A program with [`MixEntry::known`] gets its true curve
//!    instead of a profile.
//! 3. The policy gets CPU time as the only progress of a program.
//! 4. During a run, crate `usher-learn` adds up CPU time, waits and time on narrowed seats, as in
//!    the daemon. At the end, it writes the point of the run and the budget into the store.
//! 5. The simulation ends when each program has completed a given number of runs.
//!
//! *Differences from the daemon.* The busy time of CPUs is not simulated. Every point of a curve is
//! therefore a point of `usher_learn::DemandTrace`, which the daemon uses for disturbed runs only.
//! Readings have no noise except for the differences between simulated runs.
//!
//! A decision takes time in proportion to the running programs, in addition to [`SimWorld`]. All
//! runs are kept in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use oorandom::Rand64;
use usher_control::{ControlLoop, World};
use usher_learn::{
    DemandTrace, ProfileSample, ProfileUpdate, VariedTime, WaitBehaviour, recall, variation_budget,
};
use usher_model::{
    Action, Arrival, CpuSet, Decision, FailedAction, Observation, ProgramId, ProgramKey, Progress,
    ProgressSource,
};
use usher_policy::Policy;
use usher_store::{MachineKey, Store, StoreError};

use crate::engine::Engine;
use crate::fault::Fault;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::mix::MixEntry;
use crate::world::{PlannedArrival, SimWorld, StopCondition};

/// Longest pause between two runs of a program.
const PAUSE_NS_MAX: f64 = 1e9;
/// Minimum interval between readings of CPU time and waits, as in the probe of the daemon.
const READINGS_NS_MIN: u64 = 200_000_000;
/// Number of threads up to which the probe of the daemon reads waits.
const THREADS_MAX: u32 = 256;

/// Settings of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RerunSettings {
    /// Number of runs that each program completes.
    pub runs: usize,
    /// Whether the seats of some runs are deliberately varied.
    pub variation: bool,
    /// Latest first arrival, in virtual seconds.
    pub spread_s: f64,
    /// End of the simulation in virtual seconds, if a program has not completed its runs.
    pub seconds_max: f64,
    /// Seed of the kernel, the programs, the first arrivals and the pauses.
    pub seed: u64,
}

/// One completed run of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompletedRun {
    /// Duration in virtual seconds.
    pub seconds: f64,
    /// Number of points of the profile at the start of the run.
    pub points: usize,
    /// Time on seats of deliberate variation, in virtual seconds.
    pub varied_seconds: f64,
    /// Part of the run's work that was done on seats of deliberate variation, 0..=1. Policies do
    /// not get this value.
    pub varied_work: f64,
}

/// The runs of all programs of a mix.
#[derive(Debug, Clone, PartialEq)]
pub struct Reruns {
    /// The completed runs of each program, in order; at least the requested number.
    pub runs: Vec<Vec<CompletedRun>>,
    /// Number of simulated events.
    pub events: u64,
}

/// Reason for a simulation without a result.
#[derive(Debug, thiserror::Error)]
pub enum RerunError {
    /// The simulation cannot continue, or a program has not completed its runs.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The store in memory failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Runs the programs of a mix under a policy until each has completed the requested runs.
///
/// # Errors
/// The simulation cannot continue, or a program has not completed its runs in
/// [`RerunSettings::seconds_max`].
pub fn run(
    entries: &[MixEntry],
    machine: &Machine,
    kernel: &Kernel,
    policy: Box<dyn Policy>,
    settings: &RerunSettings,
) -> Result<Reruns, RerunError> {
    let world = RerunWorld::new(entries, machine, kernel, *settings)?;
    let mut control = ControlLoop::new(policy, world);
    control.run();
    let (_, world) = control.into_parts();
    world.finish()
}

/// The world of [`run`].
struct RerunWorld {
    inner: SimWorld,
    settings: RerunSettings,
    programs: Vec<RepeatedProgram>,
    /// The runs that have arrived and not ended.
    present: BTreeMap<ProgramId, PresentRun>,
    /// Number of planned runs of all programs.
    planned: u64,
    /// Loss per second of each program on a seat of deliberate variation.
    varied: BTreeMap<ProgramId, f64>,
    store: Store,
    machine: MachineKey,
    failure: Option<StoreError>,
}

/// A program with its completed runs.
struct RepeatedProgram {
    entry: MixEntry,
    random: Rand64,
    completed: Vec<CompletedRun>,
    /// The planned or present run, and the number of points of its profile.
    next: (ProgramId, usize),
}

/// The measurements of a run that has not ended.
struct PresentRun {
    program: usize,
    /// Index of the arrival in the world.
    arrival: usize,
    demand: DemandTrace,
    read_ns: u64,
    /// Number of living threads at the last reading.
    alive: u32,
    varied: VariedTime,
    /// Work on seats of deliberate variation, and the work at the last decision, in nanoseconds of
    /// an undisturbed core.
    varied_work_ns: f64,
    last_work_ns: f64,
}

impl PresentRun {
    /// Adds the work since the last decision. `work_ns` is the work since the arrival.
    fn add_work(&mut self, work_ns: f64, is_varied: bool) {
        if is_varied {
            self.varied_work_ns += work_ns - self.last_work_ns;
        }
        self.last_work_ns = work_ns;
    }
}

impl RerunWorld {
    fn new(
        entries: &[MixEntry],
        machine: &Machine,
        kernel: &Kernel,
        settings: RerunSettings,
    ) -> Result<Self, RerunError> {
        let engine = Engine::new(machine.clone(), kernel.clone(), settings.seed);
        let stop = StopCondition {
            repetitions: usize::MAX,
            at_ns: (settings.seconds_max * 1e9) as u64,
        };
        let program = |(index, entry): (usize, &MixEntry)| RepeatedProgram {
            entry: entry.clone(),
            random: Rand64::new(u128::from(settings.seed) << 32 | index as u128),
            completed: Vec::new(),
            next: (ProgramId(0), 0),
        };
        let mut world = Self {
            inner: SimWorld::new(engine, Vec::new(), stop),
            settings,
            programs: entries.iter().enumerate().map(program).collect(),
            present: BTreeMap::new(),
            planned: 0,
            varied: BTreeMap::new(),
            store: Store::in_memory()?,
            machine: MachineKey::of(machine.topology()),
            failure: None,
        };
        for program in 0..entries.len() {
            let part = world.programs[program].random.rand_float();
            world.plan_run(program, (part * settings.spread_s * 1e9) as u64)?;
        }
        Ok(world)
    }

    /// Plans the next run of a program.
    fn plan_run(&mut self, program: usize, at_ns: u64) -> Result<(), StoreError> {
        self.planned += 1;
        let id = ProgramId(self.planned);
        let entry = &self.programs[program].entry;
        let key = key(&entry.name);
        let stored = recall(&self.store, &key, &self.machine)?;
        let budget = match self.settings.variation {
            true => variation_budget(&self.store, &key, &self.machine)?,
            false => None,
        };
        let points = stored.curve.as_ref().map_or(0, |c| c.points().len());
        let known = entry.known.then(|| entry.alone.clone());
        let arrival = Arrival {
            profile: known.or(stored.curve),
            spinners: stored.spinners,
            active_wait: stored.active_wait,
            variation: budget,
            ..entry.arrival(id, entry.name.clone())
        };
        self.inner.plan_arrival(PlannedArrival {
            arrival,
            script: Arc::clone(&entry.script),
            at_ns,
            repeats: false,
        });
        self.programs[program].next = (id, points);
        Ok(())
    }

    /// Begins the measurement of the programs that have just arrived.
    fn begin_runs(&mut self) {
        let cores = self.cores(self.inner.online());
        let at_ns = self.inner.engine().now_ns();
        for (program, repeated) in self.programs.iter().enumerate() {
            let id = repeated.next.0;
            let Some(&arrival) = self.inner.present().get(&id) else {
                continue;
            };
            self.present.entry(id).or_insert_with(|| {
                let mut demand = DemandTrace::new(at_ns);
                demand.moved(cores);
                PresentRun {
                    program,
                    arrival,
                    demand,
                    read_ns: at_ns,
                    alive: 0,
                    varied: VariedTime::default(),
                    varied_work_ns: 0.0,
                    last_work_ns: 0.0,
                }
            });
        }
    }

    /// Handles the runs that have ended: updates the store, and plans the next runs.
    fn end_runs(&mut self) -> Result<(), StoreError> {
        let at_ns = self.inner.engine().now_ns();
        let present = self.inner.present();
        let ended = self
            .present
            .extract_if(.., |id, _| !present.contains_key(id));
        for (id, mut run) in ended.collect::<Vec<_>>() {
            let work_ns = self.inner.engine().work_ns(run.arrival);
            run.add_work(work_ns, self.varied.remove(&id).is_some());
            let program = run.program;
            self.complete(run, at_ns)?;
            let pause_ns = self.programs[program].random.rand_float() * PAUSE_NS_MAX;
            self.plan_run(program, at_ns + pause_ns as u64)?;
        }
        Ok(())
    }

    fn complete(&mut self, mut run: PresentRun, at_ns: u64) -> Result<(), StoreError> {
        run.varied.set(at_ns, None);
        let Some(&seconds) = self.inner.seconds()[run.arrival].first() else {
            return Ok(());
        };
        let program = &mut self.programs[run.program];
        program.completed.push(CompletedRun {
            seconds,
            points: program.next.1,
            varied_seconds: run.varied.seconds,
            varied_work: run.varied_work_ns / run.last_work_ns,
        });
        let script = &program.entry.script;
        let readable = script.threads() <= THREADS_MAX;
        if !readable {
            return Ok(());
        }
        let demand = run.demand.ended(seconds);
        let mut points = demand.points.iter().copied();
        let update = ProfileUpdate {
            key: key(&program.entry.name),
            name: program.entry.name.clone(),
            sample: points.next().map(ProfileSample::corrected),
            further: points.collect(),
            waits: WaitBehaviour {
                spinners: 0,
                active_wait: Some(script.adaptive_spin),
            },
            distrusts_bytes: false,
            run: demand.finished(seconds, &run.varied),
        };
        let at_s = (at_ns / 1_000_000_000) as i64;
        update.write(&mut self.store, &self.machine, at_s)
    }

    /// Adds readings of CPU time and waits, at most one per 200 ms for each program.
    fn read_demand(&mut self, at_ns: u64) {
        for (id, run) in &mut self.present {
            let Some(&program) = self.inner.present().get(id) else {
                continue;
            };
            if run.read_ns != at_ns && at_ns < run.read_ns + READINGS_NS_MIN {
                continue;
            }
            let (mut reading, alive) = self.inner.engine().demand(program);
            reading.is_complete = alive >= run.alive;
            run.demand.add(reading);
            (run.read_ns, run.alive) = (at_ns, alive);
        }
    }

    fn cores(&self, cpus: &CpuSet) -> f64 {
        self.inner.engine().machine().topology().capacity_of(cpus)
    }

    fn is_over(&self) -> bool {
        let engine = self.inner.engine();
        let is_done = |program: &RepeatedProgram| program.completed.len() >= self.settings.runs;
        self.failure.is_some()
            || engine.fault().is_some()
            || engine.now_ns() as f64 >= self.settings.seconds_max * 1e9
            || self.programs.iter().all(is_done)
    }

    fn finish(self) -> Result<Reruns, RerunError> {
        if let Some(failure) = self.failure {
            return Err(failure.into());
        }
        if let Some(fault) = self.inner.engine().fault() {
            return Err(fault.clone().into());
        }
        let mut programs = self.programs.iter();
        if let Some(late) = programs.find(|p| p.completed.len() < self.settings.runs) {
            let program = late.entry.name.clone();
            return Err(Fault::Starved { program }.into());
        }
        Ok(Reruns {
            events: self.inner.engine().events(),
            runs: self.programs.into_iter().map(|p| p.completed).collect(),
        })
    }
}

impl World for RerunWorld {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        let mut observation = self.inner.observe(failed);
        self.read_demand(observation.at_ns);
        for sample in &mut observation.programs {
            sample.progress = Some(Progress {
                total: sample.cpu_ns as f64,
                source: ProgressSource::CpuTime,
                confidence: ProgressSource::CpuTime.confidence(false),
            });
        }
        observation
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        self.inner.act(action)?;
        let cores = match action {
            Action::Seat { cpus, .. } => self.cores(cpus),
            _ => self.cores(self.inner.online()),
        };
        let Some(run) = self.present.get_mut(&action.program()) else {
            return Ok(());
        };
        match action {
            Action::Seat { .. } | Action::Release { .. } => run.demand.moved(cores),
            Action::Freeze { .. } => run.demand.interrupted(),
            Action::Thaw { .. } | Action::Demote { .. } => {}
        }
        Ok(())
    }

    fn decided(&mut self, observation: &Observation, decision: &Decision) {
        self.inner.decided(observation, decision);
        for (id, run) in &mut self.present {
            let work_ns = self.inner.engine().work_ns(run.arrival);
            run.add_work(work_ns, self.varied.contains_key(id));
        }
        if let Some(plan) = &decision.plan {
            self.varied.clone_from(&plan.varied);
        }
        for (id, run) in &mut self.present {
            let loss_rate = self.varied.get(id).copied();
            run.demand.set_varied(loss_rate.is_some());
            run.varied.set(observation.at_ns, loss_rate);
        }
    }

    fn wait(&mut self, at_most_ns: Option<u64>) -> bool {
        self.inner.wait(at_most_ns);
        if let Err(failure) = self.end_runs() {
            self.failure = Some(failure);
        }
        self.begin_runs();
        !self.is_over()
    }
}

/// Returns the key of a program in the store.
fn key(name: &str) -> ProgramKey {
    ProgramKey {
        executable: format!("sim:{name}"),
        arguments: String::new(),
    }
}
