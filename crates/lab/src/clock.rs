// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast the guest's time stamp counter counts.
//!
//! A guest that finds that out for itself compares counters while the host may
//! keep it from running at any moment: on a busy host its clock then runs five
//! times too fast or too slow. The host knows: an emulated counter is the
//! host's own, and in virtual time it counts nanoseconds.

use std::time::{Duration, Instant};

use crate::vm::Clock;

/// In virtual time.
const VIRTUAL_KHZ: u64 = 1_000_000;
/// Between the two looks: errors of a microsecond are then 0.002 %.
const APART: Duration = Duration::from_millis(50);
/// Looks, of which the least disturbed counts.
const LOOKS: usize = 32;

/// Thousands of ticks a second.
pub(crate) fn tsc_khz(clock: Clock) -> u64 {
    if clock != Clock::Host {
        return VIRTUAL_KHZ;
    }
    let (begun, first) = look();
    std::thread::sleep(APART);
    let (ended, last) = look();
    let ticks = u128::from(last.wrapping_sub(first));
    let khz = ticks * 1_000_000 / (ended - begun).as_nanos().max(1);
    u64::try_from(khz).unwrap_or(VIRTUAL_KHZ)
}

/// The time, and the counter at that time.
fn look() -> (Instant, u64) {
    let once = || {
        let before = Instant::now();
        let counter = counter();
        let took = before.elapsed();
        (took, before + took / 2, counter)
    };
    let mut best = once();
    for _ in 1..LOOKS {
        best = best.min(once());
    }
    (best.1, best.2)
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and no Linux forbids
    // it to a program that has not asked for that.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// No guest is started on other machines.
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
