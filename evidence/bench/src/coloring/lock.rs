// SPDX-License-Identifier: MIT OR Apache-2.0
//! A spin lock like that of Linux 2.4, which also measures how long threads wait for the lock and
//! hold it. A waiting thread polls the lock; after 2,000 polls it yields its CPU, because the
//! thread that holds the lock may wait for that CPU. The lock is not fair.

use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Number of polls after which a waiting thread yields its CPU.
const TURNS: u32 = 2_000;

/// The lock, which occupies a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SpinLock(AtomicBool);

/// A thread's use of the lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LockStats {
    /// Number of acquisitions.
    pub acquisitions: u64,
    /// Number of acquisitions that had to wait.
    pub contended: u64,
    /// Total time for which the lock was held.
    pub held_ns: u64,
    /// Total time of waiting for the lock.
    pub waited_ns: u64,
}

impl LockStats {
    /// Returns the sum of the use by two threads.
    pub fn and(self, other: Self) -> Self {
        Self {
            acquisitions: self.acquisitions + other.acquisitions,
            contended: self.contended + other.contended,
            held_ns: self.held_ns + other.held_ns,
            waited_ns: self.waited_ns + other.waited_ns,
        }
    }
}

impl SpinLock {
    /// Runs `work` while it holds the lock, and adds the waiting time and the holding time to
    /// `tally`.
    pub fn with<T>(&self, tally: &mut LockStats, work: impl FnOnce() -> T) -> T {
        let requested = Instant::now();
        let mut turns = 0_u32;
        while self.0.swap(true, Acquire) {
            while self.0.load(Relaxed) {
                turns += 1;
                match turns % TURNS {
                    0 => std::thread::yield_now(),
                    _ => std::hint::spin_loop(),
                }
            }
        }
        let got = Instant::now();
        let done = work();
        self.0.store(false, Release);
        tally.acquisitions += 1;
        tally.contended += u64::from(turns > 0);
        tally.held_ns += got.elapsed().as_nanos() as u64;
        tally.waited_ns += (got - requested).as_nanos() as u64;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_excludes_other_threads() {
        let (lock, count) = (SpinLock::default(), std::sync::atomic::AtomicU64::new(0));
        let add = || {
            let mut tally = LockStats::default();
            for _ in 0..10_000 {
                lock.with(&mut tally, || count.store(count.load(Relaxed) + 1, Relaxed));
            }
            tally
        };
        let tallies = std::thread::scope(|scope| {
            let threads = [scope.spawn(add), scope.spawn(add), scope.spawn(add)];
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(count.load(Relaxed), 30_000);
        let all = tallies
            .into_iter()
            .fold(LockStats::default(), LockStats::and);
        assert_eq!(all.acquisitions, 30_000);
        assert!(all.contended <= all.acquisitions);
    }
}
