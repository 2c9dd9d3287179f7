// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest to be: what it is made of, and running a command in it.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use usher_model::CpuSet;

use crate::LabError;
use crate::cache::Cache;
use crate::emulator::{Emulator, Guest};
use crate::job::Job;
use crate::kernels::{self, Kernel, Wanted};
use crate::session::{self, Ended};
use crate::shape::Shape;

/// Memory of a guest unless told, and the least that boots.
const MEMORY_MIB: usize = 4096;
const MEMORY_MIB_LEAST: usize = 512;
/// How long a command may take unless told.
const TIMEOUT: Duration = Duration::from_secs(300);
/// How long a guest may take until it runs one, and more for each of its CPUs:
/// twenty times what it takes.
const BOOT_WITHIN: Duration = Duration::from_secs(120);
const BOOT_WITHIN_EACH_CPU: Duration = Duration::from_secs(10);
/// Directories in which a guest may write what nobody keeps.
const SCRATCH: [&str; 2] = ["/tmp", "/var/tmp"];
/// The longest that an instruction may take; QEMU counts in powers of two.
const INSTRUCTION_NS_MAX: u32 = 256;
/// The module with which the host's files and scratch lie in one directory.
const OVERLAY: &str = "fs/overlayfs/overlay";
/// Variables that speak of things that a guest has not got.
const NOT_PASSED_ON: [&str; 6] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "JOURNAL_STREAM",
    "LISTEN_FDS",
    "NOTIFY_SOCKET",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// A guest to be.
#[derive(Debug, Clone)]
pub struct Vm {
    /// The machine.
    pub shape: Shape,
    /// The kernel.
    pub kernel: Wanted,
    /// What its clock goes by.
    pub clock: Clock,
    /// CPUs that are offline when the command starts.
    pub cpus_off: CpuSet,
    /// Memory, in MiB.
    pub memory_mib: usize,
    /// Directories that the command may write in, beside the current one.
    pub writable: Vec<PathBuf>,
    /// Directories in which it may write what nobody keeps, beside /tmp.
    pub scratch: Vec<PathBuf>,
    /// Variables set or changed for the command.
    pub environment: Vec<(String, String)>,
    /// From the start to the end.
    pub timeout: Duration,
    /// More words for the kernel.
    pub append: String,
    /// Where kernels stay; the user's folder unless told.
    pub cache: Option<PathBuf>,
}

/// What a guest's clock goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The host's.
    Host,
    /// The instructions that it executes, whatever the host does meanwhile.
    Instructions {
        /// How long one takes: a power of two up to 256.
        ns: u32,
        /// What happens when no CPU has anything to do.
        idle: Idle,
    },
}

/// How time passes that nobody uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// At once: the clock goes on to when somebody wakes up. Then waiting for
    /// the host's files takes any time.
    Skipped,
    /// As on the host.
    Waits,
}

/// Where a guest's output goes.
pub struct Streams<'a> {
    /// What the command writes.
    pub out: &'a mut dyn Write,
    /// What it complains.
    pub err: &'a mut dyn Write,
    /// All that appears on the machine's console, where somebody wants it.
    pub console: Option<&'a mut dyn Write>,
    /// Readable when the guest is to be ended at once.
    pub interrupt: Option<BorrowedFd<'a>>,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum End {
    /// The command has ended.
    Exited {
        /// Its exit status; 128+N where signal N ended it.
        status: u8,
    },
    /// The guest was up and could not do what it was to do.
    Refused {
        /// 126 or 127 for a command that cannot be run or is not there.
        status: u8,
        /// One line.
        reason: String,
    },
    /// The guest died.
    Died,
    /// Time was up.
    TimedOut,
    /// The caller wanted no more of it.
    Interrupted,
}

/// What came of it.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// How it ended.
    #[serde(flatten)]
    pub end: End,
    /// The kernel.
    pub kernel: String,
    /// How many guests were started: 2 where the first did not come up.
    pub boots: u32,
    /// From the start until the command ran.
    pub boot_ms: u64,
    /// From there to the end.
    pub ran_ms: u64,
    /// The last that appeared on the console.
    #[serde(skip)]
    pub console: String,
}

impl Outcome {
    /// The command's exit status, or the one that says why there is none.
    pub fn status(&self) -> u8 {
        match self.end {
            End::Exited { status } | End::Refused { status, .. } => status,
            End::TimedOut => crate::TIMED_OUT,
            End::Died | End::Interrupted => crate::OWN_FAILURE,
        }
    }
}

