// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shares of the machine that background work uses in a time window, as Usher's own meter measures
//! them. The meter is read at the start and at the end of a window; the thread sleeps in between.
//!
//! The share of the disk or the network is one value for all devices: the background's use of all
//! devices / the whole use of all devices. If a part of the meter is not available, the reason is
//! printed, and the affected resources have no share.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use usher_meter::{Meter, MeterConfig};
use usher_model::{Metering, ProgramId, Resource, Usage};
use usher_policy::background::contention::{MeteringWindow, ResourceUse};

use super::calibrate::Shares;

/// The meter, and the processes that are background at present.
pub struct BackgroundMeter {
    meter: Meter,
    managed: Vec<ProgramId>,
    begun: Instant,
}

impl BackgroundMeter {
    /// Starts the meter.
    pub fn new() -> Self {
        let meter = Meter::open(&MeterConfig::default());
        for reason in meter.reasons() {
            eprintln!("calibrate: {reason}");
        }
        Self {
            meter,
            managed: Vec::new(),
            begun: Instant::now(),
        }
    }

    /// Sets the background: the processes `background` and their descendants.
    ///
    /// # Errors
    /// One of the given processes has ended.
    pub fn watches(&mut self, background: &[i32]) -> Result<()> {
        for id in self.managed.drain(..) {
            self.meter.forget(id);
        }
        for &pid in background {
            let id = ProgramId(pid.unsigned_abs().into());
            let root = usher_probe::process_id("/proc".as_ref(), pid)?;
            self.meter
                .manage(id, None, root)
                .with_context(|| format!("metering the process {pid}"))?;
            self.managed.push(id);
        }
        Ok(())
    }

    /// Measures the background's shares of all resources during the time `length`.
    pub fn window(&mut self, length: Duration) -> Shares {
        let (from_ns, before) = self.sample();
        sleep(length);
        let (to_ns, after) = self.sample();
        let window = MeteringWindow::new(from_ns, &before);
        let share = |of: &dyn Fn(&Metering) -> Vec<Resource>| {
            let all = of(&after).into_iter();
            let sum = all.fold(ResourceUse::default(), |sum, resource| {
                let one = window.shared(&after, resource);
                ResourceUse {
                    background: sum.background + one.background,
                    foreground: sum.foreground + one.foreground,
                }
            });
            sum.share()
        };
        let idle_ns = after.idle_ns.saturating_sub(before.idle_ns);
        let all_ns = to_ns.saturating_sub(from_ns) * u64::from(after.cpus.max(1));
        Shares {
            cpu: share(&|_| vec![Resource::Cpu]),
            disk: share(&disks),
            net: share(&links),
            idle: (idle_ns as f64 / all_ns.max(1) as f64).min(1.0),
        }
    }

    /// Reads the meter. Also returns the time in nanoseconds at which the meter was read.
    fn sample(&mut self) -> (u64, Metering) {
        let at_ns = self.begun.elapsed().as_nanos() as u64;
        (at_ns, self.meter.sample(at_ns, true))
    }
}

fn disks(metering: &Metering) -> Vec<Resource> {
    used(metering, |usage| {
        usage.disks.keys().map(|&id| Resource::Disk(id)).collect()
    })
}

fn links(metering: &Metering) -> Vec<Resource> {
    used(metering, |usage| {
        usage.links.keys().map(|&id| Resource::Link(id)).collect()
    })
}

/// Returns each resource that the foreground or the background has used, without duplicates.
fn used(metering: &Metering, devices: impl Fn(&Usage) -> Vec<Resource>) -> Vec<Resource> {
    let usages = metering.background.values().chain([&metering.foreground]);
    let all: BTreeSet<Resource> = usages.flat_map(devices).collect();
    all.into_iter().collect()
}
