// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exit statuses of the lab itself, in addition to those of the command that ran in the guest.

/// Exit status: the lab or the guest failed; as of `env` and `timeout`.
pub const OWN_FAILURE: u8 = 125;
/// Exit status: the command cannot be run.
pub const NOT_RUNNABLE: u8 = 126;
/// Exit status: the command does not exist.
pub const NOT_FOUND: u8 = 127;
/// Exit status: the time limit was exceeded.
pub const TIMED_OUT: u8 = 124;
