// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deterministic simulation testing: from one seed come a machine, programs,
//! a policy and what goes wrong; independent checks watch what the loop does.
//!
//! *Swarm testing* (Groce and others, ISSTA 2012): each seed switches some kinds
//! of faults on and the others off, so that rare combinations come up. Faults
//! come in through the traits of the loop: the policy that runs is the one that
//! ships, and knows nothing of this.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oorandom::Rand32;
use serde::{Deserialize, Serialize};
use usher_control::{Loop, World};
use usher_model::{
    Action, Arrival, CpuSet, Curve, CurvePoint, Decision, FailedAction, Mode, Observation, Plan,
    ProgramId, ProgramSample, Topology,
};
use usher_policy::{Policy, by_name};

use crate::engine::Engine;
use crate::kernel::Kernel;
use crate::machine::{Costs, Machine};
use crate::script::{Memory, Op, Role, Script, Wait};
use crate::world::{Guest, SimWorld, Until};

/// The machines that cases are drawn from, as one-line descriptions: a seed
/// means the same wherever it is run on these.
pub const MACHINES: [&str; 4] = [
    "package:1 core:2 pu:1",
    "package:1 core:4 pu:2",
    "package:4 die:2 numa:1 core:6 pu:1",
    "package:2 numa:1 core:8 pu:2",
];

/// Virtual length of a run.
const RUN_NS: u64 = 6_000_000_000;
/// Nobody may be stopped by `usher` for longer: three others' turns, and a
/// second for an observation that is lost or a loop that is late.
const STOPPED_NS_MAX: u64 = 1_500_000_000;
/// A program that could run has CPU time within so long.
const STARVED_NS_MAX: u64 = 2_000_000_000;

/// What may go wrong in a run, each with its chance at every occasion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Faults {
    /// A program's sample is missing.
    pub lost: f64,
    /// A program's sample is that of the last look.
    pub late: f64,
    /// An action fails.
    pub fails: f64,
    /// An action happens and is said to have failed.
    pub half: f64,
    /// The program dies as it is acted upon.
    pub dies: f64,
    /// CPUs go off line, or come back.
    pub offline: f64,
    /// The loop wakes up to 300 ms too late.
    pub sleepy: f64,
    /// The daemon is killed, the keeper undoes everything, another one starts
    /// and takes the programs in as they run.
    pub killed: f64,
}

/// What a seed makes.
#[derive(Debug, Clone)]
pub struct Case {
    /// The seed.
    pub seed: u64,
    /// The policy's name.
    pub policy: &'static str,
    /// The machine.
    pub topology: Topology,
    /// Who comes.
    pub guests: Vec<Guest>,
    /// What goes wrong.
    pub faults: Faults,
}

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, {policy}, at {at_ns} ns: {what}")]
pub struct Broken {
    /// The seed that shows it again.
    pub seed: u64,
    /// The policy.
    pub policy: &'static str,
    /// When.
    pub at_ns: u64,
    /// What.
    pub what: String,
}

impl Case {
    /// The case of a seed on one of these machines.
    pub fn new(seed: u64, machines: &[Topology]) -> Self {
        let mut random = Rand32::new(seed);
        let pick = |random: &mut Rand32, below: usize| random.rand_range(0..below.max(1) as u32);
        let policies = ["usher", "usher", "casas", "equal"];
        let policy = policies[pick(&mut random, policies.len()) as usize];
        let topology = machines[pick(&mut random, machines.len()) as usize].clone();
        let mut chance = |most: f64| match random.rand_range(0..2) {
            0 => 0.0,
            _ => f64::from(random.rand_float()) * most,
        };
        let faults = Faults {
            lost: chance(0.2),
            late: chance(0.2),
            fails: chance(0.3),
            half: chance(0.3),
            dies: chance(0.05),
            offline: chance(0.02),
            sleepy: chance(0.2),
            killed: chance(0.005),
        };
        let count = 1 + pick(&mut random, 6) as u64;
        let guests = (1..=count)
            .map(|id| guest(id, &topology, &mut random))
            .collect();
        Self {
            seed,
            policy,
            topology,
            guests,
            faults,
        }
    }

    /// Runs it and checks.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn run(&self) -> Result<(), Broken> {
        let machine = Machine::new(self.topology.clone(), Costs::default());
        let engine = Engine::new(machine, Kernel::default(), self.seed);
        let until = Until {
            repetitions: usize::MAX,
            at_ns: RUN_NS,
        };
        let world = Faulty {
            inner: SimWorld::new(engine, self.guests.clone(), until),
            faults: self.faults,
            random: Rand32::new(self.seed ^ 0x5eed),
            last: BTreeMap::new(),
            plan: Plan::default(),
            checks: Checks::default(),
            policy: self.policy,
            restart: false,
            all: self.topology.all_cpus(),
        };
        let mut world = world;
        loop {
            let Some(policy) = by_name(self.policy, &self.topology) else {
                return Err(self.broken(0, format!("no policy '{}'", self.policy)));
            };
            let policy: Box<dyn Policy> = policy;
            let mut control = Loop::new(policy, world);
            control.run();
            (_, world) = control.into_parts();
            if let Some(what) = world.checks.broken.take() {
                return Err(self.broken(world.inner.engine().now_ns(), what));
            }
            if !std::mem::take(&mut world.restart) {
                return Ok(());
            }
            world.begin_again();
        }
    }

    fn broken(&self, at_ns: u64, what: String) -> Broken {
        Broken {
            seed: self.seed,
            policy: self.policy,
            at_ns,
            what,
        }
    }
}

