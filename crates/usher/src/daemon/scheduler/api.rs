// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler's Varlink interface, generated from `org.usher.Scheduler1.varlink`.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/org.usher.Scheduler1.rs"));
