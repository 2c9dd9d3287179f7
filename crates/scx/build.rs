// SPDX-License-Identifier: GPL-2.0-only
//! Compiles the BPF programs, and their arithmetic for tests on this machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libbpf_cargo::SkeletonBuilder;

const OBJECTS: [&str; 2] = ["sched", "count"];

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-changed=src/rules.c");
    println!("cargo:rerun-if-env-changed=USHER_CLANG");
    // Debian's plain `clang` may be older than what these programs need.
    let clang = std::env::var("USHER_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let Ok(out) = std::env::var("OUT_DIR").map(PathBuf::from) else {
        eprintln!("cargo sets OUT_DIR");
        return ExitCode::FAILURE;
    };
    for name in OBJECTS {
        let built = SkeletonBuilder::new()
            .source(format!("src/bpf/{name}.bpf.c"))
            .obj(out.join(format!("{name}.bpf.o")))
            .clang(&clang)
            .clang_args([
                "-mcpu=v3",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-unused-parameter",
            ])
            .build();
        if let Err(error) = built {
            eprintln!("compiling src/bpf/{name}.bpf.c with {clang}: {error:?}");
            return ExitCode::FAILURE;
        }
    }
    compile_rules(&out);
    ExitCode::SUCCESS
}

/// Only the unit tests link it; without a C compiler they cannot, and all else
/// can.
fn compile_rules(out: &Path) {
    let mut rules = cc::Build::new();
    rules.file("src/rules.c").cargo_metadata(false);
    match rules.try_compile("usher_scx_rules") {
        Ok(()) => println!("cargo:rustc-link-search=native={}", out.display()),
        Err(error) => println!("cargo:warning=the unit tests cannot be linked: {error}"),
    }
}
