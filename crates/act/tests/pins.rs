// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests with programs that set affinity masks of their own threads, before and after Usher seats
//! the programs.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use common::*;
use usher_act::{Actuator, CopyPlacement, PinnedCpus, WorkClass};
use usher_model::{Action, CpuSet, ProcessId, ProgramId};

const ONE: ProgramId = ProgramId(1);

/// The process `pinner` of the rig. The threads of this process pin themselves on request of the
/// test.
struct Pinner {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Pinner {
    fn start(threads: &str) -> Self {
        let mut command = command(&["pinner", threads]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut pinner = Self { child, out };
        assert_eq!(pinner.line(), "ready");
        pinner
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Makes a thread set its own mask to `cpus`. Thread 0 is the main thread.
    fn pin(&mut self, thread: usize, cpus: &str) {
        let order = format!("{thread} {cpus}");
        writeln!(self.child.stdin.as_mut().unwrap(), "{order}").unwrap();
        assert_eq!(self.line(), order);
    }

    fn id(&self) -> ProcessId {
        id_of(self.child.id() as i32)
    }

    /// Returns the masks of the threads in the order of their creation.
    fn masks(&self) -> Vec<String> {
        let mut threads = threads(self.id().pid);
        threads.sort_unstable();
        let own = |tid: &i32| {
            let path = format!("/proc/{}/task/{tid}/status", self.id().pid);
            let text = std::fs::read_to_string(path).ok()?;
            let lines = text.lines();
            let mut lines = lines.filter_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            lines.next().map(|list| list.trim().to_owned())
        };
        threads.iter().filter_map(own).collect()
    }
}

impl Drop for Pinner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn seat(cpus: &str) -> Action {
    Action::Seat {
        program: ONE,
        cpus: cpus.parse().unwrap(),
    }
}

fn pinned(cpus: &str, every_thread: bool) -> Option<PinnedCpus> {
    Some(PinnedCpus {
        cpus: cpus.parse().unwrap(),
        every_thread,
    })
}

/// Returns the first CPUs that this process may use. If there are fewer than two, reports the test
/// as skipped and returns `None`.
fn two_cpus() -> Option<(String, String)> {
    let all: CpuSet = cpu_list().parse().unwrap();
    let mut cpus = all.iter().map(|cpu| cpu.to_string());
    let two = cpus.next().zip(cpus.next());
    if two.is_none() {
        usher_skip::skip!("needs two CPUs");
    }
    two
}

/// A test function. Its arguments are an actuator, a process, the function that admits the process,
/// and two CPUs.
type PinTest = dyn Fn(&mut Actuator, &mut Pinner, &dyn Fn(&mut Actuator), &str, &str);

/// Runs a test with cgroups and without, for a launched and for an attached program with `threads`
/// threads besides its main thread.
fn in_every_way(threads: &str, test: &PinTest) {
    let Some((first, second)) = two_cpus() else {
        return;
    };
    for method in methods() {
        for is_launched in [true, false] {
            let runtime = tempfile::tempdir().unwrap();
            let mut act = Actuator::open(method.config(runtime.path())).unwrap();
            let mut pinner = Pinner::start(threads);
            let root = pinner.id();
            let admit = move |act: &mut Actuator| {
                if is_launched {
                    act.prepare_held(ONE, root, WorkClass::Foreground).unwrap();
                }
                act.admit(ONE, root, WorkClass::Foreground).unwrap();
            };
            test(&mut act, &mut pinner, &admit, &first, &second);
            close(act);
        }
    }
}

#[test]
fn pins_from_before_the_attach_are_reported_and_kept() {
    in_every_way("1", &|act, pinner, admit, first, second| {
        pinner.pin(0, first);
        pinner.pin(1, second);
        admit(act);
        let both = format!("{first},{second}");
        assert_eq!(act.pins(ONE), pinned(&both, true));
        let own = [first, second];
        act.act(&seat(first)).unwrap();
        assert_eq!(pinner.masks(), own, "a seat moves no pinned thread");
        act.leave(ONE);
        assert_eq!(pinner.masks(), own);
    });
}

#[test]
fn pins_from_after_the_seat_are_reported_and_kept() {
    in_every_way("1", &|act, pinner, admit, first, second| {
        admit(act);
        act.act(&seat(first)).unwrap();
        assert_eq!(act.pins(ONE), None);
        assert_eq!(pinner.masks(), [first, first]);
        pinner.pin(0, second);
        pinner.pin(1, second);
        assert_eq!(act.pins(ONE), pinned(second, true));
        act.refresh(ONE).unwrap();
        assert_eq!(pinner.masks(), [second, second]);
        act.act(&Action::Release { program: ONE }).unwrap();
        finish_scans(act);
        assert_eq!(act.pins(ONE), pinned(second, true));
        act.leave(ONE);
        assert_eq!(pinner.masks(), [second, second]);
    });
}

#[test]
fn one_pinned_thread_of_four_is_reported_and_the_others_stay_seated() {
    in_every_way("3", &|act, pinner, admit, first, second| {
        admit(act);
        act.act(&seat(first)).unwrap();
        pinner.pin(2, second);
        assert_eq!(act.pins(ONE), pinned(second, false));
        act.refresh(ONE).unwrap();
        assert_eq!(pinner.masks(), [first, first, second, first]);
        act.leave(ONE);
        let all = cpu_list();
        assert_eq!(pinner.masks(), [&*all, &*all, second, &*all]);
    });
}

#[test]
fn a_thread_that_unpins_itself_is_seated_again() {
    in_every_way("1", &|act, pinner, admit, first, second| {
        admit(act);
        act.act(&seat(first)).unwrap();
        pinner.pin(1, second);
        assert_eq!(act.pins(ONE), pinned(second, false));
        act.act(&Action::Release { program: ONE }).unwrap();
        finish_scans(act);
        pinner.pin(1, &cpu_list());
        assert_eq!(act.pins(ONE), None);
        act.act(&seat(first)).unwrap();
        assert_eq!(pinner.masks(), [first, first]);
    });
}

#[test]
fn a_program_bound_as_a_whole_pins_nothing() {
    in_every_way("1", &|act, pinner, admit, first, _| {
        pinner.pin(0, first);
        pinner.pin(1, first);
        admit(act);
        assert_eq!(act.pins(ONE), None);
        let bound: CpuSet = first.parse().unwrap();
        assert_eq!(act.initial_cpus(ONE), Some(&bound));
    });
}

#[test]
fn a_seat_that_equals_an_older_pin_does_not_take_it_over() {
    in_every_way("1", &|act, pinner, admit, first, second| {
        admit(act);
        act.act(&seat(first)).unwrap();
        pinner.pin(1, second);
        act.refresh(ONE).unwrap();
        act.act(&seat(second)).unwrap();
        assert_eq!(pinner.masks(), [second, second]);
        assert_eq!(act.pins(ONE), pinned(second, false));
        act.act(&seat(first)).unwrap();
        assert_eq!(pinner.masks(), [first, second]);
        pinner.pin(1, &cpu_list());
        act.act(&seat(second)).unwrap();
        assert_eq!(pinner.masks(), [second, second], "unpinned, so seated");
        act.leave(ONE);
        let all = cpu_list();
        assert_eq!(pinner.masks(), [&*all, &*all]);
    });
}

/// A cpuset (cgroup v1) with one CPU, which contains the processes that [`Self::enter`] moves.
struct Cpuset(PathBuf);

impl Cpuset {
    /// Creates a cpuset. If there is no hierarchy of cpusets or no right to change it, reports the
    /// test as skipped and returns `None`.
    fn with(cpu: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let is_cpuset = |fields: &Vec<&str>| {
            fields.get(2) == Some(&"cgroup") && fields[3].split(',').any(|word| word == "cpuset")
        };
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect());
        let top = mounts.find(is_cpuset).map(|fields| fields[1].to_owned());
        let Some(top) = top.filter(|_| has_rights()) else {
            usher_skip::skip!("needs cpusets (cgroup v1) and the rights to change them");
            return None;
        };
        let dir = Path::new(&top).join(format!("usher-test-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let mems = std::fs::read_to_string(Path::new(&top).join("cpuset.mems")).unwrap();
        std::fs::write(dir.join("cpuset.mems"), mems).unwrap();
        std::fs::write(dir.join("cpuset.cpus"), cpu).unwrap();
        Some(Self(dir))
    }

    fn enter(&self, pid: i32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn leave(&self, pid: i32) {
        std::fs::write(self.0.with_file_name("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        wait_until("the cpuset to be empty", || {
            std::fs::remove_dir(&self.0).is_ok()
        });
    }
}

#[test]
fn a_seat_that_a_cpuset_restricted_is_applied_again() {
    let Some((first, _)) = two_cpus() else {
        return;
    };
    let Some(cpuset) = Cpuset::with(&first) else {
        return;
    };
    in_every_way("1", &move |act, pinner, admit, first, _| {
        let (all, pid) = (cpu_list(), pinner.id().pid);
        admit(act);
        act.act(&seat(first)).unwrap();
        cpuset.enter(pid);
        act.act(&seat(&all)).unwrap();
        for _ in 0..3 {
            assert_eq!(pinner.masks(), [first, first]);
            assert_eq!(act.pins(ONE), None);
            act.refresh(ONE).unwrap();
        }
        cpuset.leave(pid);
        // A kernel that does not remember the requested mask leaves the restricted mask.
        pinner.pin(0, first);
        pinner.pin(1, first);
        act.refresh(ONE).unwrap();
        assert_eq!(pinner.masks(), [&*all, &*all]);
        act.leave(ONE);
        assert_eq!(pinner.masks(), [&*all, &*all]);
    });
}

#[test]
fn a_copy_that_pinned_its_threads_is_left_alone() {
    let all = cpu_list();
    if all != "0-1" {
        usher_skip::skip!("needs CPUs 0 and 1 and no others");
        return;
    }
    let (_runtime, mut act) = without_cgroups();
    let mut pinner = Pinner::start("1");
    act.admit(ONE, pinner.id(), WorkClass::Foreground).unwrap();
    (0..2).for_each(|thread| pinner.pin(thread, "1"));
    let zero = CpuSet::single(0);
    let placed = act.place_copy(ONE, pinner.id(), Some(&zero)).unwrap();
    assert_eq!(placed, CopyPlacement::LeftAlone);
    assert_eq!(pinner.masks(), ["1", "1"]);
    close(act);
    assert_eq!(pinner.masks(), ["1", "1"]);
}
