// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the control loop and of its record, with a model of the world in which actions can
//! fail.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use usher_control::{ControlLoop, Iteration, RecordError, RecordHead, Recorder, World, replay};
use usher_model::*;
use usher_policy::{Policy, by_name};

fn topology() -> Topology {
    let all = CpuSet::range(0, 3);
    Topology {
        name: "four cores, two domains".into(),
        cpus: (0..4)
            .map(|os| Cpu {
                os,
                core: os as usize,
            })
            .collect(),
        cores: (0..4)
            .map(|c| Core {
                cpus: CpuSet::single(c),
                domain: c as usize / 2,
                capacity: 1.0,
            })
            .collect(),
        domains: (0..2)
            .map(|d| Domain {
                cpus: CpuSet::range(2 * d, 2 * d + 1),
                cores: vec![2 * d as usize, 2 * d as usize + 1],
                package: 0,
                nodes: vec![0],
                llc: None,
            })
            .collect(),
        packages: vec![Package {
            cpus: all.clone(),
            domains: vec![0, 1],
            model: None,
            dies: vec![all.clone()],
        }],
        nodes: vec![NumaNode {
            os: 0,
            cpus: all,
            bytes: 0,
        }],
    }
}

fn program(id: u64) -> Program {
    Program {
        id: ProgramId(id),
        name: format!("p{id}"),
        weight: 1.0,
        profile: None,
        profile_match: ProfileMatch::Exact,
        spinners: 0,
        active_wait: None,
        ran_before: false,
        stops_unseen: true,
        cpu_quota: None,
        cores: None,
        variation: None,
        llc_bytes: None,
        bandwidth_gbps: None,
        background: None,
        bound_to: None,
        pinned_to: None,
    }
}

/// A world without a machine, which returns prepared events and stores the actions of the policy.
#[derive(Default)]
struct ScriptedWorld {
    at_ns: u64,
    events: Vec<Vec<Event>>,
    refuse: Vec<ProgramId>,
    acted: Vec<Action>,
    reported: Vec<FailedAction>,
    waits: Vec<Option<u64>>,
    decided: Vec<(Observation, Decision)>,
}

impl World for ScriptedWorld {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        self.at_ns += 1_000;
        self.reported.extend(failed.clone());
        let events = if self.events.is_empty() {
            vec![]
        } else {
            self.events.remove(0)
        };
        Observation {
            at_ns: self.at_ns,
            usable: CpuSet::range(0, 3),
            events,
            failed,
            programs: vec![],
            metering: None,
        }
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        if self.refuse.contains(&action.program()) {
            return Err(format!("program {} refuses", action.program()));
        }
        self.acted.push(action.clone());
        Ok(())
    }

    fn decided(&mut self, observation: &Observation, decision: &Decision) {
        self.decided.push((observation.clone(), decision.clone()));
    }

    fn wait(&mut self, at_most_ns: Option<u64>) -> bool {
        self.waits.push(at_most_ns);
        self.waits.len() < 4
    }
}

fn arrivals(ids: &[u64]) -> Vec<Event> {
    ids.iter()
        .map(|&id| Event::Arrived(Box::new(program(id))))
        .collect()
}

#[test]
fn a_failed_action_does_not_stop_the_others_and_is_reported() {
    let script = ScriptedWorld {
        events: vec![arrivals(&[1, 2])],
        refuse: vec![ProgramId(1)],
        ..ScriptedWorld::default()
    };
    let mut control = ControlLoop::new(by_name("equal", &topology()).unwrap(), script);
    let Iteration { decision, .. } = control.iterate();
    assert_eq!(decision.actions.len(), 2);
    assert_eq!(
        control.world().acted.len(),
        1,
        "the other program was seated all the same"
    );
    let second = control.iterate();
    assert_eq!(control.world().reported.len(), 1);
    assert_eq!(control.world().reported[0].error, "program 1 refuses");
    assert_eq!(second.observation.failed, control.world().reported);
    assert!(
        second
            .decision
            .actions
            .iter()
            .any(|a| a.program() == ProgramId(1)),
        "requested again"
    );
}

#[test]
fn runs_until_the_world_ends_it_and_waits_as_long_as_requested() {
    let script = ScriptedWorld {
        events: vec![arrivals(&[1])],
        ..ScriptedWorld::default()
    };
    let mut control = ControlLoop::new(by_name("linux", &topology()).unwrap(), script);
    control.run();
    assert_eq!(control.world().waits, [None; 4]);
    assert_eq!(control.world().decided.len(), 4);
    assert_eq!(control.world().acted, []);
}

#[test]
fn a_failure_is_reported_soon_even_if_the_policy_sleeps() {
    let script = ScriptedWorld {
        events: vec![arrivals(&[1, 2])],
        refuse: vec![ProgramId(1)],
        ..ScriptedWorld::default()
    };
    let mut control = ControlLoop::new(by_name("equal", &topology()).unwrap(), script);
    control.run();
    assert!(control.world().waits[0].is_some_and(|ns| ns <= 100_000_000));
}

