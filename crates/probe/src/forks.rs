// SPDX-License-Identifier: MIT OR Apache-2.0
//! Follows the process tree of a managed program, so that new worker processes are found within one
//! scan interval.
//!
//! The kernel assigns process and thread numbers in rising order. A scan therefore reads the number
//! that was assigned last, and examines only the numbers since the previous scan:
//!
//! 1. If no number was assigned on the machine, no process can be new. The scan costs one file. If
//!    each known process has a single thread, and none of these threads has run since the previous
//!    scan, no process of the program can be new either.
//! 2. Otherwise read `stat` of each new number. The number belongs to a new process of the program
//!    if its parent is a known process. A number that cannot be read is examined again ([`unread`]).
//! 3. A process is an orphan after the end of its parent: init adopts it. It is recognised by a
//!    variable of its launcher, or else by its process group ([`orphans`]).
//!    [`ForkScan::take_new_descendants`] leaves out processes that were found by their process
//!    group, and their children.
//! 4. Read `stat` of each known process. If the process may have executed a program since the last
//!    scan, read its executable, command line and name again. The children of an ended process become
//!    children of its parent.
//!
//! If the numbers wrapped around, or if more than [`NUMBERS_MAX`] are new, the scan lists `/proc`
//! instead, at most every [`LIST_NS`].
//!
//! Cost: about 5 us per number and per known process. A scan misses a process that ends between two
//! scans, and finds the children of this process only by rule 3.

mod files;
mod orphans;
mod unread;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use usher_model::{CpuSet, ProcStat, ProcessId, TreeProcess};

use crate::file;
use crate::text;
use crate::tree::{read_stat, tasks};
use files::{
    LastPidFile, by_start, executable_mappings, is_process, library_kb, shape, working_threads,
};
use orphans::{Origin, OrphanRules};
use unread::{UnreadNumber, UnreadNumbers};

pub use orphans::RUN_VARIABLE;

/// `PF_FORKNOEXEC` of the kernel's `linux/sched.h`: the process has not executed a program since its
/// creation.
const FORK_NO_EXEC: u64 = 0x40;
/// Upper limit of new numbers that are examined one by one.
const NUMBERS_MAX: i32 = 1024;
/// Shortest time between two lists of all processes.
const LIST_NS: u64 = 200_000_000;
/// Time for which the executable and the command line are read at each scan, after a process was found
/// or has executed a program: an `exec` may be in progress.
const EXEC_NS: u64 = 50_000_000;
/// The same time for a process of which the kernel shows no addresses, so that a later `exec` may not
/// be noticed.
const HIDDEN_EXEC_NS: u64 = 2_000_000_000;
/// Shortest time between two measurements of the threads and the libraries of a process.
const MEASURE_NS: u64 = 50_000_000;
/// Upper limit of the threads of a process that are read.
const THREADS_MAX: usize = 256;

/// The process tree of one program.
#[derive(Debug)]
pub struct ForkScan {
    proc_root: PathBuf,
    ns_per_tick: u64,
    root: ProcessId,
    orphans: OrphanRules,
    last_pid_file: LastPidFile,
    last_pid: Option<i32>,
    /// The last number at the last check at which the program was at rest, if no other check or scan
    /// followed.
    rest: Option<i32>,
    listed_ns: Option<u64>,
    known: BTreeMap<i32, KnownProcess>,
    unread: UnreadNumbers,
    new_descendants: Vec<ProcessId>,
}

/// The result of the examination of a process.
enum Added {
    /// The process was added.
    New,
    /// The process could not be read, and must be examined again.
    Unread,
    /// The process is known or does not belong to the program.
    None,
}

#[derive(Debug)]
struct KnownProcess {
    process: TreeProcess,
    stat: ProcStat,
    /// Whether a chain of known parents led from the process to the root when it was found.
    descends: bool,
    /// Time at which the process was found, or at which it was last found to execute a program.
    executed_ns: u64,
    measured_ns: u64,
    /// Size of the executable mappings without the executable, in kB, when `mappings` was counted.
    library_kb: Option<u64>,
    /// Number of executable mappings of files.
    mappings: usize,
    /// CPU time of the main thread when the scan last compared it.
    run_ns: Option<u64>,
}

