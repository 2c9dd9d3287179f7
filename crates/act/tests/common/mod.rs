// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that several test files share. The functions start programs of the rig
//! (`rig/main.rs`), and read the state of processes without the code of the crate under test.

#![allow(dead_code)] // each test file uses only a part of these functions

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use usher_act::{ActConfig, ActError, Actuator, CgroupPlacement, WorkClass, undo_stale};
use usher_model::{ProcessId, ProcessTree, ProgramId};

/// Upper limit of the wait for a state before a test fails.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Returns the path of the rig, the binary with the programs of the tests.
pub fn rig() -> PathBuf {
    env!("CARGO_BIN_EXE_usher-act-rig").into()
}

/// Returns the command that starts a program of the rig.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(rig());
    command.args(args);
    command
}

/// The mechanism of the actuator that a test uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActMethod {
    /// With a cgroup v2 of the program's own.
    OwnCgroup,
    /// Without cgroups: by descent and signals.
    NoCgroups,
}

impl ActMethod {
    pub fn config(self, runtime: &Path) -> ActConfig {
        let mut config = ActConfig::new(runtime);
        if self == Self::NoCgroups {
            config.cgroup_root = "/nonexistent".into();
        }
        config
    }
}

/// Returns the mechanisms that work on this machine, and reports the others as skipped.
pub fn methods() -> Vec<ActMethod> {
    let works = |method: &ActMethod| {
        let runtime = tempfile::tempdir().unwrap();
        let mut act = Actuator::open(method.config(runtime.path())).unwrap();
        let works = *method == ActMethod::NoCgroups
            || act.describe().placement == CgroupPlacement::ChildCgroup;
        if !works {
            usher_skip::skip!("{method:?}: {:?}", act.describe().reasons);
        }
        assert!(act.undo_all().is_empty());
        works
    };
    [ActMethod::OwnCgroup, ActMethod::NoCgroups]
        .into_iter()
        .filter(works)
        .collect()
}

/// Admits programs as if they had been launched.
pub trait Launch {
    fn launch(
        &mut self,
        program: ProgramId,
        root: ProcessId,
        work: WorkClass,
    ) -> Result<ProcessTree, ActError>;

    /// Ends the management of a program as a daemon does: calls `depart`, and continues the scan
    /// that `depart` leaves unfinished.
    fn leave(&mut self, program: ProgramId);
}

impl Launch for Actuator {
    fn launch(
        &mut self,
        program: ProgramId,
        root: ProcessId,
        work: WorkClass,
    ) -> Result<ProcessTree, ActError> {
        self.prepare_held(program, root, work)?;
        self.admit(program, root, work)
    }

    fn leave(&mut self, program: ProgramId) {
        self.depart(program).unwrap();
        finish_scans(self);
    }
}

/// Continues all scans until they are complete. The time limit is long, because scans use only a
/// limited share of a CPU and are slow in a build for a sanitizer.
pub fn finish_scans(act: &mut Actuator) {
    wait_within(10 * DEADLINE, "the end of all scans", || {
        act.continue_scans().unwrap();
        !act.is_scanning()
    });
}

/// Ends the management of a program of which a change cannot be undone. Continues the scans of the
/// departure until an error occurs, and returns the text of the error.
pub fn fail_to_depart(act: &mut Actuator, program: ProgramId) -> String {
    let mut departed = act.depart(program);
    wait_until("the end of the departure", || {
        if departed.is_ok() {
            departed = act.continue_scans();
        }
        departed.is_err()
    });
    departed.unwrap_err().to_string()
}

/// A program of the rig, in a process group of its own.
pub struct Program {
    pub child: Child,
    pub id: ProcessId,
}

impl Program {
    pub fn start(args: &[&str]) -> Self {
        Self::start_as(command(args))
    }

    /// Starts the program in a session of its own.
    pub fn start_in_session(mut command: Command) -> Self {
        use std::os::unix::process::CommandExt;
        let lead = || {
            rustix::process::setsid()?;
            Ok(())
        };
        // SAFETY: the closure calls only `setsid`, which is async-signal-safe.
        unsafe { command.pre_exec(lead) };
        Self::spawn(command)
    }

