// SPDX-License-Identifier: MIT OR Apache-2.0
//! Build script: sets the SONAME of the shared library, `libusher_tasks.so.N`. The SONAME changes
//! whenever the ABI changes. From version 1 on, N is the major version of the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libusher_tasks.so.0");
}
