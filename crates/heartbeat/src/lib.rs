// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress reports of programs on a page of shared memory.
//!
//! A program that knows the units of its work (frames, reads, time steps) counts them on the page.
//! Usher, or any other process, then reads the true rate of progress. The CPU time of a program
//! that spins does not show this rate:
//!
//! ```
//! // Does nothing where USHER_HEARTBEAT is not set.
//! let heart = usher_heartbeat::Heartbeat::from_env();
//! heart.describe("frames", 0.0, "encoder");
//! for _frame in 0..3 {
//!     // encode it
//!     heart.beat(1);
//! }
//! ```
//!
//! One beat is one atomic addition. C and C++ programs include `include/usher_heartbeat.h` and call
//! `usher_beat(1)`. [`layout`] and the README of this crate describe the page; the reader's side is
//! [`Page`]. The page also has slots in which Usher's OpenMP tool records the useful and waiting
//! time of each thread ([`ThreadSlot`]).

#[cfg(not(target_has_atomic = "64"))]
compile_error!("the heartbeat page needs 64-bit atomics");

mod beat;
mod error;
pub mod layout;
mod map;
mod page;
mod slot;

pub use beat::Heartbeat;
pub use error::{PageError, PageFault};
pub use page::{Page, PageReading, SlotReading, ThreadTotals};
pub use slot::{SlotState, ThreadSlot, now_ns};

/// The environment variable that holds the path of the page.
pub const ENVIRONMENT: &str = "USHER_HEARTBEAT";
