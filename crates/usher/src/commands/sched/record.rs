// SPDX-License-Identifier: GPL-2.0-only
//! The files through which the commands exchange state.
//!
//! - The process that holds the scheduler holds a lock on `sched.lock`, which the kernel releases
//!   with the process, and alone writes the record.
//! - It writes each version of the record to a new file, and locks that file before it replaces the
//!   previous one. A record is therefore never half written, and a locked record proves that its
//!   writer lives.
//! - A request to that process is written to another file, followed by a signal.
//! - Only one process requests at a time. It holds a lock on `sched.asking.lock` from before it
//!   reads the settings to be changed until the change is done.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use usher_scx::{Kernel, MapIds, ScxError, Settings, State as Loaded};

use crate::runtime;

/// State of a scheduler that was started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SchedulerRecord {
    /// The process that holds it.
    pub pid: i32,
    /// Its phase.
    #[serde(default)]
    pub state: Phase,
    /// Its behaviour, as text.
    pub does: String,
    /// Its settings.
    pub settings: Settings,
    /// Number of changes of the settings while it ran.
    pub changes: u32,
    /// What could not be done at the last change, and why.
    #[serde(default)]
    pub undone: Option<String>,
    /// Number of the change that last switched seats on or off; 0 if there was none.
    #[serde(default)]
    pub seats_since: u32,
    /// The kernel's ids of its maps.
    pub maps: MapIds,
    /// Whether the kernel keeps idle CPUs per NUMA node for it.
    #[serde(default)]
    pub idle_by_node: bool,
    /// Number of restarts because CPUs appeared or disappeared.
    pub restarts: u32,
    /// Why it ended.
    pub ended: Option<String>,
}

/// The phase of a scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Its process exists, but it does not run the threads yet.
    Starting,
    /// It runs the threads.
    #[default]
    Running,
    /// The kernel took the threads back because a CPU appeared or disappeared; it starts again.
    Restarting,
    /// It has ended.
    Ended,
}

/// Text for [`Phase::Restarting`].
pub const RESTARTS: &str = "restarts because of CPU hotplug";

impl SchedulerRecord {
    /// Records that its process died without recording a reason.
    fn mark_dead(&mut self) {
        if self.state != Phase::Ended {
            self.state = Phase::Ended;
            self.ended = Some(format!("its process {} died", self.pid));
        }
    }
}

/// Returns the lock file of the process that holds the scheduler.
fn lock_path(dir: &Path) -> PathBuf {
    dir.join("sched.lock")
}

/// Returns the path of the record.
fn path(dir: &Path) -> PathBuf {
    dir.join("sched.json")
}

/// Returns the path of the kernel's dump when it ends the scheduler.
pub fn dump_path(dir: &Path) -> PathBuf {
    dir.join("sched.dump")
}

/// Returns the path of the requested settings.
fn request_path(dir: &Path) -> PathBuf {
    dir.join("sched.wanted.json")
}

/// The exclusive right to send requests to the scheduler; released on drop.
#[derive(Debug)]
pub struct RequestLock {
    _lock: File,
}

impl RequestLock {
    /// Returns `None` if another process has the right.
    ///
    /// # Errors
    /// The directory is not writable.
    pub fn begin(dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = dir.join("sched.asking.lock");
        let lock = lock_file(&path).with_context(|| format!("writing {}", path.display()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _lock: lock })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("locking {}", path.display())),
        }
    }
}

/// Opens a lock file, which only users with write permission here can lock.
fn lock_file(path: &Path) -> std::io::Result<File> {
    let mut lock = OpenOptions::new();
    let lock = lock.write(true).create(true).truncate(false);
    lock.mode(0o600).open(path)
}

/// Writes new settings for the scheduler's process. The caller must hold [`RequestLock`].
///
/// # Errors
/// They cannot be written.
pub fn write_request(dir: &Path, wanted: &Settings) -> anyhow::Result<()> {
    let path = request_path(dir);
    let unfinished = path.with_extension("new");
    let written = fs::write(&unfinished, serde_json::to_vec(wanted)?);
    let written = written.and_then(|()| fs::rename(&unfinished, &path));
    written.with_context(|| format!("writing {}", path.display()))
}

/// Removes the requested settings. Returns whether they still existed.
///
/// # Errors
/// They cannot be removed.
pub fn withdraw_request(dir: &Path) -> anyhow::Result<bool> {
    remove(&request_path(dir))
}

