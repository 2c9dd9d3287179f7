// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the O(1) scheduler's order (`src/bpf/arrays.h`, `src/bpf/levels.h`), compiled for this
//! machine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod c;
mod levels;
mod order;
