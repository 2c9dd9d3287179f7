// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several sets of small numbers as bitmaps in one allocation. Insertion and removal take constant
//! time. A search, or a check whether a set is empty, takes time proportional to the limit of the
//! numbers divided by 64. Lack of memory is reported as an error. A set or a number beyond the
//! limits is a panic.

use std::collections::TryReserveError;

const BITS: usize = u64::BITS as usize;

/// Returns a vector with `len` copies of `value`, or an error if there is no memory.
pub(super) fn try_filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>, TryReserveError> {
    let mut values = Vec::new();
    values.try_reserve_exact(len)?;
    values.resize(len, value);
    Ok(values)
}

/// Several sets of numbers below a common limit.
#[derive(Debug, Clone)]
pub(super) struct BitSets {
    words: Vec<u64>,
    words_per_set: usize,
}

impl BitSets {
    /// Creates `sets` empty sets of numbers less than `below`.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn try_new(sets: usize, below: usize) -> Result<Self, TryReserveError> {
        let words_per_set = below.div_ceil(BITS);
        // If the product overflows, it saturates, and the allocation of that size fails.
        let words = sets.saturating_mul(words_per_set);
        Ok(Self {
            words: try_filled(words, 0)?,
            words_per_set,
        })
    }

    fn set(&self, set: usize) -> &[u64] {
        &self.words[set * self.words_per_set..][..self.words_per_set]
    }

    fn word(&mut self, set: usize, number: usize) -> &mut u64 {
        &mut self.words[set * self.words_per_set..][..self.words_per_set][number / BITS]
    }

    pub fn insert(&mut self, set: usize, number: usize) {
        *self.word(set, number) |= 1 << (number % BITS);
    }

    pub fn remove(&mut self, set: usize, number: usize) {
        *self.word(set, number) &= !(1 << (number % BITS));
    }

    pub fn contains(&self, set: usize, number: usize) -> bool {
        self.set(set)[number / BITS] >> (number % BITS) & 1 == 1
    }

    pub fn is_empty(&self, set: usize) -> bool {
        self.set(set).iter().all(|&word| word == 0)
    }

    /// Returns the smallest number of a set.
    pub fn least(&self, set: usize) -> Option<usize> {
        least(self.set(set).iter().copied())
    }

    /// Returns the smallest number that is in set `set` and in set `other` of `others`.
    pub fn least_common(&self, set: usize, others: &Self, other: usize) -> Option<usize> {
        let both = self.set(set).iter().zip(others.set(other));
        least(both.map(|(one, other)| one & other))
    }

    /// Returns the smallest number of a set that is not in `excluded`.
    pub fn least_except(&self, set: usize, excluded: [usize; 2]) -> Option<usize> {
        let without = |(at, &word): (usize, &u64)| {
            let those = excluded.into_iter().filter(|one| one / BITS == at);
            those.fold(word, |word, one| word & !(1 << (one % BITS)))
        };
        least(self.set(set).iter().enumerate().map(without))
    }
}

fn least(words: impl Iterator<Item = u64>) -> Option<usize> {
    let mut words = words.enumerate();
    let (at, word) = words.find(|&(_, word)| word != 0)?;
    Some(at * BITS + word.trailing_zeros() as usize)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sets_behave_like_btree_sets(
            below in 1..200_usize, steps in prop::collection::vec((any::<bool>(), 0..3_usize, any::<usize>()), 0..300),
        ) {
            let (mut sets, mut plain) = (BitSets::try_new(3, below).unwrap(), [const { BTreeSet::new() }; 3]);
            for (is_in, set, number) in steps {
                let number = number % below;
                match is_in {
                    true => {
                        sets.insert(set, number);
                        plain[set].insert(number);
                    }
                    false => {
                        sets.remove(set, number);
                        plain[set].remove(&number);
                    }
                }
                let excluded = [0, number];
                let other = (set + 1) % 3;
                prop_assert_eq!(sets.contains(set, number), is_in);
                prop_assert_eq!(sets.is_empty(set), plain[set].is_empty());
                prop_assert_eq!(sets.least(set), plain[set].first().copied());
                let common = plain[set].intersection(&plain[other]).next().copied();
                prop_assert_eq!(sets.least_common(set, &sets, other), common);
                let least = plain[set].iter().copied().find(|one| !excluded.contains(one));
                prop_assert_eq!(sets.least_except(set, excluded), least);
            }
        }
    }

    #[test]
    fn huge_sets_are_an_error() {
        assert!(BitSets::try_new(1 << 40, 1 << 40).is_err());
        assert!(BitSets::try_new(usize::MAX, usize::MAX).is_err());
    }
}
