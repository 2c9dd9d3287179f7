// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a mix gave: the values that a runner fills in and every report is
//! rendered from. Nothing here is measured or drawn.
//!
//! Terms of paper 1 (CaSAS, section 2): the *normalised turnaround time*
//! (NTT) of a program is the mean time of its repetitions in the mix over its
//! best time alone; the *average* NTT (ANTT) is the arithmetic mean over the
//! programs of a mix, by weight. Lower is better and 1 is "as fast as alone".

use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, Curve, ProgressSource, SeatMode, Topology};

use crate::stats::Estimate;

/// Everything known about one mix under several policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MixResult {
    /// The mix's name.
    pub title: String,
    /// What it is and why it was chosen; may be empty.
    #[serde(default)]
    pub description: String,
    /// Where it ran.
    pub machine: MachineFacts,
    /// Whether the machine and the programs are models.
    pub simulated: bool,
    /// How it was run.
    pub protocol: Protocol,
    /// The programs, in the order of the mix; names are unique.
    pub programs: Vec<ProgramFacts>,
    /// The policies, in the order in which they are to be shown; names are
    /// unique.
    pub policies: Vec<PolicyResult>,
}

/// The machine that a mix ran on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// Host name, or the name of the simulated machine.
    pub host: String,
    /// Operating system and kernel, for people.
    pub kernel: String,
    /// Packages, domains, cores and CPUs that could be used.
    pub topology: Topology,
    /// The processor's name.
    pub cpu_model: String,
    /// Whether hardware performance counters could be read.
    pub pmu: bool,
    /// Whatever else a reader should know: neighbours, governor, cgroup version.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// How a mix was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Protocol {
    /// Every program ran at least so often in every round.
    pub repeats_min: u32,
    /// Rounds asked for; each policy has one result a round.
    pub rounds: u32,
    /// Whether the policies took turns round by round, so that drift of the
    /// machine falls on all of them alike. Ratios are paired by round then.
    pub interleaved: bool,
    /// How programs were placed in sessions ("each in a session of its own"):
    /// autogroup makes it matter.
    pub sessions: String,
    /// Seed of the order of the policies and of the bootstrap.
    pub seed: u64,
    /// The command that runs this again.
    #[serde(default)]
    pub command: String,
    /// When it was run, ISO 8601; empty where it does not matter.
    #[serde(default)]
    pub date: String,
    /// Deviations and remarks.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A program of a mix and what is known of it alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramFacts {
    /// Its name in the mix.
    pub name: String,
    /// Its command line, for people.
    pub command: String,
    /// How it scales, in a word or two ("scalable", "memory", "busy-waits").
    pub class: String,
    /// Weight of its NTT in the mean, > 0.
    #[serde(default = "one")]
    pub weight: f64,
    /// Its curve alone, where it was measured.
    pub curve: Option<Curve>,
    /// Best mean time of a repetition alone, in seconds; the unit of NTT.
    pub alone_best_seconds: Option<f64>,
    /// Cores on which that was.
    pub alone_best_cores: Option<f64>,
    /// Where the curve comes from ("measured here, 3 runs a point").
    pub curve_source: String,
}

fn one() -> f64 {
    1.0
}

/// What a policy is in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// What the others are measured against; at most one.
    Baseline,
    /// The baseline once more: what differs between the two is noise (A/A).
    BaselineAgain,
    /// A policy to be judged.
    Candidate,
}

/// One policy's rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyResult {
    /// Its name, as on the command line.
    pub name: String,
    /// Its name for people.
    pub label: String,
    /// What it is in the comparison.
    pub role: Role,
    /// One result a round, in order.
    pub rounds: Vec<RoundResult>,
    /// Against the baseline; [`MixResult::compare`] fills it in.
    #[serde(default)]
    pub comparison: Option<Comparison>,
}

/// One round of one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundResult {
    /// Average NTT; `None` where a program's NTT is unknown. See
    /// [`RoundResult::new`].
    pub antt: Option<f64>,
    /// One entry a program, in the order of the mix.
    pub programs: Vec<ProgramRound>,
    /// Who sat where, in any order.
    #[serde(default)]
    pub timeline: Vec<SeatSpan>,
    /// What the policy said, by seconds since the start of the round.
    #[serde(default)]
    pub notes: Vec<(f64, String)>,
    /// Whether the policy left the programs to the kernel for the whole round.
    #[serde(default)]
    pub abstained: bool,
    /// Why it did.
    #[serde(default)]
    pub abstained_because: Option<String>,
}

