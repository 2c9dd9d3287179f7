// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trait [`SoftSeats`] of a sched_ext scheduler that implements seats as preferences instead of
//! affinity masks.
//!
//! An affinity mask excludes all other programs from a seat. CPUs that the owner leaves idle are
//! then wasted until the control loop lends them in one of its iterations. A scheduler that knows
//! the seats can prefer the owner instead: threads of the owner run on its seat at once, and
//! threads of other programs run on idle CPUs of the seat.
//!
//! - If such a scheduler runs, it gets the seat of each program that is alone in its cgroup. The
//!   affinity masks of these programs are not narrowed.
//! - The scheduler identifies a program by the inode number of its cgroup. Programs without a
//!   cgroup of their own get affinity masks.
//! - While a program is measured on a seat, all programs get affinity masks. With a soft seat, the
//!   program could borrow other CPUs, and the measurement would not show the speed on its seat.

use std::fmt::Debug;

use usher_model::CpuSet;

/// A scheduler that can implement soft seats.
pub trait SoftSeats: Debug + Send + Sync {
    /// Returns the identity of the running scheduler; `None` if no scheduler runs. The identity
    /// differs from the identity of any earlier scheduler.
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

    /// Removes all seats, including seats that a dead daemon has left.
    ///
    /// # Errors
    /// The reason for the failure.
    fn unseat_all(&self) -> Result<(), String>;
}
