// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of a guest ([`Vm`]), and the function that runs a command in the guest
//! ([`Vm::run`]):
//!
//! 1. Check the configuration.
//! 2. Select the kernel and the emulator, and fetch them if they are not cached.
//! 3. Start the guest and run the command (`session`). If the guest dies or hangs before it is
//!    ready, start the guest once more.
//!
//! A guest has 4 GiB of memory by default, at least 512 MiB and at least 64 MiB per NUMA node. The
//! time limits are 300 s in total by default, and 120 s plus 10 s per CPU for the boot. Each of the
//! two starts has these limits. Step 2 has no time limit. A guest that dies or exceeds a limit is a
//! result, not an error.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use usher_model::CpuSet;

use crate::LabError;
use crate::cache::LabCache;
use crate::emulator::{Emulator, Guest};
use crate::job::GuestJob;
use crate::kernels::{self, Kernel, KernelChoice};
use crate::session::{self, EndedGuest};
use crate::shape::Shape;

/// Default memory of a guest in MiB. The next constant is the minimum with which a guest boots.
const MEMORY_MIB: usize = 4096;
const MEMORY_MIB_LEAST: usize = 512;
/// Default time limit of a guest, from its start to its end.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Time limit of a guest's boot. The next constant is added for each CPU of the guest. The limit is
/// twenty times the usual duration of a boot.
const BOOT_WITHIN: Duration = Duration::from_secs(120);
const BOOT_WITHIN_EACH_CPU: Duration = Duration::from_secs(10);
/// Directories of which the writes are discarded in each guest.
const SCRATCH: [&str; 2] = ["/tmp", "/var/tmp"];
/// Maximum time of an instruction in virtual time. QEMU supports powers of two.
const INSTRUCTION_NS_MAX: u32 = 256;
/// The kernel module of overlays, which combine a directory of the host with memory for writes.
const OVERLAY: &str = "fs/overlayfs/overlay";
/// Environment variables that are not passed to the command, because they refer to objects that do
/// not exist in a guest.
const NOT_PASSED_ON: [&str; 6] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "JOURNAL_STREAM",
    "LISTEN_FDS",
    "NOTIFY_SOCKET",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// The configuration of a guest.
#[derive(Debug, Clone)]
pub struct Vm {
    /// The machine.
    pub shape: Shape,
    /// The kernel that the guest runs.
    pub kernel: KernelChoice,
    /// Source of the guest's clock.
    pub clock: Clock,
    /// CPUs that are offline when the command starts.
    pub cpus_off: CpuSet,
    /// Memory of the guest in MiB.
    pub memory_mib: usize,
    /// Directories in which the command may write, in addition to the current directory.
    pub writable: Vec<PathBuf>,
    /// Directories of which the writes are discarded, in addition to /tmp and /var/tmp.
    pub scratch: Vec<PathBuf>,
    /// Environment variables that are set for the command, in addition to those of this process.
    pub environment: Vec<(String, String)>,
    /// Maximum time from a start of the guest to its end. A second start after a failed boot has
    /// the same limit again.
    pub timeout: Duration,
    /// Words that are appended to the kernel's command line.
    pub append: String,
    /// The folder of the cache; `None` selects the user's cache.
    pub cache: Option<PathBuf>,
}

/// The source of a guest's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The host's clock.
    Host,
    /// Virtual time: the clock counts the executed instructions, and does not depend on the host's
    /// load.
    Instructions {
        /// Time per instruction in ns: a power of two up to 256.
        ns: u32,
        /// How time passes while all CPUs are idle.
        idle: IdleTime,
    },
}

/// How time passes while all CPUs are idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleTime {
    /// Idle time is skipped: the clock advances at once to the next timer. The measured duration of
    /// accesses to the host's files is then arbitrary.
    Skipped,
    /// Idle time passes in real time.
    Waits,
}

/// The destinations of a guest's output, and the descriptor that ends the guest.
pub struct Streams<'a> {
    /// Standard output of the command.
    pub out: &'a mut dyn Write,
    /// Standard error of the command.
    pub err: &'a mut dyn Write,
    /// Output of the guest's console; `None` discards it.
    pub console: Option<&'a mut dyn Write>,
    /// A descriptor that ends the guest when it becomes readable.
    pub interrupt: Option<BorrowedFd<'a>>,
}

