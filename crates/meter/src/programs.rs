// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads and attaches the BPF programs of the meter, opens their maps, and reads the cost of each
//! program.
//!
//! 1. [`LoadedPrograms::meter`] disables the programs for trace points that this kernel lacks, and
//!    loads the other programs. If the kernel rejects the run-queue scan, the programs are loaded
//!    without it.
//! 2. [`KernelMeter::start`] writes the first configuration before it attaches the programs.
//! 3. The observer then uses the maps through [`KernelMeter`].
//!
//! The programs need Linux 5.12, the count of network calls Linux 6.3, and the scan of run queues
//! Linux 5.17. Loading is tried at most twice, with and without the scan. Any other failure is
//! returned, and the meter then works without BPF. A visit of all threads takes time in proportion
//! to their number.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{
    Iter, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, ProgramInput,
    ProgramType,
};
use libbpf_rs::{RingBuffer, RingBufferBuilder, libbpf_sys};

use usher_model::{DiskUse, LinkUse};

use crate::error::MeterError;
use crate::layout::{
    BpfConfig, CpuUse, Device, DiskKey, LinkKey, MapLayout, ProcessKey, ProcessUse, RqScan,
};
use crate::table::Table;

/// The compiled programs, aligned as ELF readers require.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static METER: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/meter.bpf.o")));

/// The cost of a BPF program during the time in which the kernel measured run times
/// (`kernel.bpf_stats_enabled`, or [`enable_bpf_stats`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramCost {
    /// Name of the program.
    pub name: String,
    /// Number of runs.
    pub runs: u64,
    /// Total run time in nanoseconds.
    pub run_ns: u64,
}

/// Starts the kernel's measurement of the run time of BPF programs, until the returned value is
/// dropped. The measurement makes all BPF programs slower.
///
/// # Errors
/// The kernel rejects the measurement.
pub fn enable_bpf_stats() -> Result<std::os::fd::OwnedFd, MeterError> {
    use std::os::fd::FromRawFd;
    // SAFETY: `bpf_enable_stats` takes a number and returns a descriptor or an error.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        let error = libbpf_rs::Error::from_raw_os_error(-fd);
        return Err(MeterError::bpf("enabling statistics of BPF programs")(
            error,
        ));
    }
    // SAFETY: the descriptor was just created and has no other owner.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
}

/// A loaded object, with its attached programs.
#[derive(Debug)]
pub(crate) struct LoadedPrograms {
    /// Attachments by the name of the program. The attachments must be dropped (detached) before
    /// the object.
    links: Vec<(String, Link)>,
    object: Object,
    /// Trace points that this kernel lacks.
    pub missing: Vec<String>,
    /// The reason for which run queues are not scanned; `None` if they are scanned.
    pub scan_refused: Option<String>,
}

impl LoadedPrograms {
    /// Loads the meter's programs without attaching them.
    pub fn meter() -> Result<Self, MeterError> {
        // libbpf must not write to standard error; its errors are returned to the caller.
        libbpf_rs::set_print(None);
        let (open, missing) = opened(true)?;
        let (object, refused) = match open.load() {
            Ok(object) => (object, None),
            // A kernel that rejects the program of the run-queue scan may accept the other
            // programs.
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
            scan_refused: None,
        };
        loaded.scan_refused = refused.or_else(|| loaded.start_rq_scan().err());
        Ok(loaded)
    }

