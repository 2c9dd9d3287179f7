// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of stores that cannot be written or created: full and read-only file systems, the log of a
//! dead writer, and missing directories.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use usher_store::{Store, StoreError};

use crate::support::{filled, key, machine, names, one_point};

/// A mounted tmpfs, which is unmounted when the value is dropped.
struct Mount(PathBuf);

impl Mount {
    /// Mounts a tmpfs; prints a skip and returns `None` if mounting is not permitted.
    fn tmpfs(dir: &Path, options: &str) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "usher-store-test"])
            .arg(dir)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(dir.to_owned())),
            other => {
                usher_skip::skip!("no tmpfs can be mounted: {other:?}");
                None
            }
        }
    }

    fn remount(&self, options: &str) {
        let option = format!("remount,{options}");
        let done = Command::new("mount")
            .args(["-o", &option])
            .arg(&self.0)
            .status();
        assert!(done.unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn reports_a_full_disk_and_still_reads() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::tmpfs(dir.path(), "size=256k") else {
        return;
    };
    let path = mount.0.join("profiles.db");
    let mut store = Store::open(&path).unwrap();
    store
        .merge(&key("first"), &machine(), &one_point())
        .unwrap();
    let mut results = (0..10_000).map(|i| {
        let name = format!("{i}-{}", "x".repeat(1000));
        store.merge(&key(&name), &machine(), &one_point())
    });
    let error = results
        .find_map(Result::err)
        .expect("256 KiB are full some time");
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .contains("cannot be written, because its file system is full: free space on")
    );
    assert!(store.lookup(&key("first"), &machine()).unwrap().is_some());
    drop(store);

    let again = Store::open_or_memory(&path).unwrap().0;
    assert!(again.lookup(&key("first"), &machine()).unwrap().is_some());
    drop(again);
    let other = mount.0.join("other.db");
    std::fs::write(mount.0.join("rest"), vec![1; 1 << 20]).unwrap_err();
    let (mut store, warning) = Store::open_or_memory(&other).unwrap();
    let warning = warning.expect("there is no room for another");
    assert!(warning.in_memory, "{warning}");
    store.merge(&key("a"), &machine(), &one_point()).unwrap();
}

/// Fills the file system of a directory completely.
fn fill(dir: &Path) {
    let mut file = std::fs::File::create(dir.join("rest")).unwrap();
    while file.write_all(&[1; 512]).is_ok() {}
}

#[test]
fn a_store_on_a_full_file_system_is_read_completely() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::tmpfs(dir.path(), "size=1m") else {
        return;
    };
    let path = mount.0.join("profiles.db");
    filled(&path);
    fill(&mount.0);
    let readable = Store::open_to_read(&path).unwrap();
    let reason = readable.unwritable.unwrap();
    assert!(matches!(reason, StoreError::Full { .. }), "{reason:?}");
    assert_eq!(readable.store.list().unwrap().len(), 50);
    // The error of a writer names the cause, too.
    drop(readable.store);
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
}

#[test]
fn profiles_of_a_dead_writers_log_are_read_on_a_full_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::tmpfs(dir.path(), "size=1m") else {
        return;
    };
    let path = dir.path().join("profiles.db");
    // Simulates a dead writer by a copy of an open store and its log.
    let open = tempfile::tempdir().unwrap();
    let original = open.path().join("profiles.db");
    let held = Store::open(&original).unwrap();
    filled(&original);
    for suffix in ["", "-wal"] {
        let file = format!("profiles.db{suffix}");
        std::fs::copy(open.path().join(&file), mount.0.join(&file)).unwrap();
    }
    drop(held);
    let log = std::fs::read(mount.0.join("profiles.db-wal")).unwrap();
    assert!(!log.is_empty());
    fill(&mount.0);
    let readable = Store::open_to_read(&path).unwrap();
    assert!(readable.unwritable.is_some());
    assert_eq!(readable.store.list().unwrap().len(), 50);
    drop(readable);
    assert_eq!(std::fs::read(mount.0.join("profiles.db-wal")).unwrap(), log);
}

#[test]
fn a_store_on_a_read_only_file_system_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::tmpfs(dir.path(), "size=1m") else {
        return;
    };
    let path = mount.0.join("profiles.db");
    filled(&path);
    mount.remount("ro");
    let readable = Store::open_to_read(&path).unwrap();
    let reason = readable.unwritable.unwrap().to_string();
    assert!(reason.contains("mounted read-only"), "{reason}");
    assert_eq!(readable.store.list().unwrap().len(), 50);
}

/// Reading an absent store and creating it fail with one text. Returns this text.
fn creation_error(path: &Path) -> String {
    let read = Store::open_if_present(path).unwrap_err().to_string();
    let created = Store::open(path).unwrap_err().to_string();
    assert_eq!(read, created);
    assert_eq!(
        Store::open_if_present(path).unwrap_err().to_string(),
        created
    );
    read
}

#[test]
fn states_why_a_store_cannot_be_created() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/profiles.db");
    assert!(Store::open_if_present(&path).unwrap().is_none());
    assert_eq!(names(dir.path()), Vec::<String>::new());
    let problem = creation_error(Path::new("/proc/nope/profiles.db"));
    let expected = "the profile store /proc/nope/profiles.db cannot be created: /proc: ";
    assert!(problem.starts_with(expected), "{problem}");
    assert!(problem.ends_with("by --store or USHER_STORE"), "{problem}");
    std::fs::write(dir.path().join("file"), "").unwrap();
    let problem = creation_error(&dir.path().join("file/profiles.db"));
    assert!(problem.contains("it is not a directory"), "{problem}");
    let Some(mount) = Mount::tmpfs(dir.path(), "size=64k") else {
        return;
    };
    fill(&mount.0);
    let problem = creation_error(&mount.0.join("profiles.db"));
    assert!(problem.contains("its file system is full"), "{problem}");
    std::fs::remove_file(mount.0.join("profiles.db")).ok();
    mount.remount("ro");
    let problem = creation_error(&mount.0.join("profiles.db"));
    assert!(problem.contains("Read-only file system"), "{problem}");
}

#[test]
fn a_read_only_store_is_copied_into_memory() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::tmpfs(dir.path(), "size=4m") else {
        return;
    };
    let path = mount.0.join("pro?files #1.db");
    filled(&path);
    mount.remount("ro");
    let error = Store::open(&path).unwrap_err();
    assert!(!error.to_string().contains('\n'), "{error}");
    let (mut store, warning) = Store::open_or_memory(&path).unwrap();
    let warning = warning.unwrap();
    assert!(warning.in_memory && warning.kept_at.is_none());
    let message = warning.to_string();
    assert!(
        message.ends_with("kept in memory until the store can be opened"),
        "{message}"
    );
    assert_eq!(store.list().unwrap().len(), 50);
    let known = store
        .lookup(&key("program-7"), &machine())
        .unwrap()
        .unwrap();
    assert_eq!((known.runs, known.points.len()), (1, 1));
    store
        .merge(&key("program-7"), &machine(), &one_point())
        .unwrap();
    mount.remount("rw");
    let on_disk = Store::open(&path).unwrap();
    let untouched = on_disk
        .lookup(&key("program-7"), &machine())
        .unwrap()
        .unwrap();
    assert_eq!(untouched.runs, 1);
}

#[test]
fn reports_a_directory_that_cannot_be_created() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    let path = dir.path().join("file/profiles.db");
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Creation { .. }));
    let (_, warning) = Store::open_or_memory(&path).unwrap();
    assert!(warning.unwrap().in_memory);
}
