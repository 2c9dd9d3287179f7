// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks by token: what the paper's two calls promise, and what is told of those
//! who use them wrongly.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use proptest::prelude::*;
use usher_tasks::{Groups, Policy, Runtime, TaskError, WaitError};

fn runtime() -> Runtime {
    Runtime::new(2).unwrap()
}

fn nothing() {}

#[test]
fn resolving_may_come_before_registering() {
    let runtime = runtime();
    let (tell, told) = mpsc::channel();
    runtime.resolve(7).unwrap();
    runtime.resolve(7).unwrap();
    let tell_it = tell.clone();
    runtime
        .register(7, 3, Groups::NONE, move || tell_it.send(7).unwrap())
        .unwrap();
    runtime
        .register(8, 0, Groups::NONE, move || tell.send(8).unwrap())
        .unwrap();
    assert_eq!(told.recv().unwrap(), 8, "7 waits for one more");
    runtime.resolve(7).unwrap();
    assert_eq!(told.recv().unwrap(), 7);
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
fn mistakes_are_told_with_the_token() {
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
    let WaitError::Left(left) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    assert_eq!(left.unresolved, [(5, 2)]);
    assert_eq!(left.unregistered, [6]);
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
fn tasks_in_a_circle_are_named_and_not_waited_for() {
    // One worker, so that the second has ended, and its token is free, when the last
    // of the circle resolves it once more.
    let runtime = Runtime::new(1).unwrap();
    for (token, next) in [(1, 2), (2, 3), (3, 1)] {
        let handle = runtime.handle();
        let entry = move || handle.resolve(next).unwrap();
        runtime.register(token, 1, Groups::NONE, entry).unwrap();
    }
    let WaitError::Left(left) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    assert_eq!(left.unresolved, [(1, 1), (2, 1), (3, 1)]);
    // Somebody may yet break it.
    runtime.resolve(2).unwrap();
    let WaitError::Left(left) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    assert_eq!(left.unregistered, [2], "resolved by the last of the circle");
}

#[test]
fn panics_are_told_each() {
    let runtime = runtime();
    for token in 0..3 {
        let entry = move || assert!(token == 1, "token {token}");
        runtime.register(token, 0, Groups::NONE, entry).unwrap();
    }
    let WaitError::Left(left) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    let mut told: Vec<(u64, String)> = left
        .panicked
        .into_iter()
        .map(|one| (one.task, one.message))
        .collect();
    told.sort();
    assert_eq!(told, [(0, "token 0".to_owned()), (2, "token 2".to_owned())]);
    runtime.wait().unwrap();
}

/// Tells a number when it is dropped, and may panic then.
struct Tells(mpsc::Sender<u64>, u64, bool);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.send(self.1).unwrap();
        assert!(!self.2, "dropped {}", self.1);
    }
}

/// Registers tasks that wait, of which every third panics when it is dropped; which were
/// dropped, to be asked when no task is left.
fn tasks_that_tell(runtime: &Runtime, count: u64) -> mpsc::Receiver<u64> {
    let (tell, told) = mpsc::channel();
    for token in 0..count {
        let tells = Tells(tell.clone(), token, token % 3 == 0);
        let entry = move || drop(tells);
        runtime.register(token, 1, Groups::NONE, entry).unwrap();
    }
    told
}

fn sorted<T: Ord>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.into_iter().collect();
    all.sort_unstable();
    all
}

#[test]
fn tasks_that_panic_when_cancelled_are_told_and_keep_no_others() {
    let runtime = runtime();
    let told = tasks_that_tell(&runtime, 1000);
    runtime.resolve(1000).unwrap();
    assert_eq!(runtime.cancel(), 1001);
    let WaitError::Left(left) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    assert!(left.unresolved.is_empty() && left.unregistered.is_empty());
    let panicked = left.panicked.into_iter().map(|one| (one.task, one.message));
    let expected = (0..1000).step_by(3);
    let expected: Vec<_> = expected.map(|at| (at, format!("dropped {at}"))).collect();
    assert_eq!(sorted(panicked), expected);
    assert_eq!(sorted(told), (0..1000).collect::<Vec<_>>());
    runtime.wait().unwrap();
}

