// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of tasks that wait, and of threads that wait for tasks: the stacks of workers stay
//! bounded, no task starves, and a wait that could deadlock two runtimes returns an error.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use usher_tasks::{Graph, GraphBuilder, Groups, Handle, Policy, RunError, Runtime, WorkerPlaces};
use usher_tasks::{RuntimeBuilder, RuntimeError, WaitError};

/// A deadline that is longer than any wait of these tests.
const LONG: Duration = Duration::from_secs(60);
/// Maximum number of nested waits on the stack of a worker in which the worker runs any task. Equal
/// to the constant in `worker.rs`.
const NESTED_WAITS_MAX: usize = 16;

const POLICIES: [Policy; 4] = [
    Policy::Usher,
    Policy::Paper {
        t_groups: 300,
        s_groups: 4,
    },
    Policy::Fcfs,
    Policy::Lcfs,
];

thread_local! {
    /// The number of nested calls of [`deeper`] on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Calls `call` and records the maximum depth of nested calls of this function.
fn deeper<R>(most: &AtomicUsize, call: impl FnOnce() -> R) -> R {
    let depth = DEPTH.get() + 1;
    DEPTH.set(depth);
    most.fetch_max(depth, Ordering::Relaxed);
    let value = call();
    DEPTH.set(depth - 1);
    value
}

fn graph<B: Fn(usize) + Sync>(groups: &[Groups], body: B) -> Graph<B> {
    let mut builder = GraphBuilder::new();
    for &groups in groups {
        builder.task_in(groups);
    }
    builder.build(body).unwrap()
}

fn count(ran: &AtomicU32) {
    ran.fetch_add(1, Ordering::Relaxed);
}

/// Registers tasks from within a task, so that one worker has all of them before it runs the first
/// of them. Returns the maximum number of these tasks that were nested on one stack.
fn depth_of(runtime: &Arc<Runtime>, tasks: u64, task: fn(&Runtime)) -> usize {
    let most = Arc::new(AtomicUsize::new(0));
    let (own, shared_most) = (Arc::clone(runtime), Arc::clone(&most));
    let register_all = move || {
        for token in 1..=tasks {
            let (inner, most) = (Arc::clone(&own), Arc::clone(&shared_most));
            let groups = Groups::new(token as u32 % 300, token as u32 % 4);
            let body = move || {
                deeper(&most, || task(&inner));
                drop(inner);
            };
            own.register(token, 0, groups, body).unwrap();
        }
    };
    runtime.register(0, 0, Groups::NONE, register_all).unwrap();
    runtime.wait().unwrap();
    most.load(Ordering::Relaxed)
}

#[test]
fn nested_graphs_use_bounded_stack() {
    for policy in POLICIES {
        for workers in [1, 2] {
            let runtime = Arc::new(Runtime::with_policy(workers, policy).unwrap());
            let depth = depth_of(&runtime, 1000, |runtime| {
                let ran = AtomicU32::new(0);
                let groups = [Groups::NONE, Groups::new(1, 1), Groups::new(128, 2)];
                let mut graph = graph(&groups, |_| count(&ran));
                runtime.run(&mut graph).unwrap();
                assert_eq!(ran.into_inner(), 3);
            });
            // With one worker, all tasks of the graph are in that worker's queues, so its waits
            // never run other tasks.
            let most = if policy == Policy::Usher && workers > 1 {
                NESTED_WAITS_MAX + 1
            } else {
                1
            };
            assert!(depth <= most, "{policy:?}, {workers} workers: {depth}");
        }
    }
}

/// The progress of the tasks that fork, shared by all of them.
#[derive(Default)]
struct Forks {
    begun: AtomicU32,
    taken: AtomicU32,
    most: AtomicUsize,
}

/// Waits until a number is at least `least`, but at most 20,000 times.
fn await_at_least(number: &AtomicU32, least: u32) {
    let mut attempts = (0..20_000).map(|_| std::thread::yield_now());
    while number.load(Ordering::Relaxed) < least && attempts.next().is_some() {}
}

/// A task that forks. A thief steals the second function of the fork, and finishes it only after
/// the next such task has begun. The waiting worker has only that next task to run.
fn fork(runtime: &Arc<Runtime>, forks: &Arc<Forks>, task: u32) {
    forks.begun.store(task, Ordering::Relaxed);
    let first = || {
        await_at_least(&forks.taken, task);
        if task < 60 {
            let (inner, forks) = (Arc::clone(runtime), Arc::clone(forks));
            let next = move || fork(&inner, &forks, task + 1);
            let token = u64::from(task + 1);
            runtime.register(token, 0, Groups::NONE, next).unwrap();
        }
    };
    let second = || {
        forks.taken.store(task, Ordering::Relaxed);
        await_at_least(&forks.begun, task + 1);
    };
    deeper(&forks.most, || runtime.join(first, second));
}

#[test]
fn forking_tasks_use_bounded_stack() {
    let runtime = Arc::new(Runtime::new(2).unwrap());
    let forks = Arc::new(Forks::default());
    let (inner, shared_forks) = (Arc::clone(&runtime), Arc::clone(&forks));
    let begin = move || fork(&inner, &shared_forks, 1);
    runtime.register(1, 0, Groups::NONE, begin).unwrap();
    runtime.wait().unwrap();
    let depth = forks.most.load(Ordering::Relaxed);
    assert!(depth <= NESTED_WAITS_MAX + 1, "{depth}");
}

/// Runs a graph with a task that runs a graph, recursively to the given depth.
fn wait_nested(runtime: &Runtime, depth: u32, ran: &AtomicU32) {
    count(ran);
    if depth > 0 {
        let groups = [Groups::new(1, 1), Groups::new(2, 2)];
        let mut graph = graph(&groups, |task| match task {
            0 => wait_nested(runtime, depth - 1, ran),
            _ => drop(runtime.join(|| count(ran), || count(ran))),
        });
        runtime.run(&mut graph).unwrap();
    }
}

#[test]
fn programs_may_nest_waits_beyond_the_limit() {
    for policy in POLICIES {
        for workers in [1, 2, 4] {
            let runtime = Runtime::with_policy(workers, policy).unwrap();
            for _ in 0..20 {
                let ran = AtomicU32::new(0);
                wait_nested(&runtime, 40, &ran);
                assert_eq!(
                    ran.into_inner(),
                    41 + 2 * 40,
                    "{policy:?}, {workers} workers"
                );
            }
        }
    }
}

#[test]
fn a_registered_task_runs_beside_its_parent() {
    for policy in POLICIES {
        let runtime = Runtime::with_policy(2, policy).unwrap();
        let handle = runtime.handle();
        let (sender, receiver) = mpsc::channel();
        let (result_sender, result_receiver) = mpsc::channel();
        let child = move || sender.send(()).unwrap();
        let parent = move || {
            handle.register(2, 0, Groups::NONE, child).unwrap();
            result_sender.send(receiver.recv_timeout(LONG)).unwrap();
        };
        runtime.register(1, 0, Groups::NONE, parent).unwrap();
        runtime.wait().unwrap();
        assert_eq!(result_receiver.recv().unwrap(), Ok(()), "{policy:?}");
    }
}

/// A task that registers its successor, until `stop` is set or `left` is 0.
fn tick(handle: &Handle, groups: Groups, stop: &Arc<AtomicBool>, left: u32) {
    if stop.load(Ordering::Relaxed) || left == 0 {
        stop.store(true, Ordering::Relaxed);
        return;
    }
    let (next, shared_stop) = (handle.clone(), Arc::clone(stop));
    let again = move || tick(&next, groups, &shared_stop, left - 1);
    // The new task needs another token, because the token of this task is in use until this task
    // has ended.
    handle.register(u64::from(left), 0, groups, again).unwrap();
}

#[test]
fn injected_tasks_do_not_starve() {
    for groups in [Groups::NONE, Groups::new(1, 0)] {
        let runtime = Runtime::new(1).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        tick(&runtime.handle(), groups, &stop, 10_000_000);
        assert_eq!(runtime.join(|| 1, || 2), (1, 2));
        let ran = AtomicU32::new(0);
        let all: Vec<Groups> = (0..10).map(|t| Groups::new(t, 0)).collect();
        let mut graph = graph(&all, |_| count(&ran));
        runtime.run(&mut graph).unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 10);
        let was_ticking = !stop.swap(true, Ordering::Relaxed);
        assert!(was_ticking, "{groups:?}: it ran when nothing else was left");
        runtime.wait().unwrap();
    }
}

