// SPDX-License-Identifier: MIT OR Apache-2.0
//! One program, looked at again and again.
//!
//! In a cgroup a look is two small reads, on files that are kept open; what
//! costs more (listing threads, looking for spinners) is done at a slower
//! rate. Without a cgroup the process tree is walked.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use usher_model::{Home, ProgramId, ProgramSample, Progress, ProgressSource};

use crate::counters::{CounterGap, CounterKind, PerfCounters};
use crate::error::ProbeError;
use crate::group::Group;
use crate::spin::SpinWatch;
use crate::tree::{Tree, read_stat};

/// How a program is to be watched.
#[derive(Debug, Clone)]
pub struct ProbeConfig {
    /// `/proc`, or another in tests.
    pub proc_root: PathBuf,
    /// The program's heartbeat page, where it was given one.
    pub heartbeat: Option<PathBuf>,
    /// How often, at most, threads are looked at for spinning, in nanoseconds.
    /// They are counted as often, and sooner while their number matters most:
    /// after the program has come, and after it has begun to wait for CPUs.
    pub threads_every_ns: u64,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self {
            proc_root: "/proc".into(),
            heartbeat: None,
            threads_every_ns: 1_000_000_000,
        }
    }
}

/// A program that used less than this part of one CPU is at rest.
const AT_REST: u64 = 100;

/// The first pause between two counts of threads; each is twice the last.
const COUNT_NS_MIN: u64 = 4_000_000;
/// Pauses between the first looks for spinning, which sample the threads in
/// between: programs that end within a second wait, too.
const FIRST_LOOKS_NS: [u64; 3] = [0, 100_000_000, 150_000_000];
/// A program waits for CPUs when it does for more than this part of the time.
const WAITING: u64 = 10;

/// Where the program's processes are.
#[derive(Debug)]
enum Members {
    Group(Group),
    Tree(Tree, OwnedFd),
}

/// Watches one program.
#[derive(Debug)]
pub struct ProgramProbe {
    id: ProgramId,
    config: ProbeConfig,
    members: Members,
    heartbeat: Option<usher_heartbeat::Page>,
    /// Work that the page told before the arrival.
    work_before: u64,
    /// CPU time of waiting that the page told at the last look.
    waiting_told_ns: u64,
    /// CPU time of waiting with the stolen part taken off, since arrival.
    waiting_ns: f64,
    counters: Option<PerfCounters>,
    spin: SpinWatch,
    first: Totals,
    last: Totals,
    /// CPU time with the stolen part taken off, since arrival.
    cpu_ns: f64,
    threads: u32,
    /// When threads were last counted, and looked at for spinning.
    counted: Looked,
    watched: Looked,
    watches: usize,
    count_pause_ns: u64,
    /// When the last sample was taken, and whether the program waited then.
    waited: (u64, bool),
    progress: Option<Progress>,
    warnings: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    cpu_ns: u64,
    wait_ns: Option<u64>,
}

/// A look at something that changes only while the program runs.
#[derive(Debug, Clone, Copy, Default)]
struct Looked {
    /// When, and the program's CPU time then.
    last: Option<(u64, u64)>,
}

impl Looked {
    /// Whether it is time to look again, at a program that ran since: one at
    /// rest costs nothing more.
    fn is_due(&self, at_ns: u64, cpu_ns: u64, every_ns: u64) -> bool {
        self.last.is_none_or(|(last_ns, then_ns)| {
            let passed_ns = at_ns.saturating_sub(last_ns);
            let ran = cpu_ns.saturating_sub(then_ns) >= passed_ns / AT_REST;
            passed_ns >= every_ns && ran
        })
    }
}

impl ProgramProbe {
    /// Starts to watch the program that lives there.
    ///
    /// # Errors
    /// It has ended, its cgroup cannot be read, or its heartbeat page is none.
    pub fn open(home: &Home, config: ProbeConfig) -> Result<Self, ProbeError> {
        let mut members = match &home.cgroup {
            Some(dir) => Members::Group(Group::open(dir)?),
            None => open_tree(home, &config)?,
        };
        let heartbeat = match &config.heartbeat {
            Some(path) => Some(usher_heartbeat::Page::open(path)?),
            None => None,
        };
        let first = members.totals()?;
        let mut probe = Self {
            id: home.program,
            spin: SpinWatch::new(config.proc_root.clone()),
            config,
            members,
            heartbeat: None,
            work_before: 0,
            waiting_told_ns: 0,
            waiting_ns: 0.0,
            counters: None,
            first,
            last: first,
            cpu_ns: 0.0,
            threads: 0,
            counted: Looked::default(),
            watched: Looked::default(),
            watches: 0,
            count_pause_ns: COUNT_NS_MIN,
            waited: (0, false),
            progress: None,
            warnings: Vec::new(),
        };
        heartbeat
            .into_iter()
            .for_each(|page| probe.use_heartbeat(page));
        Ok(probe)
    }

