// SPDX-License-Identifier: MIT OR Apache-2.0
//! Determines the frequency of the guest's time stamp counter, which the host passes to the guest's
//! kernel.
//!
//! If a guest measured the frequency itself, interruptions by the host would disturb the
//! measurement. On a busy host, the guest's clock would be wrong by a factor of up to five.
//!
//! - Without virtual time, the emulated counter is the host's counter. The host reads its clock and
//!   counter together twice, 50 ms apart, and divides the differences. Each reading is the quickest
//!   of 32, which were disturbed least.
//! - In virtual time, the counter counts nanoseconds, so the frequency is 1 GHz.
//!
//! The measurement takes 50 ms at each start of a guest, cannot fail, and is not repeated.

use std::time::{Duration, Instant};

use crate::vm::Clock;

/// Frequency of the counter in virtual time, in kHz.
const VIRTUAL_KHZ: u64 = 1_000_000;
/// Time between two readings. An error of 1 µs is 0.002 % of 50 ms.
const SAMPLE_DISTANCE: Duration = Duration::from_millis(50);
/// Number of attempts per reading, of which the quickest is used.
const SAMPLES: usize = 32;

/// Returns the frequency of the guest's counter in kHz.
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

/// Returns a reading of the clock and the counter at the same time.
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
    // SAFETY: every x86-64 processor has the instruction RDTSC, and Linux permits it unless the
    // process has disabled it, which the lab does not do.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns 0. The value is not used, because guests require an x86-64 host.
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
