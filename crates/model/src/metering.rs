// SPDX-License-Identifier: MIT OR Apache-2.0
//! Use of CPUs, disks and network interfaces by foreground work, background work, and processes
//! that count as neither (always-on services and kernel threads).
//!
//! All amounts are totals since metering began and never decrease: the use between two samples is
//! the difference of their totals. All times are in nanoseconds, on the clock of
//! `Observation::at_ns`.
//!
//! The types are plain values. Maps contain only devices that were used, and vectors have no limit.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::program::ProgramId;

/// A whole disk (not a partition), by its device number.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
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
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct LinkId(pub u32);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A resource that foreground and background work can contend for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
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
    /// Number of requests that threads submitted themselves: reads, direct writes and synchronous
    /// writes.
    pub requests: u64,
    /// Sectors of 512 bytes in the requests that `requests` counts.
    pub sync_sectors: u64,
    /// Sectors of 512 bytes that the kernel wrote back later for the accounting owner, as far as
    /// the owner is known. Writeback that is charged to kernel threads is counted for no owner.
    pub async_sectors: u64,
    /// Time of the last request; `None`: no request yet.
    pub last_ns: Option<u64>,
}

/// Use of one network interface. A call is counted for the interface of its socket's route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkUse {
    /// Calls that sent data.
    pub sends: u64,
    /// Bytes that the calls in `sends` passed to sockets.
    pub sent_bytes: u64,
    /// Calls that received data.
    pub receives: u64,
    /// Bytes that the calls in `receives` returned.
    pub received_bytes: u64,
    /// Packets that the kernel sent for the owner's sockets: data, acknowledgements, connection
    /// set-up; 0 if unknown.
    #[serde(default)]
    pub packets: u64,
    /// Time of the last call or packet; `None`: no call or packet yet.
    pub last_ns: Option<u64>,
}

/// The use of CPUs, disks and interfaces by one accounting owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in nanoseconds, including that of processes that have ended.
    pub cpu_ns: u64,
    /// Nanoseconds for which runnable threads waited for a CPU, summed over threads.
    pub wait_ns: u64,
    /// Use of each disk that the owner has used.
    pub disks: BTreeMap<DiskId, DiskUse>,
    /// Use of each network interface that the owner has used.
    pub links: BTreeMap<LinkId, LinkUse>,
}

/// Source of the meter's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeterSource {
    /// BPF programs at kernel tracepoints, which count the use of every disk and every interface by
    /// every process, even by a short-lived process.
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
    /// Time since which at every moment at least one CPU has been idle, not always the same CPU.
    /// `None`: all CPUs are busy.
    pub since_ns: Option<u64>,
    /// Least number of idle CPUs since `since_ns`.
    pub cpus: u32,
    /// Time since which no CPU has run foreground work; background work of other Usher processes
    /// counts as background work. `None`: a CPU runs foreground work.
    #[serde(default)]
    pub background_only_since_ns: Option<u64>,
}

/// One sample of the meter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metering {
    /// Source of the sample's figures.
    pub source: MeterSource,
    /// Number of CPUs online.
    pub cpus: u32,
    /// Idle time in nanoseconds, summed over CPUs.
    pub idle_ns: u64,
    /// Time at which CPU times and waiting times were last read. CPU times may be older than the
    /// observation, because reading them is more expensive than reading the other figures.
    pub cpu_read_ns: u64,
    /// Number of times that two or more runnable threads queued on one CPU while another CPU ran
    /// only background work (run-queue imbalance).
    #[serde(default)]
    pub rq_imbalances: u64,
    /// CPUs that are idle now; `None` if no timer in the kernel detects idle CPUs.
    #[serde(default)]
    pub idle_cpus: Option<IdleCpus>,
    /// Use by foreground processes, which are all processes that neither `background` nor `ignored`
    /// counts.
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
