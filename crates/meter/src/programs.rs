// SPDX-License-Identifier: MIT OR Apache-2.0
//! The BPF programs in the kernel: loading, attaching, their maps, their cost.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{
    Iter, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, ProgramInput,
    ProgramType,
};
use libbpf_rs::{RingBuffer, RingBufferBuilder, libbpf_sys};

use usher_model::{DiskUse, LinkUse};

use crate::error::MeterError;
use crate::layout::{Control, CpuUse, Crowds, Device, DiskKey, Layout, LinkKey, UserKey, UserUse};
use crate::table::Table;

/// The compiled programs, placed as a reader of ELF files wants them.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static METER: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/meter.bpf.o")));

/// What a BPF program has cost since it was loaded, as far as the kernel kept
/// account (`kernel.bpf_stats_enabled`, or [`keep_account`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramCost {
    /// Its name.
    pub name: String,
    /// How often it ran.
    pub runs: u64,
    /// Nanoseconds that it ran.
    pub run_ns: u64,
}

/// Has the kernel keep account of BPF programs' run times until the value is
/// dropped. It makes every one of them dearer meanwhile.
///
/// # Errors
/// When the kernel refuses.
pub fn keep_account() -> Result<std::os::fd::OwnedFd, MeterError> {
    use std::os::fd::FromRawFd;
    // SAFETY: takes a number and makes a descriptor.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        let error = libbpf_rs::Error::from_raw_os_error(-fd);
        return Err(MeterError::bpf("having BPF programs' times kept")(error));
    }
    // SAFETY: the descriptor was just made and is nobody else's.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
}

/// An object in the kernel, with what is attached of it.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// Detached before the object goes.
    links: Vec<(String, Link)>,
    object: Object,
    /// Trace points that this kernel lacks.
    pub missing: Vec<String>,
    /// Why threads that crowd on one CPU are not seen; `None`: they are.
    pub no_watch: Option<String>,
}

impl Loaded {
    /// The meter's, not attached yet.
    pub fn meter() -> Result<Self, MeterError> {
        // What libbpf has to say comes as an error, not on our standard error.
        libbpf_rs::set_print(None);
        let (open, missing) = opened(true)?;
        let (object, refused) = match open.load() {
            Ok(object) => (object, None),
            // A kernel without what the watch needs has all the rest.
            Err(refused) => {
                let rest = opened(false)?.0.load();
                let rest = rest.map_err(MeterError::bpf("loading BPF programs"))?;
                (rest, Some(refused.to_string()))
            }
        };
        let mut loaded = Self {
            links: Vec::new(),
            object,
            missing,
            no_watch: None,
        };
        loaded.no_watch = refused.or_else(|| loaded.watch_for_crowds().err());
        Ok(loaded)
    }

