// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz targets for texts that the kernel provides, such as `/proc/PID/stat`. Parts of these texts
//! may be arbitrary bytes, because programs choose their own names, command lines, environments and
//! executables.

use std::fs;
use std::path::Path;

use usher_act::{ActConfig, Actuator};
use usher_fuzz::fuzz;
use usher_model::{ProcessId, ProcessTree, ProgramId};
use usher_probe::{
    Capabilities, MachineProbe, ProbeConfig, ProcessFacts, ProgramProbe, Roots, command_of,
    identify,
};

/// A PID above the kernel's limit. No process has this PID, so code under test cannot change a
/// process of this machine.
const PID: i32 = 0x7fff_fff0;

const STAT: &str = "2147483632 (a) b) S 1 42 42 0 -1 4194560 100 0 0 0 7 3 0 0 20 0 1 0 4711 1000 10 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
const STATUS: &str = "Name:\ta) b\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t42\nNSpid:\t42\t7\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t4 24 1000 \nThreads:\t1\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
const MOUNTS: &str = "24 30 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n25 30 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n26 30 0:24 /a\\040b /x rw shared:2 master:1 - cgroup cgroup rw,cpuset\n";

/// A directory of files, of which one is fuzzed per input. The first byte of an input, modulo the
/// number of files, selects the file. That file gets the rest of the input, and each other file
/// gets its valid text.
struct FuzzedFiles<'a> {
    root: &'a Path,
    files: &'a [(&'a str, &'a [u8])],
}

impl FuzzedFiles<'_> {
    fn samples(&self) -> Vec<Vec<u8>> {
        let numbered = self.files.iter().enumerate();
        let sample = |(at, (_, text)): (usize, &(&str, &[u8]))| {
            let mut sample = vec![at as u8];
            sample.extend_from_slice(text);
            sample
        };
        numbered.map(sample).collect()
    }

    fn write(&self, input: &[u8]) {
        let (which, content) = input.split_first().unwrap_or((&0, b""));
        let changed = usize::from(*which) % self.files.len();
        for (at, (file, text)) in self.files.iter().enumerate() {
            let path = self.root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, if at == changed { content } else { text }).unwrap();
        }
    }

    fn fuzz(&self, name: &str, mut target: impl FnMut() + Send) {
        let samples = self.samples();
        let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
        fuzz(name, &samples, |input| {
            self.write(input);
            target();
        });
    }
}

#[test]
fn processes() {
    let dir = tempfile::tempdir().unwrap();
    let of = |file: &str| format!("{PID}/{file}");
    let [stat, status, cmdline, environ, exe] =
        ["stat", "status", "cmdline", "environ", "exe"].map(of);
    let task = format!("{PID}/task/{PID}/stat");
    let schedstat = format!("{PID}/task/{PID}/schedstat");
    let executable = fs::read("/bin/true").unwrap_or_default();
    let files: [(&str, &[u8]); 7] = [
        (&stat, STAT.as_bytes()),
        (&status, STATUS.as_bytes()),
        (&cmdline, b"x264\0--threads\08\0in.y4m\0-o\0out\0"),
        (&environ, b"OMP_NUM_THREADS=8\0PATH=/bin\0=\0"),
        (&exe, &executable[..executable.len().min(8192)]),
        (&task, STAT.as_bytes()),
        (&schedstat, b"123456 7890 12\n"),
    ];
    let files = FuzzedFiles {
        root: dir.path(),
        files: &files,
    };
    files.fuzz("processes", || {
        let _ = ProcessFacts::read(dir.path(), PID);
        if let Ok(command) = command_of(dir.path(), PID)
            && let Ok(key) = identify(&command)
        {
            assert!(key.executable.len() < 4096, "{key:?}");
        }
        follow(dir.path());
    });
}

/// Samples a process tree by the functions that the daemon uses.
fn follow(proc_root: &Path) {
    let home = ProcessTree {
        program: ProgramId(1),
        root: ProcessId {
            pid: PID,
            start_ticks: 4711,
        },
        cgroup: None,
    };
    let config = ProbeConfig {
        proc_root: proc_root.to_owned(),
        ..ProbeConfig::default()
    };
    if let Ok(mut probe) = ProgramProbe::open(&home, config) {
        let _ = probe.sample(1_000_000_000, 0.0);
        let _ = probe.has_ended();
    }
}

#[test]
fn the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let files: [(&str, &[u8]); 7] = [
        ("proc/stat", b"cpu  10 0 5 100 1 0 0 2 0 0\ncpu0 5 0 2 50 0 0 0 1 0 0\ncpu1 5 0 3 50 1 0 0 1 0 0\nctxt 12\n"),
        ("proc/pressure/cpu", b"some avg10=0.12 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"),
        ("proc/self/status", STATUS.as_bytes()),
        ("proc/self/mounts", b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"),
        ("proc/sys/kernel/osrelease", b"6.18.0-rc1+\n"),
        ("sys/devices/system/cpu/online", b"0-1\n"),
        ("boot/config-6.18.0-rc1+", b"CONFIG_SCHED_CLASS_EXT=y\n# CONFIG_RT_GROUP_SCHED is not set\n"),
    ];
    let roots = Roots {
        proc: dir.path().join("proc"),
        sys: dir.path().join("sys"),
        boot: dir.path().join("boot"),
    };
    let files = FuzzedFiles {
        root: dir.path(),
        files: &files,
    };
    files.fuzz("the_machine", || {
        let mut probe = MachineProbe::new(&roots);
        for _ in 0..2 {
            let _ = probe.sample();
        }
        let _ = usher_probe::usable_cpus(&roots);
        Capabilities::read(&roots);
    });
}

#[test]
fn mounts_and_cgroups() {
    let dir = tempfile::tempdir().unwrap();
    let stat = STAT.replace(&PID.to_string(), "7");
    let files: [(&str, &[u8]); 5] = [
        ("proc/self/mountinfo", MOUNTS.as_bytes()),
        ("proc/self/stat", stat.as_bytes()),
        ("proc/7/cgroup", b"1:cpu,cpuacct:/a\n0::/user.slice/a b\n"),
        ("proc/sys/kernel/random/boot_id", b"f00\n"),
        ("sys/devices/system/cpu/online", b"0-1\n"),
    ];
    let mut config = ActConfig::new(dir.path().join("run"));
    config.cgroup_root = dir.path().join("cgroup");
    config.proc_root = dir.path().join("proc");
    config.sys_root = dir.path().join("sys");
    config.systemd_dir = dir.path().join("nonexistent");
    let files = FuzzedFiles {
        root: dir.path(),
        files: &files,
    };
    files.fuzz("mounts_and_cgroups", || {
        // The actuator is dropped at once. It has changed nothing, so it has nothing to undo.
        let _ = Actuator::open(config.clone());
        let _ = fs::remove_dir_all(&config.runtime_dir);
    });
}
