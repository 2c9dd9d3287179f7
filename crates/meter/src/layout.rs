// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keys and values of the BPF maps in Rust, with the layout of `bpf/shared.h`.
//!
//! Keys and values are converted to and from bytes field by field, in native byte order. The
//! conversion needs no unsafe code and leaks no padding.

use usher_model::{DiskId, DiskUse, LinkUse};

/// Length of a process's name, including the terminating zero.
pub(crate) const COMM_BYTES: usize = 16;

/// Owners to which use is charged. Numbers from `FIRST_PROGRAM` on are background programs.
pub(crate) const FOREGROUND: u32 = 0;
pub(crate) const IGNORED: u32 = 1;
pub(crate) const FIRST_PROGRAM: u32 = 2;

/// A key or a value of a map.
pub(crate) trait MapLayout: Sized {
    /// Size of the key or value in the map.
    const BYTES: usize;
    /// Converts bytes to the key or value; missing bytes are read as 0.
    fn read(bytes: &[u8]) -> Self;
}

/// Returns the 32-bit word with index `at`; 0 if `bytes` is too short.
fn word(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at * 4..).and_then(|rest| rest.first_chunk());
    u32::from_ne_bytes(field.copied().unwrap_or_default())
}

/// Returns the 64-bit word with index `at`; 0 if `bytes` is too short.
fn long(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at * 8..).and_then(|rest| rest.first_chunk());
    u64::from_ne_bytes(field.copied().unwrap_or_default())
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// `struct bpf_config`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BpfConfig {
    pub start_ns: u64,
    pub epoch: u64,
    pub recent_ns: u64,
    pub cgroup_levels: u32,
    pub tracks_pids: u32,
    pub programs: u32,
    pub own_tgid: u32,
    pub notify_vacancies: u32,
    pub notify_imbalances: u32,
}

impl BpfConfig {
    pub fn bytes(&self) -> Vec<u8> {
        let longs = [self.start_ns, self.epoch, self.recent_ns];
        let words = [
            self.cgroup_levels,
            self.tracks_pids,
            self.programs,
            self.own_tgid,
            self.notify_vacancies,
            self.notify_imbalances,
        ];
        let mut bytes: Vec<u8> = longs.iter().flat_map(|long| long.to_ne_bytes()).collect();
        bytes.extend(bytes_of(&words));
        bytes
    }
}

impl MapLayout for BpfConfig {
    const BYTES: usize = 48;

    fn read(bytes: &[u8]) -> Self {
        Self {
            start_ns: long(bytes, 0),
            epoch: long(bytes, 1),
            recent_ns: long(bytes, 2),
            cgroup_levels: word(bytes, 6),
            tracks_pids: word(bytes, 7),
            programs: word(bytes, 8),
            own_tgid: word(bytes, 9),
            notify_vacancies: word(bytes, 10),
            notify_imbalances: word(bytes, 11),
        }
    }
}

/// One 32-bit word as a key or value.
impl MapLayout for u32 {
    const BYTES: usize = 4;

    fn read(bytes: &[u8]) -> Self {
        word(bytes, 0)
    }
}

/// One 64-bit word as a key or value.
impl MapLayout for u64 {
    const BYTES: usize = 8;

    fn read(bytes: &[u8]) -> Self {
        long(bytes, 0)
    }
}

/// `struct cpu_use`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CpuUse {
    pub run_ns: u64,
    pub wait_ns: u64,
}

impl MapLayout for CpuUse {
    const BYTES: usize = 16;

    fn read(bytes: &[u8]) -> Self {
        Self {
            run_ns: long(bytes, 0),
            wait_ns: long(bytes, 1),
        }
    }
}

/// The fields of `struct rq_scan` that user space needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RqScan {
    pub imbalances: u64,
    pub vacant_since_ns: u64,
    pub vacant_cpus: u32,
    /// Number of known run queues.
    pub queues: u32,
    pub scans: u64,
    pub scans_ns: u64,
    pub background_only_since_ns: u64,
}

impl MapLayout for RqScan {
    const BYTES: usize = 80;

    fn read(bytes: &[u8]) -> Self {
        Self {
            imbalances: long(bytes, 0),
            vacant_since_ns: long(bytes, 1),
            vacant_cpus: word(bytes, 4),
            queues: word(bytes, 6),
            scans: long(bytes, 4),
            scans_ns: long(bytes, 5),
            background_only_since_ns: long(bytes, 8),
        }
    }
}

/// `struct disk_key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DiskKey {
    pub owner: u32,
    pub disk: DiskId,
}

impl MapLayout for DiskKey {
    const BYTES: usize = 12;

    fn read(bytes: &[u8]) -> Self {
        Self {
            owner: word(bytes, 0),
            disk: DiskId {
                major: word(bytes, 1),
                minor: word(bytes, 2),
            },
        }
    }
}

/// `struct disk_use`.
impl MapLayout for DiskUse {
    const BYTES: usize = 32;

    fn read(bytes: &[u8]) -> Self {
        Self {
            requests: long(bytes, 0),
            sync_sectors: long(bytes, 1),
            async_sectors: long(bytes, 2),
            last_ns: Some(long(bytes, 3)).filter(|ns| *ns != 0),
        }
    }
}

