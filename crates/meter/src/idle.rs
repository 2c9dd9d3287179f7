// SPDX-License-Identifier: MIT OR Apache-2.0
//! Estimates the idle time of the CPUs at a finer resolution than the kernel reports it.
//!
//! The estimate combines two sources:
//!
//! - `/proc/stat` contains the idle time in steps of 10 ms. These steps are too coarse for a sample
//!   every few milliseconds, but the value does not drift.
//! - The run time of each thread is known in nanoseconds, up to the thread's last context switch or
//!   scheduler tick (4 ms at 250 Hz). The idle time is the number of CPUs × the elapsed time − the
//!   run time of all threads. This difference also contains the times of interrupts and of the
//!   hypervisor.
//!
//! Each sample adds the increase of the second source, and then clamps the sum to the value of
//! `/proc/stat` plus at most two steps. The kernel's value is a lower bound, because the kernel
//! rounds idle time and I/O wait down, each by up to one step. A sample takes constant time.

/// The estimated idle time of all CPUs, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct IdleEstimate {
    last: Option<IdleSample>,
    estimate_ns: u64,
    first_ns: u64,
    reported_ns: u64,
}

/// The inputs at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdleSample {
    pub at_ns: u64,
    pub cpus: u32,
    /// Total run time of all threads.
    pub run_ns: u64,
    /// The kernel's idle time, rounded down.
    pub stat_ns: u64,
    /// The resolution of the kernel's idle time.
    pub step_ns: u64,
}

impl IdleEstimate {
    /// Adds a sample and returns the idle time since the first sample.
    pub fn advance(&mut self, sample: IdleSample) -> u64 {
        match self.last {
            None => {
                self.estimate_ns = sample.stat_ns;
                self.first_ns = sample.stat_ns;
            }
            Some(last) => {
                let passed_ns = sample.at_ns.saturating_sub(last.at_ns);
                let capacity_ns = passed_ns.saturating_mul(u64::from(sample.cpus));
                let ran_ns = sample.run_ns.saturating_sub(last.run_ns);
                let idle_ns = capacity_ns.saturating_sub(ran_ns);
                self.estimate_ns = self.estimate_ns.saturating_add(idle_ns);
            }
        }
        self.last = Some(sample);
        let most_ns = sample
            .stat_ns
            .saturating_add(sample.step_ns.saturating_mul(2));
        self.estimate_ns = self.estimate_ns.clamp(sample.stat_ns, most_ns);
        let since_first = self.estimate_ns.saturating_sub(self.first_ns);
        self.reported_ns = self.reported_ns.max(since_first);
        self.reported_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STEP_NS: u64 = 10_000_000;

    fn sample(at_ns: u64, run_ns: u64, idle_ns: u64) -> IdleSample {
        IdleSample {
            at_ns,
            cpus: 2,
            run_ns,
            stat_ns: idle_ns / STEP_NS * STEP_NS,
            step_ns: STEP_NS,
        }
    }

    #[test]
    fn advances_between_the_kernels_steps() {
        let mut idle = IdleEstimate::default();
        assert_eq!(idle.advance(sample(0, 0, 0)), 0);
        assert_eq!(
            idle.advance(sample(1_000_000, 500_000, 1_500_000)),
            1_500_000
        );
        assert_eq!(
            idle.advance(sample(2_000_000, 2_500_000, 1_500_000)),
            1_500_000
        );
    }

    #[test]
    fn time_taken_by_a_hypervisor_is_not_idle() {
        let mut idle = IdleEstimate::default();
        idle.advance(sample(0, 0, 0));
        let reported = idle.advance(sample(1_000_000_000, 0, 100_000_000));
        assert_eq!(
            reported, 120_000_000,
            "at most two steps beyond the kernel's"
        );
    }

    proptest! {
        #[test]
        fn stays_within_two_steps_of_the_truth_and_never_decreases(
            steps in prop::collection::vec((1u64..50_000_000, 0.0f64..=1.0), 1..50),
        ) {
            let mut idle = IdleEstimate::default();
            let (mut at, mut ran, mut truth, mut before) = (0u64, 0u64, 0u64, 0u64);
            idle.advance(sample(0, 0, 0));
            for (passed, share) in steps {
                let run = (2.0 * passed as f64 * share) as u64;
                at += passed;
                ran += run;
                truth += 2 * passed - run;
                let reported = idle.advance(sample(at, ran, truth));
                prop_assert!(reported >= before);
                prop_assert!(reported.abs_diff(truth) <= 2 * STEP_NS);
                before = reported;
            }
        }
    }
}
