// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest, in virtual time, that the scheduler enforces the limits and weights that
//! systemd sets: two containers and the slice of a user compute on two CPUs, first under the kernel's
//! own scheduler and then under Usher's. The check prints `usher status` and `systemd-cgtop` under
//! both, and `usher sched explain` for a throttled, a new and a migrated thread; `docs/sched.md` has
//! an excerpt of this output.
//!
//! | cgroup | runs in | limit | weight in its slice | weight of the slice |
//! |---|---|---|---|---|
//! | web | systemd-nspawn | 40 % | 100 | `machine.slice`: 300 |
//! | batch | podman | none | 200 | `machine.slice`: 300 |
//! | alice | `user-1000.slice` | 75 % | 100 | `user.slice`: 100 |
//!
//! The limit holds for web. The slices divide the two CPUs 3 to 1: 150 % to the containers, of which
//! batch gets the rest, 110 %, and 50 % to alice. With the weight 3,000 of `user.slice`, the limit
//! also holds for alice, and batch gets 85 %.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::containers::Runtime;
use crate::shell::{Shell, root};
use crate::state::{Program, SPIN, start_service_with, wait_for};

/// The CPUs of the first last-level cache, on which the containers and the user compute.
const CPUS: &str = "0-1";
/// Threads of each program.
const THREADS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);
/// Measured seconds under each scheduler.
const SECONDS: usize = 4;
/// Time after which a change of weights or of the scheduler has taken effect.
const SETTLES: Duration = Duration::from_secs(2);
/// Largest use of a limited cgroup, as a factor of its limit.
const MOST_OF_LIMIT: f64 = 1.01;
/// Largest difference of a cgroup's share from the expected share, as a factor.
const TOLERANCE: f64 = 0.1;
/// CPUs on which the cgroups compute.
const CPU_COUNT: f64 = 2.0;

/// A cgroup under test.
struct Part {
    name: &'static str,
    program: Program,
    path: PathBuf,
    /// CPUs that its limit permits.
    limit: Option<f64>,
}

impl Part {
    fn new(name: &'static str, program: Program, path: PathBuf, limit: Option<f64>) -> Self {
        Self {
            name,
            program,
            path,
            limit,
        }
    }

    /// Returns the CPU time of the cgroup in seconds.
    fn used(&self) -> f64 {
        let stat = fs::read_to_string(self.path.join("cpu.stat")).unwrap();
        let usage = stat
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "));
        usage.unwrap().parse::<f64>().unwrap() / 1e6
    }
}

/// Lets this much time pass. Returns the time that has passed.
fn pass(time: Duration) -> Duration {
    let began = Instant::now();
    while began.elapsed() < time {
        std::thread::park_timeout(time - began.elapsed().min(time));
    }
    began.elapsed()
}

/// Returns the program of a container or session with this number of threads.
fn spinning(name: &str, threads: usize) -> Program {
    let pid = wait_for(&format!("the program of {name}"), || {
        let found = root(&format!("pgrep -x -f '{SPIN} {threads} {name}'"));
        found.text.trim().parse().ok()
    });
    let program = Program { pid };
    program.has_threads(threads);
    program
}

/// Starts the two containers and the program of the user. The runners end with the shells.
fn start(system: &mut Shell, alice: &mut Shell) -> [Part; 3] {
    for (slice, weight) in [("machine", 300), ("user", 100)] {
        set(
            &format!("{slice}.slice"),
            &format!("CPUWeight={weight} AllowedCPUs={CPUS}"),
        );
    }
    set("user-1000.slice", "CPUQuota=75%");
    let spin = |name: &str| format!("{SPIN} {THREADS} {name}");
    system.start(&format!(
        "systemd-nspawn --quiet --register=no --as-pid2 --volatile=yes --directory=/ \
         --bind-ro=/usr/local --property=CPUQuota=40% --property=CPUWeight=100 --machine=web {}",
        spin("web")
    ));
    let podman = Runtime::limited(system, "--cgroup-conf=cpu.weight=200", &spin("batch"));
    system.start(&podman);
    alice.start(&format!("exec {}", spin("alice")));
    let [web, batch, user] = ["web", "batch", "alice"].map(|name| spinning(name, THREADS));
    let slice = Path::new("/sys/fs/cgroup/user.slice/user-1000.slice").to_owned();
    let (web_path, batch_path) = (unit_of(&web), unit_of(&batch));
    [
        Part::new("web", web, web_path, Some(0.4)),
        Part::new("batch", batch, batch_path, None),
        Part::new("alice", user, slice, Some(0.75)),
    ]
}

/// Returns the cgroup of a container's scope: the child of `machine.slice`.
fn unit_of(program: &Program) -> PathBuf {
    let path = program.cgroup();
    let mut all = path.ancestors();
    let slice = |path: &&Path| {
        path.parent()
            .is_some_and(|parent| parent.ends_with("machine.slice"))
    };
    all.find(slice).unwrap().to_owned()
}

fn set(unit: &str, properties: &str) {
    root(&format!(
        "systemctl set-property --runtime {unit} {properties}"
    ))
    .ok();
}