/// Runs a function as a task of a runtime and returns its result.
fn inside<R: Send>(runtime: &Runtime, task: impl Fn() -> R + Sync) -> R {
    let (sender, receiver) = mpsc::channel();
    let mut graph = graph(&[Groups::NONE], |_| sender.send(task()).unwrap());
    runtime.run(&mut graph).unwrap();
    receiver.recv().unwrap()
}

#[test]
fn runtimes_that_would_deadlock_get_an_error() {
    let runtimes = [1, 1, 1].map(|workers| Runtime::new(workers).unwrap());
    let [a, b, c] = &runtimes;
    let back = || {
        let mut graph = graph(&[Groups::NONE], |_| ());
        (a.run(&mut graph), a.wait(), a.join(|| 1, || 2))
    };
    let direct = inside(a, || inside(b, back));
    let indirect = inside(a, || inside(b, || inside(c, back)));
    let refused = (Err(RunError::Deadlock), Err(WaitError::Deadlock), (1, 2));
    assert_eq!(direct, refused);
    assert_eq!(indirect, refused);
    assert_eq!(a.join(|| 1, || inside(b, || 2)), (1, 2), "one side only");
    let back = inside(b, || inside(a, || 3));
    assert_eq!(back, 3, "and the other when that has ended");
}

#[test]
fn a_runtime_may_be_dropped_by_a_task_that_it_waits_for() {
    let a = Arc::new(Runtime::new(1).unwrap());
    let b = Arc::new(Runtime::new(1).unwrap());
    let (sender, receiver) = mpsc::channel();
    let (begin, begun) = mpsc::channel();
    let (of_a, begun) = (Arc::clone(&a), std::sync::Mutex::new(begun));
    let held = Arc::new(std::sync::Mutex::new(Some(Arc::clone(&b))));
    let own = Arc::clone(&held);
    // A task of runtime b waits for runtime a, and a task of runtime a drops runtime b.
    let waits = move || {
        let mut graph = graph(&[Groups::NONE], |_| {
            begun.lock().unwrap().recv().unwrap();
            drop(own.lock().unwrap().take());
        });
        let ran = of_a.run(&mut graph);
        // After this drop, the thread that receives the message holds the last reference to runtime
        // a.
        drop(of_a);
        sender.send(ran).unwrap();
    };
    b.register(1, 0, Groups::NONE, waits).unwrap();
    drop(b);
    begin.send(()).unwrap();
    assert_eq!(receiver.recv_timeout(LONG), Ok(Ok(())));
    assert!(held.lock().unwrap().is_none());
}

