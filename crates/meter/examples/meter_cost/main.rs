// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the cost of metering: the duration of a context switch with and without the meter, the
//! run time of each BPF program as the kernel measures it, and the duration of a sample.
//!
//!     cargo run --release -p usher-meter --example meter_cost [PAIRS] [FILE.json]
//!
//! If the environment variable USHER_METER_CGROUP is set, it must be the directory of a cgroup
//! (v2), which is then metered as a background program.
//!
//! The cost of a context switch is the CPU time of two threads on one CPU that exchange a
//! byte through pipes. Each of the PAIRS rounds (default 200) measures all variants and begins with
//! another variant. Each variant is compared with the variant "nothing" of the same round, so that
//! changes of the machine's speed affect all variants equally. The report is printed as JSON, and
//! also written to FILE.json if given.

mod switch;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command, ExitCode};
use std::sync::mpsc::channel;
use std::time::Instant;

use serde_json::{Value, json};
use switch::{SwitchHook, SwitchKind};
use usher_meter::{Meter, MeterConfig, ProgramCost, enable_bpf_stats};
use usher_model::{MeterSource, ProcessId, ProgramId};

const PASSES: u32 = 10_000;
const SAMPLES: usize = 300;
const VARIANTS: [&str; 4] = [
    "nothing",
    "meter",
    "switch hook",
    "empty hook of sched_switch",
];

type BoxedError = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let pairs = args
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(200);
    match run(pairs) {
        Ok(report) => {
            let text = format!("{report:#}");
            println!("{text}");
            let written = args.next().map(|path| std::fs::write(path, text));
            ExitCode::from(u8::from(written.is_some_and(|written| written.is_err())))
        }
        Err(error) => {
            eprintln!("meter_cost: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(pairs: usize) -> Result<Value, BoxedError> {
    let switches = switches(pairs)?;
    let programs = programs()?;
    let samples: Vec<Value> = [100, 500, 2000]
        .into_iter()
        .map(samples)
        .collect::<Result<_, _>>()?;
    Ok(json!({ "pairs": pairs, "switch": switches, "programs": programs, "samples": samples }))
}

/// The BPF programs that are attached while a context switch is timed. The BPF programs are
/// detached when the value is dropped.
#[derive(Debug)]
#[expect(
    dead_code,
    reason = "kept alive so that the BPF programs stay attached"
)]
enum Attached {
    Nothing,
    Meter(Box<Meter>),
    Hook(SwitchHook),
}

fn attach(variant: &str) -> Result<Attached, BoxedError> {
    Ok(match variant {
        "meter" => Attached::Meter(Box::new(by_bpf()?)),
        "switch hook" => Attached::Hook(SwitchHook::attach(SwitchKind::Counting)?),
        "empty hook of sched_switch" => Attached::Hook(SwitchHook::attach(SwitchKind::Empty)?),
        _ => Attached::Nothing,
    })
}

fn by_bpf() -> Result<Meter, BoxedError> {
    let mut meter = Meter::open(&MeterConfig::default());
    if meter.source() != MeterSource::Bpf {
        return Err(meter.reasons().join("; ").into());
    }
    // Registers a background program, because the BPF programs search a thread's cgroup only if
    // there is a background program.
    if let Some(cgroup) = std::env::var_os("USHER_METER_CGROUP") {
        let root = ProcessId {
            pid: 1,
            start_ticks: 0,
        };
        meter.manage(ProgramId(1), Some(cgroup.as_ref()), root)?;
    }
    Ok(meter)
}

fn switches(pairs: usize) -> Result<Value, BoxedError> {
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); VARIANTS.len()];
    for pair in 0..pairs {
        for at in 0..VARIANTS.len() {
            let variant = (pair + at) % VARIANTS.len();
            let attached = attach(VARIANTS[variant])?;
            times[variant].push(switch_ns()?);
            drop(attached);
        }
    }
    let compared = |variant: usize| {
        let both = || times[variant].iter().zip(&times[0]);
        let differences: Vec<f64> = both().map(|(with, without)| with - without).collect();
        let ratios: Vec<f64> = both().map(|(with, without)| with / without).collect();
        eprintln!(
            "{:18} {:7.0} ns per switch, {:+6.1} ns {:?}, ratio {:.4} {:?}",
            VARIANTS[variant],
            median(&times[variant]),
            median(&differences),
            middle_half(&differences),
            median(&ratios),
            middle_half(&ratios)
        );
        json!({
            "variant": VARIANTS[variant],
            "switch_ns": median(&times[variant]),
            "difference_ns": median(&differences),
            "difference_ns_middle_half": middle_half(&differences),
            "ratio": median(&ratios),
            "ratio_middle_half": middle_half(&ratios),
        })
    };
    Ok((0..VARIANTS.len()).map(compared).collect())
}

/// Returns the nanoseconds of a switch between two threads on the same CPU.
fn switch_ns() -> Result<f64, BoxedError> {
    let ((mut partner_input, mut to_partner), (mut own_input, mut to_self)) = (pipe()?, pipe()?);
    let partner = std::thread::spawn(move || -> io::Result<()> {
        pin()?;
        let mut byte = [0];
        while partner_input.read(&mut byte)? > 0 {
            to_self.write_all(&byte)?;
        }
        Ok(())
    });
    let own = rustix::thread::sched_getaffinity(None)?;
    pin()?;
    let mut byte = [0];
    let mut began_ns = used_ns();
    for pass in 0..PASSES + PASSES / 10 {
        if pass == PASSES / 10 {
            began_ns = used_ns();
        }
        to_partner.write_all(&byte)?;
        own_input.read_exact(&mut byte)?;
    }
    let used_ns = used_ns() - began_ns;
    drop(to_partner);
    rustix::thread::sched_setaffinity(None, &own)?;
    partner.join().map_err(|_| "the partner process died")??;
    Ok(used_ns as f64 / f64::from(PASSES) / 2.0)
}

