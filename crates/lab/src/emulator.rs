// SPDX-License-Identifier: MIT OR Apache-2.0
//! Selects QEMU and virtiofsd, and creates their arguments.
//!
//! The lab uses the system's QEMU. If virtual time is requested and the system's QEMU is older than
//! version 10, QEMU is fetched from the backports of the host's Debian release into the cache. The
//! fetch has no time limit. A missing or unsuitable program is an error that names the remedy. The
//! arguments were determined by experiment; docs/lab.md gives the reasons.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use usher_model::CpuSet;

use crate::LabError;
use crate::apt::{Apt, debian_release, run};
use crate::cache::LabCache;
use crate::clock::tsc_khz;
use crate::shape::Shape;
use crate::vm::{Clock, IdleTime};

/// The first version of QEMU that interleaves the guest's CPUs well in virtual time (`-icount`).
const VIRTUAL_TIME_LEAST: u32 = 10;
/// Paths of virtiofsd, which distributions install outside of `PATH`, and the implementation at
/// each path.
const VIRTIOFSD: [(&str, VirtiofsdKind); 3] = [
    ("/usr/lib/qemu/virtiofsd", VirtiofsdKind::InC),
    ("/usr/libexec/virtiofsd", VirtiofsdKind::InRust),
    ("/usr/lib/virtiofsd", VirtiofsdKind::InRust),
];
/// The Debian package of the emulator. The next constant is its program.
const PACKAGE: &str = "qemu-system-x86";
const PROGRAM: &str = "qemu-system-x86_64";
/// Kind of emulators in the cache.
const KIND: &str = "emulators";

/// An installed or fetched QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Emulator {
    program: PathBuf,
    version: u32,
    /// The directory into which QEMU was unpacked; `None` for the system's QEMU.
    root: Option<PathBuf>,
}

impl Emulator {
    /// Returns the system's QEMU. If virtual time is requested and the system's QEMU is too old for
    /// it, returns a fetched QEMU.
    pub fn find(cache: &LabCache, virtual_time: bool) -> Result<Self, LabError> {
        let system = Self::of(PathBuf::from(PROGRAM), None).map_err(|_| LabError::Missing {
            what: format!("{PROGRAM} cannot be run"),
            remedy: "install the programs that the lab needs: scripts/setup lab".to_owned(),
        })?;
        if !virtual_time || system.version >= VIRTUAL_TIME_LEAST {
            return Ok(system);
        }
        let root = Self::fetched(cache)?;
        Self::of(root.join("usr/bin").join(PROGRAM), Some(root))
    }

    fn of(program: PathBuf, root: Option<PathBuf>) -> Result<Self, LabError> {
        let mut emulator = Self {
            program,
            version: 0,
            root,
        };
        let message = run(
            "querying QEMU's version",
            emulator.command().arg("--version"),
        )?;
        let number = message
            .split("version ")
            .nth(1)
            .and_then(|rest| rest.split('.').next());
        let number = number.and_then(|number| number.parse().ok());
        emulator.version = number.ok_or_else(|| LabError::Tool {
            doing: "querying QEMU's version".to_owned(),
            message,
        })?;
        Ok(emulator)
    }

    /// Returns the directory of a QEMU from the backports of the host's Debian release. Fetches it
    /// if it is not cached.
    fn fetched(cache: &LabCache) -> Result<PathBuf, LabError> {
        let name = format!("qemu-{VIRTUAL_TIME_LEAST}");
        cache.get_or_add(KIND, &name, |into| {
            let release = debian_release()?;
            let backports = format!("{release}-backports");
            eprintln!(
                "lab: fetching QEMU from {backports}, because virtual time requires version \
                 {VIRTUAL_TIME_LEAST}"
            );
            let apt = Apt::with_suites(&[&release, &backports], cache.scratch()?)?;
            apt.unpack_with_needs(PACKAGE, &backports, into)?;
            let fetched = Self::of(into.join("usr/bin").join(PROGRAM), Some(into.to_owned()))?;
            match fetched.version >= VIRTUAL_TIME_LEAST {
                true => Ok(()),
                false => Err(LabError::Missing {
                    what: format!("{backports} has only QEMU {}", fetched.version),
                    remedy: format!("install QEMU {VIRTUAL_TIME_LEAST}, or omit --virtual-time"),
                }),
            }
        })
    }

    /// Returns the command that starts QEMU, without arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(root) = &self.root {
            let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
            let libraries = libraries.map(|dir| root.join(dir).into_os_string());
            command.env("LD_LIBRARY_PATH", libraries.join(&OsString::from(":")));
            for data in ["usr/share/qemu", "usr/share/seabios"] {
                command.arg("-L").arg(root.join(data));
            }
        }
        command
    }
}

/// The two implementations of the file server virtiofsd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VirtiofsdKind {
    /// The C implementation of QEMU up to version 7.
    InC,
    /// The implementation in Rust, which has replaced the C implementation.
    InRust,
}

