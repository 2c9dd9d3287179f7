// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the profile store under damage, concurrent processes, read-only files and a full file
//! system.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use usher_model::{
    Cache, Core, Cpu, CpuSet, CurvePoint, Domain, NumaNode, Package, ProgramKey, ProgressSource,
    StoredCopies, Topology,
};
use usher_store::{MachineKey, MeasuredPoint, Measurement, Store, StoreError, VariationRecord};

fn key(name: &str) -> ProgramKey {
    ProgramKey {
        executable: format!("build-id:{name}"),
        arguments: "-p 2 file:2^20".to_owned(),
    }
}

/// A machine of one core.
fn machine() -> MachineKey {
    let cpus = CpuSet::single(0);
    MachineKey::of(&Topology {
        name: "one core".to_owned(),
        cpus: vec![Cpu { os: 0, core: 0 }],
        cores: vec![Core {
            cpus: cpus.clone(),
            domain: 0,
            capacity: 1.0,
        }],
        domains: vec![Domain {
            cpus: cpus.clone(),
            cores: vec![0],
            package: 0,
            nodes: vec![0],
            llc: Some(Cache {
                level: 3,
                bytes: 1 << 20,
            }),
        }],
        packages: vec![Package {
            cpus: cpus.clone(),
            domains: vec![0],
            model: None,
            dies: vec![cpus.clone()],
        }],
        nodes: vec![NumaNode {
            os: 0,
            cpus,
            bytes: 0,
        }],
    })
}

fn point(cores: f64, rate: f64, source: ProgressSource) -> MeasuredPoint {
    MeasuredPoint {
        point: CurvePoint {
            cores,
            rate,
            relative_error: 0.05,
            busy_cpus: Some(cores * 0.9),
        },
        source,
    }
}

fn measurement(points: &[MeasuredPoint]) -> Measurement {
    Measurement {
        name: "pigz".to_owned(),
        at_s: 1_700_000_000,
        points: points.to_vec(),
        spinners: Some(2),
        active_wait: Some(true),
        llc_bytes: Some(u64::MAX),
        bandwidth_gbps: None,
    }
}

fn one_point() -> Measurement {
    measurement(&[point(1.0, 10.0, ProgressSource::Heartbeat)])
}

#[test]
fn measurements_persist_after_closing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("some/where/profiles.db");
    let points = [
        point(2.0, 19.0, ProgressSource::Instructions),
        point(1.0, 10.0, ProgressSource::Instructions),
        point(1.0, 7.0, ProgressSource::Heartbeat),
        point(4.0, 1.0, ProgressSource::CpuTime),
        point(6.0, 1.0, ProgressSource::CpuTime),
        point(8.0, 1.0, ProgressSource::CpuTime),
    ];
    let mut store = Store::open(&path).unwrap();
    store
        .merge(&key("a"), &machine(), &measurement(&points))
        .unwrap();
    drop(store);
    let mut store = Store::open(&path).unwrap();
    let profile = store.lookup(&key("a"), &machine()).unwrap().unwrap();
    assert_eq!(
        (profile.name.as_str(), profile.runs, profile.spinners),
        ("pigz", 1, 2)
    );
    assert_eq!(profile.active_wait, Some(true));
    assert_eq!(profile.llc_bytes, Some(i64::MAX as u64));
    assert_eq!(profile.points.len(), 6);
    let (curve, source) = profile.curve().unwrap();
    assert_eq!(
        source,
        ProgressSource::Instructions,
        "the most points that may plan"
    );
    assert_eq!((curve.rate(1.0), curve.rate(2.0)), (10.0, 19.0));
    assert_eq!(curve.busy_cpus(2.0), Some(1.8));
    assert_eq!(store.lookup(&key("b"), &machine()).unwrap(), None);
    assert_eq!(store.list().unwrap().len(), 1);
    assert_eq!(store.forget(&key("a")).unwrap(), 1);
    assert_eq!(store.list().unwrap(), []);
}