#[test]
fn too_many_groups_are_rejected() {
    let of = |t_groups, s_groups| Policy::Paper { t_groups, s_groups };
    for (policy, message) in [
        (
            of(100_000, 100_000),
            "100000 temporal groups x 100000 spatial groups need too many queues: the maximum is 4194304",
        ),
        (
            of(u32::MAX, u32::MAX),
            "4294967295 temporal groups x 4294967295 spatial groups need too many queues: the maximum is 4194304",
        ),
        (
            of(1, (1 << 22) + 1),
            "1 temporal groups x 4194305 spatial groups need too many queues: the maximum is 4194304",
        ),
    ] {
        assert_eq!(
            Runtime::with_policy(1, policy).unwrap_err().to_string(),
            message
        );
        let places = usher_tasks::WorkerPlaces::anywhere(1);
        assert_eq!(
            Runtime::with_places(places, policy)
                .unwrap_err()
                .to_string(),
            message
        );
    }
    assert!(Runtime::with_policy(1, of(1 << 20, 4)).is_ok());
    assert!(Runtime::with_policy(1, of(0, 0)).is_ok(), "0 is as 1");
}

/// Calls a function in a forked child and returns its result.
fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only calls the code under test and then exits. The only locks that the
    // child uses are those of the C library, which are usable after a fork.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(i32::from(!check())),
            child => {
                let mut status = -1;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                status == 0
            }
        }
    }
}

/// A task forks the process. In the child, the thread of the task is the only thread.
#[test]
fn a_task_in_a_forked_child_runs_calls_itself() {
    let runtime = Runtime::new(2).unwrap();
    let is_correct = runtime.run_on_worker(|| {
        in_child(|| {
            let joined = runtime.join(|| 1, || 2);
            let mut scoped = [0; 3];
            runtime.scope(|scope| {
                for place in &mut scoped {
                    scope.spawn(|_| *place = 7);
                }
            });
            joined == (1, 2) && scoped == [7; 3] && runtime.broadcast(|index| index) == [0, 1]
        })
    });
    assert!(is_correct);
}

/// A task of one runtime waits for a function on a worker of another runtime, which waits for the
/// tasks of the first.
#[test]
fn a_function_on_a_worker_of_another_runtime_cannot_wait_for_its_caller() {
    let (first, second) = (Arc::new(Runtime::new(1).unwrap()), Runtime::new(1).unwrap());
    let (sender, receiver) = mpsc::channel();
    let inside = Arc::clone(&first);
    let task = move || {
        let in_function = second.run_on_worker(|| inside.wait());
        let in_scope = second.scope(|_| inside.wait());
        sender.send((in_function, in_scope)).unwrap();
    };
    first.submit(Groups::NONE, task).unwrap();
    let deadlock = Err(WaitError::Deadlock);
    assert_eq!(receiver.recv(), Ok((deadlock.clone(), deadlock)));
    first.wait().unwrap();
}

