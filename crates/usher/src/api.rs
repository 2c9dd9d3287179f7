// SPDX-License-Identifier: GPL-2.0-only
//! Includes the types and stubs of the daemon's Varlink interface, which the build script generates
//! from `org.usher.Usher1.varlink`. The lints of this crate do not apply to the generated code.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/org.usher.Usher1.rs"));
