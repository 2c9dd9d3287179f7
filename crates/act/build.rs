// SPDX-License-Identifier: MIT OR Apache-2.0
//! Build script: compiles `src/bpf/backlog.bpf.c` with clang to an object that the crate embeds.
//! The compiler is `clang-19`, or the program that the environment variable `USHER_CLANG` names.

use std::path::PathBuf;
use std::{env, io};

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "src/bpf/backlog.bpf.c";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo sets OUT_DIR"))?;
    let arch = env::var("CARGO_CFG_TARGET_ARCH")?;
    SkeletonBuilder::new()
        .source(SOURCE)
        .obj(PathBuf::from(out).join("backlog.bpf.o"))
        .clang(env::var_os("USHER_CLANG").unwrap_or_else(|| "clang-19".into()))
        .clang_args([
            "-mcpu=v3",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-parameter",
            // Debian installs the kernel's headers of each architecture in this directory.
            &format!("-I/usr/include/{arch}-linux-gnu"),
        ])
        .build()?;
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-env-changed=USHER_CLANG");
    Ok(())
}
