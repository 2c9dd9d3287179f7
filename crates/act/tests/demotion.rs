// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of demotion on real programs, with each mechanism that works on this machine. The tests
//! compare the kernel's values before, during and after a demotion.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::*;
use usher_act::{ActError, Actuator, ForkResult, WorkClass};
use usher_model::{Action, Demotion, ProgramId};

const ONE: ProgramId = ProgramId(1);
const FREEZE: Action = Action::Freeze { program: ONE };
const THAW: Action = Action::Thaw { program: ONE };

fn demote(to: Demotion) -> Action {
    Action::Demote { program: ONE, to }
}

/// Held by each test, because only one test may run at a time, as in `actuator.rs`.
static ONE_TREE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_TREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test once for each mechanism that works on this machine, each time with a new actuator
/// and a new program.
fn in_every_way(
    command: impl Fn() -> Program,
    test: impl Fn(ActMethod, &mut Actuator, &mut Program),
) {
    let _alone = alone();
    if !has_rights() {
        return;
    }
    for method in methods() {
        let runtime = tempfile::tempdir().unwrap();
        let mut act = Actuator::open(method.config(runtime.path())).unwrap();
        let mut program = command();
        test(method, &mut act, &mut program);
        let instance = act.instance_dir().to_owned();
        let left = act.undo_all();
        assert!(left.is_empty(), "{method:?}: {left:?}");
        assert_eq!(leftovers(&instance), Vec::<PathBuf>::new(), "{method:?}");
    }
}

fn tree() -> Program {
    Program::start(&["tree", "2", "2"])
}

/// Returns the directory in cgroup v1 whose `cpu.idle` applies to a process; `None` if no cpu
/// hierarchy of cgroup v1 is mounted.
fn cpu_dir(pid: i32) -> Option<PathBuf> {
    let top = Path::new("/sys/fs/cgroup/cpu");
    if !top.join("cpu.idle").exists() {
        usher_skip::skip!("cpu.idle of cgroup v1");
        return None;
    }
    let places = cgroups(pid);
    let line = places.lines().find(|line| line.contains(":cpu:"))?;
    let below = line.rsplit(':').next()?.strip_prefix('/')?;
    Some(top.join(below))
}

fn idles(dir: &Path) -> bool {
    std::fs::read_to_string(dir.join("cpu.idle")).is_ok_and(|text| text.trim() == "1")
}

/// Changes values of the program's threads: sets nice 3 and another I/O priority for the root
/// process, and a real-time policy for the last thread.
fn vary(program: &Program) {
    let root = rustix::process::Pid::from_raw(program.pid());
    rustix::process::setpriority_process(root, 3).unwrap();
    let last = *sched_values(program).keys().last().unwrap();
    let param = libc::sched_param { sched_priority: 5 };
    // SAFETY: the calls change only threads that this test started; the kernel only reads the
    // structure, which outlives the call.
    unsafe {
        assert_eq!(
            libc::syscall(libc::SYS_ioprio_set, 1, program.pid(), 2 << 13 | 6),
            0
        );
        let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
        assert_eq!(libc::sched_setscheduler(last, policy, &param), 0);
    }
}

#[test]
fn a_demoted_tree_gets_its_former_priorities_back() {
    in_every_way(tree, |method, act, program| {
        vary(program);
        let before = snapshot(program);
        for _ in 0..2 {
            act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
            act.act(&demote(Demotion::Idle)).unwrap();
            assert!(
                all_have(program, SchedValues::IDLE),
                "{method:?}: {:?}",
                sched_values(program)
            );
            if method != ActMethod::NoCgroups
                && let Some(dir) = cpu_dir(program.pid())
            {
                assert!(idles(&dir), "{method:?}");
                let all = program.processes();
                assert!(all.iter().all(|pid| cpu_dir(*pid) == Some(dir.clone())));
                assert_eq!(act.demotion_gaps(ONE), [""; 0], "{method:?}");
            }
            act.leave(ONE);
            assert_eq!(snapshot(program), before, "{method:?}");
        }
    });
}

#[test]
fn demotion_by_nice_changes_only_the_nice_value() {
    in_every_way(tree, |method, act, program| {
        let before = snapshot(program);
        let nice = SchedValues {
            nice: 19,
            ..SchedValues::plain()
        };
        act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
        act.act(&demote(Demotion::Nice)).unwrap();
        assert!(all_have(program, nice), "{method:?}");
        act.act(&demote(Demotion::Idle)).unwrap();
        assert!(all_have(program, SchedValues::IDLE), "{method:?}");
        act.act(&demote(Demotion::Nice)).unwrap();
        assert!(
            all_have(program, SchedValues::IDLE),
            "{method:?}: a weaker demotion changes nothing"
        );
        act.leave(ONE);
        assert_eq!(snapshot(program), before, "{method:?}");
    });
}

