// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the scheduler's headers for this machine, and says where they are.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=src/bpf");
    println!("cargo::rerun-if-changed=src/rules.c");
    let folder = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    println!(
        "cargo::metadata=include={}",
        folder.join("src/bpf").display()
    );
    let mut rules = cc::Build::new();
    rules
        .file("src/rules.c")
        .warnings(true)
        .extra_warnings(true)
        .try_compile("usher_rules")?;
    Ok(())
}
