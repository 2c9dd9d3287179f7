// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the actuator on real programs: they are admitted, seated, frozen and released, with
//! cgroups and without, as far as this machine permits it.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::*;
use usher_act::{ActError, Actuator, ForkResult, WorkClass};
use usher_model::{Action, CpuSet, ProcessId, ProcessTree, ProgramId};

const ONE: ProgramId = ProgramId(1);

fn seat(cpus: &str) -> Action {
    Action::Seat {
        program: ONE,
        cpus: cpus.parse().unwrap(),
    }
}

fn all_masks(program: &Program) -> BTreeSet<String> {
    program.processes().into_iter().flat_map(masks).collect()
}

fn close(act: &mut Actuator) {
    let left = act.undo_all();
    assert!(left.is_empty(), "{left:?}");
}

/// Held by each test, because only one test may run at a time: Usher cannot distinguish the orphans
/// of two trees that fork in one session (see "Limits" in `tree.rs`).
static ONE_TREE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_TREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test once for each mechanism that works on this machine, each time with a new actuator
/// and a new program.
fn with_every_method(args: &[&str], test: impl Fn(ActMethod, &mut Actuator, &mut Program)) {
    let _alone = alone();
    for method in methods() {
        let runtime = tempfile::tempdir().unwrap();
        let mut act = Actuator::open(method.config(runtime.path())).unwrap();
        let mut program = Program::start(args);
        test(method, &mut act, &mut program);
        let instance = act.instance_dir().to_owned();
        let left = act.undo_all();
        assert!(left.is_empty(), "{method:?}: {left:?}");
        assert_eq!(
            leftovers(&instance),
            Vec::<std::path::PathBuf>::new(),
            "{method:?}"
        );
        assert!(!instance.exists(), "{method:?}");
    }
}

#[test]
fn a_tree_is_seated_released_and_departs() {
    with_every_method(&["tree", "3", "2"], |method, act, program| {
        let before = snapshot(program);
        assert_eq!(before.len(), 4);
        let home = act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
        assert_eq!(home.cgroup.is_some(), method != ActMethod::NoCgroups);
        assert_eq!(act.processes(ONE).len(), 4, "{method:?}");
        act.act(&seat("0")).unwrap();
        assert_eq!(
            all_masks(program),
            BTreeSet::from(["0".to_owned()]),
            "{method:?}"
        );
        act.act(&Action::Release { program: ONE }).unwrap();
        assert_eq!(
            all_masks(program),
            BTreeSet::from([cpu_list()]),
            "{method:?}"
        );
        act.act(&seat("1")).unwrap();
        act.leave(ONE);
        assert_eq!(snapshot(program), before, "{method:?}");
        assert!(matches!(act.depart(ONE), Err(ActError::Unknown(ONE))));
    });
}

#[test]
fn a_released_program_can_be_admitted_again_at_once() {
    with_every_method(&["tree", "1", "2"], |method, act, program| {
        let before = all_masks(program);
        for number in 1..=5 {
            let id = ProgramId(number);
            act.admit(id, program.id, WorkClass::Foreground).unwrap();
            let cpus = "0".parse().unwrap();
            act.act(&Action::Seat { program: id, cpus }).unwrap();
            act.depart(id).unwrap();
        }
        act.admit(ONE, program.id, WorkClass::Foreground).unwrap();
        act.leave(ONE);
        assert_eq!(all_masks(program), before, "{method:?}");
    });
}

#[test]
fn a_frozen_tree_stops_and_continues_when_thawed() {
    with_every_method(&["tree", "2", "1"], |method, act, program| {
        let home = act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
        act.act(&Action::Freeze { program: ONE }).unwrap();
        let stands = || match &home.cgroup {
            Some(dir) => std::fs::read_to_string(dir.join("cgroup.events"))
                .unwrap()
                .contains("frozen 1"),
            None => snapshot(program).values().all(|(stopped, ..)| *stopped),
        };
        wait_until("the tree to stand still", stands);
        act.act(&Action::Thaw { program: ONE }).unwrap();
        wait_until("the tree to go on", || !stands());
        act.act(&Action::Freeze { program: ONE }).unwrap();
        act.leave(ONE);
        wait_until("the tree to go on", || {
            snapshot(program).values().all(|(stopped, ..)| !stopped)
        });
        assert_eq!(program.processes().len(), 3, "{method:?}");
    });
}

