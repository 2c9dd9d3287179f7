// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates fuzz cases: a seed determines the machine, the policy, the kernel, the programs and
//! the probability of each fault. The machines come from a list of fixed descriptions, so that a
//! seed gives the same case on each host. A run lasts 6 virtual seconds; at most nine programs
//! arrive in the first 5 seconds.
//!
//! A program has at most twice as many threads as the machine has cores. Probabilities are
//! fractions; the greatest probability of each fault is in function `faults`.

use std::fmt;
use std::sync::Arc;

use oorandom::Rand32;
use serde::{Deserialize, Serialize};
use usher_model::{Arrival, CpuSet, Curve, CurvePoint, ProfileMatch, ProgramId, Topology};
use usher_policy::baselines::{Lending, Pdpa, Utilisation};
use usher_policy::{Casas, Policy, by_name};

use crate::actuator::Backend;
use crate::kernel::{Kernel, QueueOrder};
use crate::script::{BarrierWait, Memory, Op, Script, ThreadKind};
use crate::world::PlannedArrival;

/// The machines of the fuzz cases, as one-line descriptions. In a quarter of the cases, the machine
/// lacks some of its CPUs, so that its domains are unequal.
pub const MACHINES: [&str; 6] = [
    "package:1 core:2 pu:1",
    "package:1 core:4 pu:2",
    "package:4 die:2 numa:1 core:6 pu:1",
    "package:2 numa:1 core:8 pu:2",
    "package:3 numa:1 core:5 pu:1",
    "package:1 core:1 pu:1",
];

/// Length of a run in virtual time.
pub const RUN_NS: u64 = 6_000_000_000;
/// Latest time of an arrival.
const LAST_ARRIVAL_MS: u32 = 5_000;

/// The policies of the fuzz cases. A name that occurs several times is drawn more often.
const POLICIES: [&str; 13] = [
    "usher",
    "usher",
    "usher",
    "usher",
    "usher",
    "usher",
    "casas",
    "casas",
    "equal",
    "linux",
    "pdpa",
    "utilisation",
    "lending",
];

/// The faults of a run, each with the probability that it is injected at an opportunity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultProbabilities {
    /// A program's sample is missing.
    pub sample_lost: f64,
    /// A program's sample is replaced by the previous one.
    pub sample_late: f64,
    /// The previous observation is returned again. New events are reported in the next observation.
    pub observation_stale: f64,
    /// An action fails without any effect.
    pub action_fails: f64,
    /// An action fails half-way: it has taken effect for some threads of the program, but not for
    /// all.
    pub action_partial: f64,
    /// An action succeeds but reports failure.
    pub false_failure: f64,
    /// The program dies during an action on it.
    pub program_dies: f64,
    /// A program's end is reported up to half a second late.
    pub departure_delayed: f64,
    /// CPUs go offline or come online.
    pub cpus_offline: f64,
    /// The control loop wakes up to 300 ms late.
    pub wakeup_late: f64,
    /// The daemon is killed between two iterations.
    pub daemon_killed: f64,
    /// The daemon is killed during an action, or between two actions of a decision.
    pub daemon_killed_acting: f64,
    /// When the daemon is killed, the keeper dies as well, at the same time or half-way through its
    /// undo.
    pub keeper_dies: f64,
}

/// A fuzz case, determined by its seed.
#[derive(Debug, Clone)]
pub struct FuzzCase {
    /// The seed.
    pub seed: u64,
    /// Name of the policy.
    pub policy: &'static str,
    /// The machine.
    pub topology: Topology,
    /// Kernel of the machine, which runs Usher's scheduler in one of four cases.
    pub kernel: Kernel,
    /// Mechanism by which programs get seats and are stopped.
    pub backend: Backend,
    /// The programs with their arrivals.
    pub arrivals: Vec<PlannedArrival>,
    /// Probabilities of the faults.
    pub faults: FaultProbabilities,
}

impl FuzzCase {
    /// Creates the case of a seed, on one of these machines.
    pub fn new(seed: u64, machines: &[Topology]) -> Self {
        let mut random = Rand32::new(seed);
        let policy = POLICIES[below(&mut random, POLICIES.len())];
        let topology = machine(&machines[below(&mut random, machines.len())], &mut random);
        let faults = faults(&mut random);
        let backend = match random.rand_range(0..2) {
            0 => Backend::Cgroups,
            _ => Backend::Threads,
        };
        let few = topology.cpus.len().min(8) as u32;
        let kernel = match seed % 4 {
            3 => Kernel::usher(),
            _ => Kernel::default(),
        };
        let count = 1 + random.rand_range(0..few.max(5) + 1);
        let arrivals = (1..=u64::from(count)).map(|id| planned(id, &topology, &mut random));
        Self {
            seed,
            policy,
            arrivals: arrivals.collect(),
            topology,
            kernel,
            backend,
            faults,
        }
    }

    /// Creates the case's policy.
    pub(super) fn policy(&self) -> Option<Box<dyn Policy + Send>> {
        policy(self.policy, &self.topology)
    }
}

