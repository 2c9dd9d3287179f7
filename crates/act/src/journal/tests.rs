// SPDX-License-Identifier: MIT OR Apache-2.0
//! Property tests of the journal: any sequence of records is read back as it was written, survives
//! rewriting without loss, and tolerates a torn last line and a corrupt line.

use proptest::prelude::*;
use usher_model::{CpuSet, Demotion, ProcessId, ProgramId};

use super::*;

const KINDS: [DirKind; 5] = [
    DirKind::V2,
    DirKind::Scope,
    DirKind::Unit,
    DirKind::CpusetV1,
    DirKind::CpuV1,
];

fn head() -> JournalHeader {
    JournalHeader {
        version: VERSION,
        boot: "b".to_owned(),
        owner: process(1),
        pid_namespace: 7,
    }
}

fn process(number: u8) -> ProcessId {
    ProcessId {
        pid: number.into(),
        start_ticks: 1000 + u64::from(number),
    }
}

fn places(number: u8) -> CgroupPaths {
    CgroupPaths {
        v2: Some(format!("/v2/{number}").into()),
        cpuset: (!number.is_multiple_of(3)).then(|| format!("/v1/{number}").into()),
        cpu: number
            .is_multiple_of(2)
            .then(|| format!("/cpu/{number}").into()),
    }
}

fn mask(bits: u8) -> CpuSet {
    (0..8).filter(|bit| bits >> bit & 1 == 1).collect()
}

fn thread(number: u8) -> ThreadId {
    ThreadId {
        pid: number.into(),
        tid: number.into(),
        start_ticks: 5,
    }
}

fn priority(number: u8) -> Priority {
    Priority {
        policy: u32::from(number) % 7,
        nice: i32::from(number) % 40 - 20,
        realtime: u32::from(number) / 3,
        reset_on_fork: number.is_multiple_of(2),
        io: i32::from(number) << 11,
    }
}

fn record() -> impl Strategy<Value = Record> {
    (0..20u8, 0..3u8, any::<u8>()).prop_map(|(kind, program, n)| {
        let program = ProgramId(program.into());
        match kind {
            0 => Record::Base {
                dir: format!("/base/{n}").into(),
            },
            1 => Record::Enable {
                dir: format!("/enable/{n}").into(),
            },
            2 => Record::Begin {
                program,
                from: places(n),
            },
            3 => Record::Dir {
                program,
                dir: Dir {
                    dir: format!("/dir/{n}").into(),
                    kind: KINDS[usize::from(n) % KINDS.len()],
                    wide: mask(n),
                },
            },
            4 => Record::Member {
                program,
                process: process(n),
                from: places(n),
            },
            5 => Record::Mask {
                program,
                cpus: mask(n),
            },
            6 => Record::Thread {
                program,
                thread: thread(n),
                before: mask(n / 2),
            },
            7 => Record::Unmask { program },
            8 => Record::Stop {
                program,
                process: process(n),
            },
            9 => Record::Continue { program },
            10 => Record::Unbound {
                program,
                before: mask(n / 3),
            },
            18 => Record::Own {
                program,
                thread: thread(n),
                mask: mask(n / 2),
            },
            16 => Record::Freeze { program },
            17 => Record::Permanent { program },
            11..16 => of_a_demotion(kind, program, n),
            _ => Record::Close { program },
        }
    })
}

fn of_a_demotion(kind: u8, program: ProgramId, n: u8) -> Record {
    match kind {
        11 => Record::Demote {
            program,
            to: [Demotion::Nice, Demotion::Idle][usize::from(n) % 2],
        },
        12 => Record::Priority {
            program,
            thread: thread(n),
            before: priority(n / 2),
        },
        13 => Record::Inborn {
            program,
            before: priority(n / 3),
        },
        14 => Record::Autogroup {
            program,
            autogroup: n.into(),
            session: i32::from(n) / 2,
            nice: i32::from(n) % 19,
        },
        _ => Record::Gone {
            program,
            dir: format!("/dir/{n}").into(),
        },
    }
}

fn written(records: &[Record]) -> (tempfile::TempDir, Journal) {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(dir.path(), head()).unwrap();
    for record in records {
        journal.write(record.clone()).unwrap();
    }
    (dir, journal)
}

