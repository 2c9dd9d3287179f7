// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that is measured in CPU time, as the kernel of the guest accounts it. The emulated CPUs of
//! a guest run one after another, but their CPU times advance together. Programs with this kind of
//! work therefore end as if the CPUs computed at the same time. Limit: a thread notices the end of
//! its work up to half a millisecond late, because the emulator runs the other CPUs in between.

use std::time::Duration;

use oorandom::Rand64;
use rustix::time::{ClockId, clock_gettime};

use crate::sched::inside::programs::compute;

/// Steps between two readings of the clock; about 10 microseconds.
const STEPS: u64 = 2_000;

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Computes until this thread has used the given CPU time.
pub fn burn(time: Duration) {
    let end = cpu_time() + time;
    while cpu_time() < end {
        compute(STEPS);
    }
}

/// A range of durations, from which a random duration is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRange {
    /// Shortest duration in microseconds.
    pub from_us: u64,
    /// Upper end in microseconds; not included.
    pub to_us: u64,
}

impl TimeRange {
    /// Returns the range from half of a duration to one and a half times the duration.
    pub fn around(middle: Duration) -> Self {
        let us = u64::try_from(middle.as_micros()).unwrap_or(u64::MAX / 4);
        Self {
            from_us: us / 2,
            to_us: us * 3 / 2,
        }
    }

    /// Draws a duration.
    pub fn draw(self, random: &mut Rand64) -> Duration {
        let us = random.rand_range(self.from_us..self.to_us.max(self.from_us + 1));
        Duration::from_micros(us)
    }
}

/// Returns the generator of one thread of a load.
pub fn random(seed: u64, thread: usize) -> Rand64 {
    Rand64::new(u128::from(seed) << 64 | thread as u128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burns_cpu_time() {
        let before = cpu_time();
        burn(Duration::from_millis(2));
        assert!(cpu_time() - before >= Duration::from_millis(2));
    }

    #[test]
    fn durations_are_within_the_range_and_depend_on_seed_and_thread() {
        let range = TimeRange::around(Duration::from_millis(2));
        assert_eq!((range.from_us, range.to_us), (1_000, 3_000));
        let draws = |seed, thread| {
            let mut random = random(seed, thread);
            (0..50).map(|_| range.draw(&mut random)).collect::<Vec<_>>()
        };
        let ends = [1_000, 3_000].map(Duration::from_micros);
        assert!(
            draws(1, 0)
                .iter()
                .all(|time| (ends[0]..ends[1]).contains(time))
        );
        assert_eq!(draws(1, 0), draws(1, 0));
        assert_ne!(draws(1, 0), draws(2, 0));
        assert_ne!(draws(1, 0), draws(1, 1));
        let empty = TimeRange {
            from_us: 7,
            to_us: 7,
        };
        assert_eq!(empty.draw(&mut random(1, 0)), Duration::from_micros(7));
    }
}