    /// Starts the timer that looks for crowds, which ends with its map.
    fn watch_for_crowds(&mut self) -> Result<(), String> {
        let mut programs = self.object.progs_mut();
        let Some(watch) = programs.find(|program| program.name() == WATCH) else {
            return Err(format!("there is no program {WATCH}"));
        };
        match watch.test_run(ProgramInput::default()) {
            Ok(run) if run.return_value == 0 => Ok(()),
            Ok(_) => Err("its timer cannot be started".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Attaches the programs.
    pub fn attach(&mut self) -> Result<(), MeterError> {
        for program in self.object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            if program.autoload() && name != WATCH {
                let attached = program.attach();
                let link = attached.map_err(MeterError::bpf(format!("attaching {name}")))?;
                self.links.push((name, link));
            }
        }
        Ok(())
    }

    fn link(&self, name: &str) -> Option<&Link> {
        let (_, link) = self.links.iter().find(|(of, _)| of == name)?;
        Some(link)
    }

    pub fn map(&self, name: &str) -> Result<MapHandle, MeterError> {
        let found = self.object.maps().find(|map| map.name() == name);
        let Some(map) = found else {
            let error = libbpf_rs::Error::from_raw_os_error(libc::ENOENT);
            return Err(MeterError::bpf(format!("finding the map {name}"))(error));
        };
        MapHandle::try_from(&map).map_err(MeterError::bpf(format!("opening the map {name}")))
    }

    /// What each program has cost.
    pub fn costs(&self) -> Vec<ProgramCost> {
        let programs = self.object.progs();
        programs
            .filter_map(|program| {
                let info = program_info(program.as_fd())?;
                Some(ProgramCost {
                    name: program.name().to_string_lossy().into_owned(),
                    runs: info.run_cnt,
                    run_ns: info.run_time_ns,
                })
            })
            .collect()
    }

    /// The kernel's numbers of the programs.
    pub fn program_ids(&self) -> Vec<u32> {
        let programs = self.object.progs();
        programs
            .filter(|program| program.prog_type() != ProgramType::Unspec)
            .filter_map(|program| Some(program_info(program.as_fd())?.id))
            .collect()
    }
}

/// The program that is run once, to start a timer; kernels before 5.17 refuse it, and
/// those with PREEMPT_RT.
const WATCH: &str = "watch_for_crowds";

/// The programs, ready to be loaded, and the trace points that are missing.
fn opened(with_watch: bool) -> Result<(OpenObject, Vec<String>), MeterError> {
    let open = ObjectBuilder::default().open_memory(&METER.0);
    let mut open = open.map_err(MeterError::bpf("reading the BPF programs"))?;
    let page_bytes = rustix::param::page_size() as u32;
    for mut ring in open.maps_mut().filter(|map| map.name() == "bell") {
        let set = ring.set_max_entries(page_bytes);
        set.map_err(MeterError::bpf("setting the bell's size"))?;
    }
    let mut programs = open.progs_mut();
    if let Some(mut watch) = programs.find(|program| program.name() == WATCH) {
        watch.set_autoload(with_watch);
    }
    drop(programs);
    let missing = leave_out_missing(&mut open);
    Ok((open, missing))
}

/// Trace points that came late (6.3); all else is there since 5.12, without
/// which nothing can be metered.
const LATE: [&str; 2] = ["sock_send_length", "sock_recv_length"];

/// Leaves out programs whose trace points this kernel lacks, and names these.
fn leave_out_missing(open: &mut OpenObject) -> Vec<String> {
    let mut missing = Vec::new();
    for mut program in open.progs_mut() {
        let section = program.section().to_string_lossy().into_owned();
        let late = LATE
            .iter()
            .find(|point| section == format!("tp_btf/{point}"));
        if let Some(point) = late.filter(|point| !has_trace_point(point)) {
            program.set_autoload(false);
            missing.push((*point).to_owned());
        }
    }
    missing
}

fn has_trace_point(name: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(name) else {
        return false;
    };
    // SAFETY: the name is a C string that lives until the call's end.
    let id = unsafe {
        libbpf_sys::libbpf_find_vmlinux_btf_id(name.as_ptr(), libbpf_sys::BPF_TRACE_RAW_TP)
    };
    id > 0
}

fn program_info(fd: BorrowedFd<'_>) -> Option<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel fills at most `length` bytes of `info`, in which all
    // pointers are null and all counts 0, so that it follows none.
    let result = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &raw mut info, &raw mut length)
    };
    (result == 0).then_some(info)
}

/// The meter in the kernel: programs that run and maps to talk by.
#[derive(Debug)]
pub(crate) struct Kernel {
    bell: RingBuffer<'static>,
    pub cpu_uses: Table<u32, CpuUse>,
    pub disk_uses: Table<DiskKey, DiskUse>,
    pub link_uses: Table<LinkKey, LinkUse>,
    pub users: Table<UserKey, UserUse>,
    control: MapHandle,
    cgroups: MapHandle,
    pub kin: Table<u32, u32>,
    pub beneath: Table<Device, Device>,
    latch: MapHandle,
    crowds: MapHandle,
    losses: MapHandle,
    pub orders: Control,
    pub loaded: Loaded,
}

/// The word or the flag that a map of one entry holds.
const ONLY: [u8; 4] = [0; 4];