/// One program in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramRound {
    /// Which program.
    pub name: String,
    /// Mean of `seconds` over the best time alone; `None` where either is
    /// unknown.
    pub ntt: Option<f64>,
    /// Wall-clock seconds of each repetition that was completed.
    pub seconds: Vec<f64>,
    /// Repetitions that count.
    pub reps: u32,
    /// What the policy took progress from; `None`: it looked at none.
    pub progress_source: Option<ProgressSource>,
    /// How far that was trusted, 0..1.
    pub confidence: Option<f64>,
    /// Why there is no result, where there is none.
    #[serde(default)]
    pub failure: Option<String>,
}

/// How a program got its CPU time for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpanMode {
    /// On CPUs of its own, or borrowed.
    Seated,
    /// Left to the kernel together with others.
    Shared,
    /// On all CPUs listed while others are stopped.
    InTurn,
    /// Stopped.
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

/// Whose CPUs are borrowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lender {
    /// Another program's.
    Program(String),
    /// CPUs that nobody owns.
    Nobody,
}

/// One program on one set of CPUs from one moment to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeatSpan {
    /// Which program.
    pub program: String,
    /// Seconds since the start of the round.
    pub start_s: f64,
    /// The same; after `start_s`.
    pub end_s: f64,
    /// Where.
    pub cpus: CpuSet,
    /// How.
    pub mode: SpanMode,
    /// Whose they are, where they are borrowed. Borrowed CPUs have a span of
    /// their own beside the span of those that the program owns.
    #[serde(default)]
    pub borrowed_from: Option<Lender>,
}

/// A policy against the baseline: ratios policy / baseline, below 1 is better.
/// [`crate::stats::ratio`] defines the estimator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Name of the baseline.
    pub baseline: String,
    /// Ratio of ANTTs; `None` where no round has both.
    pub antt: Option<Estimate>,
    /// Ratio of NTTs of each program, in the order of the mix.
    pub programs: Vec<(String, Option<Estimate>)>,
}

/// Mean time of the repetitions over the best time alone; `None` without a
/// repetition or a positive alone time.
pub fn ntt(seconds: &[f64], alone_best_seconds: Option<f64>) -> Option<f64> {
    let alone = alone_best_seconds.filter(|s| s.is_finite() && *s > 0.0)?;
    let mean = crate::stats::mean(seconds)?;
    Some(mean / alone)
}

/// Weighted arithmetic mean of `(NTT, weight)`; `None` where one is unknown
/// or there is none.
pub fn antt(ntts: impl IntoIterator<Item = (Option<f64>, f64)>) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (ntt, weight) in ntts {
        sum += ntt? * weight;
        weights += weight;
    }
    (weights > 0.0).then(|| sum / weights)
}

impl RoundResult {
    /// A round of these programs: works out each NTT from its repetitions and
    /// the ANTT from those, by the weights in `facts` (matched by name).
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

    /// The program of that name.
    pub fn program(&self, name: &str) -> Option<&ProgramRound> {
        self.programs.iter().find(|p| p.name == name)
    }

    /// Seconds from the start to the end of the last span; 0 without one.
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

    /// NTT of that program in every round that has one.
    pub fn ntts(&self, program: &str) -> Vec<f64> {
        let of = |round: &RoundResult| round.program(program)?.ntt;
        self.rounds.iter().filter_map(of).collect()
    }

    /// In how many rounds the policy left everything to the kernel.
    pub fn abstentions(&self) -> usize {
        self.rounds.iter().filter(|round| round.abstained).count()
    }

    /// The round to show where only one can be: that with the median ANTT
    /// (the lower one of two); the first where none has an ANTT.
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
    /// The policy that the others are measured against.
    pub fn baseline(&self) -> Option<&PolicyResult> {
        self.policies.iter().find(|p| p.role == Role::Baseline)
    }

    /// The policy of that name.
    pub fn policy(&self, name: &str) -> Option<&PolicyResult> {
        self.policies.iter().find(|p| p.name == name)
    }

    /// Fills in every policy's comparison with the baseline, paired by round.
    /// Without a baseline there is none.
    pub fn compare(&mut self) {
        let Some(baseline) = self.baseline().cloned() else {
            return;
        };
        let seed = self.protocol.seed;
        let names: Vec<_> = self.programs.iter().map(|p| p.name.clone()).collect();
        for policy in &mut self.policies {
            if policy.role != Role::Baseline {
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
