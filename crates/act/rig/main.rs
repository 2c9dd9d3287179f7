// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes that the tests of `usher-act` act on and kill: a keeper, an owner that acts at
//! random, and programs of several shapes. The first argument selects the process. Each of the
//! programs prints `ready` when its processes and threads have started, and runs until its standard
//! input ends or the test kills it.

#![allow(clippy::expect_used)] // a test with invalid arguments must fail

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use usher_act::keeper::{self, KeeperHandle, KeeperTask};
use usher_act::{ActConfig, Actuator, WorkClass};
use usher_model::{Action, CpuSet, Demotion, ProcessId, ProgramId};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let command = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    let done = match command.to_string_lossy().as_ref() {
        "keeper" => KeeperTask::from_args(args).and_then(|task| keeper::run(&task)),
        "owner" => owner(args),
        "respawner" => respawner(args),
        "demoter" => demoter(args),
        "tree" => tree(number(&args, 0), number(&args, 1)),
        "storm" => storm(number(&args, 0)),
        "spawner" => spawner(),
        "pinned" => pinned(),
        "ending" => ending(),
        "pinner" => pinner(number(&args, 0)),
        other => unreachable!("no such part: {other}"),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rig: {error}");
            ExitCode::FAILURE
        }
    }
}

fn number(args: &[OsString], at: usize) -> u64 {
    args[at].to_string_lossy().parse().expect("a number")
}

/// Arguments `CONFIG_RUNTIME CGROUP_ROOT SEED PID-START…`: admits each process `PID-START` as a
/// launched or attached program, and applies random actions to these programs until a test kills
/// this process.
fn owner(args: Vec<OsString>) -> Result<(), usher_act::ActError> {
    let mut config = ActConfig::new(&args[0]);
    config.cgroup_root = args[1].clone().into();
    let mut random = Random(number(&args, 2) | 1);
    let roots: Vec<ProcessId> = args[3..].iter().map(process).collect();
    let mut act = Actuator::open(config)?;
    let exe = std::env::current_exe().expect("a path");
    let task = KeeperTask::of(&act, Vec::new())?;
    let mut keeper = KeeperHandle::spawn(&exe, &["keeper".into()], task)?;
    println!("{}", act.instance_dir().display());
    let all = cpus_of_this_process();
    loop {
        // A test may kill the keeper; the owner replaces it.
        keeper.replace()?;
        let which = random.below(roots.len() as u64);
        let program = ProgramId(which);
        if act.home(program).is_none() {
            let work = [WorkClass::Foreground, WorkClass::Background][random.below(2) as usize];
            if random.below(4) > 0 {
                act.prepare_held(program, roots[which as usize], work)?;
            }
            act.admit(program, roots[which as usize], work)?;
            continue;
        }
        let cpu = all.iter().nth(random.below(all.len() as u64) as usize);
        let cpus = CpuSet::single(cpu.expect("a CPU"));
        let to = [Demotion::Nice, Demotion::Idle, Demotion::Idle][random.below(3) as usize];
        match random.below(28) {
            24..28 => {
                let cpus = (random.below(3) > 0).then_some(&cpus);
                act.place_copy(program, roots[which as usize], cpus)?;
            }
            0..6 => act.act(&Action::Seat { program, cpus })?,
            6..8 => act.act(&Action::Release { program })?,
            8..11 => act.act(&Action::Freeze { program })?,
            11..14 => act.act(&Action::Thaw { program })?,
            14..16 => act.refresh(program)?,
            16..22 => act.act(&Action::Demote { program, to })?,
            _ => act.depart(program)?,
        }
    }
}

/// Arguments `RUNTIME COMMAND…`: waits for the end of its standard input, and then exits in an
/// orderly way. If the process is killed before, its keeper executes `COMMAND`.
fn respawner(args: Vec<OsString>) -> Result<(), usher_act::ActError> {
    let mut act = Actuator::open(ActConfig::new(&args[0]))?;
    let exe = std::env::current_exe().expect("a path");
    let task = KeeperTask::of(&act, args[1..].to_vec())?;
    let _keeper = KeeperHandle::spawn(&exe, &["keeper".into()], task)?;
    println!("{}", act.instance_dir().display());
    let _ = io::stdin().read_to_end(&mut Vec::new());
    assert!(act.undo_all().is_empty());
    Ok(())
}

/// Arguments `RUNTIME PID-START`: admits and demotes the process `PID-START`, prints the gaps of
/// the demotion and then `ready`, and undoes the demotion when standard input ends.
fn demoter(args: Vec<OsString>) -> Result<(), usher_act::ActError> {
    let mut act = Actuator::open(ActConfig::new(&args[0]))?;
    let program = ProgramId(0);
    act.prepare_held(program, process(&args[1]), WorkClass::Background)?;
    act.admit(program, process(&args[1]), WorkClass::Background)?;
    let to = Demotion::Idle;
    act.act(&Action::Demote { program, to })?;
    // The kernel accepts only one write to an autogroup per 100 ms from all unprivileged users of
    // the machine together. Writes of other users may use up several such periods. Therefore the
    // demotion is repeated for 1 s.
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        act.refresh(program)?;
        std::thread::yield_now();
    }
    for reason in act.demotion_gaps(program) {
        println!("{reason}");
    }
    live()?;
    assert!(act.undo_all().is_empty());
    Ok(())
}

