// SPDX-License-Identifier: MIT OR Apache-2.0
//! The meter: by BPF where the kernel lets us, by `/proc` where it does not.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::Path;

use usher_model::{DiskId, LinkId, MeterSource, Metering, ProcessId, ProgramId, Resource};

use crate::config::MeterConfig;
use crate::error::MeterError;
use crate::fallback::Fallback;
use crate::observer::Observer;
use crate::programs::ProgramCost;

/// Whom a process works for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// Work that must not feel background work.
    Foreground,
    /// An always-on service or the kernel itself.
    Ignored,
    /// A background program.
    Background(ProgramId),
}

/// A process that has used a resource of late.
#[derive(Debug, Clone, PartialEq)]
pub struct User {
    /// Its number.
    pub pid: i32,
    /// Its name.
    pub comm: String,
    /// Whom it works for.
    pub party: Party,
    /// Its part of what all have used, 0..1: of CPU time, sectors, bytes.
    pub share: f64,
}

/// What people call devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// "vda"
    pub disks: BTreeMap<DiskId, String>,
    /// "eth0"
    pub links: BTreeMap<LinkId, String>,
}

/// What the bell is to ring for, besides devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Threads wait for one another on one CPU, and another runs background work
    /// alone.
    pub crowds: bool,
    /// A CPU has had nothing to do for a while, or none but background work.
    pub vacancies: bool,
}

#[derive(Debug)]
enum Way {
    Bpf(Box<Observer>),
    Proc(Box<Fallback>),
}

/// Observes who uses what of the machine.
#[derive(Debug)]
pub struct Meter {
    way: Way,
}

impl Meter {
    /// Starts metering; by `/proc` where BPF is refused, which
    /// [`reasons`](Self::reasons) then says.
    pub fn open(config: &MeterConfig) -> Self {
        let observer = match config.bpf {
            true => Observer::open(config).map_err(|error| error.to_string()),
            false => Err("metering by BPF is switched off".to_owned()),
        };
        let way = match observer {
            Ok(observer) => Way::Bpf(Box::new(observer)),
            Err(why) => Way::Proc(Box::new(Fallback::open(config, why))),
        };
        Self { way }
    }

    /// Where the figures come from.
    pub fn source(&self) -> MeterSource {
        match self.way {
            Way::Bpf(_) => MeterSource::Bpf,
            Way::Proc(_) => MeterSource::Proc,
        }
    }

    /// What is not seen and why, a sentence each. None: everything is.
    pub fn reasons(&self) -> Vec<String> {
        match &self.way {
            Way::Bpf(observer) => observer.reasons(),
            Way::Proc(fallback) => fallback.reasons(),
        }
    }

    /// Takes a program for background from now on: all in its cgroup (v2) and
    /// below; where it has none, its root, what descends from that now, and
    /// what they beget. What it used before stays foreground's.
    ///
    /// # Errors
    /// When the cgroup or the process is not there, or the kernel refuses.
    pub fn manage(
        &mut self,
        program: ProgramId,
        cgroup: Option<&Path>,
        root: ProcessId,
    ) -> Result<(), MeterError> {
        match &mut self.way {
            Way::Bpf(observer) => observer.manage(program, cgroup, root),
            Way::Proc(fallback) => fallback.manage(program, cgroup, root),
        }
    }

    /// Drops a background program and its figures; what its processes use from
    /// now on is foreground's.
    pub fn forget(&mut self, program: ProgramId) {
        match &mut self.way {
            Way::Bpf(observer) => observer.forget(program),
            Way::Proc(fallback) => fallback.forget(program),
        }
    }

    /// Looks at the meter at `at_ns` of the monotonic clock, and arms the bell.
    ///
    /// Disks and links are always read, which costs microseconds; CPU time,
    /// waits and idle time only if `thorough`, which grows with the number of
    /// threads. [`Metering::cpu_read_ns`] says how old the latter are. It finds
    /// nobody who is held up; see [`held_up`](crate::held_up).
    pub fn sample(&mut self, at_ns: u64, thorough: bool) -> Metering {
        match &mut self.way {
            Way::Bpf(observer) => observer.sample(at_ns, thorough),
            Way::Proc(fallback) => fallback.sample(at_ns, thorough),
        }
    }

    /// Has the bell ring for these, too.
    pub fn ring_for(&mut self, wanted: Wanted) {
        if let Way::Bpf(observer) = &mut self.way {
            observer.ring_for(wanted);
        }
    }

    /// Readable when foreground work has used a disk or an interface that
    /// background work used just before, and for what [`Self::ring_for`] has asked
    /// for; then silent until the next look.
    /// `None`: there is no bell without BPF.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        match &self.way {
            Way::Bpf(observer) => Some(observer.bell()),
            Way::Proc(_) => None,
        }
    }

    /// What people call the devices seen.
    pub fn names(&self) -> Names {
        match &self.way {
            Way::Bpf(observer) => observer.names(),
            Way::Proc(fallback) => fallback.names(),
        }
    }

    /// Who has used a resource in the last second or two, most first; nobody
    /// where that cannot be told. Seconds are told by thorough looks.
    pub fn top_users(&mut self, resource: Resource) -> Vec<User> {
        match &mut self.way {
            Way::Bpf(observer) => observer.top_users(resource),
            Way::Proc(_) => Vec::new(),
        }
    }

    /// What the BPF programs have cost; see [`keep_account`](crate::keep_account).
    pub fn costs(&self) -> Vec<ProgramCost> {
        match &self.way {
            Way::Bpf(observer) => observer.costs(),
            Way::Proc(_) => Vec::new(),
        }
    }

    /// The kernel's numbers of the BPF programs.
    pub fn program_ids(&self) -> Vec<u32> {
        match &self.way {
            Way::Bpf(observer) => observer.program_ids(),
            Way::Proc(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_may_go_to_another_thread() {
        fn goes<T: Send>() {}
        goes::<Meter>();
    }
}
