// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long CPUs had nothing to do, finer than the kernel tells.
//!
//! `/proc/stat` counts idle time in hundredths of a second, which is coarse
//! for a look every few milliseconds; but it does not drift. What threads have
//! run is known to the nanosecond as of their last switch or tick (4 ms at 250
//! Hz): CPUs times time less that is the idle time, but for interrupts and
//! what a hypervisor took. So the second carries the figure on between two
//! steps of the first, and the first bounds it: it is never more than two
//! steps (idle and I/O wait, each rounded down) from what the kernel says.

/// Idle time of all CPUs, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    last: Option<Look>,
    estimate_ns: u64,
    first_ns: u64,
    told_ns: u64,
}

/// What is known at a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub at_ns: u64,
    pub cpus: u32,
    /// What all threads have run.
    pub run_ns: u64,
    /// What the kernel says, rounded down.
    pub stat_ns: u64,
    /// The kernel's step.
    pub step_ns: u64,
}

impl Idle {
    /// Idle time since the first look.
    pub fn advance(&mut self, look: Look) -> u64 {
        match self.last {
            None => {
                self.estimate_ns = look.stat_ns;
                self.first_ns = look.stat_ns;
            }
            Some(last) => {
                let passed_ns = look.at_ns.saturating_sub(last.at_ns);
                let capacity_ns = passed_ns.saturating_mul(u64::from(look.cpus));
                let ran_ns = look.run_ns.saturating_sub(last.run_ns);
                let idle_ns = capacity_ns.saturating_sub(ran_ns);
                self.estimate_ns = self.estimate_ns.saturating_add(idle_ns);
            }
        }
        self.last = Some(look);
        let most_ns = look.stat_ns.saturating_add(look.step_ns.saturating_mul(2));
        self.estimate_ns = self.estimate_ns.clamp(look.stat_ns, most_ns);
        let since_first = self.estimate_ns.saturating_sub(self.first_ns);
        self.told_ns = self.told_ns.max(since_first);
        self.told_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STEP_NS: u64 = 10_000_000;

    fn look(at_ns: u64, run_ns: u64, idle_ns: u64) -> Look {
        Look {
            at_ns,
            cpus: 2,
            run_ns,
            stat_ns: idle_ns / STEP_NS * STEP_NS,
            step_ns: STEP_NS,
        }
    }

    #[test]
    fn goes_on_between_the_kernels_steps() {
        let mut idle = Idle::default();
        assert_eq!(idle.advance(look(0, 0, 0)), 0);
        assert_eq!(idle.advance(look(1_000_000, 500_000, 1_500_000)), 1_500_000);
        assert_eq!(
            idle.advance(look(2_000_000, 2_500_000, 1_500_000)),
            1_500_000
        );
    }

    #[test]
    fn what_a_hypervisor_takes_is_not_idle() {
        let mut idle = Idle::default();
        idle.advance(look(0, 0, 0));
        let told = idle.advance(look(1_000_000_000, 0, 100_000_000));
        assert_eq!(told, 120_000_000, "at most two steps beyond the kernel's");
    }

    proptest! {
        #[test]
        fn is_never_far_from_the_truth_and_never_falls(
            steps in prop::collection::vec((1u64..50_000_000, 0.0f64..=1.0), 1..50),
        ) {
            let mut idle = Idle::default();
            let (mut at, mut ran, mut truth, mut before) = (0u64, 0u64, 0u64, 0u64);
            idle.advance(look(0, 0, 0));
            for (passed, share) in steps {
                let run = (2.0 * passed as f64 * share) as u64;
                at += passed;
                ran += run;
                truth += 2 * passed - run;
                let told = idle.advance(look(at, ran, truth));
                prop_assert!(told >= before);
                prop_assert!(told.abs_diff(truth) <= 2 * STEP_NS);
                before = told;
            }
        }
    }
}
