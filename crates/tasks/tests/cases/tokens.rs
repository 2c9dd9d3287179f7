// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of tasks by token: the guarantees of paper 5 for `register` and `resolve`, and the errors
//! after wrong calls. The test programs `tokens` and `dense_tokens` contain this module.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use proptest::prelude::*;
use usher_tasks::{Groups, Policy, Runtime, RuntimeBuilder, TaskError, WaitError};

use crate::DENSE_TOKENS;

fn builder(workers: usize) -> RuntimeBuilder {
    RuntimeBuilder::new(workers).dense_tokens(DENSE_TOKENS)
}

fn runtime() -> Runtime {
    builder(2).build().unwrap()
}

fn nothing() {}

#[test]
fn resolving_may_come_before_registering() {
    let runtime = runtime();
    let (sender, receiver) = mpsc::channel();
    runtime.resolve(7).unwrap();
    runtime.resolve(7).unwrap();
    let send_token = sender.clone();
    runtime
        .register(7, 3, Groups::NONE, move || send_token.send(7).unwrap())
        .unwrap();
    runtime
        .register(8, 0, Groups::NONE, move || sender.send(8).unwrap())
        .unwrap();
    assert_eq!(receiver.recv().unwrap(), 8, "7 waits for one more");
    runtime.resolve(7).unwrap();
    assert_eq!(receiver.recv().unwrap(), 7);
    runtime.wait().unwrap();
}

#[test]
fn a_token_is_free_again_when_its_task_has_run() {
    let runtime = runtime();
    let count = Arc::new(AtomicU32::new(0));
    for _ in 0..100 {
        let count = Arc::clone(&count);
        let once = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        runtime.register(1, 0, Groups::NONE, once).unwrap();
        runtime.wait().unwrap();
    }
    assert_eq!(count.load(Ordering::Relaxed), 100);
}

#[test]
fn errors_name_the_token() {
    let runtime = runtime();
    let register = |token, count| runtime.register(token, count, Groups::NONE, nothing);
    register(5, 2).unwrap();
    assert_eq!(register(5, 1), Err(TaskError::Registered { token: 5 }));
    runtime.resolve(6).unwrap();
    runtime.resolve(6).unwrap();
    let too_often = TaskError::ResolvedTooOften {
        token: 6,
        times: 2,
        count: 1,
    };
    assert_eq!(register(6, 1), Err(too_often));
    let WaitError::Unfinished(unfinished) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    assert_eq!(unfinished.unresolved, [(5, 2)]);
    assert_eq!(unfinished.unregistered, [6]);
    assert_eq!(runtime.cancel(), 2);
    runtime.wait().unwrap();
}

#[test]
fn a_running_task_cannot_be_resolved_again() {
    let runtime = runtime();
    let (begin, begun) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let entry = move || {
        begin.send(()).unwrap();
        let _ = ends.recv();
    };
    runtime.register(3, 1, Groups::NONE, entry).unwrap();
    runtime.resolve(3).unwrap();
    begun.recv().unwrap();
    let refused = runtime.resolve(3).unwrap_err();
    let too_often = TaskError::ResolvedTooOften {
        token: 3,
        times: 2,
        count: 1,
    };
    assert_eq!(refused, too_often);
    drop(end);
    runtime.wait().unwrap();
}

#[test]
fn cyclic_tasks_are_reported_as_unresolved() {
    // With a single worker, the second task has ended and its token is free when the last task of
    // the cycle resolves that token.
    let runtime = builder(1).build().unwrap();
    for (token, next) in [(1, 2), (2, 3), (3, 1)] {
        let handle = runtime.handle();
        let entry = move || handle.resolve(next).unwrap();
        runtime.register(token, 1, Groups::NONE, entry).unwrap();
    }
    let WaitError::Unfinished(unfinished) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    assert_eq!(unfinished.unresolved, [(1, 1), (2, 1), (3, 1)]);
    // A resolution by a thread outside the runtime can still break the cycle.
    runtime.resolve(2).unwrap();
    let WaitError::Unfinished(unfinished) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    assert_eq!(
        unfinished.unregistered,
        [2],
        "resolved by the last of the cycle"
    );
}

#[test]
fn each_panic_is_reported() {
    let runtime = runtime();
    for token in 0..3 {
        let entry = move || assert!(token == 1, "token {token}");
        runtime.register(token, 0, Groups::NONE, entry).unwrap();
    }
    let WaitError::Unfinished(unfinished) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    let mut panics: Vec<(u64, String)> = unfinished
        .panicked
        .into_iter()
        .map(|panic| (panic.task, panic.message))
        .collect();
    panics.sort();
    assert_eq!(
        panics,
        [(0, "token 0".to_owned()), (2, "token 2".to_owned())]
    );
    runtime.wait().unwrap();
}

