// SPDX-License-Identifier: MIT OR Apache-2.0
//! C functions that return the version of the loaded library, as a number and as text. A program
//! can compare this version with the version of the header with which the program was compiled.

use std::ffi::{CStr, c_char};

const MAJOR: u32 = number(env!("CARGO_PKG_VERSION_MAJOR"));
const MINOR: u32 = number(env!("CARGO_PKG_VERSION_MINOR"));
const PATCH: u32 = number(env!("CARGO_PKG_VERSION_PATCH"));

/// The version as text, for C.
pub const VERSION_TEXT: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("cargo permits no such version number"),
    };

const fn number(digits: &str) -> u32 {
    let digits = digits.as_bytes();
    let (mut value, mut at) = (0, 0);
    while at < digits.len() {
        value = value * 10 + (digits[at] - b'0') as u32;
        at += 1;
    }
    value
}

/// Returns the version as `USHER_TASKS_VERSION_NUMBER` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn usher_tasks_version() -> u32 {
    MAJOR << 24 | MINOR << 16 | PATCH
}

/// Returns the version as text.
#[unsafe(no_mangle)]
pub extern "C" fn usher_tasks_version_string() -> *const c_char {
    VERSION_TEXT.as_ptr()
}
