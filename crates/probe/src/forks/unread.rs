// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers of processes that could not be read, and are examined again.
//!
//! The kernel assigns a number shortly before the process can be found, and a process has no
//! environment for a moment during an `exec`. Both take microseconds on an idle machine. On a busy
//! machine the process may wait for a CPU in that moment. An ended process cannot be distinguished
//! from one that cannot be found yet.
//!
//! Limits: at most 512 numbers are kept, and the oldest is given up first. If many short processes
//! are created, a number is therefore given up earlier. A scan examines at most 512 such numbers,
//! about 2.5 ms.

/// Time for which a number is examined at each scan. Later, the time between two examinations is
/// the time since the first one.
const EAGER_NS: u64 = 20_000_000;
/// Age at which an examination is the last one. As the pauses double, the last examination is at an
/// age of at most 4 s.
const LAST_NS: u64 = 2_000_000_000;
/// Upper limit of the numbers.
const UNREAD_MAX: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnreadNumber {
    pub pid: i32,
    /// Time of the first examination.
    since_ns: u64,
    due_ns: u64,
}

impl UnreadNumber {
    /// Returns a number that is examined for the first time.
    pub fn new(pid: i32, at_ns: u64) -> Self {
        Self {
            pid,
            since_ns: at_ns,
            due_ns: at_ns,
        }
    }
}

/// The numbers to examine again, the oldest first.
#[derive(Debug, Default)]
pub(super) struct UnreadNumbers(Vec<UnreadNumber>);

impl UnreadNumbers {
    pub fn is_due(&self, at_ns: u64) -> bool {
        self.0.iter().any(|one| one.due_ns <= at_ns)
    }

    /// Removes and returns the numbers that are due.
    pub fn take_due(&mut self, at_ns: u64) -> Vec<UnreadNumber> {
        self.0.extract_if(.., |one| one.due_ns <= at_ns).collect()
    }

    /// Keeps a number that could not be read, or gives it up. If there are too many, the oldest is
    /// given up.
    pub fn examine_again(&mut self, number: UnreadNumber, at_ns: u64) {
        let age_ns = at_ns.saturating_sub(number.since_ns);
        if age_ns >= LAST_NS {
            return;
        }
        let pause_ns = if age_ns < EAGER_NS { 0 } else { age_ns };
        let due_ns = at_ns + pause_ns;
        let position = self
            .0
            .partition_point(|one| one.since_ns <= number.since_ns);
        self.0.insert(position, UnreadNumber { due_ns, ..number });
        if self.0.len() > UNREAD_MAX {
            self.0.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times at which a number that can never be read is examined, with a scan every
    /// 5 ms.
    fn examinations() -> Vec<u64> {
        let mut numbers = UnreadNumbers::default();
        numbers.examine_again(UnreadNumber::new(7, 0), 0);
        let mut times = Vec::new();
        for at_ns in (5_000_000..10_000_000_000).step_by(5_000_000) {
            assert_eq!(
                numbers.is_due(at_ns),
                numbers.0.iter().any(|one| one.due_ns <= at_ns)
            );
            for number in numbers.take_due(at_ns) {
                times.push(at_ns / 1_000_000);
                numbers.examine_again(number, at_ns);
            }
        }
        assert!(numbers.0.is_empty());
        times
    }

    #[test]
    fn the_pause_between_examinations_doubles() {
        assert_eq!(
            examinations(),
            [5, 10, 15, 20, 40, 80, 160, 320, 640, 1280, 2560]
        );
    }

    #[test]
    fn the_oldest_numbers_are_given_up_first() {
        let mut numbers = UnreadNumbers::default();
        for pid in 0..600 {
            let at_ns = pid as u64;
            numbers.examine_again(UnreadNumber::new(pid, at_ns), at_ns);
        }
        let kept: Vec<i32> = numbers.take_due(1000).iter().map(|one| one.pid).collect();
        assert_eq!(kept, (88..600).collect::<Vec<i32>>());
    }
}
