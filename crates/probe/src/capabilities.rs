// SPDX-License-Identifier: MIT OR Apache-2.0
//! Features of the kernel and the machine that Usher can use, as `usher doctor` reports them.
//!
//! [`Capabilities::read`] checks each of eleven features once, in a fixed order. The result states
//! for each whether the feature exists, what was found, and what Usher does with or without the
//! feature.
//!
//! The checks read files, test access rights, and open one perf event on the own process; they
//! change nothing. Some features are inferred from the kernel's configuration or version. An
//! unreadable file counts as a missing feature, and no check returns an error. Of a compressed
//! kernel configuration, at most 16 MiB are unpacked; other files are read as a whole.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use crate::counters::{CounterKind, PerfCounters};
use crate::file;
use crate::machine::{Roots, pressure, usable_cpus};
use crate::text;

/// A feature that may or may not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Capability {
    /// Short name of the feature, as in `usher doctor --json`.
    pub name: &'static str,
    /// Whether Usher can use the feature.
    pub available: bool,
    /// What was found.
    pub found: String,
    /// What Usher does because the feature is present or absent.
    pub consequence: &'static str,
}

/// The features of the kernel and the machine, as `usher doctor` reports them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Capabilities {
    /// The kernel's release.
    pub kernel: String,
    /// The features, in a fixed order.
    pub items: Vec<Capability>,
}

impl Capabilities {
    /// Reads the state of all features.
    pub fn read(roots: &Roots) -> Self {
        let found: [fn(&Roots) -> Capability; 11] = [
            pmu, bpf, sched_ext, cgroup_v2, cpu_idle, resctrl, psi, autogroup, steal, cores,
            allowed,
        ];
        Self {
            kernel: release(roots).unwrap_or_default(),
            items: found.iter().map(|find| find(roots)).collect(),
        }
    }

    /// Returns the feature with this name.
    pub fn get(&self, name: &str) -> Option<&Capability> {
        self.items.iter().find(|item| item.name == name)
    }
}

fn capability(
    name: &'static str,
    available: bool,
    found: impl Into<String>,
    [with, without]: [&'static str; 2],
) -> Capability {
    Capability {
        name,
        available,
        found: found.into(),
        consequence: if available { with } else { without },
    }
}

fn release(roots: &Roots) -> Option<String> {
    let text = file::read(&roots.proc.join("sys/kernel/osrelease")).ok()?;
    Some(text.trim().to_owned())
}

fn pmu(_roots: &Roots) -> Capability {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let opened = PerfCounters::on_exec(CounterKind::Instructions, own);
    let found = match &opened {
        Ok(_) => "hardware counters can count instructions".to_owned(),
        Err(gap) => gap.to_string(),
    };
    let uses = [
        "if a program reports no progress, Usher measures its instructions per second",
        "if a program reports no progress, Usher measures only its completed repetitions or its \
         CPU time; Usher never makes a seat smaller because of CPU time",
    ];
    capability("pmu", opened.is_ok(), found, uses)
}

/// Bits of `CapEff`, from include/uapi/linux/capability.h.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Returns whether this process may load BPF programs that trace the kernel.
fn may_load_bpf(roots: &Roots) -> bool {
    let status = file::read(&roots.proc.join("self/status")).unwrap_or_default();
    let word = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = word.and_then(|word| u64::from_str_radix(word.trim(), 16).ok());
    let has = |bit: u32| held.is_some_and(|held| held >> bit & 1 == 1);
    has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON))
}

/// The inode of the initial pid namespace, `PROC_PID_INIT_INO` of the kernel's `linux/proc_ns.h`.
/// BPF programs get the process numbers of the initial pid namespace.
const INITIAL_PIDS: u64 = 0xEFFF_FFFC;

fn is_numbered_by_container(roots: &Roots) -> bool {
    let pids = std::fs::metadata(roots.proc.join("self/ns/pid"));
    pids.is_ok_and(|pids| pids.ino() != INITIAL_PIDS)
}

fn bpf(roots: &Roots) -> Capability {
    let btf = roots.sys.join("kernel/btf/vmlinux").exists();
    let able = may_load_bpf(roots);
    let found = match (btf, able) {
        (true, true) if is_numbered_by_container(roots) => {
            "BTF exists, and BPF programs may be loaded; in this PID namespace, background \
             programs without their own cgroup count as foreground"
        }
        (true, true) => "the kernel has BTF, and BPF programs may be loaded",
        (true, false) => {
            "the kernel has BTF, but loading BPF programs requires root (CAP_BPF and CAP_PERFMON)"
        }
        (false, _) => "no /sys/kernel/btf/vmlinux",
    };
    let uses = [
        "Usher distinguishes background from foreground work for every request and process, \
         within milliseconds",
        "Usher distinguishes background from foreground work by /proc, ten times per second, and \
         guesses the owner of disk requests",
    ];
    capability("bpf", btf && able, found, uses)
}

