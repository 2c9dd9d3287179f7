// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bounds the unsent data in the network connections of a background program, because the kernel
//! still sends this data when the program is stopped.
//!
//! A BPF program on the cgroup (v2) of the program sets `TCP_NOTSENT_LOWAT` to 16 KiB for each TCP
//! connection that is established from then on (`bpf/backlog.bpf.c`). A connection keeps this limit
//! until it is closed; earlier connections have no limit.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use libbpf_rs::{Link, Object, ObjectBuilder, PrintLevel, set_print};

/// The BPF object, aligned so that its headers may be read in place.
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
    /// A sentence: BPF is not permitted, or not available.
    pub fn load() -> Result<Self, String> {
        // The error contains what libbpf would print.
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
    /// A sentence: the kernel does not attach it there.
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
