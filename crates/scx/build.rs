// SPDX-License-Identifier: GPL-2.0-only
//! Compiles the BPF programs `sched` and `count` to object files in `OUT_DIR`, which the crate
//! includes as bytes. Each program is compiled for two sizes of its tables. The compiler is `clang-19`, or the command in the variable `USHER_CLANG`. The
//! headers with the scheduler's arithmetic are part of the crate `usher-rules`, which reports their
//! folder in the variable `DEP_USHER_RULES_INCLUDE`.

use std::path::PathBuf;
use std::process::ExitCode;

use libbpf_cargo::SkeletonBuilder;

const PROGRAMS: [&str; 2] = ["sched", "count"];
/// Numbers of CPUs that the tables of the programs hold (`src/tables.rs`).
const CPUS: [u32; 2] = [64, 2048];

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-env-changed=USHER_CLANG");
    // Debian's plain `clang` may be older than what these programs need.
    let clang = std::env::var("USHER_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let Ok(out) = std::env::var("OUT_DIR").map(PathBuf::from) else {
        eprintln!("OUT_DIR is not set: the build script must be run by cargo");
        return ExitCode::FAILURE;
    };
    let Ok(rules) = std::env::var("DEP_USHER_RULES_INCLUDE") else {
        eprintln!("the build script of usher-rules has not set the directory of its headers");
        return ExitCode::FAILURE;
    };
    println!("cargo:rerun-if-changed={rules}");
    let all = PROGRAMS
        .iter()
        .flat_map(|name| CPUS.map(|cpus| (name, cpus)));
    for (name, cpus) in all {
        let built = SkeletonBuilder::new()
            .source(format!("src/bpf/{name}.bpf.c"))
            .obj(out.join(format!("{name}-{cpus}.bpf.o")))
            .clang(&clang)
            .clang_args([
                "-mcpu=v3",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-unused-parameter",
                &format!("-I{rules}"),
                &format!("-DCPUS_MAX={cpus}"),
            ])
            .build();
        if let Err(error) = built {
            eprintln!("compiling src/bpf/{name}.bpf.c with {clang}: {error:?}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
