// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results of a mix. The program that runs a mix fills in a [`MixResult`], and every report is
//! made from it. This module contains only data and the arithmetic of NTT and ANTT; it neither
//! measures nor draws.
//!
//! Terms of paper 1 (CaSAS, section 2): the *normalised turnaround time* (NTT) of a program is the
//! mean time of its repetitions in the mix divided by its best time alone. The *average* NTT (ANTT)
//! is the weighted arithmetic mean over the programs of a mix. Lower is better, and 1 means as fast
//! as alone.
//!
//! Units: times in seconds, shares and confidences from 0 to 1, weights above 0. A missing or
//! invalid time leads to a missing NTT, and a missing NTT to a missing ANTT of the round.
//! Comparisons pair the rounds of two policies by their number; a round without a partner is left
//! out. The cost of [`MixResult::compare`] is one bootstrap (`stats`) for the ANTT and one per
//! program, for each policy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, Curve, ProgressSource, SeatMode, Topology};

use crate::stats::Estimate;

/// The results of one mix under several policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MixResult {
    /// Title of the mix.
    pub title: String,
    /// Content and purpose of the mix; may be empty.
    #[serde(default)]
    pub description: String,
    /// The machine.
    pub machine: MachineFacts,
    /// Whether the machine and the programs are models.
    pub simulated: bool,
    /// How the mix was run.
    pub protocol: Protocol,
    /// The programs, in the order of the mix; names are unique.
    pub programs: Vec<ProgramFacts>,
    /// The policies, in the order of output; names are unique.
    pub policies: Vec<PolicyResult>,
}

/// The machine that a mix ran on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineFacts {
    /// Host name, or the name of the simulated machine.
    pub host: String,
    /// Operating system and kernel, as text.
    pub kernel: String,
    /// Packages, domains, cores and CPUs that could be used.
    pub topology: Topology,
    /// Name of the processor.
    pub cpu_model: String,
    /// Whether hardware performance counters were readable.
    pub pmu: bool,
    /// Further facts for the reader of the report: other load of the host, CPU frequency governor,
    /// cgroup version.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// How a mix was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Protocol {
    /// Minimum number of repetitions of every program in every round.
    pub repeats_min: u32,
    /// Number of rounds; each policy has one result per round.
    pub rounds: u32,
    /// Whether the policies alternated round by round. If the policies alternated, a drift of the
    /// machine's speed affects all policies, and ratios are paired by round.
    pub interleaved: bool,
    /// Assignment of programs to sessions ("each in a session of its own"), which matters because
    /// of autogroup.
    pub sessions: String,
    /// Seed of the order of the policies and of the bootstrap.
    pub seed: u64,
    /// The command that repeats the run.
    #[serde(default)]
    pub command: String,
    /// Date of the run, ISO 8601; may be empty.
    #[serde(default)]
    pub date: String,
    /// Deviations and remarks.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A program of a mix, with its results when it runs alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramFacts {
    /// Name of the program in the mix.
    pub name: String,
    /// Command line, as text.
    pub command: String,
    /// Scalability in a word or two ("scalable", "memory", "busy-waits").
    pub class: String,
    /// Weight of the program's NTT in the mean, > 0.
    #[serde(default = "one")]
    pub weight: f64,
    /// Scalability curve of the program alone, if measured.
    pub curve: Option<Curve>,
    /// Best mean time of a repetition alone, in seconds: the unit of NTT.
    pub alone_best_seconds: Option<f64>,
    /// Number of cores at which `alone_best_seconds` was measured.
    pub alone_best_cores: Option<f64>,
    /// Origin of the curve, as text, for example "measured here, 3 runs a point".
    pub curve_source: String,
}

fn one() -> f64 {
    1.0
}

/// Role of a policy in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyRole {
    /// The reference of the comparison; at most one.
    Baseline,
    /// A second run of the baseline: the difference between the two runs is noise (A/A).
    BaselineAgain,
    /// A policy under test.
    Candidate,
}

