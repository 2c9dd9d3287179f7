// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs several computing programs beside a thread that mostly sleeps, as a load for `usher sched
//! stats -- CMD`:
//!
//!   programs PROGRAMS THREADS UNITS NAPS NAP_UNITS
//!
//! PROGRAMS processes have THREADS threads each, and each of these threads computes UNITS units of
//! 5,000 multiplications. One further thread repeats NAPS times: sleep 5 ms, then compute NAP_UNITS
//! units. At the end, the times at which the first and the last process ended are printed, and the
//! wake-up latencies of the sleeping thread.

use std::hint::black_box;
use std::process::{Child, Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

const NAP: Duration = Duration::from_millis(5);

fn main() -> ExitCode {
    let numbers: Result<Vec<usize>, _> = std::env::args().skip(1).map(|arg| arg.parse()).collect();
    let done = match numbers.as_deref() {
        Ok(&[threads, units]) => {
            compute_in(threads, units);
            Ok(())
        }
        Ok(&[programs, threads, units, naps, nap_units]) => {
            load(programs, threads, units, naps, nap_units)
        }
        _ => {
            eprintln!("programs PROGRAMS THREADS UNITS NAPS NAP_UNITS");
            return ExitCode::FAILURE;
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("programs: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Computes `units` times five thousand dependent multiplications.
fn compute(units: usize) {
    let mut word = black_box(1_u64);
    for _ in 0..units * 5_000 {
        word = word.wrapping_mul(6364136223846793005).wrapping_add(1);
    }
    black_box(word);
}

/// Executes the work of one program: each of its threads computes `units` units.
fn compute_in(threads: usize, units: usize) {
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| compute(units));
        }
    });
}

fn load(
    programs: usize,
    threads: usize,
    units: usize,
    naps: usize,
    nap_units: usize,
) -> std::io::Result<()> {
    let began = Instant::now();
    let program = || {
        let mut program = Command::new(std::env::current_exe()?);
        program.args([threads, units].map(|number| number.to_string()));
        program.spawn()
    };
    let programs: std::io::Result<Vec<Child>> = (0..programs).map(|_| program()).collect();
    let watching = programs?.into_iter().map(|mut program| {
        thread::spawn(move || {
            let ended = program.wait();
            ended.map(|_| began.elapsed())
        })
    });
    let watching: Vec<_> = watching.collect();
    nap(naps, nap_units);
    let mut ends = Vec::new();
    for program in watching {
        ends.extend(program.join().map(Result::ok).ok().flatten());
    }
    ends.sort();
    println!(
        "the programs ended after {:?} to {:?}",
        ends.first(),
        ends.last()
    );
    Ok(())
}

fn nap(naps: usize, units: usize) {
    let one = || {
        let slept = Instant::now();
        thread::sleep(NAP);
        let late = slept.elapsed().saturating_sub(NAP);
        let awake = Instant::now();
        compute(units);
        (late, awake.elapsed())
    };
    let (mut late, mut work): (Vec<_>, Vec<_>) = (0..naps).map(|_| one()).unzip();
    late.sort();
    work.sort();
    let at = |of: &[Duration], percent: usize| of.get(of.len() * percent / 100).copied();
    println!(
        "wake-up latency of the sleeping thread: median {:?}, 99th percentile {:?}, maximum \
         {:?}; its CPU time {:?}",
        at(&late, 50),
        at(&late, 99),
        late.last(),
        at(&work, 50)
    );
}
