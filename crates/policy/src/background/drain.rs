// SPDX-License-Identifier: MIT OR Apache-2.0
//! Delay that stopped background work still causes on a device, because the kernel keeps sending
//! data that the programs passed to their sockets before the stop.
//!
//! 1. [`DeviceDrain`] counts the background requests after the stop.
//! 2. The delay is the number of these requests times the mean gap between background requests. The
//!    delay is limited to the time since the stop and to [`STALL_NS_MAX`].
//! 3. A part of the delay was charged in advance, in the cost of the misprediction. Delay beyond
//!    that part is charged to the delay budget when it is observed.
//!
//! The count ends when the device opens again, or at the next collision, which starts a new count.
//! An update takes constant time.

use super::device_throttle::STALL_NS_MAX;

/// Use of a device by background work since a stop.
#[derive(Debug, Clone, Copy)]
pub struct DeviceDrain {
    stopped_ns: u64,
    /// Number of background requests at the stop.
    before: u64,
    /// Total delay that was charged, in advance or when it was observed.
    charged_ns: f64,
    cost_ns: f64,
}

impl DeviceDrain {
    /// Starts to count at a stop. `requests`: background requests until the stop; `charged_ns`:
    /// delay that was charged in advance.
    pub fn new(at_ns: u64, requests: u64, charged_ns: f64) -> Self {
        Self {
            stopped_ns: at_ns,
            before: requests,
            charged_ns,
            cost_ns: 0.0,
        }
    }

    /// Returns the additional delay to charge, given the present number of requests, each of which
    /// occupies the device for `gap_ns`.
    pub fn update(&mut self, at_ns: u64, requests: u64, gap_ns: f64) -> f64 {
        let after = requests.saturating_sub(self.before) as f64;
        // The delay cannot exceed the time that has passed.
        let passed_ns = at_ns.saturating_sub(self.stopped_ns) as f64;
        let cost_ns = (after * gap_ns).min(passed_ns).min(STALL_NS_MAX);
        self.cost_ns = self.cost_ns.max(cost_ns);
        let more_ns = (self.cost_ns - self.charged_ns).max(0.0);
        self.charged_ns += more_ns;
        more_ns
    }

    /// Total delay since the stop.
    pub fn cost_ns(&self) -> f64 {
        self.cost_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_unpredicted_delay_once() {
        let ms = |n: f64| n * 1e6;
        let mut drain = DeviceDrain::new(1_000_000_000, 100, ms(8.0));
        assert_eq!(drain.update(1_005_000_000, 105, ms(1.0)), 0.0);
        assert_eq!(drain.update(1_020_000_000, 112, ms(1.0)), ms(4.0));
        assert_eq!(drain.update(1_030_000_000, 112, ms(1.0)), 0.0);
        assert_eq!(drain.update(1_040_000_000, 115, ms(1.0)), ms(3.0));
        assert_eq!(drain.cost_ns(), ms(15.0));
        // The delay of a slow request is limited to the time since the stop. A lower count, from
        // another source, adds no delay.
        assert_eq!(drain.update(1_041_000_000, 116, ms(10.0)), ms(26.0));
        assert_eq!(drain.update(9_000_000_000, 50, ms(1.0)), 0.0);
        assert_eq!(
            drain.update(9_000_000_000, 999, ms(1.0)),
            STALL_NS_MAX - ms(41.0)
        );
    }
}