fn guest(id: u64, topology: &Topology, random: &mut Rand32) -> Guest {
    let cores = topology.cores.len() as u32;
    let threads = 1 + random.rand_range(0..2 * cores);
    let wait = match random.rand_range(0..3) {
        0 => Wait::Block,
        1 => Wait::Spin,
        _ => Wait::SpinThenBlock(u64::from(random.rand_range(0..100_000))),
    };
    let milliseconds = f64::from(1 + random.rand_range(0..20));
    let steps = vec![
        Op::Serial {
            ns: 1e6 * f64::from(random.rand_range(0..10)),
        },
        Op::Barrier(0),
        Op::Work {
            ns: 1e6 * milliseconds,
            spread: f64::from(random.rand_float()),
        },
        Op::Barrier(1),
        Op::Sleep {
            ns: 1_000_000 * u64::from(random.rand_range(0..30)),
        },
        Op::Again {
            to: 0,
            times: 1 + random.rand_range(0..100),
        },
    ];
    let settles = random.rand_range(0..3) == 0;
    let profile = profile(cores, threads, random);
    Guest {
        arrival: Arrival {
            id: ProgramId(id),
            name: format!("p{id}"),
            weight: [1.0, 1.0, 2.5][random.rand_range(0..3) as usize],
            profile,
            spinners: 0,
            active_wait: None,
            ran_before: false,
            stops_unseen: true,
            llc_bytes: None,
            bandwidth_gbps: None,
            bound_to: None,
        },
        script: Arc::new(Script {
            name: format!("p{id}"),
            roles: vec![Role { threads, steps }],
            pools: vec![],
            queues: vec![],
            wait,
            settles,
            memory: Memory {
                stall: 0.5 * f64::from(random.rand_float()),
                gbps: 2.0 * f64::from(random.rand_float()),
                ..Memory::default()
            },
        }),
        at_ns: u64::from(random.rand_range(0..3_000)) * 1_000_000,
        repeats: random.rand_range(0..4) != 0,
    }
}

/// What an earlier run may have taught of a program.
fn profile(cores: u32, threads: u32, random: &mut Rand32) -> Option<Curve> {
    let scales = 0.2 + 0.8 * f64::from(random.rand_float());
    // Some collapse below all cores, as those do whose threads spin.
    let needs_all = random.rand_range(0..3) == 0;
    let point = |n: u32| CurvePoint {
        cores: f64::from(n),
        rate: match needs_all && n < cores {
            true => 0.1 * f64::from(n),
            false => f64::from(n).powf(scales),
        },
        relative_error: 0.02,
        busy_cpus: Some(f64::from(n.min(threads)) * 0.95),
    };
    match random.rand_range(0..2) {
        0 => None,
        _ => Curve::new((1..=cores).map(point).collect()).ok(),
    }
}

/// A simulated world in which things go wrong.
#[derive(Debug)]
struct Faulty {
    inner: SimWorld,
    faults: Faults,
    random: Rand32,
    last: BTreeMap<ProgramId, ProgramSample>,
    plan: Plan,
    checks: Checks,
    policy: &'static str,
    restart: bool,
    all: CpuSet,
}

impl Faulty {
    fn happens(&mut self, chance: f64) -> bool {
        chance > 0.0 && f64::from(self.random.rand_float()) < chance
    }

    /// What the keeper does when the daemon has been killed, and what the next
    /// daemon finds.
    fn begin_again(&mut self) {
        self.plan = Plan::default();
        self.last.clear();
        self.inner.undo_all();
    }
}

