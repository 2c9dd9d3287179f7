// SPDX-License-Identifier: GPL-2.0-only
//! Classes of cores by capacity, for the scheduler of hybrid machines (`bpf/capacity.h`).
//!
//! Class 0 has the fastest cores. A core belongs to a class if its capacity is at least 95 % of the
//! capacity of the fastest core of the class, as the kernel's `capacity_greater()` ignores
//! differences below 5 %. There are at most [`CLASSES_MAX`] classes; the last class also contains
//! all slower cores. The classification takes time in proportion to n log n for n cores.

/// Upper limit of the classes: `CLASSES_MAX` of sets.h.
pub(crate) const CLASSES_MAX: usize = 4;

/// Capacity of the fastest core in the tables of the BPF programs.
const CAPACITY_FULL: f64 = 1024.0;

/// Smallest capacity in a class, relative to the fastest core of the class.
const SIMILAR: f64 = 0.95;

/// Converts a capacity in (0, 1] to the scale of the BPF programs, 1 to 1024.
pub(crate) fn scaled(capacity: f64) -> u16 {
    (capacity * CAPACITY_FULL).round().clamp(1.0, CAPACITY_FULL) as u16
}

/// Returns the class of each capacity.
pub(crate) fn classes(capacities: &[f64]) -> Vec<u16> {
    let mut sorted = capacities.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let mut fastest: Vec<f64> = Vec::new();
    for capacity in sorted {
        let is_new = fastest.last().is_none_or(|last| capacity < last * SIMILAR);
        if is_new && fastest.len() < CLASSES_MAX {
            fastest.push(capacity);
        }
    }
    let class_of = |capacity: &f64| {
        let class = fastest.iter().rposition(|first| capacity <= first);
        class.unwrap_or(0) as u16
    };
    capacities.iter().map(class_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_cores_share_a_class() {
        assert_eq!(classes(&[1.0; 4]), [0; 4]);
        assert_eq!(classes(&[0.96, 1.0, 0.951]), [0; 3]);
        assert_eq!(classes(&[0.7, 1.0, 0.94, 0.68]), [2, 0, 1, 2]);
        assert_eq!(classes(&[]), [0_u16; 0]);
    }

    #[test]
    fn the_last_class_contains_all_slower_cores() {
        let capacities = [1.0, 0.8, 0.6, 0.4, 0.2, 0.01];
        assert_eq!(classes(&capacities), [0, 1, 2, 3, 3, 3]);
    }

    #[test]
    fn capacities_are_scaled_to_1024() {
        assert_eq!([1.0, 0.5, 0.0001].map(scaled), [1024, 512, 1]);
    }
}