/// Results of one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyResult {
    /// Name on the command line.
    pub name: String,
    /// Label in reports.
    pub label: String,
    /// Role in the comparison.
    pub role: PolicyRole,
    /// One result per round, in order.
    pub rounds: Vec<RoundResult>,
    /// Comparison with the baseline, computed by [`MixResult::compare`].
    #[serde(default)]
    pub comparison: Option<Comparison>,
}

/// One round of one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RoundResult {
    /// ANTT of the round; `None` if a program's NTT is unknown. [`RoundResult::new`] computes it.
    pub antt: Option<f64>,
    /// One entry per program, in the order of the mix.
    pub programs: Vec<ProgramRound>,
    /// Seats over time, in any order.
    #[serde(default)]
    pub timeline: Vec<SeatSpan>,
    /// Notes of the policy, each with its time in seconds since the start of the round.
    #[serde(default)]
    pub notes: Vec<(f64, String)>,
    /// Whether the policy left the programs to the kernel for the whole round.
    #[serde(default)]
    pub abstained: bool,
    /// Reason for the abstention.
    #[serde(default)]
    pub abstained_because: Option<String>,
}

/// One program in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramRound {
    /// Name of the program.
    pub name: String,
    /// Mean of `seconds` divided by the best time alone; `None` if either is unknown.
    pub ntt: Option<f64>,
    /// Wall-clock seconds of each completed repetition.
    pub seconds: Vec<f64>,
    /// Number of repetitions that count.
    pub reps: u32,
    /// Source of the progress that the policy used; `None`: the policy used no progress.
    pub progress_source: Option<ProgressSource>,
    /// Confidence in `progress_source`, 0 to 1.
    pub confidence: Option<f64>,
    /// Reason for a missing result.
    #[serde(default)]
    pub failure: Option<String>,
}

/// How a program got its CPU time during a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SpanMode {
    /// The program ran on the CPUs of its seat, or on borrowed CPUs.
    Seated,
    /// The program was scheduled by the kernel together with other programs.
    Shared,
    /// The program ran on all listed CPUs while the other programs were stopped.
    InTurn,
    /// The program was stopped.
    Frozen,
}

impl From<SeatMode> for SpanMode {
    fn from(mode: SeatMode) -> Self {
        match mode {
            SeatMode::Seated => Self::Seated,
            SeatMode::Shared => Self::Shared,
            SeatMode::InTurn => Self::InTurn,
        }
    }
}

/// Owner of borrowed CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Lender {
    /// Another program.
    Program(String),
    /// No program owns the CPUs.
    Unowned,
}

/// A period in which a program had one set of CPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeatSpan {
    /// The program.
    pub program: String,
    /// Start in seconds since the start of the round.
    pub start_s: f64,
    /// End in seconds since the start of the round; after `start_s`.
    pub end_s: f64,
    /// The CPUs.
    pub cpus: CpuSet,
    /// The mode.
    pub mode: SpanMode,
    /// Owner of the CPUs, if they are borrowed. Borrowed CPUs have a span separate from the span of
    /// the program's own CPUs.
    #[serde(default)]
    pub borrowed_from: Option<Lender>,
}

/// Comparison of a policy with the baseline: the policy's values divided by the baseline's. A ratio
/// below 1 means that the policy is better. [`crate::stats::ratio`] defines the estimator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Name of the baseline.
    pub baseline: String,
    /// Ratio of the ANTTs; `None` if no round has both ANTTs.
    pub antt: Option<Estimate>,
    /// Ratio of the NTTs of each program, in the order of the mix.
    pub programs: Vec<(String, Option<Estimate>)>,
}

/// Mean time of the repetitions divided by the best time alone. `None` if there is no repetition,
/// or if the time alone is missing or not positive.
pub fn ntt(seconds: &[f64], alone_best_seconds: Option<f64>) -> Option<f64> {
    let alone = alone_best_seconds.filter(|s| s.is_finite() && *s > 0.0)?;
    let mean = crate::stats::mean(seconds)?;
    Some(mean / alone)
}

/// Weighted arithmetic mean of `(NTT, weight)`. `None` if an NTT is unknown or the input is empty.
pub fn antt(ntts: impl IntoIterator<Item = (Option<f64>, f64)>) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (ntt, weight) in ntts {
        sum += ntt? * weight;
        weights += weight;
    }
    (weights > 0.0).then(|| sum / weights)
}

