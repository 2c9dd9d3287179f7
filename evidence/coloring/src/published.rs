// SPDX-License-Identifier: MIT OR Apache-2.0
//! The published measurements of 2002 with which the simulation is compared.
//!
//! Paper 3a is the talk by Yamamura, Hirai, Kumon, Linux Conference 2002 (in Japanese). The talk
//! reports gains of 23.3 % (web, 8 CPUs) and 86.3 % (chat, 8 CPUs), and walks that miss the cache
//! in "> 90 %" of the accesses. The tables are from the authors' longer paper: Yamamura, Hirai,
//! Sato, Yamamoto, Naruse, Kumon, "Speeding Up Kernel Scheduler by Reducing Cache Misses", USENIX
//! 2002, FREENIX track, tables 4, 7 and 8. The kernel of the longer paper has 32 colours, which are
//! 32 bytes apart.

/// Number of columns of the tables: 1 to 8 CPUs.
pub const CPUS: usize = 8;
/// Gain of the web workload with 8 CPUs in per cent, according to the talk.
pub const WEB_GAIN: f64 = 23.3;
/// Gain of the chat with 8 CPUs in per cent, according to the talk.
pub const CHAT_GAIN: f64 = 86.3;
/// Web: gain over the plain kernel in per cent, for 1 to 8 CPUs (table 4).
pub const WEB_GAINS: [f64; CPUS] = [8.2, 13.3, 15.8, 17.6, 18.0, 20.6, 22.6, 23.3];
/// Chat: share of the walk's accesses that miss, plain kernel, in per cent, for 1 to 8 CPUs (table
/// 7).
pub const CHAT_MISSES_PLAIN: [f64; CPUS] = [99.7, 99.8, 76.4, 98.8, 64.5, 85.3, 94.4, 84.8];
/// Chat: share of the walk's accesses that miss, coloured kernel, in per cent, for 1 to 8 CPUs
/// (table 7).
pub const CHAT_MISSES_COLORED: [f64; CPUS] = [3.2, 4.6, 2.8, 2.4, 5.8, 3.6, 2.8, 3.3];
/// Chat: share of the lock requests that found the lock taken, plain kernel, in per cent, for 2 to
/// 8 CPUs (table 8).
pub const CHAT_CONTENTION_PLAIN: [f64; CPUS - 1] = [33.0, 48.4, 51.9, 73.0, 75.0, 85.2, 85.8];
/// Chat: share of the lock requests that found the lock taken, coloured kernel, in per cent, for 2
/// to 8 CPUs (table 8).
pub const CHAT_CONTENTION_COLORED: [f64; CPUS - 1] = [23.6, 38.7, 48.3, 56.4, 60.6, 61.9, 69.7];
/// Chat: mean time in us for which the lock is held, plain kernel, for 2 to 8 CPUs (table 8).
pub const CHAT_HOLD_US_PLAIN: [f64; CPUS - 1] = [113.0, 51.0, 32.0, 50.0, 34.0, 54.0, 40.0];
/// Chat: mean time in us for which the lock is held, coloured kernel, for 2 to 8 CPUs (table 8).
pub const CHAT_HOLD_US_COLORED: [f64; CPUS - 1] = [26.0, 25.0, 18.0, 19.0, 17.0, 13.0, 14.0];
