// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between the benchmark on the host and its program in a guest. The host passes the plan
//! as JSON on the command line; the guest prints one line of JSON per sample, per completed load
//! and per load that was left out.
//!
//! The lines are also the files of a run, so old files must stay readable: new fields have
//! defaults.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use usher_rules::latency;

use super::sample_names;
use super::schedulers::ComparedScheduler;

/// The plan of all measurements in one guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GuestPlan {
    /// The `usher` that is measured.
    pub usher: PathBuf,
    /// Schedulers with their loads, in the order in which they run.
    pub turns: Vec<SchedulerPlan>,
}

/// A scheduler, and the loads that run under it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SchedulerPlan {
    /// The scheduler.
    #[serde(rename = "rival")]
    pub scheduler: ComparedScheduler,
    /// Numbers of the rounds, from 0. Each load runs once per round.
    pub rounds: Vec<usize>,
    /// The loads.
    pub loads: Vec<GuestLoad>,
}

/// A set of programs that run under each scheduler. Each variant belongs to one part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestLoad {
    /// Programs with equal arithmetic beside a thread that mostly sleeps.
    Spaces {
        /// Number of programs.
        programs: usize,
        /// Threads of each program.
        threads: usize,
        /// Work of each thread: its time in milliseconds if it runs alone.
        work_ms: u64,
    },
    /// Erlang's virtual machines; all processes of a machine message each other.
    Erlang {
        /// Numbers of virtual machines that run at once, one number after the other.
        vms: Vec<usize>,
        /// The command of one virtual machine.
        command: Vec<String>,
        /// The environment of that command.
        environment: BTreeMap<String, String>,
        /// Whether a thread that mostly sleeps runs beside them. False is left out of the JSON, as
        /// older versions had no such runs.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        sleeper: bool,
    },
    /// Programs as users run them, all at once beside a thread that mostly sleeps.
    Mix {
        /// Their commands.
        commands: Vec<Vec<String>>,
    },
    /// Two short loops and two long loops.
    Cores {
        /// Number of repetitions.
        times: usize,
        /// Time of a short loop in milliseconds if it runs alone.
        short_ms: u64,
        /// Time of a long loop in milliseconds if it runs alone.
        long_ms: u64,
    },
    /// Three programs with seats, one of which rests half of the time.
    Seats {
        /// Number of times that the owner works and then rests.
        rounds: usize,
        /// Work of each owner thread per round: its time in microseconds if it runs alone.
        work_us: u64,
    },
    /// Two partners that take turns: each wakes the other and sleeps.
    Overhead {
        /// Approximate length of a measurement in milliseconds.
        ms: u64,
    },
    /// The same on a machine with SMT.
    OverheadSmt {
        /// Approximate length of a measurement in milliseconds.
        ms: u64,
        /// CPUs of the machine.
        cpus: usize,
    },
    /// Loops beside a fork storm: programs that end at once, each followed by the next.
    ForkStorm {
        /// Number of these programs at a time.
        at_once: usize,
        /// Work of each loop: its time in milliseconds if it runs alone.
        work_ms: u64,
    },
}

impl GuestLoad {
    /// Name of the load's samples: that of its part, with another name for the second load of a
    /// part.
    pub fn part(&self) -> &'static str {
        match self {
            Self::Spaces { .. } => sample_names::ADDRESS_SPACES,
            Self::Erlang { sleeper: true, .. } => sample_names::ERLANG_BESIDE_SLEEPER,
            Self::Erlang { .. } => sample_names::ERLANG,
            Self::Mix { .. } => sample_names::MIX,
            Self::Cores { .. } => sample_names::CORES,
            Self::Seats { .. } => sample_names::SEATS,
            Self::Overhead { .. } => sample_names::OVERHEAD,
            Self::OverheadSmt { cpus: 8, .. } => sample_names::OVERHEAD_8,
            Self::OverheadSmt { .. } => sample_names::OVERHEAD_48,
            Self::ForkStorm { .. } => sample_names::FORK_STORM,
        }
    }

    /// Numbers of programs that run at once; each number gives a sample per round.
    pub fn numbers(&self) -> Vec<usize> {
        match self {
            Self::Spaces { programs, .. } => vec![*programs],
            Self::Erlang { vms, .. } => vms.clone(),
            Self::Mix { commands } => vec![commands.len()],
            Self::Cores { .. } => vec![LOOPS],
            Self::Seats { .. } => vec![SEATED],
            Self::Overhead { .. } | Self::OverheadSmt { .. } => vec![TAKE_TURNS],
            Self::ForkStorm { .. } => vec![LOOPS],
        }
    }
}