impl ForkScan {
    /// Starts to follow the tree below a process. `is_launched`: the process has no children yet, so
    /// that the first scan need not list all processes.
    pub fn new(proc_root: &Path, root: ProcessId, is_launched: bool) -> Self {
        let mut last_pid = LastPidFile::new(proc_root);
        Self {
            last_pid: is_launched.then(|| last_pid.read()).flatten(),
            last_pid_file: last_pid,
            proc_root: proc_root.to_owned(),
            ns_per_tick: 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1),
            root,
            orphans: OrphanRules::new(proc_root, root),
            rest: None,
            listed_ns: None,
            known: BTreeMap::new(),
            unread: UnreadNumbers::default(),
            new_descendants: Vec::new(),
        }
    }

    /// Returns whether the program may have a new process since the last scan, or whether a process
    /// was created or has executed a program in the last 50 ms, so that a scan may find another
    /// program. If the program has not run, numbers of other programs are skipped.
    ///
    /// `is_at_rest`: the CPU time of the program has not changed since the last scan. As the CPU time
    /// of a running thread lags behind, only the numbers that were assigned before the previous call
    /// are skipped.
    pub fn is_due(&mut self, at_ns: u64, is_at_rest: bool) -> bool {
        let is_young = |one: &KnownProcess| at_ns.saturating_sub(one.executed_ns) < EXEC_NS;
        if self.known.values().any(is_young) {
            return true;
        }
        if self.known.is_empty() || self.last_pid.is_none() {
            return true;
        }
        let last = self.last_pid_file.read();
        if is_at_rest {
            self.skip_before_last_rest(last);
            return false;
        }
        self.rest = None;
        if self.unread.is_due(at_ns) {
            return true;
        }
        if self.last_pid == last {
            return false;
        }
        let has_run = self.has_run();
        if !has_run {
            self.last_pid = last;
        }
        has_run
    }

    /// Skips the numbers that were assigned between the last scan and the last check at which the
    /// program was at rest. Unread numbers are kept: they were assigned before the last scan, when the
    /// program may have run.
    fn skip_before_last_rest(&mut self, last: Option<i32>) {
        let Some(last) = last else {
            return;
        };
        if let Some(before) = self.rest.replace(last) {
            self.last_pid = Some(before);
        }
    }

    /// Returns whether a thread of the program may have run since the last call. The CPU time of a
    /// process with several threads is too coarse to show this.
    fn has_run(&mut self) -> bool {
        let mut has_run = false;
        for (&pid, known) in &mut self.known {
            // The state is read first, because the CPU time of a running thread lags behind.
            let state = read_stat(&self.proc_root, pid).map_or('R', |stat| stat.state);
            let path = self.proc_root.join(pid.to_string()).join("schedstat");
            let read = file::parse(&path, "a process's schedstat", text::sched_stat);
            let run_ns = read.ok().map(|read| read.cpu_ns);
            let is_unknown = known.process.threads > 1 || run_ns.is_none() || state != 'S';
            has_run |= is_unknown || known.run_ns != run_ns;
            known.run_ns = run_ns;
        }
        has_run
    }

    /// Updates the tree. Returns whether a new process was found.
    pub fn scan(&mut self, at_ns: u64) -> bool {
        let last = self.last_pid_file.read();
        self.rest = None;
        self.refresh(at_ns);
        if let Some(root) = self.known.get(&self.root.pid) {
            self.orphans.note_root(&root.stat);
        }
        let mut is_new = false;
        if self.known.is_empty()
            && let Ok(root) = read_stat(&self.proc_root, self.root.pid)
        {
            is_new = matches!(self.add(root, at_ns), Added::New);
        }
        let mut candidates = self.unread.take_due(at_ns);
        let new = self.candidates(last, at_ns).into_iter();
        candidates.extend(new.map(|pid| UnreadNumber::new(pid, at_ns)));
        for number in candidates {
            let added = match read_stat(&self.proc_root, number.pid) {
                Ok(stat) => self.add(stat, at_ns),
                Err(_) => Added::Unread,
            };
            match added {
                Added::New => is_new = true,
                Added::Unread => self.unread.examine_again(number, at_ns),
                Added::None => {}
            }
        }
        is_new
    }

    /// Returns the program's processes, by pid.
    pub fn processes(&self) -> Vec<TreeProcess> {
        let processes = self.known.values();
        processes.map(|one| one.process.clone()).collect()
    }

    /// Returns whether the program has a process beside its root.
    pub fn has_children(&self) -> bool {
        self.known.keys().any(|&pid| pid != self.root.pid)
    }

    /// Returns the processes found since the last call that descend from the root for certain.
    /// Orphans that were found by their process group are left out; orphans with the variable of the
    /// launcher are included.
    pub fn take_new_descendants(&mut self) -> Vec<ProcessId> {
        std::mem::take(&mut self.new_descendants)
    }

    /// Returns the CPUs that at least one thread of a process may use; `None` if the process has
    /// ended. At most 256 threads are read.
    pub fn allowed_cpus(&self, process: ProcessId) -> Option<CpuSet> {
        let stat = read_stat(&self.proc_root, process.pid).ok()?;
        if stat.start_ticks != process.start_ticks {
            return None;
        }
        let dir = self.proc_root.join(process.pid.to_string()).join("task");
        let cpus_of = |tid: i32| {
            let path = dir.join(tid.to_string()).join("status");
            let status = file::parse(&path, "a thread's status", text::status);
            Some(status.ok()?.cpus_allowed)
        };
        let tids = tasks(&self.proc_root, process.pid).into_iter();
        let masks = tids.take(THREADS_MAX).filter_map(cpus_of);
        masks.reduce(|all, mask| all.or(&mask))
    }

    /// Measures the working threads of the given processes. Reads their mappings if the size of
    /// their libraries has changed. Each process is measured at most every 50 ms.
    pub fn measure(&mut self, pids: &BTreeSet<i32>, at_ns: u64) {
        for pid in pids {
            let Some(known) = self.known.get_mut(pid) else {
                continue;
            };
            if at_ns.saturating_sub(known.measured_ns) < MEASURE_NS {
                continue;
            }
            known.measured_ns = at_ns;
            let process = &mut known.process;
            if process.threads > 1 {
                process.working_threads = working_threads(&self.proc_root, process);
            }
            let library_kb = library_kb(&self.proc_root, *pid);
            if library_kb.is_some() && library_kb == known.library_kb {
                continue;
            }
            let Some(mappings) = executable_mappings(&self.proc_root, *pid) else {
                continue;
            };
            known.library_kb = library_kb;
            if mappings != known.mappings || process.mapped_at_cpu_ns.is_none() {
                known.mappings = mappings;
                process.mapped_at_cpu_ns = Some(process.cpu_ns);
            }
        }
    }

    /// Reads the known processes again, and drops ended processes.
    fn refresh(&mut self, at_ns: u64) {
        let (proc_root, ns_per_tick) = (&self.proc_root, self.ns_per_tick);
        let root = self.root.pid;
        let mut ended = BTreeMap::new();
        self.known.retain(|&pid, known| {
            let stat = read_stat(proc_root, pid)
                .ok()
                .filter(|stat| stat.start_ticks == known.process.id.start_ticks && !stat.is_dead());
            let Some(stat) = stat else {
                if pid != root {
                    ended.insert(pid, known.process.parent);
                }
                return false;
            };
            if known.has_executed(&stat) {
                known.executed_ns = at_ns;
                known.library_kb = None;
            }
            known.update(stat, ns_per_tick, at_ns);
            if at_ns.saturating_sub(known.executed_ns) < known.identified_for_ns() {
                known.identify(proc_root);
            }
            true
        });
        // A worker of an ended parent becomes a child of the parent's parent. Launchers such as R's
        // `makeCluster` start each worker by a shell that ends at once.
        for known in self.known.values_mut() {
            while let Some(&parent) = ended.get(&known.process.parent) {
                known.process.parent = parent;
            }
        }
    }

    /// Returns the numbers that may belong to new processes of the program.
    fn candidates(&mut self, last: Option<i32>, at_ns: u64) -> Vec<i32> {
        let before = std::mem::replace(&mut self.last_pid, last);
        let new = match (before, last) {
            (Some(before), Some(last)) => last.saturating_sub(before),
            _ => -1,
        };
        if (0..=NUMBERS_MAX).contains(&new) {
            let last = last.unwrap_or_default();
            return (last - new + 1..=last).collect();
        }
        let listed_ns = self.listed_ns;
        if listed_ns.is_some_and(|then_ns| at_ns.saturating_sub(then_ns) < LIST_NS) {
            // The list is postponed to a later scan.
            self.last_pid = None;
            return Vec::new();
        }
        self.listed_ns = Some(at_ns);
        by_start(&self.proc_root)
    }

    /// Adds a process if it belongs to the program and is not known.
    fn add(&mut self, stat: ProcStat, at_ns: u64) -> Added {
        let pid = stat.pid;
        if self.known.contains_key(&pid) {
            return Added::None;
        }
        let id = ProcessId {
            pid,
            start_ticks: stat.start_ticks,
        };
        let (parent, descends) = match self.known.get(&stat.parent) {
            _ if id == self.root => {
                self.orphans.note_root(&stat);
                (stat.parent, true)
            }
            Some(parent) => (stat.parent, parent.descends),
            None => match self.orphans.origin(&stat, &self.known) {
                Origin::Certain => (self.root.pid, true),
                Origin::Likely => (self.root.pid, false),
                Origin::Unread => return Added::Unread,
                Origin::Other => return Added::None,
            },
        };
        if stat.is_dead() || !is_process(&self.proc_root, pid) {
            return Added::None;
        }
        let process = TreeProcess {
            id,
            parent,
            name: stat.name.clone(),
            executable: None,
            shape: String::new(),
            executed: false,
            threads: 1,
            working_threads: 1,
            is_runnable: false,
            cpu_ns: 0,
            idle_since_ns: None,
            found_ns: at_ns,
            mapped_at_cpu_ns: None,
        };
        let mut known = KnownProcess {
            process,
            stat: stat.clone(),
            descends,
            executed_ns: at_ns,
            measured_ns: 0,
            library_kb: None,
            mappings: 0,
            run_ns: None,
        };
        known.update(stat, self.ns_per_tick, at_ns);
        known.identify(&self.proc_root);
        self.known.insert(pid, known);
        if descends && id != self.root {
            self.new_descendants.push(id);
        }
        Added::New
    }
}

