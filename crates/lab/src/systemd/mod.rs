// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests that run Debian with systemd, with all controllers of cgroup v2 and with users other than
//! root.
//!
//! Such a guest boots from a disk of its own instead of the host's files:
//!
//! ```text
//!   image (cached)    /            Debian, built once per release by make-image.sh
//!   product disk      /usr/local   installed programs, the kernel's configuration, the job
//! ```
//!
//! 1. The init program of the image mounts the product disk and starts systemd.
//! 2. A service of the image runs the job as root, and copies the job's output to a serial line.
//! 3. The last line of the output contains the exit status.
//!
//! Changes of the disks are discarded when the guest ends. A reboot inside the guest keeps them.
//!
//! - `image`: builds and caches the disk of a release;
//! - `product`: builds the product disk;
//! - `machine`: boots the two disks in QEMU and copies the output of the job.

mod image;
mod machine;
mod product;

pub use image::{Suite, missing, prepare};
pub use machine::{Guest, GuestKernel};
