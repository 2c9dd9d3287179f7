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

use serde_json::Value;

use crate::containers::Runtime;
use crate::shell::{Shell, root};
use crate::state::{Program, SPIN, wait_for};

/// The CPUs of the first last-level cache, on which the containers and the user compute.
const CPUS: &str = "0-1";
/// Threads of each program.
const THREADS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);
/// Measured seconds under each scheduler.
const SECONDS: usize = 5;
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

/// Waits until this much time has passed. Returns the time that has passed.
fn pass(time: Duration) -> Duration {
    let began = Instant::now();
    wait_for("time to pass", || {
        (began.elapsed() >= time).then(|| began.elapsed())
    })
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

/// Measures the CPU time of each cgroup for some seconds. Checks the limits in each second and the
/// expected shares over all seconds. Returns the shares in CPUs.
fn check_shares(parts: &[Part; 3], expected: [f64; 3], under: &str) {
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
            // Time beyond a second may contain CPU time of a further period.
            let most = MOST_OF_LIMIT * limit + (elapsed - 1.0) * CPU_COUNT;
            let name = part.name;
            assert!(
                *used <= most,
                "{under}: {name} used {used:.3} s of {limit} in second {second}"
            );
        }
        sums.iter_mut()
            .zip(used)
            .for_each(|(sum, used)| *sum += used);
        seconds += elapsed;
    }
    let shares = sums.map(|sum| sum / seconds);
    let rows = parts.iter().zip(shares).zip(expected);
    let rows: Vec<String> = rows
        .map(|((part, share), wanted)| {
            format!(
                "{} {:.1} % ({:.0} %)",
                part.name,
                share * 100.0,
                wanted * 100.0
            )
        })
        .collect();
    println!("under {under}, measured (expected): {}", rows.join(", "));
    for (share, wanted) in shares.iter().zip(expected) {
        assert!(
            (share / wanted - 1.0).abs() < TOLERANCE,
            "{under}: {}",
            rows.join(", ")
        );
    }
}

/// Prints a command as in a terminal, with its output.
fn show(command: &str) -> String {
    let text = root(command).ok();
    println!("# {command}\n{text}");
    text
}

fn show_both() {
    show("usher status");
    // The first of two iterations has no CPU usage.
    show(
        "systemd-cgtop --batch --iterations=2 --delay=3 --depth=3 --order=cpu | \
          awk '/^\\/ /{n++} n==2 && $3!=\"-\"' | cut -c1-78",
    );
}

pub fn limits_and_weights_hold_under_both_schedulers() {
    let (mut system, mut alice) = (Shell::of("root"), Shell::of("alice"));
    let parts = start(&mut system, &mut alice);
    root("systemctl start usher").ok();
    for part in &parts {
        root(&format!(
            "usher attach --name {} {}",
            part.name, part.program.pid
        ))
        .ok();
    }
    for under in ["EEVDF", "usher"] {
        if under == "usher" {
            root("usher sched start").ok();
        }
        pass(SETTLES);
        check_shares(&parts, [0.4, 1.1, 0.5], under);
        show_both();
        set("user.slice", "CPUWeight=3000");
        pass(SETTLES);
        check_shares(&parts, [0.4, 0.85, 0.75], under);
        set("user.slice", "CPUWeight=100");
    }
    explain(&parts[0].program);
    root("usher sched stop").ok();
    drop(parts);
    for unit in ["machine.slice", "user.slice", "user-1000.slice"] {
        root(&format!("systemctl revert {unit}")).ok();
    }
}

/// Waits until a thread of the process satisfies the condition, and prints the explanation.
fn explain_when(what: &str, pid: i32, is_wanted: impl Fn(&Value) -> bool) {
    wait_for(what, || {
        let answer = root(&format!("usher sched explain --json {pid}"));
        let answer: Value = serde_json::from_str(&answer.text).ok()?;
        let threads = answer["processes"][0]["threads"].as_array()?;
        if !threads.iter().any(&is_wanted) {
            return None;
        }
        let text = root(&format!("usher sched explain {pid}")).text;
        println!("# usher sched explain {pid}    ({what})\n{text}");
        Some(())
    });
}

fn explain(throttled: &Program) {
    explain_when("a throttled thread", throttled.pid, |thread| {
        thread["waits"]["throttled"].is_object() && thread["throttled_by"].is_string()
    });
    let mut system = Shell::of("root");
    system.start(&format!("exec {SPIN} 1 new"));
    let new = spinning("new", 1);
    explain_when("a new thread", new.pid, |thread| {
        let placed = thread["placed"].as_str().unwrap_or_default();
        placed.starts_with("new-") && thread["why"] != "unknown"
    });
    // Three threads on the two CPUs of the first cache; then the other CPUs, of which one is idle,
    // are permitted, too.
    system.start(&format!("exec taskset -c {CPUS} {SPIN} 3 moved"));
    let moved = spinning("moved", 3);
    root(&format!("taskset -a -p -c 0-3 {}", moved.pid)).ok();
    explain_when("a migrated thread", moved.pid, |thread| {
        thread["why"] == "stolen"
    });
}