/// Returns whether the file existed.
fn remove(path: &Path) -> anyhow::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("removing {}", path.display())),
    }
}

/// Reads and removes the requested settings.
///
/// # Errors
/// There are none, or they are not in the format of [`write_request`].
pub fn take_request(dir: &Path) -> anyhow::Result<Settings> {
    let path = request_path(dir);
    let taken = path.with_extension("taken");
    let text = fs::rename(&path, &taken).and_then(|()| fs::read(&taken));
    let text = text.with_context(|| format!("reading {}", path.display()))?;
    // No process reads a leftover of this file.
    let _ = fs::remove_file(&taken);
    serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))
}

/// Returns the record of the scheduler that runs the threads.
///
/// # Errors
/// It cannot be read, or no scheduler of Usher's runs the threads now.
pub fn of_running(dir: &Path) -> anyhow::Result<SchedulerRecord> {
    let record = read(dir)?;
    match record.as_ref().map(|record| record.state) {
        Some(Phase::Starting) => bail!("the scheduler is still starting: try again in a moment"),
        Some(Phase::Restarting) => {
            bail!("the scheduler {RESTARTS}: try again in a moment")
        }
        Some(Phase::Ended) | None => {
            return Err(none_runs(&super::kernel(), dir, record.as_ref()));
        }
        Some(Phase::Running) => {}
    }
    record.context(NONE_RUNS)
}

/// Returns why neither the scheduler of this record, if there is any, nor another scheduler can be
/// reached.
fn none_runs(kernel: &Kernel, dir: &Path, ended: Option<&SchedulerRecord>) -> anyhow::Error {
    if let Some(unknown) = unknown(kernel, dir, ended) {
        return anyhow!(unknown);
    }
    match kernel.state() {
        // No scheduler can be started here.
        Err(error @ ScxError::NoSchedExt { .. }) => error.into(),
        _ => anyhow!("{NONE_RUNS}: 'usher sched start' starts one"),
    }
}

/// The message if no scheduler of Usher's runs anywhere.
pub const NONE_RUNS: &str = "no scheduler of Usher's runs";

/// Returns why nothing is known here about a scheduler of Usher's that the kernel runs. `ended` is
/// the record in this directory, if any: it belongs to another scheduler, which ended. `None` if
/// the kernel runs none.
pub fn unknown(kernel: &Kernel, dir: &Path, ended: Option<&SchedulerRecord>) -> Option<String> {
    match kernel.state() {
        Ok(Loaded::Enabled { name }) if name == super::NAME => {}
        _ => return None,
    }
    let path = path(dir);
    let spoiled = match (ended, fs::read(&path)) {
        (None, Ok(text)) => serde_json::from_slice::<SchedulerRecord>(&text).err(),
        _ => None,
    };
    let (path, dir) = (path.display(), dir.display());
    let why = match (spoiled, ended) {
        (Some(why), _) => format!("but its record in {path} cannot be read ({why})"),
        (None, None) => {
            format!("started with another --runtime-dir than {dir}, or its record was removed")
        }
        // The kernel may not have completed the end yet.
        (None, Some(_)) => format!("started with another --runtime-dir than {dir}, or just ending"),
    };
    Some(format!(
        "a scheduler of Usher's runs, {why}; SIGTERM to its process ends it: \
         kill $(pgrep -f 'usher.* sched( .*)? start')"
    ))
}

/// Rejects requests that need a scheduler with statistics.
///
/// # Errors
/// The scheduler has none.
pub fn refuse_minimal(running: &SchedulerRecord) -> anyhow::Result<()> {
    match running.settings.minimal {
        true => bail!("the scheduler was started with --fifo=minimal, which has no statistics"),
        false => Ok(()),
    }
}

/// Returns a pidfd of the process that the record names, which no other process can get.
///
/// # Errors
/// It has ended.
pub fn process_of(dir: &Path, record: &SchedulerRecord) -> anyhow::Result<OwnedFd> {
    let pid = Pid::from_raw(record.pid).context("the record contains no pid")?;
    let process = pidfd_open(pid, PidfdFlags::empty())
        .with_context(|| format!("opening process {}", record.pid))?;
    // If the process lives after the pidfd was opened, the pidfd refers to it.
    let lives = |now: &SchedulerRecord| now.state != Phase::Ended && now.pid == record.pid;
    match read(dir)?.is_some_and(|now| lives(&now)) {
        true => Ok(process),
        false => bail!("the scheduler has just ended"),
    }
}