/// `struct link`: an interface and its network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NetInterface {
    pub index: u32,
    pub netns: u32,
}

/// `struct link_key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkKey {
    pub owner: u32,
    pub interface: NetInterface,
}

impl MapLayout for LinkKey {
    const BYTES: usize = 12;

    fn read(bytes: &[u8]) -> Self {
        Self {
            owner: word(bytes, 0),
            interface: NetInterface {
                index: word(bytes, 1),
                netns: word(bytes, 2),
            },
        }
    }
}

/// `struct link_use`.
impl MapLayout for LinkUse {
    const BYTES: usize = 48;

    fn read(bytes: &[u8]) -> Self {
        Self {
            sends: long(bytes, 0),
            sent_bytes: long(bytes, 1),
            receives: long(bytes, 2),
            received_bytes: long(bytes, 3),
            packets: long(bytes, 4),
            last_ns: Some(long(bytes, 5)).filter(|ns| *ns != 0),
        }
    }
}

/// `struct device`: the CPUs, a disk or an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Device {
    Cpu,
    Disk(DiskId),
    Link(NetInterface),
}

impl Device {
    pub fn bytes(self) -> Vec<u8> {
        match self {
            Self::Cpu => bytes_of(&[0, 0, 0]),
            Self::Disk(disk) => bytes_of(&[1, disk.major, disk.minor]),
            Self::Link(interface) => bytes_of(&[2, interface.index, interface.netns]),
        }
    }
}

impl MapLayout for Device {
    const BYTES: usize = 12;

    fn read(bytes: &[u8]) -> Self {
        let (kind, a, b) = (word(bytes, 0), word(bytes, 1), word(bytes, 2));
        match kind {
            0 => Self::Cpu,
            1 => Self::Disk(DiskId { major: a, minor: b }),
            _ => Self::Link(NetInterface { index: a, netns: b }),
        }
    }
}

/// `struct process_key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessKey {
    pub tgid: u32,
    pub device: Device,
}

impl MapLayout for ProcessKey {
    const BYTES: usize = 16;

    fn read(bytes: &[u8]) -> Self {
        Self {
            tgid: word(bytes, 0),
            device: Device::read(bytes.get(4..).unwrap_or_default()),
        }
    }
}

/// `struct process_use`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessUse {
    pub epoch: u64,
    pub current: u64,
    pub previous: u64,
    pub owner: u32,
    pub comm: String,
}

impl MapLayout for ProcessUse {
    const BYTES: usize = 48;

    fn read(bytes: &[u8]) -> Self {
        Self {
            epoch: long(bytes, 0),
            current: long(bytes, 1),
            previous: long(bytes, 2),
            owner: word(bytes, 6),
            comm: name(bytes.get(32..).unwrap_or_default()),
        }
    }
}

impl ProcessUse {
    /// Returns the amount that was used in `epoch` and in the epoch before `epoch`.
    pub fn recent(&self, epoch: u64) -> u64 {
        match epoch.saturating_sub(self.epoch) {
            0 => self.current.saturating_add(self.previous),
            1 => self.current,
            _ => 0,
        }
    }
}

fn name(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Returns a process name as the kernel stores it: truncated, and padded with zeros.
pub(crate) fn comm(name: &str) -> [u8; COMM_BYTES] {
    let mut comm = [0; COMM_BYTES];
    for (to, from) in comm.iter_mut().zip(name.bytes().take(COMM_BYTES - 1)) {
        *to = from;
    }
    comm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_survive_a_round_trip() {
        let disk = DiskId { major: 8, minor: 1 };
        let interface = NetInterface { index: 3, netns: 7 };
        for device in [Device::Cpu, Device::Disk(disk), Device::Link(interface)] {
            assert_eq!(Device::read(&device.bytes()), device);
            assert_eq!(device.bytes().len(), Device::BYTES);
        }
    }

    #[test]
    fn config_survives_a_round_trip() {
        let config = BpfConfig {
            start_ns: 1,
            epoch: 2,
            recent_ns: 3,
            cgroup_levels: 4,
            tracks_pids: 5,
            programs: 6,
            own_tgid: 7,
            notify_vacancies: 8,
            notify_imbalances: 9,
        };
        assert_eq!(BpfConfig::read(&config.bytes()), config);
        assert_eq!(config.bytes().len(), BpfConfig::BYTES);
    }

    #[test]
    fn missing_bytes_are_read_as_zeros() {
        assert_eq!(CpuUse::read(&[1]), CpuUse::default());
        assert_eq!(ProcessUse::read(&[]).comm, "");
        assert_eq!(DiskUse::read(&[0; 32]).last_ns, None);
    }

    #[test]
    fn long_names_are_truncated() {
        assert_eq!(name(&comm("a-name-that-is-too-long")), "a-name-that-is-");
        assert_eq!(name(&comm("sh")), "sh");
    }

    #[test]
    fn recent_use_covers_two_epochs() {
        let using = ProcessUse {
            epoch: 5,
            current: 3,
            previous: 4,
            owner: 0,
            comm: String::new(),
        };
        assert_eq!([5, 6, 7].map(|epoch| using.recent(epoch)), [7, 3, 0]);
    }
}
