// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets the SONAME of the shared library. It changes with the ABI: with the major version, from
//! version 1 on.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libusher_tasks.so.0");
}
