// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache of fetched kernels, emulators, packages and disks, in a folder of the user.
//!
//! An entry is a directory `KIND/NAME`, which never changes after its creation.
//!
//! 1. If the entry exists, use it.
//! 2. Lock the cache (`flock`). A second run of the lab waits for the lock, and then uses the entry
//!    that the first run has created.
//! 3. Remove unfinished entries of runs that were killed.
//! 4. Fill a directory with a temporary name, and rename it to the name of the entry. An entry is
//!    therefore complete when it becomes visible.
//!
//! The wait of step 2 has no time limit. A failure to fill a directory is an error, and leaves no
//! entry. The lab never removes an entry, and the size of the cache has no limit.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use tempfile::TempDir;

use crate::LabError;

/// Prefix of the names of unfinished entries.
const UNFINISHED: &[u8] = b".unfinished-";

/// The folder of the cache.
#[derive(Debug, Clone)]
pub struct LabCache {
    root: PathBuf,
}

/// The lock of the cache, which is held while an entry is created.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "the lock is only held")] File);

impl LabCache {
    /// Opens the cache in the folder `given`, or in the user's folder: `$XDG_CACHE_HOME/usher/lab`,
    /// or `~/.cache/usher/lab` if the variable is not set. Creates the folder if it does not exist.
    ///
    /// # Errors
    /// If no folder is given and the user's folder is unknown, or if the folder cannot be created.
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

    /// Returns the path of the folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of an entry's directory, which may not exist.
    pub(crate) fn entry(&self, kind: &str, name: &str) -> PathBuf {
        self.root.join(kind).join(name)
    }

    /// Returns the names of all entries of a kind, sorted.
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

    /// Locks the cache, and removes unfinished entries. Waits while another run holds the lock.
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

    /// Creates a directory for an unfinished entry. The directory is removed on drop.
    pub(crate) fn scratch(&self) -> Result<TempDir, LabError> {
        let prefix = String::from_utf8_lossy(UNFINISHED);
        tempfile::Builder::new()
            .prefix(&*prefix)
            .tempdir_in(&self.root)
            .map_err(LabError::file("creating a directory in", &self.root))
    }

    /// Returns the directory of an entry. If the entry does not exist, creates it by `fill`; other
    /// runs wait meanwhile.
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

    /// Fills a directory by `fill`, and renames it to the name of the entry.
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
