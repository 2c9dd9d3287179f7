// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of stored profiles: merging, replacement, removal, similar profiles, and concurrent writers.

use usher_model::{ProgramKey, ProgressSource, StoredCopies};
use usher_store::{Measurement, Store, VariationRecord};

use crate::support::{key, machine, measurement, one_point, point};

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
