// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fluid model of a machine for policies that run in a loop. A CPU is shared evenly by the
//! programs that may use it, and the speed of a program is the value of its true curve at the CPU
//! time that it gets. The model uses no production code except the value types.

use std::collections::BTreeMap;

use usher_model::*;
use usher_policy::Policy;

/// A machine of equal domains with one hardware thread per core.
pub fn machine(domains: usize, cores_each: usize) -> Topology {
    let cpus_of =
        |d: usize| CpuSet::range((d * cores_each) as u32, ((d + 1) * cores_each - 1) as u32);
    Topology {
        name: format!("{domains} x {cores_each}"),
        cpus: (0..domains * cores_each)
            .map(|c| Cpu {
                os: c as u32,
                core: c,
            })
            .collect(),
        cores: (0..domains * cores_each)
            .map(|c| Core {
                cpus: CpuSet::single(c as u32),
                domain: c / cores_each,
                capacity: 1.0,
            })
            .collect(),
        domains: (0..domains)
            .map(|d| Domain {
                cpus: cpus_of(d),
                cores: (d * cores_each..(d + 1) * cores_each).collect(),
                package: d,
                nodes: vec![d],
                llc: None,
            })
            .collect(),
        packages: (0..domains)
            .map(|d| Package {
                cpus: cpus_of(d),
                domains: vec![d],
                model: None,
                dies: vec![cpus_of(d)],
            })
            .collect(),
        nodes: (0..domains)
            .map(|d| NumaNode {
                os: d as u32,
                cpus: cpus_of(d),
                bytes: 0,
            })
            .collect(),
    }
}

/// A program's true behaviour.
#[derive(Clone)]
pub struct TrueProgram {
    pub program: Program,
    /// Progress per second as a function of cores.
    pub speed: fn(f64) -> f64,
    /// CPUs that the program can keep busy now.
    pub demand: f64,
    pub source: Option<ProgressSource>,
    pub confidence: f64,
    pub active_wait: Option<bool>,
    /// Whether the kernel reports how long the program waits for CPUs.
    pub pressure: bool,
}

pub fn truth(id: u64, speed: fn(f64) -> f64, demand: f64) -> TrueProgram {
    let program = Program {
        id: ProgramId(id),
        name: format!("p{id}"),
        weight: 1.0,
        profile: None,
        profile_match: ProfileMatch::Exact,
        spinners: 0,
        active_wait: None,
        ran_before: false,
        stops_unseen: true,
        cores: None,
        cpu_quota: None,
        variation: None,
        llc_bytes: None,
        bandwidth_gbps: None,
        background: None,
        bound_to: None,
        pinned_to: None,
    };
    TrueProgram {
        program,
        speed,
        demand,
        source: Some(ProgressSource::Heartbeat),
        confidence: 1.0,
        active_wait: Some(false),
        pressure: true,
    }
}

/// Adds the profile that a store would hold of this program.
pub fn profiled(mut truth: TrueProgram, cores_max: u32) -> TrueProgram {
    let rates = (1..=cores_max)
        .map(|n| (n, (truth.speed)(f64::from(n))))
        .collect();
    truth.program.profile = Some(Curve::from_rates(&rates).unwrap());
    truth.source = Some(ProgressSource::CpuTime);
    truth
}

pub struct World {
    pub at_ns: u64,
    pub usable: CpuSet,
    programs: BTreeMap<ProgramId, RunningProgram>,
    events: Vec<Event>,
    /// Number of following actions that fail.
    pub refuses: u32,
    failed: Vec<FailedAction>,
    /// Decisions that are not empty, with their times.
    pub log: Vec<(u64, Decision)>,
}

struct RunningProgram {
    truth: TrueProgram,
    mask: Option<CpuSet>,
    frozen: bool,
    cpu_ns: f64,
    wait_ns: f64,
    total: f64,
}

impl World {
    pub fn new(topology: &Topology) -> Self {
        Self {
            at_ns: 1,
            usable: topology.all_cpus(),
            programs: BTreeMap::new(),
            events: vec![],
            refuses: 0,
            failed: vec![],
            log: vec![],
        }
    }

    /// Sets the CPU quota of a program's cgroups.
    pub fn limit(&mut self, id: u64, cpu_quota: Option<f64>) {
        let program = ProgramId(id);
        self.events.push(Event::Limited {
            program,
            cpu_quota,
            pinned_to: None,
            bound_to: None,
        });
    }

    /// Pins threads of a program to the given CPUs; `None` ends the pinning.
    pub fn pin(&mut self, id: u64, cpus: Option<&str>) {
        self.events.push(Event::Limited {
            program: ProgramId(id),
            cpu_quota: None,
            pinned_to: cpus.map(|cpus| cpus.parse().unwrap()),
            bound_to: None,
        });
    }

    /// Binds a program to the given CPUs.
    pub fn bind(&mut self, id: u64, cpus: &str) {
        self.events.push(Event::Limited {
            program: ProgramId(id),
            cpu_quota: None,
            pinned_to: None,
            bound_to: Some(cpus.parse().unwrap()),
        });
    }