impl Vm {
    /// A guest of this description (`package:2 core:4`), with the newest
    /// kernel that is here.
    ///
    /// # Errors
    /// When no guest can be such a machine.
    pub fn new(topology: &str) -> Result<Self, LabError> {
        Ok(Self {
            shape: Shape::parse(topology)?,
            kernel: Wanted::Newest,
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
    /// When the guest could not be started; how one that was ended is no error.
    pub fn run(&self, argv: &[String], streams: &mut Streams) -> Result<Outcome, LabError> {
        self.check()?;
        let cache = Cache::open(self.cache.as_deref())?;
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
        if ended.release.is_none() && matches!(ended.end, End::Died | End::TimedOut) {
            let how = if ended.end == End::Died {
                "died"
            } else {
                "hung"
            };
            eprintln!("lab: the guest {how} before it came up; starting it once more");
            boots = 2;
            ended = session::run(&emulator, &guest, &job, &limits, streams)?;
        }
        Ok(outcome(ended, &kernel, boots))
    }

    /// Has all that such a guest needs, and starts none: what is missing is fetched
    /// where it can be. The release of its kernel.
    ///
    /// # Errors
    /// What is missing, and what to do.
    pub fn ready(&self) -> Result<String, LabError> {
        self.check()?;
        let cache = Cache::open(self.cache.as_deref())?;
        let kernel = kernels::find(&cache, &self.kernel)?;
        Emulator::find(&cache, self.clock != Clock::Host)?;
        Ok(kernel.release)
    }

    /// Refuses what makes no sense, before anything is fetched or started.
    fn check(&self) -> Result<(), LabError> {
        let cpus = self.shape.cpus();
        let all = CpuSet::range(0, cpus as u32 - 1);
        let no_such = self.cpus_off.minus(&all);
        let refuse = |reason: String| Err(LabError::Request(reason));
        if !no_such.is_empty() {
            return refuse(format!(
                "CPUs {no_such} cannot be off: the guest has CPUs {all}"
            ));
        }
        if self.cpus_off.contains(0) {
            return refuse("CPU 0 cannot be off: Linux on x86 keeps it".to_owned());
        }
        if let Clock::Instructions { ns, .. } = self.clock
            && !(ns.is_power_of_two() && ns <= INSTRUCTION_NS_MAX)
        {
            return refuse(format!(
                "an instruction cannot take {ns} ns: a power of two up to {INSTRUCTION_NS_MAX} is due"
            ));
        }
        let least = MEMORY_MIB_LEAST.max(64 * self.shape.nodes.len());
        if self.memory_mib < least {
            return refuse(format!(
                "{} MiB are too little: {least} are due",
                self.memory_mib
            ));
        }
        for dir in self.writable.iter().chain(&self.scratch) {
            if !dir.is_dir() {
                return refuse(format!("{} is no directory", dir.display()));
            }
        }
        if !cfg!(target_arch = "x86_64") {
            return refuse("guests run the host's programs, and are x86-64 machines".to_owned());
        }
        if !rustix::process::geteuid().is_root() {
            return refuse(
                "sharing the host's files with a guest (virtiofsd) needs root; use sudo".to_owned(),
            );
        }
        Ok(())
    }

    fn job(&self, argv: &[String], kernel: &Kernel) -> Result<Job, LabError> {
        let directory =
            std::env::current_dir().map_err(LabError::io("finding the current directory"))?;
        let mut writable = vec![directory.clone()];
        writable.extend(absolute(&self.writable)?);
        // All of the host would be writable, by mistake.
        writable.retain(|dir| dir != Path::new("/"));
        let mut scratch: Vec<PathBuf> = SCRATCH.iter().map(PathBuf::from).collect();
        scratch.extend(absolute(&self.scratch)?);
        let passed_on =
            std::env::vars().filter(|(name, _)| !NOT_PASSED_ON.contains(&name.as_str()));
        Ok(Job {
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

/// This program, as the guest's kernel is to find it.
fn own_program() -> Result<PathBuf, LabError> {
    let path = std::env::current_exe().map_err(LabError::io("finding this program"))?;
    match path
        .to_str()
        .is_some_and(|path| !path.contains(char::is_whitespace))
    {
        true => Ok(path),
        false => Err(LabError::Request(format!(
            "a guest's kernel cannot start {}: the path holds a space",
            path.display()
        ))),
    }
}

fn outcome(ended: Ended, kernel: &Kernel, boots: u32) -> Outcome {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Outcome {
        end: ended.end,
        kernel: ended.release.unwrap_or_else(|| kernel.release.clone()),
        boots,
        boot_ms: ms(ended.boot),
        ran_ms: ms(ended.ran),
        console: ended.console,
    }
}
