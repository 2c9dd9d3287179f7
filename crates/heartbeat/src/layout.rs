// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of the heartbeat page. `include/usher_heartbeat.h` has the same layout in C, and a
//! test compares the two.
//!
//! Numbers are in the byte order of the machine, because a page is never moved to another machine.
//! Counters only grow. Offsets are in bytes:
//!
//! | offset | type | what |
//! |---|---|---|
//! | 0 | `[u8; 8]` | magic, [`MAGIC`] |
//! | 8 | `u32` | [`VERSION`] |
//! | 12 | `u32` | bytes of the whole file, [`PAGE_BYTES`] (69,632) |
//! | 16 | `u32` | number of thread slots, [`SLOTS`] |
//! | 20 | `u32` atomic | slots ever requested; requests beyond [`SLOTS`] fail |
//! | 64 | `u64` atomic | units of work done, by all processes that use the page |
//! | 128 | `f64` | units per second that the program aims at; 0: none |
//! | 136 | `[u8; 32]` | what a unit is, UTF-8, zero-terminated |
//! | 168 | `[u8; 64]` | a label for display, UTF-8, zero-terminated |
//! | 4096 | 1024 x 64 bytes | thread slots |
//!
//! A thread slot has the following layout; one thread at a time writes to a slot:
//!
//! | offset | type | what |
//! |---|---|---|
//! | 0 | `u32` atomic | sequence: odd while the slot is being written |
//! | 4 | `u32` atomic | state: 0 free, 1 useful, 2 waiting, 3 claimed |
//! | 8 | `u64` | `CLOCK_MONOTONIC` nanoseconds at which the state began |
//! | 16 | `u64` | wall nanoseconds useful, finished intervals only |
//! | 24 | `u64` | wall nanoseconds waiting, finished intervals only |
//! | 32 | `u64` | CPU nanoseconds useful, finished intervals only |
//! | 40 | `u64` | CPU nanoseconds used while waiting, finished intervals only |
//! | 48 | `u64` | changes of state |
//! | 56 | `u32` | thread id of the last owner |

/// The first eight bytes of every page.
pub const MAGIC: [u8; 8] = *b"USHERHB1";
/// Version of the layout.
pub const VERSION: u32 = 1;
/// Bytes of the whole file.
pub const PAGE_BYTES: usize = SLOTS_AT + SLOTS * SLOT_BYTES;
/// Number of thread slots.
pub const SLOTS: usize = 1024;
/// Bytes of a thread slot: one cache line, so that no two threads share a cache line.
pub const SLOT_BYTES: usize = 64;

/// Offset of the version.
pub const VERSION_AT: usize = 8;
/// Offset of the file's size.
pub const SIZE_AT: usize = 12;
/// Offset of the number of slots.
pub const SLOT_COUNT_AT: usize = 16;
/// Offset of the number of slots ever requested.
pub const SLOTS_REQUESTED_AT: usize = 20;
/// Offset of the work counter.
pub const WORK_AT: usize = 64;
/// Offset of the target rate.
pub const TARGET_AT: usize = 128;
/// Offset of the unit's name.
pub const UNIT_AT: usize = 136;
/// Bytes of the unit's name, including the final zero.
pub const UNIT_BYTES: usize = 32;
/// Offset of the label.
pub const LABEL_AT: usize = 168;
/// Bytes of the label, including the final zero.
pub const LABEL_BYTES: usize = 64;
/// Offset of the first thread slot.
pub const SLOTS_AT: usize = 4096;

/// Offset in a slot of its sequence number.
pub const SEQUENCE_AT: usize = 0;
/// Offset in a slot of its state.
pub const STATE_AT: usize = 4;
/// Offset in a slot of the start time of the state.
pub const SINCE_AT: usize = 8;
/// Offset in a slot of the useful wall time.
pub const USEFUL_AT: usize = 16;
/// Offset in a slot of the waiting wall time.
pub const WAITING_AT: usize = 24;
/// Offset in a slot of the useful CPU time.
pub const USEFUL_CPU_AT: usize = 32;
/// Offset in a slot of the CPU time used while waiting.
pub const WAITING_CPU_AT: usize = 40;
/// Offset in a slot of the number of changes of state.
pub const EVENTS_AT: usize = 48;
/// Offset in a slot of the owner's thread id.
pub const TID_AT: usize = 56;
