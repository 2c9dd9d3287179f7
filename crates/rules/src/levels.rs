// SPDX-License-Identifier: MIT OR Apache-2.0
//! Order of Linux 2.6's O(1) scheduler, as keys: the lowest key is next.
//!
//! Levels are 0 to 139, the best first; that of a nice value is 120 more. Times are in nanoseconds.
//! `levels.h` describes the order.

use crate::c;

/// Unit of a level in a key, and `max_lag_ns` for a bonus of one level.
pub const LEVEL: u64 = 1 << 40;

/// Composes a key in the array of the key `array`.
pub fn key_at(array: u64, level: u32, arrival: u64) -> u64 {
    c::levels_key_at(array, level, arrival)
}

/// Returns the key after a slice, in the array behind.
pub fn key_expired(key: u64, active: u64, level: u32, arrival: u64) -> u64 {
    c::levels_key_expired(key, active, level, arrival)
}

/// Returns the key after a preemption.
pub fn key_preempted(key: u64, active: u64) -> u64 {
    c::levels_key_preempted(key, active)
}

/// Converts a key between the arrays of two LLCs.
pub fn key_elsewhere(key: u64, active_there: u64, active_here: u64, arrival: u64) -> u64 {
    c::levels_key_elsewhere(key, active_there, active_here, arrival)
}

/// Returns the slice of a nice value's level.
pub fn slice_of(nice_level: i32) -> u64 {
    c::levels_slice(nice_level)
}

/// Returns the level for a nice value and a sleep average.
pub fn level_of(nice_level: i32, sleep_average_ns: u64) -> u32 {
    c::levels_level_of(nice_level, sleep_average_ns)
}

/// Returns whether a thread is interactive and stays in the active array.
pub fn is_interactive(nice_level: i32, sleep_average_ns: u64) -> bool {
    c::levels_is_interactive(nice_level, sleep_average_ns)
}

/// Returns the sleep average after a sleep.
pub fn average_after_sleep(average_ns: u64, slept_ns: u64, nice_level: i32) -> u64 {
    c::levels_after_sleep(average_ns, slept_ns, nice_level)
}

/// Returns the sleep average after running.
pub fn average_after_run(average_ns: u64, ran_ns: u64) -> u64 {
    c::levels_after_run(average_ns, ran_ns)
}

/// Returns the sleep average of a child.
pub fn average_of_child(average_ns: u64) -> u64 {
    c::levels_of_child(average_ns)
}

/// Returns whether the first expired thread has waited for too long.
pub fn is_starving(since_ns: u64, now_ns: u64, waiting: u32) -> bool {
    c::levels_is_starving(since_ns, now_ns, waiting)
}

/// Returns whether a thread that wakes preempts the running one.
pub fn has_better_level(key: u64, running: u64, same_space: bool, aggregate: bool) -> bool {
    c::levels_has_better_level(key, running, same_space, aggregate)
}
