// SPDX-License-Identifier: GPL-2.0-only
//! The list of small guests (kernel and busybox) with their kernels and machines, and the checks
//! that run in each.
//!
//! Each guest is one test (`Trial`) on the host. A guest that ends early because the host is
//! starved is started once more. `make test` runs the short list; `make lab` runs every kernel on
//! every machine, and minutes of stress. Guest time is counted by instructions where time limits
//! matter, because a busy host may give a guest too little time.

use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use usher_lab::kernels::{self, KernelChoice};
use usher_lab::{Clock, GuestEnd, GuestOutcome, IdleTime, LabCache, Streams, Vm};

use crate::{MACHINE, large, soak};

/// Time limit for all checks of one guest, on a host with other work.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Time limit for minutes of stress and for guests with many CPUs, which are slow on the host.
const STRESS_TIMEOUT: Duration = Duration::from_secs(2 * 3600);
/// Time of the host per guest time in the soak check, on a host with other work.
const SOAK_FACTOR: u32 = 8;

/// Locked while a guest prints, so that guests print one after another.
static PRINTING: Mutex<()> = Mutex::new(());

struct Boot {
    name: &'static str,
    machine: &'static str,
    kernel: KernelChoice,
    /// Guest time per instruction in nanoseconds. Usher's processes must answer within ten seconds,
    /// a time that a busy host may not give to a guest. Guest time that is counted by instructions
    /// passes only while the guest runs; at 4 ns per instruction it passes about as fast as on an
    /// idle host. Waits for the host's files take the host's time.
    instruction_ns: u32,
    /// Prefixes of the names of the checks that run.
    checks: &'static [&'static str],
}

/// Prefixes of all checks about seats. Background work is not among them, because it is the same on
/// any machine.
const SEATING: &[&str] = &["machine::", "seats::", "hotplug::", "crash::"];
const SEATING_AND_SCHED: &[&str] = &[
    "machine::",
    "seats::",
    "hotplug::",
    "crash::",
    "meter::",
    "sched::",
    "softly::",
    "weights::",
    "quotas::",
];
const SCHED: &[&str] = &["meter::", "sched::", "weights::", "quotas::"];
/// Checks that each BPF program loads and does its main work. `make lab` runs the other checks.
const SCHED_SHORT: &[&str] = &[
    "meter::",
    "sched::runs_many_threads",
    "sched::new_threads_are_divided",
    "sched::follows_the_cpus",
    "sched::keeps_seats",
    "weights::",
    "quotas::",
];
/// Checks of the scheduler's life on a host, which wait for the kernel's watchdog.
const LIFE: &[&str] = &["life::"];
const STRESS: &[&str] = &["stress::"];
/// Checks of the build for CPU numbers from 64 on. The first check brings such CPUs online.
const LARGE: &[&str] = &["large::"];
const LARGE_SEATS: &[&str] = &[
    "large::late_cpus",
    "sched::keeps_seats",
    "sched::exchanged_seats",
    "weights::",
    "quotas::",
];
/// An hour of random events.
const SOAK: &[&str] = &["soak::"];
const PAPER: &str = "package:4 die:2 core:6 pu:1";

