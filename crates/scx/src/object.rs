// SPDX-License-Identifier: GPL-2.0-only
//! Opens and loads BPF objects, and reads and writes their maps by name, for the scheduler and the
//! counter.
//!
//! A map is accepted only if its values have the expected size. If the kernel rejects the programs,
//! the last 20 lines of the verifier's log become part of the error. libbpf has only one stream of
//! messages in a process, so that callers must open and load objects one at a time.
//!
//! Nothing is retried: each error of the kernel is returned with the name of the map or operation.
//! Reading or writing a value takes time in proportion to its size.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, MapMut, Object, ObjectBuilder, OpenObject, PrintCallback,
    PrintLevel, libbpf_sys,
};
use rustix::time::{ClockId, clock_gettime};

use crate::ScxError;
use crate::machine::{Tables, place_bytes};

/// Bytes of compiled programs, with the alignment that libbpf's reader of ELF files requires.
#[repr(C, align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub T);

/// Messages that libbpf has printed since the last object was opened.
static MESSAGES: Mutex<String> = Mutex::new(String::new());

/// Upper limit for the lines of the verifier's log in an error.
const LOG_LINES: usize = 20;

fn messages() -> MutexGuard<'static, String> {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that the kernel permits BPF to this process, by creating and closing a map with one
/// entry. Other errors than a refusal are ignored: they occur again when the scheduler is loaded,
/// and are reported then.
///
/// # Errors
/// [`ScxError::Forbidden`] if the kernel refuses the map.
pub fn check_bpf_permitted() -> Result<(), ScxError> {
    // SAFETY: both pointers are null, which the function accepts: a map needs no name and no
    // options.
    let made = unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_ARRAY,
            std::ptr::null(),
            4,
            4,
            1,
            std::ptr::null(),
        )
    };
    if made < 0 {
        let source = io::Error::from_raw_os_error(-made);
        return match source.kind() {
            io::ErrorKind::PermissionDenied => Err(ScxError::Forbidden { source }),
            _ => Ok(()),
        };
    }
    // SAFETY: the descriptor has just been created, and nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(made) });
    Ok(())
}

/// Opens an object.
///
/// # Errors
/// The bytes are not a BPF object.
pub(crate) fn open(bytes: &[u8]) -> Result<OpenObject, ScxError> {
    messages().clear();
    let keep: PrintCallback = |_, text| messages().push_str(&text);
    libbpf_rs::set_print(Some((PrintLevel::Warn, keep)));
    let open = ObjectBuilder::default().open_memory(bytes);
    open.map_err(ScxError::bpf("reading the BPF programs"))
}

/// Loads the programs into the kernel.
///
/// # Errors
/// The kernel rejects the programs. The error contains the end of the verifier's log.
pub(crate) fn load(open: OpenObject, doing: &str) -> Result<Object, ScxError> {
    open.load().map_err(|source| {
        let messages = messages();
        // The line that libbpf prints after the verifier's log is left out.
        let framed = messages.lines().filter(|line| !line.starts_with("-- END"));
        let lines: Vec<&str> = framed.collect();
        ScxError::LoadFailed {
            doing: doing.to_owned(),
            source,
            log: lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"),
        }
    })
}

/// Returns the map that has this name and values of this size.
///
/// # Errors
/// The object has no map with this name and size of values.
pub(crate) fn map(object: &Object, name: &str, bytes: usize) -> Result<MapHandle, ScxError> {
    let mut maps = object.maps();
    let map = maps.find(|map| map.name() == name && map.value_size() as usize == bytes);
    let map = map.ok_or_else(|| ScxError::layout(name))?;
    MapHandle::try_from(&map).map_err(ScxError::bpf(format!("opening the BPF map '{name}'")))
}

/// Returns the map with this name as a mutable reference, through which a struct_ops map is
/// attached.
///
/// # Errors
/// The object has no map with this name.
pub(crate) fn map_mut<'a>(object: &'a mut Object, name: &str) -> Result<MapMut<'a>, ScxError> {
    let found = object.maps_mut().find(|map| map.name() == name);
    found.ok_or_else(|| ScxError::layout(name))
}

/// Writes the value of a key into a map.
///
/// # Errors
/// The kernel returned an error.
pub(crate) fn set(map: &MapHandle, key: u32, value: &[u8]) -> Result<(), ScxError> {
    let doing = || format!("writing the BPF map '{}'", map.name().to_string_lossy());
    let written = map.update(&key.to_ne_bytes(), value, MapFlags::ANY);
    written.map_err(|error| ScxError::bpf(doing())(error))
}

/// Reads the only value of an array map.
///
/// # Errors
/// The kernel returned an error.
pub(crate) fn get(map: &MapHandle) -> Result<Vec<u8>, ScxError> {
    let name = map.name().to_string_lossy().into_owned();
    let value = map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
    let value = value.map_err(ScxError::bpf(format!("reading the BPF map '{name}'")))?;
    value.ok_or_else(|| ScxError::layout(&name))
}

/// Reads the only value of a per-CPU map, once per CPU.
///
/// # Errors
/// The kernel returned an error.
pub(crate) fn get_each(map: &MapHandle) -> Result<Vec<Vec<u8>>, ScxError> {
    let name = map.name().to_string_lossy().into_owned();
    let values = map.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY);
    let values = values.map_err(ScxError::bpf(format!("reading the BPF map '{name}'")))?;
    values.ok_or_else(|| ScxError::layout(&name))
}

/// Writes the places of all CPUs into the table `g_places`.
///
/// # Errors
/// The kernel returned an error.
pub(crate) fn set_places(object: &Object, tables: &Tables) -> Result<(), ScxError> {
    let bytes = place_bytes(tables.size);
    let mut all = vec![0; tables.size.cpus() * bytes];
    let places = map(object, ".data.places", all.len())?;
    for (cpu, place) in &tables.places {
        all[*cpu as usize * bytes..][..bytes].copy_from_slice(place);
    }
    set(&places, 0, &all)
}

/// Returns the time of the clock of `bpf_ktime_get_ns`, in nanoseconds since the boot.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
