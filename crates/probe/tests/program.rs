// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the probe with real programs, with and without a cgroup: CPU time, ends, spinners,
//! stops and heartbeats.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{BurnProcess, build, close, until};
use rustix::event::{PollFd, Timespec, poll};
use usher_model::{ProcessTree, ProgramId, ProgressSource};
use usher_probe::{ProbeConfig, ProgramProbe, process_id};

/// A cgroup of this test, removed on drop.
struct TestCgroup(PathBuf);

impl TestCgroup {
    /// Creates the cgroup. If that fails, reports the test as skipped and returns `None`.
    fn make(name: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            (fields[2] == "cgroup2").then(|| fields[1].to_owned())
        });
        let dir = mount.map(|mount| {
            let name = format!("usher-probe-test-{}-{name}", std::process::id());
            Path::new(&mount).join(name)
        });
        match dir.as_ref().map(std::fs::create_dir) {
            Some(Ok(())) => Some(Self(dir.unwrap())),
            other => {
                usher_skip::skip!("no cgroup can be made: {other:?}");
                None
            }
        }
    }

    fn add(&self, pid: i32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        let gone = || !self.0.exists() || std::fs::remove_dir(&self.0).is_ok();
        until("the cgroup is empty", gone);
    }
}

fn home(pid: i32, cgroup: Option<&TestCgroup>) -> ProcessTree {
    ProcessTree {
        program: ProgramId(7),
        root: process_id(Path::new("/proc"), pid).unwrap(),
        cgroup: cgroup.map(|group| group.0.clone()),
    }
}

#[test]
fn a_cgroup_accounts_threads_children_and_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let Some(group) = TestCgroup::make("end") else {
        return;
    };
    let mut program = BurnProcess::start(&build(dir.path()), &["compute", "3", "2", "100"]);
    group.add(program.pid());
    let home = home(program.pid(), Some(&group));
    let mut probe = ProgramProbe::open(&home, ProbeConfig::default()).unwrap();
    let first = probe.sample(0, 0.0).unwrap();
    assert_eq!((first.cpu_ns, first.threads, first.spinners), (0, 4, 0));
    assert!(!probe.has_ended().unwrap());
    program.go();
    let known = program.cpu_time();
    assert!(known >= Duration::from_millis(500));
    until("the end is noticed", || probe.has_ended().unwrap());
    let last = probe.sample(1, 0.0).unwrap();
    assert!(close(last.cpu_ns as f64, known), "{last:?} {known:?}");
    let progress = last.progress.unwrap();
    assert_eq!(progress.source, ProgressSource::CpuTime);
    assert_eq!(progress.total, last.cpu_ns as f64);
}

#[test]
fn the_end_can_be_polled_for() {
    let dir = tempfile::tempdir().unwrap();
    let burn = build(dir.path());
    let group = TestCgroup::make("poll");
    for cgroup in [group.as_ref(), None] {
        let mut program = BurnProcess::start(&burn, &["compute", "1", "0", "20"]);
        if let Some(group) = cgroup {
            group.add(program.pid());
        }
        let home = home(program.pid(), cgroup);
        let mut probe = ProgramProbe::open(&home, ProbeConfig::default()).unwrap();
        let wait = |probe: &ProgramProbe, seconds| {
            let (fd, flags) = probe.poll();
            let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
            let timeout = Timespec {
                tv_sec: seconds,
                tv_nsec: 0,
            };
            poll(&mut fds, Some(&timeout)).unwrap()
        };
        assert_eq!(wait(&probe, 0), 0, "nothing has happened yet");
        program.go();
        assert_eq!(wait(&probe, 60), 1);
        until("it has ended", || probe.has_ended().unwrap());
    }
}

#[test]
fn a_removed_cgroup_is_an_end_and_a_typed_error() {
    let Some(group) = TestCgroup::make("removed") else {
        return;
    };
    let home = home(std::process::id() as i32, Some(&group));
    let mut probe = ProgramProbe::open(&home, ProbeConfig::default()).unwrap();
    drop(group);
    assert!(probe.has_ended().unwrap());
    assert!(probe.sample(0, 0.0).unwrap_err().is_gone());
    let error = ProgramProbe::open(&home, ProbeConfig::default()).unwrap_err();
    assert!(error.is_gone() && error.to_string().contains("usher-probe-test"));
}

