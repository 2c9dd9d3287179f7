// SPDX-License-Identifier: GPL-2.0-only
//! The daemon's Varlink interface, generated from `org.usher.Usher1.varlink`.
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
