// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between the benchmark on the host and its program in a guest. The host passes the plan
//! as JSON on the command line; the guest prints one line of JSON per sample, per completed load
//! and per load that was left out.
//!
//! The same lines are saved as the files of a run. Because old files must stay readable, each new
//! field has a default value.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use usher_rules::latency;

use super::sample_names;
use super::schedulers::ComparedScheduler;
use super::workloads::{OtherWork, Probe, Workload};

/// The plan of all measurements in a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GuestPlan {
    /// The `usher` that is measured.
    pub usher: PathBuf,
    /// The schedulers with their loads, in the order in which they run.
    pub turns: Vec<SchedulerPlan>,
}

/// A scheduler, and the loads that run under it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SchedulerPlan {
    /// The scheduler.
    #[serde(rename = "rival")]
    pub scheduler: ComparedScheduler,
    /// Numbers of the rounds, counted from 0. Each load runs once per round.
    pub rounds: Vec<usize>,
    /// The loads that run under the scheduler.
    pub loads: Vec<GuestLoad>,
}

/// A load: the programs that run at the same time in a measurement. Each variant belongs to one
/// part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestLoad {
    /// Programs with equal arithmetic beside a thread that mostly sleeps.
    Spaces {
        /// Number of programs.
        programs: usize,
        /// Threads of each program.
        threads: usize,
        /// Work of each thread, given as its time in milliseconds if the thread runs alone.
        work_ms: u64,
    },
    /// Erlang's virtual machines; all processes of a machine message each other.
    Erlang {
        /// Numbers of virtual machines that run at the same time. Each number is measured
        /// separately.
        vms: Vec<usize>,
        /// Command line of a virtual machine.
        command: Vec<String>,
        /// Environment of the command.
        environment: BTreeMap<String, String>,
        /// Whether a thread that mostly sleeps runs beside the virtual machines. The JSON contains
        /// only the value true, because older versions had no such runs.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        sleeper: bool,
        /// Whether the load belongs to the part `peers`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        of_peers: bool,
    },
    /// Ordinary programs (PostgreSQL, make, Java), all at the same time, beside a thread that
    /// mostly sleeps.
    Mix {
        /// Command lines of the programs.
        commands: Vec<Vec<String>>,
    },
    /// Two short loops and two long loops.
    Cores {
        /// Number of repetitions.
        times: usize,
        /// Work of a short loop, given as its time in milliseconds if it runs alone.
        short_ms: u64,
        /// Work of a long loop, given as its time in milliseconds if it runs alone.
        long_ms: u64,
    },
    /// Three programs with seats, one of which rests half of the time.
    Seats {
        /// Number of times that the owner of the idle seat works and then rests.
        rounds: usize,
        /// Work of each thread of the owner per round, given as its time in microseconds if the
        /// thread runs alone.
        work_us: u64,
    },
    /// Two partners that run alternately on one CPU: each wakes the other partner and sleeps.
    Overhead {
        /// Approximate length of a measurement in milliseconds.
        ms: u64,
    },
    /// Two partners that run alternately, on a machine with several CPUs and SMT.
    OverheadSmt {
        /// Approximate length of a measurement in milliseconds.
        ms: u64,
        /// Number of CPUs of the machine.
        cpus: usize,
    },
    /// Loops beside a fork storm: threads that repeatedly start a program that ends at once.
    ForkStorm {
        /// Number of threads that start programs.
        at_once: usize,
        /// Work of each loop, given as its time in milliseconds if it runs alone.
        work_ms: u64,
    },
    /// Wake-up latencies beside other work. The number of the round is the seed.
    Latency {
        /// The program that measures latencies.
        probe: Probe,
        /// The other work.
        beside: OtherWork,
        /// Length of the measurement in milliseconds.
        ms: u64,
    },
    /// Random threads, in which the number of the round is the seed.
    Conservation {
        /// Length of the measurement in milliseconds.
        ms: u64,
    },
    /// A workload of the comparison with peers. The number of the round is the seed.
    Peers {
        /// The workload.
        workload: Workload,
    },
}

impl GuestLoad {
    /// Name of the load's samples, which is the name of its part. The second load of a part has
    /// another name.
    pub fn part(&self) -> &'static str {
        match self {
            Self::Spaces { .. } => sample_names::ADDRESS_SPACES,
            Self::Erlang { of_peers: true, .. } => sample_names::PEERS_ERLANG,
            Self::Erlang { sleeper: true, .. } => sample_names::ERLANG_BESIDE_SLEEPER,
            Self::Erlang { .. } => sample_names::ERLANG,
            Self::Mix { .. } => sample_names::MIX,
            Self::Cores { .. } => sample_names::CORES,
            Self::Seats { .. } => sample_names::SEATS,
            Self::Overhead { .. } => sample_names::OVERHEAD,
            Self::OverheadSmt { cpus: 8, .. } => sample_names::OVERHEAD_8,
            Self::OverheadSmt { .. } => sample_names::OVERHEAD_48,
            Self::ForkStorm { .. } => sample_names::FORK_STORM,
            Self::Latency { probe, beside, .. } => probe.sample_name(*beside),
            Self::Conservation { .. } => sample_names::CONSERVATION,
            Self::Peers { workload } => workload.sample_name(),
        }
    }

    /// Numbers of programs that run at the same time. Each number gives one sample per round.
    pub fn numbers(&self) -> Vec<usize> {
        match self {
            Self::Spaces { programs, .. } => vec![*programs],
            Self::Erlang { vms, .. } => vms.clone(),
            Self::Mix { commands } => vec![commands.len()],
            Self::Cores { .. } => vec![LOOPS],
            Self::Seats { .. } => vec![SEATED],
            Self::Overhead { .. } | Self::OverheadSmt { .. } => vec![TAKE_TURNS],
            Self::ForkStorm { .. } => vec![LOOPS],
            Self::Latency { .. } | Self::Conservation { .. } | Self::Peers { .. } => vec![1],
        }
    }
}