#[test]
fn without_a_cgroup_the_tree_is_nearly_as_accurate() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = BurnProcess::start(&build(dir.path()), &["compute", "3", "2", "200"]);
    let home = home(program.pid(), None);
    let mut probe = ProgramProbe::open(&home, ProbeConfig::default()).unwrap();
    program.go();
    let mut last = probe.sample(0, 0.0).unwrap();
    let mut at_ns = 0;
    until("it has ended", || {
        at_ns += 1_000_000_000;
        let now = probe.sample(at_ns, 0.0).unwrap();
        assert!(now.cpu_ns >= last.cpu_ns);
        last = now;
        probe.has_ended().unwrap()
    });
    // The time of the zombie can still be read, because no process has waited for it yet.
    let last = probe.sample(u64::MAX, 0.0).unwrap();
    let known = program.cpu_time();
    // The tolerance covers a clock tick per process, and a child that is reaped between two reads.
    // Such a child counts twice: as a living process and in its parent's sum.
    let ratio = last.cpu_ns as f64 / known.as_nanos() as f64;
    assert!((0.7..1.35).contains(&ratio), "{last:?} {known:?}");
    assert_eq!(last.wait_ns, None);
}

#[test]
fn without_a_cgroup_the_end_of_the_last_process_is_awaited() {
    let mut root = std::process::Command::new("sh")
        .args(["-c", "sleep 1000 & echo $!; read line"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(root.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let child = rustix::process::Pid::from_raw(line.trim().parse().unwrap()).unwrap();
    let home = home(root.id() as i32, None);
    let mut probe = ProgramProbe::open(&home, ProbeConfig::default()).unwrap();
    let is_raised = |probe: &ProgramProbe| {
        let (fd, events) = probe.poll();
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, events)];
        let now = rustix::event::Timespec::default();
        rustix::event::poll(&mut fds, Some(&now)).unwrap() > 0
    };
    assert!(!probe.has_ended().unwrap() && !is_raised(&probe));
    drop(root.stdin.take());
    root.wait().unwrap();
    assert!(is_raised(&probe));
    // The poll above has returned the event once; another poll sleeps until the child ends.
    assert!(!probe.has_ended().unwrap());
    assert!(!is_raised(&probe));
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    until("the child's end is signalled", || is_raised(&probe));
    assert!(probe.has_ended().unwrap());
}

#[test]
fn later_threads_are_counted_before_the_next_check_for_spinning() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = BurnProcess::start(&build(dir.path()), &["compute", "2", "2", "0"]);
    let home = home(program.pid(), None);
    let config = ProbeConfig {
        threads_every_ns: u64::MAX,
        ..ProbeConfig::default()
    };
    let mut probe = ProgramProbe::open(&home, config).unwrap();
    assert_eq!(probe.sample(0, 0.0).unwrap().threads, 3);
    program.go();
    let mut at_ns = 0;
    until("the children are counted", || {
        at_ns += 5_000_000;
        probe.sample(at_ns, 0.0).unwrap().threads == 5
    });
}

#[test]
fn stolen_time_is_subtracted() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = BurnProcess::start(&build(dir.path()), &["compute", "0", "0", "100"]);
    let group = TestCgroup::make("steal");
    if let Some(group) = &group {
        group.add(program.pid());
    }
    let home = home(program.pid(), group.as_ref());
    let mut probe = ProgramProbe::open(&home, ProbeConfig::default()).unwrap();
    program.go();
    until("it has ended", || probe.has_ended().unwrap());
    let sample = probe.sample(0, 0.25).unwrap();
    let known = program.cpu_time();
    assert!(
        close(sample.cpu_ns as f64 / 0.75, known),
        "{sample:?} {known:?}"
    );
}

/// Samples a program once per (artificial) second in which it used `each_ns` of CPU time, until
/// `enough` returns true for the number of samples and of spinners.
fn sample_until(probe: &mut ProgramProbe, each_ns: u64, enough: impl Fn(u32, u32) -> bool) {
    let (mut cpu_ns, mut samples) = (0, 0);
    until("enough samples were taken", || {
        // The sample only reads the CPU time, because checks for spinning are due once a second.
        let at_ns = u64::from(samples) * 1_000_000_000;
        let sample = probe.sample(at_ns, 0.0).unwrap();
        if sample.cpu_ns < cpu_ns + each_ns {
            return false;
        }
        (cpu_ns, samples) = (sample.cpu_ns, samples + 1);
        let sample = probe.sample(at_ns + 1_000_000_000, 0.0).unwrap();
        enough(samples, sample.spinners)
    });
}

