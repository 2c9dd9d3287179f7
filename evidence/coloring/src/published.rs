// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements of 2002, for comparison.
//!
//! Paper 3a is the talk on which this project is based: Yamamura, Hirai, Kumon, Linux Conference
//! 2002 (in Japanese). Its figures are +23.3 % (web, 8 CPUs), +86.3 % (chat, 8 CPUs), and walk
//! misses of "> 90 %". The tables are from the authors' longer paper: Yamamura, Hirai, Sato,
//! Yamamoto, Naruse, Kumon, "Speeding Up Kernel Scheduler by Reducing Cache Misses", USENIX 2002,
//! FREENIX track, tables 4, 7 and 8. Its kernel has 32 colours of 32 bytes.

/// Number of columns of the tables: 1 to 8 CPUs.
pub const CPUS: usize = 8;
/// Gain of the talk at 8 CPUs, per cent.
pub const WEB_GAIN: f64 = 23.3;
/// Gain of the talk at 8 CPUs, per cent.
pub const CHAT_GAIN: f64 = 86.3;
/// Web: gain over the plain kernel, per cent, by CPUs (table 4).
pub const WEB_GAINS: [f64; CPUS] = [8.2, 13.3, 15.8, 17.6, 18.0, 20.6, 22.6, 23.3];
/// Chat: misses of the walk, per cent, plain (table 7).
pub const CHAT_MISSES_PLAIN: [f64; CPUS] = [99.7, 99.8, 76.4, 98.8, 64.5, 85.3, 94.4, 84.8];
/// Chat: misses of the walk, per cent, coloured (table 7).
pub const CHAT_MISSES_COLORED: [f64; CPUS] = [3.2, 4.6, 2.8, 2.4, 5.8, 3.6, 2.8, 3.3];
/// Chat: the lock found taken, per cent, plain, from 2 CPUs (table 8).
pub const CHAT_CONTENTION_PLAIN: [f64; CPUS - 1] = [33.0, 48.4, 51.9, 73.0, 75.0, 85.2, 85.8];
/// Chat: the lock found taken, per cent, coloured, from 2 CPUs (table 8).
pub const CHAT_CONTENTION_COLORED: [f64; CPUS - 1] = [23.6, 38.7, 48.3, 56.4, 60.6, 61.9, 69.7];
/// Chat: mean time that the lock is held, us, plain, from 2 CPUs (table 8).
pub const CHAT_HOLD_US_PLAIN: [f64; CPUS - 1] = [113.0, 51.0, 32.0, 50.0, 34.0, 54.0, 40.0];
/// Chat: mean time that the lock is held, us, coloured, from 2 CPUs (table 8).
pub const CHAT_HOLD_US_COLORED: [f64; CPUS - 1] = [26.0, 25.0, 18.0, 19.0, 17.0, 13.0, 14.0];
