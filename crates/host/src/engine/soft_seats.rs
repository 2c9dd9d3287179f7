// SPDX-License-Identifier: MIT OR Apache-2.0
//! Soft seats: seats that a scheduler keeps, instead of affinity masks.
//!
//! An affinity mask forbids all other CPUs: CPUs that the program leaves idle are lost, or
//! have to be lent in ticks of the loop. A scheduler that knows the seats gives a preference:
//! a program runs on its seat at once, and other programs run there only while it is idle.
//!
//! - If such a scheduler runs, it seats each program that is alone in its cgroup. The masks of
//!   these programs stay wide.
//! - The scheduler identifies seats by the cgroup's inode. All other programs get masks.
//! - While a program is measured on a seat, all programs get masks, because borrowed CPUs
//!   would count for the seat.

use std::fmt::Debug;

use usher_model::CpuSet;

/// A scheduler that can keep seats.
pub trait SoftSeats: Debug + Send + Sync {
    /// The identity of the running scheduler that keeps seats, which differs from that of any
    /// earlier one; `None`: none runs.
    fn running(&self) -> Option<u64>;

    /// Gives the threads of a cgroup a seat; `cgroup` is its inode.
    ///
    /// # Errors
    /// The reason for the failure.
    fn seat(&self, cgroup: u64, name: &str, cpus: &CpuSet) -> Result<(), String>;

    /// Removes a cgroup's seat, if it has one.
    ///
    /// # Errors
    /// The reason for the failure.
    fn unseat(&self, cgroup: u64) -> Result<(), String>;

    /// Removes all seats, including those that a dead daemon has left.
    ///
    /// # Errors
    /// The reason for the failure.
    fn unseat_all(&self) -> Result<(), String>;
}
