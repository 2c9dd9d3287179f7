// SPDX-License-Identifier: GPL-2.0-only
//! The files by which the commands know of one another. Whoever holds the scheduler
//! holds a lock on `sched.lock`, which ends with its process, and alone writes the
//! record: each time a file of its own, which is locked too before it takes the place
//! of the last. So a record is never half written, and whoever finds one locked knows
//! that the very process that wrote it lives. What is asked of that process lies in
//! another file, and a signal says that it does. One asks at a time: whoever does holds a
//! lock on `sched.asking.lock` from before it reads what is to be changed until that is.

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

/// What is known of a scheduler that was started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// The process that holds it.
    pub pid: i32,
    /// How far it is.
    #[serde(default)]
    pub state: State,
    /// What it is to do, for people.
    pub does: String,
    /// The same, as it is told.
    pub settings: Settings,
    /// How often that was changed while it ran.
    pub changes: u32,
    /// What of the last change could not be done, and why.
    #[serde(default)]
    pub undone: Option<String>,
    /// Which of these changes was the last to have seats kept, or not.
    #[serde(default)]
    pub seats_since: u32,
    /// The kernel's numbers of its maps.
    pub maps: MapIds,
    /// Whether the kernel keeps the idle CPUs of each NUMA node apart for it.
    #[serde(default)]
    pub idle_by_node: bool,
    /// How often it began anew because CPUs came or went.
    pub restarts: u32,
    /// Why it ended.
    pub ended: Option<String>,
}

/// How far a scheduler is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Its process is there, and has not got the threads yet.
    Starting,
    /// It has the threads.
    #[default]
    Running,
    /// The kernel took the threads, as a CPU came or went; it starts again.
    BeginningAnew,
    /// It is over.
    Ended,
}

/// What [`State::BeginningAnew`] is called.
pub const BEGINS_ANEW: &str = "begins anew, as a CPU has come or gone";

impl Record {
    /// Its process is there no more, and has not said why.
    fn die(&mut self) {
        if self.state != State::Ended {
            self.state = State::Ended;
            self.ended = Some(format!("its process {} died", self.pid));
        }
    }
}

/// What whoever holds the scheduler has locked.
fn lock_path(dir: &Path) -> PathBuf {
    dir.join("sched.lock")
}

/// Where the record is.
fn path(dir: &Path) -> PathBuf {
    dir.join("sched.json")
}

/// Where the kernel's dump goes when it ends the scheduler.
pub fn dump_path(dir: &Path) -> PathBuf {
    dir.join("sched.dump")
}

/// Where lies what the scheduler is to do from now on.
fn wanted_path(dir: &Path) -> PathBuf {
    dir.join("sched.wanted.json")
}

/// That nobody else asks the scheduler for something; ends with the value.
#[derive(Debug)]
pub struct Asking {
    _lock: File,
}

impl Asking {
    /// `None`: somebody else does at the moment.
    ///
    /// # Errors
    /// The directory cannot be written in.
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

/// A file to be locked by those who may write here.
fn lock_file(path: &Path) -> std::io::Result<File> {
    let mut lock = OpenOptions::new();
    let lock = lock.write(true).create(true).truncate(false);
    lock.mode(0o600).open(path)
}

/// Leaves new settings for the scheduler's process; for who is [`Asking`].
///
/// # Errors
/// They cannot be written.
pub fn leave(dir: &Path, wanted: &Settings) -> anyhow::Result<()> {
    let path = wanted_path(dir);
    let unfinished = path.with_extension("new");
    let written = fs::write(&unfinished, serde_json::to_vec(wanted)?);
    let written = written.and_then(|()| fs::rename(&unfinished, &path));
    written.with_context(|| format!("writing {}", path.display()))
}

/// Takes back what was left; whether it was there still.
///
/// # Errors
/// It cannot be removed.
pub fn withdraw(dir: &Path) -> anyhow::Result<bool> {
    remove(&wanted_path(dir))
}

/// Whether it was there.
fn remove(path: &Path) -> anyhow::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("removing {}", path.display())),
    }
}

/// Takes what was left, which is then there no more.
///
/// # Errors
/// There is nothing, or nothing that [`leave`] writes.
pub fn take_wanted(dir: &Path) -> anyhow::Result<Settings> {
    let path = wanted_path(dir);
    let taken = path.with_extension("taken");
    let text = fs::rename(&path, &taken).and_then(|()| fs::read(&taken));
    let text = text.with_context(|| format!("reading {}", path.display()))?;
    // Nobody looks for what is left of it.
    let _ = fs::remove_file(&taken);
    serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))
}