/// Returns the guests of `make test` and of `make lab`.
pub fn all() -> Vec<Trial> {
    let quick = [
        // The guest with the longest checks starts first, so that no CPU is idle at the end.
        Boot {
            name: "quick::sched_newest",
            // The emulator runs all busy CPUs on one CPU of the host: no more than the checks need.
            machine: "package:2 [numa:1] core:1 pu:2",
            kernel: KernelChoice::Newest,
            instruction_ns: 1,
            checks: SCHED,
        },
        Boot {
            name: "quick::dies",
            machine: "package:2 die:2 core:2 pu:1",
            kernel: KernelChoice::Newest,
            instruction_ns: 4,
            checks: SEATING,
        },
        Boot {
            name: "quick::hardware_threads",
            machine: "package:2 [numa:1] core:2 pu:2",
            kernel: KernelChoice::Oldest,
            instruction_ns: 4,
            checks: SEATING,
        },
        Boot {
            name: "quick::forty_eight",
            machine: PAPER,
            kernel: KernelChoice::Newest,
            instruction_ns: 4,
            checks: &["machine::", "seats::", "crash::without"],
        },
        Boot {
            name: "quick::sched_oldest",
            machine: "package:2 core:1 pu:2",
            kernel: KernelChoice::Oldest,
            instruction_ns: 1,
            checks: SCHED_SHORT,
        },
        Boot {
            name: "quick::sched_life",
            machine: "core:2",
            kernel: KernelChoice::Newest,
            // The watchdog waits for seconds in which a CPU computes.
            instruction_ns: 4,
            checks: LIFE,
        },
        Boot {
            name: "quick::background",
            machine: "core:2",
            kernel: KernelChoice::Newest,
            // Guest time passes slowly in this guest, because the kernel verifies BPF programs
            // before the daemon can answer in time.
            instruction_ns: 1,
            checks: &["background::"],
        },
    ];
    quick.into_iter().chain(long()).map(trial).collect()
}

/// Returns guests with every available kernel on every machine.
fn long() -> Vec<Boot> {
    let cache = LabCache::open(
        std::env::var_os("USHER_LAB_CACHE")
            .as_deref()
            .map(AsRef::as_ref),
    );
    let kernels = cache.and_then(|cache| kernels::cached(&cache)).unwrap();
    let machines = [
        ("dies", "package:2 die:2 core:2 pu:1"),
        ("hardware_threads", "package:2 [numa:1] core:2 pu:2"),
        ("forty_eight", PAPER),
        (
            "forty_eight_threads",
            "package:2 [numa:1] die:2 core:6 pu:2",
        ),
        ("two", "core:2"),
    ];
    let boot = |kernel: &kernels::Kernel, (name, machine): (&str, &'static str)| {
        let series = kernel.series().replace('.', "_");
        let (instruction_ns, checks): (_, &'static [&'static str]) = match machine {
            "core:2" => (1, &["machine::", "background::"]),
            PAPER => (4, SEATING),
            _ => (4, SEATING_AND_SCHED),
        };
        Boot {
            name: format!("long::{name}_on_{series}").leak(),
            machine,
            kernel: KernelChoice::Named(kernel.release.clone()),
            instruction_ns,
            checks,
        }
    };
    let pairs = kernels
        .iter()
        .flat_map(|kernel| machines.map(|machine| boot(kernel, machine)));
    pairs
        .chain(kernels.iter().map(life))
        .chain(stress())
        .chain(large())
        .chain([soak()])
        .collect()
}

/// Returns a guest for the checks of the scheduler's life under a kernel.
fn life(kernel: &kernels::Kernel) -> Boot {
    let series = kernel.series().replace('.', "_");
    Boot {
        name: format!("long::life_on_{series}").leak(),
        machine: "core:2",
        kernel: KernelChoice::Named(kernel.release.clone()),
        instruction_ns: 4,
        checks: LIFE,
    }
}

/// Returns guests for minutes of stress, under two kernels on three machines.
fn stress() -> impl Iterator<Item = Boot> {
    let machines = [
        ("two", "core:2", 16),
        ("hardware_threads", "package:2 core:2 pu:2", 8),
        // 4 ns per instruction: with more instructions per second of guest time, 48 CPUs would only
        // handle their ticks.
        ("forty_eight", PAPER, 4),
    ];
    let kernels = [
        ("oldest", KernelChoice::Oldest),
        ("newest", KernelChoice::Newest),
    ];
    kernels.into_iter().flat_map(move |(word, kernel)| {
        machines.map(|(name, machine, instruction_ns)| Boot {
            name: format!("long::stress_{name}_on_{word}").leak(),
            machine,
            kernel: kernel.clone(),
            instruction_ns,
            checks: STRESS,
        })
    })
}

