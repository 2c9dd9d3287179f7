// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which version of the library runs.

use std::ffi::{CStr, c_char};

const MAJOR: u32 = number(env!("CARGO_PKG_VERSION_MAJOR"));
const MINOR: u32 = number(env!("CARGO_PKG_VERSION_MINOR"));
const PATCH: u32 = number(env!("CARGO_PKG_VERSION_PATCH"));

/// The version in words, for C.
pub const WORDS: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(words) => words,
        Err(_) => panic!("cargo knows no such version"),
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

/// As `USHER_TASKS_VERSION_NUMBER` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn usher_tasks_version() -> u32 {
    MAJOR << 24 | MINOR << 16 | PATCH
}

/// As words.
#[unsafe(no_mangle)]
pub extern "C" fn usher_tasks_version_string() -> *const c_char {
    WORDS.as_ptr()
}
