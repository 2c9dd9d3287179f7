// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real programs, demoted and promoted in every way that works here; what they
//! have is asked of the kernel before, meanwhile and after.

#![allow(clippy::unwrap_used)] // a test that finds otherwise is to fail

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::*;
use usher_act::{ActError, Actuator, Forked, Work};
use usher_model::{Action, Demotion, ProgramId};

const ONE: ProgramId = ProgramId(1);
const PROMOTE: Action = Action::Promote { program: ONE };
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

/// Whether priorities can be lowered and raised here.
fn has_rights() -> bool {
    let has = rustix::process::geteuid().is_root();
    if !has {
        eprintln!("not tested here: needs root, to raise priorities again");
    }
    has
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
        eprintln!("not tested here: cpu.idle of cgroup v1");
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

fn all_have(program: &Program, rank: Rank) -> bool {
    let ranks = ranks(program);
    let has = |has: &Rank| {
        let reset_on_fork = rank.reset_on_fork;
        Rank {
            reset_on_fork,
            ..*has
        } == rank
    };
    !ranks.is_empty() && ranks.values().all(has)
}

/// Refreshes until a promotion is over: nothing of it is in the journal.
fn settle(act: &mut Actuator) {
    let journal = act.instance_dir().join("journal.jsonl");
    let over = r#"{"do":"promote","program":1}"#;
    wait_until("the promotion to be over", || {
        act.refresh(ONE).unwrap();
        let text = std::fs::read_to_string(&journal).unwrap();
        text.trim_end().ends_with(over)
    });
}

#[test]
fn a_tree_is_demoted_and_promoted() {
    in_every_way(tree, |way, act, program| {
        vary(program);
        let before = portrait(program);
        act.admit(ONE, program.id, Work::Foreground).unwrap();
        for _ in 0..2 {
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
            act.act(&PROMOTE).unwrap();
            let now = portrait(program);
            for (pid, now) in &now {
                assert_eq!(now.3, before[pid].3, "{way:?}");
            }
            settle(act);
        }
        act.act(&demote(Demotion::Idle)).unwrap();
        act.depart(ONE).unwrap();
        assert_eq!(portrait(program), before, "{way:?}");
    });
}

#[test]
fn nice_is_all_that_nice_does() {
    in_every_way(tree, |way, act, program| {
        let before = portrait(program);
        let nice = Rank {
            nice: 19,
            ..Rank::PLAIN
        };
        act.admit(ONE, program.id, Work::Foreground).unwrap();
        act.act(&demote(Demotion::Nice)).unwrap();
        assert!(all_have(program, nice), "{way:?}");
        act.act(&demote(Demotion::Idle)).unwrap();
        assert!(all_have(program, Rank::IDLE), "{way:?}");
        act.act(&demote(Demotion::Nice)).unwrap();
        assert!(all_have(program, nice), "{way:?}: {:?}", ranks(program));
        act.depart(ONE).unwrap();
        assert_eq!(portrait(program), before, "{way:?}");
    });
}

#[test]
fn a_thread_born_meanwhile_gets_what_its_parent_had() {
    let spawner = || Program::start(&["spawner"]);
    in_every_way(spawner, |way, act, program| {
        let root = rustix::process::Pid::from_raw(program.pid());
        rustix::process::setpriority_process(root, 2).unwrap();
        act.admit(ONE, program.id, Work::Background).unwrap();
        act.act(&demote(Demotion::Idle)).unwrap();
        let met: BTreeSet<i32> = ranks(program).into_keys().collect();
        wait_until("others", || {
            act.refresh(ONE).unwrap();
            ranks(program)
                .keys()
                .all(|tid| !met.contains(tid) || *tid == program.pid())
        });
        assert!(all_have(program, Rank::IDLE), "{way:?}");
        act.depart(ONE).unwrap();
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
        act.admit(ONE, program.id, Work::Background).unwrap();
        act.act(&demote(Demotion::Idle)).unwrap();
        // As the program itself could.
        let root = rustix::process::Pid::from_raw(program.pid());
        rustix::process::setpriority_process(root, 7).unwrap();
        act.refresh(ONE).unwrap();
        act.depart(ONE).unwrap();
        let mut ranks = ranks(program);
        let own = ranks.remove(&program.pid()).unwrap();
        let reniced = Rank {
            nice: 7,
            ..Rank::PLAIN
        };
        assert_eq!(own, reniced, "{way:?}");
        assert!(ranks.values().all(|rank| *rank == Rank::PLAIN), "{way:?}");
    });
}

/// Without cgroups sessions count.
fn bare() -> (tempfile::TempDir, Actuator) {
    let runtime = tempfile::tempdir().unwrap();
    let act = Actuator::open(Way::Bare.config(runtime.path())).unwrap();
    (runtime, act)
}

fn close(mut act: Actuator) {
    let left = act.undo_all();
    assert!(left.is_empty(), "{left:?}");
}

/// Autogroups can be changed without rights, and given back.
fn in_a_session() -> Option<Program> {
    let program = Program::start_in_session(command(&["tree", "1", "0"]));
    if autogroup(program.pid()).is_none() {
        eprintln!("not tested here: this kernel has no autogroups");
        return None;
    }
    Some(program)
}

#[test]
fn a_session_of_its_own_is_demoted() {
    let _alone = alone();
    let Some(program) = in_a_session() else {
        return;
    };
    let before = portrait(&program);
    for to in [Demotion::Nice, Demotion::Idle] {
        let (_runtime, mut act) = bare();
        act.admit(ONE, program.id, Work::Background).unwrap();
        act.act(&demote(to)).unwrap();
        wait_until("the kernel to take it", || {
            act.refresh(ONE).unwrap();
            autogroup(program.pid()) == Some(19)
        });
        act.act(&PROMOTE).unwrap();
        assert_eq!(autogroup(program.pid()), Some(0));
        act.act(&demote(to)).unwrap();
        close(act);
        assert_eq!(portrait(&program), before);
    }
}

#[test]
fn a_session_that_others_are_in_is_left() {
    let _alone = alone();
    let program = Program::start(&["tree", "1", "0"]);
    let before = autogroup(program.pid());
    let (_runtime, mut act) = bare();
    act.admit(ONE, program.id, Work::Background).unwrap();
    act.act(&demote(Demotion::Idle)).unwrap();
    assert_eq!(autogroup(program.pid()), before);
    let why = act.why_not_demoted(ONE).join("\n");
    assert!(why.contains("session") && why.contains("setsid"), "{why}");
    close(act);
    assert_eq!(autogroup(program.pid()), before);
}

#[test]
fn a_session_that_is_begun_meanwhile_is_demoted_too() {
    let _alone = alone();
    if in_a_session().is_none() {
        return;
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo ready; read line; setsid sleep 1000 & wait"]);
    let mut shell = Program::start_in_session(shell);
    let (_runtime, mut act) = bare();
    act.admit(ONE, shell.id, Work::Background).unwrap();
    act.act(&demote(Demotion::Idle)).unwrap();
    shell
        .child
        .stdin
        .take()
        .unwrap()
        .write_all(b"go\n")
        .unwrap();
    let mut other = None;
    wait_until("another session", || {
        act.refresh(ONE).unwrap();
        other = act
            .processes(ONE)
            .into_iter()
            .find(|pid| *pid != shell.pid());
        other.is_some_and(|pid| autogroup(pid) == Some(19) && leads(pid))
    });
    close(act);
    let other = other.unwrap();
    assert_eq!(autogroup(other), Some(0));
    // SAFETY: kills a process that this test's shell has started.
    unsafe { libc::kill(other, libc::SIGKILL) };
}

/// Whether a process leads a session.
fn leads(pid: i32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid);
    rustix::process::getsid(pid).ok() == pid
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
        act.depart(ONE).unwrap();
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
        eprintln!("not tested here: no thread can be scheduled by deadlines");
        return;
    }
    let before = portrait(&program);
    let (_runtime, mut act) = bare();
    act.admit(ONE, program.id, Work::Background).unwrap();
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
        match act.admit(ONE, program.id, Work::Background) {
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
        admit_storm(act, program);
        for _ in 0..5 {
            act.act(&demote(Demotion::Idle)).unwrap();
            act.act(&FREEZE).unwrap();
            wait_until("all to be demoted", || {
                act.refresh(ONE).unwrap();
                let inside = act.processes(ONE);
                let ranks: Vec<Rank> = inside.into_iter().filter_map(rank).collect();
                !ranks.is_empty() && ranks.iter().all(|rank| *rank == Rank::IDLE)
            });
            act.act(&THAW).unwrap();
            act.act(&PROMOTE).unwrap();
            act.act(&FREEZE).unwrap();
            act.act(&demote(Demotion::Idle)).unwrap();
            act.act(&THAW).unwrap();
        }
        act.act(&FREEZE).unwrap();
        act.depart(ONE).unwrap();
        let first: BTreeSet<i32> = program.processes().into_iter().collect();
        wait_until("the storm to rage on", || {
            program.processes().iter().any(|pid| !first.contains(pid))
        });
        for _ in 0..20 {
            let ranks: BTreeMap<i32, Rank> = ranks(program);
            let plain = ranks.values().all(|rank| *rank == Rank::PLAIN);
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
        act.admit(ONE, program.id, Work::Background).unwrap();
        act.act(&demote(Demotion::Idle)).unwrap();
        act.act(&FREEZE).unwrap();
        assert!(all_have(program, Rank::IDLE), "{way:?}");
        act.act(&THAW).unwrap();
        act.depart(ONE).unwrap();
        assert!(all_have(program, Rank::PLAIN), "{way:?}");
        assert!(stopped(program), "{way:?}");
    });
}