/// The record of the scheduler that has the threads.
///
/// # Errors
/// It cannot be read, or none of Usher's has them now.
pub fn of_running(dir: &Path) -> anyhow::Result<Record> {
    let record = read(dir)?;
    match record.as_ref().map(|record| record.state) {
        Some(State::Starting) => bail!("the scheduler is starting still: try again in a moment"),
        Some(State::BeginningAnew) => {
            bail!("the scheduler {BEGINS_ANEW}: try again in a moment")
        }
        Some(State::Ended) | None => {
            return Err(none_runs(&super::kernel(), dir, record.as_ref()));
        }
        Some(State::Running) => {}
    }
    record.context(NONE_RUNS)
}

/// Why the one of this record, if there was any, is not asked, nor another.
fn none_runs(kernel: &Kernel, dir: &Path, ended: Option<&Record>) -> anyhow::Error {
    if let Some(unknown) = unknown(kernel, dir, ended) {
        return anyhow!(unknown);
    }
    match kernel.state() {
        // None can be started here.
        Err(error @ ScxError::NoSchedExt { .. }) => error.into(),
        _ => anyhow!("{NONE_RUNS}: 'usher sched start' starts one"),
    }
}

/// What is said where there is none, in this directory nor elsewhere.
pub const NONE_RUNS: &str = "no scheduler of Usher's runs";

/// Of a scheduler of Usher's that the kernel has, and that is not the one of this record,
/// which ended, if there was any: why nothing is known of it here. `None`: the kernel has none.
pub fn unknown(kernel: &Kernel, dir: &Path, ended: Option<&Record>) -> Option<String> {
    match kernel.state() {
        Ok(Loaded::Enabled { name }) if name == super::NAME => {}
        _ => return None,
    }
    let path = path(dir);
    let spoiled = match (ended, fs::read(&path)) {
        (None, Ok(text)) => serde_json::from_slice::<Record>(&text).err(),
        _ => None,
    };
    let (path, dir) = (path.display(), dir.display());
    let why = match (spoiled, ended) {
        (Some(why), _) => format!("but its record in {path} cannot be read ({why})"),
        (None, None) => {
            format!("started with another --runtime-dir than {dir}, or that was emptied")
        }
        // The kernel may not be through with it.
        (None, Some(_)) => format!("started with another --runtime-dir than {dir}, or just ending"),
    };
    Some(format!(
        "a scheduler of Usher's runs, {why}; SIGTERM to its process ends it: \
         kill $(pgrep -f 'usher.* sched( .*)? start')"
    ))
}

/// Refuses what only a scheduler can answer that keeps account.
///
/// # Errors
/// It is the one that does not.
pub fn refuse_minimal(running: &Record) -> anyhow::Result<()> {
    match running.settings.minimal {
        true => bail!("the scheduler was started with --fifo=minimal, and keeps no account"),
        false => Ok(()),
    }
}

/// A hold of the process that the record names, which no other process can get.
///
/// # Errors
/// It has ended.
pub fn process_of(dir: &Path, record: &Record) -> anyhow::Result<OwnedFd> {
    let pid = Pid::from_raw(record.pid).context("the record names no process")?;
    let process = pidfd_open(pid, PidfdFlags::empty())
        .with_context(|| format!("taking hold of process {}", record.pid))?;
    // What lives after the hold was taken is what is held.
    let lives = |now: &Record| now.state != State::Ended && now.pid == record.pid;
    match read(dir)?.is_some_and(|now| lives(&now)) {
        true => Ok(process),
        false => bail!("the scheduler has just ended"),
    }
}

/// The record of the last that was started. One whose process has died without a word
/// has ended, too.
///
/// # Errors
/// It cannot be read.
pub fn read(dir: &Path) -> anyhow::Result<Option<Record>> {
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
        // Another version's is nobody's.
        let Ok(mut record) = serde_json::from_str::<Record>(&text) else {
            return Ok(None);
        };
        match writer(&file, &path) {
            // Anybody can lock what anybody can read, but not this, which root looks at.
            Writer::Lives if is_free(&lock_path(dir)) => record.die(),
            Writer::Lives => {}
            Writer::HasWrittenAnew => continue,
            Writer::Gone => record.die(),
        }
        return Ok(Some(record));
    }
}

/// Whether nobody has locked a file; not where it cannot be opened.
fn is_free(path: &Path) -> bool {
    let lock = OpenOptions::new().write(true).open(path);
    lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockShared).is_ok())
}

/// Who wrote a record.
#[derive(Debug, PartialEq, Eq)]
enum Writer {
    Lives,
    /// Another one lies there by now.
    HasWrittenAnew,
    Gone,
}

