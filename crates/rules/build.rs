// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the scheduler's C source for this machine, and reports the folder of its headers to the
//! build scripts of dependent crates.
//!
//! The result is two static libraries. `usher_rules` has the functions of the headers in `src/bpf`;
//! `usher_sched_host` has the whole scheduler with the simulated kernel in `src/host`. If
//! `USHER_HOST_SCHED` names a folder, the shared library `usher_host_sched` in that folder is
//! linked instead of the two libraries.

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
        // The scheduler's callbacks do not use all their arguments.
        .flag("-Wno-unused-parameter")
        // The kernel is compiled with this option, too.
        .flag("-fno-strict-aliasing")
        // Debug builds are optimised, too, because simulations cover hours of virtual time.
        .opt_level(2)
        .try_compile("usher_sched_host")?;
    Ok(())
}
