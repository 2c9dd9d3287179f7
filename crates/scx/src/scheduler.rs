// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler, attached for as long as its value lives.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use libbpf_rs::btf::{
    Btf,
    types::{Enum, Enum64},
};
use libbpf_rs::{
    Link, MapCore, MapHandle, MapInfo, Object, OpenObject, RingBuffer, RingBufferBuilder,
};
use usher_model::Topology;

use crate::layout::{Ending, Settings};
use crate::machine::{self, Tables};
use crate::object::{self, Aligned};
use crate::seats::{SEATING, TALLIES};
use crate::{Kernel, MapIds, ScxError};

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sched.bpf.o")));
static MINIMAL: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/minimal.bpf.o")));

/// `struct sched_ext_ops` in kernel.h begins with `hotplug_seq`.
const HOTPLUG_SEQ: Range<usize> = 0..8;
/// Its `flags`.
const FLAGS: Range<usize> = 8..16;
/// Its `stopping`, a callback for levels alone.
const STOPPING: Range<usize> = 24..32;
const SETTINGS_BYTES: usize = 40;
const DUMP_BYTES: usize = 131_072;

/// Usher's scheduler has the threads of this machine. When the value is dropped,
/// the kernel's own has them again; it has them, too, when this process dies.
pub struct Scheduler {
    /// Detached before the object goes.
    link: Option<Link>,
    ended: RingBuffer<'static>,
    settings: MapHandle,
    endings: MapHandle,
    dumps: MapHandle,
    llcs: u32,
    /// A core of this machine has several hardware threads.
    has_threads: bool,
    /// The kernel keeps the idle CPUs of each node apart.
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
    /// Loads it and has the kernel give it all threads. `hotplug_seq` is the kernel's
    /// [`Kernel::hotplug_seq`] from before the machine was read: it refuses the scheduler
    /// where CPUs have come or gone since.
    ///
    /// # Errors
    /// The kernel cannot have one, has another, or refuses this one.
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
        let tables = machine::tables(machine)?;
        let bytes = if settings.minimal { MINIMAL } else { OBJECT };
        let flag = match tables.nodes {
            0 => None,
            _ if settings.minimal => None,
            _ => by_node()?,
        };
        let order = settings.order(flag.map_or(0, |_| tables.nodes), tables.cpu_words);
        let mut open = object::open(&bytes.0)?;
        prepare(&mut open, hotplug_seq, flag.unwrap_or(0), &order)?;
        if !settings.o1 {
            change(&mut open, "usher", STOPPING, |callback| callback.fill(0))?;
        }
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
        // What is told is that there is something to be read.
        let added = ring.add(&ended, |_| 0).map(drop);
        let ended = added.and_then(|()| ring.build());
        Ok(Self {
            link: None,
            ended: ended.map_err(ScxError::bpf("listening for the scheduler's end"))?,
            settings: object::map(&object, ".data.settings", SETTINGS_BYTES)?,
            endings: object::map(&object, "endings", Ending::BYTES)?,
            dumps: object::map(&object, "dumps", DUMP_BYTES)?,
            llcs: tables.llcs,
            has_threads: tables.has_threads,
            nodes_apart: false,
            object,
        })
    }

    /// Tells it what to do from now on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set(&self, settings: &Settings) -> Result<(), ScxError> {
        let settings = Settings {
            // Where no core can be shared, nobody need look for one that is.
            smt: settings.smt && self.has_threads,
            ..*settings
        };
        object::set(&self.settings, 0, &settings.bytes(self.llcs))
    }

    /// The kernel's numbers of its maps, by which other processes take hold of them.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn map_ids(&self) -> Result<MapIds, ScxError> {
        let id = |name: &str| {
            let found = self.object.maps().find(|map| map.name() == name);
            let map = found.ok_or_else(|| ScxError::layout(name))?;
            let info = MapInfo::new(map.as_fd());
            let info = info.map_err(ScxError::bpf("asking for a map's number"))?;
            Ok(info.info.id)
        };
        Ok(MapIds {
            tallies: id(TALLIES)?,
            threads: id("threads")?,
            seats: id("seats")?,
            seat_tallies: id("seat_tallies")?,
            seatings: id(SEATING)?,
        })
    }

    /// Whether the kernel keeps the idle CPUs of each NUMA node in a mask of their own, so
    /// that CPUs of different nodes do not write to the same one.
    pub fn keeps_nodes_apart(&self) -> bool {
        self.nodes_apart
    }

    /// Readable when it has ended by itself.
    pub fn notify_fd(&self) -> RawFd {
        self.ended.epoll_fd().as_raw_fd()
    }

    /// How the kernel ended it; `None` while it runs.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn ending(&self) -> Result<Option<Ending>, ScxError> {
        let _ = self.ended.poll(Duration::ZERO);
        let told = object::get(&self.endings)?;
        let ending = Ending::read(&told, &object::get(&self.dumps)?);
        Ok((ending.kind != 0).then_some(ending))
    }
}

/// The flag by which the kernel keeps the idle CPUs of each node in a mask of their own;
/// `None` before 6.15.
fn by_node() -> Result<Option<u64>, ScxError> {
    let btf = Btf::from_vmlinux().map_err(ScxError::bpf("reading the kernel's types"))?;
    let name = Some(OsStr::new("SCX_OPS_BUILTIN_IDLE_PER_NODE"));
    // Of 32 bits or of 64, as the kernel's other flags are.
    let narrow = btf.type_by_name::<Enum<'_>>("scx_ops_flags");
    let narrow = narrow.and_then(|flags| Some(flags.iter().find(|f| f.name == name)?.value));
    let wide = btf.type_by_name::<Enum64<'_>>("scx_ops_flags");
    let wide = wide.and_then(|flags| Some(flags.iter().find(|f| f.name == name)?.value));
    Ok(narrow
        .and_then(|flag| u64::try_from(flag).ok())
        .or_else(|| u64::try_from(wide?).ok()))
}

/// What is known only here, and holds for as long as the programs run: more flags than they
/// have anyway, and their order.
fn prepare(
    open: &mut OpenObject,
    hotplug_seq: u64,
    flags: u64,
    order: &[u8],
) -> Result<(), ScxError> {
    let page_bytes = rustix::param::page_size() as u32;
    let ring = open.maps_mut().find(|map| map.name() == "ended");
    let ring = ring.map(|mut ring| ring.set_max_entries(page_bytes));
    let ring = ring.ok_or_else(|| ScxError::layout("ended"))?;
    ring.map_err(ScxError::bpf("setting a ring's size"))?;
    change(open, "usher", HOTPLUG_SEQ, |seq| {
        seq.copy_from_slice(&hotplug_seq.to_ne_bytes());
    })?;
    change(open, "usher", FLAGS, |bytes| {
        let flags = flags.to_ne_bytes();
        bytes
            .iter_mut()
            .zip(flags)
            .for_each(|(old, new)| *old |= new);
    })?;
    change(open, ".rodata.order", 0..order.len(), |bytes| {
        bytes.copy_from_slice(order);
    })
}

/// Changes what a map is to hold from the start.
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
    fn what_is_written_by_place_lies_there() {
        let ops = fields("sched_ext_ops");
        assert_eq!(ops.place("hotplug_seq"), HOTPLUG_SEQ);
        assert_eq!(ops.place("flags"), FLAGS);
        assert_eq!(ops.place("stopping"), STOPPING);
        assert_eq!(fields("settings").bytes(), SETTINGS_BYTES);
        assert_eq!(fields("dump").bytes(), DUMP_BYTES);
    }
}