fn sched_ext(roots: &Roots) -> Capability {
    let dir = roots.sys.join("kernel/sched_ext");
    let btf = roots.sys.join("kernel/btf/vmlinux").exists();
    let read = |name: &str| file::read(&dir.join(name)).map(|text| text.trim().to_owned());
    let found = match (read("state"), read("root/ops")) {
        (Ok(state), _) if !btf => {
            format!("state: {state}, but /sys/kernel/btf/vmlinux does not exist")
        }
        (Ok(state), Ok(name)) => format!("state: {state}, the loaded scheduler is '{name}'"),
        (Ok(state), Err(_)) => format!("state: {state}"),
        (Err(_), _) => "this kernel lacks sched_ext".to_owned(),
    };
    let uses = [
        "Usher's own scheduler can assign CPUs to programs and lend idle CPUs at once (soft seats)",
        "Usher assigns CPUs to programs by affinity masks",
    ];
    capability("sched_ext", dir.exists() && btf, found, uses)
}

/// The mount point of cgroup v2, from `/proc/self/mounts`.
fn cgroup2_mount(roots: &Roots) -> Option<String> {
    let mounts = file::read(&roots.proc.join("self/mounts")).ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let dir = fields.next()?;
        (fields.next()? == "cgroup2").then(|| dir.to_owned())
    })
}

/// Returns the path of a directory of the machine; directories in `/sys` are taken below the
/// configured root of `/sys`.
fn rooted(roots: &Roots, dir: &str) -> std::path::PathBuf {
    match Path::new(dir).strip_prefix("/sys") {
        Ok(below) => roots.sys.join(below),
        Err(_) => dir.into(),
    }
}

fn cgroup_v2(roots: &Roots) -> Capability {
    let mount = cgroup2_mount(roots);
    let writable = |dir: &str| {
        let mode = rustix::fs::Access::WRITE_OK;
        rustix::fs::access(rooted(roots, dir), mode).is_ok()
    };
    let (available, found) = match &mount {
        None => (false, "not mounted".to_owned()),
        Some(dir) if writable(dir) => (true, format!("{dir}, writable")),
        Some(dir) => (
            false,
            format!("{dir}, not writable: start Usher in a delegated systemd scope"),
        ),
    };
    let uses = [
        "Usher tracks, freezes and accounts the processes of a program together",
        "Usher tracks programs by their pids, and misses part of the CPU time of orphaned \
         processes",
    ];
    capability("cgroup-v2", available, found, uses)
}

fn resctrl(roots: &Roots) -> Capability {
    let dir = roots.sys.join("fs/resctrl");
    let mounted = dir.join("schemata").exists();
    let found = match (mounted, dir.exists()) {
        (true, _) => "mounted",
        (false, true) => "supported by the kernel, but not mounted",
        (false, false) => "not supported by this kernel or processor",
    };
    let uses = [
        "Usher can limit the share of a cache that a program fills",
        "Usher assigns CPUs of different caches to programs that compete for a cache",
    ];
    capability("resctrl", mounted, found, uses)
}

fn psi(roots: &Roots) -> Capability {
    let read = pressure(&roots.proc, "cpu");
    let found = match &read {
        Some(p) => format!(
            "CPU pressure {:.1} % in the last ten seconds",
            100.0 * p.some_10s
        ),
        None => "no /proc/pressure".to_owned(),
    };
    let uses = [
        "Usher detects immediately that a program waits for CPUs",
        "Usher detects only by a program's runnable threads that the program waits for CPUs",
    ];
    capability("psi", read.is_some(), found, uses)
}

