// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who used what of the machine: foreground, background, and what counts as
//! neither.
//!
//! All figures are totals since metering began and never fall, so that what was
//! used between two looks is a difference. Times are of the observations' clock.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::program::ProgramId;

/// A disk, by its numbers in the kernel: the whole disk, not a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DiskId {
    /// The driver's number.
    pub major: u32,
    /// The disk's own.
    pub minor: u32,
}

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl From<DiskId> for String {
    fn from(disk: DiskId) -> Self {
        disk.to_string()
    }
}

impl TryFrom<String> for DiskId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let parts = text.split_once(':');
        let numbers = parts.and_then(|(major, minor)| {
            Some(Self {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            })
        });
        numbers.ok_or_else(|| format!("'{text}' is no disk: two numbers with ':' are due"))
    }
}

/// A network interface, by its index in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LinkId(pub u32);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Something that background work can take from foreground work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// The CPUs, all together.
    Cpu,
    /// One disk.
    Disk(DiskId),
    /// One network interface.
    Link(LinkId),
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("the CPUs"),
            Self::Disk(disk) => write!(f, "disk {disk}"),
            Self::Link(link) => write!(f, "interface {link}"),
        }
    }
}

/// Use of one disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUse {
    /// Requests that a thread submitted for itself: reads, direct and
    /// synchronous writes.
    pub requests: u64,
    /// Sectors of 512 bytes of these.
    pub sync_sectors: u64,
    /// Sectors written back later on its behalf, as far as that is known: some
    /// are charged to the kernel's own threads, and so to nobody.
    pub async_sectors: u64,
    /// When the last request was submitted; `None`: none yet.
    pub last_ns: Option<u64>,
}

/// Use of one network interface, by the route of the socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkUse {
    /// Calls that sent something.
    pub sends: u64,
    /// Bytes that they handed over.
    pub sent_bytes: u64,
    /// Calls that received something.
    pub receives: u64,
    /// Bytes that they took.
    pub received_bytes: u64,
    /// Packets that the kernel sent for these sockets: data, acknowledgements,
    /// the opening of connections. 0 where they are not known.
    #[serde(default)]
    pub packets: u64,
    /// When the last of these calls was made, or packets sent; `None`: none yet.
    pub last_ns: Option<u64>,
}

/// What one party has used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in nanoseconds, ended processes included.
    pub cpu_ns: u64,
    /// Nanoseconds that threads waited, able to run, for a CPU: the sum over
    /// threads.
    pub wait_ns: u64,
    /// Disks, those that were used at all.
    pub disks: BTreeMap<DiskId, DiskUse>,
    /// Network interfaces, likewise.
    pub links: BTreeMap<LinkId, LinkUse>,
}

/// Where the figures come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeterSource {
    /// BPF programs at the kernel's trace points: every process, however short
    /// its life, every disk and interface.
    Bpf,
    /// `/proc`: processes that live between two looks count as foreground unless
    /// they are in a background program's cgroup, which disk a program uses is
    /// guessed from how busy disks are, and all use of interfaces counts as
    /// foreground.
    Proc,
}

/// A foreground process that cannot go on before a background program does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldUp {
    /// The background program that holds what is waited for.
    pub by: ProgramId,
    /// The process that waits.
    pub pid: i32,
    /// For what, in words: "a lock on /var/lib/dpkg/lock".
    pub what: String,
}

/// CPUs that have nothing to do, as a timer in the kernel sees them every few
/// milliseconds. While a background program waits for one, CPUs that run nothing but
/// others' background work count, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vacancy {
    /// Since when one or more have been idle, not always the same; `None`: all are
    /// busy.
    pub since_ns: Option<u64>,
    /// How many were idle at least, all that time.
    pub cpus: u32,
    /// Since when none has run anything but background work, of anybody's; `None`:
    /// some do.
    #[serde(default)]
    pub alone_ns: Option<u64>,
}

/// One look at the meter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metering {
    /// Where the figures come from.
    pub source: MeterSource,
    /// CPUs online: how many.
    pub cpus: u32,
    /// Nanoseconds in which CPUs had nothing to do: the sum over CPUs.
    pub idle_ns: u64,
    /// When CPU times and waits were last read: they cost more than the rest
    /// and may be older than the observation.
    pub cpu_read_ns: u64,
    /// Number of run-queue imbalances found so far: two or more ordinary threads shared a CPU
    /// while another CPU ran only background work.
    #[serde(default)]
    pub rq_imbalances: u64,
    /// CPUs that are idle just now; `None` where nobody watches for that.
    #[serde(default)]
    pub vacancy: Option<Vacancy>,
    /// Everybody who is not background and not ignored.
    pub foreground: Usage,
    /// Always-on services and the kernel's own threads.
    pub ignored: Usage,
    /// The background programs.
    pub background: BTreeMap<ProgramId, Usage>,
    /// Foreground processes that a stopped background program keeps waiting.
    pub held_up: Vec<HeldUp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_written_as_json_and_read_again() {
        let disk = DiskId {
            major: 254,
            minor: 16,
        };
        let usage = Usage {
            disks: BTreeMap::from([(disk, DiskUse::default())]),
            links: BTreeMap::from([(LinkId(3), LinkUse::default())]),
            ..Usage::default()
        };
        let look = Metering {
            source: MeterSource::Bpf,
            cpus: 2,
            idle_ns: 1,
            cpu_read_ns: 2,
            rq_imbalances: 3,
            vacancy: Some(Vacancy {
                since_ns: Some(4),
                cpus: 2,
                alone_ns: Some(3),
            }),
            foreground: usage.clone(),
            ignored: Usage::default(),
            background: BTreeMap::from([(ProgramId(1), usage)]),
            held_up: vec![],
        };
        let text = serde_json::to_string(&look).unwrap();
        assert!(text.contains(r#""254:16":"#), "{text}");
        assert_eq!(serde_json::from_str::<Metering>(&text).unwrap(), look);
        assert!(serde_json::from_str::<DiskId>(r#""254""#).is_err());
    }
}
