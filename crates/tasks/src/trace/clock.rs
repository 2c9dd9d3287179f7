// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clock of traces: the time stamp counter of the processor (feature `tsc`, which is on by
//! default), or the monotonic clock of the system. Reading it takes constant time and cannot fail.

#[cfg(feature = "tsc")]
pub(crate) use quanta::Clock;

#[cfg(not(feature = "tsc"))]
pub(crate) use monotonic::Clock;

#[cfg(not(feature = "tsc"))]
mod monotonic {
    use std::time::Instant;

    /// A clock that counts the nanoseconds since its creation.
    #[derive(Debug, Clone)]
    pub(crate) struct Clock(Instant);

    impl Clock {
        pub fn new() -> Self {
            Self(Instant::now())
        }

        /// Returns the time since the creation of the clock, in ns.
        pub fn raw(&self) -> u64 {
            self.0.elapsed().as_nanos() as u64
        }

        /// Returns the time from `start` until `end`, in ns; 0 if `end` is earlier.
        pub fn delta_as_nanos(&self, start: u64, end: u64) -> u64 {
            end.saturating_sub(start)
        }
    }
}
