// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a guest with systemd in QEMU, from its boot to the end of its job.
//!
//! 1. Build or find the disk of the Debian release (`image`), and build the disk with the installed
//!    files (`product`).
//! 2. Start QEMU with 2 GiB of memory and the two disks. Changes of the disks are discarded.
//! 3. Copy the output of the job, which arrives at a serial line, until its last line, which
//!    contains the exit status. The last 64 KiB of the console are kept for the result.
//! 4. Kill QEMU when the job or QEMU has ended, or at the time limit.
//!
//! The time limit begins with the start of QEMU; step 1 has no limit. The guest is started once.
//! The end of QEMU and the time limit are results, not errors.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::image::{self, Suite};
use super::product::{Disk, LAST_LINE};
use crate::LabError;
use crate::cache::LabCache;
use crate::clock::tsc_khz;
use crate::emulator::{Emulator, icount};
use crate::kernels::{self, Kernel, KernelChoice};
use crate::session::{KilledChild, spawn};
use crate::shape::Shape;
use crate::vm::{Clock, GuestEnd, GuestOutcome};

const CHUNK_BYTES: usize = 64 << 10;
/// Maximum size of the kept end of the console output, in bytes.
const CONSOLE_BYTES: usize = 64 << 10;
/// Memory of the guest in MiB.
const MEMORY_MIB: usize = 2048;

/// A guest with systemd and its job.
#[derive(Debug, Clone)]
pub struct Guest {
    /// The Debian release of the guest.
    pub suite: Suite,
    /// Debian packages that the guest has in addition to the packages of all guests.
    pub packages: Vec<String>,
    /// The kernel.
    pub kernel: GuestKernel,
    /// The machine.
    pub shape: Shape,
    /// Source of the guest's clock.
    pub clock: Clock,
    /// The directory of the host with the installed files. The guest has these files at
    /// `/usr/local`.
    pub tree: PathBuf,
    /// The command that runs as root when the guest has booted.
    pub job: Vec<String>,
    /// Maximum time from the start of the guest to its end.
    pub timeout: Duration,
    /// The folder of the cache of disks and kernels; `None` selects the user's cache.
    pub cache: Option<PathBuf>,
}

/// A kernel of a guest with systemd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestKernel {
    /// One of the kernels with sched_ext that guests without systemd also run.
    SchedExt(KernelChoice),
    /// The kernel of the Debian release.
    Stock,
}

impl Guest {
    /// Boots the guest and copies the output of its job. The guest is killed when the job
    /// has ended.
    ///
    /// # Errors
    /// If the guest cannot be started.
    pub fn run(&self, output: &mut dyn Write) -> Result<GuestOutcome, LabError> {
        let cache = LabCache::open(self.cache.as_deref())?;
        let disk = image::prepare(&cache, self.suite, &self.packages)?;
        let kernel = match &self.kernel {
            GuestKernel::SchedExt(wanted) => kernels::find(&cache, wanted)?,
            GuestKernel::Stock => kernels::stock(&cache, self.suite.name())?,
        };
        let emulator = Emulator::find(&cache, self.clock != Clock::Host)?;
        let product = Disk::build(&self.tree, &kernel, &self.job)?;
        let begun = Instant::now();
        let (port, their_port) = pair()?;
        let (console, their_console) = pair()?;
        let mut command = emulator.command();
        command.args(self.arguments(&kernel, &disk, &product.path()));
        wire(&mut command, &their_console, &their_port);
        let kept = vec![their_console.as_raw_fd(), their_port.as_raw_fd()];
        let qemu =
            spawn(&mut command, kept, &their_console).map_err(LabError::io("starting QEMU"))?;
        // This process closes its copies of QEMU's ends of the sockets. With an open copy, the
        // sockets would not report the end of QEMU.
        drop((command, their_port, their_console));
        let mut watch = RunningGuest {
            _qemu: qemu,
            port,
            console,
            line: Vec::new(),
            tail: Vec::new(),
            first_output: None,
            output,
        };
        let end = watch.follow(begun + self.timeout)?;
        Ok(watch.outcome(end, begun, kernel.release))
    }

