// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plays recorded runs back through the control loop, and checks that the loop acts as recorded.
//! The records are those of simulated runs with faults, and of a run on a real machine.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;

use usher_control::{RecordHead, RecordReader, Recorder, replay};
use usher_policy::{Policy, by_name};
use usher_sim::fuzz::{FuzzCase, MACHINES};
use usher_sim::playback::{PlaybackError, play_back, play_back_with};
use usher_topology::Source;

/// A record of `usher daemon --record` on a machine with two CPUs and no PMU;
/// `tests/data/README.md` describes how it was made.
const REAL: &[u8] = include_bytes!("data/daemon.jsonl");

/// Returns the record from the real machine. With `make bless`, the current policy makes its
/// decisions anew, and the file is updated.
fn real() -> Vec<u8> {
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        let mut reader = RecordReader::new(REAL).unwrap();
        let mut policy = policy(reader.head());
        let mut bytes = Vec::new();
        let mut recorder = Recorder::new(&mut bytes, reader.head()).unwrap();
        while let Some(step) = reader.step().unwrap() {
            let decision = policy.decide(&step.observation);
            recorder.step(&step.observation, &decision).unwrap();
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/daemon.jsonl");
        std::fs::write(path, &bytes).unwrap();
        return bytes;
    }
    REAL.to_owned()
}

/// A record in memory, to which a recorder can write.
#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the record of each daemon in the fuzz case of a seed. The result is empty if the case
/// has a policy that only the simulator has.
fn recorded(seed: u64) -> Vec<Vec<u8>> {
    let load = |spec: &str| usher_topology::load(Source::Synthetic(spec.to_owned())).unwrap();
    let machines: Vec<_> = MACHINES.into_iter().map(load).collect();
    let case = FuzzCase::new(seed, &machines);
    if !usher_policy::NAMES.contains(&case.policy) {
        return vec![];
    }
    let mut lives: Vec<Memory> = vec![];
    case.run_recorded(&mut |life| {
        assert_eq!(life, lives.len() + 1);
        lives.push(Memory::default());
        Ok(Box::new(lives[life - 1].clone()))
    })
    .unwrap();
    lives.into_iter().map(|life| life.0.take()).collect()
}

fn policy(head: &RecordHead) -> Box<dyn Policy + Send> {
    by_name(&head.policy, &head.topology).unwrap()
}

#[test]
fn simulated_runs_with_faults_replay_and_play_back() {
    let mut lives = 0;
    for seed in 0..20 {
        for record in recorded(seed) {
            let lines = record.iter().filter(|&&byte| byte == b'\n').count();
            // The daemon may be killed before its first decision.
            if lines == 1 {
                continue;
            }
            lives += 1;
            assert_eq!(
                play_back(record.as_slice()).unwrap(),
                lines - 1,
                "seed {seed}"
            );
            assert_eq!(replay(record.as_slice(), policy).unwrap(), lines - 1);
        }
    }
    assert!(lives > 10, "{lives} daemons");
}

#[test]
fn real_run_plays_back_to_the_same_actions() {
    let real = real();
    let text = std::str::from_utf8(&real).unwrap();
    let steps = text.lines().count() - 1;
    for what in ["\"arrived\"", "\"departed\"", "\"seat\"", "\"release\""] {
        assert!(text.contains(what), "the record has no {what}");
    }
    assert_eq!(play_back(real.as_slice()).unwrap(), steps);
    assert_eq!(replay(real.as_slice(), policy).unwrap(), steps);
}

#[test]
fn reports_line_of_different_decision() {
    let linux = |head: &RecordHead| by_name("linux", &head.topology);
    let error = play_back_with(REAL, linux).unwrap_err();
    let PlaybackError::Differs { line, .. } = &error else {
        panic!("{error}");
    };
    let text = std::str::from_utf8(REAL).unwrap();
    let has_actions = |line: &&str| !line.contains("\"actions\":[]");
    let first = text
        .lines()
        .skip(1)
        .position(|line| has_actions(&line))
        .unwrap()
        + 2;
    assert!(
        *line <= first,
        "line {line}, but the first action is in {first}"
    );
    let start = format!("the playback differs from line {line} of the record: ");
    assert!(error.to_string().starts_with(&start), "{error}");
}

#[test]
fn rejects_invalid_records() {
    let message = |bytes: &[u8]| play_back(bytes).unwrap_err().to_string();
    assert_eq!(
        message(b""),
        "the record is empty: it has no line that describes the machine and the policy"
    );
    let head = REAL.split_inclusive(|&byte| byte == b'\n').next().unwrap();
    assert_eq!(
        message(head),
        "the record contains no step of the control loop"
    );
    let text = std::str::from_utf8(REAL).unwrap();
    let unknown = text.replacen("\"policy\":\"usher\"", "\"policy\":\"oracle\"", 1);
    assert_eq!(
        message(unknown.as_bytes()),
        "the record was made by the policy 'oracle', which is unknown"
    );
    let elsewhere = text.replacen("\"usable\":\"0-1\"", "\"usable\":\"0-95\"", 1);
    assert_eq!(
        message(elsewhere.as_bytes()),
        "line 2 of the record contradicts earlier lines: the line has the usable CPUs 2-95, but \
         the recorded machine has CPUs 0-1; was the line recorded on another machine?"
    );
}
