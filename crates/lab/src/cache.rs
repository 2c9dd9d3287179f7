// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder in which fetched kernels and emulators stay.
//!
//! Each lies in a directory that appears complete, by a rename, and is never
//! changed after. Fetching holds a lock, so that of two runs at once the
//! second waits and then finds what the first fetched.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use tempfile::TempDir;

use crate::LabError;

/// What is not finished begins so.
const UNFINISHED: &[u8] = b".unfinished-";

/// The folder of fetched things.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

/// Held while something is fetched.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "it is held, not used")] File);

impl Cache {
    /// The folder, made when it is not there: the one given, or that of the
    /// user (`$XDG_CACHE_HOME/usher/lab`, else `~/.cache/usher/lab`).
    ///
    /// # Errors
    /// When there is none and none can be made.
    pub fn open(given: Option<&Path>) -> Result<Self, LabError> {
        let root = match given {
            Some(path) => path.to_owned(),
            None => users().ok_or_else(|| LabError::Missing {
                what: "neither XDG_CACHE_HOME nor HOME says where fetched kernels may stay"
                    .to_owned(),
                remedy: "name a folder with --cache".to_owned(),
            })?,
        };
        fs::create_dir_all(&root).map_err(LabError::file("making the folder", &root))?;
        let root = fs::canonicalize(&root).map_err(LabError::file("finding", &root))?;
        Ok(Self { root })
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of one thing, whether or not it is there.
    pub(crate) fn entry(&self, kind: &str, name: &str) -> PathBuf {
        self.root.join(kind).join(name)
    }

    /// Names of everything of a kind.
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

    /// Waits until nobody else fetches, and keeps others from it.
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
                    "lab: waiting for another run that fetches into {}",
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

    /// Removes what killed runs left unfinished; under the lock nobody else is
    /// about to finish it.
    fn sweep(&self) {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        for entry in
            entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(UNFINISHED))
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }

    /// A directory for what is not finished, gone when it is dropped.
    pub(crate) fn scratch(&self) -> Result<TempDir, LabError> {
        let prefix = String::from_utf8_lossy(UNFINISHED);
        tempfile::Builder::new()
            .prefix(&*prefix)
            .tempdir_in(&self.root)
            .map_err(LabError::file("making a directory in", &self.root))
    }

    /// The directory of that name; filled now, while others wait, where it is not there.
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

    /// Fills a directory and makes it appear, complete, under its name.
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
    fn what_is_added_is_there_and_what_fails_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(&dir.path().join("a/b"))).unwrap();
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
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(dir.path())).unwrap();
        let held = cache.lock().unwrap();
        let other = File::open(cache.root().join("lock")).unwrap();
        let attempt = || rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(attempt(), Err(Errno::WOULDBLOCK));
        drop(held);
        assert_eq!(attempt(), Ok(()));
    }
}
