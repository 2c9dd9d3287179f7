// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a whole hash map of the BPF programs, with up to 128 entries per system call ([`BATCH`]).
//! Small maps need one or two system calls. A removal costs one more system call per removed entry.
//! An entry that changes during the reading may be read twice or not at all. An error ends the
//! reading; entries that were passed on before stay valid.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libbpf_rs::{MapCore, MapHandle, libbpf_sys};

use crate::error::MeterError;
use crate::layout::MapLayout;

/// Maximum number of entries per system call. The number must exceed the number of entries in any
/// bucket of the kernel's hash table. A bucket contains far fewer entries, because the table has
/// more buckets than entries.
const BATCH: usize = 128;

/// A hash map, and buffers for its content.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    map: MapHandle,
    of: PhantomData<fn() -> (K, V)>,
    /// Number of copies of each value: the number of possible CPUs for a per-CPU map, and 1 for any
    /// other map.
    copies: usize,
    /// Distance between two copies of a value in bytes.
    stride: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl<K: MapLayout, V: MapLayout> Table<K, V> {
    /// Opens a map.
    ///
    /// # Errors
    /// The sizes of the map's keys and values differ from the sizes of `K` and `V`.
    pub fn new(map: MapHandle) -> Result<Self, MeterError> {
        let value_bytes = map.value_size() as usize;
        if (map.key_size() as usize, value_bytes) != (K::BYTES, V::BYTES) {
            let name = map.name().to_string_lossy();
            let doing = format!(
                "comparing the key and value sizes of the BPF map {name} with those that the \
                 meter expects"
            );
            let error = libbpf_rs::Error::from_raw_os_error(libc::EINVAL);
            return Err(MeterError::bpf(doing)(error));
        }
        let (copies, stride) = match map.map_type().is_percpu() {
            true => {
                let cpus = libbpf_rs::num_possible_cpus();
                let cpus = cpus.map_err(MeterError::bpf("counting CPUs"))?;
                (cpus, value_bytes.next_multiple_of(8))
            }
            false => (1, value_bytes),
        };
        Ok(Self {
            of: PhantomData,
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

    /// Calls `see` with each key and its values, one value per copy.
    ///
    /// # Errors
    /// The kernel rejects the reading of the map.
    pub fn each(
        &mut self,
        mut see: impl FnMut(K, &mut dyn Iterator<Item = V>),
    ) -> Result<(), MeterError> {
        self.entries(|key, values| see(K::read(key), values))
    }

    /// Removes the entries for which `is_removed` returns true. The arguments of `is_removed` are
    /// the key and the first copy of the value.
    ///
    /// # Errors
    /// The kernel rejects the reading of the map.
    pub fn remove_where(&mut self, is_removed: impl Fn(K, V) -> bool) -> Result<(), MeterError> {
        let mut gone = Vec::new();
        self.entries(|key, values| {
            if values
                .next()
                .is_some_and(|value| is_removed(K::read(key), value))
            {
                gone.push(key.to_vec());
            }
        })?;
        for key in gone {
            // A failure is ignored, because the entry may have been evicted already.
            let _ = self.map.delete(&key);
        }
        Ok(())
    }

    fn entries(
        &mut self,
        mut see: impl FnMut(&[u8], &mut dyn Iterator<Item = V>),
    ) -> Result<(), MeterError> {
        let mut cursor = None;
        loop {
            let (count, next) = self.batch(cursor)?;
            let entries = self
                .keys
                .chunks_exact(K::BYTES)
                .zip(self.values.chunks_exact(self.copies * self.stride));
            for (key, values) in entries.take(count) {
                see(key, &mut values.chunks_exact(self.stride).map(V::read));
            }
            cursor = next;
            if cursor.is_none() {
                return Ok(());
            }
        }
    }

    /// Reads one batch of entries, starting at `cursor`. Returns the number of entries, and
    /// the cursor of the next batch. The cursor is `None` after the last batch.
    fn batch(&mut self, cursor: Option<u32>) -> Result<(usize, Option<u32>), MeterError> {
        let mut count = BATCH as u32;
        let mut next = 0u32;
        let mut from = cursor.unwrap_or_default();
        let from = match cursor {
            Some(_) => ptr::from_mut(&mut from).cast(),
            None => ptr::null_mut(),
        };
        // SAFETY: `new` made room for `count` keys and values of this map, and a cursor in a
        // hash map is a 32-bit word. The kernel writes nothing else, and nothing after the
        // call returns.
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
                let doing = format!("reading the BPF map {}", self.map.name().to_string_lossy());
                Err(MeterError::bpf(doing)(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use libbpf_rs::MapType;

    use super::*;

    #[test]
    fn a_map_of_another_size_is_rejected() {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let make = || MapHandle::create(MapType::Hash, Some("sizes"), 4, 8, 1, &options);
        if let Err(error) = make() {
            usher_skip::skip!("sizes of maps: {error}");
            return;
        }
        assert!(Table::<u32, u64>::new(make().unwrap()).is_ok());
        let error = Table::<u32, u32>::new(make().unwrap()).unwrap_err();
        assert!(error.to_string().contains("the BPF map sizes"), "{error}");
        assert!(Table::<u64, u64>::new(make().unwrap()).is_err());
    }
}
