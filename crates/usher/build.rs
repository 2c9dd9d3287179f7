// SPDX-License-Identifier: GPL-2.0-only
//! Build script: generates the Rust types and the client and server stubs of the daemon's Varlink
//! interfaces from `src/org.usher.*.varlink` into `OUT_DIR`. The types of the first interface are
//! also answers of commands, so they get a JSON Schema.

use std::error::Error;
use std::fs::File;
use std::path::Path;

/// The derivation of the generated types, in the spelling of `TokenStream`.
const DERIVED: &str = "derive (Serialize , Deserialize";

fn main() -> Result<(), Box<dyn Error>> {
    varlink_generator::cargo_build("src/org.usher.Scheduler1.varlink");
    let interface = "src/org.usher.Usher1.varlink";
    println!("cargo:rerun-if-changed={interface}");
    let mut types = Vec::new();
    varlink_generator::generate(&mut File::open(interface)?, &mut types, false)?;
    let types = String::from_utf8(types)?;
    if !types.contains(DERIVED) {
        return Err(format!("the generated code of {interface} has no `{DERIVED}`").into());
    }
    let types = types.replace(
        DERIVED,
        "derive (schemars :: JsonSchema , Serialize , Deserialize",
    );
    let out_dir = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out_dir).join("org.usher.Usher1.rs"), types)?;
    Ok(())
}
