// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fuzz targets: one for each parser of text or bytes that another program or user may have
//! written.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod kernel;
mod machines;
mod own;
mod plans;
