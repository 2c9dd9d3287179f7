// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the profile store under damage, concurrent processes, read-only files and a full file
//! system.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod damage;
mod profiles;
mod support;
mod unwritable;
