// SPDX-License-Identifier: GPL-2.0-only
//! Loads the scheduler into the kernel, and keeps it attached until the [`Scheduler`] is dropped.
//!
//! 1. [`Scheduler::start`] checks the kernel, and builds the tables of the topology.
//! 2. The values that must not change after the load are written: page size, `hotplug_seq`, flags,
//!    variant.
//! 3. The kernel verifies and loads the programs.
//! 4. The settings and the tables are written, and the scheduler is attached. From then on, the
//!    scheduler runs all threads.
//! 5. [`Scheduler::set`] changes the settings. When the kernel ends the scheduler,
//!    [`Scheduler::notify_fd`] becomes readable and [`Scheduler::ending`] returns the reason.
//!
//! The kernel runs one sched_ext scheduler at a time, and ends it at a CPU hotplug event. Starting
//! a scheduler requires root, and CPU numbers below 2,048. Machines with at most 64 CPUs get programs
//! with smaller tables.
//!
//! Limits: the kernel ends the scheduler when a thread has waited for 5 s (30 s in FIFO order). A
//! failed start leaves the kernel's own scheduler in place; nothing is retried here.
//! [`Scheduler::set`] takes effect at the next decision of each CPU, and does not check the
//! settings. [`Scheduler::ending`] does not wait, and copies 130 KiB.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use libbpf_rs::btf::{
    Btf,
    types::{Enum, Enum64, Struct},
};
use libbpf_rs::{
    Link, MapCore, MapHandle, MapInfo, Object, OpenObject, RingBuffer, RingBufferBuilder,
};
use usher_model::Topology;

use crate::layout::{Ending, Settings};
use crate::machine::{self, Tables};
use crate::object;
use crate::quotas::LIMITS;
use crate::seats::{SEATING, TALLIES};
use crate::tables::TableSize;
use crate::{Kernel, MapIds, ScxError};

/// Offset of `hotplug_seq` in `struct sched_ext_ops` of kernel.h.
const HOTPLUG_SEQ: Range<usize> = 0..8;
/// Offset of `flags` in that structure.
const FLAGS: Range<usize> = 8..16;
/// Offset of `timeout_ms` in that structure.
const TIMEOUT: Range<usize> = 16..20;
/// Names and offsets of the callbacks in that structure that some kernels lack.
const CGROUP_CALLBACKS: [(&str, Range<usize>); 4] = [
    ("cgroup_init", 24..32),
    ("cgroup_exit", 32..40),
    ("cgroup_move", 40..48),
    ("cgroup_set_bandwidth", 48..56),
];
/// Offset of the callback `cpu_release` in that structure.
const CPU_RELEASE: Range<usize> = 56..64;
/// The kernel's maximum for the watchdog's timeout. It applies to FIFO order, which does not bound
/// waits.
const LONGEST_TIMEOUT_MS: u32 = 30_000;
const SETTINGS_BYTES: usize = 40;
const DUMP_BYTES: usize = 131_072;

/// Usher's scheduler for all threads of this machine. When the value is dropped, or the process
/// dies, the kernel's own scheduler takes over again.
pub struct Scheduler {
    /// Attachment of the scheduler. Declared first, so that it is dropped before the object.
    link: Option<Link>,
    ended: RingBuffer<'static>,
    settings: MapHandle,
    endings: MapHandle,
    dumps: MapHandle,
    llcs: u32,
    /// Whether a core of this machine has several hardware threads.
    has_threads: bool,
    /// Whether cores have different capacities.
    is_hybrid: bool,
    /// Whether the kernel keeps an idle mask per node.
    nodes_apart: bool,
    object: Object,
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("llcs", &self.llcs)
            .field("attached", &self.link.is_some())
            .finish_non_exhaustive()
    }
}

