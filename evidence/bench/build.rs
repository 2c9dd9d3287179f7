// SPDX-License-Identifier: MIT OR Apache-2.0
//! Build script of `usher-bench`, in four steps:
//!
//! 1. Compile `workload.c`, the tasks that `usher bench tasks` runs. The C++ programs of the
//!    compared runtimes link the same file.
//! 2. Compile the BPF programs of `usher bench sched`: two sched_ext schedulers, `minimal_fifo` and
//!    `o1`, with which it compares Usher's scheduler, and `conservation`, which counts idle time
//!    under any scheduler.
//! 3. Compile the decisions of `o1` for this machine, for unit tests.
//! 4. Read the version of rayon from the lock file into the variable `USHER_BENCH_RAYON`.
//!
//! If a BPF program or the test's C file does not compile, the build fails with an error that names
//! the file.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libbpf_cargo::SkeletonBuilder;

const PEERS: &str = "src/tasks/peers";
/// Folder of the BPF programs and of the headers `arrays.h` and `levels.h` of `o1`.
const BPF: &str = "src/bpf";
/// C functions through which tests call the inline functions of `arrays.h` and `levels.h`.
const ORDER: &str = "tests/o1/order.c";
const PROGRAMS: [&str; 3] = ["minimal_fifo", "o1", "conservation"];
/// Folder of the declarations of kernel types and functions that BPF programs need.
const KERNEL: &str = "../../crates/scx/src/bpf";

fn main() -> ExitCode {
    compile_workload();
    for name in PROGRAMS {
        if let Err(error) = compile_programs(name) {
            eprintln!("compiling {BPF}/{name}.bpf.c: {error:?}");
            return ExitCode::FAILURE;
        }
    }
    if let Err(error) = compile_order() {
        eprintln!("compiling {ORDER}: {error}");
        return ExitCode::FAILURE;
    }
    println!("cargo:rerun-if-changed=../Cargo.lock");
    let lock = std::fs::read_to_string(Path::new("../Cargo.lock")).unwrap_or_default();
    let version = rayon_version(&lock).unwrap_or("1");
    println!("cargo:rustc-env=USHER_BENCH_RAYON={version}");
    ExitCode::SUCCESS
}

fn compile_workload() {
    println!("cargo:rerun-if-changed={PEERS}/workload.c");
    println!("cargo:rerun-if-changed={PEERS}/workload.h");
    println!("cargo:rerun-if-changed={PEERS}/cholesky.h");
    // `toolchain.rs` compiles the workload for the compared runtimes with the same options, which
    // do not depend on the profile of this build.
    cc::Build::new()
        .file(format!("{PEERS}/workload.c"))
        .std("gnu11")
        .opt_level(3)
        // A build with debug information would keep frame pointers, which slows short items by 14 %.
        .force_frame_pointer(false)
        // The alignment of a function changes the time of short items by 12 %.
        .flag("-falign-functions=64")
        .flag("-falign-loops=64")
        .compile("usher_bench_workload");
}

/// Compiles the C source that selects the O(1) scheduler's next thread, for this machine instead of
/// BPF. Only tests call the compiled functions.
fn compile_order() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={ORDER}");
    cc::Build::new()
        .file(ORDER)
        .include(BPF)
        .include(std::env::var("DEP_USHER_RULES_INCLUDE")?)
        .warnings(true)
        .extra_warnings(true)
        .try_compile("usher_bench_o1")?;
    Ok(())
}

fn compile_programs(name: &str) -> Result<(), Box<dyn Error>> {
    let arithmetic = std::env::var("DEP_USHER_RULES_INCLUDE")?;
    for changed in [BPF, KERNEL, &arithmetic] {
        println!("cargo:rerun-if-changed={changed}");
    }
    println!("cargo:rerun-if-env-changed=USHER_CLANG");
    // The plain `clang` of Debian may be too old for these programs.
    let clang = std::env::var("USHER_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let object = PathBuf::from(std::env::var("OUT_DIR")?).join(format!("{name}.bpf.o"));
    SkeletonBuilder::new()
        .source(format!("{BPF}/{name}.bpf.c"))
        .obj(object)
        .clang(clang)
        .clang_args([
            "-mcpu=v3",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-parameter",
            &format!("-I{KERNEL}"),
            &format!("-I{arithmetic}"),
        ])
        .build()?;
    Ok(())
}

/// Returns the version of rayon in the text of a `Cargo.lock`.
fn rayon_version(lock: &str) -> Option<&str> {
    let (_, rest) = lock.split_once("name = \"rayon\"\nversion = \"")?;
    rest.split('"').next()
}
