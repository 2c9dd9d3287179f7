// SPDX-License-Identifier: MIT OR Apache-2.0
//! Build script: compiles the BPF programs to object files, without the skeletons that libbpf-cargo
//! can generate. A skeleton is not used, because it only borrows the loaded object, whereas the
//! meter must own the object. `switch.bpf.c` contains a hook at context switches. Only the example
//! `meter_cost` uses this object, to compare the cost of the meter with the cost of the hook.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libbpf_cargo::SkeletonBuilder;

const OBJECTS: [&str; 2] = ["meter", "switch"];

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-changed=src/logic.c");
    println!("cargo:rerun-if-env-changed=USHER_CLANG");
    // Version 19 is named explicitly, because Debian's default `clang` may be too old for these
    // programs.
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
    compile_logic(&out);
    ExitCode::SUCCESS
}

/// Compiles `logic.h`, the arithmetic of the BPF programs, for the host. Only the unit tests link
/// the result. Without a C compiler, all other code still builds.
fn compile_logic(out: &Path) {
    let mut logic = cc::Build::new();
    logic.file("src/logic.c").cargo_metadata(false);
    match logic.try_compile("usher_meter_logic") {
        Ok(()) => println!("cargo:rustc-link-search=native={}", out.display()),
        Err(error) => {
            println!("cargo:warning=the unit tests of the BPF code cannot be linked: {error}")
        }
    }
}
