// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the heartbeat page between two processes (a C program writes, the test reads), and of
//! invalid, truncated and hostile pages.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use usher_heartbeat::{ENVIRONMENT, Heartbeat, Page, PageFault, SlotState, layout};

/// Builds `tests/beating.c` into `dir` with the system's C compiler.
fn beating(dir: &Path) -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = dir.join("beating");
    let built = Command::new("cc")
        .args(["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(crate_dir.join("include"))
        .arg(crate_dir.join("tests/beating.c"))
        .arg("-o")
        .arg(&program)
        .status()
        .expect("a C compiler named cc");
    assert!(built.success());
    program
}

#[test]
fn the_header_and_the_crate_agree_on_every_offset() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Command::new(beating(dir.path())).arg("layout").output();
    let layout = String::from_utf8(layout.unwrap().stdout).unwrap();
    use layout::*;
    let expected = [
        ("version", VERSION_AT),
        ("page_bytes", SIZE_AT),
        ("slots", SLOT_COUNT_AT),
        ("slots_requested", SLOTS_REQUESTED_AT),
        ("work", WORK_AT),
        ("target_per_s", TARGET_AT),
        ("unit", UNIT_AT),
        ("label", LABEL_AT),
        ("slot", SLOTS_AT),
        ("slot.sequence", SEQUENCE_AT),
        ("slot.state", STATE_AT),
        ("slot.since_ns", SINCE_AT),
        ("slot.useful_ns", USEFUL_AT),
        ("slot.waiting_ns", WAITING_AT),
        ("slot.useful_cpu_ns", USEFUL_CPU_AT),
        ("slot.waiting_cpu_ns", WAITING_CPU_AT),
        ("slot.events", EVENTS_AT),
        ("slot.tid", TID_AT),
        ("page", PAGE_BYTES),
        ("slot.size", SLOT_BYTES),
    ];
    let expected: String = expected.map(|(n, at)| format!("{n} {at}\n")).concat();
    assert_eq!(layout, expected);
}

#[test]
fn a_c_program_beats_while_the_reader_reads() {
    let dir = tempfile::tempdir().unwrap();
    let program = beating(dir.path());
    let mut page = Page::create(&dir.path().join("page")).unwrap();
    assert_eq!(page.read().unwrap().work, 0);
    let mut child = Command::new(program)
        .args(["beat", "3000000"])
        .env(ENVIRONMENT, page.path())
        .spawn()
        .unwrap();
    let mut last = 0;
    let status = loop {
        let work = page.work().unwrap();
        assert!(work >= last && work.is_multiple_of(2), "{last} then {work}");
        last = work;
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
    };
    assert!(status.success(), "the program found no page");
    let reading = page.read().unwrap();
    assert_eq!(reading.work, 6_000_000);
    assert_eq!(reading.target_per_s, Some(12.5));
    assert_eq!(reading.unit, "a unit whose name is much too l");
    assert_eq!(reading.label, "beating.c");
    assert_eq!(reading.threads, None);
}

#[test]
fn work_counted_before_a_crash_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut page = Page::create(&dir.path().join("page")).unwrap();
    let status = Command::new(beating(dir.path()))
        .args(["die", "7"])
        .env(ENVIRONMENT, page.path())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(6));
    assert_eq!(page.read().unwrap().work, 14);
}

#[test]
fn without_a_page_beats_have_no_effect() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Command::new(beating(dir.path()));
    run.args(["beat", "10"]).env_remove(ENVIRONMENT);
    assert_eq!(run.status().unwrap().code(), Some(3));
    let garbage = dir.path().join("garbage");
    std::fs::write(&garbage, vec![7; layout::PAGE_BYTES]).unwrap();
    run.env(ENVIRONMENT, &garbage);
    assert_eq!(run.status().unwrap().code(), Some(3));
    assert_eq!(
        std::fs::read(&garbage).unwrap(),
        vec![7; layout::PAGE_BYTES]
    );
}

#[test]
fn an_invalid_page_is_a_one_line_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    let message = |path: &Path| {
        let (reader, writer) = (Page::open(path), Heartbeat::open(path));
        let (reader, writer) = (reader.unwrap_err(), writer.unwrap_err());
        assert_eq!(reader.to_string(), writer.to_string());
        assert!(!reader.to_string().contains('\n'));
        reader
    };
    let Page { .. } = Page::create(&path).unwrap();
    assert!(Page::create(&path).is_err(), "a page is never overwritten");
    let whole = std::fs::read(&path).unwrap();

    std::fs::write(&path, &whole[..100]).unwrap();
    assert!(matches!(message(&path).fault, PageFault::Size(100)));
    std::fs::write(&path, b"USH").unwrap();
    assert!(matches!(message(&path).fault, PageFault::NotAPage));
    let mut other = whole.clone();
    other[layout::VERSION_AT] = 9;
    std::fs::write(&path, &other).unwrap();
    assert!(matches!(message(&path).fault, PageFault::Version(9)));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(message(&path).fault, PageFault::Io { .. }));
}

