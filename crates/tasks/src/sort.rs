// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sorts of the standard library, each instantiated once.
//!
//! Each type and closure for which a sort is instantiated adds 5 to 15 KB to the library. All modules
//! therefore use the functions of this module, which keeps `libusher_tasks.so` small. The sorts take
//! O(n log n) time in the worst case and allocate no memory, so that they cannot abort the program.

/// Sorts pairs in ascending order of the first number, then of the second.
pub(crate) fn pairs(pairs: &mut [(usize, usize)]) {
    pairs.sort_unstable();
}

/// Sorts task numbers in ascending order of their keys. Equal keys keep ascending task numbers.
pub(crate) fn by_key(tasks: &mut [u32], key: &dyn Fn(u32) -> u64) {
    tasks.sort_unstable_by_key(|&task| (key(task), task));
}