proptest! {
    #[test]
    fn a_journal_is_read_as_written(records in prop::collection::vec(record(), 0..60)) {
        let (dir, journal) = written(&records);
        let (state, errors) = read(dir.path()).unwrap().unwrap();
        prop_assert!(errors.is_empty());
        prop_assert_eq!(&state, journal.state());
    }

    #[test]
    fn rewriting_loses_nothing(records in prop::collection::vec(record(), 0..60)) {
        let (dir, mut journal) = written(&records);
        let before = journal.state().clone();
        journal.compact().unwrap();
        journal.write(Record::Base { dir: "/after".into() }).unwrap();
        let (state, errors) = read(dir.path()).unwrap().unwrap();
        prop_assert!(errors.is_empty());
        prop_assert_eq!(&state, journal.state());
        prop_assert_eq!(state.programs, before.programs);
    }

    #[test]
    fn a_torn_last_line_is_ignored(
        records in prop::collection::vec(record(), 1..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let (dir, _) = written(&records);
        let (whole, _) = written(&records[..records.len() - 1]);
        let path = dir.path().join(FILE);
        let bytes = std::fs::read(&path).unwrap();
        let last = line_of(&records[records.len() - 1]).unwrap().len();
        let keep = bytes.len() - 1 - cut.index(last);
        std::fs::write(&path, &bytes[..keep]).unwrap();
        let (state, errors) = read(dir.path()).unwrap().unwrap();
        prop_assert!(errors.is_empty());
        let all = keep == bytes.len() - 1; // the last line is complete except for its line feed
        let expected = if all { written(&records).0 } else { whole };
        let (expected, _) = read(expected.path()).unwrap().unwrap();
        prop_assert_eq!(state, expected);
    }
}

#[test]
fn a_journal_never_outgrows_the_size_that_the_undo_reads() {
    let program = ProgramId(1);
    let (dir, mut journal) = written(&[]);
    journal.bytes_max = 4096;
    let path = dir.path().join(FILE);
    let size = || std::fs::metadata(&path).unwrap().len();
    // Lines that replace one another fit for ever, because the journal is rewritten.
    for bits in 0..=255 {
        let cpus = mask(bits % 2 + 1);
        journal.write(Record::Mask { program, cpus }).unwrap();
        assert!(size() <= 4096);
    }
    // Lines that all need an undo are rejected when the journal is full.
    let mut refused = None;
    for number in 0..=255 {
        let dir = format!("/base/{number}").repeat(4).into();
        let (before, bytes) = (journal.state().clone(), size());
        if let Err(error) = journal.write(Record::Base { dir }) {
            assert_eq!(journal.state(), &before, "the state is unchanged");
            assert!(size() <= bytes);
            refused = Some(error.to_string());
            break;
        }
        assert!(size() <= 4096);
    }
    let error = refused.unwrap();
    assert!(error.contains("more than 4096 bytes"), "{error}");
    let (state, errors) = read(dir.path()).unwrap().unwrap();
    assert!(errors.is_empty());
    assert_eq!(&state, journal.state());
}

#[test]
fn rewriting_keeps_the_mask_of_threads_yet_to_be_found() {
    // The case that the fuzzer found with seed 504: the thread with the recorded mask has ended.
    // The thread's child inherited Usher's mask, and no scan has found the child yet.
    let program = ProgramId(1);
    let thread = thread(1);
    let (dir, mut journal) = written(&[
        Record::Thread {
            program,
            thread,
            before: mask(15),
        },
        Record::Mask {
            program,
            cpus: mask(3),
        },
    ]);
    journal.forget(program, |state| state.threads.clear());
    journal.compact().unwrap();
    let (state, _) = read(dir.path()).unwrap().unwrap();
    assert_eq!(state.programs[&program].unbound, Some(mask(15)));
    assert_eq!(&state, journal.state());
}

#[test]
fn rewriting_keeps_the_priority_of_threads_yet_to_be_found() {
    let program = ProgramId(1);
    let (dir, mut journal) = written(&[
        Record::Priority {
            program,
            thread: thread(1),
            before: priority(9),
        },
        Record::Demote {
            program,
            to: Demotion::Idle,
        },
    ]);
    journal.forget(program, |state| state.demoted.threads.clear());
    journal.compact().unwrap();
    let (state, _) = read(dir.path()).unwrap().unwrap();
    let demoted = &state.programs[&program].demoted;
    assert_eq!(demoted.inborn, Some(priority(9)));
    assert!(demoted.to.contains(&Demotion::Idle));
    assert_eq!(&state, journal.state());
}

#[test]
fn a_corrupt_line_is_named_and_the_others_count() {
    let (dir, _) = written(&[
        Record::Base { dir: "/a".into() },
        Record::Base { dir: "/b".into() },
    ]);
    let path = dir.path().join(FILE);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"/a\"", "#")).unwrap();
    let (state, errors) = read(dir.path()).unwrap().unwrap();
    assert_eq!(state.bases, [PathBuf::from("/b")]);
    let [error] = errors.as_slice() else {
        panic!("{errors:?}");
    };
    assert!(
        error.to_string().starts_with("line 2 of the journal "),
        "{error}"
    );
}

#[test]
fn a_program_that_another_process_closed_is_closed() {
    let program = ProgramId(4);
    let (dir, _) = written(&[Record::Begin {
        program,
        from: places(1),
    }]);
    // The state of the file after the owner died while it wrote a line.
    let path = dir.path().join(FILE);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend(b"{\"do\":\"sea");
    std::fs::write(&path, bytes).unwrap();
    close(dir.path(), program).unwrap();
    let (state, errors) = read(dir.path()).unwrap().unwrap();
    assert!(state.programs.is_empty());
    assert_eq!(errors.len(), 1, "the torn line now has an end");
}

#[test]
fn a_journal_of_many_short_programs_stays_small() {
    let (dir, mut journal) = written(&[]);
    for number in 0..20_000 {
        let program = ProgramId(number);
        journal
            .write(Record::Begin {
                program,
                from: places(1),
            })
            .unwrap();
        journal.write(Record::Close { program }).unwrap();
    }
    let bytes = std::fs::metadata(dir.path().join(FILE)).unwrap().len();
    assert!(bytes <= COMPACT_BYTES_MIN + 200, "{bytes} bytes");
}
