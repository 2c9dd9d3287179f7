// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paper 2's contention test, on the difference of two meter samples.
//!
//! The background share of a resource is the background use divided by the use of background and
//! foreground together (sections 4.1 and 4.2). Always-on services and kernel threads count as
//! neither background nor foreground. A share below the threshold means that foreground work wants
//! the resource. Use is measured in synchronous sectors for disks, sending calls for the network,
//! and CPU time for the CPUs. The CPU test applies only while little CPU time is idle (section
//! 4.3), because foreground work that leaves CPUs idle does not lack CPU time.
//!
//! The paper's machine has one disk and one interface. This module tests each device separately,
//! and only for the programs that used the device. With one disk and one interface, the result
//! equals that of the paper's test.
//!
//! CPU times are more expensive to read than the other figures, and may be older than the sample
//! ([`Metering::cpu_read_ns`]). A [`MeteringWindow`] therefore has a separate start for CPU times:
//! the first CPU times that were read after the start of the window. If a window continues an
//! earlier window, its start for CPU times is the last CPU times that were read in the earlier
//! window.
//!
//! *Limits.* Shares and thresholds are fractions, 0..=1. A resource without any use is not
//! contended. The CPUs are not contended before CPU times were read twice within the window. For
//! each resource, the test takes linear time in the number of background programs.

use std::collections::BTreeSet;

use usher_model::{Contention, DiskUse, LinkUse, Metering, ProgramId, Resource, Usage};

use super::thresholds::Thresholds;

/// Use of one resource, in the unit of paper 2: nanoseconds of CPU time, synchronous sectors, or
/// sending calls.
fn amount(usage: &Usage, resource: Resource) -> u64 {
    match resource {
        Resource::Cpu => usage.cpu_ns,
        Resource::Disk(disk) => usage.disks.get(&disk).map_or(0, |d| d.sync_sectors),
        Resource::Link(link) => usage.links.get(&link).map_or(0, |l| l.sends),
    }
}

/// Use of a resource by background and foreground in a window, in the unit of `amount`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceUse {
    /// Use by all background programs together.
    pub background: u64,
    /// Use by all foreground processes together.
    pub foreground: u64,
}

impl ResourceUse {
    /// The background share of the use; `None` if the resource was not used.
    pub fn share(self) -> Option<f64> {
        let all = self.background + self.foreground;
        (all > 0).then(|| self.background as f64 / all as f64)
    }
}

/// A measurement window: the use of resources since a meter sample.
#[derive(Debug, Clone)]
pub struct MeteringWindow {
    from_ns: u64,
    base: Metering,
    /// The sample at which the window's CPU times start.
    cpu_base: Option<Metering>,
}

impl MeteringWindow {
    /// Opens a window that starts at the sample `metering`.
    pub fn new(at_ns: u64, metering: &Metering) -> Self {
        Self {
            from_ns: at_ns,
            base: metering.clone(),
            cpu_base: (metering.cpu_read_ns >= at_ns).then(|| metering.clone()),
        }
    }

    /// Opens the window that follows this window. If CPU times have not been read again since the
    /// start of this window, the CPU times of both windows have the same start.
    pub fn next(self, at_ns: u64, metering: &Metering) -> Self {
        let fresh = |base: &Metering| base.cpu_read_ns < metering.cpu_read_ns;
        let cpu_base = match self.cpu_base {
            Some(base) if !fresh(&base) => Some(base),
            _ => Some(metering.clone()),
        };
        Self {
            from_ns: at_ns,
            base: metering.clone(),
            cpu_base,
        }
    }

    /// Start of the window.
    pub fn from_ns(&self) -> u64 {
        self.from_ns
    }

    /// Adds a sample. The first CPU times that were read within the window become the start of the
    /// window's CPU times.
    pub fn see(&mut self, metering: &Metering) {
        if self.cpu_base.is_none() && metering.cpu_read_ns >= self.from_ns {
            self.cpu_base = Some(metering.clone());
        }
    }

    fn base(&self, resource: Resource) -> Option<&Metering> {
        match resource {
            Resource::Cpu => self.cpu_base.as_ref(),
            Resource::Disk(_) | Resource::Link(_) => Some(&self.base),
        }
    }

    /// Use of a resource by background and foreground since the start of the window.
    pub fn shared(&self, now: &Metering, resource: Resource) -> ResourceUse {
        let Some(base) = self.base(resource) else {
            return ResourceUse::default();
        };
        let of = |before: Option<&Usage>, after: &Usage| {
            let before = before.map_or(0, |usage| amount(usage, resource));
            amount(after, resource).saturating_sub(before)
        };
        let each = now.background.iter();
        ResourceUse {
            background: each.map(|(id, u)| of(base.background.get(id), u)).sum(),
            foreground: of(Some(&base.foreground), &now.foreground),
        }
    }

