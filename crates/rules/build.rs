// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the scheduler's C source for this machine, and publishes the headers' folder.
//!
//! Two static libraries result: `usher_rules`, the functions of the headers in `src/bpf`, and
//! `usher_sched_host`, the whole scheduler with the simulated kernel in `src/host`. If
//! `USHER_HOST_SCHED` names a folder, the shared library `usher_host_sched` in it is linked
//! instead.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let arithmetic = folder.join("src/bpf");
    let host = folder.join("src/host");
    let scheduler = folder.join("../scx/src/bpf");
    for read in [&arithmetic, &host, &scheduler, &folder.join("src/rules.c")] {
        println!("cargo::rerun-if-changed={}", read.display());
    }
    println!("cargo::metadata=include={}", arithmetic.display());
    println!("cargo::rerun-if-env-changed=USHER_HOST_SCHED");
    // The mutation test compiles the source itself, and replaces the library while it runs.
    if let Some(library) = std::env::var_os("USHER_HOST_SCHED") {
        let library = PathBuf::from(library);
        println!("cargo::rustc-link-search=native={}", library.display());
        println!("cargo::rustc-link-lib=dylib=usher_host_sched");
        return Ok(());
    }
    cc::Build::new()
        .file("src/rules.c")
        .warnings(true)
        .extra_warnings(true)
        .try_compile("usher_rules")?;
    cc::Build::new()
        .file("src/host/host.c")
        .include(&arithmetic)
        .include(&host)
        .include(&scheduler)
        .warnings(true)
        .extra_warnings(true)
        // Callbacks do not use all their arguments.
        .flag("-Wno-unused-parameter")
        // Same as in the kernel.
        .flag("-fno-strict-aliasing")
        // The simulator runs for hours of virtual time, also in debug builds.
        .opt_level(2)
        .try_compile("usher_sched_host")?;
    Ok(())
}