/// Returns guests with CPU numbers from 64 on.
fn large() -> [Boot; 2] {
    let boot = |name, checks| Boot {
        name,
        machine: large::MACHINE,
        kernel: KernelChoice::Newest,
        instruction_ns: 4,
        checks,
    };
    [
        boot("long::large", LARGE),
        boot("long::large_seats", LARGE_SEATS),
    ]
}

/// Returns a guest for an hour of random events.
fn soak() -> Boot {
    Boot {
        name: "long::soak",
        // The instructions of each second of guest time are divided among the busy CPUs: with more
        // CPUs, a start of the scheduler takes minutes of guest time.
        machine: "package:2 core:1 pu:2",
        kernel: KernelChoice::Newest,
        // An hour of guest time takes about an hour on an idle host. With less instructions per
        // second of guest time, a start of the scheduler takes minutes.
        instruction_ns: 4,
        checks: SOAK,
    }
}

fn trial(boot: Boot) -> Trial {
    Trial::test(boot.name, move || {
        let outcome = match run(&boot)? {
            // The guest is started once more: a starved host can end a guest, whereas a fault of
            // Usher's ends the second guest too.
            GuestOutcome {
                end: GuestEnd::Died,
                console,
                ..
            } => {
                eprintln!(
                    "{}: the guest died and is started once more:\n{console}",
                    boot.name
                );
                run(&boot)?
            }
            outcome => outcome,
        };
        match outcome.end {
            GuestEnd::Exited { status: 0 } => Ok(()),
            end => Err(Failed::from(format!(
                "{end:?} on {}\n{}",
                outcome.kernel, outcome.console
            ))),
        }
    })
}

fn run(boot: &Boot) -> Result<GuestOutcome, Failed> {
    let mut vm = Vm::new(boot.machine)?;
    vm.kernel = boot.kernel.clone();
    vm.timeout = match boot.checks {
        STRESS | LARGE | LARGE_SEATS => STRESS_TIMEOUT,
        SOAK => SOAK_FACTOR * soak::duration() + TIMEOUT,
        _ => TIMEOUT,
    };
    vm.clock = Clock::Instructions {
        ns: boot.instruction_ns,
        idle: IdleTime::Waits,
    };
    vm.append = match boot.checks {
        // All messages of the kernel are kept until the end.
        SOAK => "log_buf_len=16M",
        LARGE | LARGE_SEATS => large::KERNEL_WORDS,
        _ => "",
    }
    .to_owned();
    vm.environment = vec![(MACHINE.to_owned(), boot.machine.to_owned())];
    vm.cache = std::env::var_os("USHER_LAB_CACHE").map(Into::into);
    let mut command = vec![std::env::current_exe()?.display().to_string()];
    command.push("--test-threads=1".to_owned());
    let names = super::checks(boot.machine);
    let names = names.iter().map(|check| check.name().to_owned());
    let mut skipped = names.filter(|name| !boot.checks.iter().any(|part| name.starts_with(part)));
    skipped
        .by_ref()
        .for_each(|name| command.extend(["--skip".to_owned(), name]));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (mut stdout, mut stderr) = (std::io::stdout(), std::io::stderr());
    let streams: (&mut dyn Write, &mut dyn Write) = match boot.checks {
        // Its progress is printed at once.
        SOAK => (&mut stdout, &mut stderr),
        _ => (&mut out, &mut err),
    };
    let outcome = vm.run(
        &command,
        &mut Streams {
            out: streams.0,
            err: streams.1,
            console: None,
            interrupt: None,
        },
    );
    let _printing = PRINTING.lock();
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "== {} with {}:", boot.name, boot.machine)?;
    stdout.write_all(&out)?;
    stdout.write_all(&err)?;
    let outcome = outcome?;
    writeln!(
        stdout,
        "== up in {} ms, checked in {} ms",
        outcome.boot_ms, outcome.ran_ms
    )?;
    Ok(outcome)
}
