// SPDX-License-Identifier: GPL-2.0-only
//! Runs a command under the scheduler, or under the kernel's own, and prints the counters of both
//! as JSON:
//!
//!   hold usher|smt|aggregate|plain|fifo|o1|cure|kernel CMD…

use std::process::{Command, ExitCode};

use usher_scx::{Counter, Kernel, Scheduler, Settings};
use usher_topology::Source;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let mode = args.next().unwrap_or_default();
    match hold(&mode, args.collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hold: {error}");
            let mut cause = error.source();
            while let Some(why) = cause {
                eprintln!("hold: {why}");
                cause = why.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn settings(mode: &str) -> Option<Settings> {
    let (smt, aggregate, fifo) = match mode {
        "usher" => (true, true, false),
        "smt" => (true, false, false),
        "aggregate" => (false, true, false),
        "plain" => (false, false, false),
        "fifo" => (false, false, true),
        "o1" | "cure" => return Some(Settings::of_linux_26(mode == "cure")),
        _ => return None,
    };
    Some(Settings {
        smt,
        aggregate,
        fifo,
        ..Settings::default()
    })
}

fn hold(mode: &str, command: Vec<String>) -> Result<(), Box<dyn std::error::Error>> {
    let kernel = Kernel::at("/sys".as_ref());
    let hotplug_seq = kernel.hotplug_seq()?;
    let machine = usher_topology::load(Source::ThisMachine)?;
    let scheduler = settings(mode)
        .map(|settings| Scheduler::start(&kernel, hotplug_seq, &machine, &settings))
        .transpose()?;
    let counter = Counter::start(&machine)?;
    let before = counter.read()?;
    let (program, rest) = command.split_first().ok_or("give a command to run")?;
    let status = Command::new(program).args(rest).status()?;
    let counted = counter.read()?.since(&before);
    println!("{status}; {:?}", kernel.state()?);
    println!("{counted:?}");
    println!(
        "wake-up latency in ns: median below {:?}, 99th percentile below {:?}",
        counted.latency_below_ns(0.5),
        counted.latency_below_ns(0.99)
    );
    if let Some(scheduler) = scheduler {
        println!(
            "{:?}",
            usher_scx::SchedulerHandle::open(&scheduler.map_ids()?).and_then(|held| held.tally())?
        );
        if let Some(ending) = scheduler.ending()? {
            println!("{} {}\n{}", ending.reason, ending.message, ending.dump);
        }
    }
    Ok(())
}