/// Reads the record of the last scheduler that was started. A scheduler with a dead process counts
/// as ended.
///
/// # Errors
/// It cannot be read.
pub fn read(dir: &Path) -> anyhow::Result<Option<SchedulerRecord>> {
    let path = path(dir);
    loop {
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                let dir = dir.display();
                bail!("the runtime directory '{dir}' is a file: name another with --runtime-dir")
            }
            opened => opened.with_context(|| format!("reading {}", path.display()))?,
        };
        let mut text = String::new();
        let read = { &file }.read_to_string(&mut text);
        read.with_context(|| format!("reading {}", path.display()))?;
        // A record of another version counts as none.
        let Ok(mut record) = serde_json::from_str::<SchedulerRecord>(&text) else {
            return Ok(None);
        };
        match writer(&file, &path) {
            // Any reader can lock the record, but not this file, which root checks.
            Writer::Lives if is_free(&lock_path(dir)) => record.mark_dead(),
            Writer::Lives => {}
            Writer::HasWrittenAnew => continue,
            Writer::Gone => record.mark_dead(),
        }
        return Ok(Some(record));
    }
}

/// Returns whether a file is not locked; false if it cannot be opened.
fn is_free(path: &Path) -> bool {
    let lock = OpenOptions::new().write(true).open(path);
    lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockShared).is_ok())
}

/// The state of the process that wrote a record.
#[derive(Debug, PartialEq, Eq)]
enum Writer {
    Lives,
    /// The record has been replaced meanwhile.
    HasWrittenAnew,
    Gone,
}

fn writer(file: &File, path: &Path) -> Writer {
    // This blocks no process: the writer locked the file before it became visible.
    if flock(file, FlockOperation::NonBlockingLockShared).is_err() {
        return Writer::Lives;
    }
    // A replaced file is unlocked. Its inode number is not reused while it is open here.
    let number = |found: std::io::Result<fs::Metadata>| found.ok().map(|found| found.ino());
    match number(file.metadata()) == number(fs::metadata(path)) {
        true => Writer::Gone,
        false => Writer::HasWrittenAnew,
    }
}

/// Rejects a start beside a running scheduler.
///
/// # Errors
/// A scheduler is held already.
pub fn refuse_beside(record: Option<&SchedulerRecord>) -> anyhow::Result<()> {
    match record.map(|record| record.state) {
        Some(Phase::Starting) => bail!("the scheduler is starting already"),
        Some(Phase::Running | Phase::Restarting) => {
            bail!(
                "the scheduler is started already: 'usher sched set' changes what it does, \
                 'usher sched stop' ends it"
            )
        }
        Some(Phase::Ended) | None => Ok(()),
    }
}

/// The record, in the process that holds the scheduler and writes it.
#[derive(Debug)]
pub struct RecordWriter {
    dir: PathBuf,
    _lock: File,
    /// The present record file, locked.
    written: Option<File>,
    record: SchedulerRecord,
}

impl RecordWriter {
    /// Takes the lock and records that this process starts a scheduler.
    ///
    /// # Errors
    /// Another process holds the lock, or the directory is not writable.
    pub fn take(dir: &Path, settings: &Settings) -> anyhow::Result<Self> {
        runtime::make_dir(dir)?;
        let path = lock_path(dir);
        let lock = lock_file(&path);
        let lock = lock.with_context(|| format!("writing {}", path.display()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            refuse_beside(read(dir)?.as_ref())?;
            bail!("a scheduler is being started or stopped: try again in a moment");
        }
        // Requests to the previous scheduler do not apply to the present scheduler, nor does its
        // dump.
        withdraw_request(dir)?;
        remove(&dump_path(dir))?;
        let record = SchedulerRecord {
            pid: std::process::id() as i32,
            state: Phase::Starting,
            does: super::described(settings),
            settings: *settings,
            changes: 0,
            undone: None,
            seats_since: 0,
            maps: MapIds::default(),
            idle_by_node: false,
            restarts: 0,
            ended: None,
        };
        let mut held = Self {
            dir: dir.to_owned(),
            _lock: lock,
            written: None,
            record,
        };
        held.write(|_| {})?;
        Ok(held)
    }

    /// Returns the record as last written.
    pub fn record(&self) -> &SchedulerRecord {
        &self.record
    }

    /// Changes the record and writes it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&mut self, change: impl FnOnce(&mut SchedulerRecord)) -> anyhow::Result<()> {
        let mut record = self.record.clone();
        change(&mut record);
        let written = self.replace(&record);
        self.written = Some(written.context("recording the state of the scheduler")?);
        // Only after other processes can read it.
        self.record = record;
        Ok(())
    }