/// Creates the policy of this name. The name may be that of a policy that only the simulator has.
pub fn policy(name: &str, topology: &Topology) -> Option<Box<dyn Policy + Send>> {
    let machine = || topology.clone();
    Some(match name {
        "pdpa" => Box::new(Pdpa::new(machine())),
        "utilisation" => Box::new(Utilisation::new(machine())),
        "lending" => Box::new(Lending::new(Casas::new(machine()), machine())),
        name => return by_name(name, topology),
    })
}

fn below(random: &mut Rand32, below: usize) -> usize {
    random.rand_range(0..below.max(1) as u32) as usize
}

/// Returns the machine; in one of four cases, some of its CPUs are left out.
fn machine(whole: &Topology, random: &mut Rand32) -> Topology {
    if random.rand_range(0..4) != 0 {
        return whole.clone();
    }
    let kept = random.rand_range(5..10);
    let all = whole.all_cpus();
    let kept_cpus = all.iter().filter(|_| random.rand_range(0..10) < kept);
    let kept_cpus: CpuSet = kept_cpus.collect();
    whole.restrict(&kept_cpus).unwrap_or_else(|_| whole.clone())
}

/// Draws the probabilities of faults. Each kind of fault is off in half of the cases, and all kinds
/// are off in one of six cases.
fn faults(random: &mut Rand32) -> FaultProbabilities {
    let quiet = random.rand_range(0..6) == 0;
    let mut chance = |most: f64| match random.rand_range(0..2) {
        _ if quiet => 0.0,
        0 => 0.0,
        _ => f64::from(random.rand_float()) * most,
    };
    FaultProbabilities {
        sample_lost: chance(0.2),
        sample_late: chance(0.2),
        observation_stale: chance(0.1),
        action_fails: chance(0.3),
        action_partial: chance(0.3),
        false_failure: chance(0.2),
        program_dies: chance(0.05),
        departure_delayed: chance(1.0),
        cpus_offline: chance(0.02),
        wakeup_late: chance(0.2),
        daemon_killed: chance(0.005),
        daemon_killed_acting: chance(0.05),
        keeper_dies: chance(1.0),
    }
}

fn planned(id: u64, topology: &Topology, random: &mut Rand32) -> PlannedArrival {
    let cores = topology.cores.len() as u32;
    let threads = 1 + random.rand_range(0..2 * cores);
    let wait = match random.rand_range(0..3) {
        0 => BarrierWait::Block,
        1 => BarrierWait::Spin,
        _ => BarrierWait::SpinThenBlock(u64::from(random.rand_range(0..100_000))),
    };
    let (roles, pools, queues) = shape(threads, random);
    let name = format!("p{id}");
    PlannedArrival {
        arrival: Arrival {
            id: ProgramId(id),
            name: name.clone(),
            weight: [1.0, 1.0, 2.5, 0.3][below(random, 4)],
            profile: profile(cores, threads, random),
            profile_match: ProfileMatch::Exact,
            spinners: [0, 0, 0, threads][below(random, 4)],
            active_wait: None,
            ran_before: random.rand_range(0..8) == 0,
            stops_unseen: random.rand_range(0..4) != 0,
            cpu_quota: None,
            cores: None,
            variation: None,
            llc_bytes: None,
            bandwidth_gbps: None,
            background: None,
            bound_to: bound(topology, random),
            pinned_to: None,
        },
        script: Arc::new(Script {
            name,
            roles,
            pools,
            queues,
            wait,
            adaptive_spin: random.rand_range(0..3) == 0,
            memory: Memory {
                stall: 0.5 * f64::from(random.rand_float()),
                gbps: 2.0 * f64::from(random.rand_float()),
                ..Memory::default()
            },
        }),
        at_ns: match random.rand_range(0..3) {
            0 => 0,
            _ => u64::from(random.rand_range(0..LAST_ARRIVAL_MS)) * 1_000_000,
        },
        repeats: random.rand_range(0..4) != 0,
    }
}

/// Returns the CPUs to which a program binds itself: for some programs, a random subset of the
/// CPUs.
fn bound(topology: &Topology, random: &mut Rand32) -> Option<CpuSet> {
    if random.rand_range(0..8) != 0 {
        return None;
    }
    let share = random.rand_range(1..10);
    let cpus = topology.all_cpus();
    let cpus: CpuSet = cpus
        .iter()
        .filter(|_| random.rand_range(0..10) < share)
        .collect();
    (!cpus.is_empty()).then_some(cpus)
}

type ScriptShape = (Vec<ThreadKind>, Vec<u32>, Vec<u32>);