    pub fn start_as(mut command: Command) -> Self {
        use std::os::unix::process::CommandExt;
        command.process_group(0);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A copy of the rig cannot be executed (`ETXTBSY`) while a child that another test forked
        // has inherited the descriptor through which the copy was written. The start is therefore
        // repeated.
        let mut spawned = None;
        wait_until("the rig to be executable", || {
            spawned = match command.spawn() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
                spawned => Some(spawned.unwrap()),
            };
            spawned.is_some()
        });
        let mut child = spawned.unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let id = id_of(child.id() as i32);
        Self { child, id }
    }

    pub fn pid(&self) -> i32 {
        self.id.pid
    }

    /// Kills the whole process group of the program. The kill is repeated until no process is left,
    /// because some programs create processes faster than one kill finds them.
    pub fn kill(&mut self) {
        let group = self.pid();
        wait_until("the program's group to be dead", || {
            // SAFETY: `kill` accesses no memory; it signals the process group that this test
            // started.
            unsafe { libc::kill(-group, libc::SIGKILL) };
            let _ = self.child.try_wait();
            !pids()
                .into_iter()
                .any(|pid| stat(pid).is_some_and(|stat| stat.group == group && stat.state != 'Z'))
        });
        let _ = self.child.wait();
    }

    /// Returns the pids of the program's processes, which are found by their process group.
    pub fn processes(&self) -> Vec<i32> {
        let of_group =
            |pid: &i32| stat(*pid).is_some_and(|s| s.group == self.pid() && s.state != 'Z');
        pids().into_iter().filter(of_group).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The fields of `/proc/PID/stat` that the tests read.
pub struct Stat {
    pub state: char,
    pub group: i32,
    pub start_ticks: u64,
}

pub fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    Some(Stat {
        state: fields[0].chars().next()?,
        group: fields[2].parse().ok()?,
        start_ticks: fields[19].parse().ok()?,
    })
}

pub fn pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

pub fn id_of(pid: i32) -> ProcessId {
    ProcessId {
        pid,
        start_ticks: stat(pid).unwrap().start_ticks,
    }
}

/// Returns the affinity lists of all threads of a process.
pub fn masks(pid: i32) -> BTreeSet<String> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return BTreeSet::new();
    };
    tasks
        .filter_map(|task| {
            let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some(line.trim().to_owned())
        })
        .collect()
}

/// Returns the cgroups of a process.
pub fn cgroups(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default()
}

/// The values that determine a thread's share of CPUs and disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchedValues {
    pub policy: i32,
    pub reset_on_fork: bool,
    pub realtime: i32,
    pub nice: i32,
    pub io: i64,
}

impl SchedValues {
    /// Returns the values of an unchanged thread, which are the values of the calling thread.
    pub fn plain() -> Self {
        rank(0).unwrap()
    }

    /// The values of a completely demoted thread.
    pub const IDLE: Self = Self {
        policy: libc::SCHED_IDLE,
        reset_on_fork: false,
        realtime: 0,
        nice: 19,
        io: 3 << 13,
    };
}

pub fn rank(tid: i32) -> Option<SchedValues> {
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel writes only to `param`, which outlives the call; the other calls take
    // numbers.
    let (policy, io) = unsafe {
        if libc::sched_getparam(tid, &mut param) != 0 {
            return None;
        }
        let io = libc::syscall(libc::SYS_ioprio_get, 1, tid);
        (libc::sched_getscheduler(tid), io)
    };
    Some(SchedValues {
        policy: policy & !libc::SCHED_RESET_ON_FORK,
        reset_on_fork: policy & libc::SCHED_RESET_ON_FORK != 0,
        realtime: param.sched_priority,
        nice: nice(tid)?,
        io,
    })
}

fn nice(tid: i32) -> Option<i32> {
    // `None` stands for the calling process.
    let tid = rustix::process::Pid::from_raw(tid);
    rustix::process::getpriority_process(tid).ok()
}

/// Returns the threads of a process.
pub fn threads(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let number = |task: fs::DirEntry| task.file_name().to_str()?.parse().ok();
    let tasks = tasks.into_iter().flatten().flatten();
    tasks.filter_map(number).collect()
}

/// Returns the scheduling values of all threads of a program, by thread number.
pub fn sched_values(program: &Program) -> BTreeMap<i32, SchedValues> {
    let threads = program.processes().into_iter().flat_map(threads);
    threads.filter_map(|tid| Some((tid, rank(tid)?))).collect()
}

/// Returns the nice value of the autogroup of a process, if it has an autogroup.
pub fn autogroup(pid: i32) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/autogroup")).ok()?;
    text.trim().rsplit_once(' ')?.1.parse().ok()
}

/// The state of a process: whether it is stopped, its masks, its cgroups, the scheduling values of
/// its threads, and the nice value of its autogroup.
pub type Snapshot = (
    bool,
    BTreeSet<String>,
    String,
    BTreeMap<i32, SchedValues>,
    Option<i32>,
);

/// Returns the visible state of each process of a program.
pub fn snapshot(program: &Program) -> BTreeMap<i32, Snapshot> {
    let of = |pid: i32| {
        let stopped = stat(pid).is_some_and(|stat| stat.state == 'T');
        let sched_values = threads(pid).into_iter();
        let sched_values = sched_values
            .filter_map(|tid| Some((tid, rank(tid)?)))
            .collect();
        (
            pid,
            (
                stopped,
                masks(pid),
                cgroups(pid),
                sched_values,
                autogroup(pid),
            ),
        )
    };
    program.processes().into_iter().map(of).collect()
}

/// Polls until `holds` returns true. Fails the test after [`DEADLINE`].
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    wait_within(DEADLINE, what, holds);
}