    fn replace(&self, record: &SchedulerRecord) -> anyhow::Result<File> {
        let path = path(&self.dir);
        let unfinished = path.with_extension("new");
        // A leftover may be open in another process.
        let _ = fs::remove_file(&unfinished);
        let mut file = File::create_new(&unfinished)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // Every user may read the status, whatever root's umask.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(serde_json::to_string(record)?.as_bytes())?;
        fs::rename(&unfinished, &path)?;
        Ok(file)
    }

    /// Records the end and its reason, unless an end is recorded already.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(&mut self, why: &str) -> anyhow::Result<()> {
        if self.record.state == Phase::Ended {
            return Ok(());
        }
        self.write(|record| {
            record.state = Phase::Ended;
            record.ended = Some(why.to_owned());
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(dir: &Path) -> anyhow::Result<RecordWriter> {
        RecordWriter::take(dir, &Settings::default())
    }

    fn known(dir: &Path) -> (Phase, Option<String>) {
        let record = read(dir).unwrap().unwrap();
        (record.state, record.ended)
    }

    #[test]
    fn a_record_contains_the_phase_of_its_scheduler() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(read(dir).unwrap().is_none());
        let mut held = taken(dir).unwrap();
        assert_eq!(known(dir), (Phase::Starting, None));
        let refused = |word: &str| {
            let error = of_running(dir).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refused("is still starting");
        held.write(|record| {
            record.state = Phase::Running;
            record.changes = 7;
        })
        .unwrap();
        assert_eq!(of_running(dir).unwrap().changes, 7);
        held.write(|record| record.state = Phase::Restarting)
            .unwrap();
        refused("restarts because");
        held.end("stopped").unwrap();
        held.end("another reason").unwrap();
        assert!(of_running(dir).is_err());
        assert_eq!(known(dir), (Phase::Ended, Some("stopped".to_owned())));
    }

    #[test]
    fn suggests_no_start_where_none_is_possible() {
        let (dir, sys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let actual = || none_runs(&Kernel::at(sys.path()), dir.path(), None).to_string();
        assert!(
            actual().starts_with("this kernel has no sched_ext"),
            "{}",
            actual()
        );
        let ext = sys.path().join("kernel/sched_ext");
        fs::create_dir_all(&ext).unwrap();
        fs::write(ext.join("state"), "disabled\n").unwrap();
        let start = "no scheduler of Usher's runs: 'usher sched start' starts one";
        assert_eq!(actual(), start);
    }

    #[test]
    fn rejects_a_file_as_runtime_directory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let actual = read(file.path()).unwrap_err().to_string();
        let line = format!(
            "the runtime directory '{}' is a file",
            file.path().display()
        );
        assert!(actual.starts_with(&line), "{actual}");
    }

    #[test]
    fn a_failed_write_can_be_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = taken(dir).unwrap();
        let in_the_way = path(dir).with_extension("new");
        fs::create_dir(&in_the_way).unwrap();
        assert!(held.end("stopped").is_err());
        assert_eq!(held.record().state, Phase::Starting);
        assert_eq!(known(dir), (Phase::Starting, None));
        fs::remove_dir(&in_the_way).unwrap();
        held.end("stopped").unwrap();
        assert_eq!(known(dir), (Phase::Ended, Some("stopped".to_owned())));
    }

    #[test]
    fn a_scheduler_with_a_dead_process_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = taken(dir).unwrap();
        held.write(|record| record.state = Phase::Running).unwrap();
        let record = of_running(dir).unwrap();
        assert!(process_of(dir, &record).is_ok());
        drop(held);
        let died = format!("its process {} died", std::process::id());
        assert_eq!(known(dir), (Phase::Ended, Some(died)));
        // It is not signalled, although a process with its pid lives.
        assert!(process_of(dir, &record).is_err());
    }