#[test]
fn a_dropped_runtime_drops_all_whichever_panic() {
    let runtime = runtime();
    let told = tasks_that_tell(&runtime, 1000);
    drop(runtime);
    assert_eq!(sorted(told), (0..1000).collect::<Vec<_>>());
}

#[test]
fn what_is_registered_by_what_is_cancelled_stays() {
    struct Registers(usher_tasks::Handle, u64);
    impl Drop for Registers {
        fn drop(&mut self) {
            // A runtime that ends takes no more.
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
        let WaitError::Left(left) = runtime.wait().unwrap_err() else {
            panic!("not inside a task");
        };
        assert_eq!(left.unresolved, [(token, 1)]);
    }
}

#[test]
fn waiting_without_asking_loses_nothing() {
    let runtime = runtime();
    let (begin, begun) = mpsc::channel();
    let entry = move || {
        begun.recv().unwrap();
        panic!("late");
    };
    runtime.register(1, 0, Groups::NONE, entry).unwrap();
    begin.send(()).unwrap();
    runtime.wait_until_idle().unwrap();
    let WaitError::Left(left) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    runtime.tell_again(left.panicked.clone());
    assert_eq!(runtime.wait(), Err(WaitError::Left(left)));
    runtime.wait().unwrap();
}

#[test]
fn a_task_cannot_wait_for_itself() {
    let runtime = Arc::new(runtime());
    let (tell, told) = mpsc::channel();
    let inside = Arc::clone(&runtime);
    let entry = move || {
        tell.send(inside.wait()).unwrap();
        drop(inside);
    };
    runtime.register(1, 0, Groups::NONE, entry).unwrap();
    assert_eq!(told.recv().unwrap(), Err(WaitError::Inside));
    runtime.wait().unwrap();
}

#[test]
fn a_dropped_runtime_runs_what_is_ready_and_drops_what_waits() {
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
fn groups_that_the_policy_has_no_place_for_are_refused() {
    let (t_groups, s_groups) = (2, 3);
    let runtime = Runtime::with_policy(1, Policy::Paper { t_groups, s_groups }).unwrap();
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
    let (tell, told) = mpsc::channel();
    let handle = runtime.handle();
    let first = move || {
        for token in 2..5 {
            let tell = tell.clone();
            let entry = move || tell.send(token).unwrap();
            handle.register_on(token, 0, token as usize, entry).unwrap();
        }
    };
    runtime.register(1, 0, Groups::NONE, first).unwrap();
    runtime.wait().unwrap();
    let mut all: Vec<u64> = told.iter().collect();
    all.sort_unstable();
    assert_eq!(all, [2, 3, 4]);
    let handle = runtime.handle();
    drop(runtime);
    let ended = handle.register_on(9, 0, 0, nothing);
    assert_eq!(ended, Err(TaskError::Ended { token: 9 }));
}

/// Waits while tasks come and go, so that what is quiet is so and not in between: each
/// task begins the next one before it ends.
#[test]
fn nothing_is_taken_for_quiet_while_tasks_follow_one_another() {
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

    /// Any calls, each followed by a wait, against tables.
    #[test]
    fn any_sequence_of_calls_does_what_it_says(calls in prop::collection::vec(call(), 0..40)) {
        let runtime = Runtime::new(1).unwrap();
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
                        Some(left) => *left -= 1,
                        None => *early.entry(token).or_default() += 1,
                    }
                }
            }
            let before = waiting.len();
            waiting.retain(|_, left| *left > 0);
            expected += (before - waiting.len()) as u32;
            let (unresolved, unregistered) = match runtime.wait() {
                Ok(()) => (vec![], vec![]),
                Err(WaitError::Left(left)) => (left.unresolved, left.unregistered),
                Err(other) => panic!("{other}"),
            };
            prop_assert_eq!(unresolved, waiting.clone().into_iter().collect::<Vec<_>>());
            prop_assert_eq!(unregistered, early.keys().copied().collect::<Vec<_>>());
            prop_assert_eq!(ran.load(Ordering::Relaxed), expected);
        }
    }
}
