// SPDX-License-Identifier: GPL-2.0-only
//! Reads and changes a scheduler that another process has loaded, through the ids of its maps: its
//! seats, its counters and the state of threads.
//!
//! A soft seat is a set of CPUs that the threads of a cgroup prefer (`bpf/seats.h`). After each
//! change of the seats, a new version number is written, so that each thread reads its seat again.
//! The map holds 256 seats. A seat has CPUs that are on line and below [`CPUS_MAX`], and a name,
//! which is cut after 31 bytes. A 257th seat is an error of the kernel. A change takes effect when
//! a thread next wakes, is enqueued or has a tick. Reading the seats takes time in proportion to
//! seats times CPUs; nothing is retried.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_model::CpuSet;
use usher_rules::select_cpu::{CPUS_MAX, words_of};

use crate::layout::{CPU_TALLY_BYTES, SeatTally, Tally, ThreadState, words};
use crate::object;
use crate::tables::TableSize;
use crate::{Kernel, ScxError};

/// Size of the field `name` of `struct seat`, in bytes.
const NAME_BYTES: usize = 32;
const SEATING_BYTES: usize = 8;
/// Names of the maps of two variables that have sections of their own.
pub(crate) const TALLIES: &str = ".data.tallies";
pub(crate) const SEATING: &str = ".data.seating";
/// Flag `PIDFD_THREAD`: the pidfd may refer to any thread, not only to the first thread of a
/// process.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

/// Ids of a scheduler's maps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MapIds {
    /// Map with the counters of each CPU.
    pub tallies: u32,
    /// Map with the state of threads.
    pub threads: u32,
    /// Map with the seats, by cgroup.
    pub seats: u32,
    /// Map with the counters of seats, by cgroup.
    pub seat_tallies: u32,
    /// Map with the version of the seats.
    pub seatings: u32,
    /// Map with the counts of CPU limits.
    #[serde(default)]
    pub limits: u32,
}

/// Soft seat of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SoftSeat {
    /// Number of the cgroup of the threads with this seat.
    pub cgroup: u64,
    /// Name of the program, for display.
    pub name: String,
    /// Preferred CPUs.
    pub cpus: CpuSet,
    /// Counters of the seat.
    pub tally: SeatTally,
}

/// A scheduler that another process has loaded.
#[derive(Debug)]
pub struct SchedulerHandle {
    tallies: MapHandle,
    threads: MapHandle,
    seats: MapHandle,
    seat_tallies: MapHandle,
    seatings: MapHandle,
}

impl SchedulerHandle {
    /// Opens the maps with these ids.
    ///
    /// # Errors
    /// A map does not exist, or has another layout.
    pub fn open(ids: &MapIds) -> Result<Self, ScxError> {
        let size = size_of_tables(ids)?;
        Ok(Self {
            tallies: by_id(ids.tallies, TALLIES, size.cpus() * CPU_TALLY_BYTES)?,
            threads: by_id(ids.threads, "threads", ThreadState::BYTES)?,
            seats: by_id(ids.seats, "seats", seat_bytes(size))?,
            seat_tallies: by_id(ids.seat_tallies, "seat_tallies", SeatTally::BYTES)?,
            seatings: by_id(ids.seatings, SEATING, SEATING_BYTES)?,
        })
    }

    /// Returns the counters since the start of the scheduler.
    ///
    /// # Errors
    /// The kernel returned an error.
    pub fn tally(&self) -> Result<Tally, ScxError> {
        let mut tally = Tally::default();
        for of_cpu in object::get(&self.tallies)?.chunks(CPU_TALLY_BYTES) {
            tally.add(of_cpu);
        }
        Ok(tally)
    }

