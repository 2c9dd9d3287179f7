// SPDX-License-Identifier: MIT OR Apache-2.0
//! Crowds under `usher`: foreground threads on one CPU, each waiting for the
//! other, while another CPU runs nothing but background work.
//!
//! The kernel spreads threads over CPUs that have nothing to do. One that runs
//! background threads has something to do, `SCHED_IDLE` or not, and so threads
//! that happened to wake on one CPU stay there, for seconds at times. All it
//! takes is that background work leaves its CPU: the kernel then moves a thread
//! there, within some 10 ms, and background work may go on as soon as any CPU has
//! become idle.
//!
//! Not every crowd can be dispersed: threads may be bound to their CPU, or find one
//! another again and again. After one that was acted on no other is for a pause,
//! which doubles as long as the next comes within [`AGAIN_NS`] of its end. What the
//! foreground waits in crowds is charged to the account of the CPUs as all its waits
//! are, so that a pause costs it no more than any other wait does.

/// A crowd so soon after a pause says that making room has not helped for long.
const AGAIN_NS: u64 = 100_000_000;
/// For how long no other crowd counts, at first and at most.
const PAUSE_NS_MIN: u64 = 50_000_000;
const PAUSE_NS_MAX: u64 = 2_000_000_000;

/// What is known of crowds.
#[derive(Debug, Clone, Default)]
pub struct Crowds {
    /// How many had been found at the last look.
    found: Option<u64>,
    /// From when on the next one counts.
    next_ns: u64,
    pause_ns: u64,
}

impl Crowds {
    /// Takes in how many have been found; whether to make room for one, where room
    /// can be made.
    pub fn look(&mut self, at_ns: u64, found: u64, can_make_room: bool) -> bool {
        let is_new = (self.found.replace(found)).is_some_and(|before| found > before);
        if !is_new || !can_make_room || at_ns < self.next_ns {
            return false;
        }
        let is_same = self.pause_ns > 0 && at_ns < self.next_ns + AGAIN_NS;
        self.pause_ns = match is_same {
            true => (self.pause_ns * 2).min(PAUSE_NS_MAX),
            false => PAUSE_NS_MIN,
        };
        self.next_ns = at_ns + self.pause_ns;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// One more crowd at each of those milliseconds: which of them count.
    fn that_count(crowds: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut known = Crowds::default();
        known.look(0, 7, true);
        let counts = |(found, ms): &(u64, u64)| known.look(ms * MS, *found, true);
        let each = (8..).zip(crowds).filter(counts);
        each.map(|(_, ms)| ms).collect()
    }

    #[test]
    fn crowds_apart_count_each() {
        assert_eq!(that_count([5, 500, 1_000]), [5, 500, 1_000]);
    }

    #[test]
    fn crowds_that_stay_count_ever_more_rarely() {
        let times = that_count((1..=60_000).step_by(4));
        let gaps: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(gaps.is_sorted() && gaps[0] <= 56, "{gaps:?}");
        let longest = gaps.last().copied().unwrap_or_default();
        assert!((2_000..2_008).contains(&longest), "{gaps:?}");
    }

    #[test]
    fn crowds_of_the_time_before_do_not_count() {
        let mut known = Crowds::default();
        assert!((0..100).all(|at_ms| !known.look(at_ms * MS, 3, true)));
    }

    #[test]
    fn crowds_while_no_room_can_be_made_cost_no_pause() {
        let mut known = Crowds::default();
        known.look(0, 7, true);
        assert!(!known.look(MS, 8, false));
        assert!(known.look(2 * MS, 9, true));
    }
}