/// Measures the CPU time of each cgroup for some seconds, and checks the limits in each second.
/// Returns the CPU time per second.
fn shares(parts: &[Part; 3], under: &str) -> [f64; 3] {
    let mut sums = [0.0; 3];
    let mut seconds = 0.0;
    for second in 0..SECONDS {
        let before = parts.each_ref().map(Part::used);
        let elapsed = pass(SECOND).as_secs_f64();
        let used: Vec<f64> = parts
            .iter()
            .zip(before)
            .map(|(p, b)| p.used() - b)
            .collect();
        for (part, used) in parts.iter().zip(&used) {
            let Some(limit) = part.limit else { continue };
            // Time beyond a second may contain CPU time of a further period. The kernel's own
            // scheduler exceeds a limit by up to 1.1 %.
            let most = MOST_OF_LIMIT * limit + (elapsed - 1.0) * CPU_COUNT;
            let name = part.name;
            assert!(
                under != "usher" || *used <= most,
                "{under}: {name} used {used:.3} s in {elapsed:.3} s, second {second}"
            );
        }
        sums.iter_mut()
            .zip(used)
            .for_each(|(sum, used)| *sum += used);
        seconds += elapsed;
    }
    sums.map(|sum| sum / seconds)
}

/// Checks that the shares are the expected ones. The kernel's own scheduler divides a weight among
/// the CPUs of a cgroup by estimates, so that its shares are only printed.
fn check(shares: &[[f64; 3]; 2], expected: [f64; 3], parts: &[Part; 3], weight: u32) {
    println!("weight {weight} of user.slice, CPU use in per cent:");
    println!(
        "{:8} {:>6} {:>9} {:>6} {:>6}",
        "cgroup", "limit", "expected", "EEVDF", "usher"
    );
    let [eevdf, usher] = shares;
    for at in 0..parts.len() {
        let Part { name, limit, .. } = &parts[at];
        let limit = limit.map_or("max".to_owned(), |limit| format!("{:.0}", limit * 100.0));
        let [wanted, eevdf, usher] = [expected[at], eevdf[at], usher[at]].map(|cpus| cpus * 100.0);
        println!("{name:8} {limit:>6} {wanted:>9.0} {eevdf:>6.1} {usher:>6.1}");
    }
    for (share, wanted) in usher.iter().zip(expected) {
        assert!((share / wanted - 1.0).abs() < TOLERANCE, "{usher:?}");
    }
}

/// Prints a command as in a terminal, with its output.
fn show(command: &str) {
    println!("# {command}\n{}", root(command).ok());
}

fn show_both(under: &str) {
    println!("== under {under}");
    show("usher status");
    // The first of two iterations has no CPU usage.
    let text = root(
        "COLUMNS=100 systemd-cgtop --batch --iterations=2 --delay=3 --depth=3 --order=cpu | \
         awk '/^\\/ /{n++} n==2 && $3!=\"-\"'",
    );
    println!("# systemd-cgtop\n{}", text.ok());
}

/// Measures, prints and checks the shares with two weights of `user.slice`, under both schedulers.
pub fn limits_and_weights_hold_under_both_schedulers() {
    let (mut system, mut alice) = (Shell::of("root"), Shell::of("alice"));
    let parts = start(&mut system, &mut alice);
    // A policy that gives no seats.
    start_service_with("linux", "");
    for part in &parts {
        let (name, pid) = (part.name, part.program.pid);
        root(&format!("usher attach --name {name} {pid}")).ok();
    }
    let measured = ["EEVDF", "usher"].map(|under| {
        if under == "usher" {
            root("usher sched start").ok();
        }
        pass(SETTLES);
        let first = shares(&parts, under);
        show_both(under);
        set("user.slice", "CPUWeight=3000");
        pass(SETTLES);
        let second = shares(&parts, under);
        set("user.slice", "CPUWeight=100");
        [first, second]
    });
    let [eevdf, usher] = measured;
    check(&[eevdf[0], usher[0]], [0.4, 1.1, 0.5], &parts, 100);
    check(&[eevdf[1], usher[1]], [0.4, 0.85, 0.75], &parts, 3000);
    explain(&parts[0].program);
    root("usher sched stop").ok();
    drop(parts);
    for unit in ["machine.slice", "user.slice", "user-1000.slice"] {
        root(&format!("systemctl revert {unit}")).ok();
    }
}

/// Waits until the explanation of a process contains this text, and prints the explanation.
fn explain_when(what: &str, pid: i32, wanted: &str) {
    let text = wait_for(what, || {
        let text = root(&format!("usher sched explain {pid}")).text;
        text.contains(wanted).then_some(text)
    });
    println!("# usher sched explain {pid}    ({what})\n{text}");
}

fn explain(throttled: &Program) {
    let wanted = "the throttled threads of cgroup '/machine.slice/";
    explain_when("a throttled thread", throttled.pid, wanted);
    let mut system = Shell::of("root");
    system.start(&format!("exec {SPIN} 2 new"));
    let new = spinning("new", 2);
    explain_when("a new thread", new.pid, "new thread: started in LLC");
    drop(new);
    // More threads than CPUs on the two CPUs of the first cache; then all CPUs are permitted.
    system.start(&format!("exec taskset -c {CPUS} {SPIN} 6 moved"));
    let moved = spinning("moved", 6);
    root(&format!("taskset -a -p -c 0-3 {}", moved.pid)).ok();
    let wanted = "the CPU took the thread from a queue of another LLC";
    explain_when("a migrated thread", moved.pid, wanted);
}