    /// Gives the threads of a cgroup and of its descendants a seat, or changes the CPUs of their
    /// seat.
    ///
    /// CPUs that are off line are left out. When such a CPU comes on line, the kernel ends the
    /// scheduler, and the next scheduler starts without seats.
    ///
    /// # Errors
    /// No CPU of the set is on line, or a CPU is not possible on this machine, or a CPU number
    /// exceeds the tables; the seat then stays unchanged. Or the kernel returned an error, for
    /// example because there are too many seats.
    pub fn seat(
        &self,
        kernel: &Kernel,
        cgroup: u64,
        name: &str,
        cpus: &CpuSet,
    ) -> Result<(), ScxError> {
        let seat = seat_on(kernel, cpus)?.map_err(|reason| ScxError::InvalidSeat {
            name: name.to_owned(),
            cgroup,
            cpus: cpus.clone(),
            reason,
        })?;
        let key = cgroup.to_ne_bytes();
        let is_new = self.begin_tally(&key)?;
        let value = value_of(name, &seat, self.seats.value_size() as usize);
        if let Err(error) = self.seats.update(&key, &value, MapFlags::ANY) {
            if is_new {
                // If the entry remained, it would permanently occupy one of the map's limited
                // entries.
                let _ = delete(&self.seat_tallies, &key);
            }
            return Err(ScxError::bpf("writing a seat")(error));
        }
        self.renew()
    }

    /// Creates the counters of a seat, if they do not exist. Returns whether the counters are new.
    fn begin_tally(&self, key: &[u8]) -> Result<bool, ScxError> {
        let per_cpu = libbpf_rs::num_possible_cpus().map_err(ScxError::bpf("counting CPUs"))?;
        let none = vec![vec![0; SeatTally::BYTES]; per_cpu];
        let tallies = &self.seat_tallies;
        match tallies.update_percpu(key, &none, MapFlags::NO_EXIST) {
            Ok(()) => Ok(true),
            // The seat already has counters, which continue.
            Err(error) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(ScxError::bpf("creating the counters of a seat")(error)),
        }
    }

    /// Removes the seat of a cgroup, if the cgroup has a seat. Its threads then prefer all CPUs.
    ///
    /// # Errors
    /// The kernel returned an error.
    pub fn unseat(&self, cgroup: u64) -> Result<(), ScxError> {
        let key = cgroup.to_ne_bytes();
        delete(&self.seats, &key)?;
        // renew() must run even if the counters cannot be removed, so that threads stop using the
        // seat.
        let forgotten = delete(&self.seat_tallies, &key);
        self.renew().and(forgotten)
    }

    /// Removes all seats. If the removal of a seat fails, the remaining seats are still removed.
    ///
    /// # Errors
    /// The first error of the kernel.
    pub fn unseat_all(&self) -> Result<(), ScxError> {
        // If a process died in the middle of seat(), counters without a seat may exist. They are
        // removed as well.
        let keys = self.seats.keys().chain(self.seat_tallies.keys());
        let cgroups: BTreeSet<u64> = keys.flat_map(|key| words(&key).next()).collect();
        let unseated = cgroups.into_iter().map(|cgroup| self.unseat(cgroup));
        unseated.fold(Ok(()), Result::and)
    }

    /// Returns all seats, ordered by name.
    ///
    /// # Errors
    /// The kernel returned an error.
    pub fn seats(&self) -> Result<Vec<SoftSeat>, ScxError> {
        let mut all = Vec::new();
        for key in self.seats.keys() {
            let read = self.seats.lookup(&key, MapFlags::ANY);
            // If the seat has been removed since the keys were listed, it is skipped.
            let Some(value) = read.map_err(ScxError::bpf("reading a seat"))? else {
                continue;
            };
            let counts = self.seat_tallies.lookup_percpu(&key, MapFlags::ANY);
            let counts = counts.map_err(ScxError::bpf("reading the counters of a seat"))?;
            let mut tally = SeatTally::default();
            counts.iter().flatten().for_each(|of_cpu| tally.add(of_cpu));
            all.push(seat(&key, &value, tally));
        }
        all.sort_by(|a, b| (&a.name, a.cgroup).cmp(&(&b.name, b.cgroup)));
        Ok(all)
    }