impl Scheduler {
    /// Loads and attaches the scheduler. `hotplug_seq` is [`Kernel::hotplug_seq`], read before the
    /// topology: the kernel rejects the scheduler if a hotplug event has occurred since.
    ///
    /// # Errors
    /// The kernel has no sched_ext, another scheduler is loaded, the process does not run as root,
    /// the machine has more CPUs than the tables hold, or the kernel rejects the programs.
    pub fn start(
        kernel: &Kernel,
        hotplug_seq: u64,
        machine: &Topology,
        settings: &Settings,
    ) -> Result<Self, ScxError> {
        kernel.ready()?;
        if !rustix::process::geteuid().is_root() {
            return Err(ScxError::NotRoot);
        }
        let tables = machine::tables(machine, &kernel.isolated())?;
        let flag = match tables.nodes {
            0 => None,
            _ => kernel_flag(BY_NODE)?,
        };
        let variant = settings.variant(&tables, flag.map_or(0, |_| tables.nodes));
        let mut open = opened(tables.size, settings.fifo, &variant)?;
        prepare(&mut open, hotplug_seq, flag.unwrap_or(0))?;
        let object = object::load(open, "loading the scheduler")?;
        let mut scheduler = Self::of(object, &tables)?;
        scheduler.nodes_apart = flag.is_some();
        scheduler.set(settings)?;
        object::set_places(&scheduler.object, &tables)?;
        let mut ops = object::map_mut(&mut scheduler.object, "usher")?;
        let link = ops.attach_struct_ops();
        scheduler.link = Some(link.map_err(ScxError::bpf("starting the scheduler"))?);
        Ok(scheduler)
    }

    fn of(object: Object, tables: &Tables) -> Result<Self, ScxError> {
        let ended = object.maps().find(|map| map.name() == "ended");
        let ended = ended.ok_or_else(|| ScxError::layout("ended"))?;
        let mut ring = RingBufferBuilder::new();
        // The callback ignores the event, which carries no data: the report is in the maps.
        let added = ring.add(&ended, |_| 0).map(drop);
        let ended = added.and_then(|()| ring.build());
        Ok(Self {
            link: None,
            ended: ended.map_err(ScxError::bpf(
                "opening the ring buffer that reports the end of the scheduler",
            ))?,
            settings: object::map(&object, ".data.settings", SETTINGS_BYTES)?,
            endings: object::map(&object, "endings", Ending::BYTES)?,
            dumps: object::map(&object, "dumps", DUMP_BYTES)?,
            llcs: tables.llcs,
            has_threads: tables.has_threads,
            is_hybrid: tables.classes > 1,
            nodes_apart: false,
            object,
        })
    }

    /// Applies new settings.
    ///
    /// # Errors
    /// The kernel returned an error.
    pub fn set(&self, settings: &Settings) -> Result<(), ScxError> {
        let settings = Settings {
            // Without SMT, two threads cannot share a core, and the scheduler skips the search for
            // shared cores. On hybrid machines, the search also finds faster cores.
            smt: settings.smt && (self.has_threads || self.is_hybrid),
            ..*settings
        };
        object::set(&self.settings, 0, &settings.bytes(self.llcs))
    }

    /// Returns the ids of the scheduler's maps. Other processes open the maps by these ids.
    ///
    /// # Errors
    /// The kernel returned an error.
    pub fn map_ids(&self) -> Result<MapIds, ScxError> {
        let id = |name: &str| {
            let found = self.object.maps().find(|map| map.name() == name);
            let map = found.ok_or_else(|| ScxError::layout(name))?;
            let info = MapInfo::new(map.as_fd());
            let info = info.map_err(ScxError::bpf("reading the id of a BPF map"))?;
            Ok(info.info.id)
        };
        Ok(MapIds {
            tallies: id(TALLIES)?,
            threads: id("threads")?,
            seats: id("seats")?,
            seat_tallies: id("seat_tallies")?,
            seatings: id(SEATING)?,
            limits: id(LIMITS)?,
        })
    }

    /// Returns whether the kernel keeps an idle mask per NUMA node. In that case, CPUs of different
    /// nodes do not write to the same mask.
    pub fn keeps_nodes_apart(&self) -> bool {
        self.nodes_apart
    }

