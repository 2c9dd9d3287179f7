// SPDX-License-Identifier: MIT OR Apache-2.0
//! Selection and arguments of QEMU and virtiofsd.
//!
//! The system's QEMU is used, unless virtual time is requested and this QEMU is older than version
//! 10. In that case QEMU is fetched from the backports of the Debian release into the cache. The
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

/// The first QEMU with a good interleaving of CPUs under `-icount`.
const VIRTUAL_TIME_LEAST: u32 = 10;
/// Paths of virtiofsd, which distributions install outside of `PATH`.
const VIRTIOFSD: [(&str, VirtiofsdKind); 3] = [
    ("/usr/lib/qemu/virtiofsd", VirtiofsdKind::InC),
    ("/usr/libexec/virtiofsd", VirtiofsdKind::InRust),
    ("/usr/lib/virtiofsd", VirtiofsdKind::InRust),
];
/// The package of the emulator, and its program.
const PACKAGE: &str = "qemu-system-x86";
const PROGRAM: &str = "qemu-system-x86_64";
/// Kind of the emulator in the cache.
const KIND: &str = "emulators";

/// An installed or fetched QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Emulator {
    program: PathBuf,
    version: u32,
    /// Directory where QEMU was unpacked; `None` for the system's QEMU.
    root: Option<PathBuf>,
}

impl Emulator {
    /// The system's QEMU, or a fetched one if the system's is too old for virtual time.
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

    /// A newer QEMU than the system's, from the backports of its release.
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

    /// The program without arguments.
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

/// The two implementations of the file server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VirtiofsdKind {
    /// The C implementation of QEMU up to version 7.
    InC,
    /// The successor of the C implementation, written in Rust.
    InRust,
}

/// virtiofsd, configured to share all files at a listening socket.
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

/// Properties of a guest.
#[derive(Debug)]
pub(crate) struct Guest<'a> {
    pub shape: &'a Shape,
    pub kernel: &'a Path,
    pub memory_mib: usize,
    pub clock: Clock,
    /// The program that the guest's kernel starts.
    pub init: &'a Path,
    /// Additional words for the kernel.
    pub append: &'a str,
}

/// Connections to a guest.
#[derive(Debug)]
pub(crate) struct GuestConnections<'a> {
    /// Abstract address of virtiofsd's socket.
    pub share: &'a str,
    /// The serial console.
    pub console: RawFd,
    /// Ports by name.
    pub ports: [(&'static str, RawFd); 3],
}

impl Guest<'_> {
    /// QEMU's arguments.
    pub fn arguments(&self, wires: &GuestConnections) -> Vec<String> {
        let mut all = Vec::new();
        let mut say = |words: &[&str]| all.extend(words.iter().map(|&word| word.to_owned()));
        // One thread runs all CPUs: with one thread per CPU the guest dies when its kernel patches
        // its code.
        say(&["-accel", "tcg,thread=single"]);
        if let Clock::Instructions { ns, idle } = self.clock {
            let sleep = if idle == IdleTime::Waits { "on" } else { "off" };
            let shift = ns.trailing_zeros();
            say(&["-icount", &format!("shift={shift},sleep={sleep}")]);
        }
        // The default firmware queries CPUID leaf 1F with an undefined ECX; on a machine with dies,
        // QEMU 10 aborts on that query.
        say(&["-bios", "qboot.rom"]);
        // Intel's leaves 4, B and 1F describe threads, dies and caches correctly.
        say(&[
            "-machine",
            "q35",
            "-cpu",
            "max,vendor=GenuineIntel,l3-cache=on",
        ]);
        say(&[
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ]);
        say(&["-m", &format!("{}M", self.memory_mib), "-smp", &self.smp()]);
        for (node, cpus) in self.shape.nodes.iter().enumerate() {
            say(&["-object", &self.memory(node), "-numa", &numa(node, cpus)]);
        }
        say(&[
            "-chardev",
            &format!("socket,id=console,fd={}", wires.console),
        ]);
        say(&["-serial", "chardev:console", "-device", "virtio-serial-pci"]);
        for (name, fd) in wires.ports {
            say(&["-chardev", &format!("socket,id={name},fd={fd}")]);
            say(&[
                "-device",
                &format!("virtserialport,chardev={name},name={name}"),
            ]);
        }
        let share = format!("socket,id=share,path={},abstract=on,tight=on", wires.share);
        say(&["-chardev", &share, "-device"]);
        say(&["vhost-user-fs-pci,queue-size=1024,chardev=share,tag=host"]);
        say(&[
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

    /// Returns the arguments for the memory of a node. The memory must be visible to virtiofsd.
    fn memory(&self, node: usize) -> String {
        let size = self.memory_mib / self.shape.nodes.len();
        format!("memory-backend-memfd,id=memory{node},size={size}M,share=on")
    }

    /// The kernel's command line.
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

fn numa(node: usize, cpus: &CpuSet) -> String {
    let first = cpus.first().unwrap_or_default();
    let last = cpus.last().unwrap_or_default();
    format!("node,nodeid={node},memdev=memory{node},cpus={first}-{last}")
}
