// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures wake-up latencies with message threads and worker threads, after schbench (Chris
//! Mason), which Debian does not have.
//!
//! 1. A worker registers with its message thread, and waits.
//! 2. The message thread records the time and wakes the worker, then the next registered worker.
//! 3. The worker records the time since then as the wake-up latency, sleeps, computes for a random
//!    time, and continues with step 1.
//!
//! Differences to schbench: the sleep and the work are drawn from ranges with a printed seed, the
//! work is CPU time instead of a matrix multiplication, and all latencies are kept instead of a
//! histogram.

use std::sync::mpsc::{self, Receiver};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use oorandom::Rand64;

use super::burn::{TimeRange, burn, random};

/// Message threads with their workers.
#[derive(Debug, Clone, PartialEq)]
pub struct WakeupLoad {
    /// Number of message threads.
    pub messengers: usize,
    /// Number of workers of each message thread.
    pub workers: usize,
    /// Sleep of a worker after each wake-up.
    pub rest: TimeRange,
    /// CPU time of a worker after each sleep.
    pub work: TimeRange,
    /// Length of the measurement.
    pub time: Duration,
    /// Seed of the random times.
    pub seed: u64,
}

/// Time of the last wake-up that a message thread gave to a worker.
#[derive(Debug, Default)]
struct WakeupSlot {
    woken: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl WakeupSlot {
    fn wake(&self) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        *woken = Some(Instant::now());
        self.changed.notify_one();
    }

    /// Waits for a wake-up. Returns its latency.
    fn wait(&self) -> Duration {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match woken.take() {
                Some(time) => return time.elapsed(),
                None => {
                    let waited = self.changed.wait(woken);
                    woken = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl WakeupLoad {
    /// Runs the load. Each worker is woken once at least. Returns all wake-up latencies in
    /// milliseconds.
    pub fn run(&self) -> Vec<f64> {
        let count = self.messengers * self.workers;
        let slots: Vec<WakeupSlot> = (0..count).map(|_| WakeupSlot::default()).collect();
        let end = Instant::now() + self.time;
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for (messenger, of_messenger) in slots.chunks(self.workers).enumerate() {
                let (register, registered) = mpsc::channel();
                scope.spawn(move || wake_all(&registered, of_messenger));
                for (at, slot) in of_messenger.iter().enumerate() {
                    let register = register.clone();
                    let random = random(self.seed, messenger * self.workers + at);
                    let work = move || self.work(slot, || register.send(at).is_ok(), random, end);
                    workers.push(scope.spawn(work));
                }
            }
            let joined = workers.into_iter().map(|worker| worker.join());
            joined.flat_map(Result::unwrap_or_default).collect()
        })
    }

    /// Runs a worker until the time `end`. `register` registers the worker with its message thread.
    fn work(
        &self,
        slot: &WakeupSlot,
        register: impl Fn() -> bool,
        mut random: Rand64,
        end: Instant,
    ) -> Vec<f64> {
        let mut latencies_ms = Vec::new();
        while register() {
            latencies_ms.push(slot.wait().as_secs_f64() * 1e3);
            if Instant::now() >= end {
                break;
            }
            thread::sleep(self.rest.draw(&mut random));
            burn(self.work.draw(&mut random));
        }
        latencies_ms
    }
}

/// Runs a message thread until all of its workers have ended.
fn wake_all(registered: &Receiver<usize>, slots: &[WakeupSlot]) {
    while let Ok(worker) = registered.recv() {
        slots[worker].wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_is_woken() {
        let short = TimeRange {
            from_us: 1,
            to_us: 5,
        };
        let load = WakeupLoad {
            messengers: 2,
            workers: 2,
            rest: short,
            work: short,
            time: Duration::ZERO,
            seed: 1,
        };
        let latencies_ms = load.run();
        assert_eq!(latencies_ms.len(), 4);
        assert!(latencies_ms.iter().all(|latency| *latency > 0.0));
    }

    #[test]
    fn latency_counts_from_the_wakeup() {
        let slot = WakeupSlot::default();
        let before = Instant::now();
        slot.wake();
        let latency = slot.wait();
        assert!(latency <= before.elapsed());
        assert!(slot.woken.lock().unwrap().is_none());
    }
}