    /// File descriptor that becomes readable when the kernel ends the scheduler.
    pub fn notify_fd(&self) -> RawFd {
        self.ended.epoll_fd().as_raw_fd()
    }

    /// Returns the report of the scheduler's end; `None` while the scheduler runs.
    ///
    /// # Errors
    /// The kernel returned an error.
    pub fn ending(&self) -> Result<Option<Ending>, ScxError> {
        let _ = self.ended.poll(Duration::ZERO);
        let report = object::get(&self.endings)?;
        let ending = Ending::read(&report, &object::get(&self.dumps)?);
        Ok((ending.kind != 0).then_some(ending))
    }
}

/// Programs that are loaded and verified, but do not schedule. They are unloaded when the value is
/// dropped.
pub struct LoadedPrograms {
    _object: Object,
}

impl fmt::Debug for LoadedPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedPrograms").finish_non_exhaustive()
    }
}

/// Loads the scheduler's programs with tables for `cpus` CPUs, without starting the scheduler. With
/// `has_all_parts`, also the parts for isolated CPUs and for CPUs of different capacity. Tests check
/// in a small guest that the kernel accepts the programs of a large machine.
///
/// # Errors
/// No tables hold so many CPUs, or the kernel rejects the programs.
pub fn load_programs(cpus: u32, has_all_parts: bool) -> Result<LoadedPrograms, ScxError> {
    let size = TableSize::of([cpus.saturating_sub(1)].into_iter())?;
    let tables = Tables {
        size,
        places: Vec::new(),
        llcs: 1,
        cores: 1,
        has_threads: true,
        classes: if has_all_parts { 2 } else { 1 },
        isolates: has_all_parts,
        nodes: 0,
        cpu_words: u64::from(cpus.div_ceil(64)),
    };
    let variant = Settings::default().variant(&tables, 0);
    let mut open = opened(size, false, &variant)?;
    prepare(&mut open, 0, 0)?;
    let object = object::load(open, "loading the scheduler")?;
    Ok(LoadedPrograms { _object: object })
}

/// Opens the programs with tables of this size for the running kernel.
fn opened(size: TableSize, fifo: bool, variant: &[u8]) -> Result<OpenObject, ScxError> {
    let mut open = object::open(size.scheduler())?;
    change(&mut open, ".rodata.variant", 0..variant.len(), |bytes| {
        bytes.copy_from_slice(variant);
    })?;
    remove_missing_callbacks(&mut open, fifo)?;
    if kernel_flag(IMMEDIATE)?.is_some() {
        change(&mut open, "usher", CPU_RELEASE, |callback| callback.fill(0))?;
    }
    if fifo {
        change(&mut open, "usher", TIMEOUT, |timeout| {
            timeout.copy_from_slice(&LONGEST_TIMEOUT_MS.to_ne_bytes());
        })?;
    }
    Ok(open)
}

/// The flag by which a scheduler requests idle masks per node; the kernel has it from 6.15 on.
const BY_NODE: (&str, &str) = ("scx_ops_flags", "SCX_OPS_BUILTIN_IDLE_PER_NODE");
/// The flag of threads that are enqueued again if they cannot run at once; the kernel has it from
/// 7.1 on. Older kernels call `cpu_release` instead, which newer kernels warn of.
const IMMEDIATE: (&str, &str) = ("scx_enq_flags", "SCX_ENQ_IMMED");

/// Returns the value of a flag, given its enum and its name, in the running kernel; `None` if the
/// kernel does not have it.
fn kernel_flag((enum_name, name): (&str, &str)) -> Result<Option<u64>, ScxError> {
    let btf =
        Btf::from_vmlinux().map_err(ScxError::bpf("reading the kernel's BTF type information"))?;
    let name = Some(OsStr::new(name));
    // The enum has 32 or 64 bits, depending on the other flags of the kernel.
    let narrow = btf.type_by_name::<Enum<'_>>(enum_name);
    let narrow = narrow.and_then(|flags| Some(flags.iter().find(|f| f.name == name)?.value));
    let wide = btf.type_by_name::<Enum64<'_>>(enum_name);
    let wide = wide.and_then(|flags| Some(flags.iter().find(|f| f.name == name)?.value));
    Ok(narrow
        .and_then(|flag| u64::try_from(flag).ok())
        .or_else(|| u64::try_from(wide?).ok()))
}

