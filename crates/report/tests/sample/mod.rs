// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates results of mixes from a seed, in the form in which a runner produces them, as input of
//! the report's tests. Not every test uses every function.

#![allow(dead_code, clippy::unwrap_used)] // not every test uses every part

use std::collections::BTreeMap;

use oorandom::Rand64;
use usher_model::{
    Cache, Core, Cpu, CpuSet, Curve, CurvePoint, Domain, NumaNode, Package, ProgressSource,
    Topology,
};
use usher_report::data::{
    Lender, MachineFacts, MixResult, PolicyResult, PolicyRole, ProgramFacts, ProgramRound,
    Protocol, RoundResult, SeatSpan, SpanMode,
};

/// A machine with one hardware thread per core.
pub fn topology(name: &str, packages: usize, domains: usize, cores: usize) -> Topology {
    let n = packages * domains * cores;
    let range =
        |first: usize, count: usize| CpuSet::range(first as u32, (first + count - 1) as u32);
    let topology = Topology {
        name: name.to_owned(),
        cpus: (0..n)
            .map(|i| Cpu {
                os: i as u32,
                core: i,
            })
            .collect(),
        cores: (0..n)
            .map(|i| Core {
                cpus: CpuSet::single(i as u32),
                domain: i / cores,
                capacity: 1.0,
            })
            .collect(),
        domains: (0..packages * domains)
            .map(|d| Domain {
                cpus: range(d * cores, cores),
                cores: (d * cores..(d + 1) * cores).collect(),
                package: d / domains,
                nodes: vec![d / domains],
                llc: Some(Cache {
                    level: 3,
                    bytes: 12 << 20,
                }),
            })
            .collect(),
        packages: (0..packages)
            .map(|p| Package {
                cpus: range(p * domains * cores, domains * cores),
                domains: (p * domains..(p + 1) * domains).collect(),
                model: None,
                dies: vec![range(p * domains * cores, domains * cores)],
            })
            .collect(),
        nodes: (0..packages)
            .map(|p| NumaNode {
                os: p as u32,
                cpus: range(p * domains * cores, domains * cores),
                bytes: 64 << 30,
            })
            .collect(),
    };
    topology.check().unwrap();
    topology
}

pub fn machine(topology: Topology) -> MachineFacts {
    MachineFacts {
        host: topology.name.clone(),
        kernel: "Linux 6.18.2 (Debian 12)".to_owned(),
        topology,
        cpu_model: "AMD Opteron 6172".to_owned(),
        pmu: false,
        notes: vec![
            "A virtual machine with busy neighbours: read ratios, not absolutes.".to_owned(),
        ],
    }
}

pub fn protocol(rounds: u32) -> Protocol {
    Protocol {
        repeats_min: 3,
        rounds,
        interleaved: true,
        sessions: "each program in a session of its own".to_owned(),
        seed: 20_260_101,
        command: "usher mix examples/four.toml --against linux,equal,casas,usher".to_owned(),
        date: "2026-01-01T12:00:00Z".to_owned(),
        notes: Vec::new(),
    }
}

/// A scalability curve by Amdahl's law with a serial share of `serial`, 0..1. A positive `fall`
/// makes the curve decline after a peak (universal scalability law).
pub fn curve(serial: f64, fall: f64, cores: usize) -> Curve {
    let usl = |n: f64| n / (1.0 + serial * (n - 1.0) + fall * n * (n - 1.0));
    let step = (cores / 8).max(1);
    let counts = (0..=cores / step).map(|i| (i * step).max(1));
    let counts: BTreeMap<usize, ()> = counts.map(|n| (n, ())).collect();
    let point = |&n: &usize| CurvePoint {
        cores: n as f64,
        rate: 0.11 * usl(n as f64),
        relative_error: 0.02,
        busy_cpus: Some(n as f64 * 0.9),
    };
    Curve::new(counts.keys().map(point).collect()).unwrap()
}

const KINDS: [(&str, &str, &str, f64, f64); 8] = [
    (
        "pigz",
        "scalable",
        "cat text.txt text.txt | pigz -p{n} -9 -c",
        0.01,
        0.0,
    ),
    (
        "sort",
        "medium, memory",
        "LC_ALL=C sort --parallel={n} -S 2G -k3,3 -k5,5 text.txt",
        0.12,
        0.0005,
    ),
    (
        "x264",
        "medium-high",
        "x264 --preset medium --threads {n} --frames 60 noise.y4m -o /dev/null",
        0.05,
        0.0002,
    ),
    (
        "lammps",
        "busy-waits",
        "mpirun -n {n} lmp -in in.lj",
        0.02,
        0.0003,
    ),
    (
        "minimap2",
        "scalable",
        "minimap2 -t{n} -x map-ont -c ref.fa reads.fq",
        0.02,
        0.0,
    ),
    (
        "7zz",
        "poor to medium",
        "7zz a -mmt{n} -mx5 out.7z text.txt",
        0.3,
        0.001,
    ),
    (
        "stream",
        "memory",
        "stress-ng --stream {n} --stream-l3-size 64M",
        0.15,
        0.001,
    ),
    ("numpy-svd", "medium", "python3 svd.py 2400", 0.1, 0.0006),
];

