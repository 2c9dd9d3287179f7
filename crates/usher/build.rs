// SPDX-License-Identifier: GPL-2.0-only
//! Build script: generates the Rust types and the client and server stubs of the daemon's Varlink
//! interface from `src/org.usher.Usher1.varlink` into `OUT_DIR`.

fn main() {
    varlink_generator::cargo_build("src/org.usher.Usher1.varlink");
}
