// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frequency of the guest's time stamp counter.
//!
//! A guest that measures the frequency itself compares counters while the host may interrupt it at
//! any time. On a busy host the guest's clock is then wrong by a factor of up to five. The host
//! knows the frequency: an emulated counter is the host's own, and in virtual time it counts
//! nanoseconds.

use std::time::{Duration, Instant};

use crate::vm::Clock;

/// Frequency in virtual time.
const VIRTUAL_KHZ: u64 = 1_000_000;
/// Time between two samples. With 50 ms, errors of a microsecond are 0.002 %.
const SAMPLE_DISTANCE: Duration = Duration::from_millis(50);
/// Number of samples; the sample with the least disturbance is used.
const SAMPLES: usize = 32;

/// Frequency in kHz.
pub(crate) fn tsc_khz(clock: Clock) -> u64 {
    if clock != Clock::Host {
        return VIRTUAL_KHZ;
    }
    let (begun, first) = sample();
    std::thread::sleep(SAMPLE_DISTANCE);
    let (ended, last) = sample();
    let ticks = u128::from(last.wrapping_sub(first));
    let khz = ticks * 1_000_000 / (ended - begun).as_nanos().max(1);
    u64::try_from(khz).unwrap_or(VIRTUAL_KHZ)
}

/// A sample of the time and the counter.
fn sample() -> (Instant, u64) {
    let once = || {
        let before = Instant::now();
        let counter = counter();
        let took = before.elapsed();
        (took, before + took / 2, counter)
    };
    let mut best = once();
    for _ in 1..SAMPLES {
        best = best.min(once());
    }
    (best.1, best.2)
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux permits it unless the process
    // has disabled it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns 0: guests do not run on other architectures.
#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_agree() {
        let (one, other) = (tsc_khz(Clock::Host), tsc_khz(Clock::Host));
        assert!(one.abs_diff(other) * 1000 < one, "{one} and {other} kHz");
    }
}