/// A record of a loop in which two programs arrive and one departs.
fn record(policy: &str) -> Vec<u8> {
    let events = vec![
        arrivals(&[1]),
        arrivals(&[2]),
        vec![Event::Departed(ProgramId(1))],
    ];
    let mut control = ControlLoop::new(
        by_name(policy, &topology()).unwrap(),
        ScriptedWorld {
            events,
            ..ScriptedWorld::default()
        },
    );
    control.run();
    let head = RecordHead {
        policy: policy.into(),
        topology: topology(),
    };
    let mut bytes = Vec::new();
    let mut recorder = Recorder::new(&mut bytes, &head).unwrap();
    for (observation, decision) in &control.world().decided {
        recorder.step(observation, decision).unwrap();
    }
    bytes
}

fn same_policy(head: &RecordHead) -> Box<dyn Policy + Send> {
    by_name(&head.policy, &head.topology).unwrap()
}

#[test]
fn a_record_replays_to_the_same_decisions() {
    for policy in usher_policy::NAMES {
        assert_eq!(
            replay(record(policy).as_slice(), same_policy).unwrap(),
            4,
            "{policy}"
        );
    }
}

#[test]
fn rejects_a_policy_that_decides_otherwise() {
    let bytes = record("equal");
    let other = |head: &RecordHead| by_name("linux", &head.topology).unwrap();
    assert!(matches!(
        replay(bytes.as_slice(), other),
        Err(RecordError::Differs { .. })
    ));
}

#[test]
fn complete_lines_before_a_truncated_line_replay() {
    let bytes = record("equal");
    let last = bytes[..bytes.len() - 1].iter().rposition(|&b| b == b'\n');
    for end in last.unwrap() + 2..bytes.len() - 1 {
        let cut = replay(&bytes[..end], same_policy);
        assert!(
            matches!(cut, Err(RecordError::CutShort { steps: 3 })),
            "{cut:?}"
        );
    }
    // A step that lacks only its line end is complete.
    let whole = replay(&bytes[..bytes.len() - 1], same_policy);
    assert_eq!(whole.unwrap(), 4);
}

#[test]
fn the_error_names_the_broken_line() {
    let mut bytes = record("equal");
    bytes.extend_from_slice(b"{\"observation\":\n");
    let error = replay(bytes.as_slice(), same_policy).unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 6 of the record is not a valid step: EOF while parsing a value at column 15"
    );
    assert_eq!(
        replay(b"".as_slice(), same_policy).unwrap_err().to_string(),
        "the record is empty: it has no line that describes the machine and the policy"
    );
    assert_eq!(
        replay(b"hello\n".as_slice(), same_policy)
            .unwrap_err()
            .to_string(),
        "line 1 of the record is not a valid record head: expected value at column 1"
    );
}

#[test]
fn the_error_names_the_contradiction_in_a_record_of_another_machine() {
    let error_after = |line: usize, from: &str, to: &str| {
        let text = String::from_utf8(record("equal")).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        assert!(lines[line - 1].contains(from), "{}", lines[line - 1]);
        lines[line - 1] = lines[line - 1].replacen(from, to, 1);
        let text = lines.join("\n") + "\n";
        replay(text.as_bytes(), same_policy)
            .unwrap_err()
            .to_string()
    };
    let message = |line, what| {
        format!(
            "line {line} of the record contradicts earlier lines: {what}; was the line recorded \
             on another machine?"
        )
    };
    assert_eq!(
        error_after(3, "\"usable\":\"0-3\"", "\"usable\":\"0-7\""),
        message(
            3,
            "the line has the usable CPUs 4-7, but the recorded machine has CPUs 0-3"
        )
    );
    assert_eq!(
        error_after(
            3,
            "\"program\":1,\"cpus\":\"0-1\"}}",
            "\"program\":1,\"cpus\":\"8\"}}"
        ),
        message(
            3,
            "program 1 got a seat on CPUs 8, but the recorded machine has CPUs 0-3"
        )
    );
    assert_eq!(
        error_after(4, "\"departed\":1", "\"departed\":9"),
        message(
            4,
            "the line reports the end of program 9, which has not arrived or has departed"
        )
    );
    assert_eq!(
        error_after(3, "\"at_ns\":2000", "\"at_ns\":20"),
        message(
            3,
            "the time of the line is earlier than that of the previous line"
        )
    );
    assert_eq!(
        error_after(3, "\"id\":2,", "\"id\":1,"),
        message(3, "program 1 arrives twice")
    );
    let gone = "\"programs\":[{\"id\":5,\"cpu_ns\":1,\"wait_ns\":null,\"threads\":1,                \"spinners\":0,\"progress\":null}]";
    assert_eq!(
        error_after(3, "\"programs\":[]", gone),
        message(
            3,
            "the line contains a sample of program 5, which has not arrived or has departed"
        )
    );
    assert!(
        error_after(1, "\"core\":3", "\"core\":9").starts_with("line 1 of the record contradicts")
    );
}