    /// Returns the state of a thread; `None` if there is no such thread, or the scheduler does not
    /// run it.
    ///
    /// # Errors
    /// The kernel returned an error.
    pub fn thread(&self, tid: i32) -> Result<Option<ThreadState>, ScxError> {
        let Some(tid) = Pid::from_raw(tid) else {
            return Ok(None);
        };
        let thread = match pidfd_open(tid, PIDFD_THREAD) {
            // Before 6.9, only the first thread of a process has a pidfd.
            Err(Errno::INVAL) => pidfd_open(tid, PidfdFlags::empty()),
            opened => opened,
        };
        let Ok(thread) = thread else {
            return Ok(None);
        };
        let key = thread.as_raw_fd().to_ne_bytes();
        let state = self.threads.lookup(&key, MapFlags::ANY);
        let state = state.map_err(ScxError::bpf("reading the state of a thread"))?;
        Ok(state.map(|bytes| ThreadState::read(&bytes)))
    }

    /// Writes a new version of the seats, so that every thread reads its seat again.
    fn renew(&self) -> Result<(), ScxError> {
        let version = match self.seats.keys().next() {
            Some(_) => object::now_ns().max(1),
            None => 0,
        };
        object::set(&self.seatings, 0, &version.to_ne_bytes())
    }
}

/// Returns the size of `struct seat` in bytes.
fn seat_bytes(size: TableSize) -> usize {
    size.words() * 8 + NAME_BYTES
}

/// Returns the size of the tables of a scheduler, by the size of its map of counters.
fn size_of_tables(ids: &MapIds) -> Result<TableSize, ScxError> {
    let map = MapHandle::from_map_id(ids.tallies);
    let map = map.map_err(ScxError::bpf(format!("opening the BPF map '{TALLIES}'")))?;
    let bytes = map.value_size() as usize;
    let mut sizes = TableSize::ALL.into_iter();
    let size = sizes.find(|size| bytes == size.cpus() * CPU_TALLY_BYTES);
    size.ok_or_else(|| ScxError::layout(TALLIES))
}

/// Returns the requested CPUs that are on line, or the reason why these CPUs cannot be a seat.
fn seat_on(kernel: &Kernel, cpus: &CpuSet) -> Result<Result<CpuSet, String>, ScxError> {
    if cpus.is_empty() {
        return Ok(Err("a seat requires at least one CPU".to_owned()));
    }
    let beyond = cpus.minus(&CpuSet::range(0, CPUS_MAX as u32 - 1));
    if !beyond.is_empty() {
        let why =
            format!("CPUs {beyond} are beyond the {CPUS_MAX} CPUs that the scheduler supports");
        return Ok(Err(why));
    }
    let possible = kernel.possible()?;
    let unknown = cpus.minus(&possible);
    if !unknown.is_empty() {
        let why = format!("CPUs {unknown} do not exist on this machine, which has CPUs {possible}");
        return Ok(Err(why));
    }
    let online = kernel.online()?;
    let seat = cpus.and(&online);
    Ok(match seat.is_empty() {
        true => Err(format!("none of the CPUs is online; online CPUs: {online}")),
        false => Ok(seat),
    })
}

/// Opens a map by its id.
///
/// # Errors
/// The map does not exist, or has another name or size of values.
pub(crate) fn by_id(id: u32, name: &str, bytes: usize) -> Result<MapHandle, ScxError> {
    let map = MapHandle::from_map_id(id);
    let map = map.map_err(ScxError::bpf(format!("opening the BPF map '{name}'")))?;
    match map.name() == name && map.value_size() as usize == bytes {
        true => Ok(map),
        false => Err(ScxError::layout(name)),
    }
}

/// Deletes an entry of a map. A missing entry is no error.
fn delete(map: &MapHandle, key: &[u8]) -> Result<(), ScxError> {
    match map.delete(key) {
        Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
            Err(ScxError::bpf("removing a seat")(error))
        }
        _ => Ok(()),
    }
}

/// Returns the bytes of `struct seat`, which has this size. The CPUs are on line, and therefore
/// within the tables.
fn value_of(name: &str, cpus: &CpuSet, bytes: usize) -> Vec<u8> {
    let words = words_of(cpus).into_iter().take((bytes - NAME_BYTES) / 8);
    let mut value: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    // The name is cut before the last byte of the field, which is the terminating 0.
    let name = &name[..name.floor_char_boundary(NAME_BYTES - 1)];
    value.extend(name.as_bytes());
    value.resize(bytes, 0);
    value
}

