// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the CPUs that share a last-level cache (LLC), in files of the kernel.
//!
//! 1. For each CPU, read the caches in `/sys/devices/system/cpu/cpuN/cache`; the cache with the
//!    highest level is the LLC.
//! 2. Group the CPUs by the CPUs that share their LLC.
//! 3. Count the cores of each group, by `thread_siblings_list` of each CPU, and read the group's
//!    package.
//!
//! At most two files per CPU and a few files per LLC are read, once per call. If a file is missing
//! or malformed, the result is `None`. The files are sufficient for the placement of workers. If
//! this library linked hwloc instead, every program that uses the library would link hwloc and scan
//! the whole machine at start-up. A program that has a [`Topology`] from hwloc can pass it to
//! [`WorkerPlaces::on`](crate::WorkerPlaces::on).

use std::fs;
use std::path::Path;
use std::str::FromStr;

use usher_model::{CpuId, CpuSet, Topology};

/// CPUs that share a last-level cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Llc {
    /// The CPUs of the LLC that the caller may use.
    pub cpus: CpuSet,
    /// The number of cores of these CPUs.
    pub cores: usize,
    /// Index of the package; equal for LLCs of the same package.
    pub package: usize,
}

/// Reads the LLCs of `cpus` from the directory `sys` in `root`; `None` if the kernel does not
/// report caches.
pub(crate) fn read(root: &Path, cpus: &CpuSet) -> Option<Vec<Llc>> {
    let all = root.join("sys/devices/system/cpu");
    let mut found: Vec<Llc> = Vec::new();
    for cpu in cpus.iter() {
        if found.iter().any(|llc| llc.cpus.contains(cpu)) {
            continue;
        }
        let dir = all.join(format!("cpu{cpu}"));
        let shared = last_level(&dir)?.and(cpus);
        let cores: Option<CpuSet> = shared.iter().map(|cpu| core(&all, cpu)).collect();
        found.push(Llc {
            cores: cores?.len(),
            package: value(&dir.join("topology/physical_package_id"))?,
            cpus: shared,
        });
    }
    Some(found)
}

/// Returns the LLCs of a topology.
pub(crate) fn of(topology: &Topology) -> Vec<Llc> {
    let domains = topology.domains.iter();
    domains
        .map(|domain| Llc {
            cpus: domain.cpus.clone(),
            cores: domain.cores.len(),
            package: domain.package,
        })
        .collect()
}

/// Returns the CPUs that share the LLC of a CPU.
fn last_level(cpu: &Path) -> Option<CpuSet> {
    let caches = (0..).map(|index| cpu.join(format!("cache/index{index}")));
    let caches = caches.map_while(|dir| Some((value::<u32>(&dir.join("level"))?, dir)));
    let (_, last) = caches.max_by_key(|&(level, _)| level)?;
    value(&last.join("shared_cpu_list"))
}

/// Returns the number that identifies the core of a CPU, which is the first hardware thread of that
/// core.
fn core(all: &Path, cpu: CpuId) -> Option<CpuId> {
    let siblings = all.join(format!("cpu{cpu}/topology/thread_siblings_list"));
    value::<CpuSet>(&siblings)?.first()
}

fn value<T: FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use flate2::read::GzDecoder;
    use usher_topology::{Source, load};

    use super::*;

    /// Compares the LLCs of captured machines with those that hwloc finds.
    #[test]
    fn llcs_of_captured_machines_match_hwloc() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../topology/tests/fixtures");
        for name in ["magny-cours-48", "opteron-cgroup-32", "haswell-offline-20"] {
            let dir = tempfile::tempdir().unwrap();
            let file = fs::File::open(fixtures.join(format!("{name}.tar.gz"))).unwrap();
            tar::Archive::new(GzDecoder::new(file))
                .unpack(dir.path())
                .unwrap();
            let root = dir.path().join(name);
            let topology = load(Source::Capture(root.clone())).unwrap();
            let key = |llc: &Llc| (llc.cpus.first(), llc.cpus.clone(), llc.cores);
            let sorted = |llcs: Vec<Llc>| {
                let mut keys: Vec<_> = llcs.iter().map(key).collect();
                keys.sort();
                keys
            };
            let found = read(&root, &topology.all_cpus()).unwrap();
            let packages: BTreeSet<usize> = found.iter().map(|llc| llc.package).collect();
            assert_eq!(packages.len(), topology.packages.len(), "{name}");
            assert_eq!(sorted(found), sorted(of(&topology)), "{name}");
        }
    }

    #[test]
    fn missing_sysfs_files_mean_unknown_llcs() {
        let nowhere = Path::new("/nowhere");
        assert_eq!(read(nowhere, &CpuSet::range(0, 3)), None);
        assert_eq!(read(nowhere, &CpuSet::default()), Some(vec![]));
    }
}
