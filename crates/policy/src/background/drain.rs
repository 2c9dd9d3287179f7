// SPDX-License-Identifier: MIT OR Apache-2.0
//! What background work still asks of a device after it has been stopped.
//!
//! Its calls have ended; what it has handed to its sockets goes on. That shares
//! the device with the foreground, so it is delay like any other, and is charged
//! as it is seen, as far as it was not foreseen.

use super::gate::STALL_NS_MAX;

/// From a stop on.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    stopped_ns: u64,
    /// Requests until then.
    before: u64,
    /// The delay that has been charged, beforehand or as it came.
    charged_ns: f64,
    cost_ns: f64,
}

impl Drain {
    /// Stopped now, after so many requests; so much delay is charged already.
    pub fn new(at_ns: u64, requests: u64, charged_ns: f64) -> Self {
        Self {
            stopped_ns: at_ns,
            before: requests,
            charged_ns,
            cost_ns: 0.0,
        }
    }

    /// How much more is to be charged, now that there have been so many
    /// requests, each of which takes `gap_ns` of the device.
    pub fn look(&mut self, at_ns: u64, requests: u64, gap_ns: f64) -> f64 {
        let after = requests.saturating_sub(self.before) as f64;
        // Nothing can be in the way for longer than it has had time to be.
        let passed_ns = at_ns.saturating_sub(self.stopped_ns) as f64;
        let cost_ns = (after * gap_ns).min(passed_ns).min(STALL_NS_MAX);
        self.cost_ns = self.cost_ns.max(cost_ns);
        let more_ns = (self.cost_ns - self.charged_ns).max(0.0);
        self.charged_ns += more_ns;
        more_ns
    }

    /// The delay that all of it has come to.
    pub fn cost_ns(&self) -> f64 {
        self.cost_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_foreseen_is_charged_once() {
        let ms = |n: f64| n * 1e6;
        let mut drain = Drain::new(1_000_000_000, 100, ms(8.0));
        assert_eq!(drain.look(1_005_000_000, 105, ms(1.0)), 0.0);
        assert_eq!(drain.look(1_020_000_000, 112, ms(1.0)), ms(4.0));
        assert_eq!(drain.look(1_030_000_000, 112, ms(1.0)), 0.0);
        assert_eq!(drain.look(1_040_000_000, 115, ms(1.0)), ms(3.0));
        assert_eq!(drain.cost_ns(), ms(15.0));
        // Slow requests that have only just been made; a count from elsewhere.
        assert_eq!(drain.look(1_041_000_000, 116, ms(10.0)), ms(26.0));
        assert_eq!(drain.look(9_000_000_000, 50, ms(1.0)), 0.0);
        assert_eq!(
            drain.look(9_000_000_000, 999, ms(1.0)),
            STALL_NS_MAX - ms(41.0)
        );
    }
}