pub fn programs(count: usize, cores: usize) -> Vec<ProgramFacts> {
    (0..count)
        .map(|i| {
            let (name, class, command, serial, fall) = KINDS[i % KINDS.len()];
            let name = match i / KINDS.len() {
                0 => name.to_owned(),
                again => format!("{name}-{}", again + 1),
            };
            let curve = curve(serial, fall, cores);
            let best = curve.best_rate(cores as f64);
            let point = curve.points().iter().find(|p| p.rate == best).unwrap();
            ProgramFacts {
                name,
                command: command.to_owned(),
                class: class.to_owned(),
                weight: 1.0,
                alone_best_seconds: Some(1.0 / best),
                alone_best_cores: Some(point.cores),
                curve: Some(curve),
                curve_source: "curve measured by this command, median of 3 runs per point"
                    .to_owned(),
            }
        })
        .collect()
}

/// Returns `count` programs on a machine under linux, linux again, equal, casas and usher.
pub fn mix(title: &str, topology: Topology, count: usize, rounds: u32) -> MixResult {
    let cores = topology.cores.len();
    let facts = programs(count, cores);
    let mut random = Rand64::new(7);
    let policies = [
        ("linux", "linux", PolicyRole::Baseline, 1.00),
        (
            "linux-again",
            "linux (again)",
            PolicyRole::BaselineAgain,
            1.00,
        ),
        ("equal", "equal", PolicyRole::Candidate, 1.06),
        ("casas", "casas", PolicyRole::Candidate, 0.91),
        ("usher", "usher", PolicyRole::Candidate, 0.84),
    ];
    let policies = policies.map(|(name, label, role, factor)| PolicyResult {
        name: name.to_owned(),
        label: label.to_owned(),
        role,
        rounds: (0..rounds)
            .map(|_| round(&topology, &facts, name, factor, &mut random))
            .collect(),
        comparison: None,
    });
    let mut mix = MixResult {
        title: title.to_owned(),
        description:
            "A scalable compressor, a memory-bound sort, an encoder and a program that busy-waits."
                .to_owned(),
        machine: machine(topology),
        simulated: false,
        protocol: protocol(rounds),
        programs: facts,
        policies: policies.into(),
    };
    mix.compare();
    mix
}

fn round(
    topology: &Topology,
    facts: &[ProgramFacts],
    policy: &str,
    factor: f64,
    random: &mut Rand64,
) -> RoundResult {
    let fair = (facts.len() as f64).min(topology.cores.len() as f64) * 0.55 + 0.6;
    let drift = 1.0 + 0.04 * (random.rand_float() - 0.5);
    let results = facts
        .iter()
        .enumerate()
        .map(|(i, f)| {
            let own = fair * factor * drift * (0.75 + 0.5 * ((i * 7) % 5) as f64 / 4.0);
            let alone = f.alone_best_seconds.unwrap();
            let seconds: Vec<f64> = (0..3 + i % 3)
                .map(|_| alone * own * (1.0 + 0.06 * (random.rand_float() - 0.5)))
                .collect();
            ProgramRound {
                name: f.name.clone(),
                ntt: None,
                reps: seconds.len() as u32,
                seconds,
                progress_source: (policy == "usher").then_some(ProgressSource::Repetition),
                confidence: (policy == "usher").then_some(1.0),
                failure: None,
            }
        })
        .collect();
    let mut round = RoundResult::new(facts, results);
    let length = round
        .programs
        .iter()
        .map(|p| p.seconds.iter().sum::<f64>())
        .fold(0.0, f64::max);
    round.timeline = timeline(topology, facts, policy, length);
    if policy == "usher" || policy == "casas" {
        round.notes = notes(length);
    }
    round
}

fn notes(length: f64) -> Vec<(f64, String)> {
    [
        (0.0, "4 programs arrive; none is known: a fair start of 12 cores each"),
        (0.06, "lammps busy-waits: it keeps as many cores as it has spinning threads"),
        (0.065, "pigz scales further than sort: 6 cores change hands, predicted ANTT 2.31 instead of 2.54"),
        (0.31, "x264 has idle cores: 3 are lent to pigz"),
        (0.35, "x264 wants its cores back: reclaimed in 4 ms"),
        (0.8, "sort changes its phase (merge): one thread; 9 cores lent"),
    ]
    .map(|(at, text)| (at * length, text.to_owned()))
    .into()
}