fn writer(file: &File, path: &Path) -> Writer {
    // Nobody is kept waiting by this: it was locked by its writer before it was there.
    if flock(file, FlockOperation::NonBlockingLockShared).is_err() {
        return Writer::Lives;
    }
    // What was replaced is let go, and its number not given again while it is open.
    let number = |found: std::io::Result<fs::Metadata>| found.ok().map(|found| found.ino());
    match number(file.metadata()) == number(fs::metadata(path)) {
        true => Writer::Gone,
        false => Writer::HasWrittenAnew,
    }
}

/// Refuses where a scheduler is held already.
///
/// # Errors
/// One is.
pub fn refuse_beside(record: Option<&Record>) -> anyhow::Result<()> {
    match record.map(|record| record.state) {
        Some(State::Starting) => bail!("the scheduler is starting already"),
        Some(State::Running | State::BeginningAnew) => {
            bail!(
                "the scheduler is started already: 'usher sched set' changes what it does, \
                 'usher sched stop' ends it"
            )
        }
        Some(State::Ended) | None => Ok(()),
    }
}

/// The record, to be written by whoever holds the scheduler.
#[derive(Debug)]
pub struct Held {
    dir: PathBuf,
    _lock: File,
    /// What lies there, locked.
    written: Option<File>,
    record: Record,
}

impl Held {
    /// Takes hold of it: from here on the record says that this process starts one.
    ///
    /// # Errors
    /// Another process has, or the directory cannot be written in.
    pub fn take(dir: &Path, settings: &Settings) -> anyhow::Result<Self> {
        runtime::make_dir(dir)?;
        let path = lock_path(dir);
        let lock = lock_file(&path);
        let lock = lock.with_context(|| format!("writing {}", path.display()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            refuse_beside(read(dir)?.as_ref())?;
            bail!("a scheduler is just being started or ended: try again in a moment");
        }
        // What was asked of the last one is not asked of this, nor is its dump this one's.
        withdraw(dir)?;
        remove(&dump_path(dir))?;
        let record = Record {
            pid: std::process::id() as i32,
            state: State::Starting,
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

    /// What was last written.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Changes the record and writes it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&mut self, change: impl FnOnce(&mut Record)) -> anyhow::Result<()> {
        let mut record = self.record.clone();
        change(&mut record);
        let written = self.replace(&record);
        self.written = Some(written.context("writing what is known of the scheduler")?);
        // Not before others can read it, either.
        self.record = record;
        Ok(())
    }

    fn replace(&self, record: &Record) -> anyhow::Result<File> {
        let path = path(&self.dir);
        let unfinished = path.with_extension("new");
        // One that is left over may be open elsewhere.
        let _ = fs::remove_file(&unfinished);
        let mut file = File::create_new(&unfinished)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // `status` is for all, whatever root's umask.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(serde_json::to_string(record)?.as_bytes())?;
        fs::rename(&unfinished, &path)?;
        Ok(file)
    }

    /// Writes that it has ended, and why, unless that is known already.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(&mut self, why: &str) -> anyhow::Result<()> {
        if self.record.state == State::Ended {
            return Ok(());
        }
        self.write(|record| {
            record.state = State::Ended;
            record.ended = Some(why.to_owned());
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(dir: &Path) -> anyhow::Result<Held> {
        Held::take(dir, &Settings::default())
    }

    fn known(dir: &Path) -> (State, Option<String>) {
        let record = read(dir).unwrap().unwrap();
        (record.state, record.ended)
    }

    #[test]
    fn a_record_says_how_far_its_scheduler_is() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(read(dir).unwrap().is_none());
        let mut held = taken(dir).unwrap();
        assert_eq!(known(dir), (State::Starting, None));
        let refused = |word: &str| {
            let error = of_running(dir).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refused("is starting still");
        held.write(|record| {
            record.state = State::Running;
            record.changes = 7;
        })
        .unwrap();
        assert_eq!(of_running(dir).unwrap().changes, 7);
        held.write(|record| record.state = State::BeginningAnew)
            .unwrap();
        refused("begins anew");
        held.end("stopped").unwrap();
        held.end("another reason").unwrap();
        assert!(of_running(dir).is_err());
        assert_eq!(known(dir), (State::Ended, Some("stopped".to_owned())));
    }

    #[test]
    fn where_none_can_be_started_nobody_is_sent_to_do_so() {
        let (dir, sys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let told = || none_runs(&Kernel::at(sys.path()), dir.path(), None).to_string();
        assert!(
            told().starts_with("this kernel has no sched_ext"),
            "{}",
            told()
        );
        let ext = sys.path().join("kernel/sched_ext");
        fs::create_dir_all(&ext).unwrap();
        fs::write(ext.join("state"), "disabled\n").unwrap();
        let start = "no scheduler of Usher's runs: 'usher sched start' starts one";
        assert_eq!(told(), start);
    }

    #[test]
    fn a_file_is_no_runtime_directory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let told = read(file.path()).unwrap_err().to_string();
        let line = format!(
            "the runtime directory '{}' is a file",
            file.path().display()
        );
        assert!(told.starts_with(&line), "{told}");
    }

    #[test]
    fn what_could_not_be_written_can_be_later() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = taken(dir).unwrap();
        let in_the_way = path(dir).with_extension("new");
        fs::create_dir(&in_the_way).unwrap();
        assert!(held.end("stopped").is_err());
        assert_eq!(held.record().state, State::Starting);
        assert_eq!(known(dir), (State::Starting, None));
        fs::remove_dir(&in_the_way).unwrap();
        held.end("stopped").unwrap();
        assert_eq!(known(dir), (State::Ended, Some("stopped".to_owned())));
    }

    #[test]
    fn a_process_that_dies_without_a_word_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = taken(dir).unwrap();
        held.write(|record| record.state = State::Running).unwrap();
        let record = of_running(dir).unwrap();
        assert!(process_of(dir, &record).is_ok());
        drop(held);
        let died = format!("its process {} died", std::process::id());
        assert_eq!(known(dir), (State::Ended, Some(died)));
        // It is not told anything, though a process of that number lives.
        assert!(process_of(dir, &record).is_err());
    }

    #[test]
    fn nobody_else_can_make_it_look_alive() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = taken(dir).unwrap();
        held.write(|record| record.state = State::Running).unwrap();
        let record = of_running(dir).unwrap();
        drop(held);
        // As anybody may who may read it.
        let file = File::open(path(dir)).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(known(dir).0, State::Ended);
        assert!(process_of(dir, &record).is_err());
        taken(dir).unwrap();
    }

    #[test]
    fn the_last_ones_process_and_dump_are_forgotten_when_another_starts() {
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
        assert_eq!((record.pid, record.state), (own, State::Starting));
    }

    #[test]
    fn one_beside_another_is_refused_in_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = taken(dir).unwrap();
        let refused = || format!("{:#}", taken(dir).unwrap_err());
        assert_eq!(refused(), "the scheduler is starting already");
        held.write(|record| record.state = State::Running).unwrap();
        assert!(refused().starts_with("the scheduler is started already"));
        held.end("stopped").unwrap();
        assert!(refused().contains("started or ended"));
    }

