// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rust declarations of the types and functions of `order.c`.

pub const LEVELS: u32 = 140;
pub const LEVEL_FIRST: u32 = 100;
pub const NO_ARRIVAL: u64 = u64::MAX;

/// Scheduling state of a thread, `struct o1_thread`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ThreadState {
    pub slice_left_ns: u64,
    pub slice_ends_ns: u64,
    pub ran_since_ns: u64,
    pub slept_at_ns: u64,
    pub sleep_average_ns: u64,
    pub arrival: u64,
    pub mm: u64,
    pub level: u32,
    pub array: u32,
    pub cpu: u32,
    pub has_slice: u32,
    pub is_placed: u32,
    pub waits_on: u32,
}

/// Scheduling state of a CPU, `struct o1_cpu`.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuState {
    pub levels: [u64; 2],
    pub arrivals: u64,
    pub expired_since_ns: u64,
    pub balanced_at_ns: u64,
    pub mm: u64,
    pub active: u32,
    pub level: u32,
    pub waiting: u32,
    pub unused: u32,
}

/// The threads of which one runs next, `struct candidates`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Candidates {
    pub level: u32,
    pub has_prev: u32,
    pub prev_level: u32,
    pub prev_shares: u32,
    pub prev: u64,
    pub first: u64,
    pub sharing: u64,
    pub below: u64,
}

/// Values of `enum next`: the selected candidate.
pub const NEXT_NONE: u32 = 0;
pub const NEXT_PREV: u32 = 1;
pub const NEXT_FIRST: u32 = 2;
pub const NEXT_SHARING: u32 = 3;
pub const NEXT_BELOW: u32 = 4;

// Functions of `order.c`, which the build script compiles. They keep no pointer after they return.
unsafe extern "C" {
    pub safe static o1_sizes: [u64; 3];
    pub fn o1_place(thread: *mut ThreadState, state: *mut CpuState, cpu: u32, nice: i32, now: u64);
    pub fn o1_account_run(thread: *mut ThreadState, now: u64);
    pub fn o1_swap_if_empty(state: *mut CpuState, prev: *const ThreadState);
    pub fn o1_best_level(state: *const CpuState) -> u32;
    pub safe fn o1_bit_of(level: u32) -> u64;
    pub fn o1_choose(of: *const Candidates, aggregate: bool) -> u32;
    pub fn o1_preempts(woken: *const ThreadState, state: *const CpuState, aggregate: bool) -> bool;
    pub fn o1_left_of_slice(thread: *const ThreadState, now: u64) -> u64;
    pub safe fn o1_slice(nice_level: i32) -> u64;
    pub safe fn o1_level_of(nice_level: i32, sleep_average_ns: u64) -> u32;
    pub safe fn o1_is_interactive(nice_level: i32, sleep_average_ns: u64) -> bool;
    pub safe fn o1_after_sleep(average_ns: u64, slept_ns: u64, nice_level: i32) -> u64;
    pub safe fn o1_after_run(average_ns: u64, ran_ns: u64) -> u64;
    pub safe fn o1_of_child(average_ns: u64) -> u64;
    pub safe fn o1_is_starving(since_ns: u64, now_ns: u64, waiting: u32) -> bool;
}

#[test]
fn layouts_match_the_header() {
    let sizes = [
        size_of::<ThreadState>(),
        size_of::<CpuState>(),
        size_of::<Candidates>(),
    ];
    assert_eq!(o1_sizes.map(|size| size as usize), sizes);
}
