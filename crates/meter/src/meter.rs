// SPDX-License-Identifier: MIT OR Apache-2.0
//! The meter: measures the use of CPUs, disks and interfaces by foreground and background work, and
//! notifies when foreground work uses a device of background work.
//!
//! [`Meter::open`] selects the implementation. The module `observer` counts by BPF programs in the
//! kernel. If the kernel rejects BPF, the module `fallback` reads `/proc`; it cannot notify, and
//! attributes all use of interfaces to the foreground. [`Meter::sample`] documents the cost of a
//! sample. A failed reading keeps the last values, and [`Meter::reasons`] returns the cause. No
//! function waits.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::Path;

use usher_model::{DiskId, LinkId, MeterSource, Metering, ProcessId, ProgramId, Resource};

use crate::config::MeterConfig;
use crate::error::MeterError;
use crate::fallback::Fallback;
use crate::observer::Observer;
use crate::programs::ProgramCost;

/// The class of work that a process belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnerClass {
    /// Work that background work must not slow down.
    Foreground,
    /// An always-on service or the kernel itself.
    Ignored,
    /// A background program.
    Background(ProgramId),
}

/// Recent use of a resource by a process.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessShare {
    /// Pid of the process.
    pub pid: i32,
    /// Name of the process.
    pub comm: String,
    /// The class of work that the process belongs to.
    pub owner: OwnerClass,
    /// Share of the process in the CPU time, sectors or bytes of all processes, 0..1.
    pub share: f64,
}

/// Names of devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceNames {
    /// Names of disks, such as "vda".
    pub disks: BTreeMap<DiskId, String>,
    /// Names of interfaces, such as "eth0".
    pub links: BTreeMap<LinkId, String>,
}

/// The events that notify user space, in addition to the use of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NotifyOn {
    /// Two or more ordinary threads share a CPU while another CPU runs only background work.
    pub imbalances: bool,
    /// A CPU has been idle, or has run only background work, for a while.
    pub vacancies: bool,
}

#[derive(Debug)]
enum Backend {
    Bpf(Box<Observer>),
    Proc(Box<Fallback>),
}

/// Measures the use of the machine by foreground and background work.
#[derive(Debug)]
pub struct Meter {
    backend: Backend,
}

impl Meter {
    /// Starts metering. If the kernel rejects BPF, the meter reads `/proc`, and
    /// [`reasons`](Self::reasons) returns the cause.
    pub fn open(config: &MeterConfig) -> Self {
        let observer = match config.bpf {
            true => Observer::open(config).map_err(|error| error.to_string()),
            false => Err("the configuration switches metering by BPF off".to_owned()),
        };
        let backend = match observer {
            Ok(observer) => Backend::Bpf(Box::new(observer)),
            Err(why) => Backend::Proc(Box::new(Fallback::open(config, why))),
        };
        Self { backend }
    }

    /// Returns the source of the measured values.
    pub fn source(&self) -> MeterSource {
        match self.backend {
            Backend::Bpf(_) => MeterSource::Bpf,
            Backend::Proc(_) => MeterSource::Proc,
        }
    }

    /// Returns one sentence with the reason for each kind of use that is not measured; empty if
    /// everything is measured.
    pub fn reasons(&self) -> Vec<String> {
        match &self.backend {
            Backend::Bpf(observer) => observer.reasons(),
            Backend::Proc(fallback) => fallback.reasons(),
        }
    }

    /// Counts a program as background work from now on. A program with a cgroup (v2) consists of
    /// all processes in this cgroup and in the cgroups below. A program without a cgroup consists
    /// of its root process and all present and future descendants. Use before this call stays
    /// foreground use.
    ///
    /// # Errors
    /// The cgroup or the process does not exist, or the kernel rejects the change.
    pub fn manage(
        &mut self,
        program: ProgramId,
        cgroup: Option<&Path>,
        root: ProcessId,
    ) -> Result<(), MeterError> {
        match &mut self.backend {
            Backend::Bpf(observer) => observer.manage(program, cgroup, root),
            Backend::Proc(fallback) => fallback.manage(program, cgroup, root),
        }
    }

    /// Removes a background program and its measured values. Later use by its processes is
    /// foreground use.
    pub fn forget(&mut self, program: ProgramId) {
        match &mut self.backend {
            Backend::Bpf(observer) => observer.forget(program),
            Backend::Proc(fallback) => fallback.forget(program),
        }
    }

    /// Takes a sample at `at_ns` of the monotonic clock, and arms notification.
    ///
    /// Disks and links are always read, which takes microseconds with BPF. Without BPF, this
    /// reading visits every process while background programs are managed. CPU time, waits and idle
    /// time are read only if `thorough` is set. This reading takes time in proportion to the number
    /// of threads; [`Metering::cpu_read_ns`] is the time at which it was made. The sample does not
    /// contain blocked processes; see [`find_blocked`](crate::find_blocked).
    pub fn sample(&mut self, at_ns: u64, thorough: bool) -> Metering {
        match &mut self.backend {
            Backend::Bpf(observer) => observer.sample(at_ns, thorough),
            Backend::Proc(fallback) => fallback.sample(at_ns, thorough),
        }
    }

    /// Sets the additional events for which the meter notifies.
    pub fn notify_on(&mut self, events: NotifyOn) {
        if let Backend::Bpf(observer) = &mut self.backend {
            observer.notify_on(events);
        }
    }

    /// Returns a descriptor that becomes readable when foreground work has used a disk or an
    /// interface that background work used shortly before, and after the events that
    /// [`Self::notify_on`] has set. After a notification, there is no other notification until the
    /// next sample. Returns `None` without BPF, because `/proc` cannot notify.
    pub fn notify_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backend {
            Backend::Bpf(observer) => Some(observer.notify_fd()),
            Backend::Proc(_) => None,
        }
    }

    /// Returns the names of the known devices.
    pub fn names(&self) -> DeviceNames {
        match &self.backend {
            Backend::Bpf(observer) => observer.names(),
            Backend::Proc(fallback) => fallback.names(),
        }
    }

    /// Returns the processes that used a resource in the last one or two seconds, ordered by
    /// decreasing use. Empty without BPF. Only thorough samples begin a new second.
    pub fn top_processes(&mut self, resource: Resource) -> Vec<ProcessShare> {
        match &mut self.backend {
            Backend::Bpf(observer) => observer.top_processes(resource),
            Backend::Proc(_) => Vec::new(),
        }
    }

    /// Returns the cost of the BPF programs; see [`enable_bpf_stats`](crate::enable_bpf_stats).
    pub fn costs(&self) -> Vec<ProgramCost> {
        match &self.backend {
            Backend::Bpf(observer) => observer.costs(),
            Backend::Proc(_) => Vec::new(),
        }
    }

    /// Returns the kernel's IDs of the BPF programs.
    pub fn program_ids(&self) -> Vec<u32> {
        match &self.backend {
            Backend::Bpf(observer) => observer.program_ids(),
            Backend::Proc(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_is_send() {
        fn assert_send<T: Send>() {}
        assert_send::<Meter>();
    }
}