/// Loops of [`GuestLoad::Cores`] and [`GuestLoad::ForkStorm`].
pub const LOOPS: usize = 4;
/// Programs of [`GuestLoad::Seats`].
const SEATED: usize = 3;
/// Programs of [`GuestLoad::Overhead`].
const TAKE_TURNS: usize = 2;

/// A line that the program in the guest prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestMessage {
    /// The figures of one run of a load.
    Sample(Box<Sample>),
    /// The load is complete under that scheduler in these rounds.
    Done {
        /// The load's part.
        part: String,
        /// The scheduler.
        #[serde(rename = "rival")]
        scheduler: ComparedScheduler,
        /// Rounds, from 0.
        rounds: Vec<usize>,
    },
    /// The load could not be measured, and will not be tried again.
    LeftOut {
        /// The load's part.
        part: String,
        /// The scheduler.
        #[serde(rename = "rival")]
        scheduler: ComparedScheduler,
        /// Rounds, from 0; missing in the lines of older versions, which meant all rounds.
        #[serde(default)]
        rounds: Vec<usize>,
        /// The reason.
        why: String,
    },
}

/// Figures of one run of a load under one scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The load's part.
    pub part: String,
    /// The scheduler.
    #[serde(rename = "rival")]
    pub scheduler: ComparedScheduler,
    /// Number of programs that ran at once.
    pub programs: usize,
    /// Round, from 0.
    pub round: usize,
    /// Counts of switches and wake-ups, if the part needs them.
    pub counted: Option<SwitchCounts>,
    /// End of each program, in seconds from the start.
    #[serde(default)]
    pub ends_s: Vec<f64>,
    /// Delay of each wake-up of the sleeping thread, in milliseconds.
    #[serde(default)]
    pub late_ms: Vec<f64>,
    /// Other figures, by the names in `sample_names`.
    #[serde(default)]
    pub figures: BTreeMap<String, f64>,
}

/// Figures of `usher sched stats --json` that the benchmark uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchCounts {
    /// Context switches, those to idle included.
    pub switches: u64,
    /// Switches to a user thread of another address space than the last user thread on that CPU.
    pub space_switches: u64,
    /// Wake-ups with a measured latency.
    pub wakeups: u64,
    /// Wake-ups by latency in nanoseconds, as a histogram ([`latency`]).
    pub latency: Vec<u64>,
    /// Time in nanoseconds in which at least one core ran two threads.
    pub shared_ns: u64,
    /// Part of that time, in nanoseconds, in which another core was idle.
    pub needless_ns: u64,
}

impl SwitchCounts {
    /// Quantile of the wake-up latency, in milliseconds, rounded up to the end of its histogram
    /// slot; `share` is from 0 to 1. `None` without wake-ups.
    pub fn latency_below_ms(&self, share: f64) -> Option<f64> {
        Self::below_ms(&self.latency, share)
    }

    /// The same for a histogram of latencies in nanoseconds.
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
        };
        assert_eq!(erlang.numbers(), [4, 7]);
        assert_eq!(GuestLoad::Overhead { ms: 1 }.numbers(), [2]);
        // As an older version wrote it.
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
