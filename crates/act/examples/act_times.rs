// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the time of each action of the actuator on this machine, first with cgroups, then
//! without: `cargo run --release -p usher-act --example act_times [ROUNDS [PAUSE_MS]]`.
//!
//! Each round admits, changes and releases a process that already runs, and then creates a process
//! in its seat. The program prints the median, the 99th percentile and the maximum of each action's
//! time in microseconds. The default is 100 rounds without a pause. With a pause before each round,
//! the first move into a cgroup waits for an RCU grace period, as it does on machines where
//! programs arrive rarely.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use usher_act::{ActConfig, Actuator, ForkResult, WorkClass};
use usher_model::{Action, CpuSet, Demotion, ProcessId, ProgramId};

type Times = BTreeMap<&'static str, Vec<f64>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let rounds: u64 = args.next().map_or(Ok(100), |arg| arg.parse())?;
    let pause = Duration::from_millis(args.next().map_or(Ok(0), |arg| arg.parse())?);
    println!(
        "durations of actions in microseconds: {rounds} rounds with pauses of {} ms",
        pause.as_millis()
    );
    for cgroups in ["/sys/fs/cgroup", "/nonexistent"] {
        let runtime = std::env::temp_dir().join(format!("act-times-{}", std::process::id()));
        let mut config = ActConfig::new(&runtime);
        config.cgroup_root = cgroups.into();
        let mut act = Actuator::open(config)?;
        let mut times = Times::new();
        for round in 0..rounds {
            moved_in(&mut act, ProgramId(2 * round), pause, &mut times)?;
            born_inside(&mut act, ProgramId(2 * round + 1), pause, &mut times)?;
        }
        report(&act.describe().placement.to_string(), &mut times);
        for error in act.undo_all() {
            eprintln!("{error}");
        }
        std::fs::remove_dir_all(&runtime)?;
    }
    Ok(())
}

/// Admits a running process, acts on it and releases it.
fn moved_in(
    act: &mut Actuator,
    program: ProgramId,
    pause: Duration,
    times: &mut Times,
) -> Result<(), Box<dyn Error>> {
    let mut child = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::null())
        .spawn()?;
    std::thread::sleep(pause);
    let root = id_of(child.id() as i32)?;
    let cpus = CpuSet::single(program.0 as u32 / 2 % 2);
    let to = Demotion::Idle;
    timed(times, "1 admit", || {
        act.admit(program, root, WorkClass::Foreground)
    })?;
    for (what, action) in [
        ("2 seat", Action::Seat { program, cpus }),
        ("3 freeze", Action::Freeze { program }),
        ("4 thaw", Action::Thaw { program }),
        ("4 freeze again", Action::Freeze { program }),
        ("4 thaw again", Action::Thaw { program }),
        ("5 release", Action::Release { program }),
        ("6 demote", Action::Demote { program, to }),
    ] {
        timed(times, what, || act.act(&action))?;
    }
    timed(times, "7 demote new threads", || {
        act.follow_demotion(program)
    })?;
    timed(times, "8 refresh", || act.refresh(program))?;
    timed(times, "9 depart, alive", || act.depart(program))?;
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Creates a process in its seat; the process ends at once.
fn born_inside(
    act: &mut Actuator,
    program: ProgramId,
    pause: Duration,
    times: &mut Times,
) -> Result<(), Box<dyn Error>> {
    std::thread::sleep(pause);
    let own = id_of(std::process::id() as i32)?;
    let cpus = CpuSet::single(0);
    let begin = Instant::now();
    let home = timed(times, "a prepare", || {
        act.prepare(program, own, WorkClass::Foreground)
    })?;
    timed(times, "b seat", || act.act(&Action::Seat { program, cpus }))?;
    let forked = timed(times, "c fork", || {
        // SAFETY: the child calls only `pause` and `_exit`, which are async-signal-safe.
        unsafe { home.fork() }
    })?;
    let ForkResult::Parent { child, pidfd } = forked else {
        // SAFETY: `pause` and `_exit` are async-signal-safe; a forked child may call them.
        unsafe {
            libc::pause();
            libc::_exit(0)
        }
    };
    timed(times, "d admit", || {
        act.admit(program, child, WorkClass::Foreground)
    })?;
    times
        .entry("e a to d")
        .or_default()
        .push(begin.elapsed().as_secs_f64() * 1e6);
    rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL)?;
    rustix::process::waitid(
        rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(&pidfd)),
        rustix::process::WaitIdOptions::EXITED,
    )?;
    timed(times, "f depart, dead", || act.depart(program))?;
    Ok(())
}

fn timed<T>(times: &mut Times, what: &'static str, act: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = act();
    times
        .entry(what)
        .or_default()
        .push(begin.elapsed().as_secs_f64() * 1e6);
    result
}

fn id_of(pid: i32) -> Result<ProcessId, Box<dyn Error>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(") ").ok_or("no name")?.1;
    let start = after_name.split(' ').nth(19).ok_or("no start time")?;
    Ok(ProcessId {
        pid,
        start_ticks: start.parse()?,
    })
}

fn report(placement: &str, times: &mut Times) {
    println!("\n{placement:32} {:>9} {:>9} {:>9}", "median", "p99", "max");
    for (what, times) in times {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
        println!(
            "  {what:30} {:9.0} {:9.0} {:9.0}",
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}
