// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stores the time of the next event of each CPU, and finds the earliest event.
//!
//! The data structure is a tournament tree: the leaves are CPUs, and each inner node holds the
//! child with the earlier event. Changing the time of a CPU takes O(log n) for n CPUs, and ends at the
//! first inner node that another CPU won before and still wins. Reading the earliest event takes
//! O(1). Events at equal times are ordered by CPU index, so that their order does not depend on
//! earlier changes.

/// The time that is stored for a CPU without an event.
pub const NEVER: u64 = u64::MAX;

/// The next event of each of a fixed number of CPUs.
#[derive(Debug, Clone)]
pub struct Clock {
    /// For each node of the tree, the CPU with the earliest event below that node. The root has
    /// index 1, the leaves begin at index `width`.
    winners: Vec<u32>,
    times: Vec<u64>,
    width: usize,
}

impl Clock {
    /// Creates the clock of `cpus` CPUs without events.
    pub fn new(cpus: usize) -> Self {
        let width = cpus.next_power_of_two().max(1);
        let mut winners: Vec<u32> = (0..2 * width).map(|_| 0).collect();
        for leaf in 0..width {
            winners[width + leaf] = leaf as u32;
        }
        let mut clock = Self {
            winners,
            times: vec![NEVER; width],
            width,
        };
        for node in (1..width).rev() {
            clock.winners[node] = clock.winners[2 * node];
        }
        clock
    }

    /// Returns the time and the CPU of the earliest event.
    pub fn first(&self) -> (u64, usize) {
        let winner = self.winners[1] as usize;
        (self.times[winner], winner)
    }

    /// Sets the time of a CPU's next event.
    pub fn set(&mut self, cpu: usize, at_ns: u64) {
        if self.times[cpu] == at_ns {
            return;
        }
        self.times[cpu] = at_ns;
        let mut node = (self.width + cpu) / 2;
        while node > 0 {
            let (left, right) = (self.winners[2 * node], self.winners[2 * node + 1]);
            // Equal times go to the left child, which has the lower index.
            let left_wins = self.times[left as usize] <= self.times[right as usize];
            let winner = if left_wins { left } else { right };
            let before = std::mem::replace(&mut self.winners[node], winner);
            if before == winner && winner as usize != cpu {
                // The nodes above do not depend on the time of `cpu`.
                return;
            }
            node /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn first_event_is_the_earliest_with_ties_by_cpu(
            cpus in 1..70usize,
            sets in prop::collection::vec((any::<prop::sample::Index>(), 0..20u64), 0..200),
        ) {
            let mut clock = Clock::new(cpus);
            let mut times = vec![NEVER; cpus];
            for (cpu, at_ns) in sets {
                let cpu = cpu.index(cpus);
                clock.set(cpu, at_ns);
                times[cpu] = at_ns;
                let least = (0..cpus).map(|c| (times[c], c)).min().unwrap();
                prop_assert_eq!(clock.first(), least);
            }
        }
    }
}
