// SPDX-License-Identifier: MIT OR Apache-2.0
//! The running kernel.

/// Returns the release of the running kernel, as printed by `uname -r`.
pub fn kernel_release() -> String {
    let system = rustix::system::uname();
    system.release().to_string_lossy().into_owned()
}
