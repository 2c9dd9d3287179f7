// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workloads of the parts `latency` and `peers`, with the names of their samples, their titles
//! and their measures. Each workload of the part `peers` has one measure; smaller values are
//! better.

use serde::{Deserialize, Serialize};

/// A workload of the part `peers`. The eighth workload, Erlang, is the load of the part `erlang`
/// ([`super::messages::GuestLoad::Erlang`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// `make -j` of a generated C project.
    Make,
    /// `hackbench`: groups of processes that send messages through sockets.
    Hackbench,
    /// Message threads that wake worker threads, after schbench, under full load.
    Wakeup,
    /// Client threads and server threads of two processes, which exchange requests and responses.
    Requests,
    /// Short and long loops, one per CPU (paper 3b).
    Pairs,
    /// Two programs whose threads wait for one another by spinning, as LAMMPS does under MPI.
    Spin,
    /// A pool of threads, each of which has a pool of threads of its own.
    Pools,
}

/// All workloads except Erlang, in the order of the table.
pub const WORKLOADS: [Workload; 7] = [
    Workload::Make,
    Workload::Hackbench,
    Workload::Wakeup,
    Workload::Requests,
    Workload::Pairs,
    Workload::Spin,
    Workload::Pools,
];

impl Workload {
    /// Name of the workload's samples.
    pub fn sample_name(self) -> &'static str {
        match self {
            Self::Make => "peers-make",
            Self::Hackbench => "peers-hackbench",
            Self::Wakeup => "peers-wakeup",
            Self::Requests => "peers-requests",
            Self::Pairs => "peers-pairs",
            Self::Spin => "peers-spin",
            Self::Pools => "peers-pools",
        }
    }

    /// Name of the workload in tables.
    pub fn title(self) -> &'static str {
        match self {
            Self::Make => "make -j",
            Self::Hackbench => "hackbench",
            Self::Wakeup => "wake-ups (after schbench)",
            Self::Requests => "requests (after sysbench oltp)",
            Self::Pairs => "short and long loops (paper 3b)",
            Self::Spin => "spin waits (after LAMMPS)",
            Self::Pools => "nested pools",
        }
    }

    /// The measure, with its unit.
    pub fn measure(self) -> &'static str {
        match self {
            Self::Make | Self::Hackbench | Self::Spin | Self::Pools => "elapsed time, ms",
            Self::Wakeup => "wake-up latency, 99 %, ms",
            Self::Requests => "response time, 99 %, ms",
            Self::Pairs => "time with two loops on a core while another core is idle, ms",
        }
    }
}

/// A program that measures wake-up latencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// Message threads and worker threads, after schbench.
    Wakeup,
    /// `cyclictest` of rt-tests, with threads of the normal scheduling class.
    Cyclictest,
}

/// The other work during a measurement of latencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OtherWork {
    /// `make -j` of a generated C project, again and again.
    Make,
    /// Threads that start one short program after another.
    ForkStorm,
}

/// All combinations of a probe and other work, in the order of the table.
pub const LATENCIES: [(Probe, OtherWork); 4] = [
    (Probe::Wakeup, OtherWork::Make),
    (Probe::Wakeup, OtherWork::ForkStorm),
    (Probe::Cyclictest, OtherWork::Make),
    (Probe::Cyclictest, OtherWork::ForkStorm),
];

impl Probe {
    /// Name of the samples of this probe beside other work.
    pub fn sample_name(self, beside: OtherWork) -> &'static str {
        match (self, beside) {
            (Self::Wakeup, OtherWork::Make) => "latency-wakeup-make",
            (Self::Wakeup, OtherWork::ForkStorm) => "latency-wakeup-fork-storm",
            (Self::Cyclictest, OtherWork::Make) => "latency-cyclictest-make",
            (Self::Cyclictest, OtherWork::ForkStorm) => "latency-cyclictest-fork-storm",
        }
    }

    /// Name of the probe in tables.
    pub fn title(self) -> &'static str {
        match self {
            Self::Wakeup => "wake-ups (after schbench)",
            Self::Cyclictest => "cyclictest",
        }
    }
}

impl OtherWork {
    /// Name of the work in tables.
    pub fn title(self) -> &'static str {
        match self {
            Self::Make => "make -j",
            Self::ForkStorm => "a fork storm",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn sample_names_differ() {
        let workloads = WORKLOADS.map(Workload::sample_name);
        let latencies = LATENCIES.map(|(probe, beside)| probe.sample_name(beside));
        let all: BTreeSet<&str> = workloads.into_iter().chain(latencies).collect();
        assert_eq!(all.len(), WORKLOADS.len() + LATENCIES.len());
    }
}
