// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that the seating policy never receives background programs and is not affected by them.

use proptest::prelude::*;
use usher_model::*;
use usher_policy::{NAMES, Policy, RegulatedPolicy, by_name};

use crate::world::*;

/// A policy that records its observations.
struct RecordingPolicy {
    shown: Vec<Observation>,
    wake_after_ns: Option<u64>,
}

impl Policy for RecordingPolicy {
    fn name(&self) -> &'static str {
        "spy"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        self.shown.push(observation.clone());
        Decision {
            wake_after_ns: self.wake_after_ns,
            plan: Some(Plan::default()),
            ..Decision::default()
        }
    }
}

fn sample(id: u64, cpu_ns: u64) -> ProgramSample {
    ProgramSample {
        id: ProgramId(id),
        cpu_ns,
        wait_ns: Some(cpu_ns / 4),
        threads: 4,
        spinners: 0,
        active_wait: Some(false),
        progress: Some(Progress {
            total: cpu_ns as f64,
            source: ProgressSource::Heartbeat,
            confidence: 1.0,
        }),
        stopped: false,
    }
}

/// Programs 1..=3 are foreground work, 4..=6 background work.
fn arrival(id: u64) -> Event {
    let regulation = Regulation::ALL[(id % 3) as usize];
    Event::Arrived(Box::new(program(id, (id > 3).then_some(regulation))))
}

/// An event between two samples.
#[derive(Debug, Clone, Copy)]
struct EventBetweenSamples {
    ms: u64,
    toggled: Option<u64>,
    fails: bool,
    rings: bool,
    cpus: u32,
}

fn between(ids: std::ops::RangeInclusive<u64>) -> impl Strategy<Value = EventBetweenSamples> {
    let program = prop_oneof![3 => Just(None), 1 => ids.prop_map(Some)];
    let cpus = prop_oneof![5 => Just(4u32), 1 => 2..4u32];
    (1..300u64, program, any::<bool>(), any::<bool>(), cpus).prop_map(
        |(ms, toggled, fails, rings, cpus)| EventBetweenSamples {
            ms,
            toggled,
            fails,
            rings,
            cpus,
        },
    )
}

/// Returns the observations of the given events, and the policy's decisions.
fn play(policy: &mut dyn Policy, all: &[EventBetweenSamples]) -> Vec<(Observation, Decision)> {
    let mut here = std::collections::BTreeSet::new();
    let mut seen: Vec<(Observation, Decision)> = vec![];
    let (mut at_ns, mut wake_ns, mut scope) = (0, 0, SampleScope::All);
    for between in all {
        let mut events = vec![];
        let next_ns = at_ns + between.ms * MS;
        if let Some(id) = between.toggled {
            events.push(match here.insert(id) {
                true => arrival(id),
                false => Event::Departed(ProgramId(id)),
            });
            if matches!(events[0], Event::Departed(_)) {
                here.remove(&id);
            }
        }
        let is_due = wake_ns <= next_ns;
        let is_full =
            !events.is_empty() || !between.rings && (scope == SampleScope::All || !is_due);
        at_ns = if is_due && events.is_empty() {
            wake_ns.max(at_ns + 1)
        } else {
            next_ns
        };
        let before = seen.last().map_or(&[][..], |(_, d)| &d.actions[..]);
        let fail = |action: &Action| FailedAction {
            action: action.clone(),
            error: "no".to_owned(),
        };
        let mut metering = no_metering(4);
        metering.cpu_read_ns = at_ns;
        let ids = || here.iter().copied();
        metering.background = ids()
            .filter(|&id| id > 3)
            .map(|id| (ProgramId(id), Usage::default()))
            .collect();
        let observation = Observation {
            at_ns,
            usable: CpuSet::range(0, between.cpus - 1),
            events,
            failed: if between.fails {
                before.iter().map(fail).collect()
            } else {
                vec![]
            },
            programs: if is_full {
                ids().map(|id| sample(id, at_ns)).collect()
            } else {
                vec![]
            },
            metering: (!metering.background.is_empty()).then_some(metering),
        };
        let decision = policy.decide(&observation);
        wake_ns = at_ns + decision.wake_after_ns.unwrap_or(3600 * S);
        scope = decision.scope;
        seen.push((observation, decision));
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Without background programs every call is passed through unchanged.
    #[test]
    fn without_background_work_nothing_changes(all in prop::collection::vec(between(1..=3), 1..60), name in prop::sample::select(NAMES.to_vec())) {
        let all: Vec<_> = all.into_iter().map(|b| EventBetweenSamples { rings: false, ..b }).collect();
        let machine = topology(4);
        let mut bare: Box<dyn Policy> = match name {
            "linux" => Box::new(usher_policy::Linux::new(machine.clone())),
            "equal" => Box::new(usher_policy::Equal::new(machine.clone())),
            "casas" => Box::new(usher_policy::Casas::new(machine.clone())),
            _ => Box::new(usher_policy::Usher::new(machine.clone())),
        };
        let mut wrapped = by_name(name, &machine).unwrap();
        prop_assert_eq!(wrapped.name(), name);
        prop_assert_eq!(play(&mut *bare, &all), play(&mut *wrapped, &all));
    }

    /// With background programs, the seating policy receives every event of the foreground programs
    /// once and in order, and no event of background programs. The seating policy receives complete
    /// samples only.
    #[test]
    fn the_seating_policy_does_not_receive_background_work(all in prop::collection::vec(between(1..=6), 1..80)) {
        let mut policy = RegulatedPolicy::new(Recorder(std::rc::Rc::default()));
        let shown = std::rc::Rc::clone(&policy.inner().0);
        let mut all = all;
        // Time in which delayed events are delivered.
        all.extend([EventBetweenSamples { ms: 300, toggled: None, fails: false, rings: false, cpus: 4 }; 6]);
        let seen = play(&mut policy, &all);
        let shown = shown.borrow();
        let own = |id: ProgramId| id.0 <= 3;
        // `between` creates no event that concerns all programs.
        let of = |event: &Event| match event {
            Event::Arrived(p) => p.id,
            Event::Departed(id)
            | Event::Limited { program: id, .. }
            | Event::Repeated { program: id, .. } => *id,
            Event::Seating { .. } => ProgramId(0),
        };
        let received: Vec<_> = shown.iter().flat_map(|o| o.events.clone()).collect();
        let happened = seen.iter().flat_map(|(o, _)| o.events.clone());
        let happened: Vec<_> = happened.filter(|event| own(of(event))).collect();
        prop_assert_eq!(received, happened);
        for observation in shown.iter() {
            prop_assert!(observation.programs.iter().all(|p| own(p.id)));
            prop_assert!(observation.failed.iter().all(|f| own(f.action.program())));
        }
        for pair in shown.windows(2) {
            prop_assert!(pair[0].at_ns < pair[1].at_ns);
        }
    }
}

/// Shares its observations with the test.
struct Recorder(std::rc::Rc<std::cell::RefCell<Vec<Observation>>>);

impl Policy for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        self.0.borrow_mut().push(observation.clone());
        Decision {
            wake_after_ns: Some(70 * MS),
            ..Decision::default()
        }
    }
}

