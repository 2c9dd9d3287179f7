// SPDX-License-Identifier: GPL-2.0-only
//! The answers of commands with `--json` that have no type elsewhere, and their JSON Schemas.
//!
//! The schemas are derived from the types that the commands serialise, in the dialect 2020-12.
//! `docs/json.md` states what users may rely on. Every command prints one document, an object.
//! A field name ends in its unit, unless the quantity has none. An unknown value is `null`.

use std::path::PathBuf;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::Value;
use usher_model::{Curve, Decision, ProgressSource};
use usher_report::data::MixResult;
use usher_scx::Settings;
use usher_sim::trial::ArrivalStats;
use usher_store::MachineKey;

use crate::api::{Explain_Reply, State};

/// Returns the schema of the values that a type is serialised to.
pub fn schema<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12()
        .for_serialize()
        .with_transform(RecursiveTransform(describe_as_json));
    settings.into_generator().into_root_schema_for::<T>()
}

/// Replaces the notation of Rust in a description, which is a documentation comment.
fn describe_as_json(schema: &mut Schema) {
    let Some(Value::String(text)) = schema.get_mut("description") else {
        return;
    };
    let replaced = text.replace("`None`", "`null`");
    let replaced = replaced.replace("[`", "`").replace("`]", "`");
    let paragraphs = replaced.split("\n\n").map(|lines| lines.replace('\n', " "));
    *text = paragraphs.collect::<Vec<_>>().join("\n\n");
}

/// Programs that `usher attach` has put under management, or would with `--dry-run`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct AttachAnswer {
    /// The attached programs; empty with `--dry-run`.
    pub attached: Vec<AttachedProgram>,
    /// The processes that would be attached; empty without `--dry-run`.
    pub would_attach: Vec<Candidate>,
}

/// An attached program.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AttachedProgram {
    /// The given process.
    pub pid: i32,
    /// The number of the program in `usher status`.
    pub id: i64,
    /// The name of the program; `null` if the program has ended.
    pub name: Option<String>,
    /// The CPUs of its seat as a list; empty without a seat.
    pub cpus: String,
    /// The runtime directory of the daemon that manages the program.
    pub runtime_dir: PathBuf,
}

/// A process that would be attached.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Candidate {
    /// The process.
    pub pid: i32,
    /// Its command line.
    pub command: String,
}

/// Programs that `usher bg --attach` has put under management as background work.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BackgroundAnswer {
    /// The programs.
    pub attached: Vec<BackgroundProgram>,
}

/// A program that is background work.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BackgroundProgram {
    /// The given process.
    pub pid: i32,
    /// The number of the program in `usher status`.
    pub id: i64,
    /// The policy that regulates the program.
    pub policy: &'static str,
    /// The runtime directory of the daemon that manages the program.
    pub runtime_dir: PathBuf,
}

/// The state of the first daemon that listens (the system's, otherwise the user's own), and the
/// states of the others.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatusAnswer {
    /// The first daemon.
    #[serde(flatten)]
    pub first: DaemonState,
    /// The other daemons that manage programs for this user; usually empty.
    pub other_daemons: Vec<DaemonState>,
}

/// The state of a daemon.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DaemonState {
    /// The state, with the programs of the daemon.
    #[serde(flatten)]
    pub state: State,
    /// The runtime directory of the daemon. The option `--runtime-dir` with this value selects the
    /// daemon.
    pub runtime_dir: PathBuf,
}

/// The explanations of the first daemon that listens, and of the others. With a program, the answer
/// contains only the daemon that manages the program.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExplainAnswer {
    /// The first daemon.
    #[serde(flatten)]
    pub first: DaemonExplanation,
    /// The other daemons that manage programs for this user; usually empty.
    pub other_daemons: Vec<DaemonExplanation>,
}

/// The explanation of a daemon.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DaemonExplanation {
    /// The state, the reasons and the alternative plans.
    #[serde(flatten)]
    pub reply: Explain_Reply,
    /// The runtime directory of the daemon. The option `--runtime-dir` with this value selects the
    /// daemon.
    pub runtime_dir: PathBuf,
}