/// Number of loops in [`GuestLoad::Cores`] and [`GuestLoad::ForkStorm`].
pub const LOOPS: usize = 4;
/// Number of programs in [`GuestLoad::Seats`].
const SEATED: usize = 3;
/// Number of partners in [`GuestLoad::Overhead`].
const TAKE_TURNS: usize = 2;

/// A line that the program in the guest prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestMessage {
    /// The figures of one run of a load.
    Sample(Box<Sample>),
    /// A load is complete under a scheduler, in the given rounds.
    Done {
        /// Name of the load's samples.
        part: String,
        /// The scheduler under which the load ran.
        #[serde(rename = "rival")]
        scheduler: ComparedScheduler,
        /// Numbers of the complete rounds, counted from 0.
        rounds: Vec<usize>,
    },
    /// A load could not be measured. A resumed run does not try the load again.
    LeftOut {
        /// Name of the load's samples.
        part: String,
        /// The scheduler under which the load failed.
        #[serde(rename = "rival")]
        scheduler: ComparedScheduler,
        /// Numbers of the rounds, counted from 0. Lines of older versions have no rounds, which
        /// means all rounds.
        #[serde(default)]
        rounds: Vec<usize>,
        /// The reason why the load was left out.
        why: String,
    },
}

/// Figures of one run of a load under one scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Name of the load's samples.
    pub part: String,
    /// The scheduler under which the load ran.
    #[serde(rename = "rival")]
    pub scheduler: ComparedScheduler,
    /// Number of programs that ran at the same time.
    pub programs: usize,
    /// Number of the round, counted from 0.
    pub round: usize,
    /// Counts of context switches and wake-ups; `None` in parts that do not use counts.
    pub counted: Option<SwitchCounts>,
    /// End time of each program, in seconds from the start of the load.
    #[serde(default)]
    pub ends_s: Vec<f64>,
    /// Delay of each wake-up of the sleeping thread, in milliseconds.
    #[serde(default)]
    pub late_ms: Vec<f64>,
    /// Further figures; `sample_names` defines their names.
    #[serde(default)]
    pub figures: BTreeMap<String, f64>,
}

/// Those figures of `usher sched stats --json` that the benchmark uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchCounts {
    /// Number of context switches, including switches to the idle thread.
    pub switches: u64,
    /// Number of switches to a user thread of another address space than that of the last user
    /// thread on the same CPU.
    pub space_switches: u64,
    /// Number of wake-ups with a measured latency.
    pub wakeups: u64,
    /// Histogram of the wake-up latencies in nanoseconds ([`latency`]).
    pub latency: Vec<u64>,
    /// Time in nanoseconds in which at least one core ran two threads.
    pub shared_ns: u64,
    /// Part of `shared_ns`, in nanoseconds, in which another core was idle.
    pub needless_ns: u64,
}

impl SwitchCounts {
    /// Returns the quantile `share` (0 to 1) of the wake-up latency in milliseconds, rounded up to
    /// the upper end of its histogram bucket. `None` without wake-ups.
    pub fn latency_below_ms(&self, share: f64) -> Option<f64> {
        Self::below_ms(&self.latency, share)
    }

    /// Returns the quantile `share` in milliseconds of a histogram of latencies in nanoseconds.
    pub fn below_ms(counts: &[u64], share: f64) -> Option<f64> {
        latency::below(counts, share).map(|ns| ns as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_survives_a_round_trip() {
        let sample = Sample {
            part: "spaces".to_owned(),
            scheduler: ComparedScheduler::EevdfSlice { ms: 8 },
            programs: 7,
            round: 0,
            counted: Some(SwitchCounts::default()),
            ends_s: vec![1.5],
            late_ms: vec![],
            figures: BTreeMap::new(),
        };
        let message = GuestMessage::Sample(Box::new(sample));
        let line = serde_json::to_string(&message).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(
            serde_json::from_str::<GuestMessage>(&line).unwrap(),
            message
        );
    }

    #[test]
    fn loads_are_run_with_each_number_of_programs() {
        let erlang = GuestLoad::Erlang {
            vms: vec![4, 7],
            command: vec![],
            environment: BTreeMap::new(),
            sleeper: false,
            of_peers: false,
        };
        assert_eq!(erlang.numbers(), [4, 7]);
        assert_eq!(GuestLoad::Overhead { ms: 1 }.numbers(), [2]);
        // Text that an older version of the benchmark wrote.
        let older = r#"{"erlang":{"vms":[4,7],"command":[],"environment":{}}}"#;
        assert_eq!(serde_json::from_str::<GuestLoad>(older).unwrap(), erlang);
        assert_eq!(serde_json::to_string(&erlang).unwrap(), older);
    }

    #[test]
    fn other_figures_of_usher_are_ignored() {
        let line = r#"{"switches":3,"space_switches":2,"mm_changes":9,"wakeups":1,
            "latency":[0,0,0,0,0,0,4],"shared_ns":0,"needless_ns":0}"#;
        let counted: SwitchCounts = serde_json::from_str(line).unwrap();
        assert_eq!((counted.switches, counted.space_switches), (3, 2));
        assert_eq!(counted.latency_below_ms(0.99), Some(4e-6));
        assert_eq!(SwitchCounts::default().latency_below_ms(0.5), None);
    }
}
