// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests that run Debian with systemd, a full cgroup v2 and ordinary users.
//!
//! Such a guest boots from a disk of its own instead of the host's files:
//!
//! ```text
//!   image (cached)    /            Debian, built once per release by make-image.sh
//!   product disk      /usr/local   installed programs, the kernel's configuration, the job
//! ```
//!
//! The init program of the image mounts the product disk and starts systemd. A service of
//! the image runs the job as root and copies its output to a serial line. The last line names
//! the exit status. Changes to either disk are discarded when the guest ends; a reboot
//! inside the guest keeps them.
//!
//! - `image`: builds and caches the disk of a release;
//! - `product`: builds the second disk;
//! - `machine`: boots both in QEMU and follows the job.

mod image;
mod machine;
mod product;

pub use image::{Suite, missing, prepare};
pub use machine::{Guest, GuestKernel};