/// How a guest ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum GuestEnd {
    /// The command has ended.
    Exited {
        /// Exit status of the command; 128+N for signal N.
        status: u8,
    },
    /// The guest has booted, but could not run the job.
    Refused {
        /// Exit status: 126 if the command cannot be run, 127 if the command does not exist, 125
        /// for other reasons.
        status: u8,
        /// The reason in one line.
        reason: String,
    },
    /// The guest ended without a report of the command's end.
    Died,
    /// The time limit was exceeded.
    TimedOut,
    /// The caller has ended the guest by the interrupt descriptor.
    Interrupted,
}

/// Result of a guest.
#[derive(Debug, Clone, Serialize)]
pub struct GuestOutcome {
    /// How the guest ended.
    #[serde(flatten)]
    pub end: GuestEnd,
    /// Release of the guest's kernel.
    pub kernel: String,
    /// Number of times that the guest was started: 2 if it was not ready at the first start, 1
    /// otherwise.
    pub boots: u32,
    /// Time from the start of the guest to the start of the command.
    pub boot_ms: u64,
    /// Time from the start of the command to the end of the guest.
    pub ran_ms: u64,
    /// The last 64 KiB of the console output.
    #[serde(skip)]
    pub console: String,
}

impl GuestOutcome {
    /// Returns the command's exit status. If the command has not ended by itself, returns the exit
    /// status of the lab for that case.
    pub fn status(&self) -> u8 {
        match self.end {
            GuestEnd::Exited { status } | GuestEnd::Refused { status, .. } => status,
            GuestEnd::TimedOut => crate::TIMED_OUT,
            GuestEnd::Died | GuestEnd::Interrupted => crate::OWN_FAILURE,
        }
    }
}

impl Vm {
    /// Returns the configuration of a guest with this topology, such as `package:2 core:4`, and the
    /// newest cached kernel.
    ///
    /// # Errors
    /// If no guest can have this topology.
    pub fn new(topology: &str) -> Result<Self, LabError> {
        Ok(Self {
            shape: Shape::parse(topology)?,
            kernel: KernelChoice::Newest,
            clock: Clock::Host,
            cpus_off: CpuSet::new(),
            memory_mib: MEMORY_MIB,
            writable: Vec::new(),
            scratch: Vec::new(),
            environment: Vec::new(),
            timeout: TIMEOUT,
            append: String::new(),
            cache: None,
        })
    }

    /// Runs a command in a guest. If the guest dies or hangs before it is ready, starts it once
    /// more.
    ///
    /// # Errors
    /// If the guest cannot be started. If a guest dies, or is ended by a time limit or a signal,
    /// the result is no error.
    pub fn run(&self, argv: &[String], streams: &mut Streams) -> Result<GuestOutcome, LabError> {
        self.check()?;
        let cache = LabCache::open(self.cache.as_deref())?;
        let kernel = kernels::find(&cache, &self.kernel)?;
        let emulator = Emulator::find(&cache, self.clock != Clock::Host)?;
        let job = self.job(argv, &kernel)?;
        let init = own_program()?;
        let guest = Guest {
            shape: &self.shape,
            kernel: &kernel.vmlinuz(),
            memory_mib: self.memory_mib,
            clock: self.clock,
            init: &init,
            append: &self.append,
        };
        let cpus = self.shape.cpus() as u32;
        let limits = session::Limits {
            boot: self.timeout.min(BOOT_WITHIN + BOOT_WITHIN_EACH_CPU * cpus),
            whole: self.timeout,
        };
        let mut boots = 1;
        let mut ended = session::run(&emulator, &guest, &job, &limits, streams)?;
        if ended.release.is_none() && matches!(ended.end, GuestEnd::Died | GuestEnd::TimedOut) {
            let how = if ended.end == GuestEnd::Died {
                "died"
            } else {
                "hung"
            };
            eprintln!("lab: the guest {how} before it had booted; starting it once more");
            boots = 2;
            ended = session::run(&emulator, &guest, &job, &limits, streams)?;
        }
        Ok(outcome(ended, &kernel, boots))
    }

    /// Checks the configuration, and fetches the kernel and the emulator if they are not cached.
    /// Does not start a guest. Returns the kernel's release.
    ///
    /// # Errors
    /// If a part is missing and cannot be fetched. The error names the part and the remedy.
    pub fn ready(&self) -> Result<String, LabError> {
        self.check()?;
        let cache = LabCache::open(self.cache.as_deref())?;
        let kernel = kernels::find(&cache, &self.kernel)?;
        Emulator::find(&cache, self.clock != Clock::Host)?;
        Ok(kernel.release)
    }