#[test]
fn a_process_that_was_stopped_stays_stopped() {
    with_every_method(&["tree", "1", "0"], |method, act, program| {
        let child = *program
            .processes()
            .iter()
            .find(|pid| **pid != program.pid())
            .unwrap();
        // SAFETY: `kill` accesses no memory; it stops a process that this test started.
        unsafe { libc::kill(child, libc::SIGSTOP) };
        wait_until("the child to stop", || stat(child).unwrap().state == 'T');
        act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
        act.act(&Action::Freeze { program: ONE }).unwrap();
        act.act(&Action::Thaw { program: ONE }).unwrap();
        act.leave(ONE);
        wait_until("the root to go on", || {
            stat(program.pid()).unwrap().state == 'S'
        });
        assert_eq!(stat(child).unwrap().state, 'T', "{method:?}");
    });
}

/// Admits a program that forks all the time. Usher may reject such a program, if its processes fork
/// and end faster than a scan. After a rejection, no process of the program may be changed. Returns
/// `None` then, as another attempt may succeed.
fn admit_storm(act: &mut Actuator, program: &Program) -> Option<ProcessTree> {
    match act.launch(ONE, program.id, WorkClass::Foreground) {
        Ok(home) => Some(home),
        Err(ActError::Refused { .. }) => {
            for pid in program.processes() {
                assert!(!cgroups(pid).contains("usher-"), "{pid} was left inside");
            }
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns the clock ticks since boot.
fn now_ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 * per_second / 1_000_000_000
}

/// Returns whether a hundred scans of a program that forks all the time find all its processes
/// inside its cgroup. Processes that lost their parents before the admission, at `since_ticks`, are
/// ignored, because they do not belong to the program.
fn is_inside(program: &Program, home: &ProcessTree, since_ticks: u64) -> bool {
    let cgroup = home.cgroup.clone().unwrap();
    let name = cgroup
        .strip_prefix("/sys/fs/cgroup/unified")
        .unwrap_or(&cgroup);
    let line = format!(
        "0::/{}\n",
        name.display().to_string().trim_start_matches('/')
    );
    let mut scanned = 0;
    while scanned < 100 {
        for pid in program.processes() {
            let places = cgroups(pid);
            let counts = |stat: Stat| stat.state != 'Z' && stat.start_ticks >= since_ticks;
            if stat(pid).is_some_and(counts) && !places.is_empty() {
                if !places.contains(&line) {
                    return false;
                }
                scanned += 1;
            }
        }
    }
    true
}

#[test]
fn a_fork_storm_can_be_admitted_and_released() {
    with_every_method(&["storm", "4"], |method, act, program| {
        if method == ActMethod::NoCgroups {
            return; // orphans are lost without cgroups, as documented
        }
        let caught = (0..30).any(|_| {
            let since_ticks = now_ticks();
            let Some(home) = admit_storm(act, program) else {
                return false;
            };
            let inside = is_inside(program, &home, since_ticks);
            if !inside {
                act.leave(ONE);
            }
            inside
        });
        assert!(caught, "{method:?}: thirty times something escaped");
        act.act(&seat("0")).unwrap();
        act.act(&Action::Freeze { program: ONE }).unwrap();
        act.act(&Action::Thaw { program: ONE }).unwrap();
        act.leave(ONE);
        wait_until("the storm to be back where it was", || {
            let mut pids = program.processes().into_iter();
            pids.all(|pid| !cgroups(pid).contains("usher-"))
        });
    });
}

/// In a container, or under a CI runner, the reaper of orphans may be in the session of the
/// program.
#[test]
fn orphans_are_known_where_init_shares_their_session() {
    let _alone = alone();
    if !methods().contains(&ActMethod::OwnCgroup) {
        return; // without rights for cgroups, this user cannot make a namespace either
    }
    let test = std::env::current_exe().unwrap();
    let out = std::process::Command::new("unshare")
        .args([
            "--pid",
            "--fork",
            "--mount-proc",
            "sh",
            "-c",
            "\"$@\"; exit $?",
            "sh",
        ])
        .arg(test)
        .args(["--exact", "a_fork_storm_can_be_admitted_and_released"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("1 passed") && out.status.success(), "{text}");
}

/// Waits until many consecutive checks find only threads with this mask. One check is not enough:
/// on a loaded machine, the actuator may miss a thread until the next `refresh`.
fn all_get_mask(act: &mut Actuator, program: &Program, mask: &str) {
    let expected = BTreeSet::from([mask.to_owned()]);
    wait_until(&format!("all to have the mask {mask}"), || {
        act.refresh(ONE).unwrap();
        (0..20).all(|_| all_masks(program) == expected)
    });
}

#[test]
fn threads_that_start_meanwhile_are_seated_too() {
    with_every_method(&["spawner"], |method, act, program| {
        act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
        for cpu in ["0", "1"] {
            act.act(&seat(cpu)).unwrap();
            all_get_mask(act, program, cpu);
        }
        act.leave(ONE);
        for _ in 0..20 {
            assert_eq!(
                all_masks(program),
                BTreeSet::from([cpu_list()]),
                "{method:?}"
            );
        }
    });
}

#[test]
fn a_programs_own_affinity_is_respected() {
    let last: CpuSet = cpu_list().parse().unwrap();
    let last = last.last().unwrap().to_string();
    with_every_method(&["pinned"], |method, act, program| {
        let own = BTreeSet::from([cpu_list(), last.clone()]);
        assert_eq!(all_masks(program), own);
        act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
        act.act(&seat(&cpu_list())).unwrap();
        assert_eq!(all_masks(program), own, "{method:?}");
        act.act(&seat(&last)).unwrap();
        act.leave(ONE);
        assert_eq!(all_masks(program), own, "{method:?}");
    });
}

#[test]
fn a_mask_that_the_program_sets_meanwhile_is_not_changed() {
    let _alone = alone();
    let runtime = tempfile::tempdir().unwrap();
    let mut act = Actuator::open(ActMethod::NoCgroups.config(runtime.path())).unwrap();
    let program = Program::start(&["tree", "0", "0"]);
    act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
    act.act(&seat("0")).unwrap();
    // The program itself sets a mask that differs from its former mask and from Usher's mask.
    let mut set = rustix::thread::CpuSet::new();
    set.set(1);
    let pid = rustix::process::Pid::from_raw(program.pid());
    rustix::thread::sched_setaffinity(pid, &set).unwrap();
    act.refresh(ONE).unwrap();
    assert_eq!(masks(program.pid()), BTreeSet::from(["1".to_owned()]));
    close(&mut act);
    assert_eq!(masks(program.pid()), BTreeSet::from(["1".to_owned()]));
}

#[test]
fn rejects_impossible_seats_without_changes() {
    with_every_method(&["tree", "1", "1"], |method, act, program| {
        act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
        act.act(&seat("0")).unwrap();
        let error = act.act(&seat("4000-4001")).unwrap_err().to_string();
        assert!(
            error.contains("4000-4001") && error.contains(&cpu_list()),
            "{error}"
        );
        assert_eq!(
            all_masks(program),
            BTreeSet::from(["0".to_owned()]),
            "{method:?}"
        );
        act.act(&seat("1,4000")).unwrap();
        assert_eq!(
            all_masks(program),
            BTreeSet::from(["1".to_owned()]),
            "{method:?}"
        );
    });
}

#[test]
fn a_process_is_managed_once() {
    with_every_method(&["tree", "1", "0"], |method, act, program| {
        let other = ProgramId(2);
        let child = *program
            .processes()
            .iter()
            .find(|pid| **pid != program.pid())
            .unwrap();
        let refused = |result: Result<ProcessTree, ActError>, by: ProgramId| match result {
            Err(ActError::Managed { program, .. }) => assert_eq!(program, by, "{method:?}"),
            other => panic!("{method:?}: {other:?}"),
        };
        act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
        refused(act.launch(other, program.id, WorkClass::Foreground), ONE);
        refused(act.launch(other, id_of(child), WorkClass::Foreground), ONE);
        act.act(&seat("0")).unwrap();
        act.leave(ONE);
        // Usher also rejects an ancestor of a managed process.
        act.launch(other, id_of(child), WorkClass::Foreground)
            .unwrap();
        refused(act.launch(ONE, program.id, WorkClass::Foreground), other);
        act.leave(other);
        assert_eq!(
            all_masks(program),
            BTreeSet::from([cpu_list()]),
            "{method:?}"
        );
    });
}

#[test]
fn rejects_a_process_that_another_usher_manages() {
    let _alone = alone();
    let runtimes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut program = Program::start(&["tree", "0", "0"]);
    for method in methods()
        .into_iter()
        .filter(|method| *method != ActMethod::NoCgroups)
    {
        let mut first = Actuator::open(method.config(runtimes[0].path())).unwrap();
        let mut second = Actuator::open(method.config(runtimes[1].path())).unwrap();
        first
            .launch(ONE, program.id, WorkClass::Foreground)
            .unwrap();
        let error = second
            .launch(ONE, program.id, WorkClass::Foreground)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("another Usher process already manages"),
            "{error}"
        );
        close(&mut first);
        second
            .launch(ONE, program.id, WorkClass::Foreground)
            .unwrap();
        close(&mut second);
    }
    program.kill();
}

#[test]
fn rejects_processes_that_must_not_be_managed() {
    let _alone = alone();
    let runtime = tempfile::tempdir().unwrap();
    let mut act = Actuator::open(ActMethod::OwnCgroup.config(runtime.path())).unwrap();
    let own = id_of(std::process::id() as i32);
    let refused = |result: Result<_, ActError>, why: &str| {
        let error: ActError = result.map(|_: usher_model::ProcessTree| ()).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    };
    refused(act.launch(ONE, own, WorkClass::Foreground), "Usher itself");
    refused(act.launch(ONE, id_of(1), WorkClass::Foreground), "init");
    let kthreadd = pids().into_iter().find(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "kthreadd\n")
    });
    match kthreadd {
        Some(pid) => refused(
            act.launch(ONE, id_of(pid), WorkClass::Foreground),
            "kernel thread",
        ),
        None => usher_skip::skip!("no kernel thread is visible"),
    }
    let mut gone = Program::start(&["tree", "0", "0"]);
    gone.kill();
    refused(
        act.launch(ONE, gone.id, WorkClass::Foreground),
        "does not exist",
    );
    let other = Program::start(&["tree", "0", "0"]);
    let reused = ProcessId {
        pid: other.pid(),
        start_ticks: other.id.start_ticks + 1,
    };
    refused(
        act.launch(ONE, reused, WorkClass::Foreground),
        "does not exist",
    );
    assert!(matches!(act.act(&seat("0")), Err(ActError::Unknown(ONE))));
    act.launch(ONE, other.id, WorkClass::Foreground).unwrap();
    refused(
        act.launch(ONE, other.id, WorkClass::Foreground),
        "already manages",
    );
    close(&mut act);
}

