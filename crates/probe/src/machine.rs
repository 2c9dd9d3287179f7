// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine as a whole: usable CPUs, idle share of each CPU, steal time, CPU pressure.
//!
//! [`MachineProbe`] returns shares over the time since its previous sample, from `/proc/stat` and
//! `/proc/pressure/cpu`. Shares are fractions from 0 to 1. Resolution: one clock tick (10 ms on
//! nearly all kernels). A sample reads the two files; `/proc/stat` grows with the number of CPUs
//! and interrupt lines. Only an unreadable or malformed `/proc/stat` is an error. Between two
//! samples within one tick, all shares are 0.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use usher_model::{CpuId, CpuSet};

use crate::capabilities::kernel_config;
use crate::error::ProbeError;
use crate::file;
use crate::text::{self, CpuTicks, Pressure};

/// The roots of the kernel's file systems; tests use other directories.
#[derive(Debug, Clone)]
pub struct Roots {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/boot`, for the kernel's configuration.
    pub boot: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            boot: "/boot".into(),
        }
    }
}

/// CPUs that are online and that this process may use under its cpuset and affinity mask.
///
/// # Errors
/// When the kernel's lists cannot be read.
pub fn usable_cpus(roots: &Roots) -> Result<CpuSet, ProbeError> {
    let online = online_cpus(roots)?;
    let status = roots.proc.join("self/status");
    let allowed = file::parse(&status, "a process's status", text::status)?.cpus_allowed;
    Ok(online.and(&allowed))
}

/// Returns the CPUs that are online.
///
/// # Errors
/// When the kernel's list cannot be read.
pub fn online_cpus(roots: &Roots) -> Result<CpuSet, ProbeError> {
    let online = roots.sys.join("devices/system/cpu/online");
    file::parse(&online, "a CPU list", |text| text.parse::<CpuSet>().ok())
}

/// Returns the busy time of some CPUs since boot, in nanoseconds. The resolution is one clock tick.
///
/// # Errors
/// When `/proc/stat` cannot be read.
pub fn busy_ns(roots: &Roots, cpus: &CpuSet) -> Result<u64, ProbeError> {
    let path = roots.proc.join("stat");
    let (_, each) = file::parse(&path, "the machine's stat", text::machine_stat)?;
    let of = each.iter().filter(|(cpu, _)| cpus.contains(**cpu));
    let ticks: u64 = of.map(|(_, ticks)| ticks.busy).sum();
    let ns_per_tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    Ok(ticks.saturating_mul(ns_per_tick))
}

/// The machine over the time since the last sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MachineSample {
    /// Idle share of each online CPU, 0..1.
    pub idle: BTreeMap<CpuId, f64>,
    /// The CPU time that the hypervisor gave to other virtual machines while this machine had work,
    /// as a fraction of the CPU time that this machine wanted, 0..1.
    pub steal_share: f64,
    /// The part of `steal_share` that the kernel counts as CPU time of programs: 0 if the kernel
    /// subtracts steal time.
    pub steal_in_cpu_time: f64,
    /// CPU pressure of the whole machine; `None` if the kernel has no PSI.
    pub cpu_pressure: Option<Pressure>,
}

/// Samples the machine.
#[derive(Debug)]
pub struct MachineProbe {
    proc_root: PathBuf,
    kernel_subtracts_steal: bool,
    last: Option<AllCpuTicks>,
}

type AllCpuTicks = (CpuTicks, BTreeMap<CpuId, CpuTicks>);

impl MachineProbe {
    /// Creates a probe that has not taken a sample.
    pub fn new(roots: &Roots) -> Self {
        Self {
            proc_root: roots.proc.clone(),
            kernel_subtracts_steal: subtracts_steal(roots),
            last: None,
        }
    }

    /// Returns the shares since the last sample; the first call returns the shares since boot.
    ///
    /// Reads `/proc/stat`. The length of this file grows with the number of CPUs and interrupt
    /// lines. Ten samples a second are sufficient.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be read.
    pub fn sample(&mut self) -> Result<MachineSample, ProbeError> {
        let path = self.proc_root.join("stat");
        let now = file::parse(&path, "the machine's stat", text::machine_stat)?;
        let zero = (CpuTicks::default(), BTreeMap::new());
        let before = self.last.as_ref().unwrap_or(&zero);
        let all = since(&before.0, &now.0);
        let idle_of = |(&cpu, ticks): (&CpuId, &CpuTicks)| {
            let before = before.1.get(&cpu).copied().unwrap_or_default();
            let d = since(&before, ticks);
            (cpu, share(d.idle, d.busy + d.steal))
        };
        let steal_share = share(all.steal, all.busy);
        let sample = MachineSample {
            idle: now.1.iter().map(idle_of).collect(),
            steal_share,
            steal_in_cpu_time: if self.kernel_subtracts_steal {
                0.0
            } else {
                steal_share
            },
            cpu_pressure: pressure(&self.proc_root, "cpu"),
        };
        self.last = Some(now);
        Ok(sample)
    }
}

/// Reads a pressure file of the whole machine: `cpu`, `memory` or `io`.
pub(crate) fn pressure(proc_root: &Path, resource: &str) -> Option<Pressure> {
    let path = proc_root.join("pressure").join(resource);
    file::parse(&path, "a pressure file", text::pressure).ok()
}

fn since(before: &CpuTicks, now: &CpuTicks) -> CpuTicks {
    CpuTicks {
        busy: now.busy.saturating_sub(before.busy),
        idle: now.idle.saturating_sub(before.idle),
        steal: now.steal.saturating_sub(before.steal),
    }
}

fn share(part: u64, rest: u64) -> f64 {
    let whole = part.saturating_add(rest);
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Returns whether the kernel subtracts steal time from the CPU time of tasks. With
/// `CONFIG_PARAVIRT_TIME_ACCOUNTING` the scheduler's clock stands still while the hypervisor runs
/// another machine (kernel/sched/core.c, `update_rq_clock_task`). If the configuration cannot be
/// read, the option is assumed to be set, as in the kernels of common distributions.
fn subtracts_steal(roots: &Roots) -> bool {
    kernel_config(roots, "CONFIG_PARAVIRT_TIME_ACCOUNTING").unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let at = |name: &str| dir.path().join(name);
        let roots = Roots {
            proc: at("proc"),
            sys: at("sys"),
            boot: at("boot"),
        };
        (dir, roots)
    }

    #[test]
    fn usable_cpus_are_online_and_allowed() {
        let status = "Name:\tx\nTgid:\t1\nCpus_allowed_list:\t2-5\n\
                      voluntary_ctxt_switches:\t0\nnonvoluntary_ctxt_switches:\t0\n";
        let online = ("sys/devices/system/cpu/online", "0-3,5-7\n");
        let (_dir, roots) = machine(&[online, ("proc/self/status", status)]);
        assert_eq!(usable_cpus(&roots).unwrap().to_string(), "2-3,5");
    }

    #[test]
    fn samples_idle_share_and_steal() {
        let first = "cpu  100 0 0 100 0 0 0 0\ncpu0 50 0 0 50 0 0 0 0\ncpu1 50 0 0 50 0 0 0 0\n";
        let then = "cpu  180 0 0 120 0 0 0 20\ncpu0 110 0 0 50 0 0 0 20\ncpu1 70 0 0 70 0 0 0 0\n";
        let release = ("proc/sys/kernel/osrelease", "6.1\n");
        let config = (
            "boot/config-6.1",
            "# CONFIG_PARAVIRT_TIME_ACCOUNTING is not set\n",
        );
        let (dir, roots) = machine(&[("proc/stat", first), release, config]);
        let mut probe = MachineProbe::new(&roots);
        probe.sample().unwrap();
        std::fs::write(dir.path().join("proc/stat"), then).unwrap();
        let sample = probe.sample().unwrap();
        assert_eq!(sample.idle, BTreeMap::from([(0, 0.0), (1, 0.5)]));
        assert_eq!((sample.steal_share, sample.steal_in_cpu_time), (0.2, 0.2));
        assert_eq!(sample.cpu_pressure, None);
        let idle = probe.sample().unwrap();
        assert_eq!(
            idle.steal_share, 0.0,
            "no time has passed, so none was stolen"
        );
    }

    #[test]
    fn busy_time_is_that_of_the_given_cpus() {
        let stat = "cpu  99 0 0 0 0 0 0 0\ncpu0 50 1 0 50 0 0 0 0\ncpu1 40 0 8 50 0 0 0 0\n";
        let (_dir, roots) = machine(&[("proc/stat", stat)]);
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        assert_eq!(busy_ns(&roots, &CpuSet::single(1)).unwrap(), 48 * tick_ns);
        assert_eq!(busy_ns(&roots, &CpuSet::range(0, 1)).unwrap(), 99 * tick_ns);
    }

    #[test]
    fn a_malformed_stat_file_is_named() {
        let (dir, roots) = machine(&[("proc/stat", "garbage")]);
        let error = MachineProbe::new(&roots).sample().unwrap_err().to_string();
        let path = dir.path().join("proc/stat");
        let expected = format!(
            "the file {} has an unexpected format; expected the machine's stat",
            path.display()
        );
        assert_eq!(error, expected);
    }
}
