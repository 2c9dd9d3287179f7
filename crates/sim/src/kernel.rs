// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of the simulated kernel: the order of threads (EEVDF, CFS or Usher's
//! scheduler), the length of slices, and the periods of load balancing.
//!
//! The presets contain the constants from the source of the kernels. Usher's scheduler can be
//! simulated on at most [`CPUS_MAX`] CPUs and [`LLCS_MAX`] last-level caches, because its C source
//! has tables of that size.
//!
//! Times are in nanoseconds; 0 switches a preemption rule or busy balancing off. Module `mixfile`
//! limits the values in sim files.

use serde::{Deserialize, Serialize};
use usher_model::Topology;
use usher_rules::select_cpu::{CPUS_MAX, LLCS_MAX};

/// The entities among which CPU time is shared evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupBy {
    /// Threads share evenly, as in Linux before 2.6.38, which paper 1 used.
    Threads,
    /// Programs share evenly, because each program has an autogroup or a cgroup of its own.
    Programs,
}

/// The order in which queued threads run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueOrder {
    /// Earliest eligible virtual deadline first.
    Eevdf,
    /// Least virtual runtime first.
    Cfs,
    /// Usher's sched_ext scheduler: threads grouped by address space.
    #[serde(rename = "usher-sched")]
    Usher,
}

/// Configuration of the simulated kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kernel {
    /// The entities among which CPU time is shared evenly.
    pub group_by: GroupBy,
    /// Whether an idle core is preferred to an idle hardware thread of a busy core.
    pub smt_aware: bool,
    /// The order of the queues.
    pub order: QueueOrder,
    /// Length of a slice while other threads wait; under CFS, the minimum length of a slice.
    pub slice_ns: u64,
    /// EEVDF: time after its start during which a running thread cannot be preempted by a woken
    /// thread.
    pub protect_ns: u64,
    /// Usher's scheduler: threads of one address space run one after another.
    pub aggregate: bool,
    /// Usher's scheduler: maximum time for which threads of one address space run one after another
    /// (a turn).
    pub turn_ns: u64,
    /// Usher's scheduler: maximum virtual time by which a turn may get ahead of waiting threads.
    pub max_lag_ns: u64,
    /// CFS: period in which each queued thread runs once. A woken thread may have at most half of
    /// this period as credit.
    pub latency_ns: u64,
    /// CFS: a woken thread preempts the running thread only if its virtual runtime is lower by at
    /// least this time.
    pub wakeup_granularity_ns: u64,
    /// Period at which idle CPUs search other queues for work.
    pub balance_ns: u64,
    /// Period at which the loads of busy CPUs are balanced.
    pub busy_balance_ns: u64,
}

impl Default for Kernel {
    /// Returns a current Linux kernel (EEVDF) with its values for eight CPUs or more.
    fn default() -> Self {
        Self {
            group_by: GroupBy::Programs,
            smt_aware: true,
            order: QueueOrder::Eevdf,
            slice_ns: 3_000_000,
            protect_ns: 750_000,
            aggregate: true,
            turn_ns: 24_000_000,
            max_lag_ns: 24_000_000,
            latency_ns: 24_000_000,
            wakeup_granularity_ns: 4_000_000,
            balance_ns: 4_000_000,
            busy_balance_ns: 128_000_000,
        }
    }
}

impl Kernel {
    /// Returns Linux 2.6.37 with its values for eight CPUs or more, which is the kernel of paper 1:
    /// CFS without autogroups. The values come from the kernel's source: a latency of 24 ms, slices
    /// of at least 3 ms, and a wake-up granularity of 4 ms.
    pub fn cfs() -> Self {
        Self {
            group_by: GroupBy::Threads,
            order: QueueOrder::Cfs,
            ..Self::default()
        }
    }

    /// Returns a current kernel that runs Usher's scheduler (`usher sched`) with its default
    /// settings.
    pub fn usher() -> Self {
        Self {
            group_by: GroupBy::Threads,
            order: QueueOrder::Usher,
            ..Self::default()
        }
    }

    /// Returns whether this kernel runs Usher's scheduler.
    pub(crate) fn is_usher(&self) -> bool {
        self.order == QueueOrder::Usher
    }

    /// Checks that the scheduler supports the machine.
    ///
    /// # Errors
    /// The machine has more CPUs or domains than the tables of Usher's scheduler.
    pub fn check(&self, machine: &Topology) -> Result<(), TooLarge> {
        let (cpus, llcs) = (machine.cpus.len(), machine.domains.len());
        match self.order {
            QueueOrder::Usher if cpus > CPUS_MAX => Err(TooLarge::Cpus(cpus)),
            QueueOrder::Usher if llcs > LLCS_MAX => Err(TooLarge::Llcs(llcs)),
            _ => Ok(()),
        }
    }
}

/// A machine that exceeds the tables of Usher's scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// The machine has too many CPUs. The value is their number.
    #[error("the machine has {0} CPUs; Usher's scheduler supports at most {CPUS_MAX}")]
    Cpus(usize),
    /// The machine has too many last-level caches, so that some would have to share queues. The
    /// value is their number.
    #[error("the machine has {0} last-level caches; Usher's scheduler supports at most {LLCS_MAX}")]
    Llcs(usize),
}

/// Hashes three numbers to a pseudo-random number, by the method of splitmix64.
pub(crate) fn mix(a: u64, b: u64, c: u64) -> u64 {
    let mut z = a
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(b.wrapping_mul(0xbf58_476d_1ce4_e5b9))
        .wrapping_add(c.wrapping_mul(0x94d0_49bb_1331_11eb));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