fn seat(key: &[u8], value: &[u8], tally: SeatTally) -> SoftSeat {
    let (cpus, name) = value.split_at(value.len().saturating_sub(NAME_BYTES));
    let bits = words(cpus).enumerate().flat_map(|(at, word)| {
        let first = at as u32 * 64;
        (0..64)
            .filter(move |bit| word >> bit & 1 == 1)
            .map(move |bit| first + bit)
    });
    SoftSeat {
        cgroup: words(key).next().unwrap_or(0),
        name: crate::layout::text(name),
        cpus: bits.collect(),
        tally,
    }
}

#[cfg(test)]
mod tests {
    use libbpf_rs::MapType;

    use super::*;
    use crate::shared;

    fn machine() -> (tempfile::TempDir, Kernel) {
        let sys = tempfile::tempdir().unwrap();
        let cpu = sys.path().join("devices/system/cpu");
        std::fs::create_dir_all(&cpu).unwrap();
        std::fs::write(cpu.join("possible"), "0-7,3000\n").unwrap();
        std::fs::write(cpu.join("online"), "0-2,4\n").unwrap();
        let kernel = Kernel::at(sys.path());
        (sys, kernel)
    }

    fn requested(cpus: &str) -> Result<CpuSet, String> {
        let (_sys, kernel) = machine();
        seat_on(&kernel, &cpus.parse().unwrap()).unwrap()
    }

