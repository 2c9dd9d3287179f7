// SPDX-License-Identifier: MIT OR Apache-2.0
//! Configuration of a guest, and running a command in it. [`Vm::run`] checks the configuration,
//! selects kernel and emulator, and starts the guest; a guest that does not come up is started once
//! more. The session itself is in `session`.

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

/// Default memory of a guest in MiB; the next constant is the minimum that boots.
const MEMORY_MIB: usize = 4096;
const MEMORY_MIB_LEAST: usize = 512;
/// Default time limit of a command.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Time limit of a guest's boot; the next constant is its extension per CPU. Both are twenty times
/// the usual duration.
const BOOT_WITHIN: Duration = Duration::from_secs(120);
const BOOT_WITHIN_EACH_CPU: Duration = Duration::from_secs(10);
/// Default directories with discarded writes.
const SCRATCH: [&str; 2] = ["/tmp", "/var/tmp"];
/// Maximum time of an instruction; QEMU counts in powers of two.
const INSTRUCTION_NS_MAX: u32 = 256;
/// Kernel module that joins the host's files and scratch memory in one directory.
const OVERLAY: &str = "fs/overlayfs/overlay";
/// Environment variables about things that do not exist in a guest.
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
    /// Selection of the kernel.
    pub kernel: KernelChoice,
    /// Source of the guest's clock.
    pub clock: Clock,
    /// CPUs that are offline when the command starts.
    pub cpus_off: CpuSet,
    /// Memory, in MiB.
    pub memory_mib: usize,
    /// Directories that the command may write in, besides the current one.
    pub writable: Vec<PathBuf>,
    /// Directories with discarded writes, besides /tmp.
    pub scratch: Vec<PathBuf>,
    /// Variables set or changed for the command.
    pub environment: Vec<(String, String)>,
    /// Time limit from start to end.
    pub timeout: Duration,
    /// Additional words for the kernel.
    pub append: String,
    /// The cache of kernels; default: the user's folder.
    pub cache: Option<PathBuf>,
}

/// The source of a guest's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The host's clock.
    Host,
    /// The executed instructions, independent of the host's load.
    Instructions {
        /// Time per instruction: a power of two up to 256.
        ns: u32,
        /// How idle time passes.
        idle: IdleTime,
    },
}

/// How time passes while all CPUs are idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleTime {
    /// Idle time is skipped: the clock advances to the next wakeup. The duration of waits for the
    /// host's files is then arbitrary.
    Skipped,
    /// Idle time passes as on the host.
    Waits,
}

/// Destinations of a guest's output.
pub struct Streams<'a> {
    /// Standard output of the command.
    pub out: &'a mut dyn Write,
    /// Standard error of the command.
    pub err: &'a mut dyn Write,
    /// Console output; `None`: discarded.
    pub console: Option<&'a mut dyn Write>,
    /// A descriptor that becomes readable to end the guest at once.
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
    /// The guest was up but could not run the job.
    Refused {
        /// Exit status: 126 for a command that cannot be run, 127 for one that does not exist.
        status: u8,
        /// The reason in one line.
        reason: String,
    },
    /// The guest died.
    Died,
    /// The time limit was exceeded.
    TimedOut,
    /// The caller ended the guest.
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
    /// Number of started guests: 2 if the first did not come up.
    pub boots: u32,
    /// Time from the start until the command ran.
    pub boot_ms: u64,
    /// Time from `boot_ms` to the end.
    pub ran_ms: u64,
    /// The tail of the console output.
    #[serde(skip)]
    pub console: String,
}

impl GuestOutcome {
    /// Returns the command's exit status, or the status that gives the reason for its absence.
    pub fn status(&self) -> u8 {
        match self.end {
            GuestEnd::Exited { status } | GuestEnd::Refused { status, .. } => status,
            GuestEnd::TimedOut => crate::TIMED_OUT,
            GuestEnd::Died | GuestEnd::Interrupted => crate::OWN_FAILURE,
        }
    }
}

impl Vm {
    /// Returns a guest with the described machine (`package:2 core:4`) and the newest cached
    /// kernel.
    ///
    /// # Errors
    /// A guest cannot have this machine.
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

    /// Runs a command. A guest that does not come up is started once more.
    ///
    /// # Errors
    /// The guest could not be started. A guest that was ended is not an error.
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

    /// Checks that everything for such a guest is present, and fetches missing parts if possible,
    /// without starting the guest. Returns the kernel's release.
    ///
    /// # Errors
    /// The missing part and the remedy.
    pub fn ready(&self) -> Result<String, LabError> {
        self.check()?;
        let cache = LabCache::open(self.cache.as_deref())?;
        let kernel = kernels::find(&cache, &self.kernel)?;
        Emulator::find(&cache, self.clock != Clock::Host)?;
        Ok(kernel.release)
    }

    /// Rejects invalid requests before anything is fetched or started.
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
        // The root directory is removed, because otherwise the whole host would be writable by
        // mistake.
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

/// The path of this program for the guest's kernel.
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