/// Programs that `usher detach` has released.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DetachAnswer {
    /// The programs.
    pub detached: Vec<DetachedProgram>,
}

/// A program that was released.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DetachedProgram {
    /// The number of the program.
    pub id: i64,
    /// The name of the program.
    pub name: String,
    /// The pid of its oldest process.
    pub pid: i64,
    /// The runtime directory of the daemon that managed the program.
    pub runtime_dir: PathBuf,
}

/// Programs that `usher wait` has waited for.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WaitAnswer {
    /// The programs, in the order of their ends.
    pub ended: Vec<EndedProgram>,
}

/// A program that has ended.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EndedProgram {
    /// The number of the program.
    pub id: i64,
    /// The name of the program.
    pub name: String,
    /// The runtime directory of the daemon that managed the program.
    pub runtime_dir: PathBuf,
}

/// A daemon or scheduler that was stopped.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StoppedDaemon {
    /// The pid of its process.
    pub stopped: i32,
}

/// The work of `usher undo`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UndoAnswer {
    /// Number of programs with undone changes.
    pub programs: usize,
    /// Number of dead daemons with undone journals.
    pub daemons: usize,
    /// Why changes could not be undone.
    pub errors: Vec<String>,
}

/// A measured scalability curve.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CurveAnswer {
    /// The name of the program.
    pub name: String,
    /// The curve, in repetitions per second.
    pub curve: Curve,
    /// The times of all runs in seconds, for each point of the curve.
    pub seconds: Vec<Vec<f64>>,
    /// Number of threads that busy-wait for one another.
    pub spinners: u32,
    /// Whether the threads busy-wait if they have enough cores; `null` if unknown.
    pub active_wait: Option<bool>,
    /// Which other programs disturbed the measurement; `null` if none did.
    pub disturbance: Option<String>,
}

/// A stored profile.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProfileAnswer {
    /// The identifier of the profile.
    pub id: String,
    /// The name of the program.
    pub name: String,
    /// The identity of the executable.
    pub executable: String,
    /// The arguments, or their hash.
    pub arguments: String,
    /// The kind of machine on which the profile was measured.
    pub machine: MachineKey,
    /// Whether this machine is of that kind.
    pub is_this_machine: bool,
    /// Number of runs.
    pub runs: u32,
    /// Time of the last run, in seconds since 1970.
    pub at_s: i64,
    /// The source of progress of the curve; `null` without a curve.
    pub source: Option<ProgressSource>,
    /// The scalability curve, if measured.
    pub curve: Option<Curve>,
    /// The highest measured speed-up over one core; `null` until the curve has two points.
    pub speed_up: Option<f64>,
    /// Number of threads that busy-wait for one another.
    pub spinners: u32,
    /// Whether the threads busy-wait if they have enough cores; `null` if unknown.
    pub active_wait: Option<bool>,
    /// Working set in the last-level cache, if known.
    pub llc_bytes: Option<u64>,
    /// Memory traffic in GB/s, if known.
    pub bandwidth_gbps: Option<f64>,
    /// Number of CPUs of a copy in the last run in which launchers inside the program started
    /// copies; `null` without such a run.
    pub cpus_per_copy: Option<u32>,
}

/// The profiles of a store.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProfileList {
    /// The file of the store.
    pub store: PathBuf,
    /// All profiles.
    pub profiles: Vec<ProfileAnswer>,
}

/// Selected profiles.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Profiles {
    /// The profiles.
    pub profiles: Vec<ProfileAnswer>,
}

/// Identifier and name of a profile.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProfileName {
    /// The identifier of the profile.
    pub id: String,
    /// The name of the program.
    pub name: String,
}

/// Deleted profiles.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RemoveAnswer {
    /// The profiles.
    pub removed: Vec<ProfileName>,
}

/// The exported profiles themselves, or with `--out` what was written.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[allow(
    dead_code,
    reason = "without --out, the store writes the document; this type has its schema"
)]
pub enum ExportAnswer {
    /// A file of profiles (`docs/profiles.md`).
    Document(usher_store::exchange::Document),
    /// The result with `--out`.
    Written {
        /// The exported profiles.
        exported: Vec<ProfileName>,
        /// The written file.
        file: PathBuf,
    },
}

