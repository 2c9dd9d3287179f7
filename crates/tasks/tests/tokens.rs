// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of tasks by token, with free tokens.

#![allow(clippy::unwrap_used)] // a test fails by panicking

#[path = "cases/tokens.rs"]
mod cases;

/// The range of dense tokens.
const DENSE_TOKENS: std::ops::Range<u64> = 0..0;