#[test]
fn a_missing_figure_keeps_the_stored_value() {
    let mut store = Store::in_memory().unwrap();
    store.merge(&key("a"), &machine(), &one_point()).unwrap();
    let silent = Measurement {
        name: "pigz".to_owned(),
        at_s: 1_700_000_060,
        ..Measurement::default()
    };
    store.merge(&key("a"), &machine(), &silent).unwrap();
    let profile = store.lookup(&key("a"), &machine()).unwrap().unwrap();
    assert_eq!((profile.runs, profile.spinners), (2, 2));
    assert_eq!(
        profile.active_wait,
        Some(true),
        "a silent run changes nothing"
    );
    assert_eq!(profile.points[0].runs, 1);
}

#[test]
fn rejects_a_measurement_with_an_invalid_point_completely() {
    let mut store = Store::in_memory().unwrap();
    for bad in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
        let good = point(1.0, 1.0, ProgressSource::Heartbeat);
        for bad in [point(2.0, bad, good.source), point(bad, 2.0, good.source)] {
            let error = store.merge(&key("a"), &machine(), &measurement(&[good, bad]));
            let error = error.unwrap_err().to_string();
            assert!(
                error.starts_with(
                    "the profile cannot be stored: it needs valid points of the curve: "
                ),
                "{error}"
            );
        }
    }
    assert_eq!(store.list().unwrap(), []);
}

/// Creates a store with fifty profiles and closes it.
fn filled(path: &Path) {
    let mut store = Store::open(path).unwrap();
    for i in 0..50 {
        store
            .merge(&key(&format!("program-{i}")), &machine(), &one_point())
            .unwrap();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

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
fn concurrent_writers_lose_no_measurement() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profiles.db");
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut store = Store::open(&path).unwrap();
                for _ in 0..20 {
                    store.merge(&key("same"), &machine(), &one_point()).unwrap();
                }
            });
        }
    });
    let store = Store::open(&path).unwrap();
    let profile = store.lookup(&key("same"), &machine()).unwrap().unwrap();
    assert_eq!((profile.runs, profile.points[0].runs), (120, 120));
    assert!((profile.points[0].point.rate - 10.0).abs() < 1e-9);
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
fn profiles_are_replaced_and_removed_one_by_one() {
    let mut store = Store::in_memory().unwrap();
    for name in ["a", "b"] {
        let measurement = Measurement {
            name: name.to_owned(),
            points: vec![point(1.0, 5.0, ProgressSource::Repetition)],
            ..Measurement::default()
        };
        store.merge(&key(name), &machine(), &measurement).unwrap();
    }
    let mut both = store.list().unwrap();
    assert_ne!(both[0].id(), both[1].id());
    both[0].profile.points[0].point.rate = 7.0;
    store.replace(&both[..1]).unwrap();
    assert_eq!(store.list().unwrap(), both);
    store.remove(&both[..1]).unwrap();
    assert_eq!(store.list().unwrap(), both[1..]);
    // The points of the removed profile are gone, too.
    store.replace(&both).unwrap();
    assert_eq!(store.list().unwrap(), both);
}

#[test]
fn a_similar_profile_is_of_the_same_executable_and_differs_least() {
    let mut store = Store::in_memory().unwrap();
    let with = |executable: &str, arguments: &str| ProgramKey {
        executable: executable.to_owned(),
        arguments: arguments.to_owned(),
    };
    let mut add = |executable: &str, arguments: &str, source| {
        let measurement = Measurement {
            name: arguments.to_owned(),
            points: vec![point(1.0, 5.0, source)],
            ..Measurement::default()
        };
        let key = with(executable, arguments);
        store.merge(&key, &machine(), &measurement).unwrap();
    };
    add("hash:01", "-p2 -9 file:2^20", ProgressSource::Repetition);
    add(
        "hash:01",
        "-p2 --fast --quiet file:2^20",
        ProgressSource::Repetition,
    );
    add("hash:01", "-p8 file:2^20", ProgressSource::Repetition);
    add("hash:02", "-p2 file:2^20", ProgressSource::Repetition);
    add("hash:01", "-p2 file:2^21", ProgressSource::CpuTime);
    let similar = |executable: &str, arguments: &str| {
        let found = store.similar(&with(executable, arguments), &machine());
        found.unwrap().map(|entry| entry.profile.name)
    };
    assert_eq!(
        similar("hash:01", "-p2 file:2^26").as_deref(),
        Some("-p2 -9 file:2^20")
    );
    assert_eq!(similar("hash:01", "-p4 file:2^26"), None);
    assert_eq!(similar("hash:03", "-p2 file:2^26"), None);
    assert_eq!(similar("hash:02", "-p2 file:2^20"), None, "its own profile");
}

