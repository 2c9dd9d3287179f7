// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bounds the unsent data in the network connections of a background program, because the kernel
//! still sends this data when the program is stopped.
//!
//! [`Backlog::bound`] attaches a BPF program to the background program's cgroup (v2). From then on,
//! the BPF program sets `TCP_NOTSENT_LOWAT` to 16 KiB for each new TCP connection of the cgroup
//! (`bpf/backlog.bpf.c`). A connection keeps this limit until it is closed. Connections that were
//! established before have no limit. A failure to load or to attach the BPF program is returned as
//! a sentence; this module does not retry.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use libbpf_rs::{Link, Object, ObjectBuilder, PrintLevel, set_print};

/// The bytes of the BPF object, aligned to allow libbpf to read the headers of the object in place.
#[repr(C, align(8))]
struct Aligned<const N: usize>([u8; N]);

static OBJECT: &Aligned<{ OBJECT_BYTES.len() }> = &Aligned(*OBJECT_BYTES);
const OBJECT_BYTES: &[u8; include_bytes!(concat!(env!("OUT_DIR"), "/backlog.bpf.o")).len()] =
    include_bytes!(concat!(env!("OUT_DIR"), "/backlog.bpf.o"));

/// The BPF object that bounds the backlog, loaded and not yet attached.
#[derive(Debug)]
pub(crate) struct Backlog(Object);

impl Backlog {
    /// Loads the object.
    ///
    /// # Errors
    /// A sentence with the reason: BPF is not permitted or not available.
    pub fn load() -> Result<Self, String> {
        // Switches off the messages of libbpf: the returned error contains the same information.
        set_print(None::<(PrintLevel, fn(PrintLevel, String))>);
        let open = ObjectBuilder::default().open_memory(&OBJECT.0);
        let object = open.and_then(|open| open.load());
        object.map(Self).map_err(|error| {
            format!(
                "the BPF program that limits the unsent data of sockets cannot be loaded: {error}"
            )
        })
    }

    /// Bounds the backlog of every connection that a process of this cgroup (v2) opens from now on,
    /// while the link is held.
    ///
    /// # Errors
    /// A sentence with the reason for which the kernel does not attach the BPF program to this
    /// cgroup.
    pub fn bound(&mut self, cgroup: &Path) -> Result<Link, String> {
        let describe = |error: &dyn std::fmt::Display| format!("{}: {error}", cgroup.display());
        let dir = File::open(cgroup).map_err(|error| describe(&error))?;
        let program = self.0.progs_mut().next();
        let program =
            program.ok_or_else(|| describe(&"the embedded BPF object contains no program"))?;
        let link = program.attach_cgroup(dir.as_raw_fd());
        link.map_err(|error| describe(&error))
    }
}
