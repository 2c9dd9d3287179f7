// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real programs, demoted in every way that works here; what they have is asked
//! of the kernel before, meanwhile and after.

#![allow(clippy::unwrap_used)] // a test that finds otherwise is to fail

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::*;
use usher_act::{ActError, Actuator, Forked, Work};
use usher_model::{Action, Demotion, ProgramId};

const ONE: ProgramId = ProgramId(1);
const FREEZE: Action = Action::Freeze { program: ONE };
const THAW: Action = Action::Thaw { program: ONE };

fn demote(to: Demotion) -> Action {
    Action::Demote { program: ONE, to }
}

/// One at a time, as in `actuator.rs`.
static ONE_TREE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_TREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every way gets an actuator of its own and a program.
fn in_every_way(command: impl Fn() -> Program, test: impl Fn(Way, &mut Actuator, &mut Program)) {
    let _alone = alone();
    if !has_rights() {
        return;
    }
    for way in ways() {
        let runtime = tempfile::tempdir().unwrap();
        let mut act = Actuator::open(way.config(runtime.path())).unwrap();
        let mut program = command();
        test(way, &mut act, &mut program);
        let instance = act.instance_dir().to_owned();
        let left = act.undo_all();
        assert!(left.is_empty(), "{way:?}: {left:?}");
        assert_eq!(leftovers(&instance), Vec::<PathBuf>::new(), "{way:?}");
    }
}

fn tree() -> Program {
    Program::start(&["tree", "2", "2"])
}

/// The directory in cgroup v1 whose `cpu.idle` counts for a process; `None`
/// where there is no such hierarchy.
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

/// Gives some of the program's threads values of their own: nice 3 and another
/// I/O priority to the root, a real-time policy to the last thread.
fn vary(program: &Program) {
    let root = rustix::process::Pid::from_raw(program.pid());
    rustix::process::setpriority_process(root, 3).unwrap();
    let last = *ranks(program).keys().last().unwrap();
    let param = libc::sched_param { sched_priority: 5 };
    // SAFETY: sets values of threads that this test started; the kernel reads
    // the structure given.
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
fn a_tree_is_demoted_and_gets_back_what_it_had() {
    in_every_way(tree, |way, act, program| {
        vary(program);
        let before = portrait(program);
        for _ in 0..2 {
            act.launch(ONE, program.id, Work::Foreground).unwrap();
            act.act(&demote(Demotion::Idle)).unwrap();
            assert!(
                all_have(program, Rank::IDLE),
                "{way:?}: {:?}",
                ranks(program)
            );
            if way != Way::Bare
                && let Some(dir) = cpu_dir(program.pid())
            {
                assert!(idles(&dir), "{way:?}");
                let all = program.processes();
                assert!(all.iter().all(|pid| cpu_dir(*pid) == Some(dir.clone())));
                assert_eq!(act.why_not_demoted(ONE), [""; 0], "{way:?}");
            }
            act.leave(ONE);
            assert_eq!(portrait(program), before, "{way:?}");
        }
    });
}

#[test]
fn nice_is_all_that_nice_does() {
    in_every_way(tree, |way, act, program| {
        let before = portrait(program);
        let nice = Rank {
            nice: 19,
            ..Rank::plain()
        };
        act.launch(ONE, program.id, Work::Foreground).unwrap();
        act.act(&demote(Demotion::Nice)).unwrap();
        assert!(all_have(program, nice), "{way:?}");
        act.act(&demote(Demotion::Idle)).unwrap();
        assert!(all_have(program, Rank::IDLE), "{way:?}");
        act.act(&demote(Demotion::Nice)).unwrap();
        assert!(all_have(program, Rank::IDLE), "{way:?}: what is less");
        act.leave(ONE);
        assert_eq!(portrait(program), before, "{way:?}");
    });
}

#[test]
fn a_thread_born_meanwhile_gets_what_its_parent_had() {
    let spawner = || Program::start(&["spawner"]);
    in_every_way(spawner, |way, act, program| {
        let root = rustix::process::Pid::from_raw(program.pid());
        rustix::process::setpriority_process(root, 2).unwrap();
        act.launch(ONE, program.id, Work::Background).unwrap();
        act.act(&demote(Demotion::Idle)).unwrap();
        let met: BTreeSet<i32> = ranks(program).into_keys().collect();
        // Who is being born during a refresh is met by the next.
        wait_until("others, all lowered", || {
            act.refresh(ONE).unwrap();
            let is_other = |tid: &i32| !met.contains(tid) || *tid == program.pid();
            ranks(program).keys().all(is_other) && all_have(program, Rank::IDLE)
        });
        act.leave(ONE);
        for _ in 0..20 {
            let fair =
                |rank: &Rank| rank.policy == 0 && [0, 2].contains(&rank.nice) && rank.io == 0;
            let ranks = ranks(program);
            assert!(ranks.values().all(fair), "{way:?}: {ranks:?}");
        }
    });
}

#[test]
fn what_is_set_meanwhile_is_left() {
    in_every_way(tree, |way, act, program| {
        act.launch(ONE, program.id, Work::Background).unwrap();
        act.act(&demote(Demotion::Idle)).unwrap();
        // As the program itself could.
        let root = rustix::process::Pid::from_raw(program.pid());
        rustix::process::setpriority_process(root, 7).unwrap();
        act.refresh(ONE).unwrap();
        act.leave(ONE);
        let mut ranks = ranks(program);
        let own = ranks.remove(&program.pid()).unwrap();
        let reniced = Rank {
            nice: 7,
            ..Rank::plain()
        };
        assert_eq!(own, reniced, "{way:?}");
        assert!(ranks.values().all(|rank| *rank == Rank::plain()), "{way:?}");
    });
}

#[test]
fn background_work_is_born_where_it_gives_way() {
    let _alone = alone();
    if !has_rights() {
        return;
    }
    for way in ways() {
        let runtime = tempfile::tempdir().unwrap();
        let mut act = Actuator::open(way.config(runtime.path())).unwrap();
        let own = id_of(std::process::id() as i32);
        let prepared = act.prepare(ONE, own, Work::Background).unwrap();
        act.act(&demote(Demotion::Idle)).unwrap();
        // SAFETY: the child only calls pause and _exit.
        let (child, pidfd) = match unsafe { prepared.fork() }.unwrap() {
            // SAFETY: both may be called after a fork.
            Forked::Child => unsafe {
                libc::pause();
                libc::_exit(7)
            },
            Forked::Parent { child, pidfd } => (child, pidfd),
        };
        if way != Way::Bare
            && let Some(dir) = cpu_dir(child.pid)
        {
            assert!(idles(&dir), "{way:?}: born there");
        }
        act.admit(ONE, child, Work::Background).unwrap();
        assert_eq!(rank(child.pid), Some(Rank::IDLE), "{way:?}");
        let before = cgroups(own.pid);
        act.leave(ONE);
        assert_eq!(cgroups(child.pid), before, "{way:?}");
        assert_eq!(rank(child.pid), rank(own.pid), "{way:?}");
        rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL).unwrap();
        let pid = rustix::process::Pid::from_raw(child.pid);
        rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
        close(act);
    }
}