#[test]
fn a_thread_created_while_demoted_is_restored_to_its_parents_values() {
    let spawner = || Program::start(&["spawner"]);
    in_every_way(spawner, |method, act, program| {
        let root = rustix::process::Pid::from_raw(program.pid());
        rustix::process::setpriority_process(root, 2).unwrap();
        act.launch(ONE, program.id, WorkClass::Background).unwrap();
        act.act(&demote(Demotion::Idle)).unwrap();
        let met: BTreeSet<i32> = sched_values(program).into_keys().collect();
        // The check is repeated, because a process that is created during a refresh is only found
        // by the next refresh.
        wait_until("others, all lowered", || {
            act.refresh(ONE).unwrap();
            let is_other = |tid: &i32| !met.contains(tid) || *tid == program.pid();
            sched_values(program).keys().all(is_other) && all_have(program, SchedValues::IDLE)
        });
        act.leave(ONE);
        for _ in 0..20 {
            let fair = |rank: &SchedValues| {
                rank.policy == 0 && [0, 2].contains(&rank.nice) && rank.io == 0
            };
            let sched_values = sched_values(program);
            assert!(
                sched_values.values().all(fair),
                "{method:?}: {sched_values:?}"
            );
        }
    });
}

#[test]
fn values_set_meanwhile_are_not_changed() {
    in_every_way(tree, |method, act, program| {
        act.launch(ONE, program.id, WorkClass::Background).unwrap();
        act.act(&demote(Demotion::Idle)).unwrap();
        // Sets values as the program itself could set them.
        let root = rustix::process::Pid::from_raw(program.pid());
        rustix::process::setpriority_process(root, 7).unwrap();
        act.refresh(ONE).unwrap();
        act.leave(ONE);
        let mut sched_values = sched_values(program);
        let own = sched_values.remove(&program.pid()).unwrap();
        let reniced = SchedValues {
            nice: 7,
            ..SchedValues::plain()
        };
        assert_eq!(own, reniced, "{method:?}");
        assert!(
            sched_values
                .values()
                .all(|rank| *rank == SchedValues::plain()),
            "{method:?}"
        );
    });
}

#[test]
fn background_work_starts_in_the_directory_with_cpu_idle() {
    let _alone = alone();
    if !has_rights() {
        return;
    }
    for method in methods() {
        let runtime = tempfile::tempdir().unwrap();
        let mut act = Actuator::open(method.config(runtime.path())).unwrap();
        let own = id_of(std::process::id() as i32);
        let prepared = act.prepare(ONE, own, WorkClass::Background).unwrap();
        act.act(&demote(Demotion::Idle)).unwrap();
        // SAFETY: the child calls only `pause` and `_exit`, which are async-signal-safe.
        let (child, pidfd) = match unsafe { prepared.fork() }.unwrap() {
            // SAFETY: `pause` and `_exit` are async-signal-safe; a forked child may call them.
            ForkResult::Child => unsafe {
                libc::pause();
                libc::_exit(7)
            },
            ForkResult::Parent { child, pidfd } => (child, pidfd),
        };
        if method != ActMethod::NoCgroups
            && let Some(dir) = cpu_dir(child.pid)
        {
            assert!(idles(&dir), "{method:?}: created there");
        }
        act.admit(ONE, child, WorkClass::Background).unwrap();
        assert_eq!(rank(child.pid), Some(SchedValues::IDLE), "{method:?}");
        let before = cgroups(own.pid);
        act.leave(ONE);
        assert_eq!(cgroups(child.pid), before, "{method:?}");
        assert_eq!(rank(child.pid), rank(own.pid), "{method:?}");
        rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL).unwrap();
        let pid = rustix::process::Pid::from_raw(child.pid);
        rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
        close(act);
    }
}

/// Gives a thread the deadline policy with 1 ms of CPU time in every 100 ms. Returns whether the
/// kernel accepted the policy.
fn schedule_by_deadlines(tid: i32) -> bool {
    // The 64-bit words of the first version of `struct sched_attr`.
    let policy = 48 | (libc::SCHED_DEADLINE as u64) << 32;
    let attr: [u64; 6] = [policy, 0, 0, 1_000_000, 100_000_000, 100_000_000];
    // SAFETY: the kernel reads 48 bytes, the size in the first word, from the array of this length.
    unsafe { libc::syscall(libc::SYS_sched_setattr, tid, attr.as_ptr(), 0) == 0 }
}