fn process(arg: &OsString) -> ProcessId {
    let text = arg.to_string_lossy();
    let (pid, start) = text.split_once('-').expect("PID-START");
    ProcessId {
        pid: pid.parse().expect("a pid"),
        start_ticks: start.parse().expect("a start time"),
    }
}

fn cpus_of_this_process() -> CpuSet {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.expect("a list").parse().expect("a CPU list")
}

/// A process whose main thread has ended. The second thread of the process needs 100 ms for its end
/// after standard input has ended, as a thread that closes files would.
fn ending() -> ! {
    std::thread::spawn(|| {
        let state = |stat: String| {
            stat.rsplit(')')
                .next()
                .map(|rest| rest.trim().as_bytes()[0])
        };
        while std::fs::read_to_string("/proc/self/stat")
            .map(state)
            .expect("procfs")
            != Some(b'Z')
        {
            std::thread::yield_now();
        }
        let _ = live();
        std::thread::sleep(Duration::from_millis(100));
        // SAFETY: `_exit` ends the process without the destructors of the main thread, which is
        // gone.
        unsafe { libc::_exit(0) }
    });
    loop {
        // SAFETY: the system call ends the calling thread, which holds no lock.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// The random number generator xorshift64. The sequence of numbers is a function of the seed, so
/// that a test can repeat a run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Prints `ready` and waits for the end of standard input.
fn live() -> Result<(), usher_act::ActError> {
    println!("ready");
    io::stdout().flush().expect("a pipe");
    let _ = io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}

fn sleep_until_killed() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Forks; returns `true` in the child. The child ends at the latest when the test kills the process
/// group.
fn fork() -> bool {
    // SAFETY: this process has only one thread at this point; the child inherits no lock of another
    // thread.
    unsafe { libc::fork() == 0 }
}

/// A process with `children` children, each with `threads` extra threads.
fn tree(children: u64, threads: u64) -> Result<(), usher_act::ActError> {
    let (mut complete, is_complete) = io::pipe().expect("a pipe");
    for _ in 0..children {
        if fork() {
            for _ in 0..threads {
                std::thread::spawn(|| sleep_until_killed());
            }
            (&is_complete).write_all(b"x").expect("a pipe");
            sleep_until_killed();
        }
    }
    for _ in 0..threads {
        std::thread::spawn(|| sleep_until_killed());
    }
    let mut ready = vec![0; children as usize];
    complete.read_exact(&mut ready).expect("a pipe");
    live()
}

/// Forks for ever, `width` children per round. Each child forks once more and ends at once, so that
/// its own child is an orphan, which lives for ten rounds. The pauses leave time for the machine's
/// init process, which must reap all these orphans.
fn storm(width: u64) -> Result<(), usher_act::ActError> {
    // The kernel kills this process with its parent, because the test that should end this process
    // may be killed first.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .expect("a signal");
    println!("ready");
    io::stdout().flush().expect("a pipe");
    loop {
        for _ in 0..width {
            if fork() {
                if fork() {
                    std::thread::sleep(Duration::from_millis(50));
                }
                // SAFETY: `_exit` may be called in a forked child, and ends only this child.
                unsafe { libc::_exit(0) };
            }
        }
        // SAFETY: `waitpid` reaps children that have ended; a null pointer as its second argument
        // is valid, and means that the caller needs no exit status.
        while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a chain of threads without end: each thread runs briefly, starts the next thread and
/// ends.
fn spawner() -> Result<(), usher_act::ActError> {
    fn generation() {
        std::thread::sleep(Duration::from_millis(2));
        std::thread::spawn(generation);
    }
    for _ in 0..4 {
        std::thread::spawn(generation);
    }
    live()
}

/// A process with a second thread that has pinned itself to the last CPU.
fn pinned() -> Result<(), usher_act::ActError> {
    let last = cpus_of_this_process().last().expect("a CPU");
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        pin_to(&CpuSet::single(last));
        send.send(()).expect("a receiver");
        sleep_until_killed();
    });
    receive.recv().expect("a sender");
    live()
}

/// A process with `threads` threads besides its main thread. For each line `N CPUS` on standard
/// input, thread N (0 is the main thread) sets its affinity mask to `CPUS`; the process then prints
/// the line as a confirmation.
fn pinner(threads: u64) -> Result<(), usher_act::ActError> {
    let (done, is_done) = std::sync::mpsc::channel();
    let mut others = Vec::new();
    for _ in 0..threads {
        let (send, receive) = std::sync::mpsc::channel::<CpuSet>();
        let done = done.clone();
        std::thread::spawn(move || {
            for cpus in receive {
                pin_to(&cpus);
                done.send(()).expect("a receiver");
            }
            sleep_until_killed();
        });
        others.push(send);
    }
    println!("ready");
    for line in io::stdin().lines() {
        let line = line.expect("a line");
        let (thread, cpus) = line.split_once(' ').expect("N CPUS");
        let cpus: CpuSet = cpus.parse().expect("a CPU list");
        match thread.parse::<usize>().expect("a number") {
            0 => pin_to(&cpus),
            n => {
                others[n - 1].send(cpus).expect("a thread");
                is_done.recv().expect("a thread");
            }
        }
        println!("{line}");
        io::stdout().flush().expect("a pipe");
    }
    Ok(())
}

/// Sets the affinity mask of the calling thread.
fn pin_to(cpus: &CpuSet) {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(cpu as usize));
    rustix::thread::sched_setaffinity(None, &set).expect("its own affinity");
}
