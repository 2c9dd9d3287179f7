// SPDX-License-Identifier: MIT OR Apache-2.0
//! The integer types over which loops run. A loop numbers its items from 0 by a `u64`; this trait
//! converts these numbers.

use std::ops::Range;

mod private {
    pub trait SealedIndex {}
}

/// An integer type over which loops run: `u32`, `u64`, `usize`, `i32` and `i64`.
///
/// Other crates cannot implement this trait.
pub trait LoopIndex: private::SealedIndex + Copy + Send + Sync + 'static {
    /// Returns the number of items of a range; 0 if its end is below its start.
    #[doc(hidden)]
    fn len_of(range: &Range<Self>) -> u64;

    /// Returns the items with these numbers of a range that begins at `start`.
    #[doc(hidden)]
    fn part(start: Self, numbers: Range<u64>) -> Range<Self>;

    /// Calls a function with each item of a range, in ascending order, and passes on an
    /// accumulator.
    #[doc(hidden)]
    fn fold<A>(range: Range<Self>, accumulator: A, add: impl FnMut(A, Self) -> A) -> A;
}

macro_rules! loop_index {
    ($($index:ty)*) => {$(
        impl private::SealedIndex for $index {}

        impl LoopIndex for $index {
            fn len_of(range: &Range<Self>) -> u64 {
                match range.start < range.end {
                    // The difference is at most 2^64 - 1, and the cast of a wrapped difference to
                    // the unsigned type gives the difference.
                    true => range.end.abs_diff(range.start) as u64,
                    false => 0,
                }
            }

            #[inline]
            fn part(start: Self, numbers: Range<u64>) -> Range<Self> {
                // The items are in a range of this type, so the wrapped sums are the items.
                start.wrapping_add(numbers.start as Self)..start.wrapping_add(numbers.end as Self)
            }

            #[inline]
            fn fold<A>(range: Range<Self>, accumulator: A, add: impl FnMut(A, Self) -> A) -> A {
                range.fold(accumulator, add)
            }
        }
    )*};
}

loop_index!(u32 u64 usize i32 i64);

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_all_types_are_numbered_from_zero() {
        assert_eq!(u64::len_of(&(0..u64::MAX)), u64::MAX);
        assert_eq!(i64::len_of(&(i64::MIN..i64::MAX)), u64::MAX);
        assert_eq!(i32::len_of(&(-3..4)), 7);
        assert_eq!(i32::len_of(&Range { start: 4, end: -3 }), 0);
        assert_eq!(usize::len_of(&(5..5)), 0);
        assert_eq!(i64::part(i64::MIN, 0..u64::MAX), i64::MIN..i64::MAX);
        assert_eq!(i32::part(-3, 2..7), -1..4);
        assert_eq!(u32::part(u32::MAX - 2, 1..2), u32::MAX - 1..u32::MAX);
    }
}