/// A value that sends its number when it is dropped, and then panics if its flag is set.
struct SendsOnDrop(mpsc::Sender<u64>, u64, bool);

impl Drop for SendsOnDrop {
    fn drop(&mut self) {
        self.0.send(self.1).unwrap();
        assert!(!self.2, "dropped {}", self.1);
    }
}

/// Registers tasks that are not ready. The closure of every third task panics when it is dropped.
/// The returned receiver gets the tokens of dropped tasks.
fn register_senders(runtime: &Runtime, count: u64) -> mpsc::Receiver<u64> {
    let (sender, receiver) = mpsc::channel();
    for token in 0..count {
        let value = SendsOnDrop(sender.clone(), token, token % 3 == 0);
        let entry = move || drop(value);
        runtime.register(token, 1, Groups::NONE, entry).unwrap();
    }
    receiver
}

fn sorted<T: Ord>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.into_iter().collect();
    all.sort_unstable();
    all
}

#[test]
fn panics_of_cancelled_tasks_are_reported() {
    let runtime = runtime();
    let receiver = register_senders(&runtime, 1000);
    runtime.resolve(1000).unwrap();
    assert_eq!(runtime.cancel(), 1001);
    let WaitError::Unfinished(unfinished) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    assert!(unfinished.unresolved.is_empty() && unfinished.unregistered.is_empty());
    let panicked = unfinished
        .panicked
        .into_iter()
        .map(|panic| (panic.task, panic.message));
    let expected = (0..1000).step_by(3);
    let expected: Vec<_> = expected.map(|at| (at, format!("dropped {at}"))).collect();
    assert_eq!(sorted(panicked), expected);
    assert_eq!(sorted(receiver), (0..1000).collect::<Vec<_>>());
    runtime.wait().unwrap();
}

#[test]
fn a_dropped_runtime_drops_all_tasks_despite_panics() {
    let runtime = runtime();
    let receiver = register_senders(&runtime, 1000);
    drop(runtime);
    assert_eq!(sorted(receiver), (0..1000).collect::<Vec<_>>());
}

#[test]
fn tasks_registered_by_cancelled_ones_stay() {
    struct Registers(usher_tasks::Handle, u64);
    impl Drop for Registers {
        fn drop(&mut self) {
            // Task 30 is registered while the runtime ends. The runtime accepts no more tasks at
            // that time.
            if self.1 == 30 {
                return;
            }
            let next = Self(self.0.clone(), self.1 + 1);
            let _ = self.0.register(self.1, 1, Groups::NONE, || drop(next));
        }
    }
    let runtime = runtime();
    let first = Registers(runtime.handle(), 1);
    runtime
        .register(0, 1, Groups::NONE, || drop(first))
        .unwrap();
    for token in 1..20 {
        assert_eq!(runtime.cancel(), 1);
        let WaitError::Unfinished(unfinished) = runtime.wait().unwrap_err() else {
            panic!("not inside a task");
        };
        assert_eq!(unfinished.unresolved, [(token, 1)]);
    }
}

#[test]
fn wait_until_idle_keeps_reports_for_the_next_wait() {
    let runtime = runtime();
    let (begin, begun) = mpsc::channel();
    let entry = move || {
        begun.recv().unwrap();
        panic!("late");
    };
    runtime.register(1, 0, Groups::NONE, entry).unwrap();
    begin.send(()).unwrap();
    runtime.wait_until_idle().unwrap();
    let WaitError::Unfinished(unfinished) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    runtime.restore_panics(unfinished.panicked.clone());
    assert_eq!(runtime.wait(), Err(WaitError::Unfinished(unfinished)));
    runtime.wait().unwrap();
}

#[test]
fn a_task_cannot_wait_for_itself() {
    let runtime = Arc::new(runtime());
    let (sender, receiver) = mpsc::channel();
    let inside = Arc::clone(&runtime);
    let entry = move || {
        sender.send(inside.wait()).unwrap();
        drop(inside);
    };
    runtime.register(1, 0, Groups::NONE, entry).unwrap();
    assert_eq!(receiver.recv().unwrap(), Err(WaitError::Inside));
    runtime.wait().unwrap();
}

#[test]
fn a_dropped_runtime_runs_ready_tasks_and_drops_waiting_ones() {
    let ran = Arc::new(AtomicU32::new(0));
    let runtime = runtime();
    let count = |ran: &Arc<AtomicU32>| {
        let ran = Arc::clone(ran);
        move || {
            ran.fetch_add(1, Ordering::Relaxed);
        }
    };
    for token in 0..100 {
        runtime
            .register(token, u32::from(token >= 50), Groups::NONE, count(&ran))
            .unwrap();
    }
    let handle = runtime.handle();
    drop(runtime);
    assert_eq!(ran.load(Ordering::Relaxed), 50);
    assert_eq!(Arc::strong_count(&ran), 1, "closures that wait are dropped");
    assert_eq!(handle.resolve(60), Err(TaskError::Ended { token: 60 }));
}