    /// Reads progress from this page, counted from now on.
    pub fn use_heartbeat(&mut self, mut page: usher_heartbeat::Page) {
        let threads = page.threads().ok().flatten();
        self.waiting_told_ns = threads.map_or(0, |threads| threads.waiting_cpu_ns);
        self.work_before = page.work().unwrap_or(0);
        self.heartbeat = Some(page);
    }

    /// Uses counters that were opened at the program's launch.
    pub fn use_counters(&mut self, counters: PerfCounters) {
        self.counters = Some(counters);
    }

    /// Opens instruction counters on the running program.
    ///
    /// # Errors
    /// Why there are none; the probe goes on without.
    pub fn count_instructions(&mut self) -> Result<(), CounterGap> {
        let processes = self.members.processes().unwrap_or_default();
        let kind = CounterKind::Instructions;
        let counters = PerfCounters::on_running(kind, &self.config.proc_root, &processes)?;
        self.counters = Some(counters);
        Ok(())
    }

    /// The program now. `steal` is [`crate::MachineSample::steal_in_cpu_time`],
    /// the part of CPU time that the hypervisor took, 0..1.
    ///
    /// # Errors
    /// The program has ended and its cgroup is gone, or cannot be read.
    pub fn sample(&mut self, at_ns: u64, steal: f64) -> Result<ProgramSample, ProbeError> {
        let now = self.members.totals()?;
        let before = std::mem::replace(&mut self.last, now);
        let used_ns = now.cpu_ns.saturating_sub(before.cpu_ns);
        let kept = 1.0 - steal.clamp(0.0, 1.0);
        self.cpu_ns += used_ns as f64 * kept;
        self.look_at_waiting(at_ns, before);
        self.look_at_threads(at_ns);
        self.progress = self.best_progress(kept);
        let wait_ns = match (now.wait_ns, self.first.wait_ns) {
            (Some(now), Some(first)) => Some(now.saturating_sub(first)),
            _ => None,
        };
        Ok(ProgramSample {
            id: self.id,
            cpu_ns: self.cpu_ns as u64,
            wait_ns,
            threads: self.threads,
            spinners: self.spin.spinners(),
            active_wait: self.spin.active_wait(),
            progress: self.progress,
        })
    }

    /// Whether the last process has ended.
    ///
    /// # Errors
    /// When the cgroup cannot be read.
    pub fn has_ended(&mut self) -> Result<bool, ProbeError> {
        match &mut self.members {
            Members::Group(group) => group.has_ended(),
            Members::Tree(tree, pidfd) => {
                tree.look();
                // One that has died stays readable.
                if has_died(pidfd)
                    && let Some(oldest) = tree.oldest()
                {
                    *pidfd = oldest;
                }
                Ok(tree.has_ended())
            }
        }
    }

    /// What to poll for the program's end, and for which event. With a cgroup
    /// it is raised when the last process leaves (and on other changes of its
    /// state); without, when a process ends that others may outlive. Then ask
    /// [`ProgramProbe::has_ended`], which also arms it again.
    pub fn poll(&self) -> (BorrowedFd<'_>, PollFlags) {
        match &self.members {
            Members::Group(group) => (group.as_fd(), PollFlags::PRI),
            Members::Tree(_, pidfd) => (pidfd.as_fd(), PollFlags::IN),
        }
    }

    /// Sentences about sources that failed since the last call: each failure
    /// is told once, and the next best source is used.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Counts threads and looks at them for spinning, each when it is time.
    fn look_at_threads(&mut self, at_ns: u64) {
        let (cpu_ns, every_ns) = (self.last.cpu_ns, self.config.threads_every_ns);
        let watch_pause_ns = FIRST_LOOKS_NS.get(self.watches).unwrap_or(&every_ns);
        let watch = self
            .watched
            .is_due(at_ns, cpu_ns, *watch_pause_ns.min(&every_ns));
        let pause_ns = self.count_pause_ns.min(every_ns);
        if !watch && !self.counted.is_due(at_ns, cpu_ns, pause_ns) {
            return;
        }
        let looked = Looked {
            last: Some((at_ns, cpu_ns)),
        };
        self.counted = looked;
        self.count_pause_ns = pause_ns.saturating_mul(2).max(COUNT_NS_MIN);
        let tids = match self.members.threads() {
            Ok(tids) => tids,
            Err(error) => return self.warnings.push(error.to_string()),
        };
        self.threads = u32::try_from(tids.len()).unwrap_or(u32::MAX);
        if watch {
            self.watched = looked;
            self.watches += 1;
            if let Ok(pids) = self.members.processes() {
                self.spin.look_for_runtimes(&pids);
            }
            self.spin.look(&tids);
            self.warnings.extend(self.spin.take_warning());
        }
    }