/// The feature `cpu_idle`: whether the kernel can limit a group of processes to idle CPU time, by
/// cgroup v1, or by cgroup v2 if the cpu controller is enabled in the root cgroup. Whether Usher
/// uses `cpu.idle` for a program depends on the program's cgroup, which `usher doctor` reports in a
/// separate line.
fn cpu_idle(roots: &Roots) -> Capability {
    let mounts = file::read(&roots.proc.join("self/mounts")).unwrap_or_default();
    let v1 = mounts.lines().find_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        let is_cpu = *fields.get(2)? == "cgroup" && fields.get(3)?.split(',').any(|o| o == "cpu");
        is_cpu.then(|| fields[1].to_owned())
    });
    let v2 = cgroup2_mount(roots).filter(|dir| {
        let control = rooted(roots, dir).join("cgroup.subtree_control");
        file::read(&control).is_ok_and(|list| list.split_whitespace().any(|name| name == "cpu"))
    });
    let (there, found) = match (&v1, &v2) {
        (_, Some(dir)) => (true, format!("cpu controller of cgroup v2 at {dir}")),
        (Some(dir), None) => (true, format!("cpu controller of cgroup v1 at {dir}")),
        (None, None) => (false, "no cpu controller".to_owned()),
    };
    let uses = [
        "background work in its own cgroup yields a CPU immediately to any other work",
        "Usher lowers the priority of each thread of background work, and the priority of the \
         program's autogroup if the program has a session of its own",
    ];
    capability("cpu.idle", there, found, uses)
}

fn autogroup(roots: &Roots) -> Capability {
    let path = roots.proc.join("sys/kernel/sched_autogroup_enabled");
    let on = file::read(&path).is_ok_and(|text| text.trim() == "1");
    let found = if on { "on" } else { "off" };
    let uses = [
        "nice and SCHED_IDLE have no effect between sessions, so Usher uses cgroups",
        "nice and SCHED_IDLE have effect between sessions",
    ];
    capability("autogroup", on, found, uses)
}

fn steal(roots: &Roots) -> Capability {
    let path = roots.proc.join("stat");
    let all = file::parse(&path, "the machine's stat", text::machine_stat);
    let ticks = all.map(|(all, _)| all).unwrap_or_default();
    let percent = 100.0 * ticks.steal as f64 / (ticks.steal + ticks.busy).max(1) as f64;
    let found = format!("{percent:.2} % of the demanded CPU time since boot");
    let uses = [
        "other virtual machines use the same CPUs, so measured rates are noisier",
        "measured rates need no correction",
    ];
    capability("steal", ticks.steal > 0, found, uses)
}

fn cores(roots: &Roots) -> Capability {
    let capacities = cpu_capacities(roots);
    let unequal = capacities.iter().any(|c| Some(c) != capacities.first());
    let found = match (capacities.is_empty(), unequal) {
        (true, _) => "the kernel reports no capacities, so all cores count as equal".to_owned(),
        (false, true) => "cores of different capacities".to_owned(),
        (false, false) => "all cores are equal".to_owned(),
    };
    let uses = [
        "Usher counts each core by its capacity",
        "Usher counts each core as one",
    ];
    capability("hybrid-cores", unequal, found, uses)
}

/// Returns the capacities of the usable CPUs (Arm, and hybrid x86 since 6.12). Without capacities,
/// returns two different values if the kernel lists efficient and performance cores.
fn cpu_capacities(roots: &Roots) -> Vec<u64> {
    let (core, atom) = ("devices/cpu_core", "devices/cpu_atom");
    if roots.sys.join(core).exists() && roots.sys.join(atom).exists() {
        return vec![1, 2];
    }
    let cpus = usable_cpus(roots).unwrap_or_default();
    let capacity = |cpu: u32| {
        let path = format!("devices/system/cpu/cpu{cpu}/cpu_capacity");
        let text = file::read(&roots.sys.join(path)).ok()?;
        text.trim().parse().ok()
    };
    cpus.iter().filter_map(capacity).collect()
}

fn allowed(roots: &Roots) -> Capability {
    let online = roots.sys.join("devices/system/cpu/online");
    let online = file::read(&online).unwrap_or_default();
    let (found, all) = match usable_cpus(roots) {
        Ok(cpus) => (
            format!("{cpus} of {}", online.trim()),
            cpus.to_string() == online.trim(),
        ),
        Err(error) => (error.to_string(), false),
    };
    let uses = [
        "Usher may use every online CPU",
        "Usher uses only the CPUs that this container or session may use",
    ];
    capability("all-cpus", all, found, uses)
}

/// Returns whether an option is set in the running kernel's configuration; `None` if no
/// configuration is found.
pub(crate) fn kernel_config(roots: &Roots, option: &str) -> Option<bool> {
    let text = packed_config(roots).or_else(|| {
        let name = format!("config-{}", release(roots)?);
        file::read(&roots.boot.join(name)).ok()
    })?;
    let mut values = text.lines().filter_map(|l| l.strip_prefix(option));
    Some(values.any(|value| matches!(value, "=y" | "=m")))
}

