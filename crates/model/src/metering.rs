// SPDX-License-Identifier: MIT OR Apache-2.0
//! Use of the machine's resources by foreground work, background work, and processes that count as
//! neither.
//! All figures are totals since metering began and never decrease, so the use between two samples
//! is their difference. Times are on the clock of the observations.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::program::ProgramId;

/// A whole disk (not a partition), by its device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DiskId {
    /// Major number: the driver.
    pub major: u32,
    /// Minor number: the disk.
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
        numbers.ok_or_else(|| format!("'{text}' is not a disk number of the form MAJOR:MINOR"))
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

/// A resource that foreground and background work can contend for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// All CPUs together.
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
    /// Requests that a thread submitted for itself: reads, direct and synchronous writes.
    pub requests: u64,
    /// Sectors of 512 bytes in these requests.
    pub sync_sectors: u64,
    /// Sectors that the kernel wrote back later on behalf of the owner, where known. Some writeback
    /// is charged to kernel threads and appears in no owner's figures.
    pub async_sectors: u64,
    /// Time of the last request; `None`: no request yet.
    pub last_ns: Option<u64>,
}

/// Use of one network interface, attributed by the route of the socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkUse {
    /// Calls that sent data.
    pub sends: u64,
    /// Bytes that these calls passed to the socket.
    pub sent_bytes: u64,
    /// Calls that received data.
    pub receives: u64,
    /// Bytes that these calls returned.
    pub received_bytes: u64,
    /// Packets that the kernel sent for these sockets: data, acknowledgements, connection set-up. 0
    /// where unknown.
    #[serde(default)]
    pub packets: u64,
    /// Time of the last call or packet; `None`: there was none yet.
    pub last_ns: Option<u64>,
}

/// The use of CPUs, disks and interfaces by one accounting owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in nanoseconds, including processes that have ended.
    pub cpu_ns: u64,
    /// Nanoseconds for which runnable threads waited for a CPU, summed over threads.
    pub wait_ns: u64,
    /// Disks that were used at all.
    pub disks: BTreeMap<DiskId, DiskUse>,
    /// Network interfaces that were used at all.
    pub links: BTreeMap<LinkId, LinkUse>,
}

/// Source of the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeterSource {
    /// BPF programs at kernel tracepoints: every process, however short-lived, every disk and every
    /// interface.
    Bpf,
    /// Figures from `/proc`, which have three limits. A process that starts and ends between two
    /// samples counts as foreground, unless it is in a background program's cgroup. The disk that a
    /// program uses is inferred from the disks' utilisation. All use of interfaces counts as
    /// foreground.
    Proc,
}

/// A foreground process that waits for something that a background program holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedProcess {
    /// The background program that holds the resource.
    pub blocked_by: ProgramId,
    /// The waiting process.
    pub pid: i32,
    /// What the process waits for, as text: "a lock on /var/lib/dpkg/lock".
    pub waits_for: String,
}

/// Idle CPUs, as a timer in the kernel sees them every few milliseconds. While a background program
/// waits for a CPU, CPUs that run only other background work count as idle too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleCpus {
    /// Time since which at least one CPU has been idle; at different times it may have been
    /// different CPUs. `None`: all CPUs are busy.
    pub since_ns: Option<u64>,
    /// Least number of idle CPUs since `since_ns`.
    pub cpus: u32,
    /// Time since which all CPUs have run only background work, including background work that this
    /// Usher does not manage; `None`: some CPU runs foreground work.
    #[serde(default)]
    pub background_only_since_ns: Option<u64>,
}

/// One sample of the meter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metering {
    /// Source of the figures.
    pub source: MeterSource,
    /// Number of CPUs online.
    pub cpus: u32,
    /// Idle time in nanoseconds, summed over CPUs.
    pub idle_ns: u64,
    /// Time of the last reading of CPU times and waits. CPU times are more expensive to read than
    /// the other figures, so they may be older than the observation.
    pub cpu_read_ns: u64,
    /// Number of times that two or more runnable threads queued on one CPU while another CPU ran
    /// only background work (run-queue imbalance).
    #[serde(default)]
    pub rq_imbalances: u64,
    /// CPUs that are idle now; `None` if no timer in the kernel detects idle CPUs.
    #[serde(default)]
    pub idle_cpus: Option<IdleCpus>,
    /// Use by all processes that are neither background nor ignored.
    pub foreground: Usage,
    /// Use by always-on services and kernel threads.
    pub ignored: Usage,
    /// Use by each background program.
    pub background: BTreeMap<ProgramId, Usage>,
    /// Foreground processes that wait for a stopped background program.
    pub blocked: Vec<BlockedProcess>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_survives_json() {
        let disk = DiskId {
            major: 254,
            minor: 16,
        };
        let usage = Usage {
            disks: BTreeMap::from([(disk, DiskUse::default())]),
            links: BTreeMap::from([(LinkId(3), LinkUse::default())]),
            ..Usage::default()
        };
        let sample = Metering {
            source: MeterSource::Bpf,
            cpus: 2,
            idle_ns: 1,
            cpu_read_ns: 2,
            rq_imbalances: 3,
            idle_cpus: Some(IdleCpus {
                since_ns: Some(4),
                cpus: 2,
                background_only_since_ns: Some(3),
            }),
            foreground: usage.clone(),
            ignored: Usage::default(),
            background: BTreeMap::from([(ProgramId(1), usage)]),
            blocked: vec![],
        };
        let text = serde_json::to_string(&sample).unwrap();
        assert!(text.contains(r#""254:16":"#), "{text}");
        assert_eq!(serde_json::from_str::<Metering>(&text).unwrap(), sample);
        assert!(serde_json::from_str::<DiskId>(r#""254""#).is_err());
    }
}
