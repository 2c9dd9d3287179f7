// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exit statuses with which the lab reports its own results. Otherwise the exit status is that of
//! the command in the guest. The numbers are those of `env` and `timeout`.

/// Exit status: the lab or the guest failed.
pub const OWN_FAILURE: u8 = 125;
/// Exit status: the command exists, but cannot be run.
pub const NOT_RUNNABLE: u8 = 126;
/// Exit status: the command does not exist.
pub const NOT_FOUND: u8 = 127;
/// Exit status: the time limit was exceeded.
pub const TIMED_OUT: u8 = 124;