#[test]
fn a_prepared_child_starts_in_its_seat() {
    let _alone = alone();
    for method in methods() {
        let runtime = tempfile::tempdir().unwrap();
        let mut act = Actuator::open(method.config(runtime.path())).unwrap();
        let own = id_of(std::process::id() as i32);
        let prepared = act.prepare(ONE, own, WorkClass::Foreground).unwrap();
        act.act(&seat("1")).unwrap();
        // SAFETY: the child calls only `pause` and `_exit`, which are async-signal-safe.
        let (child, pidfd) = match unsafe { prepared.fork() }.unwrap() {
            // SAFETY: `pause` and `_exit` are async-signal-safe; a forked child may call them.
            ForkResult::Child => unsafe {
                libc::pause();
                libc::_exit(7)
            },
            ForkResult::Parent { child, pidfd } => (child, pidfd),
        };
        let home = act.admit(ONE, child, WorkClass::Foreground).unwrap();
        assert_eq!(home, prepared.home(child));
        assert_eq!(
            masks(child.pid),
            BTreeSet::from(["1".to_owned()]),
            "{method:?}"
        );
        assert_eq!(act.processes(ONE), [child.pid], "{method:?}");
        let own_cgroups = cgroups(own.pid);
        act.leave(ONE);
        assert_eq!(cgroups(child.pid), own_cgroups, "{method:?}");
        assert_eq!(masks(child.pid), BTreeSet::from([cpu_list()]), "{method:?}");
        rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL).unwrap();
        let pid = rustix::process::Pid::from_raw(child.pid);
        rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
        close(&mut act);
    }
}