    /// Creates maps like those of a scheduler, with space for `seats` seats and for one more set of
    /// counters. Returns `None`, and prints a message, if the kernel does not permit BPF maps.
    fn handle(seats: u32) -> Option<SchedulerHandle> {
        let made = |kind, key, value: usize, most| {
            let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
                sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
                ..Default::default()
            };
            MapHandle::create(kind, Some("usher_test"), key, value as u32, most, &opts)
        };
        let (hash, each) = (MapType::Hash, MapType::PercpuHash);
        let made = || -> libbpf_rs::Result<SchedulerHandle> {
            Ok(SchedulerHandle {
                tallies: made(
                    MapType::Array,
                    4,
                    TableSize::Small.cpus() * CPU_TALLY_BYTES,
                    1,
                )?,
                threads: made(hash, 4, ThreadState::BYTES, 1)?,
                seats: made(hash, 8, seat_bytes(TableSize::Small), seats)?,
                seat_tallies: made(each, 8, SeatTally::BYTES, seats + 1)?,
                seatings: made(MapType::Array, 4, SEATING_BYTES, 1)?,
            })
        };
        match made() {
            Err(error) if error.kind() == libbpf_rs::ErrorKind::PermissionDenied => {
                eprintln!("skipped: BPF maps are not permitted here: {error}");
                None
            }
            made => Some(made.unwrap()),
        }
    }

    fn version(handle: &SchedulerHandle) -> u64 {
        words(&object::get(&handle.seatings).unwrap())
            .next()
            .unwrap()
    }

    fn cgroups(map: &MapHandle) -> Vec<u64> {
        let mut all: Vec<u64> = map.keys().map(|key| words(&key).next().unwrap()).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn failed_seat_leaves_no_entry() {
        let Some(handle) = handle(2) else {
            return;
        };
        let (_sys, kernel) = machine();
        let seat = |cgroup| handle.seat(&kernel, cgroup, "make", &CpuSet::single(1));
        seat(1).unwrap();
        seat(2).unwrap();
        let before = version(&handle);
        assert!(before > 0);
        // Two attempts: a leak of one entry by the first attempt would be visible at the second.
        for _ in 0..2 {
            let error = seat(3).unwrap_err().to_string();
            assert!(error.starts_with("writing a seat"), "{error}");
        }
        assert_eq!(cgroups(&handle.seat_tallies), [1, 2]);
        assert_eq!(version(&handle), before);
        // A change of an existing seat needs no new entry.
        seat(2).unwrap();
        let names: Vec<u64> = handle.seats().unwrap().iter().map(|s| s.cgroup).collect();
        assert_eq!(names, [1, 2]);
    }

    #[test]
    fn unseat_all_continues_after_a_failed_delete() {
        let Some(handle) = handle(2) else {
            return;
        };
        let (_sys, kernel) = machine();
        let give_both = || {
            for cgroup in [1, 2] {
                let given = handle.seat(&kernel, cgroup, "make", &CpuSet::single(1));
                given.unwrap();
            }
        };
        give_both();
        assert!(handle.begin_tally(&7_u64.to_ne_bytes()).unwrap());
        handle.unseat_all().unwrap();
        assert_eq!(cgroups(&handle.seats), [] as [u64; 0]);
        assert_eq!(cgroups(&handle.seat_tallies), [] as [u64; 0]);
        assert_eq!(version(&handle), 0);
        give_both();
        // A frozen map rejects changes.
        handle.seat_tallies.freeze().unwrap();
        let error = handle.unseat_all().unwrap_err().to_string();
        assert!(error.starts_with("removing a seat"), "{error}");
        assert_eq!(cgroups(&handle.seats), [] as [u64; 0]);
        assert_eq!(version(&handle), 0);
    }

    #[test]
    fn rejects_seat_without_usable_cpus() {
        for (cpus, seat) in [("0", "0"), ("0-4", "0-2,4"), ("2-3,5-7", "2")] {
            assert_eq!(requested(cpus), Ok(seat.parse().unwrap()), "{cpus}");
        }
        for (seat, word) in [
            ("", "at least one CPU"),
            ("3,5-7", "none of the CPUs is online"),
            ("0,8-9", "CPUs 8-9 do not exist"),
            ("511", "CPUs 511 do not exist"),
            ("0,2048", "CPUs 2048 are beyond"),
            ("3000", "CPUs 3000 are beyond"),
        ] {
            let why = requested(seat).unwrap_err();
            assert!(
                why.starts_with(word) || why.ends_with(word),
                "{seat}: {why}"
            );
        }
        let nowhere = Kernel::at(std::path::Path::new("/nowhere"));
        let unread = seat_on(&nowhere, &CpuSet::single(0))
            .unwrap_err()
            .to_string();
        assert!(unread.contains("cpu/possible"), "{unread}");
    }

    #[test]
    fn rejected_seat_error_names_program_and_cpus() {
        let refused = ScxError::InvalidSeat {
            name: "make".to_owned(),
            cgroup: 42,
            cpus: "3,5-7".parse().unwrap(),
            reason: requested("3,5-7").unwrap_err(),
        };
        assert_eq!(
            refused.to_string(),
            "invalid seat of 'make' (cgroup 42) on CPUs '3,5-7': none of the CPUs is online; \
             online CPUs: 0-2,4"
        );
    }

    #[test]
    fn seat_layout_matches_the_programs() {
        for size in TableSize::ALL {
            let seat = shared::fields_of(size, "seat");
            assert_eq!(
                (seat.bytes(), seat.place("cpus").start),
                (seat_bytes(size), 0)
            );
            assert_eq!(seat.place("name").start, size.words() * 8);
        }
        assert_eq!(shared::fields("seating").bytes(), SEATING_BYTES);
    }

    #[test]
    fn seat_round_trips() {
        let cpus: CpuSet = [0, 5, 64, 2047].into_iter().collect();
        let read = |name: &str| {
            let bytes = seat_bytes(TableSize::Large);
            let value = value_of(name, &cpus, bytes);
            assert_eq!(value.len(), bytes);
            seat(&7_u64.to_ne_bytes(), &value, SeatTally::default())
        };
        let make = read("make");
        assert_eq!(
            (make.cgroup, make.name.as_str(), make.cpus),
            (7, "make", cpus.clone())
        );
        // The name is cut at a character boundary. Each é takes two bytes.
        assert_eq!(read(&"é".repeat(NAME_BYTES)).name, "é".repeat(15));
    }
}