    pub fn arrive(&mut self, truth: TrueProgram) {
        self.events
            .push(Event::Arrived(Box::new(truth.program.clone())));
        let living = RunningProgram {
            truth,
            mask: None,
            frozen: false,
            cpu_ns: 0.0,
            wait_ns: 0.0,
            total: 0.0,
        };
        self.programs.insert(living.truth.program.id, living);
    }

    pub fn depart(&mut self, id: u64) {
        if self.programs.remove(&ProgramId(id)).is_some() {
            self.events.push(Event::Departed(ProgramId(id)));
        }
    }

    /// Reports that the program completed a repetition.
    pub fn repeated(&mut self, id: u64, seconds: f64) {
        let program = ProgramId(id);
        self.events.push(Event::Repeated { program, seconds });
    }

    /// Forbids seats for a reason, or allows them.
    pub fn forbid_seats(&mut self, reason: Option<&str>) {
        let forbidden = reason.map(str::to_owned);
        self.events.push(Event::Seating { forbidden });
    }

    pub fn set_demand(&mut self, id: u64, demand: f64) {
        if let Some(living) = self.programs.get_mut(&ProgramId(id)) {
            living.truth.demand = demand;
        }
    }

    pub fn set_speed(&mut self, id: u64, speed: fn(f64) -> f64) {
        self.programs.get_mut(&ProgramId(id)).unwrap().truth.speed = speed;
    }

    /// CPUs that a program may use now.
    pub fn mask(&self, id: u64) -> CpuSet {
        let living = &self.programs[&ProgramId(id)];
        living
            .mask
            .as_ref()
            .map_or(self.usable.clone(), |mask| mask.and(&self.usable))
    }

    /// CPUs that a program was narrowed to, online or not.
    pub fn seat(&self, id: u64) -> Option<CpuSet> {
        self.programs[&ProgramId(id)].mask.clone()
    }

    pub fn is_frozen(&self, id: u64) -> bool {
        self.programs[&ProgramId(id)].frozen
    }

    /// Calls the policy once, then advances the time by `at_most_ns`, or less if the policy
    /// requests an earlier call. Returns the time that passed.
    pub fn step(&mut self, policy: &mut dyn Policy, at_most_ns: u64) -> u64 {
        let observation = Observation {
            at_ns: self.at_ns,
            usable: self.usable.clone(),
            events: std::mem::take(&mut self.events),
            failed: std::mem::take(&mut self.failed),
            programs: self.programs.values().map(RunningProgram::sample).collect(),
            metering: None,
        };
        let decision = policy.decide(&observation);
        decision.actions.iter().for_each(|action| self.act(action));
        let pass_ns = decision
            .wake_after_ns
            .unwrap_or(at_most_ns)
            .clamp(1, at_most_ns);
        self.log.push((self.at_ns, decision));
        self.pass(pass_ns);
        pass_ns
    }

    pub fn run(&mut self, policy: &mut dyn Policy, seconds: f64) {
        let until_ns = self.at_ns + (seconds * 1e9) as u64;
        while self.at_ns < until_ns {
            self.step(policy, until_ns - self.at_ns);
        }
    }

    pub fn actions(&self) -> Vec<Action> {
        self.log
            .iter()
            .flat_map(|(_, decision)| decision.actions.clone())
            .collect()
    }

    fn act(&mut self, action: &Action) {
        if self.refuses > 0 {
            self.refuses -= 1;
            self.failed.push(FailedAction {
                action: action.clone(),
                error: "refused".to_owned(),
            });
            return;
        }
        let Some(living) = self.programs.get_mut(&action.program()) else {
            return;
        };
        match action {
            Action::Seat { cpus, .. } => {
                assert!(!cpus.is_empty(), "an empty seat for {}", action.program());
                living.mask = Some(cpus.clone());
            }
            Action::Release { .. } => living.mask = None,
            Action::Freeze { .. } => living.frozen = true,
            Action::Thaw { .. } => living.frozen = false,
            Action::Demote { .. } => unreachable!("nobody is background"),
        }
    }

    fn pass(&mut self, ns: u64) {
        let masks: BTreeMap<_, _> = self
            .programs
            .iter()
            .filter(|(_, living)| !living.frozen)
            .map(|(&id, _)| (id, self.mask(id.0)))
            .collect();
        for (id, mask) in &masks {
            let claim =
                |cpu| 1.0 / masks.values().filter(|other| other.contains(cpu)).count() as f64;
            let given: f64 = mask.iter().map(claim).sum();
            let living = self.programs.get_mut(id).unwrap();
            let used = given.min(living.truth.demand);
            living.cpu_ns += used * ns as f64;
            living.total += (living.truth.speed)(used) * ns as f64 / 1e9;
            if living.truth.demand > given {
                living.wait_ns += ns as f64;
            }
        }
        self.at_ns += ns;
    }
}

impl RunningProgram {
    fn sample(&self) -> ProgramSample {
        ProgramSample {
            id: self.truth.program.id,
            cpu_ns: self.cpu_ns as u64,
            wait_ns: self.truth.pressure.then_some(self.wait_ns as u64),
            threads: self.truth.demand.ceil() as u32,
            spinners: 0,
            active_wait: self.truth.active_wait,
            progress: self.truth.source.map(|source| Progress {
                total: self.total,
                source,
                confidence: self.truth.confidence,
            }),
            stopped: false,
        }
    }
}
