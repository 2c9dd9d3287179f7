// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of files that are damaged, or that are no profile store of this version.

use std::os::unix::fs::PermissionsExt;

use usher_store::{Store, StoreError};

use crate::support::{filled, key, machine, names, one_point};

#[test]
fn a_damaged_store_is_renamed_and_replaced() {
    for damage in ["torn pages", "an empty header"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profiles.db");
        filled(&path);
        let mut bytes = std::fs::read(&path).unwrap();
        match damage {
            "torn pages" => bytes[4096..].fill(0xa5),
            _ => bytes[..16].fill(0),
        }
        std::fs::write(&path, &bytes).unwrap();
        assert!(
            matches!(Store::open(&path), Err(StoreError::Corrupt { .. })),
            "{damage}"
        );
        assert_eq!(
            std::fs::read(&path).unwrap(),
            bytes,
            "opening changes nothing"
        );

        let (mut store, warning) = Store::open_or_memory(&path).unwrap();
        let warning = warning.unwrap();
        let kept = warning.kept_at.clone().unwrap();
        assert_eq!(std::fs::read(&kept).unwrap(), bytes);
        let message = warning.to_string();
        assert!(
            !warning.in_memory && message.contains("is damaged") && !message.contains('\n'),
            "{message}"
        );
        store.merge(&key("new"), &machine(), &one_point()).unwrap();
        drop(store);
        let (store, warning) = Store::open_or_memory(&path).unwrap();
        assert!(warning.is_none());
        assert_eq!(store.list().unwrap().len(), 1);
    }
}

/// Returns the bytes of a damaged store: a header of zeros, followed by `text` 1,000 times.
fn damaged(text: &str) -> Vec<u8> {
    [vec![0; 16], text.repeat(1000).into_bytes()].concat()
}

#[test]
fn rejects_a_file_that_is_no_database_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let notes = dir.path().join("notes.txt");
    for text in [
        "important notes\n",
        "x",
        "important notes\n".repeat(400).as_str(),
    ] {
        std::fs::write(&notes, text).unwrap();
        std::fs::set_permissions(&notes, PermissionsExt::from_mode(0o644)).unwrap();
        for path in [&notes, &dir.path().to_owned()] {
            let (mut store, warning) = Store::open_or_memory(path).unwrap();
            let warning = warning.unwrap();
            assert!(warning.in_memory && warning.kept_at.is_none());
            let message = warning.to_string();
            assert!(message.contains(&format!("{} is not a profile store", path.display())));
            store.merge(&key("a"), &machine(), &one_point()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&notes).unwrap(), text);
        assert_eq!(
            notes.metadata().unwrap().permissions().mode() & 0o777,
            0o644
        );
        assert_eq!(names(dir.path()), ["notes.txt"]);
    }
}

#[test]
fn a_second_damaged_store_does_not_overwrite_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profiles.db");
    for text in ["first damage", "second damage"] {
        std::fs::write(&path, damaged(text)).unwrap();
        let (_, warning) = Store::open_or_memory(&path).unwrap();
        assert!(warning.is_some());
    }
    let kept = names(dir.path());
    assert!(
        kept.contains(&"profiles.db.damaged-1".to_owned()),
        "{kept:?}"
    );
    assert!(
        kept.contains(&"profiles.db.damaged-2".to_owned()),
        "{kept:?}"
    );
}

#[test]
fn concurrent_openers_rename_one_damaged_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profiles.db");
    std::fs::write(&path, damaged("damage")).unwrap();
    std::thread::scope(|scope| {
        for i in 0..8 {
            let path = &path;
            scope.spawn(move || {
                let (mut store, _) = Store::open_or_memory(path).unwrap();
                store
                    .merge(&key(&i.to_string()), &machine(), &one_point())
                    .unwrap();
            });
        }
    });
    // The store may contain fewer profiles than the processes wrote, because writes to the damaged
    // file just before its renaming are lost.
    let listed = Store::open(&path).unwrap().list().unwrap().len();
    assert!((1..=8).contains(&listed), "{listed}");
    let kept = names(dir.path())
        .iter()
        .filter(|n| n.contains("damaged"))
        .count();
    assert_eq!(kept, 1, "{:?}", names(dir.path()));
}

#[test]
fn rejects_foreign_and_newer_databases_unchanged() {
    for (sql, expected) in [
        (
            "CREATE TABLE theirs (x)",
            "is the database of another program",
        ),
        (
            "PRAGMA user_version = 99",
            "has format 99, but this version of Usher reads only formats up to 5",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profiles.db");
        let theirs = rusqlite::Connection::open(&path).unwrap();
        theirs.execute_batch(sql).unwrap();
        drop(theirs);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let before = std::fs::read(&path).unwrap();
        let (mut store, warning) = Store::open_or_memory(&path).unwrap();
        let warning = warning.unwrap();
        assert!(warning.in_memory && warning.kept_at.is_none());
        assert!(warning.to_string().contains(expected), "{warning}");
        store.merge(&key("a"), &machine(), &one_point()).unwrap();
        drop(store);
        assert!(std::fs::read(&path).unwrap() == before, "{expected}");
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        assert_eq!(names(dir.path()), ["profiles.db"]);
    }
}

#[test]
fn a_fifo_is_rejected_without_waiting_for_its_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profiles.db");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
    let (_, warning) = Store::open_or_memory(&path).unwrap();
    let warning = warning.unwrap();
    assert!(warning.in_memory);
    assert!(matches!(warning.error, StoreError::NotAStore { .. }));
}

#[test]
fn profiles_in_the_write_ahead_log_are_copied_into_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profiles.db");
    // While this connection is open, the profiles stay in the log.
    let newer = Store::open(&path).unwrap();
    filled(&path);
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    let (copy, warning) = Store::open_or_memory(&path).unwrap();
    let warning = warning.unwrap();
    assert!(matches!(warning.error, StoreError::Newer { .. }));
    assert_eq!(copy.list().unwrap().len(), newer.list().unwrap().len());
    assert_eq!(copy.list().unwrap().len(), 50);
}