#[test]
fn a_tree_that_ends_can_be_demoted() {
    in_every_way(tree, |_, act, program| {
        act.admit(ONE, program.id, Work::Background).unwrap();
        program.kill();
        act.act(&demote(Demotion::Idle)).unwrap();
        act.act(&FREEZE).unwrap();
        act.act(&THAW).unwrap();
        act.act(&PROMOTE).unwrap();
        act.refresh(ONE).unwrap();
        act.depart(ONE).unwrap();
    });
}

/// What nobody could give back is not taken; the rest is.
#[test]
fn without_rights_what_can_be_undone_is_done() {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    let _alone = alone();
    if !has_rights() {
        return; // as somebody who has no rights: needs root, to become nobody
    }
    let runtime = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(runtime.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    // The binary may lie where nobody else can execute it.
    let copy = runtime.path().join("rig");
    std::fs::copy(rig(), &copy).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(&copy);
        command.args(args).uid(NOBODY).gid(NOBODY);
        command
    };
    let program = Program::start_in_session(as_nobody(&["tree", "1", "1"]));
    let before = portrait(&program);
    let id = format!("{}-{}", program.id.pid, program.id.start_ticks);
    let mut demoter = as_nobody(&["demoter", runtime.path().to_str().unwrap(), &id])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(demoter.stdout.take().unwrap()).lines();
    let said: Vec<String> = lines
        .map(|line| line.unwrap())
        .take_while(|line| line != "ready")
        .collect();
    let io_only = Rank {
        io: Rank::IDLE.io,
        ..Rank::PLAIN
    };
    assert!(all_have(&program, io_only), "{:?}", ranks(&program));
    let autogroup = autogroup(program.pid());
    assert!(autogroup.is_none_or(|nice| nice == 19), "{autogroup:?}");
    let said = said.join("\n");
    assert!(said.contains("ulimit -e 20"), "{said}");
    drop(demoter.stdin.take());
    assert!(demoter.wait().unwrap().success());
    assert_eq!(portrait(&program), before);
}