    #[test]
    fn another_process_cannot_fake_a_living_scheduler() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = taken(dir).unwrap();
        held.write(|record| record.state = Phase::Running).unwrap();
        let record = of_running(dir).unwrap();
        drop(held);
        // Every process that may read the file can lock it.
        let file = File::open(path(dir)).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(known(dir).0, Phase::Ended);
        assert!(process_of(dir, &record).is_err());
        taken(dir).unwrap();
    }

    #[test]
    fn a_new_scheduler_replaces_the_process_and_dump_of_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut first = taken(dir).unwrap();
        first.write(|record| record.pid = 1).unwrap();
        fs::write(dump_path(dir), "CPU states").unwrap();
        assert!(taken(dir).is_err());
        assert!(dump_path(dir).exists(), "it is the first one's still");
        drop(first);
        let _second = taken(dir).unwrap();
        assert!(!dump_path(dir).exists());
        let record = read(dir).unwrap().unwrap();
        let own = std::process::id() as i32;
        assert_eq!((record.pid, record.state), (own, Phase::Starting));
    }

    #[test]
    fn rejects_a_second_scheduler_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = taken(dir).unwrap();
        let refused = || format!("{:#}", taken(dir).unwrap_err());
        assert_eq!(refused(), "the scheduler is starting already");
        held.write(|record| record.state = Phase::Running).unwrap();
        assert!(refused().starts_with("the scheduler is started already"));
        held.end("stopped").unwrap();
        assert!(refused().contains("started or stopped"));
    }

    #[test]
    fn a_reader_blocks_no_writer_and_reads_one_whole_record() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = taken(dir).unwrap();
        let reader = File::open(path(dir)).unwrap();
        let before = fs::read_to_string(path(dir)).unwrap();
        assert_eq!(writer(&reader, &path(dir)), Writer::Lives);
        held.write(|record| record.does = "more".repeat(9000))
            .unwrap();
        assert_eq!(writer(&reader, &path(dir)), Writer::HasWrittenAnew);
        drop(held);
        // The reader keeps its lock, and the file as it was opened.
        flock(&reader, FlockOperation::NonBlockingLockShared).unwrap();
        let left = File::open(path(dir)).unwrap();
        assert_eq!(writer(&left, &path(dir)), Writer::Gone);
        flock(&left, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(taken(dir).is_ok());
        let mut text = String::new();
        { &reader }.read_to_string(&mut text).unwrap();
        assert_eq!(text, before);
    }

    #[test]
    fn reports_why_a_running_scheduler_is_unknown() {
        let (dir, sys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dir = dir.path();
        let kernel = Kernel::at(sys.path());
        let actual = |ended: Option<&SchedulerRecord>| unknown(&kernel, dir, ended).unwrap();
        assert_eq!(unknown(&kernel, dir, None), None);
        let ext = sys.path().join("kernel/sched_ext");
        fs::create_dir_all(ext.join("root")).unwrap();
        fs::write(ext.join("state"), "enabled\n").unwrap();
        fs::write(ext.join("root/ops"), "bpfland\n").unwrap();
        assert_eq!(unknown(&kernel, dir, None), None);
        fs::write(ext.join("root/ops"), "usher\n").unwrap();
        let elsewhere = format!("another --runtime-dir than {}", dir.display());
        assert!(
            actual(None).contains(&format!("{elsewhere}, or its record was removed; SIGTERM")),
            "{}",
            actual(None)
        );
        drop(taken(dir).unwrap());
        let last = read(dir).unwrap();
        assert!(actual(last.as_ref()).contains(&format!("{elsewhere}, or just ending")));
        fs::write(path(dir), "{").unwrap();
        assert!(read(dir).unwrap().is_none());
        let spoiled = format!("its record in {} cannot be read (EOF", path(dir).display());
        assert!(actual(None).contains(&spoiled), "{}", actual(None));
    }

    #[test]
    fn settings_of_an_older_version_keep_seats() {
        let mut text = serde_json::to_value(Settings::default()).unwrap();
        text.as_object_mut().unwrap().remove("seats");
        let read: Settings = serde_json::from_value(text).unwrap();
        assert_eq!(read, Settings::default());
    }

    #[test]
    fn a_request_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(take_request(dir).is_err());
        let settings = Settings {
            smt: false,
            ..Settings::default()
        };
        write_request(dir, &settings).unwrap();
        assert_eq!(take_request(dir).unwrap(), settings);
        assert!(take_request(dir).is_err());
        write_request(dir, &settings).unwrap();
        assert!(withdraw_request(dir).unwrap() && !withdraw_request(dir).unwrap());
        write_request(dir, &settings).unwrap();
        let _held = taken(dir).unwrap();
        assert!(take_request(dir).is_err(), "the last one's");
    }
}
