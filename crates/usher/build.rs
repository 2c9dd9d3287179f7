// SPDX-License-Identifier: GPL-2.0-only
//! Makes the Rust side of the daemon's Varlink interface.

fn main() {
    varlink_generator::cargo_build("src/org.usher.Usher1.varlink");
}