impl World for Faulty {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        let mut observation = self.inner.observe(failed);
        let truth = observation.programs.clone();
        self.checks.look(self.policy, &self.inner, &truth);
        let (lost, late) = (self.faults.lost, self.faults.late);
        let mut told = Vec::new();
        for sample in observation.programs {
            if self.happens(lost) {
                continue;
            }
            let old = self.last.get(&sample.id).cloned();
            told.push(match old.filter(|_| self.happens(late)) {
                Some(old) => old,
                None => sample,
            });
        }
        self.last = truth
            .into_iter()
            .map(|sample| (sample.id, sample))
            .collect();
        observation.programs = told;
        observation
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        if self.happens(self.faults.dies) {
            self.inner.kill(action.program());
        }
        if self.happens(self.faults.fails) {
            return Err("it fails".to_owned());
        }
        let done = self.inner.act(action);
        if self.happens(self.faults.half) {
            return Err("it is said to fail".to_owned());
        }
        done
    }

    fn decided(&mut self, observation: &Observation, decision: &Decision) {
        self.inner.decided(observation, decision);
        if let Some(plan) = &decision.plan {
            self.plan = plan.clone();
        }
        self.checks.plan(&self.plan, &observation.usable);
    }

    fn wait(&mut self, at_most_ns: Option<u64>) -> bool {
        if self.checks.broken.is_some() {
            return false;
        }
        if self.happens(self.faults.killed) {
            self.restart = true;
            return false;
        }
        if self.happens(self.faults.offline) {
            let keep = |random: &mut Rand32| random.rand_range(0..4) != 0;
            let kept: Vec<u32> = self.all.iter().collect();
            let kept = kept.into_iter().filter(|_| keep(&mut self.random));
            let mut online: CpuSet = kept.collect();
            if online.is_empty() {
                online = self.all.clone();
            }
            self.inner.set_online(online);
        }
        let late_ns = match self.happens(self.faults.sleepy) {
            true => u64::from(self.random.rand_range(0..300)) * 1_000_000,
            false => 0,
        };
        self.inner.wait(at_most_ns.map(|ns| ns + late_ns))
    }
}

/// What must hold whatever goes wrong.
#[derive(Debug, Default)]
struct Checks {
    broken: Option<String>,
    /// Since when a program has been stopped, and since when it has had no CPU
    /// time although it could use some, with the CPU time that it had then.
    stopped: BTreeMap<ProgramId, u64>,
    starved: BTreeMap<ProgramId, (u64, u64)>,
}

impl Checks {
    fn fail(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// Seats in a plan are disjoint, on CPUs that are there, and nobody's is
    /// empty; what is lent is somebody's own or nobody's.
    fn plan(&mut self, plan: &Plan, usable: &CpuSet) {
        let mut taken = CpuSet::new();
        let mut pens: BTreeSet<CpuSet> = BTreeSet::new();
        for seat in &plan.seats {
            if seat.cpus.is_empty() {
                self.fail(format!("program {} has an empty seat", seat.program));
            }
            if seat.mode == Mode::Seated {
                if seat.cpus.intersects(&taken) {
                    let both = seat.cpus.and(&taken);
                    self.fail(format!("{both} are in two seats"));
                }
                taken = taken.or(&seat.cpus);
            } else {
                pens.insert(seat.cpus.clone());
            }
        }
        for loan in &plan.loans {
            let owner = plan
                .seats
                .iter()
                .find(|seat| Some(seat.program) == loan.owner);
            let lender = match owner {
                Some(seat) => seat.cpus.clone(),
                None => usable.minus(&taken),
            };
            if loan.owner.is_some() && owner.is_none() {
                self.fail(format!(
                    "{} is lent by a program that is not there",
                    loan.cpus
                ));
            } else if !loan.cpus.and(usable).is_subset(&lender) {
                self.fail(format!("{} is lent out of {lender}", loan.cpus));
            }
            if loan.owner == Some(loan.borrower) {
                self.fail(format!("program {} borrows from itself", loan.borrower));
            }
        }
    }

    /// Nobody is stopped for long (`usher`; the others stop for trials), and
    /// nobody who could run goes without.
    fn look(&mut self, policy: &str, world: &SimWorld, programs: &[ProgramSample]) {
        let now_ns = world.engine().now_ns();
        let here: BTreeSet<ProgramId> = programs.iter().map(|sample| sample.id).collect();
        self.stopped.retain(|id, _| here.contains(id));
        self.starved.retain(|id, _| here.contains(id));
        for sample in programs {
            if world.is_frozen(sample.id) {
                let since_ns = *self.stopped.entry(sample.id).or_insert(now_ns);
                if policy == "usher" && now_ns - since_ns > STOPPED_NS_MAX {
                    let seconds = (now_ns - since_ns) as f64 / 1e9;
                    self.fail(format!("program {} stands for {seconds} s", sample.id));
                }
                self.starved.remove(&sample.id);
                continue;
            }
            self.stopped.remove(&sample.id);
            let since = *self
                .starved
                .entry(sample.id)
                .or_insert((now_ns, sample.cpu_ns));
            if sample.cpu_ns > since.1 || !world.could_run(sample.id) {
                self.starved.insert(sample.id, (now_ns, sample.cpu_ns));
            } else if now_ns - since.0 > STARVED_NS_MAX {
                let seconds = (now_ns - since.0) as f64 / 1e9;
                self.fail(format!("program {} starves for {seconds} s", sample.id));
            }
        }
    }
}
