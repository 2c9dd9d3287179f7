// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of Linux 2.6's O(1) scheduler as keys, of which the least is next.
//!
//! Levels are 0 to 139, the best first; a nice value's is 120 more than it. Times are in
//! nanoseconds. `levels.h` tells the rest.

use crate::c;

/// What a level weighs in a key: the lead of who has a level of bonus.
pub const LEVEL: u64 = 1 << 40;

/// The key of who arrives in the array of that key.
pub fn key_at(array: u64, level: u32, arrival: u64) -> u64 {
    c::levels_key_at(array, level, arrival)
}

/// After a slice, in the array behind.
pub fn key_expired(key: u64, active: u64, level: u32, arrival: u64) -> u64 {
    c::levels_key_expired(key, active, level, arrival)
}

/// Before the end of its slice.
pub fn key_preempted(key: u64, active: u64) -> u64 {
    c::levels_key_preempted(key, active)
}

/// From one pair of arrays to another.
pub fn key_elsewhere(key: u64, active_there: u64, active_here: u64, arrival: u64) -> u64 {
    c::levels_key_elsewhere(key, active_there, active_here, arrival)
}

/// The slice of a nice value's level.
pub fn slice_of(nice_level: i32) -> u64 {
    c::levels_slice(nice_level)
}

/// The level of a thread that sleeps so much.
pub fn level_of(nice_level: i32, sleep_average_ns: u64) -> u32 {
    c::levels_level_of(nice_level, sleep_average_ns)
}

/// Whether it stays in the active array.
pub fn is_interactive(nice_level: i32, sleep_average_ns: u64) -> bool {
    c::levels_is_interactive(nice_level, sleep_average_ns)
}

/// The average after a sleep.
pub fn average_after_sleep(average_ns: u64, slept_ns: u64, nice_level: i32) -> u64 {
    c::levels_after_sleep(average_ns, slept_ns, nice_level)
}

/// The average after running.
pub fn average_after_run(average_ns: u64, ran_ns: u64) -> u64 {
    c::levels_after_run(average_ns, ran_ns)
}

/// What a child begins with.
pub fn average_of_child(average_ns: u64) -> u64 {
    c::levels_of_child(average_ns)
}

/// Whether the first of so many that expired has waited for too long.
pub fn is_starving(since_ns: u64, now_ns: u64, waiting: u32) -> bool {
    c::levels_is_starving(since_ns, now_ns, waiting)
}

/// Whether a thread that wakes has the CPU of one that runs.
pub fn has_better_level(key: u64, running: u64, same_space: bool, aggregate: bool) -> bool {
    c::levels_has_better_level(key, running, same_space, aggregate)
}
