// SPDX-License-Identifier: GPL-2.0-only
//! The file by which the commands know of one another. Whoever holds the scheduler
//! holds a lock on it, which ends with its process, and alone writes it; what is
//! asked of it lies in another file, and a signal says that it does.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use usher_scx::{MapIds, Settings};

/// What is known of a scheduler that was started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// The process that holds it.
    pub pid: i32,
    /// What it is to do, for people.
    pub does: String,
    /// The same, as it is told.
    pub settings: Settings,
    /// How often that was changed while it ran.
    pub changes: u32,
    /// The kernel's numbers of its maps.
    pub maps: MapIds,
    /// Whether the kernel keeps the idle CPUs of each NUMA node apart for it.
    #[serde(default)]
    pub idle_by_node: bool,
    /// How often it began anew because CPUs came or went.
    pub restarts: u32,
    /// Why the kernel ended it.
    pub ended: Option<String>,
}

/// Where the record is.
pub fn path(dir: &Path) -> PathBuf {
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

/// Leaves new settings for the scheduler's process.
///
/// # Errors
/// They cannot be written.
pub fn leave(dir: &Path, wanted: &Settings) -> anyhow::Result<()> {
    let path = wanted_path(dir);
    let unfinished = path.with_extension("new");
    let written = std::fs::write(&unfinished, serde_json::to_vec(wanted)?);
    let written = written.and_then(|()| std::fs::rename(&unfinished, &path));
    written.with_context(|| format!("writing {}", path.display()))
}

/// What was left.
///
/// # Errors
/// It cannot be read, or is nothing that [`leave`] writes.
pub fn wanted(dir: &Path) -> anyhow::Result<Settings> {
    let path = wanted_path(dir);
    let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))
}

/// The record, if its process lives.
///
/// # Errors
/// It cannot be read, or no scheduler of Usher's runs.
pub fn of_running(dir: &Path) -> anyhow::Result<Record> {
    let running = read(dir)?.filter(|(_, lives)| *lives);
    let (record, _) = running.context("no scheduler of Usher's runs: 'usher sched start'")?;
    Ok(record)
}

/// The record, and whether its process holds the scheduler still.
///
/// # Errors
/// It cannot be read.
pub fn read(dir: &Path) -> anyhow::Result<Option<(Record, bool)>> {
    let path = path(dir);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let mut text = String::new();
    file.read_to_string(&mut text)
        .with_context(|| format!("reading {}", path.display()))?;
    // A record that is just being written is nobody's yet.
    let Ok(record) = serde_json::from_str(&text) else {
        return Ok(None);
    };
    let is_free = flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
    Ok(Some((record, !is_free)))
}

/// The record, to be written by whoever holds the scheduler.
#[derive(Debug)]
pub struct Held {
    file: File,
    record: Record,
}

impl Held {
    /// Takes hold of it.
    ///
    /// # Errors
    /// Another process has, or the directory cannot be written in.
    pub fn take(dir: &Path, settings: &Settings) -> anyhow::Result<Self> {
        let path = path(dir);
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("writing {}", path.display()))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .context("the scheduler is started already: 'usher sched stop' ends it")?;
        let record = Record {
            pid: std::process::id() as i32,
            does: super::described(settings),
            settings: *settings,
            changes: 0,
            maps: MapIds::default(),
            idle_by_node: false,
            restarts: 0,
            ended: None,
        };
        Ok(Self { file, record })
    }

    /// What the scheduler is to do.
    pub fn settings(&self) -> Settings {
        self.record.settings
    }

    /// Changes the record and writes it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&mut self, change: impl FnOnce(&mut Record)) -> anyhow::Result<()> {
        change(&mut self.record);
        let text = serde_json::to_string(&self.record)?;
        self.file.rewind()?;
        self.file.set_len(0)?;
        self.file
            .write_all(text.as_bytes())
            .context("writing what is known of the scheduler")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_whether_its_process_lives() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_none());
        let mut held = Held::take(dir.path(), &Settings::default()).unwrap();
        assert!(read(dir.path()).unwrap().is_none());
        held.write(|record| record.changes = 7).unwrap();
        let (record, lives) = read(dir.path()).unwrap().unwrap();
        assert_eq!((record.changes, lives), (7, true));
        let second = Held::take(dir.path(), &Settings::default());
        assert!(second.unwrap_err().to_string().contains("already"));
        drop(held);
        assert!(!read(dir.path()).unwrap().unwrap().1);
        assert!(of_running(dir.path()).is_err());
    }

    #[test]
    fn what_is_wanted_is_what_was_left() {
        let dir = tempfile::tempdir().unwrap();
        assert!(wanted(dir.path()).is_err());
        let settings = Settings {
            smt: false,
            ..Settings::default()
        };
        leave(dir.path(), &settings).unwrap();
        assert_eq!(wanted(dir.path()).unwrap(), settings);
    }
}
