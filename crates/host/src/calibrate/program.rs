// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calibration programs: short parallel programs that count their own work.
//!
//! | name | threads | bytes | what it shows |
//! |---|---|---|---|
//! | `compute` | compute in registers | none | a source in the simplest case |
//! | `memory` | read arrays larger than the caches | none | CPU time and instructions while threads wait for memory |
//! | `stream` | read `/dev/zero` and compute a checksum | in proportion to the work | bytes |
//! | `busy-wait` | as `stream`; between the units, all threads but one busy-wait | in proportion to the work | sources that count busy-waiting as work |
//!
//! All threads work in units of about 100 µs, and count each completed unit, also on the heartbeat
//! page. The main thread writes the count to its output every 20 ms ([`super::WorkTrace`]). In
//! `busy-wait`, a round is one unit of thread 0, a barrier, one unit of every thread, and a barrier.

use std::fs::File;
use std::hint::{black_box, spin_loop};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use usher_heartbeat::{Heartbeat, now_ns};

/// A calibration program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CalibrationProgram {
    /// Computes in registers.
    Compute,
    /// Reads large arrays.
    Memory,
    /// Reads a file and computes a checksum.
    Stream,
    /// Reads a file; its threads busy-wait for one another.
    BusyWait,
}

impl CalibrationProgram {
    /// All programs.
    pub const ALL: [Self; 4] = [Self::Compute, Self::Memory, Self::Stream, Self::BusyWait];

    /// Returns the name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory",
            Self::Stream => "stream",
            Self::BusyWait => "busy-wait",
        }
    }

    /// Returns the program with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Returns whether threads of the program busy-wait.
    pub fn busy_waits(self) -> bool {
        self == Self::BusyWait
    }
}

/// Interval of the lines of the output.
const LINE_INTERVAL: Duration = Duration::from_millis(20);
/// Steps of one unit of `compute`.
const COMPUTE_STEPS: u64 = 60_000;
/// Numbers in the array of a thread of `memory` (16 MiB), on machines with at most 32 threads; all
/// arrays together have at most 512 MiB.
const ARRAY_LEN: usize = 2 << 20;
const ARRAYS_LEN: usize = 32 * ARRAY_LEN;
/// Numbers that one unit of `memory` reads (512 KiB).
const MEMORY_STEPS: usize = 64 << 10;
/// Bytes that one unit of `stream` reads.
const READ_BYTES: usize = 64 << 10;

/// The state that the threads share.
struct Shared<'a> {
    heartbeat: &'a Heartbeat,
    work: AtomicU64,
    until: Instant,
    threads: usize,
    /// Whether the main thread has ended the run, because all threads have ended or the output
    /// cannot be written.
    stopped: AtomicBool,
}

impl Shared<'_> {
    fn is_over(&self) -> bool {
        self.stopped.load(Ordering::Acquire) || Instant::now() >= self.until
    }

    fn count(&self) {
        self.work.fetch_add(1, Ordering::Relaxed);
        self.heartbeat.beat(1);
    }
}

/// Runs a calibration program with `threads` threads for this time, and writes its work to `out`.
///
/// # Errors
/// `/dev/zero` cannot be read, or `out` cannot be written.
pub fn run_calibration_program(
    program: CalibrationProgram,
    threads: usize,
    time: Duration,
    out: &mut dyn Write,
) -> io::Result<()> {
    let heartbeat = Heartbeat::from_env();
    let shared = Shared {
        heartbeat: &heartbeat,
        work: AtomicU64::new(0),
        until: Instant::now() + time,
        threads: threads.max(1),
        stopped: AtomicBool::new(false),
    };
    let barrier = SpinBarrier::new(shared.threads);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..shared.threads)
            .map(|index| {
                let (shared, barrier) = (&shared, &barrier);
                scope.spawn(move || work(program, index, shared, barrier))
            })
            .collect();
        let written = write_trace(&shared, &workers, out);
        // Also ends the workers if the output cannot be written.
        shared.stopped.store(true, Ordering::Release);
        for worker in workers {
            let ended = worker.join();
            ended.unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))?;
        }
        written
    })
}