#[test]
fn processes_move_back_to_their_former_cgroups() {
    let _alone = alone();
    let runtime = tempfile::tempdir().unwrap();
    for method in methods()
        .into_iter()
        .filter(|method| *method != ActMethod::NoCgroups)
    {
        let mut act = Actuator::open(method.config(runtime.path())).unwrap();
        let program = Program::start(&["tree", "2", "0"]);
        let child = *program
            .processes()
            .iter()
            .find(|pid| **pid != program.pid())
            .unwrap();
        // Moves one process of the tree into another cgroup v2.
        let elsewhere = v2_top().join(format!("act-test-{}", program.pid()));
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(elsewhere.join("cgroup.procs"), child.to_string()).unwrap();
        let before = snapshot(&program);
        act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
        assert_eq!(act.processes(ONE).len(), 3);
        act.act(&seat("0")).unwrap();
        act.leave(ONE);
        assert_eq!(snapshot(&program), before, "{method:?}");
        close(&mut act);
        drop(program);
        wait_until("the test's own cgroup to be empty", || {
            std::fs::remove_dir(&elsewhere).is_ok()
        });
    }
}

#[test]
fn a_tree_that_ends_is_no_error() {
    with_every_method(&["tree", "3", "1"], |_, act, program| {
        act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
        program.kill();
        act.act(&seat("0")).unwrap();
        act.act(&Action::Freeze { program: ONE }).unwrap();
        act.act(&Action::Thaw { program: ONE }).unwrap();
        act.refresh(ONE).unwrap();
        act.leave(ONE);
    });
}