impl KnownProcess {
    /// Returns whether the process seems to have executed a program since the last scan.
    fn has_executed(&self, stat: &ProcStat) -> bool {
        let image = |stat: &ProcStat| {
            let has_executed = stat.flags & FORK_NO_EXEC == 0;
            (stat.code_start, stat.arguments_start, has_executed)
        };
        image(&self.stat) != image(stat) || self.stat.name != stat.name
    }

    /// Returns the time after an `exec` for which the process is identified at each scan.
    fn identified_for_ns(&self) -> u64 {
        match self.stat.code_start {
            None | Some(0 | 1) => HIDDEN_EXEC_NS,
            Some(_) => EXEC_NS,
        }
    }

    fn update(&mut self, stat: ProcStat, ns_per_tick: u64, at_ns: u64) {
        let process = &mut self.process;
        process.threads = u32::try_from(stat.threads).unwrap_or(1).max(1);
        if process.threads == 1 {
            process.working_threads = 1;
        }
        let cpu_ns = stat.own_ticks.saturating_mul(ns_per_tick);
        let is_idle = stat.state == 'S' && cpu_ns == process.cpu_ns;
        process.idle_since_ns = is_idle.then(|| process.idle_since_ns.unwrap_or(at_ns));
        process.cpu_ns = cpu_ns;
        process.is_runnable = stat.state == 'R';
        process.executed = stat.flags & FORK_NO_EXEC == 0;
        self.stat = stat;
    }

    /// Reads the executable, the shape of the command line and the name. The process may execute a
    /// program meanwhile, or may have since its `stat` was read. The name is therefore read last: it
    /// belongs to the executable, or the next scan finds another executable.
    fn identify(&mut self, proc_root: &Path) {
        let dir = proc_root.join(self.process.id.pid.to_string());
        let found = std::fs::metadata(dir.join("exe"));
        self.process.executable = found.ok().map(|found| (found.dev(), found.ino()));
        let words = std::fs::read(dir.join("cmdline")).unwrap_or_default();
        self.process.shape = shape(&words);
        let name = std::fs::read(dir.join("comm")).unwrap_or_default();
        self.process.name = match String::from_utf8_lossy(&name).trim_end_matches('\n') {
            "" => self.stat.name.clone(),
            name => name.to_owned(),
        };
    }
}