    /// Threads are counted soon again when a program begins to wait.
    fn look_at_waiting(&mut self, at_ns: u64, before: Totals) {
        let (last_ns, did) = self.waited;
        let wait_ns = self.last.wait_ns.unwrap_or(0);
        let waited_ns = wait_ns.saturating_sub(before.wait_ns.unwrap_or(0));
        let waits = waited_ns > at_ns.saturating_sub(last_ns) / WAITING;
        if waits && !did {
            self.count_pause_ns = COUNT_NS_MIN;
        }
        self.waited = (at_ns, waits);
    }

    /// The best source that has something to say. Totals of one source never
    /// fall, but a program that starts to beat late changes its source.
    fn best_progress(&mut self, kept: f64) -> Option<Progress> {
        let spins = self.spin.spinners() > 0;
        let progress = |total, source: ProgressSource| {
            Some(Progress {
                total,
                source,
                confidence: source.confidence(spins),
            })
        };
        if let Some((total, source)) = self.told(kept) {
            return progress(total, source);
        }
        if let Some(counters) = &mut self.counters
            && counters.kind() == CounterKind::Instructions
        {
            return progress(counters.read(), ProgressSource::Instructions);
        }
        progress(self.cpu_ns, ProgressSource::CpuTime)
    }

    /// What the heartbeat page tells: units of work, else useful CPU time, of
    /// which so much was `kept` from the hypervisor since the last look.
    fn told(&mut self, kept: f64) -> Option<(f64, ProgressSource)> {
        let page = self.heartbeat.as_mut()?;
        let work = page.work();
        let work = work.map(|work| work.saturating_sub(self.work_before));
        let read = work.and_then(|work| match work {
            0 => page.threads().map(|threads| (0, threads)),
            _ => Ok((work, None)),
        });
        match read {
            Ok((0, None)) => None,
            Ok((0, Some(threads))) => {
                let told_ns = std::mem::replace(&mut self.waiting_told_ns, threads.waiting_cpu_ns);
                let waited_ns = threads.waiting_cpu_ns.saturating_sub(told_ns);
                self.waiting_ns += waited_ns as f64 * kept;
                Some((self.useful_ns(), ProgressSource::Ompt))
            }
            Ok((work, _)) => Some((work as f64, ProgressSource::Heartbeat)),
            Err(error) => {
                self.heartbeat = None;
                self.warnings.push(format!("{error}; going on without it"));
                None
            }
        }
    }

    /// CPU time of the program less what its threads burnt waiting. A wait is
    /// taken off when it ends, so the difference may fall for a moment: it is
    /// held at its highest.
    fn useful_ns(&self) -> f64 {
        let useful_ns = (self.cpu_ns - self.waiting_ns).max(0.0);
        match self.progress {
            Some(last) if last.source == ProgressSource::Ompt => useful_ns.max(last.total),
            _ => useful_ns,
        }
    }
}

impl Members {
    fn totals(&mut self) -> Result<Totals, ProbeError> {
        match self {
            Self::Group(group) => Ok(Totals {
                cpu_ns: group.cpu_ns()?,
                wait_ns: group.wait_ns(),
            }),
            Self::Tree(tree, _) => {
                tree.look();
                Ok(Totals {
                    cpu_ns: tree.cpu_ns(),
                    wait_ns: None,
                })
            }
        }
    }

    fn threads(&self) -> Result<std::collections::BTreeSet<i32>, ProbeError> {
        match self {
            Self::Group(group) => group.threads(),
            Self::Tree(tree, _) => Ok(tree.threads()),
        }
    }

    fn processes(&self) -> Result<std::collections::BTreeSet<i32>, ProbeError> {
        match self {
            Self::Group(group) => group.processes(),
            Self::Tree(tree, _) => Ok(tree.processes()),
        }
    }
}

/// Whether the process behind a pidfd has died.
fn has_died(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// The pidfd is opened first and the start time checked after, so that it
/// cannot belong to a later process of the same number.
fn open_tree(home: &Home, config: &ProbeConfig) -> Result<Members, ProbeError> {
    let pid = home.root.pid;
    let gone = ProbeError::Gone { pid };
    let Some(raw) = Pid::from_raw(pid) else {
        return Err(gone);
    };
    let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| match errno {
        rustix::io::Errno::SRCH => gone,
        other => ProbeError::read(
            &config.proc_root.join(pid.to_string()),
            std::io::Error::from(other),
        ),
    })?;
    let tree = Tree::open(&config.proc_root, home.root)?;
    Ok(Members::Tree(tree, pidfd))
}

/// The process of that number, told from a later one by its start time.
///
/// # Errors
/// There is none, or its files cannot be read.
pub fn process_id(
    proc_root: &std::path::Path,
    pid: i32,
) -> Result<usher_model::ProcessId, ProbeError> {
    let start_ticks = read_stat(proc_root, pid)?.start_ticks;
    Ok(usher_model::ProcessId { pid, start_ticks })
}