/// The result of an import.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImportAnswer {
    /// The stored profiles.
    pub imported: Vec<ProfileName>,
    /// The profiles of the file that the store already had.
    pub kept: Vec<ProfileName>,
}

/// A scheduler that was started.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SchedStartAnswer {
    /// The name of the scheduler.
    pub scheduler: &'static str,
    /// Its behaviour, as text.
    pub does: String,
}

/// A scheduler with changed settings.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SchedSetAnswer {
    /// Its behaviour, as text.
    pub does: String,
    /// The settings.
    pub settings: Settings,
}

/// The result of a mix.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MixAnswer {
    /// The measurements and their comparison.
    pub result: MixResult,
    /// The written files.
    pub files: Vec<PathBuf>,
}

/// The result of a simulated mix.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SimMixAnswer {
    /// Always true.
    pub simulated: bool,
    /// The machine's description.
    pub machine: String,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The comparison of the schedulers.
    pub result: MixResult,
    /// The runs of all schedulers.
    pub runs: Vec<SimRun>,
    /// The written files.
    pub files: Vec<PathBuf>,
}

/// One simulated run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SimRun {
    /// The scheduler or policy.
    pub scheduler: String,
    /// The round, from 1.
    pub round: usize,
    /// ANTT of the run; `null` if a program has no NTT.
    pub antt: Option<f64>,
    /// Whether all programs completed.
    pub complete: bool,
    /// Simulated seconds.
    pub virtual_seconds: f64,
    /// Number of simulated events.
    pub events: u64,
    /// Number of actions of each kind.
    pub action_counts: usher_sim::trial::ActionCounts,
    /// Statistics of the programs that arrived; `null` for mixes without arrivals.
    pub arrivals: Option<ArrivalStats>,
    /// The programs.
    pub programs: Vec<SimProgram>,
}

/// A program of a simulated run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SimProgram {
    /// The name of the program in the run.
    pub name: String,
    /// The name of the program in the file.
    pub program: String,
    /// Simulated time of its arrival.
    pub at_s: f64,
    /// Simulated time of its end; `null` if it had not ended.
    pub left_s: Option<f64>,
    /// Whether it arrived at random.
    pub random: bool,
    /// Times of its repetitions.
    pub seconds: Vec<f64>,
    /// Normalised turnaround time; `null` if no repetition completed.
    pub ntt: Option<f64>,
}

/// The result of simulated runs with random cases.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FuzzAnswer {
    /// Always true.
    pub simulated: bool,
    /// Number of simulated seeds.
    pub seeds: u64,
    /// Sums over the seeds without a violation.
    pub totals: FuzzTotals,
    /// Violations of invariants.
    pub violations: Vec<FuzzViolation>,
}

/// Sums over simulated runs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FuzzTotals {
    /// Number of decisions.
    pub decisions: u64,
    /// Number of actions.
    pub actions: u64,
    /// Number of failed actions.
    pub failed: u64,
    /// Number of killed daemons.
    pub daemons_killed: u64,
    /// Number of simulated events.
    pub events: u64,
}

/// A violation of an invariant.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FuzzViolation {
    /// The seed that reproduces it.
    pub seed: u64,
    /// The policy.
    pub policy: String,
    /// Simulated time in nanoseconds.
    pub at_ns: u64,
    /// The violated invariant.
    pub what: String,
    /// The last log entries before the violation.
    pub last: Vec<String>,
}

/// The result of a replay.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReplayAnswer {
    /// Number of decisions that equal the recorded ones, from the start of the record.
    pub steps: usize,
    /// Whether all decisions are equal.
    pub same: bool,
    /// The first decision that differs; `null` if all are equal.
    pub difference: Option<ReplayDifference>,
}

/// A decision that differs from the record.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReplayDifference {
    /// The number of the step, from 0.
    pub step: usize,
    /// The recorded decision.
    pub recorded: Decision,
    /// The decision of this version.
    pub now: Decision,
}

/// The manual pages that `usher man` has written.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WrittenPages {
    /// The files.
    pub written: Vec<PathBuf>,
}