/// An observation of one foreground and one background program.
fn observation(at_ns: u64, events: Vec<Event>, is_full: bool) -> Observation {
    let mut metering = no_metering(4);
    metering.cpu_read_ns = at_ns;
    metering.background.insert(ProgramId(4), Usage::default());
    Observation {
        at_ns,
        usable: CpuSet::range(0, 3),
        events,
        failed: vec![],
        programs: if is_full {
            vec![sample(1, at_ns), sample(4, at_ns)]
        } else {
            vec![]
        },
        metering: Some(metering),
    }
}

#[test]
fn the_seating_policy_keeps_its_interval_and_gets_complete_samples() {
    let spy = RecordingPolicy {
        shown: vec![],
        wake_after_ns: Some(730 * MS),
    };
    let mut policy = RegulatedPolicy::new(spy);
    let mut decision = policy.decide(&observation(0, vec![arrival(1), arrival(4)], true));
    let mut at_ns = 0;
    let mut full = 0;
    while at_ns < 10 * S {
        at_ns += decision.wake_after_ns.unwrap();
        let is_full = decision.scope == SampleScope::All;
        full += u64::from(is_full);
        decision = policy.decide(&observation(at_ns, vec![], is_full));
    }
    let shown = &policy.inner().shown;
    assert_eq!(
        shown.len() as u64,
        full + 1,
        "each complete sample was for it"
    );
    assert!(
        shown
            .iter()
            .all(|o| o.programs == [sample(1, o.at_ns)] && o.metering.is_none())
    );
    let times: Vec<_> = shown.iter().map(|o| o.at_ns).collect();
    assert!(
        times.windows(2).all(|t| t[1] - t[0] == 730 * MS),
        "{times:?}"
    );
}

#[test]
fn events_of_a_meter_sample_wait_for_a_complete_sample() {
    let spy = RecordingPolicy {
        shown: vec![],
        wake_after_ns: None,
    };
    let mut policy = RegulatedPolicy::new(spy);
    policy.decide(&observation(0, vec![arrival(1), arrival(4)], true));
    let repeated = Event::Repeated {
        program: ProgramId(1),
        seconds: 1.0,
    };
    let decision = policy.decide(&observation(S, vec![repeated.clone()], false));
    assert_eq!(
        (decision.wake_after_ns, decision.scope),
        (Some(0), SampleScope::All)
    );
    assert_eq!(policy.inner().shown.len(), 1);
    policy.decide(&observation(S + 1, vec![], true));
    let shown = &policy.inner().shown;
    assert_eq!(shown.len(), 2);
    assert_eq!(shown[1].events, [repeated]);
}
