// SPDX-License-Identifier: GPL-2.0-only
//! Build script: generates the Rust types and the client and server stubs of the daemon's Varlink
//! interfaces from `src/org.usher.*.varlink` into `OUT_DIR`.

fn main() {
    for interface in ["Usher1", "Scheduler1"] {
        varlink_generator::cargo_build(&format!("src/org.usher.{interface}.varlink"));
    }
}