#[test]
fn a_truncated_page_is_an_error_not_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    let mut page = Page::create(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(10).unwrap();
    assert!(matches!(
        page.read().unwrap_err().fault,
        PageFault::Size(10)
    ));
    assert!(matches!(
        page.work().unwrap_err().fault,
        PageFault::Size(10)
    ));
    assert!(page.threads().is_err());
}

#[test]
fn garbage_in_slots_neither_panics_nor_overflows() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let mut page = Page::create(&dir.path().join("page")).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(page.path());
    let file = file.unwrap();
    let mut slots = vec![0xff; layout::SLOTS * layout::SLOT_BYTES];
    for slot in slots.chunks_mut(layout::SLOT_BYTES) {
        slot[..8].copy_from_slice(&[2, 0, 0, 0, 1, 0, 0, 0]);
    }
    file.write_all_at(&slots, layout::SLOTS_AT as u64).unwrap();
    file.write_all_at(&[0xff; 4], layout::SLOTS_REQUESTED_AT as u64)
        .unwrap();
    let threads = page.threads().unwrap().unwrap();
    assert_eq!(threads.running, 1024);
    assert_eq!(threads.useful_ns, u64::MAX);
}

/// Polls until `state` returns true, with a deadline.
fn until(mut state: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !state() {
        assert!(Instant::now() < deadline, "not within ten seconds");
        std::thread::yield_now();
    }
}

#[test]
fn slots_record_useful_and_waiting_time_and_are_reused() {
    let dir = tempfile::tempdir().unwrap();
    let mut page = Page::create(&dir.path().join("page")).unwrap();
    let heart = Heartbeat::open(page.path()).unwrap();
    let start = Instant::now();
    let mut slot = heart.thread_slot().unwrap();
    let claimed = Instant::now();
    until(|| claimed.elapsed() > Duration::from_millis(5));
    slot.enter(SlotState::Waiting);
    let waits = page.threads().unwrap().unwrap();
    assert_eq!((waits.running, waits.waiting), (1, 1));
    assert!(waits.useful_ns >= 5_000_000 && waits.useful_cpu_ns > 0);
    slot.enter(SlotState::Useful);
    slot.release();
    let lived_ns = start.elapsed().as_nanos() as u64;
    let ended = page.threads().unwrap().unwrap();
    assert_eq!((ended.running, ended.waiting, ended.refused), (0, 0, 0));
    assert!(ended.elapsed_ns <= lived_ns && ended.elapsed_ns >= 5_000_000);
    assert!(ended.useful_cpu_ns + ended.waiting_cpu_ns <= lived_ns);

    let mut again = heart.thread_slot().unwrap();
    again.enter(SlotState::Waiting);
    let more = page.threads().unwrap().unwrap();
    assert_eq!(more.running, 1, "the released slot is claimed again");
    assert!(more.useful_ns >= ended.useful_ns, "sums only grow");
}

#[test]
fn requests_beyond_all_slots_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut page = Page::create(&dir.path().join("page")).unwrap();
    let heart = Heartbeat::open(page.path()).unwrap();
    let slots: Vec<_> = (0..layout::SLOTS + 3)
        .map(|_| heart.thread_slot())
        .collect();
    assert_eq!(slots.iter().flatten().count(), layout::SLOTS);
    let threads = page.threads().unwrap().unwrap();
    assert_eq!((threads.running, threads.refused), (1024, 3));
}

#[test]
fn many_threads_change_states_while_the_reader_reads() {
    let dir = tempfile::tempdir().unwrap();
    let mut page = Page::create(&dir.path().join("page")).unwrap();
    let heart = Heartbeat::open(page.path()).unwrap();
    let changes = 20_000;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut slot = heart.thread_slot().unwrap();
                    for _ in 0..changes / 2 {
                        slot.enter(SlotState::Waiting);
                        slot.enter(SlotState::Useful);
                        heart.beat(1);
                    }
                    slot.release();
                })
            })
            .collect();
        let mut last = page.read().unwrap();
        while !threads.iter().all(|t| t.is_finished()) {
            let now = page.read().unwrap();
            assert!(now.work >= last.work);
            let sums = |r: &usher_heartbeat::PageReading| {
                let t = r.threads.unwrap_or_default();
                (t.useful_cpu_ns, t.waiting_cpu_ns, t.events)
            };
            let (a, b) = (sums(&last), sums(&now));
            assert!(a.0 <= b.0 && a.1 <= b.1 && a.2 <= b.2, "{a:?} then {b:?}");
            last = now;
        }
    });
    let end = page.read().unwrap();
    assert_eq!(end.work, 4 * changes / 2);
    let sums = end.threads.unwrap();
    assert_eq!(sums.events, 4 * (changes + 1));
    assert_eq!(sums.running, 0);
}