    /// Returns QEMU's arguments, without those for the console and the serial line of the job.
    fn arguments(&self, kernel: &Kernel, disk: &Path, product: &Path) -> Vec<String> {
        let Shape {
            packages,
            dies,
            cores,
            threads,
            ..
        } = self.shape;
        let cpus = self.shape.cpus();
        let drive = |id: &str, path: &Path| {
            let path = path.display();
            format!("file={path},format=raw,if=none,id={id},snapshot=on,cache=unsafe")
        };
        // These are the arguments of guests without systemd; `emulator.rs` gives the reasons.
        let words = "-accel tcg,thread=single -bios qboot.rom -machine q35 \
                     -cpu max,vendor=GenuineIntel,l3-cache=on -nodefaults -no-user-config \
                     -display none -device nvme,id=nvme0,serial=lab \
                     -device nvme-ns,drive=system,bus=nvme0,nsid=1 \
                     -device nvme-ns,drive=product,bus=nvme0,nsid=2";
        let mut all: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let smp = format!("{cpus},sockets={packages},dies={dies},cores={cores},threads={threads}");
        all.extend(["-m".to_owned(), format!("{MEMORY_MIB}M")]);
        all.extend(["-smp".to_owned(), smp]);
        all.extend(icount(self.clock));
        all.extend(["-drive".to_owned(), drive("system", disk)]);
        all.extend(["-drive".to_owned(), drive("product", product)]);
        all.extend(["-kernel".to_owned(), kernel.vmlinuz().display().to_string()]);
        // The time limits of systemd's units are switched off, because an emulated machine is slow.
        let append = format!(
            "root={} rootwait rw init=/sbin/lab-init console=ttyS0 panic=-1 \
             mitigations=off tsc=reliable tsc_early_khz={} \
             cpu_init_udelay=0 nowatchdog nokaslr \
             systemd.default_timeout_start_sec=600 systemd.show_status=1",
            image::ROOT,
            tsc_khz(self.clock)
        );
        all.extend(["-append".to_owned(), append]);
        all
    }
}

fn pair() -> Result<(UnixStream, UnixStream), LabError> {
    UnixStream::pair().map_err(LabError::io("creating a socket"))
}

/// Connects the serial console and the serial line of the job to sockets.
fn wire(command: &mut Command, console: &UnixStream, port: &UnixStream) {
    let socket = |id: &str, end: &UnixStream| format!("socket,id={id},fd={}", end.as_raw_fd());
    command
        .args(["-chardev", &socket("console", console)])
        .args(["-serial", "chardev:console"])
        .args(["-chardev", &socket("port", port)])
        .args(["-serial", "chardev:port"]);
}

/// A running guest.
struct RunningGuest<'a> {
    _qemu: KilledChild,
    port: UnixStream,
    console: UnixStream,
    /// The beginning of a line of output of which the end has not arrived yet.
    line: Vec<u8>,
    tail: Vec<u8>,
    first_output: Option<Instant>,
    output: &'a mut dyn Write,
}

impl RunningGuest<'_> {
    /// Copies the output until the job has ended, QEMU has ended, or the deadline has passed.
    fn follow(&mut self, deadline: Instant) -> Result<GuestEnd, LabError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(GuestEnd::TimedOut);
            }
            let [port, console] = self.wait(left)?;
            if console && !self.take_console() {
                return Ok(GuestEnd::Died);
            }
            if port && let Some(status) = self.take_output()? {
                return Ok(GuestEnd::Exited { status });
            }
        }
    }

    fn wait(&self, most: Duration) -> Result<[bool; 2], LabError> {
        let sources = [self.port.as_fd(), self.console.as_fd()];
        let mut polled = sources.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let most = Timespec::try_from(most).ok();
        match rustix::event::poll(&mut polled, most.as_ref()) {
            Err(rustix::io::Errno::INTR) | Ok(_) => {}
            Err(why) => return Err(LabError::io("waiting for the guest")(why.into())),
        }
        Ok(polled.map(|one| !one.revents().is_empty()))
    }

    /// Reads console output. Returns false if the console was closed, which means that QEMU has
    /// ended.
    fn take_console(&mut self) -> bool {
        let mut chunk = [0; CHUNK_BYTES];
        let bytes = (&self.console).read(&mut chunk).unwrap_or(0);
        self.tail.extend_from_slice(&chunk[..bytes]);
        let surplus = self.tail.len().saturating_sub(CONSOLE_BYTES);
        self.tail.drain(..surplus);
        bytes > 0
    }

    /// Reads output of the job, and copies complete lines. Returns the exit status if the last line
    /// has arrived.
    fn take_output(&mut self) -> Result<Option<u8>, LabError> {
        let mut chunk = [0; CHUNK_BYTES];
        let bytes = (&self.port).read(&mut chunk).unwrap_or(0);
        self.first_output.get_or_insert_with(Instant::now);
        self.line.extend_from_slice(&chunk[..bytes]);
        while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            if let Some(status) = exit_status(&line) {
                return Ok(Some(status));
            }
            let passed = self
                .output
                .write_all(&line)
                .and_then(|()| self.output.flush());
            passed.map_err(LabError::io("forwarding the output of the guest"))?;
        }
        Ok(None)
    }

    fn outcome(self, end: GuestEnd, begun: Instant, kernel: String) -> GuestOutcome {
        let now = Instant::now();
        let up = self.first_output.unwrap_or(now);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        GuestOutcome {
            end,
            kernel,
            boots: 1,
            boot_ms: ms(up - begun),
            ran_ms: ms(now - up),
            console: String::from_utf8_lossy(&self.tail).into_owned(),
        }
    }
}

/// Returns the exit status if the line is the last line of the job's output; `None` for another
/// line.
fn exit_status(line: &[u8]) -> Option<u8> {
    let line = std::str::from_utf8(line).ok()?.trim_end();
    line.strip_prefix(LAST_LINE)?.parse().ok()
}