/// Tasks of graphs that tasks run, with stacks so small that each wait is deep, call a function on
/// all workers.
#[test]
fn broadcasts_reach_workers_in_deep_waits() {
    let builder = RuntimeBuilder::new(3).stack_bytes(64 << 10);
    let runtime = builder.build().unwrap();
    let calls = AtomicUsize::new(0);
    let of_two = |body: &(dyn Fn(usize) + Sync)| {
        let mut graph = GraphBuilder::new();
        graph.task();
        graph.task();
        runtime.run(&mut graph.build(body).unwrap()).unwrap();
    };
    let inner = |_| {
        runtime.broadcast(|_| calls.fetch_add(1, Ordering::Relaxed));
    };
    for round in 1..=100 {
        of_two(&|_| of_two(&inner));
        assert_eq!(calls.load(Ordering::Relaxed), round * 4 * 3);
    }
}

#[test]
fn a_runtime_has_no_workers_in_a_forked_child() {
    for policy in POLICIES {
        let runtime = Runtime::with_policy(2, policy).unwrap();
        let mut graph = GraphBuilder::new();
        graph.task();
        let mut graph = graph.build(|_| ()).unwrap();
        let creator_pid = std::process::id();
        let mut runtime = Some(runtime);
        let is_correct = in_child(|| {
            let own = runtime.take().unwrap();
            let (waited, idled) = (own.wait(), own.wait_until_idle());
            let forked = Err(WaitError::Forked { creator_pid });
            let ran = own.run(&mut graph);
            let joined = own.join(|| 1, || 2);
            let mut scoped = [0; 3];
            own.scope(|scope| {
                for place in &mut scoped {
                    scope.spawn(|_| *place = 7);
                }
            });
            let sent = own.broadcast(|index| index);
            drop(own);
            waited == forked
                && idled == forked
                && ran == Err(RunError::Forked { creator_pid })
                && joined == (1, 2)
                && scoped == [7; 3]
                && sent == [0, 1]
        });
        assert!(is_correct);
        let runtime = runtime.unwrap();
        runtime.run(&mut graph).unwrap();
        assert_eq!(
            (runtime.join(|| 1, || 2), runtime.creator_pid()),
            ((1, 2), creator_pid)
        );
    }
}

/// Uses at least `bytes` bytes of the stack, in steps of 16 KiB.
fn take_stack(bytes: usize) -> usize {
    let room = std::hint::black_box([bytes; 2048]);
    match bytes.checked_sub(size_of_val(&room)) {
        Some(less) => take_stack(less) ^ room[7],
        None => room[0],
    }
}

#[test]
fn stacks_have_the_requested_size() {
    for policy in POLICIES {
        let builder = RuntimeBuilder::on(WorkerPlaces::anywhere(2)).policy(policy);
        let runtime = builder.stack_bytes(64 << 20).build().unwrap();
        let mut graph = GraphBuilder::new();
        for _ in 0..4 {
            graph.task();
        }
        let mut graph = graph.build(|_| assert_ne!(take_stack(8 << 20), 1)).unwrap();
        runtime.run(&mut graph).unwrap();
    }
    let too_large = RuntimeBuilder::new(1).stack_bytes(usize::MAX).build();
    assert!(matches!(too_large, Err(RuntimeError::Thread { .. })));
}

#[test]
fn small_stacks_allow_fewer_nested_waits() {
    // With this stack, all nested waits are beyond the limit, so a worker runs only tasks for which
    // it waits.
    let builder = RuntimeBuilder::new(2).stack_bytes(120 << 10);
    let runtime = Arc::new(builder.build().unwrap());
    let most = AtomicUsize::new(0);
    let mut outer = GraphBuilder::new();
    for _ in 0..64 {
        outer.task();
    }
    let inside = Arc::clone(&runtime);
    let mut outer = outer
        .build(|_| {
            deeper(&most, || {
                let mut inner = GraphBuilder::new();
                for _ in 0..4 {
                    inner.task();
                }
                inside.run(&mut inner.build(|_| ()).unwrap()).unwrap();
            });
        })
        .unwrap();
    runtime.run(&mut outer).unwrap();
    assert_eq!(most.load(Ordering::Relaxed), 1);
}
