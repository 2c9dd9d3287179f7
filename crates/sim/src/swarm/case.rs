// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a seed makes: machine, policy, programs, and which faults are on.

use std::fmt;
use std::sync::Arc;

use oorandom::Rand32;
use serde::{Deserialize, Serialize};
use usher_model::{Arrival, CpuSet, Curve, CurvePoint, ProgramId, Topology};
use usher_policy::baselines::{Lending, Pdpa, Utilisation};
use usher_policy::{Casas, Policy, by_name};

use crate::hands::Backend;
use crate::kernel::Kernel;
use crate::script::{Memory, Op, Role, Script, Wait};
use crate::turns::Order;
use crate::world::Guest;

/// The machines that cases are drawn from, as one-line descriptions: a seed
/// means the same wherever it is run on these. Some cases leave some CPUs out,
/// so that domains are unequal.
pub const MACHINES: [&str; 6] = [
    "package:1 core:2 pu:1",
    "package:1 core:4 pu:2",
    "package:4 die:2 numa:1 core:6 pu:1",
    "package:2 numa:1 core:8 pu:2",
    "package:3 numa:1 core:5 pu:1",
    "package:1 core:1 pu:1",
];

/// Virtual length of a run.
pub const RUN_NS: u64 = 6_000_000_000;
/// Nobody arrives in the last part of it.
const LAST_ARRIVAL_MS: u32 = 5_000;

/// The policies, as often as they are to come up.
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

/// What may go wrong in a run, each with its chance at every occasion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Faults {
    /// A program's sample is missing.
    pub lost: f64,
    /// A program's sample is that of the last look.
    pub late: f64,
    /// The whole look is the last one; what has happened is told at the next.
    pub stale: f64,
    /// An action fails and nothing was done.
    pub fails: f64,
    /// An action fails half-way: some threads have their seat or are stopped,
    /// the others not.
    pub half: f64,
    /// An action happens and is said to have failed.
    pub denied: f64,
    /// The program dies as it is acted upon, or half-way through that.
    pub dies: f64,
    /// That a program has gone is told up to half a second too late.
    pub unnoticed: f64,
    /// CPUs go off line, or come back.
    pub offline: f64,
    /// The loop wakes up to 300 ms too late.
    pub sleepy: f64,
    /// The daemon is killed between two looks.
    pub killed: f64,
    /// The daemon is killed in an action, or between two of one decision.
    pub killed_acting: f64,
    /// Of these deaths, those in which the keeper dies too, with the daemon or
    /// half-way through the undoing.
    pub keeper_dies: f64,
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
    /// Its kernel: in one case of four under Usher's scheduler.
    pub kernel: Kernel,
    /// How programs are narrowed and stopped.
    pub backend: Backend,
    /// Who comes.
    pub guests: Vec<Guest>,
    /// What goes wrong.
    pub faults: Faults,
}

impl Case {
    /// The case of a seed on one of these machines.
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
        let guests = (1..=u64::from(count)).map(|id| guest(id, &topology, &mut random));
        Self {
            seed,
            policy,
            guests: guests.collect(),
            topology,
            kernel,
            backend,
            faults,
        }
    }

    /// The policy of that name, those to compare with included.
    pub(super) fn policy(&self) -> Option<Box<dyn Policy + Send>> {
        policy(self.policy, &self.topology)
    }
}

/// The policy of that name, those to compare with included.
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

/// The machine, in one case of four without some of its CPUs.
fn machine(whole: &Topology, random: &mut Rand32) -> Topology {
    if random.rand_range(0..4) != 0 {
        return whole.clone();
    }
    let kept = random.rand_range(5..10);
    let all = whole.all_cpus();
    let stays = all.iter().filter(|_| random.rand_range(0..10) < kept);
    let stays: CpuSet = stays.collect();
    whole.restrict(&stays).unwrap_or_else(|_| whole.clone())
}