/// Returns the command that starts virtiofsd, which shares all files of the host at the listening
/// socket `socket`.
pub(crate) fn virtiofsd(socket: RawFd) -> Result<Command, LabError> {
    let found = VIRTIOFSD.iter().find(|(path, _)| Path::new(path).exists());
    let (path, kind) = found.ok_or_else(|| LabError::Missing {
        what: "virtiofsd is not installed".to_owned(),
        remedy: "install the programs that the lab needs: scripts/setup lab".to_owned(),
    })?;
    let mut command = Command::new(path);
    command.arg(format!("--fd={socket}"));
    match kind {
        VirtiofsdKind::InC => command.args([
            "-o",
            "source=/,cache=always,sandbox=chroot,announce_submounts,log_level=err",
            "--thread-pool-size=2",
        ]),
        VirtiofsdKind::InRust => command.args([
            "--shared-dir=/",
            "--cache=always",
            "--sandbox=chroot",
            "--announce-submounts",
            "--log-level=error",
            "--thread-pool-size=2",
        ]),
    };
    Ok(command)
}

/// The properties of a guest that determine QEMU's arguments.
#[derive(Debug)]
pub(crate) struct Guest<'a> {
    pub shape: &'a Shape,
    pub kernel: &'a Path,
    pub memory_mib: usize,
    pub clock: Clock,
    /// The program that the guest's kernel starts.
    pub init: &'a Path,
    /// Words that are appended to the kernel's command line.
    pub append: &'a str,
}

/// The connections between a guest and the host.
#[derive(Debug)]
pub(crate) struct GuestConnections<'a> {
    /// Name of virtiofsd's socket in the abstract namespace.
    pub share: &'a str,
    /// Descriptor of the serial console.
    pub console: RawFd,
    /// The names and descriptors of the virtio ports.
    pub ports: [(&'static str, RawFd); 3],
}

impl Guest<'_> {
    /// Returns QEMU's arguments.
    pub fn arguments(&self, wires: &GuestConnections) -> Vec<String> {
        let mut all = Vec::new();
        let mut add = |words: &[&str]| all.extend(words.iter().map(|&word| word.to_owned()));
        // A single thread runs all CPUs of the guest. With a thread per CPU, the guest dies when
        // its kernel patches its own code.
        add(&["-accel", "tcg,thread=single"]);
        for word in icount(self.clock) {
            add(&[&word]);
        }
        // The default firmware queries CPUID leaf 1F with an undefined value in ECX, and QEMU 10
        // aborts on that query if the machine has dies.
        add(&["-bios", "qboot.rom"]);
        // With the vendor Intel, QEMU describes threads, dies and caches correctly by CPUID leaves
        // 4, B and 1F.
        add(&[
            "-machine",
            "q35",
            "-cpu",
            "max,vendor=GenuineIntel,l3-cache=on",
        ]);
        add(&[
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ]);
        add(&["-m", &format!("{}M", self.memory_mib), "-smp", &self.smp()]);
        for (node, cpus) in self.shape.nodes.iter().enumerate() {
            add(&["-object", &self.memory(node), "-numa", &numa(node, cpus)]);
        }
        add(&[
            "-chardev",
            &format!("socket,id=console,fd={}", wires.console),
        ]);
        add(&["-serial", "chardev:console", "-device", "virtio-serial-pci"]);
        for (name, fd) in wires.ports {
            add(&["-chardev", &format!("socket,id={name},fd={fd}")]);
            add(&[
                "-device",
                &format!("virtserialport,chardev={name},name={name}"),
            ]);
        }
        let share = format!("socket,id=share,path={},abstract=on,tight=on", wires.share);
        add(&["-chardev", &share, "-device"]);
        add(&["vhost-user-fs-pci,queue-size=1024,chardev=share,tag=host"]);
        add(&[
            "-kernel",
            &self.kernel.to_string_lossy(),
            "-append",
            &self.words(),
        ]);
        all
    }

    fn smp(&self) -> String {
        let Shape {
            packages,
            dies,
            cores,
            threads,
            ..
        } = self.shape;
        let cpus = self.shape.cpus();
        format!("{cpus},sockets={packages},dies={dies},cores={cores},threads={threads}")
    }

    /// Returns the argument for the memory of a NUMA node. The memory is shared, because virtiofsd
    /// must access it.
    fn memory(&self, node: usize) -> String {
        let size = self.memory_mib / self.shape.nodes.len();
        format!("memory-backend-memfd,id=memory{node},size={size}M,share=on")
    }

    /// Returns the kernel's command line.
    fn words(&self) -> String {
        format!(
            "root=host rootfstype=virtiofs rw init={} console=ttyS0 quiet panic=-1 \
             mitigations=off tsc=reliable tsc_early_khz={} \
             cpu_init_udelay=0 nowatchdog nokaslr {} -- {}",
            self.init.display(),
            tsc_khz(self.clock),
            self.append,
            crate::guest::WORD
        )
    }
}

/// Returns QEMU's arguments for the guest's clock; none for the host's clock.
pub(crate) fn icount(clock: Clock) -> Vec<String> {
    let Clock::Instructions { ns, idle } = clock else {
        return Vec::new();
    };
    let sleep = if idle == IdleTime::Waits { "on" } else { "off" };
    let shift = ns.trailing_zeros();
    vec!["-icount".to_owned(), format!("shift={shift},sleep={sleep}")]
}

fn numa(node: usize, cpus: &CpuSet) -> String {
    let first = cpus.first().unwrap_or_default();
    let last = cpus.last().unwrap_or_default();
    format!("node,nodeid={node},memdev=memory{node},cpus={first}-{last}")
}