    /// Resources that a program has used since the start of the window.
    pub fn used_by(&self, now: &Metering, program: ProgramId) -> BTreeSet<Resource> {
        let Some(after) = now.background.get(&program) else {
            return BTreeSet::new();
        };
        let used = |&resource: &Resource| {
            let before = self.base(resource).map_or(0, |base| {
                let usage = base.background.get(&program);
                usage.map_or(0, |usage| amount(usage, resource))
            });
            self.base(resource).is_some() && amount(after, resource) > before
        };
        resources(after).filter(used).collect()
    }

    /// Length of the interval covered by CPU times, in nanoseconds; 0 before the second reading.
    pub fn cpu_ns(&self, now: &Metering) -> u64 {
        let base = self.cpu_base.as_ref();
        base.map_or(0, |base| now.cpu_read_ns.saturating_sub(base.cpu_read_ns))
    }

    /// Idle share of the CPUs' time; `None` before CPU times were read twice within the window.
    pub fn idle_share(&self, now: &Metering) -> Option<f64> {
        let elapsed_ns = self.cpu_ns(now);
        let base = self.cpu_base.as_ref().filter(|_| elapsed_ns > 0)?;
        let idle_ns = now.idle_ns.saturating_sub(base.idle_ns);
        Some(idle_ns as f64 / (f64::from(now.cpus.max(1)) * elapsed_ns as f64))
    }

    /// Whether, since the start of the window, no foreground process made a disk request or sent on
    /// an interface.
    pub fn devices_quiet(&self, now: &Metering) -> bool {
        let (before, after) = (&self.base.foreground, &now.foreground);
        let requests = |d: &DiskUse| d.requests;
        let sends = |l: &LinkUse| l.sends;
        let mut disks = after.disks.iter();
        let mut links = after.links.iter();
        disks.all(|(id, d)| requests(d) <= before.disks.get(id).map_or(0, requests))
            && links.all(|(id, l)| sends(l) <= before.links.get(id).map_or(0, sends))
    }

    /// The paper's test for a program that uses the resources `uses`: returns the first resource
    /// for which the foreground contends.
    pub fn contention(
        &self,
        at_ns: u64,
        now: &Metering,
        uses: &BTreeSet<Resource>,
        thresholds: &Thresholds,
    ) -> Option<Contention> {
        uses.iter().find_map(|&resource| {
            let shared = self.shared(now, resource);
            let threshold = threshold(thresholds, resource);
            let all = shared.background + shared.foreground;
            let below = (shared.background as f64) < threshold * all as f64;
            let idle = match resource {
                Resource::Cpu => self.idle_share(now)? >= thresholds.idle,
                Resource::Disk(_) | Resource::Link(_) => false,
            };
            let window_ns = match resource {
                Resource::Cpu => self.cpu_ns(now),
                Resource::Disk(_) | Resource::Link(_) => at_ns.saturating_sub(self.from_ns),
            };
            (below && !idle).then_some(Contention {
                resource,
                background: shared.background,
                foreground: shared.foreground,
                window_ns,
                threshold,
            })
        })
    }
}

fn threshold(thresholds: &Thresholds, resource: Resource) -> f64 {
    match resource {
        Resource::Cpu => thresholds.cpu,
        Resource::Disk(_) => thresholds.disk,
        Resource::Link(_) => thresholds.network,
    }
}

/// The CPUs, and the disks and interfaces in `usage`.
fn resources(usage: &Usage) -> impl Iterator<Item = Resource> {
    let disks = usage.disks.keys().map(|&disk| Resource::Disk(disk));
    let links = usage.links.keys().map(|&link| Resource::Link(link));
    std::iter::once(Resource::Cpu).chain(disks).chain(links)
}

/// Describes a contention in a sentence for people.
pub(super) fn describe(found: &Contention) -> String {
    let share = ResourceUse {
        background: found.background,
        foreground: found.foreground,
    };
    let percent = share.share().unwrap_or(0.0) * 100.0;
    let (unit, scale) = match found.resource {
        Resource::Cpu => ("ms", 1_000_000),
        Resource::Disk(_) => ("sectors", 1),
        Resource::Link(_) => ("sends", 1),
    };
    format!(
        "the foreground uses {}: {} {unit} in the last {} ms; of all use, the background makes \
         {percent:.1} %, which is below the threshold of {:.0} %",
        found.resource,
        found.foreground / scale,
        found.window_ns / 1_000_000,
        found.threshold * 100.0
    )
}
