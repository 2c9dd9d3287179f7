// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes small copies of `/sys` for tests.

use std::fs;
use std::path::Path;

use usher_model::CpuSet;

/// A copy of `/sys` in a temporary directory.
pub struct Capture {
    pub dir: tempfile::TempDir,
}

/// Cores of one kind; each core has one CPU.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cores {
    pub count: u32,
    /// Cores that share an L2.
    pub l2_sharers: u32,
    /// Whether the cores share the L3 of the machine.
    pub has_l3: bool,
    /// `cpu_capacity`; 0: absent.
    pub capacity: u32,
    /// `acpi_cppc/highest_perf`; 0: absent.
    pub perf: u32,
    /// Maximum frequency in MHz; 0: absent.
    pub mhz: u32,
    /// Folder of the type's performance counters: `cpu_core`; empty: absent.
    pub counters: &'static str,
}

fn mask(cpus: &CpuSet) -> String {
    let word = |place: u32| -> u32 {
        (0..32)
            .filter(|bit| cpus.contains(place * 32 + bit))
            .map(|bit| 1 << bit)
            .sum()
    };
    format!("{:08x},{:08x}", word(1), word(0))
}

impl Capture {
    /// Writes a machine with one package and one NUMA node.
    pub fn new(kinds: &[Cores]) -> Self {
        let capture = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let count: u32 = kinds.iter().map(|kind| kind.count).sum();
        let all = CpuSet::range(0, count - 1);
        let mut l3 = CpuSet::new();
        let mut first = 0;
        for kind in kinds.iter().filter(|kind| kind.count > 0) {
            if kind.has_l3 {
                l3.extend(first..first + kind.count);
            }
            first += kind.count;
        }
        first = 0;
        for kind in kinds {
            for cpu in first..first + kind.count {
                let group = first + (cpu - first) / kind.l2_sharers * kind.l2_sharers;
                let l2 = CpuSet::range(group, group + kind.l2_sharers - 1);
                capture.core(cpu, kind, &all, &l2, &l3);
            }
            if !kind.counters.is_empty() {
                let cpus = format!("{first}-{}\n", first + kind.count - 1);
                capture.write(&format!("sys/devices/{}/cpus", kind.counters), &cpus);
            }
            first += kind.count;
        }
        for list in ["online", "possible", "present"] {
            capture.write(
                &format!("sys/devices/system/cpu/{list}"),
                &format!("{all}\n"),
            );
        }
        capture.node(0, &all, 16 << 20);
        capture.write("proc/meminfo", "MemTotal: 16777216 kB\n");
        capture
    }

    fn core(&self, cpu: u32, kind: &Cores, all: &CpuSet, l2: &CpuSet, l3: &CpuSet) {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}");
        let put = |file: &str, text: String| self.write(&format!("{folder}/{file}"), &text);
        let own = mask(&CpuSet::single(cpu));
        put("topology/physical_package_id", "0\n".to_owned());
        put("topology/core_id", format!("{cpu}\n"));
        put("topology/core_cpus", own.clone());
        put("topology/thread_siblings", own);
        put("topology/package_cpus", mask(all));
        put("topology/core_siblings", mask(all));
        let cache = |index: u32, size: &str, sharers: &CpuSet| {
            put(&format!("cache/index{index}/level"), index.to_string());
            put(&format!("cache/index{index}/type"), "Unified\n".to_owned());
            put(&format!("cache/index{index}/size"), size.to_owned());
            put(&format!("cache/index{index}/shared_cpu_map"), mask(sharers));
        };
        cache(2, "2048K\n", l2);
        if kind.has_l3 {
            cache(3, "16384K\n", l3);
        }
        if kind.capacity > 0 {
            put("cpu_capacity", kind.capacity.to_string());
        }
        if kind.perf > 0 {
            put("acpi_cppc/highest_perf", kind.perf.to_string());
        }
        if kind.mhz > 0 {
            put("cpufreq/cpuinfo_max_freq", format!("{}000\n", kind.mhz));
        }
    }

    /// Writes a NUMA node. `online` of the nodes is a range from 0 to the last written node.
    pub fn node(&self, number: u32, cpus: &CpuSet, kib: u64) {
        let folder = format!("sys/devices/system/node/node{number}");
        self.write(&format!("{folder}/cpumap"), &mask(cpus));
        let memory = format!("Node {number} MemTotal: {kib} kB\n");
        self.write(&format!("{folder}/meminfo"), &memory);
        let range = format!("0-{number}\n");
        self.write("sys/devices/system/node/online", &range);
    }

    /// Writes a file.
    pub fn write(&self, file: &str, text: &str) {
        let path = self.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}