    /// Starts the timer of the run-queue scan. The timer stops when its map is freed.
    fn start_rq_scan(&mut self) -> Result<(), String> {
        let mut programs = self.object.progs_mut();
        let Some(start) = programs.find(|program| program.name() == START_SCAN) else {
            return Err(format!("the BPF object has no program {START_SCAN}"));
        };
        match start.test_run(ProgramInput::default()) {
            Ok(run) if run.return_value == 0 => Ok(()),
            Ok(_) => Err("the timer of the scan cannot be started".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Attaches the programs to their trace points.
    pub fn attach(&mut self) -> Result<(), MeterError> {
        for program in self.object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            if program.autoload() && name != START_SCAN {
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
            return Err(MeterError::bpf(format!("finding the BPF map {name}"))(
                error,
            ));
        };
        MapHandle::try_from(&map).map_err(MeterError::bpf(format!("opening the BPF map {name}")))
    }

    /// Returns the cost of each program.
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

    /// Returns the kernel's IDs of the programs.
    pub fn program_ids(&self) -> Vec<u32> {
        let programs = self.object.progs();
        programs
            .filter(|program| program.prog_type() != ProgramType::Unspec)
            .filter_map(|program| Some(program_info(program.as_fd())?.id))
            .collect()
    }
}

/// Name of the BPF program that runs once, to start the timer. Kernels before 5.17 and kernels with
/// PREEMPT_RT reject this program.
const START_SCAN: &str = "start_rq_scan";

/// Returns the BPF programs, ready to be loaded, and the trace points that this kernel lacks.
fn opened(with_scan: bool) -> Result<(OpenObject, Vec<String>), MeterError> {
    let open = ObjectBuilder::default().open_memory(&METER.0);
    let mut open = open.map_err(MeterError::bpf("reading the meter's BPF programs"))?;
    let page_bytes = rustix::param::page_size() as u32;
    for mut ring in open.maps_mut().filter(|map| map.name() == "notify_ringbuf") {
        let set = ring.set_max_entries(page_bytes);
        set.map_err(MeterError::bpf("setting the size of the ring buffer"))?;
    }
    let mut programs = open.progs_mut();
    if let Some(mut start) = programs.find(|program| program.name() == START_SCAN) {
        start.set_autoload(with_scan);
    }
    drop(programs);
    let missing = leave_out_missing(&mut open);
    Ok((open, missing))
}

/// Trace points that exist only since Linux 6.3. All other trace points of the meter exist since
/// Linux 5.12; on older kernels, the meter cannot use BPF.
const ADDED_TRACE_POINTS: [&str; 2] = ["sock_send_length", "sock_recv_length"];

/// Disables programs for trace points that this kernel lacks; returns these trace points.
fn leave_out_missing(open: &mut OpenObject) -> Vec<String> {
    let mut missing = Vec::new();
    for mut program in open.progs_mut() {
        let section = program.section().to_string_lossy().into_owned();
        let added = ADDED_TRACE_POINTS
            .iter()
            .find(|point| section == format!("tp_btf/{point}"));
        if let Some(point) = added.filter(|point| !has_trace_point(point)) {
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
    // SAFETY: the name is a C string that outlives the call.
    let id = unsafe {
        libbpf_sys::libbpf_find_vmlinux_btf_id(name.as_ptr(), libbpf_sys::BPF_TRACE_RAW_TP)
    };
    id > 0
}

fn program_info(fd: BorrowedFd<'_>) -> Option<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `length` bytes to `info`. All pointers in `info` are null
    // with a count of 0; the kernel writes nothing through them.
    let result = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &raw mut info, &raw mut length)
    };
    (result == 0).then_some(info)
}

/// The loaded BPF programs, and the maps that user space shares with them.
#[derive(Debug)]
pub(crate) struct KernelMeter {
    notify_ringbuf: RingBuffer<'static>,
    pub cpu_uses: Table<u32, CpuUse>,
    pub disk_uses: Table<DiskKey, DiskUse>,
    pub link_uses: Table<LinkKey, LinkUse>,
    pub process_uses: Table<ProcessKey, ProcessUse>,
    config_map: MapHandle,
    cgroups: MapHandle,
    pub pid_map: Table<u32, u32>,
    pub lower_devices: Table<Device, Device>,
    notify_state: MapHandle,
    rq_scan: MapHandle,
    losses: MapHandle,
    pub config: BpfConfig,
    pub loaded: LoadedPrograms,
}

/// The key of the entry in a map with one entry. The same bytes are also used as the value 0.
const ONLY: [u8; 4] = [0; 4];

impl KernelMeter {
    /// Loads the programs, writes the first configuration, and attaches them.
    pub fn start(config: BpfConfig, services: &[[u8; 16]]) -> Result<Self, MeterError> {
        let loaded = LoadedPrograms::meter()?;
        let ring = loaded.map("notify_ringbuf")?;
        let mut ringbuf = RingBufferBuilder::new();
        let ringbuf = ringbuf.add(&ring, |_| 0).map(|_| ()).and(Ok(ringbuf));
        let ringbuf = ringbuf.and_then(RingBufferBuilder::build);
        let mut kernel = Self {
            notify_ringbuf: ringbuf.map_err(MeterError::bpf("opening the ring buffer"))?,
            cpu_uses: Table::new(loaded.map("cpu_uses")?)?,
            disk_uses: Table::new(loaded.map("disk_uses")?)?,
            link_uses: Table::new(loaded.map("link_uses")?)?,
            process_uses: Table::new(loaded.map("process_uses")?)?,
            pid_map: Table::new(loaded.map("pid_map")?)?,
            config_map: loaded.map("config_map")?,
            cgroups: loaded.map("cgroups")?,
            lower_devices: Table::new(loaded.map("lower_devices")?)?,
            notify_state: loaded.map("notify_state")?,
            rq_scan: loaded.map("rq_scans")?,
            losses: loaded.map("losses")?,
            config,
            loaded,
        };
        let known = kernel.loaded.map("services")?;
        for comm in services {
            put(&known, comm, &ONLY)?;
        }
        kernel.update_config()?;
        kernel.loaded.attach()?;
        kernel.count_threads()?;
        // The configuration is read back, because the task iterator has stored the pid of this
        // process in it.
        let known = kernel.config_map.lookup(&ONLY, MapFlags::ANY);
        let known = known.map_err(MeterError::bpf("reading the BPF map config_map"))?;
        kernel.config.own_tgid = BpfConfig::read(&known.unwrap_or_default()).own_tgid;
        Ok(kernel)
    }

    /// Writes `config` to the kernel's map.
    pub fn update_config(&self) -> Result<(), MeterError> {
        put(&self.config_map, &ONLY, &self.config.bytes())
    }

    /// Counts the run and wait time of every living thread since the last visit.
    pub fn count_threads(&self) -> Result<(), MeterError> {
        let doing = "visiting threads";
        let Some(link) = self.loaded.link("count_threads") else {
            return Ok(());
        };
        let mut visit = Iter::new(link).map_err(MeterError::bpf(doing))?;
        let mut nothing = [0; 64];
        loop {
            match visit.read(&mut nothing) {
                Ok(0) => return Ok(()),
                // The iterator pauses after a million threads, and is then continued by the next
                // read.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(MeterError::bpf(doing)(error.into())),
                Ok(_) => {}
            }
        }
    }

    pub fn notify_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `self` owns the ring buffer with this descriptor, and the borrow does not outlive
        // `self`.
        unsafe { BorrowedFd::borrow_raw(self.notify_ringbuf.epoll_fd()) }
    }

    /// Empties the ring buffer, then arms notification.
    pub fn arm_notify(&self) -> Result<(), MeterError> {
        let consumed = self.notify_ringbuf.consume();
        consumed.map_err(MeterError::bpf("emptying the ring buffer"))?;
        put(&self.notify_state, &ONLY, &ONLY)
    }

    pub fn add_cgroup(&self, id: u64, owner: u32) -> Result<(), MeterError> {
        put(&self.cgroups, &id.to_ne_bytes(), &owner.to_ne_bytes())
    }

    pub fn remove_cgroup(&self, id: u64) {
        remove(&self.cgroups, &id.to_ne_bytes());
    }

    pub fn add_pid(&self, pid: i32, owner: u32) -> Result<(), MeterError> {
        put(self.pid_map.map(), &pid.to_ne_bytes(), &owner.to_ne_bytes())
    }

    pub fn remove_pid(&self, pid: i32) {
        remove(self.pid_map.map(), &pid.to_ne_bytes());
    }

    /// Sets the disk below a stacked disk.
    pub fn set_lower_device(&self, upper: Device, lower: Device) -> Result<(), MeterError> {
        put(self.lower_devices.map(), &upper.bytes(), &lower.bytes())
    }

    /// Records that a disk is not stacked.
    pub fn remove_lower_device(&self, upper: Device) {
        remove(self.lower_devices.map(), &upper.bytes());
    }

    /// Returns the state of the run-queue scan.
    pub fn rq_scan(&self) -> Result<RqScan, MeterError> {
        let scan = self.rq_scan.lookup(&ONLY, MapFlags::ANY);
        let scan = scan.map_err(MeterError::bpf("reading the BPF map rq_scans"))?;
        Ok(scan.map_or(RqScan::default(), |bytes| RqScan::read(&bytes)))
    }

    /// Returns the numbers of lost events, in the order of `enum lost`.
    pub fn losses(&self) -> [u64; 4] {
        [0u32, 1, 2, 3].map(|what| {
            let found = self.losses.lookup(&what.to_ne_bytes(), MapFlags::ANY);
            found.ok().flatten().map_or(0, |bytes| u64::read(&bytes))
        })
    }
}

fn put(map: &MapHandle, key: &[u8], value: &[u8]) -> Result<(), MeterError> {
    let doing = || format!("writing the BPF map {}", map.name().to_string_lossy());
    map.update(key, value, MapFlags::ANY)
        .map_err(|error| MeterError::bpf(doing())(error))
}

/// Removes an entry if it exists.
fn remove(map: &MapHandle, key: &[u8]) {
    let _ = map.delete(key);
}