impl RoundResult {
    /// Creates a round: computes each NTT from the program's repetitions, and the ANTT from the
    /// NTTs with the weights in `facts` (matched by name).
    pub fn new(facts: &[ProgramFacts], mut programs: Vec<ProgramRound>) -> Self {
        let of = |name: &str| facts.iter().find(|f| f.name == name);
        for program in &mut programs {
            let alone = of(&program.name).and_then(|f| f.alone_best_seconds);
            program.ntt = ntt(&program.seconds, alone);
        }
        let weighted = |p: &ProgramRound| (p.ntt, of(&p.name).map_or(1.0, |f| f.weight));
        Self {
            antt: antt(programs.iter().map(weighted)),
            programs,
            timeline: Vec::new(),
            notes: Vec::new(),
            abstained: false,
            abstained_because: None,
        }
    }

    /// The program of this name.
    pub fn program(&self, name: &str) -> Option<&ProgramRound> {
        self.programs.iter().find(|p| p.name == name)
    }

    /// Seconds from the start to the end of the last span; 0 without spans.
    pub fn length_s(&self) -> f64 {
        let ends = self.timeline.iter().map(|span| span.end_s);
        ends.filter(|end| end.is_finite()).fold(0.0, f64::max)
    }
}

impl PolicyResult {
    /// ANTT of every round that has one.
    pub fn antts(&self) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| round.antt).collect()
    }

    /// NTT of a program in every round that has one.
    pub fn ntts(&self, program: &str) -> Vec<f64> {
        let of = |round: &RoundResult| round.program(program)?.ntt;
        self.rounds.iter().filter_map(of).collect()
    }

    /// Number of rounds in which the policy abstained.
    pub fn abstentions(&self) -> usize {
        self.rounds.iter().filter(|round| round.abstained).count()
    }

    /// Returns the round that represents the policy: the round with the median ANTT (of two middle
    /// rounds the lower), or the first round if no round has an ANTT.
    pub fn typical_round(&self) -> Option<&RoundResult> {
        let mut rounds: Vec<_> = self.rounds.iter().filter(|r| r.antt.is_some()).collect();
        rounds.sort_by(|a, b| {
            a.antt
                .partial_cmp(&b.antt)
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        let middle = rounds.len().saturating_sub(1) / 2;
        rounds.get(middle).copied().or(self.rounds.first())
    }
}

impl MixResult {
    /// The baseline policy.
    pub fn baseline(&self) -> Option<&PolicyResult> {
        self.policies
            .iter()
            .find(|p| p.role == PolicyRole::Baseline)
    }

    /// The policy of this name.
    pub fn policy(&self, name: &str) -> Option<&PolicyResult> {
        self.policies.iter().find(|p| p.name == name)
    }

    /// Computes every policy's comparison with the baseline, paired by round. Without a baseline,
    /// all comparisons stay `None`.
    pub fn compare(&mut self) {
        let Some(baseline) = self.baseline().cloned() else {
            return;
        };
        let seed = self.protocol.seed;
        let names: Vec<_> = self.programs.iter().map(|p| p.name.clone()).collect();
        for policy in &mut self.policies {
            if policy.role != PolicyRole::Baseline {
                policy.comparison = Some(compare(policy, &baseline, &names, seed));
            }
        }
    }
}

fn compare(
    policy: &PolicyResult,
    baseline: &PolicyResult,
    programs: &[String],
    seed: u64,
) -> Comparison {
    let paired = |value: &dyn Fn(&RoundResult) -> Option<f64>| {
        let rounds = policy.rounds.iter().zip(&baseline.rounds);
        let pairs: Vec<_> = rounds
            .filter_map(|(a, b)| Some((value(a)?, value(b)?)))
            .collect();
        crate::stats::ratio(&pairs, seed)
    };
    let program = |name: &String| {
        let ratio = paired(&|round| round.program(name)?.ntt);
        (name.clone(), ratio)
    };
    Comparison {
        baseline: baseline.name.clone(),
        antt: paired(&|round| round.antt),
        programs: programs.iter().map(program).collect(),
    }
}
