// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading a whole hash map of the BPF programs in one or two system calls.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libbpf_rs::{MapCore, MapHandle, libbpf_sys};

use crate::error::MeterError;
use crate::layout::Layout;

/// Entries that a system call gives at most. No bucket of the kernel's tables,
/// which have more buckets than entries, comes near it.
const BATCH: usize = 128;

/// A hash map and room for its content.
#[derive(Debug)]
pub(crate) struct Table {
    map: MapHandle,
    /// Values of an entry: one for each CPU that may be, or one.
    copies: usize,
    /// Bytes from one copy to the next.
    stride: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Table {
    pub fn new(map: MapHandle) -> Result<Self, MeterError> {
        let value_bytes = map.value_size() as usize;
        let (copies, stride) = match map.map_type().is_percpu() {
            true => {
                let cpus = libbpf_rs::num_possible_cpus();
                let cpus = cpus.map_err(MeterError::bpf("counting CPUs"))?;
                (cpus, value_bytes.next_multiple_of(8))
            }
            false => (1, value_bytes),
        };
        Ok(Self {
            copies,
            stride,
            keys: vec![0; BATCH * map.key_size() as usize],
            values: vec![0; BATCH * copies * stride],
            map,
        })
    }

    pub fn map(&self) -> &MapHandle {
        &self.map
    }

    /// Shows every entry: its key and its values, one for each CPU.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn each<K: Layout, V: Layout>(
        &mut self,
        mut see: impl FnMut(K, &mut dyn Iterator<Item = V>),
    ) -> Result<(), MeterError> {
        debug_assert_eq!(self.map.key_size() as usize, K::BYTES);
        debug_assert_eq!(self.map.value_size() as usize, V::BYTES);
        let mut place = None;
        loop {
            let (count, next) = self.batch(place)?;
            let key_bytes = self.map.key_size() as usize;
            let entries = self
                .keys
                .chunks_exact(key_bytes)
                .zip(self.values.chunks_exact(self.copies * self.stride));
            for (key, values) in entries.take(count) {
                let mut values = values.chunks_exact(self.stride).map(V::read);
                see(K::read(key), &mut values);
            }
            place = next;
            if place.is_none() {
                return Ok(());
            }
        }
    }

    /// Reads entries from a place in the map on: how many, and where to go on;
    /// `None`: that was all.
    fn batch(&mut self, place: Option<u32>) -> Result<(usize, Option<u32>), MeterError> {
        let mut count = BATCH as u32;
        let mut next = 0u32;
        let mut from = place.unwrap_or_default();
        let from = match place {
            Some(_) => ptr::from_mut(&mut from).cast(),
            None => ptr::null_mut(),
        };
        // SAFETY: keys and values have room for `count` entries of this map
        // (`new`), and a place in a hash map is a 32-bit word. The kernel
        // writes nothing else, and nothing after the call.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                self.map.as_fd().as_raw_fd(),
                from,
                ptr::from_mut(&mut next).cast(),
                self.keys.as_mut_ptr().cast(),
                self.values.as_mut_ptr().cast(),
                &mut count,
                ptr::null(),
            )
        };
        match result {
            0 => Ok((count as usize, Some(next))),
            error if error == -libc::ENOENT => Ok((count as usize, None)),
            error => {
                let error = libbpf_rs::Error::from_raw_os_error(-error);
                let doing = format!("reading the map {}", self.map.name().to_string_lossy());
                Err(MeterError::bpf(doing)(error))
            }
        }
    }
}