#[test]
fn a_deadline_thread_keeps_its_policy() {
    let _alone = alone();
    let program = tree();
    let last = *sched_values(&program).keys().last().unwrap();
    if !schedule_by_deadlines(last) {
        usher_skip::skip!("no thread can be scheduled by deadlines");
        return;
    }
    let before = snapshot(&program);
    let (_runtime, mut act) = without_cgroups();
    act.launch(ONE, program.id, WorkClass::Background).unwrap();
    act.act(&demote(Demotion::Idle)).unwrap();
    let mut now = sched_values(&program);
    let kept = now.remove(&last).unwrap();
    assert_eq!(
        (kept.policy, kept.io),
        (libc::SCHED_DEADLINE, SchedValues::IDLE.io)
    );
    assert!(
        now.values().all(|rank| *rank == SchedValues::IDLE),
        "{now:?}"
    );
    let why = act.demotion_gaps(ONE).join("\n");
    assert!(why.contains("SCHED_DEADLINE"), "{why}");
    close(act);
    assert_eq!(snapshot(&program), before);
}

/// Admits a program that forks all the time, and repeats the attempt until it succeeds.
fn admit_storm(act: &mut Actuator, program: &Program) {
    wait_until("the storm to be admitted", || {
        match act.launch(ONE, program.id, WorkClass::Background) {
            Ok(_) => true,
            Err(ActError::Refused { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    });
}

#[test]
fn processes_forked_meanwhile_are_admitted_and_released() {
    let storm = || Program::start(&["storm", "3"]);
    in_every_way(storm, |method, act, program| {
        if method == ActMethod::NoCgroups {
            return; // orphans are lost without cgroups, as documented
        }
        for _ in 0..5 {
            admit_storm(act, program);
            act.act(&demote(Demotion::Idle)).unwrap();
            act.act(&FREEZE).unwrap();
            wait_until("all to be demoted", || {
                act.refresh(ONE).unwrap();
                let inside = act.processes(ONE);
                let sched_values: Vec<SchedValues> = inside.into_iter().filter_map(rank).collect();
                !sched_values.is_empty()
                    && sched_values.iter().all(|rank| *rank == SchedValues::IDLE)
            });
            act.act(&THAW).unwrap();
            act.leave(ONE);
        }
        admit_storm(act, program);
        act.act(&demote(Demotion::Idle)).unwrap();
        act.act(&FREEZE).unwrap();
        act.leave(ONE);
        let first: BTreeSet<i32> = program.processes().into_iter().collect();
        wait_until("the storm to rage on", || {
            program.processes().iter().any(|pid| !first.contains(pid))
        });
        for _ in 0..20 {
            let sched_values: BTreeMap<i32, SchedValues> = sched_values(program);
            let plain = sched_values
                .values()
                .all(|rank| *rank == SchedValues::plain());
            assert!(plain, "{method:?}: {sched_values:?}");
        }
    });
}

#[test]
fn a_program_stopped_by_its_user_is_demoted_and_stays_stopped() {
    in_every_way(tree, |method, act, program| {
        // SAFETY: `kill` accesses no memory; it stops a process that this test started.
        unsafe { libc::kill(program.pid(), libc::SIGSTOP) };
        let stopped = |program: &Program| stat(program.pid()).unwrap().state == 'T';
        wait_until("it to stop", || stopped(program));
        act.launch(ONE, program.id, WorkClass::Background).unwrap();
        act.act(&demote(Demotion::Idle)).unwrap();
        act.act(&FREEZE).unwrap();
        assert!(all_have(program, SchedValues::IDLE), "{method:?}");
        act.act(&THAW).unwrap();
        act.leave(ONE);
        assert!(all_have(program, SchedValues::plain()), "{method:?}");
        assert!(stopped(program), "{method:?}");
    });
}

#[test]
fn a_tree_that_ends_can_be_demoted() {
    in_every_way(tree, |_, act, program| {
        act.launch(ONE, program.id, WorkClass::Background).unwrap();
        program.kill();
        act.act(&demote(Demotion::Idle)).unwrap();
        act.act(&FREEZE).unwrap();
        act.act(&THAW).unwrap();
        act.refresh(ONE).unwrap();
        act.leave(ONE);
    });
}