/// Returns the CPU time of this process in nanoseconds. This time includes the switches between the
/// threads of this process, but no time of other processes.
fn used_ns() -> u64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

fn pipe() -> io::Result<(io::PipeReader, io::PipeWriter)> {
    io::pipe()
}

/// Pins the calling thread to the second allowed CPU, which gets fewer interrupts than the first
/// CPU. If only one CPU is allowed, pins the thread to this CPU.
fn pin() -> io::Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let cpus = (0..1024).filter(|cpu| allowed.is_set(*cpu));
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpus.take(2).last().unwrap_or(0));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Returns the mean cost of each BPF program, as the kernel measures it. The measurement applies a
/// light load of every kind that the programs count.
fn programs() -> Result<Value, BoxedError> {
    let account = enable_bpf_stats()?;
    let mut meter = by_bpf()?;
    exercise(&mut meter)?;
    let mut costs = meter.costs();
    drop(meter);
    for kind in [SwitchKind::Counting, SwitchKind::Empty] {
        let hook = SwitchHook::attach(kind)?;
        switch_ns()?;
        costs.extend(hook.cost());
    }
    drop(account);
    let report = |cost: ProgramCost| {
        let ns = cost.run_ns as f64 / cost.runs.max(1) as f64;
        eprintln!(
            "{:18} {ns:7.0} ns per run of the BPF program, {} runs",
            cost.name, cost.runs
        );
        json!({ "program": cost.name, "run_ns": ns, "runs": cost.runs })
    };
    Ok(costs.into_iter().map(report).collect())
}

fn exercise(meter: &mut Meter) -> Result<(), BoxedError> {
    for _ in 0..300 {
        Command::new("true").status()?;
    }
    let path = std::env::temp_dir().join(format!("usher-meter-cost-{}", std::process::id()));
    std::fs::write(&path, vec![1; 1 << 20])?;
    File::open(&path)?.sync_all()?;
    // Direct I/O (`O_DIRECT` on x86 and most other architectures). On an architecture where this
    // flag has another value, the page cache answers the read.
    let file = File::options()
        .read(true)
        .custom_flags(0o40000)
        .open(&path)?;
    let mut room = vec![0; 8192];
    let start = room.as_ptr().align_offset(4096);
    for block in 0..4000 {
        file.read_at(&mut room[start..start + 4096], block % 256 * 4096)?;
    }
    std::fs::remove_file(&path)?;
    // The socket is not connected. Therefore its route is unknown, and the send is counted; a send
    // with a known route over loopback would not be counted.
    let (near, far) = (
        UdpSocket::bind("127.0.0.1:0")?,
        UdpSocket::bind("127.0.0.1:0")?,
    );
    let far_address = far.local_addr()?;
    for _ in 0..5000 {
        near.send_to(&[1; 64], far_address)?;
        far.recv(&mut [0; 64])?;
    }
    for at in 0..100 {
        meter.sample(at, true);
    }
    Ok(())
}

/// Returns the microseconds of a sample with `threads` additional threads on the machine.
fn samples(threads: usize) -> Result<Value, BoxedError> {
    let mut meter = by_bpf()?;
    let (hold, held) = channel::<()>();
    let held = std::sync::Arc::new(std::sync::Mutex::new(held));
    let wait = |_| {
        let held = held.clone();
        let thread = std::thread::Builder::new().stack_size(16384);
        // One of the threads holds the lock and waits for the end of the channel; the other threads
        // wait for the lock.
        thread.spawn(move || drop(held.lock().map(|held| held.recv())))
    };
    let waiting: Vec<_> = (0..threads).map(wait).collect::<Result<_, _>>()?;
    let mut time = |thorough: bool| -> Vec<f64> {
        let take = |at: usize| {
            let began = Instant::now();
            meter.sample(at as u64, thorough);
            began.elapsed().as_nanos() as f64 / 1000.0
        };
        (0..SAMPLES).map(take).collect()
    };
    let (cheap, thorough) = (time(false), time(true));
    drop(hold);
    for thread in waiting {
        drop(thread.join());
    }
    eprintln!(
        "with {threads} more threads: {:.1} us for a cheap sample, {:.1} us for a thorough sample",
        median(&cheap),
        median(&thorough)
    );
    Ok(json!({
        "threads": threads,
        "cheap_us": median(&cheap),
        "cheap_us_middle_half": middle_half(&cheap),
        "thorough_us": median(&thorough),
        "thorough_us_middle_half": middle_half(&thorough),
    }))
}

fn quantile(values: &[f64], at: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let value = sorted.get((last as f64 * at).round() as usize);
    value.copied().unwrap_or(f64::NAN)
}

fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

fn middle_half(values: &[f64]) -> [f64; 2] {
    [quantile(values, 0.25), quantile(values, 0.75)].map(|value| (value * 1e4).round() / 1e4)
}