/// Gives a thread a millisecond in every hundred; whether the kernel did.
fn schedule_by_deadlines(tid: i32) -> bool {
    // The words of `struct sched_attr` in its first version.
    let policy = 48 | (libc::SCHED_DEADLINE as u64) << 32;
    let attr: [u64; 6] = [policy, 0, 0, 1_000_000, 100_000_000, 100_000_000];
    // SAFETY: the kernel reads the structure, which says how long it is.
    unsafe { libc::syscall(libc::SYS_sched_setattr, tid, attr.as_ptr(), 0) == 0 }
}

#[test]
fn who_has_deadlines_keeps_them() {
    let _alone = alone();
    let program = tree();
    let last = *ranks(&program).keys().last().unwrap();
    if !schedule_by_deadlines(last) {
        usher_skip::skip!("no thread can be scheduled by deadlines");
        return;
    }
    let before = portrait(&program);
    let (_runtime, mut act) = bare();
    act.launch(ONE, program.id, Work::Background).unwrap();
    act.act(&demote(Demotion::Idle)).unwrap();
    let mut now = ranks(&program);
    let kept = now.remove(&last).unwrap();
    assert_eq!(
        (kept.policy, kept.io),
        (libc::SCHED_DEADLINE, Rank::IDLE.io)
    );
    assert!(now.values().all(|rank| *rank == Rank::IDLE), "{now:?}");
    let why = act.why_not_demoted(ONE).join("\n");
    assert!(why.contains("deadlines"), "{why}");
    close(act);
    assert_eq!(portrait(&program), before);
}

/// Takes a storm in, with everything that it has born since.
fn admit_storm(act: &mut Actuator, program: &Program) {
    wait_until("the storm to be taken in", || {
        match act.launch(ONE, program.id, Work::Background) {
            Ok(_) => true,
            Err(ActError::Refused { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    });
}

#[test]
fn nobody_escapes_who_forks_meanwhile_and_nobody_stays() {
    let storm = || Program::start(&["storm", "3"]);
    in_every_way(storm, |way, act, program| {
        if way == Way::Bare {
            return; // orphans are lost without cgroups, as documented
        }
        for _ in 0..5 {
            admit_storm(act, program);
            act.act(&demote(Demotion::Idle)).unwrap();
            act.act(&FREEZE).unwrap();
            wait_until("all to be demoted", || {
                act.refresh(ONE).unwrap();
                let inside = act.processes(ONE);
                let ranks: Vec<Rank> = inside.into_iter().filter_map(rank).collect();
                !ranks.is_empty() && ranks.iter().all(|rank| *rank == Rank::IDLE)
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
            let ranks: BTreeMap<i32, Rank> = ranks(program);
            let plain = ranks.values().all(|rank| *rank == Rank::plain());
            assert!(plain, "{way:?}: {ranks:?}");
        }
    });
}

#[test]
fn whom_the_user_has_stopped_is_demoted_and_stays_stopped() {
    in_every_way(tree, |way, act, program| {
        // SAFETY: stops a process that this test started.
        unsafe { libc::kill(program.pid(), libc::SIGSTOP) };
        let stopped = |program: &Program| stat(program.pid()).unwrap().state == 'T';
        wait_until("it to stop", || stopped(program));
        act.launch(ONE, program.id, Work::Background).unwrap();
        act.act(&demote(Demotion::Idle)).unwrap();
        act.act(&FREEZE).unwrap();
        assert!(all_have(program, Rank::IDLE), "{way:?}");
        act.act(&THAW).unwrap();
        act.leave(ONE);
        assert!(all_have(program, Rank::plain()), "{way:?}");
        assert!(stopped(program), "{way:?}");
    });
}

#[test]
fn a_tree_that_ends_can_be_demoted() {
    in_every_way(tree, |_, act, program| {
        act.launch(ONE, program.id, Work::Background).unwrap();
        program.kill();
        act.act(&demote(Demotion::Idle)).unwrap();
        act.act(&FREEZE).unwrap();
        act.act(&THAW).unwrap();
        act.refresh(ONE).unwrap();
        act.leave(ONE);
    });
}