/// Generates the spans of a round: under linux, all programs share all CPUs; under other policies,
/// programs have equal or growing seats, with loans.
fn timeline(
    topology: &Topology,
    facts: &[ProgramFacts],
    policy: &str,
    length: f64,
) -> Vec<SeatSpan> {
    let all = topology.all_cpus();
    let n = all.len();
    let span = |program: &str, from: f64, to: f64, cpus: CpuSet, mode| SeatSpan {
        program: program.to_owned(),
        start_s: from * length,
        end_s: to * length,
        cpus,
        mode,
        borrowed_from: None,
    };
    if policy.starts_with("linux") || facts.len() > n {
        return facts
            .iter()
            .map(|f| span(&f.name, 0.0, 1.0, all.clone(), SpanMode::Shared))
            .collect();
    }
    let shares = facts.len();
    let cut = |i: usize, phase: usize| {
        let even = i * n / shares;
        match (policy, i) {
            ("equal", _) => even,
            (_, 0) => 0,
            (_, i) if i == shares => n,
            _ => (even + (n / shares / 2) * phase).min(n - (shares - i)),
        }
    };
    let mut spans = Vec::new();
    let phases: &[(f64, f64, usize)] = match policy {
        "equal" => &[(0.0, 1.0, 0)],
        _ => &[(0.0, 0.065, 0), (0.065, 1.0, 1)],
    };
    for &(from, to, phase) in phases {
        for (i, f) in facts.iter().enumerate() {
            let set = CpuSet::range(cut(i, phase) as u32, cut(i + 1, phase) as u32 - 1);
            spans.push(span(&f.name, from, to, set, SpanMode::Seated));
        }
    }
    match policy {
        "usher" => lend(&mut spans, facts, length, n, &|i| cut(i, 1)),
        "casas" => stop_for_trials(&mut spans, facts, length, &all),
        _ => {}
    }
    spans
}

/// Adds loans of idle seats for some time, in turn.
fn lend(
    spans: &mut Vec<SeatSpan>,
    facts: &[ProgramFacts],
    length: f64,
    cpus: usize,
    cut: &dyn Fn(usize) -> usize,
) {
    let shares = facts.len();
    let many = cpus > 40 && shares > 8;
    for k in 0..if many { 160 } else { 12 } {
        let owner = (k * 3 + 1) % shares;
        let borrower = (owner + 1 + k % (shares - 1).max(1)) % shares;
        let from = 0.1 + 0.85 * (k as f64 / 12.0).fract();
        let width = (cut(owner + 1) - cut(owner)).div_ceil(3).max(1);
        let first = cut(owner + 1) - width;
        spans.push(SeatSpan {
            program: facts[borrower].name.clone(),
            start_s: from * length,
            end_s: (from + 0.03) * length,
            cpus: CpuSet::range(first as u32, (first + width - 1) as u32),
            mode: SpanMode::Seated,
            borrowed_from: Some(Lender::Program(facts[owner].name.clone())),
        });
    }
}

/// Adds trials: all programs except the first are stopped during the trial of the first.
fn stop_for_trials(spans: &mut Vec<SeatSpan>, facts: &[ProgramFacts], length: f64, all: &CpuSet) {
    for f in &facts[1..] {
        let seats = spans.iter().find(|s| s.program == f.name);
        let frozen = SeatSpan {
            program: f.name.clone(),
            start_s: 0.0,
            end_s: 0.03 * length,
            cpus: seats.map_or_else(|| all.clone(), |s| s.cpus.clone()),
            mode: SpanMode::Frozen,
            borrowed_from: None,
        };
        spans.retain(|s| s.program != f.name || s.start_s > 0.0);
        let rest = SeatSpan {
            start_s: 0.03 * length,
            end_s: 0.065 * length,
            mode: SpanMode::Seated,
            ..frozen.clone()
        };
        spans.extend([frozen, rest]);
    }
}

/// Sample of 2 programs on 2 CPUs; usher abstains.
pub fn small() -> MixResult {
    let mut topology = topology("vm-2", 1, 1, 2);
    topology.domains[0].llc = Some(Cache {
        level: 3,
        bytes: 260 << 20,
    });
    let mut mix = mix("Two programs on two cores", topology, 2, 3);
    mix.description = "pigz and sort, two threads each.".to_owned();
    let shared = mix.policies[0].rounds.clone();
    let usher = mix.policies.iter_mut().find(|p| p.name == "usher").unwrap();
    usher.rounds = shared;
    for round in &mut usher.rounds {
        round.abstained = true;
        round.abstained_because =
            Some("the best seating is predicted to win 0.4 %, less than a move costs".to_owned());
        round.notes = vec![(0.2, "all programs share all CPUs".to_owned())];
        for program in &mut round.programs {
            for s in &mut program.seconds {
                *s *= 1.004;
            }
            program.ntt = program.ntt.map(|ntt| ntt * 1.004);
        }
        round.antt = round.antt.map(|antt| antt * 1.004);
    }
    mix.compare();
    mix
}

/// Sample of 4 programs on the paper's 48 cores in 8 domains of 6.
pub fn paper() -> MixResult {
    mix(
        "Four programs on 48 cores",
        topology("opteron-48", 4, 2, 6),
        4,
        8,
    )
}

/// Sample of 16 simulated programs on 48 CPUs with some 200 spans.
pub fn crowd() -> MixResult {
    let mut mix = mix(
        "Sixteen programs on 48 cores",
        topology("sim-48", 4, 1, 12),
        16,
        6,
    );
    mix.simulated = true;
    mix
}

/// Sample of 24 programs on 512 CPUs in 64 domains.
pub fn huge() -> MixResult {
    mix(
        "Twenty-four programs on 512 CPUs",
        topology("epyc-512", 2, 32, 8),
        24,
        2,
    )
}
