// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between the two sides of a guest: the plan on the command line of the program inside,
//! and a line of JSON on its standard output for each measurement.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use usher_rules::latency;

use super::rival::Rival;
use super::sample_names;

/// The plan of measurements in a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The `usher` that is measured.
    pub usher: PathBuf,
    /// The schedulers, in the order in which they run.
    pub turns: Vec<Turn>,
}

/// A scheduler, and what runs under it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The scheduler.
    pub rival: Rival,
    /// Each of its loads runs once in each of these rounds.
    pub rounds: Vec<usize>,
    /// The loads.
    pub loads: Vec<Load>,
}

/// Programs that are run to see what a scheduler does with them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
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
        /// Virtual machines of Erlang; all processes of a machine message each other.
        vms: Vec<usize>,
        /// The command of one of them.
        command: Vec<String>,
        /// Its environment.
        environment: BTreeMap<String, String>,
        /// Beside the thread that mostly sleeps. Results of older versions have no such runs, so
        /// false is left out.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        sleeper: bool,
    },
    /// Other programs, all at once beside that thread.
    Mix {
        /// Their commands.
        commands: Vec<Vec<String>>,
    },
    /// Two short loops and two long loops.
    Cores {
        /// Number of repetitions.
        times: usize,
        /// Time of a short loop alone.
        short_ms: u64,
        /// Time of a long loop alone.
        long_ms: u64,
    },
    /// Three programs with seats, one of which rests half of the time.
    Seats {
        /// Number of times that it works and rests.
        rounds: usize,
        /// Work of each owner thread per round: its time in microseconds if it runs alone.
        work_us: u64,
    },
    /// Two that take turns.
    Overhead {
        /// Approximate length.
        ms: u64,
    },
    /// The same on a machine with SMT.
    OverheadSmt {
        /// Approximate length.
        ms: u64,
        /// CPUs of the machine.
        cpus: usize,
    },
    /// Loops beside programs that end soon.
    ForkStorm {
        /// Number of these programs at a time.
        at_once: usize,
        /// Work of each loop: its time in milliseconds if it runs alone.
        work_ms: u64,
    },
}

impl Load {
    /// Name of the load's samples: that of its part, with another name for the second load of a
    /// part.
    pub fn part(&self) -> &'static str {
        match self {
            Self::Spaces { .. } => sample_names::SPACES,
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

    /// Numbers of programs that run at once, in order; each gives a sample.
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

/// Loops of [`Load::Cores`] and [`Load::ForkStorm`].
pub const LOOPS: usize = 4;
/// Programs of [`Load::Seats`].
const SEATED: usize = 3;
/// Programs of [`Load::Overhead`].
const TAKE_TURNS: usize = 2;

/// A line of the program inside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestMessage {
    /// Something was measured.
    Sample(Box<Sample>),
    /// All of a load was measured under that scheduler in these rounds.
    Done {
        /// The load's part.
        part: String,
        /// The scheduler.
        rival: Rival,
        /// Rounds, from 0.
        rounds: Vec<usize>,
    },
    /// The load could not be measured, and will not be tried again.
    LeftOut {
        /// The load's part.
        part: String,
        /// The scheduler.
        rival: Rival,
        /// Rounds, from 0; missing in the lines of older versions, which meant all rounds.
        #[serde(default)]
        rounds: Vec<usize>,
        /// Why.
        why: String,
    },
}

/// One load under one scheduler, once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The load's part.
    pub part: String,
    /// The scheduler.
    pub rival: Rival,
    /// Programs that ran, where a part has several numbers of them.
    pub programs: usize,
    /// Round, from 0.
    pub round: usize,
    /// Figures of the kernel, if they were counted.
    pub counted: Option<Counted>,
    /// End of each program, in seconds from the start.
    #[serde(default)]
    pub ends_s: Vec<f64>,
    /// Delay of each wake-up of the sleeping thread.
    #[serde(default)]
    pub late_ms: Vec<f64>,
    /// Other figures, by names that the part defines.
    #[serde(default)]
    pub figures: BTreeMap<String, f64>,
}

/// Figures of `usher sched stats --json` that the benchmark uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Context switches, those to idle included.
    pub switches: u64,
    /// Switches to a user thread of another address space than the last user thread on that CPU.
    pub space_switches: u64,
    /// Wake-ups with a measured latency.
    pub wakeups: u64,
    /// Wake-ups by latency in nanoseconds, as a histogram ([`latency`]).
    pub latency: Vec<u64>,
    /// Time in which at least one core worked on two threads.
    pub shared_ns: u64,
    /// The same while another core was idle.
    pub needless_ns: u64,
}

impl Counted {
    /// Upper bound of the latency of that share of wake-ups, in milliseconds: the upper end of a
    /// slot. `None` without wake-ups.
    pub fn latency_below_ms(&self, share: f64) -> Option<f64> {
        Self::below_ms(&self.latency, share)
    }

    /// The same of such counts.
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
            rival: Rival::EevdfSlice { ms: 8 },
            programs: 7,
            round: 0,
            counted: Some(Counted::default()),
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
        let erlang = Load::Erlang {
            vms: vec![4, 7],
            command: vec![],
            environment: BTreeMap::new(),
            sleeper: false,
        };
        assert_eq!(erlang.numbers(), [4, 7]);
        assert_eq!(Load::Overhead { ms: 1 }.numbers(), [2]);
        // As an older version wrote it.
        let older = r#"{"erlang":{"vms":[4,7],"command":[],"environment":{}}}"#;
        assert_eq!(serde_json::from_str::<Load>(older).unwrap(), erlang);
        assert_eq!(serde_json::to_string(&erlang).unwrap(), older);
    }

    #[test]
    fn other_figures_of_usher_are_ignored() {
        let line = r#"{"switches":3,"space_switches":2,"mm_changes":9,"wakeups":1,
            "latency":[0,0,0,0,0,0,4],"shared_ns":0,"needless_ns":0}"#;
        let counted: Counted = serde_json::from_str(line).unwrap();
        assert_eq!((counted.switches, counted.space_switches), (3, 2));
        assert_eq!(counted.latency_below_ms(0.99), Some(4e-6));
        assert_eq!(Counted::default().latency_below_ms(0.5), None);
    }
}