/// Returns whether the running kernel reports the quotas of cgroups (`cpu.max`) to a scheduler.
/// Linux does since 6.17, if it was built with CONFIG_EXT_GROUP_SCHED.
///
/// # Errors
/// The kernel's BTF cannot be read.
pub fn reports_quotas() -> Result<bool, ScxError> {
    Ok(callbacks()?.contains(&"cgroup_set_bandwidth".to_owned()))
}

/// Returns the names of the members of the kernel's `struct sched_ext_ops`.
fn callbacks() -> Result<Vec<String>, ScxError> {
    let btf =
        Btf::from_vmlinux().map_err(ScxError::bpf("reading the kernel's BTF type information"))?;
    let ops = btf.type_by_name::<Struct<'_>>("sched_ext_ops");
    let members = ops.iter().flat_map(|ops| ops.iter());
    let names = members.filter_map(|member| Some(member.name?.to_string_lossy().into_owned()));
    Ok(names.collect())
}

/// Removes the callbacks for cgroups that the kernel lacks; all of them in FIFO order, which ignores
/// cgroups. libbpf rejects a callback that the kernel does not know.
fn remove_missing_callbacks(open: &mut OpenObject, fifo: bool) -> Result<(), ScxError> {
    let known = callbacks()?;
    for (name, at) in CGROUP_CALLBACKS {
        if fifo || !known.iter().any(|known| known == name) {
            change(open, "usher", at, |callback| callback.fill(0))?;
        }
    }
    Ok(())
}

/// Writes the values that must be set before the programs are loaded: the page size, `hotplug_seq`
/// and additional flags.
fn prepare(open: &mut OpenObject, hotplug_seq: u64, flags: u64) -> Result<(), ScxError> {
    let page_bytes = rustix::param::page_size() as u32;
    let ring = open.maps_mut().find(|map| map.name() == "ended");
    let ring = ring.map(|mut ring| ring.set_max_entries(page_bytes));
    let ring = ring.ok_or_else(|| ScxError::layout("ended"))?;
    ring.map_err(ScxError::bpf("setting the size of the ring buffer"))?;
    change(open, "usher", HOTPLUG_SEQ, |seq| {
        seq.copy_from_slice(&hotplug_seq.to_ne_bytes());
    })?;
    change(open, "usher", FLAGS, |bytes| {
        let flags = flags.to_ne_bytes();
        bytes
            .iter_mut()
            .zip(flags)
            .for_each(|(old, new)| *old |= new);
    })
}

/// Changes the bytes `at` of the initial value of the map `name`.
fn change(
    open: &mut OpenObject,
    name: &str,
    at: Range<usize>,
    change: impl FnOnce(&mut [u8]),
) -> Result<(), ScxError> {
    let mut map = open.maps_mut().find(|map| map.name() == name);
    let bytes = map.as_mut().and_then(|map| map.initial_value_mut());
    let bytes = bytes.and_then(|bytes| bytes.get_mut(at));
    change(bytes.ok_or_else(|| ScxError::layout(name))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fields;

    #[test]
    fn offsets_match_the_structures() {
        let ops = fields("sched_ext_ops");
        assert_eq!(ops.place("hotplug_seq"), HOTPLUG_SEQ);
        assert_eq!(ops.place("flags"), FLAGS);
        assert_eq!(ops.place("timeout_ms"), TIMEOUT);
        for (name, at) in CGROUP_CALLBACKS {
            assert_eq!(ops.place(name), at, "{name}");
        }
        assert_eq!(ops.place("cpu_release"), CPU_RELEASE);
        assert_eq!(fields("settings").bytes(), SETTINGS_BYTES);
        assert_eq!(fields("dump").bytes(), DUMP_BYTES);
    }
}