#[test]
fn groups_outside_the_policy_are_rejected() {
    let (t_groups, s_groups) = (2, 3);
    let policy = Policy::Paper { t_groups, s_groups };
    let runtime = builder(1).policy(policy).build().unwrap();
    let groups = Groups::new(1, 3);
    let refused = runtime.register(9, 0, groups, nothing);
    let expected = TaskError::Groups {
        token: 9,
        groups,
        t_groups,
        s_groups,
    };
    assert_eq!(refused, Err(expected));
    runtime.wait().unwrap();
}

#[test]
fn tasks_may_register_others_on_data() {
    let runtime = runtime();
    let (sender, receiver) = mpsc::channel();
    let handle = runtime.handle();
    let first = move || {
        for token in 2..5 {
            let sender = sender.clone();
            let entry = move || sender.send(token).unwrap();
            handle.register_on(token, 0, token as usize, entry).unwrap();
        }
    };
    runtime.register(1, 0, Groups::NONE, first).unwrap();
    runtime.wait().unwrap();
    let mut all: Vec<u64> = receiver.iter().collect();
    all.sort_unstable();
    assert_eq!(all, [2, 3, 4]);
    let handle = runtime.handle();
    drop(runtime);
    let ended = handle.register_on(9, 0, 0, nothing);
    assert_eq!(ended, Err(TaskError::Ended { token: 9 }));
}

/// Each task registers the next task before it ends. The wait must not end before the last task has
/// run.
#[test]
fn wait_does_not_end_while_tasks_start_others() {
    fn follow(handle: usher_tasks::Handle, token: u64, ran: Arc<AtomicU32>) {
        ran.fetch_add(1, Ordering::Relaxed);
        if token % 1000 < 200 {
            let next = handle.clone();
            let entry = move || follow(next, token + 1, ran);
            handle.register(token + 1, 0, Groups::NONE, entry).unwrap();
        }
    }
    let runtime = runtime();
    let ran = Arc::new(AtomicU32::new(0));
    for round in 1..50 {
        for chain in 0..3 {
            let (handle, ran) = (runtime.handle(), Arc::clone(&ran));
            let token = chain * 1000;
            let entry = move || follow(handle, token, ran);
            runtime.register(token, 0, Groups::NONE, entry).unwrap();
        }
        runtime.wait().unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), round * 3 * 201);
    }
}

#[derive(Debug, Clone, Copy)]
enum Call {
    Register(u64, u32),
    Resolve(u64),
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        (0..4_u64, 0..4_u32).prop_map(|(token, count)| Call::Register(token, count)),
        (0..4_u64).prop_map(Call::Resolve),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Property: any sequence of calls, each followed by a wait, has the same results as a
    /// sequential model that stores tasks in tables.
    #[test]
    fn any_sequence_of_calls_matches_the_model(calls in prop::collection::vec(call(), 0..40)) {
        let runtime = builder(1).build().unwrap();
        let ran = Arc::new(AtomicU32::new(0));
        let mut early: BTreeMap<u64, u32> = BTreeMap::new();
        let mut waiting: BTreeMap<u64, u32> = BTreeMap::new();
        let mut expected = 0;
        for call in calls {
            match call {
                Call::Register(token, count) => {
                    let counted = Arc::clone(&ran);
                    let entry = move || { counted.fetch_add(1, Ordering::Relaxed); };
                    let registered = runtime.register(token, count, Groups::NONE, entry);
                    let times = early.get(&token).copied().unwrap_or(0);
                    let is_right = !waiting.contains_key(&token) && times <= count;
                    prop_assert_eq!(registered.is_ok(), is_right);
                    if is_right {
                        early.remove(&token);
                        waiting.insert(token, count - times);
                    }
                }
                Call::Resolve(token) => {
                    runtime.resolve(token).unwrap();
                    match waiting.get_mut(&token) {
                        Some(unfinished) => *unfinished -= 1,
                        None => *early.entry(token).or_default() += 1,
                    }
                }
            }
            let before = waiting.len();
            waiting.retain(|_, unfinished| *unfinished > 0);
            expected += (before - waiting.len()) as u32;
            let (unresolved, unregistered) = match runtime.wait() {
                Ok(()) => (vec![], vec![]),
                Err(WaitError::Unfinished(unfinished)) => (unfinished.unresolved, unfinished.unregistered),
                Err(other) => panic!("{other}"),
            };
            prop_assert_eq!(unresolved, waiting.clone().into_iter().collect::<Vec<_>>());
            prop_assert_eq!(unregistered, early.keys().copied().collect::<Vec<_>>());
            prop_assert_eq!(ran.load(Ordering::Relaxed), expected);
        }
    }
}