impl Kernel {
    /// Loads, gives the first orders, attaches.
    pub fn start(orders: Control, services: &[[u8; 16]]) -> Result<Self, MeterError> {
        let loaded = Loaded::meter()?;
        let ring = loaded.map("bell")?;
        let mut bell = RingBufferBuilder::new();
        let bell = bell.add(&ring, |_| 0).map(|_| ()).and(Ok(bell));
        let bell = bell.and_then(RingBufferBuilder::build);
        let mut kernel = Self {
            bell: bell.map_err(MeterError::bpf("opening the bell"))?,
            cpu_uses: Table::new(loaded.map("cpu_uses")?)?,
            disk_uses: Table::new(loaded.map("disk_uses")?)?,
            link_uses: Table::new(loaded.map("link_uses")?)?,
            users: Table::new(loaded.map("users")?)?,
            kin: Table::new(loaded.map("kin")?)?,
            control: loaded.map("control")?,
            cgroups: loaded.map("cgroups")?,
            beneath: Table::new(loaded.map("beneath")?)?,
            latch: loaded.map("latch")?,
            crowds: loaded.map("crowds")?,
            losses: loaded.map("losses")?,
            orders,
            loaded,
        };
        let known = kernel.loaded.map("services")?;
        for comm in services {
            put(&known, comm, &ONLY)?;
        }
        kernel.give_orders()?;
        kernel.loaded.attach()?;
        kernel.visit_threads()?;
        // The visit has found out which process this is.
        let known = kernel.control.lookup(&ONLY, MapFlags::ANY);
        let known = known.map_err(MeterError::bpf("reading the map control"))?;
        kernel.orders.own_tgid = Control::read(&known.unwrap_or_default()).own_tgid;
        Ok(kernel)
    }

    /// Tells the programs what `orders` says.
    pub fn give_orders(&self) -> Result<(), MeterError> {
        put(&self.control, &ONLY, &self.orders.bytes())
    }

    /// Counts what every living thread has run and waited since the last time.
    pub fn visit_threads(&self) -> Result<(), MeterError> {
        let doing = "visiting threads";
        let Some(link) = self.loaded.link("each_thread") else {
            return Ok(());
        };
        let mut visit = Iter::new(link).map_err(MeterError::bpf(doing))?;
        let mut nothing = [0; 64];
        loop {
            match visit.read(&mut nothing) {
                Ok(0) => return Ok(()),
                // The kernel pauses after a million threads.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(MeterError::bpf(doing)(error.into())),
                Ok(_) => {}
            }
        }
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring buffer's and lives as long as it,
        // which `self` owns.
        unsafe { BorrowedFd::borrow_raw(self.bell.epoll_fd()) }
    }

    /// Empties the bell's buffer, and then lets it ring again.
    pub fn arm_bell(&self) -> Result<(), MeterError> {
        let consumed = self.bell.consume();
        consumed.map_err(MeterError::bpf("emptying the bell's buffer"))?;
        put(&self.latch, &ONLY, &ONLY)
    }

    pub fn add_cgroup(&self, id: u64, party: u32) -> Result<(), MeterError> {
        put(&self.cgroups, &id.to_ne_bytes(), &party.to_ne_bytes())
    }

    pub fn remove_cgroup(&self, id: u64) {
        remove(&self.cgroups, &id.to_ne_bytes());
    }

    pub fn add_kin(&self, pid: i32, party: u32) -> Result<(), MeterError> {
        put(self.kin.map(), &pid.to_ne_bytes(), &party.to_ne_bytes())
    }

    pub fn remove_kin(&self, pid: i32) {
        remove(self.kin.map(), &pid.to_ne_bytes());
    }

    /// The disk that a stacked one lies on.
    pub fn set_beneath(&self, upper: Device, lower: Device) -> Result<(), MeterError> {
        put(self.beneath.map(), &upper.bytes(), &lower.bytes())
    }

    /// A disk lies on no other.
    pub fn remove_beneath(&self, upper: Device) {
        remove(self.beneath.map(), &upper.bytes());
    }

    /// What the watch on the run queues has seen.
    pub fn crowds(&self) -> Result<Crowds, MeterError> {
        let seen = self.crowds.lookup(&ONLY, MapFlags::ANY);
        let seen = seen.map_err(MeterError::bpf("reading the map crowds"))?;
        Ok(seen.map_or(Crowds::default(), |bytes| Crowds::read(&bytes)))
    }

    /// What could not be counted, in the order of `enum lost`.
    pub fn losses(&self) -> [u64; 3] {
        [0u32, 1, 2].map(|what| {
            let found = self.losses.lookup(&what.to_ne_bytes(), MapFlags::ANY);
            found.ok().flatten().map_or(0, |bytes| u64::read(&bytes))
        })
    }
}

fn put(map: &MapHandle, key: &[u8], value: &[u8]) -> Result<(), MeterError> {
    let doing = || format!("writing the map {}", map.name().to_string_lossy());
    map.update(key, value, MapFlags::ANY)
        .map_err(|error| MeterError::bpf(doing())(error))
}

/// An entry that is not there need not be removed.
fn remove(map: &MapHandle, key: &[u8]) {
    let _ = map.delete(key);
}
