// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gives the shared library the name that programs remember it by. It changes with
//! the ABI: with the major version, once there is a first one.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libusher_tasks.so.0");
}
