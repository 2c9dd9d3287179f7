// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the workload of `usher bench tasks`, which its peers in C++ link too,
//! and finds out which rayon it is compared with.

use std::path::Path;

const FOLDER: &str = "src/tasks/peers";

fn main() {
    println!("cargo:rerun-if-changed={FOLDER}/workload.c");
    println!("cargo:rerun-if-changed={FOLDER}/workload.h");
    println!("cargo:rerun-if-changed=../Cargo.lock");
    // As `toolchain.rs` compiles it for the peers, whatever this build's profile is.
    cc::Build::new()
        .file(format!("{FOLDER}/workload.c"))
        .std("gnu11")
        .opt_level(3)
        .compile("usher_bench_workload");
    let lock = std::fs::read_to_string(Path::new("../Cargo.lock")).unwrap_or_default();
    let version = rayon_version(&lock).unwrap_or("1");
    println!("cargo:rustc-env=USHER_BENCH_RAYON={version}");
}

/// The version that the lock file names.
fn rayon_version(lock: &str) -> Option<&str> {
    let (_, rest) = lock.split_once("name = \"rayon\"\nversion = \"")?;
    rest.split('"').next()
}