/// Draws the thread structure of a program and the steps of its threads: phases with barriers, a
/// pool of items, a pipeline, or independent threads with a lock.
fn shape(threads: u32, random: &mut Rand32) -> ScriptShape {
    let ns = 1e6 * f64::from(1 + random.rand_range(0..20));
    let spread = match random.rand_range(0..2) {
        0 => 0.0,
        _ => f64::from(random.rand_float()),
    };
    let times = 1 + random.rand_range(0..100);
    let sleep = Op::Sleep {
        ns: 1_000_000 * u64::from(random.rand_range(0..30)),
    };
    let serial = Op::Serial {
        ns: 1e6 * f64::from(random.rand_range(0..10)),
    };
    let work = Op::Work { ns, spread };
    let again = Op::Loop { to: 0, times };
    match random.rand_range(0..6) {
        0 => {
            let items = Op::Items {
                pool: 0,
                ns: ns / 4.0,
                spread,
            };
            let steps = vec![serial, Op::Barrier(0), items, Op::Barrier(1), sleep, again];
            (
                vec![ThreadKind { threads, steps }],
                vec![threads * 4],
                vec![],
            )
        }
        1 if threads > 1 => {
            let first = ThreadKind {
                threads: threads.div_ceil(4),
                steps: vec![work.clone(), Op::Put(0), sleep, again],
            };
            // The consumers repeat their steps until the queue is closed.
            let again = Op::Loop {
                to: 0,
                times: u32::MAX,
            };
            let second = ThreadKind {
                threads: threads - first.threads,
                steps: vec![Op::Take(0), work, again],
            };
            (vec![first, second], vec![], vec![1 + threads / 2])
        }
        2 => {
            let locked = Op::Work {
                ns: ns / 50.0,
                spread,
            };
            let steps = vec![work, Op::Lock(0), locked, Op::Unlock(0), sleep, again];
            (vec![ThreadKind { threads, steps }], vec![], vec![])
        }
        _ => {
            let steps = vec![serial, Op::Barrier(0), work, Op::Barrier(1), sleep, again];
            (vec![ThreadKind { threads, steps }], vec![], vec![])
        }
    }
}

/// Draws the program's profile, which may be wrong or missing.
fn profile(cores: u32, threads: u32, random: &mut Rand32) -> Option<Curve> {
    let scales = match random.rand_range(0..6) {
        // A profile that wrongly shows a slowdown with more cores.
        0 => -0.3 * f64::from(random.rand_float()),
        _ => 0.2 + 0.8 * f64::from(random.rand_float()),
    };
    // In some profiles, the rate collapses on fewer cores than the machine has, as with spinning
    // threads.
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
    match random.rand_range(0..3) {
        0 => None,
        _ => Curve::new((1..=cores).map(point).collect()).ok(),
    }
}

impl fmt::Display for FuzzCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topology = &self.topology;
        writeln!(
            f,
            "seed {}: policy {}, seats set by {}, kernel scheduler {}",
            self.seed,
            self.policy,
            by(self.backend),
            under(self.kernel.order)
        )?;
        writeln!(
            f,
            "  machine   {} cores in {} domains, CPUs {}",
            topology.cores.len(),
            topology.domains.len(),
            topology.all_cpus()
        )?;
        for planned in &self.arrivals {
            writeln!(f, "  {}", one_line(planned))?;
        }
        let faults = serde_json::to_value(self.faults).map_err(|_| fmt::Error)?;
        let on: Vec<String> = (faults.as_object().into_iter().flatten())
            .filter(|(_, chance)| chance.as_f64() != Some(0.0))
            .map(|(name, chance)| format!("{name} {:.3}", chance.as_f64().unwrap_or(0.0)))
            .collect();
        let on = match on.is_empty() {
            true => "none".to_owned(),
            false => on.join(", "),
        };
        write!(f, "  faults    {on}")
    }
}

fn by(backend: Backend) -> &'static str {
    match backend {
        Backend::Cgroups => "cpusets of cgroups",
        Backend::Threads => "affinities of threads",
    }
}

fn under(order: QueueOrder) -> &'static str {
    match order {
        QueueOrder::Eevdf => "EEVDF",
        QueueOrder::Cfs => "CFS",
        QueueOrder::Usher => "usher sched",
    }
}

fn waiting(wait: BarrierWait) -> String {
    match wait {
        BarrierWait::Block => "block while they wait".to_owned(),
        BarrierWait::Spin => "spin while they wait".to_owned(),
        BarrierWait::SpinThenBlock(ns) => format!("spin for {} µs, then block", ns / 1000),
    }
}

fn one_line(planned: &PlannedArrival) -> String {
    let (arrival, script) = (&planned.arrival, &planned.script);
    let mut text = format!(
        "program {:<2} arrives at {:.3} s, {} threads that {}",
        arrival.id.0,
        planned.at_ns as f64 / 1e9,
        script.threads(),
        waiting(script.wait)
    );
    let traits = [
        (planned.repeats, "repeats".to_owned()),
        (arrival.weight != 1.0, format!("weight {}", arrival.weight)),
        (
            arrival.profile.is_some(),
            "its profile is stored".to_owned(),
        ),
        (script.adaptive_spin, "adaptive spin".to_owned()),
        (arrival.ran_before, "ran before".to_owned()),
        (!arrival.stops_unseen, "its parent notices stops".to_owned()),
    ];
    for (_, what) in traits.iter().filter(|(is, _)| *is) {
        text = format!("{text}, {what}");
    }
    match &arrival.bound_to {
        Some(cpus) => format!("{text}, bound to the CPUs {cpus}"),
        None => text,
    }
}