/// Each kind of fault is off in half of the cases, and all are in one of six.
fn faults(random: &mut Rand32) -> Faults {
    let quiet = random.rand_range(0..6) == 0;
    let mut chance = |most: f64| match random.rand_range(0..2) {
        _ if quiet => 0.0,
        0 => 0.0,
        _ => f64::from(random.rand_float()) * most,
    };
    Faults {
        lost: chance(0.2),
        late: chance(0.2),
        stale: chance(0.1),
        fails: chance(0.3),
        half: chance(0.3),
        denied: chance(0.2),
        dies: chance(0.05),
        unnoticed: chance(1.0),
        offline: chance(0.02),
        sleepy: chance(0.2),
        killed: chance(0.005),
        killed_acting: chance(0.05),
        keeper_dies: chance(1.0),
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
    let (roles, pools, queues) = shape(threads, random);
    let name = format!("p{id}");
    Guest {
        arrival: Arrival {
            id: ProgramId(id),
            name: name.clone(),
            weight: [1.0, 1.0, 2.5, 0.3][below(random, 4)],
            profile: profile(cores, threads, random),
            spinners: [0, 0, 0, threads][below(random, 4)],
            active_wait: None,
            ran_before: random.rand_range(0..8) == 0,
            stops_unseen: random.rand_range(0..4) != 0,
            cpu_quota: None,
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
            settles: random.rand_range(0..3) == 0,
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

/// Some bind themselves to a few CPUs, or to all but a few.
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

type Shape = (Vec<Role>, Vec<u32>, Vec<u32>);

/// What the threads do: phases between barriers, a pool of tasks, a pipeline,
/// or each on its own with a lock.
fn shape(threads: u32, random: &mut Rand32) -> Shape {
    let ns = 1e6 * f64::from(1 + random.rand_range(0..20));
    let spread = match random.rand_range(0..2) {
        0 => 0.0,
        _ => f64::from(random.rand_float()),
    };
    let times = 1 + random.rand_range(0..100);
    let nap = Op::Sleep {
        ns: 1_000_000 * u64::from(random.rand_range(0..30)),
    };
    let serial = Op::Serial {
        ns: 1e6 * f64::from(random.rand_range(0..10)),
    };
    let work = Op::Work { ns, spread };
    let again = Op::Again { to: 0, times };
    match random.rand_range(0..6) {
        0 => {
            let items = Op::Items {
                pool: 0,
                ns: ns / 4.0,
                spread,
            };
            let steps = vec![serial, Op::Barrier(0), items, Op::Barrier(1), nap, again];
            (vec![Role { threads, steps }], vec![threads * 4], vec![])
        }
        1 if threads > 1 => {
            let first = Role {
                threads: threads.div_ceil(4),
                steps: vec![work.clone(), Op::Put(0), nap, again],
            };
            // Takes until nobody puts any more in.
            let again = Op::Again {
                to: 0,
                times: u32::MAX,
            };
            let second = Role {
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
            let steps = vec![work, Op::Lock(0), locked, Op::Unlock(0), nap, again];
            (vec![Role { threads, steps }], vec![], vec![])
        }
        _ => {
            let steps = vec![serial, Op::Barrier(0), work, Op::Barrier(1), nap, again];
            (vec![Role { threads, steps }], vec![], vec![])
        }
    }
}

/// What an earlier run may have taught of a program, rightly or wrongly.
fn profile(cores: u32, threads: u32, random: &mut Rand32) -> Option<Curve> {
    let scales = match random.rand_range(0..6) {
        // It is believed to become slower with more cores.
        0 => -0.3 * f64::from(random.rand_float()),
        _ => 0.2 + 0.8 * f64::from(random.rand_float()),
    };
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
    match random.rand_range(0..3) {
        0 => None,
        _ => Curve::new((1..=cores).map(point).collect()).ok(),
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topology = &self.topology;
        writeln!(
            f,
            "seed {}: policy {}, by {}, under {}",
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
        for guest in &self.guests {
            writeln!(f, "  {}", one_line(guest))?;
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

fn under(order: Order) -> &'static str {
    match order {
        Order::Eevdf => "EEVDF",
        Order::Cfs => "CFS",
        Order::Usher => "usher sched",
    }
}

fn waiting(wait: Wait) -> String {
    match wait {
        Wait::Block => "sleep while they wait".to_owned(),
        Wait::Spin => "spin while they wait".to_owned(),
        Wait::SpinThenBlock(ns) => format!("spin for {} µs, then sleep", ns / 1000),
    }
}

fn one_line(guest: &Guest) -> String {
    let (arrival, script) = (&guest.arrival, &guest.script);
    let mut text = format!(
        "program {:<2} from {:.3} s, {} threads that {}",
        arrival.id.0,
        guest.at_ns as f64 / 1e9,
        script.threads(),
        waiting(script.wait)
    );
    let traits = [
        (guest.repeats, "repeats".to_owned()),
        (arrival.weight != 1.0, format!("weight {}", arrival.weight)),
        (arrival.profile.is_some(), "has a profile".to_owned()),
        (script.settles, "settles".to_owned()),
        (arrival.ran_before, "ran before".to_owned()),
        (!arrival.stops_unseen, "stops are seen".to_owned()),
    ];
    for (_, what) in traits.iter().filter(|(is, _)| *is) {
        text = format!("{text}, {what}");
    }
    match &arrival.bound_to {
        Some(cpus) => format!("{text}, bound to {cpus}"),
        None => text,
    }
}