fn write_trace<T>(
    shared: &Shared<'_>,
    workers: &[std::thread::ScopedJoinHandle<'_, T>],
    out: &mut dyn Write,
) -> io::Result<()> {
    while !workers.iter().all(|worker| worker.is_finished()) {
        writeln!(out, "{} {}", now_ns(), shared.work.load(Ordering::Relaxed))?;
        out.flush()?;
        std::thread::sleep(LINE_INTERVAL);
    }
    Ok(())
}

/// Runs one thread of a program.
fn work(
    program: CalibrationProgram,
    index: usize,
    shared: &Shared<'_>,
    barrier: &SpinBarrier,
) -> io::Result<()> {
    let mut state = ThreadState::default();
    match program {
        CalibrationProgram::Compute => {
            while !shared.is_over() {
                state.compute();
                shared.count();
            }
        }
        CalibrationProgram::Memory => {
            state.array = (0..ARRAY_LEN.min(ARRAYS_LEN / shared.threads) as u64).collect();
            while !shared.is_over() {
                state.read_array();
                shared.count();
            }
        }
        CalibrationProgram::Stream => {
            let mut file = ZeroFile::open()?;
            while !shared.is_over() {
                state.sum = file.checksum(state.sum)?;
                shared.count();
            }
        }
        CalibrationProgram::BusyWait => busy_wait(index, shared, barrier)?,
    }
    black_box(state.sum);
    Ok(())
}

fn busy_wait(index: usize, shared: &Shared<'_>, barrier: &SpinBarrier) -> io::Result<()> {
    // After a failure, the thread still takes part in the barriers, so that all threads end.
    let mut file = ZeroFile::open();
    let (mut sum, mut done) = (0, Ok(()));
    let mut unit = || match file.as_mut().map(|file| file.checksum(sum)) {
        Ok(Ok(next)) => {
            sum = next;
            shared.count();
        }
        Ok(Err(error)) => done = Err(error),
        Err(_) => {}
    };
    loop {
        if index == 0 {
            unit();
            if shared.is_over() {
                barrier.ended.store(true, Ordering::Release);
            }
        }
        barrier.wait();
        if barrier.ended.load(Ordering::Acquire) {
            break;
        }
        unit();
        barrier.wait();
    }
    black_box(sum);
    file.and(done)
}

#[derive(Default)]
struct ThreadState {
    sum: u64,
    array: Vec<u64>,
    at: usize,
}

impl ThreadState {
    fn compute(&mut self) {
        let mut x = self.sum | 1;
        for _ in 0..COMPUTE_STEPS {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
        }
        self.sum = black_box(x);
    }

    /// Reads the next part of the array.
    fn read_array(&mut self) {
        let end = (self.at + MEMORY_STEPS).min(self.array.len());
        let part = &self.array[self.at..end];
        self.sum = black_box(part.iter().fold(self.sum, |sum, &x| sum.wrapping_add(x)));
        self.at = if end == self.array.len() { 0 } else { end };
    }
}

struct ZeroFile {
    file: File,
    buffer: Vec<u8>,
}

impl ZeroFile {
    fn open() -> io::Result<Self> {
        Ok(Self {
            file: File::open("/dev/zero")?,
            buffer: vec![0; READ_BYTES],
        })
    }

    /// Reads the next bytes, and returns a checksum of them (FNV-1a).
    fn checksum(&mut self, sum: u64) -> io::Result<u64> {
        self.file.read_exact(&mut self.buffer)?;
        let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Ok(black_box(self.buffer.iter().fold(sum, add)))
    }
}

/// A barrier whose threads busy-wait.
struct SpinBarrier {
    threads: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    /// Whether thread 0 has ended the run. Thread 0 sets it before a barrier, and all threads read
    /// it between this barrier and the next one.
    ended: AtomicBool,
}

impl SpinBarrier {
    fn new(threads: usize) -> Self {
        Self {
            threads,
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        }
    }

    fn wait(&self) {
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Release);
            self.generation.fetch_add(1, Ordering::AcqRel);
            return;
        }
        while self.generation.load(Ordering::Acquire) == generation {
            spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::WorkTrace;

    #[test]
    fn every_program_ends_and_writes_a_trace() {
        for program in CalibrationProgram::ALL {
            for threads in [1, 3] {
                let mut out = Vec::new();
                let time = Duration::from_millis(30);
                run_calibration_program(program, threads, time, &mut out).unwrap();
                let trace = WorkTrace::parse(std::str::from_utf8(&out).unwrap());
                assert!(trace.is_some(), "{program:?} {out:?}");
            }
        }
    }

    #[test]
    fn a_failing_output_ends_the_threads() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for program in CalibrationProgram::ALL {
            let hour = Duration::from_secs(3600);
            let error = run_calibration_program(program, 2, hour, &mut Full).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
    }

    #[test]
    fn names_are_parsed() {
        for program in CalibrationProgram::ALL {
            assert_eq!(CalibrationProgram::named(program.name()), Some(program));
        }
        assert_eq!(CalibrationProgram::named("other"), None);
    }
}