#[test]
fn the_points_of_one_source_are_forgotten() {
    let mut store = Store::in_memory().unwrap();
    let measurement = Measurement {
        name: "a".to_owned(),
        points: vec![
            point(1.0, 5.0, ProgressSource::Repetition),
            point(1.0, 9e6, ProgressSource::Bytes),
        ],
        ..Measurement::default()
    };
    for name in ["a", "b"] {
        store.merge(&key(name), &machine(), &measurement).unwrap();
    }
    let bytes = ProgressSource::Bytes;
    store.forget_source(&key("a"), &machine(), bytes).unwrap();
    let sources = |name: &str| {
        let profile = store.lookup(&key(name), &machine()).unwrap().unwrap();
        profile.points.iter().map(|p| p.source).collect::<Vec<_>>()
    };
    assert_eq!(sources("a"), [ProgressSource::Repetition]);
    assert_eq!(sources("b").len(), 2);
}

#[test]
fn the_record_of_varied_runs_belongs_to_its_profile() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profiles.db");
    let mut store = Store::open(&path).unwrap();
    let (known, other) = (key("a"), key("b"));
    let record = VariationRecord {
        runs: 3,
        usual_seconds: 12.5,
        usual_cpus: 1.75,
        credit_seconds: -0.5,
    };
    store.set_variation(&known, &machine(), &record).unwrap();
    assert_eq!(
        store.variation(&known, &machine()).unwrap(),
        None,
        "no profile"
    );
    store.merge(&known, &machine(), &one_point()).unwrap();
    store.set_variation(&known, &machine(), &record).unwrap();
    drop(store);
    let mut store = Store::open(&path).unwrap();
    assert_eq!(store.variation(&known, &machine()).unwrap(), Some(record));
    assert_eq!(store.variation(&other, &machine()).unwrap(), None);
    let next = VariationRecord { runs: 4, ..record };
    store.set_variation(&known, &machine(), &next).unwrap();
    assert_eq!(store.variation(&known, &machine()).unwrap(), Some(next));
    store.forget(&known).unwrap();
    store.merge(&known, &machine(), &one_point()).unwrap();
    assert_eq!(
        store.variation(&known, &machine()).unwrap(),
        None,
        "forgotten"
    );
}

#[test]
fn known_copies_are_replaced_and_forgotten_without_the_measurements() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profiles.db");
    let mut store = Store::open(&path).unwrap();
    let (known, other) = (key("a"), key("b"));
    let copies = StoredCopies {
        cpus_per_copy: 1,
        program_cpus: 4,
    };
    let next = StoredCopies {
        cpus_per_copy: 2,
        ..copies
    };
    for key in [&known, &other] {
        store
            .set_copies(key, &machine(), "xargs", 7, copies)
            .unwrap();
    }
    store.merge(&known, &machine(), &one_point()).unwrap();
    store
        .set_copies(&known, &machine(), "xargs", 8, next)
        .unwrap();
    drop(store);
    let mut store = Store::open(&path).unwrap();
    let profile = store.lookup(&known, &machine()).unwrap().unwrap();
    assert_eq!((profile.runs, profile.copies), (1, Some(next)));
    let profile = store.lookup(&other, &machine()).unwrap().unwrap();
    assert_eq!((profile.runs, profile.points.len()), (0, 0));
    assert_eq!(profile.copies, Some(copies));
    for key in [&known, &other, &key("c")] {
        store.forget_copies(key, &machine()).unwrap();
    }
    let left = store.list().unwrap();
    assert_eq!(left.len(), 1, "only the measured profile remains");
    let profile = &left[0].profile;
    assert_eq!((profile.points.len(), profile.copies), (1, None));
}