/// Starts a program with two busy threads on one CPU and a waiting main thread; returns the program
/// and its probe.
fn on_one_cpu(program: &Path, how: &str) -> (BurnProcess, ProgramProbe) {
    let mut program = BurnProcess::start(program, &[how, "2", "0", "0"]);
    let mut cpus = rustix::thread::CpuSet::new();
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    cpus.set((0..1024).find(|&cpu| allowed.is_set(cpu)).unwrap());
    for task in std::fs::read_dir(format!("/proc/{}/task", program.pid())).unwrap() {
        let tid = task.unwrap().file_name().to_str().unwrap().parse().unwrap();
        let tid = rustix::thread::Pid::from_raw(tid);
        rustix::thread::sched_setaffinity(tid, &cpus).unwrap();
    }
    let home = home(program.pid(), None);
    let probe = ProgramProbe::open(&home, ProbeConfig::default()).unwrap();
    program.go();
    (program, probe)
}

#[test]
fn yielding_threads_are_spinners() {
    let dir = tempfile::tempdir().unwrap();
    let (_program, mut probe) = on_one_cpu(&build(dir.path()), "yield");
    sample_until(&mut probe, 20_000_000, |_, spinners| spinners == 2);
}

#[test]
fn computing_threads_are_not_spinners() {
    let dir = tempfile::tempdir().unwrap();
    let (_program, mut probe) = on_one_cpu(&build(dir.path()), "compute");
    sample_until(&mut probe, 400_000_000, |samples, spinners| {
        assert_eq!(spinners, 0);
        samples == 4
    });
}

#[test]
fn threads_that_poll_in_an_mpi_library_are_spinners() {
    let dir = tempfile::tempdir().unwrap();
    build(dir.path());
    let (_program, mut probe) = on_one_cpu(&dir.path().join("poll"), "poll");
    let seen = std::cell::Cell::new(0);
    sample_until(&mut probe, 400_000_000, |samples, spinners| {
        seen.set(spinners);
        spinners == 2 || samples == 8
    });
    match probe.take_warnings().as_slice() {
        [] => assert_eq!(seen.get(), 2),
        warned => usher_skip::skip!("{warned:?}"),
    }
}

#[test]
fn trusted_bytes_have_priority_over_cpu_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = BurnProcess::start(&build(dir.path()), &["compute", "0", "0", "20"]);
    let home = home(program.pid(), None);
    for trusted in [true, false] {
        let mut probe = ProgramProbe::open(&home, ProbeConfig::default()).unwrap();
        probe.count_bytes(trusted);
        let sample = probe.sample(0, 0.0).unwrap();
        assert_eq!(sample.progress.unwrap().source, ProgressSource::CpuTime);
        assert_eq!(
            probe.bytes(),
            Some(0),
            "nothing was read since the first sample"
        );
    }
    program.go();
    program.cpu_time();
}

#[test]
fn heartbeats_have_priority_and_a_broken_page_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = BurnProcess::start(&build(dir.path()), &["compute", "0", "0", "20"]);
    let page = usher_heartbeat::Page::create(&dir.path().join("page")).unwrap();
    let config = ProbeConfig {
        heartbeat: Some(page.path().to_owned()),
        ..ProbeConfig::default()
    };
    let home = home(program.pid(), None);
    let mut probe = ProgramProbe::open(&home, config.clone()).unwrap();
    let source = |probe: &mut ProgramProbe| {
        let progress = probe.sample(0, 0.0).unwrap().progress.unwrap();
        (progress.source, progress.total, progress.confidence)
    };
    assert_eq!(source(&mut probe).0, ProgressSource::CpuTime);
    let heart = usher_heartbeat::Heartbeat::open(page.path()).unwrap();
    let slot = heart.thread_slot().unwrap();
    assert_eq!(source(&mut probe).0, ProgressSource::Ompt);
    slot.release();
    heart.beat(5);
    assert_eq!(source(&mut probe), (ProgressSource::Heartbeat, 5.0, 1.0));
    // The program is managed again, as after the death of the daemon; earlier work does not count.
    let mut again = ProgramProbe::open(&home, config.clone()).unwrap();
    heart.beat(2);
    assert_eq!(source(&mut again), (ProgressSource::Heartbeat, 2.0, 1.0));
    drop(heart);
    std::fs::OpenOptions::new()
        .write(true)
        .open(page.path())
        .unwrap()
        .set_len(20)
        .unwrap();
    assert_eq!(source(&mut probe).0, ProgressSource::CpuTime);
    let warnings = probe.take_warnings();
    assert!(
        warnings.len() == 1 && warnings[0].contains("20 bytes"),
        "{warnings:?}"
    );
    let error = ProgramProbe::open(&home, config).unwrap_err().to_string();
    assert!(error.contains("20 bytes"), "{error}");
    program.go();
    program.cpu_time();
}