    /// Rejects an invalid configuration, before files are fetched or programs are started.
    fn check(&self) -> Result<(), LabError> {
        let cpus = self.shape.cpus();
        let all = CpuSet::range(0, cpus as u32 - 1);
        let no_such = self.cpus_off.minus(&all);
        let refuse = |reason: String| Err(LabError::Request(reason));
        if !no_such.is_empty() {
            return refuse(format!(
                "CPUs {no_such} cannot be taken offline: the guest has only CPUs {all}"
            ));
        }
        if self.cpus_off.contains(0) {
            return refuse(
                "CPU 0 cannot be taken offline: Linux on x86 keeps CPU 0 online".to_owned(),
            );
        }
        if let Clock::Instructions { ns, .. } = self.clock
            && !(ns.is_power_of_two() && ns <= INSTRUCTION_NS_MAX)
        {
            return refuse(format!(
                "an instruction of the guest cannot take {ns} ns: give --virtual-time a power of \
                 two from 1 to {INSTRUCTION_NS_MAX}"
            ));
        }
        let least = MEMORY_MIB_LEAST.max(64 * self.shape.nodes.len());
        if self.memory_mib < least {
            return refuse(format!(
                "a guest cannot have {} MiB of memory: the minimum is {least} MiB",
                self.memory_mib
            ));
        }
        for dir in self.writable.iter().chain(&self.scratch) {
            if !dir.is_dir() {
                return refuse(format!(
                    "{} is not a directory: give --writable and --scratch existing directories of \
                     the host",
                    dir.display()
                ));
            }
        }
        if !cfg!(target_arch = "x86_64") {
            return refuse(
                "a guest requires an x86-64 host, because the guest is an x86-64 machine and runs \
                 programs of the host"
                    .to_owned(),
            );
        }
        if !rustix::process::geteuid().is_root() {
            return refuse(
                "sharing the files of the host with a guest (virtiofsd) requires root; use sudo"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn job(&self, argv: &[String], kernel: &Kernel) -> Result<GuestJob, LabError> {
        let directory =
            std::env::current_dir().map_err(LabError::io("finding the current directory"))?;
        let mut writable = vec![directory.clone()];
        writable.extend(absolute(&self.writable)?);
        // The root directory is removed from the list. Otherwise a lab started in `/` would make
        // all files of the host writable.
        writable.retain(|dir| dir != Path::new("/"));
        let mut scratch: Vec<PathBuf> = SCRATCH.iter().map(PathBuf::from).collect();
        scratch.extend(absolute(&self.scratch)?);
        let passed_on =
            std::env::vars().filter(|(name, _)| !NOT_PASSED_ON.contains(&name.as_str()));
        Ok(GuestJob {
            argv: argv.to_vec(),
            environment: passed_on.chain(self.environment.iter().cloned()).collect(),
            directory,
            writable,
            scratch,
            cpus_off: self.cpus_off.clone(),
            config: kernel.config(),
            overlay: kernel.module(OVERLAY),
        })
    }
}

fn absolute(dirs: &[PathBuf]) -> Result<Vec<PathBuf>, LabError> {
    let resolve =
        |dir: &PathBuf| std::fs::canonicalize(dir).map_err(LabError::file("finding", dir));
    dirs.iter().map(resolve).collect()
}

/// Returns the path of this program, which the guest's kernel starts.
fn own_program() -> Result<PathBuf, LabError> {
    let path =
        std::env::current_exe().map_err(LabError::io("finding the executable of the lab"))?;
    match path
        .to_str()
        .is_some_and(|path| !path.contains(char::is_whitespace))
    {
        true => Ok(path),
        false => Err(LabError::Request(format!(
            "a guest's kernel cannot start {}, because the path contains a space: move the \
             program to a path without spaces",
            path.display()
        ))),
    }
}

fn outcome(ended: EndedGuest, kernel: &Kernel, boots: u32) -> GuestOutcome {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    GuestOutcome {
        end: ended.end,
        kernel: ended.release.unwrap_or_else(|| kernel.release.clone()),
        boots,
        boot_ms: ms(ended.boot),
        ran_ms: ms(ended.ran),
        console: ended.console,
    }
}
