// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the time of a turn. Two partners run alternately on one CPU. In its turn, a partner
//! reads a byte from a pipe, writes to each cache line of its own memory, and sends a byte to the
//! other partner. A round trip has two turns.
//!
//! The partners run once as threads of one process and once as two processes, with the same code,
//! system calls and amount of memory. Only the page tables differ. The difference between the two
//! times is therefore the cost of a switch to another address space. Times are medians over blocks
//! of 16 round trips, so that short disturbances by other programs do not count. The first block
//! does not count.
//!
//! A run takes the given time plus up to two blocks. A partner that hangs is not detected: no wait
//! has a time limit.

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet as Affinity, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use usher_report::stats;

/// Sizes in bytes of the memory that each partner writes to in its turn.
pub const WORKING_SETS: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Name of the hidden command that runs the partner in another process.
pub const PARTNER: &str = "switch-partner";

/// Number of round trips in a block. The result is the median over the blocks of the mean in a
/// block. The first block does not count, because pages are not mapped yet and caches are cold.
const BLOCK: u32 = 16;

const LINE: usize = 64;

/// Arguments of the partner process.
#[derive(Debug, Clone, clap::Args)]
pub struct PartnerArgs {
    /// Read this many bytes of memory in each turn
    #[arg(long)]
    bytes: usize,
}

/// Times of a pair of consecutive runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PairTimes {
    /// Time of a turn between two threads.
    pub threads_ns: f64,
    /// Time of a turn between two processes.
    pub processes_ns: f64,
}

impl PairTimes {
    /// Cost of a switch to another address space in nanoseconds.
    pub fn cost_ns(&self) -> f64 {
        self.processes_ns - self.threads_ns
    }
}

/// Runs the partner in this process until standard input ends.
pub fn partner(args: &PartnerArgs) -> Result<()> {
    return_bytes(io::stdin().lock(), io::stdout().lock(), args.bytes).context("taking turns")
}

/// Measures `pairs` pairs of runs on one CPU. Each run takes about the time `time`; the order of
/// the two runs alternates from pair to pair.
pub fn measure(bytes: usize, pairs: usize, time: Duration) -> Result<Vec<PairTimes>> {
    let before = sched_getaffinity(None).context("reading the affinity mask of this thread")?;
    let cpu = (0..Affinity::MAX_CPU).find(|&cpu| before.is_set(cpu));
    let mut alone = Affinity::new();
    alone.set(cpu.context("the affinity mask of this thread is empty")?);
    sched_setaffinity(None, &alone).context("binding this thread to one CPU")?;
    let measured = (0..pairs)
        .map(|pair| {
            let (threads_ns, processes_ns) = match pair % 2 {
                0 => {
                    let threads_ns = between_threads(bytes, time)?;
                    (threads_ns, between_processes(bytes, time)?)
                }
                _ => {
                    let processes_ns = between_processes(bytes, time)?;
                    (between_threads(bytes, time)?, processes_ns)
                }
            };
            Ok(PairTimes {
                threads_ns,
                processes_ns,
            })
        })
        .collect();
    sched_setaffinity(None, &before).context("restoring the affinity mask of this thread")?;
    measured
}

/// Measures the time of a turn between two threads in nanoseconds, on the CPUs that the caller may
/// use.
pub fn between_threads(bytes: usize, time: Duration) -> Result<f64> {
    let (their_input, our_output) = io::pipe()?;
    let (our_input, their_output) = io::pipe()?;
    std::thread::scope(|scope| {
        let partner = scope.spawn(|| return_bytes(their_input, their_output, bytes));
        // `exchange_bytes` drops its ends of the pipes even after an error, which ends the partner.
        let took = exchange_bytes(our_input, our_output, bytes, time);
        let partner_result = partner.join();
        ensure!(
            partner_result.is_ok_and(|a| a.is_ok()),
            "the partner thread of the measurement failed"
        );
        took
    })
}

/// Measures the time of a turn between two processes in nanoseconds, on the CPUs that the caller
/// may use.
pub fn between_processes(bytes: usize, time: Duration) -> Result<f64> {
    let exe = std::env::current_exe().context("finding the executable of usher-bench")?;
    let mut partner = Command::new(exe)
        .args([PARTNER, "--bytes", &bytes.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the partner process of the measurement")?;
    let pipes = partner.stdin.take().zip(partner.stdout.take());
    let (output, input) = pipes.context("the partner process was started without pipes")?;
    let took = exchange_bytes(input, output, bytes, time);
    let status = partner
        .wait()
        .context("waiting for the partner process of the measurement")?;
    let took = took?;
    ensure!(
        status.success(),
        "the partner process of the measurement failed: {status}"
    );
    Ok(took)
}

/// Measures the time in nanoseconds of the two system calls of a turn, a write and a read, without
/// a partner.
pub fn alone(time: Duration) -> Result<f64> {
    let (input, output) = io::pipe()?;
    Ok(2.0 * exchange_bytes(input, output, 0, time)?)
}

/// Runs the first partner for about the time `time`. Returns the nanoseconds per turn; a round trip
/// has two turns.
fn exchange_bytes(
    mut input: impl Read,
    mut output: impl Write,
    bytes: usize,
    time: Duration,
) -> Result<f64> {
    let mut memory = vec![1; bytes];
    let mut turn = || -> io::Result<()> {
        walk(&mut memory);
        output.write_all(&[0])?;
        input.read_exact(&mut [0])
    };
    let mut block = || -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..BLOCK {
            turn().context("taking turns")?;
        }
        Ok(begun.elapsed().as_nanos() as f64 / f64::from(BLOCK) / 2.0)
    };
    block()?;
    let begun = Instant::now();
    let mut blocks = vec![block()?];
    while begun.elapsed() < time {
        blocks.push(block()?);
    }
    stats::median(&blocks).context("the run consisted of no turn")
}

/// Runs the second partner: one turn for each byte that arrives, until the input ends.
fn return_bytes(mut input: impl Read, mut output: impl Write, bytes: usize) -> io::Result<()> {
    let mut memory = vec![1; bytes];
    while input.read(&mut [0])? == 1 {
        walk(&mut memory);
        output.write_all(&[0])?;
        output.flush()?;
    }
    Ok(())
}

/// Writes to each cache line of the memory.
fn walk(memory: &mut [u8]) {
    for line in memory.iter_mut().step_by(LINE) {
        *line = std::hint::black_box(line.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partner_takes_a_turn_for_each_byte() {
        let mut out = Vec::new();
        return_bytes(&[7; 5][..], &mut out, 1000).unwrap();
        assert_eq!(out, [0; 5]);
        let mut memory = vec![1; 3 * LINE];
        walk(&mut memory);
        let written = memory.iter().filter(|byte| **byte == 2).count();
        assert_eq!(written, 3);
    }

    #[test]
    fn threads_take_turns_and_a_lost_partner_is_an_error() {
        assert!(between_threads(4096, Duration::from_millis(1)).unwrap() > 0.0);
        let error = exchange_bytes(io::empty(), io::sink(), 64, Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "taking turns");
    }

    #[test]
    fn the_threads_own_cpus_are_given_back() {
        let before = sched_getaffinity(None).unwrap();
        assert!(measure(64, 0, Duration::ZERO).unwrap().is_empty());
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