/// Polls until `holds` returns true. Fails the test after the time `most`.
fn wait_within(most: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + most;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns whether an undo is complete. On a busy machine, the only error of an undo may be that
/// not all runnable threads have run for long enough. Returns `false` in this case, in which the
/// callers of Usher repeat the undo. Fails the test for other errors.
pub fn is_undone(errors: &[ActError]) -> bool {
    let others: Vec<_> = errors
        .iter()
        .filter(|error| !error.is_not_undone())
        .collect();
    assert!(others.is_empty(), "{others:?}");
    errors.is_empty()
}

/// Undoes the changes that dead instances left, in as many attempts as necessary. Returns the
/// number of released programs and the number of closed journals.
pub fn undo_all_stale(config: &ActConfig, what: &str) -> (usize, usize) {
    let mut undone = (0, 0);
    wait_until(&format!("the undo of dead instances: {what}"), || {
        let report = undo_stale(config).unwrap();
        undone = (undone.0 + report.programs, undone.1 + report.instances);
        is_undone(&report.errors)
    });
    undone
}

/// Returns the directories anywhere in the cgroup hierarchies with this instance's name in their
/// names.
pub fn leftovers(instance: &Path) -> Vec<PathBuf> {
    let name = format!("usher-{}", instance.file_name().unwrap().to_str().unwrap());
    // Finds the instance's own directory and the directories of its programs.
    fn find(dir: &Path, name: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let rest = entry.file_name();
                let rest = rest.to_str().and_then(|own| own.strip_prefix(name));
                if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) {
                    found.push(entry.path());
                }
                find(&entry.path(), name, found);
            }
        }
    }
    let mut found = Vec::new();
    find(Path::new("/sys/fs/cgroup"), &name, &mut found);
    found
}

pub fn cpu_list() -> String {
    masks(std::process::id() as i32).into_iter().next().unwrap()
}

/// Makes plain files like the files that the kernel makes for a cgroup.
pub fn cgroup(dir: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    for (file, text) in files {
        fs::write(dir.join(file), text).unwrap();
    }
}

/// Makes a directory like `/proc` in which cgroup v2 is mounted at `mount`. All other files are
/// links to the real `/proc`.
pub fn fake_proc(dir: &Path, mount: &Path, programs: &[i32]) {
    fs::create_dir_all(dir.join("self")).unwrap();
    let line = format!("31 23 0:28 / {} rw - cgroup2 cgroup2 rw\n", mount.display());
    fs::write(dir.join("self/mountinfo"), line).unwrap();
    symlink("/proc/self/stat", dir.join("self/stat")).unwrap();
    symlink("/proc/self/ns", dir.join("self/ns")).unwrap();
    symlink("/proc/sys", dir.join("sys")).unwrap();
    symlink("/proc/loadavg", dir.join("loadavg")).unwrap();
    for pid in programs.iter().chain([&(std::process::id() as i32)]) {
        let fake = dir.join(pid.to_string());
        fs::create_dir_all(&fake).unwrap();
        for file in ["stat", "task", "status", "autogroup"] {
            symlink(format!("/proc/{pid}/{file}"), fake.join(file)).unwrap();
        }
        fs::write(fake.join("cgroup"), "0::/\n").unwrap();
    }
}

/// Returns an actuator that uses no cgroups, with a runtime directory of its own.
pub fn without_cgroups() -> (tempfile::TempDir, Actuator) {
    let runtime = tempfile::tempdir().unwrap();
    let act = Actuator::open(ActMethod::NoCgroups.config(runtime.path())).unwrap();
    (runtime, act)
}

pub fn close(mut act: Actuator) {
    let left = act.undo_all();
    assert!(left.is_empty(), "{left:?}");
}

/// Returns whether this process may lower and raise priorities.
pub fn has_rights() -> bool {
    let has = rustix::process::geteuid().is_root();
    if !has {
        usher_skip::skip!("needs root, to raise priorities again");
    }
    has
}

pub fn all_have(program: &Program, rank: SchedValues) -> bool {
    let sched_values = sched_values(program);
    let has = |has: &SchedValues| {
        let reset_on_fork = rank.reset_on_fork;
        SchedValues {
            reset_on_fork,
            ..*has
        } == rank
    };
    !sched_values.is_empty() && sched_values.values().all(has)
}

/// Returns the mount point of cgroup v2, found without the code of the crate under test.
pub fn v2_mount() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let of_type = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
    let line = mounts.lines().find(of_type)?;
    line.split(' ').nth(1).map(PathBuf::from)
}

/// Returns the mount point of cgroup v2; panics if cgroup v2 is not mounted.
pub fn v2_top() -> PathBuf {
    v2_mount().unwrap()
}

/// Copies a program by a separate process, `cp`. If this process wrote the copy, a child that
/// another thread forks could inherit the descriptor that is open for writing, and the kernel
/// executes no file that is open for writing (`ETXTBSY`).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut copy = Command::new("cp");
    copy.arg("--").arg(from.as_ref()).arg(to.as_ref());
    assert!(copy.status().unwrap().success());
}
