// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adds up the time that a run spends on seats of deliberate variation (`usher_policy::variation`).

/// Time that a run has spent on seats of deliberate variation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct VariedTime {
    /// Time of the last update, and the loss per second since then, if the seat is varied.
    since: Option<(u64, f64)>,
    /// Time on varied seats, in seconds.
    pub seconds: f64,
    /// Upper limit of the time that was lost, in seconds.
    pub lost_seconds: f64,
}

impl VariedTime {
    /// Sets the loss per second from now on; `None`: the seat is not varied.
    pub fn set(&mut self, at_ns: u64, loss_rate: Option<f64>) {
        if let Some((since_ns, loss_rate)) = self.since.take() {
            let seconds = at_ns.saturating_sub(since_ns) as f64 * 1e-9;
            self.seconds += seconds;
            self.lost_seconds += loss_rate * seconds;
        }
        self.since = loss_rate.map(|rate| (at_ns, rate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_on_varied_seats_counts() {
        let mut varied = VariedTime::default();
        varied.set(1_000_000_000, None);
        varied.set(3_000_000_000, Some(0.5));
        varied.set(5_000_000_000, Some(0.25));
        varied.set(6_000_000_000, None);
        varied.set(9_000_000_000, None);
        assert_eq!((varied.seconds, varied.lost_seconds), (3.0, 1.25));
    }
}