    #[test]
    fn a_reader_hinders_nobody_and_reads_one_whole_record() {
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
        // The reader's lock, kept, and its file, as it was opened.
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
    fn one_of_which_nothing_is_known_here_is_told_with_why() {
        let (dir, sys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dir = dir.path();
        let kernel = Kernel::at(sys.path());
        let told = |ended: Option<&Record>| unknown(&kernel, dir, ended).unwrap();
        assert_eq!(unknown(&kernel, dir, None), None);
        let ext = sys.path().join("kernel/sched_ext");
        fs::create_dir_all(ext.join("root")).unwrap();
        fs::write(ext.join("state"), "enabled\n").unwrap();
        fs::write(ext.join("root/ops"), "bpfland\n").unwrap();
        assert_eq!(unknown(&kernel, dir, None), None);
        fs::write(ext.join("root/ops"), "usher\n").unwrap();
        let elsewhere = format!("another --runtime-dir than {}", dir.display());
        assert!(
            told(None).contains(&format!("{elsewhere}, or that was emptied; SIGTERM")),
            "{}",
            told(None)
        );
        drop(taken(dir).unwrap());
        let last = read(dir).unwrap();
        assert!(told(last.as_ref()).contains(&format!("{elsewhere}, or just ending")));
        fs::write(path(dir), "{").unwrap();
        assert!(read(dir).unwrap().is_none());
        let spoiled = format!("its record in {} cannot be read (EOF", path(dir).display());
        assert!(told(None).contains(&spoiled), "{}", told(None));
    }

    #[test]
    fn settings_of_an_older_version_keep_seats() {
        let mut text = serde_json::to_value(Settings::default()).unwrap();
        text.as_object_mut().unwrap().remove("seats");
        let read: Settings = serde_json::from_value(text).unwrap();
        assert_eq!(read, Settings::default());
    }

    #[test]
    fn what_is_wanted_is_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(take_wanted(dir).is_err());
        let settings = Settings {
            smt: false,
            ..Settings::default()
        };
        leave(dir, &settings).unwrap();
        assert_eq!(take_wanted(dir).unwrap(), settings);
        assert!(take_wanted(dir).is_err());
        leave(dir, &settings).unwrap();
        assert!(withdraw(dir).unwrap() && !withdraw(dir).unwrap());
        leave(dir, &settings).unwrap();
        let _held = taken(dir).unwrap();
        assert!(take_wanted(dir).is_err(), "the last one's");
    }
}
