// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache of fetched kernels and emulators.
//!
//! Each entry is a directory that appears complete, by a rename, and never changes afterwards.
//! Fetching holds a lock: a second run waits and then uses the entry that the first run has
//! fetched.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use tempfile::TempDir;

use crate::LabError;

/// Prefix of unfinished entries.
const UNFINISHED: &[u8] = b".unfinished-";

/// The cache folder.
#[derive(Debug, Clone)]
pub struct LabCache {
    root: PathBuf,
}

/// The lock held while an entry is fetched.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "the lock is only held")] File);

impl LabCache {
    /// Opens or creates the folder: the given one, or the user's (`$XDG_CACHE_HOME/usher/lab`, else
    /// `~/.cache/usher/lab`).
    ///
    /// # Errors
    /// No folder is given or known, or it cannot be created.
    pub fn open(given: Option<&Path>) -> Result<Self, LabError> {
        let root = match given {
            Some(path) => path.to_owned(),
            None => users().ok_or_else(|| LabError::Missing {
                what: "no cache directory is known, because neither XDG_CACHE_HOME nor HOME is set"
                    .to_owned(),
                remedy: "give a directory with --cache".to_owned(),
            })?,
        };
        fs::create_dir_all(&root).map_err(LabError::file("creating the directory", &root))?;
        let root = fs::canonicalize(&root).map_err(LabError::file("finding", &root))?;
        Ok(Self { root })
    }

    /// The path of the folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of an entry, which may not exist.
    pub(crate) fn entry(&self, kind: &str, name: &str) -> PathBuf {
        self.root.join(kind).join(name)
    }

    /// Names of all entries of a kind.
    pub(crate) fn entries(&self, kind: &str) -> Result<Vec<String>, LabError> {
        let dir = self.root.join(kind);
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(LabError::file("reading", &dir))?,
        };
        let names = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        Ok(names)
    }

    /// Takes the lock; waits while another run holds it.
    pub(crate) fn lock(&self) -> Result<Lock, LabError> {
        let path = self.root.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(LabError::file("opening", &path))?;
        let locking = |how| rustix::fs::flock(&file, how);
        let locked = match locking(FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                eprintln!(
                    "lab: waiting for another run of the lab that fetches files into {}",
                    self.root.display()
                );
                locking(FlockOperation::LockExclusive)
            }
            done => done,
        };
        locked.map_err(|error| LabError::file("locking", &path)(error.into()))?;
        self.sweep();
        Ok(Lock(file))
    }

    /// Removes unfinished entries of killed runs. Because this run holds the lock, no other run is
    /// still filling them.
    fn sweep(&self) {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        for entry in
            entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(UNFINISHED))
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }

    /// A directory for an unfinished entry, removed on drop.
    pub(crate) fn scratch(&self) -> Result<TempDir, LabError> {
        let prefix = String::from_utf8_lossy(UNFINISHED);
        tempfile::Builder::new()
            .prefix(&*prefix)
            .tempdir_in(&self.root)
            .map_err(LabError::file("creating a directory in", &self.root))
    }

    /// Returns the directory of an entry. If the directory does not exist it is filled, while other
    /// runs wait.
    pub(crate) fn get_or_add(
        &self,
        kind: &str,
        name: &str,
        fill: impl FnOnce(&Path) -> Result<(), LabError>,
    ) -> Result<PathBuf, LabError> {
        let entry = self.entry(kind, name);
        if entry.exists() {
            return Ok(entry);
        }
        let lock = self.lock()?;
        match entry.exists() {
            true => Ok(entry),
            false => self.add(&lock, kind, name, fill),
        }
    }

    /// Fills a directory and renames it to its final name.
    pub(crate) fn add(
        &self,
        _lock: &Lock,
        kind: &str,
        name: &str,
        fill: impl FnOnce(&Path) -> Result<(), LabError>,
    ) -> Result<PathBuf, LabError> {
        let unfinished = self.scratch()?;
        let filled = unfinished.path().join("filled");
        fs::create_dir(&filled).map_err(LabError::file("making", &filled))?;
        fill(&filled)?;
        let parent = self.root.join(kind);
        fs::create_dir_all(&parent).map_err(LabError::file("making", &parent))?;
        let entry = self.entry(kind, name);
        fs::rename(&filled, &entry).map_err(LabError::file("making", &entry))?;
        Ok(entry)
    }
}

fn users() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(base.join("usher/lab"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_entries_appear_and_failed_ones_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = LabCache::open(Some(&dir.path().join("a/b"))).unwrap();
        let lock = cache.lock().unwrap();
        let write = |path: &Path| fs::write(path.join("x"), "1").map_err(LabError::file("", path));
        let entry = cache.add(&lock, "kernels", "1.2", write).unwrap();
        assert_eq!(fs::read(entry.join("x")).unwrap(), b"1");
        let fails = |_: &Path| Err(LabError::Request("no".to_owned()));
        assert!(cache.add(&lock, "kernels", "1.3", fails).is_err());
        assert_eq!(cache.entries("kernels").unwrap(), ["1.2"]);
        assert_eq!(cache.entries("emulators").unwrap(), [""; 0]);
        assert_eq!(fs::read_dir(cache.root()).unwrap().count(), 2);
    }

    #[test]
    fn lock_excludes_other_runs() {
        let dir = tempfile::tempdir().unwrap();
        let cache = LabCache::open(Some(dir.path())).unwrap();
        let held = cache.lock().unwrap();
        let other = File::open(cache.root().join("lock")).unwrap();
        let attempt = || rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(attempt(), Err(Errno::WOULDBLOCK));
        drop(held);
        assert_eq!(attempt(), Ok(()));
    }
}