fn packed_config(roots: &Roots) -> Option<String> {
    let file = std::fs::File::open(roots.proc.join("config.gz")).ok()?;
    let mut text = String::new();
    let unpacked = flate2::read::GzDecoder::new(file);
    // Limit of the unpacked size; a kernel's configuration is about 300 KB.
    unpacked.take(16 << 20).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with these files; `/proc`, `/sys` and `/boot` are below one directory.
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
    fn a_machine_without_features_is_described() {
        let (_dir, roots) = machine(&[]);
        let all = Capabilities::read(&roots);
        for item in all.items.iter().filter(|item| item.name != "pmu") {
            assert!(!item.available, "{item:?}");
            assert!(!item.found.is_empty() && !item.consequence.is_empty());
        }
        let json = serde_json::to_value(&all).unwrap();
        assert_eq!(json["items"][3]["name"], "cgroup-v2");
        assert_eq!(json["items"][3]["found"], "not mounted");
    }

    #[test]
    fn a_machine_with_all_features_is_described() {
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n\
                      cgroup /mnt/cpuset cgroup rw,relatime,cpuset 0 0\n";
        let status = "Name:\tx\nTgid:\t1\nCpus_allowed_list:\t0-3\n\
                      voluntary_ctxt_switches:\t0\nnonvoluntary_ctxt_switches:\t0\n";
        let (_dir, roots) = machine(&[
            ("proc/self/mounts", mounts),
            ("proc/self/status", status),
            ("proc/stat", "cpu 75 0 0 0 0 0 0 25\n"),
            (
                "proc/pressure/cpu",
                "some avg10=5.00 avg60=0 avg300=0 total=1\n",
            ),
            ("proc/sys/kernel/sched_autogroup_enabled", "1\n"),
            ("proc/sys/kernel/osrelease", "6.12.1\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n"),
            ("sys/fs/resctrl/schemata", "L3:0=ff\n"),
            ("sys/kernel/sched_ext/state", "disabled\n"),
            ("sys/kernel/btf/vmlinux", ""),
            ("sys/devices/system/cpu/online", "0-1\n"),
            ("sys/devices/system/cpu/cpu0/cpu_capacity", "1024\n"),
            ("sys/devices/system/cpu/cpu1/cpu_capacity", "512\n"),
        ]);
        let all = Capabilities::read(&roots);
        assert_eq!(all.kernel, "6.12.1");
        for name in [
            "sched_ext",
            "cgroup-v2",
            "resctrl",
            "psi",
            "autogroup",
            "steal",
            "hybrid-cores",
            "all-cpus",
        ] {
            assert!(all.get(name).unwrap().available, "{:?}", all.get(name));
        }
        let found = |name: &str| all.get(name).unwrap().found.clone();
        assert_eq!(
            found("steal"),
            "25.00 % of the demanded CPU time since boot"
        );
        assert_eq!(found("psi"), "CPU pressure 5.0 % in the last ten seconds");
        assert_eq!(found("sched_ext"), "state: disabled");
    }

    #[test]
    fn sched_ext_needs_btf_and_names_the_scheduler() {
        let state = ("sys/kernel/sched_ext/state", "enabled\n");
        let ops = ("sys/kernel/sched_ext/root/ops", "bpfland_1.1.4\n");
        let btf = ("sys/kernel/btf/vmlinux", "");
        let described = |files: &[(&str, &str)]| {
            let (_dir, roots) = machine(files);
            let described = sched_ext(&roots);
            (described.available, described.found)
        };
        let without = "state: enabled, but /sys/kernel/btf/vmlinux does not exist";
        assert_eq!(described(&[state, ops]), (false, without.to_owned()));
        let named = "state: enabled, the loaded scheduler is 'bpfland_1.1.4'";
        assert_eq!(described(&[state, ops, btf]), (true, named.to_owned()));
        assert_eq!(
            described(&[btf]),
            (false, "this kernel lacks sched_ext".to_owned())
        );
    }

    #[test]
    fn the_kernel_configuration_is_found_packed_or_plain() {
        let text = "CONFIG_A=y\nCONFIG_AB=m\n# CONFIG_B is not set\n";
        let release = ("proc/sys/kernel/osrelease", "6.1\n");
        let (dir, roots) = machine(&[release, ("boot/config-6.1", text)]);
        let check = || {
            let set = ["CONFIG_A", "CONFIG_AB", "CONFIG_B"].map(|o| kernel_config(&roots, o));
            assert_eq!(set, [Some(true), Some(true), Some(false)]);
        };
        check();
        std::fs::remove_dir_all(dir.path().join("boot")).unwrap();
        assert_eq!(kernel_config(&roots, "CONFIG_A"), None);
        let packed = std::fs::File::create(dir.path().join("proc/config.gz")).unwrap();
        let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, text.as_bytes()).unwrap();
        packed.finish().unwrap();
        check();
    }
}
