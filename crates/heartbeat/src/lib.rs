// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program tells its progress on a page of shared memory.
//!
//! A program that knows what its work is made of (frames, reads, time steps)
//! counts it, and whoever watches sees the true rate of progress, which CPU
//! time never is for a program that spins:
//!
//! ```
//! let heart = usher_heartbeat::Heartbeat::from_env(); // does nothing where USHER_HEARTBEAT is not set
//! heart.describe("frames", 0.0, "encoder");
//! for _frame in 0..3 {
//!     // encode it
//!     heart.beat(1);
//! }
//! ```
//!
//! One beat is one atomic addition. C and C++ programs include
//! `include/usher_heartbeat.h` and call `usher_beat(1)`. The page is described
//! in [`layout`] and in this crate's README; the watcher's side is [`Page`].
//! The same page has slots in which Usher's OpenMP tool accounts useful and
//! waiting time a thread ([`ThreadSlot`]).

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
pub use page::{Page, Reading, SlotReading, Threads};
pub use slot::{SlotState, ThreadSlot, now_ns};

/// The environment variable that holds the path of the page.
pub const ENVIRONMENT: &str = "USHER_HEARTBEAT";
