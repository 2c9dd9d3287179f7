// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz targets for data that Usher itself writes, damaged or planted by another user: journals,
//! heartbeat pages, profile stores and command lines of keepers.

use std::fs;
use std::os::unix::ffi::OsStringExt;

use usher_act::journal;
use usher_act::keeper::KeeperTask;
use usher_fuzz::fuzz;
use usher_heartbeat::Page;
use usher_store::Store;

#[test]
fn journals() {
    let samples: [&[u8]; 2] = [JOURNAL.as_bytes(), &JOURNAL.as_bytes()[..JOURNAL.len() / 2]];
    fuzz("journals", &samples, |input| {
        let (state, _) = journal::fold(input);
        // Records that were read from a damaged journal are the same after they are written and
        // read again.
        let records = state.records();
        let lines = records.iter().map(journal::line_of);
        let lines: Vec<u8> = lines.flat_map(Result::unwrap).collect();
        let (again, errors) = journal::fold(&lines);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(again.records(), records);
    });
}

#[test]
fn heartbeat_pages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    let valid = Page::create(&path).unwrap();
    let sample = fs::read(&path).unwrap();
    valid.remove().unwrap();
    fuzz("heartbeat_pages", &[&sample, &sample[..64]], |input| {
        fs::write(&path, input).unwrap();
        let Ok(mut page) = Page::open(&path) else {
            return;
        };
        let _ = page.work();
        let _ = page.threads();
        if let Ok(reading) = page.read() {
            assert!(reading.target_per_s.is_none_or(|target| !target.is_nan()));
        }
    });
}

#[test]
fn profile_stores() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profiles.db");
    drop(Store::open(&path).unwrap());
    let sample = fs::read(&path).unwrap();
    fuzz(
        "profile_stores",
        &[&sample, b"SQLite format 3\0"],
        |input| {
            for file in fs::read_dir(dir.path()).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
            fs::write(&path, input).unwrap();
            if let Ok((store, _)) = Store::open_or_memory(&path) {
                let _ = store.list();
            }
        },
    );
}

#[test]
fn command_lines_of_keepers() {
    let samples: [&[u8]; 1] = [b"42\x004711\0/run/usher/instances/42-4711\0/run/usher\0/sys/fs/cgroup\0/proc\0/sys\0/run/systemd\0usher\0daemon"];
    fuzz("command_lines_of_keepers", &samples, |input| {
        let words = input.split(|&byte| byte == 0).map(<[u8]>::to_vec);
        let words: Vec<_> = words.map(OsStringExt::from_vec).collect();
        if let Ok(task) = KeeperTask::from_args(words) {
            assert_eq!(KeeperTask::from_args(task.to_args()).unwrap(), task);
        }
    });
}

const JOURNAL: &str = r#"{"do":"open","version":2,"boot":"b","owner":{"pid":7,"start_ticks":70},"pid_namespace":1}
{"do":"begin","program":1,"from":{"v2":"/sys/fs/cgroup/a"}}
{"do":"dir","program":1,"dir":"/sys/fs/cgroup/a/usher-7-70.1","kind":"v2","wide":""}
{"do":"member","program":1,"process":{"pid":9,"start_ticks":90},"from":{"v2":"/sys/fs/cgroup/a"}}
{"do":"thread","program":1,"thread":{"pid":9,"tid":9,"start_ticks":90},"before":"0-3"}
{"do":"mask","program":1,"cpus":"0-1"}
{"do":"stop","program":1,"process":{"pid":9,"start_ticks":90}}
{"do":"freeze","program":1}
{"do":"demote","program":1,"to":"idle"}
{"do":"autogroup","program":1,"autogroup":5,"session":9,"nice":0}
{"do":"unbound","program":1,"before":"0-3"}
{"do":"close","program":1}
{"do":"base","dir":"/sys/fs/cgroup/usher-7-70"}
"#;