#[test]
fn a_program_launched_beside_the_tree_is_not_admitted() {
    let _alone = alone();
    // A shell that launches a `sleep` process for every line that it reads, all in one process
    // group. To Usher, each `sleep` could seem to be an orphan of the previous one.
    let mut shell = std::process::Command::new("sh")
        .args([
            "-c",
            "while read seconds; do sleep $seconds & all=\"$all $!\"; echo $!; done; kill $all; wait",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut orders = shell.stdin.take().unwrap();
    let mut launched =
        std::io::BufRead::lines(std::io::BufReader::new(shell.stdout.take().unwrap()));
    let mut order = || std::io::Write::write_all(&mut orders, b"1000\n").unwrap();
    let runtime = tempfile::tempdir().unwrap();
    let mut act = Actuator::open(ActMethod::OwnCgroup.config(runtime.path())).unwrap();
    order();
    for number in 0..40 {
        // The shell launches the next `sleep` while Usher admits the present one.
        order();
        let pid: i32 = launched.next().unwrap().unwrap().parse().unwrap();
        let program = ProgramId(number);
        let root = ProcessId {
            pid,
            start_ticks: stat(pid).expect("it sleeps").start_ticks,
        };
        act.launch(program, root, WorkClass::Foreground).unwrap();
        let inside = act.processes(program);
        assert_eq!(inside.into_iter().collect::<Vec<_>>(), [pid]);
        act.leave(program);
        if number % 3 == 0 {
            // A part of the processes is killed before Usher examines the others.
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
    drop(orders);
    shell.wait().unwrap();
    close(&mut act);
}
