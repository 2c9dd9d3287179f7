// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that work on command, so that their start is not measured and the same processes run
//! under all schedulers. Protocol on standard input and output:
//!
//! 1. The program writes the line `ready`.
//! 2. It reads a line that describes the work, for computing programs the number of steps.
//! 3. It does the work, writes the line `done`, and continues with step 1. It ends when its input
//!    ends.
//!
//! This module also contains the fork storm and the thread that mostly sleeps. That thread sleeps
//! for 5 ms, computes for 0.3 ms, and measures the delays of its own wake-ups.
//!
//! No wait for a program has a time limit. A program that ends early, or writes another line, is an
//! error. A program is killed when its value is dropped.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

const READY: &str = "ready";
const DONE: &str = "done";
/// Time of each sleep of the thread that mostly sleeps, and its work after each sleep in ms.
const NAP: Duration = Duration::from_millis(5);
const AWAKE_MS: f64 = 0.3;
/// The program that a fork storm starts repeatedly. It ends at once.
const SHORT_PROGRAM: &str = "/bin/true";
/// Number of steps with which the speed of this machine is measured.
const STEPS_MEASURED: u64 = 2_000_000;

/// The hidden command of a program that computes.
pub const WORKER: &str = "sched-worker";

/// Arguments of a computing program.
#[derive(Debug, Clone, clap::Args)]
pub struct WorkerArgs {
    /// Run this many threads, each of which executes all steps
    #[arg(long)]
    threads: usize,
}

/// Reads a number of steps from each line of the input, and computes that number of steps on each
/// thread.
pub fn work(args: &WorkerArgs) -> Result<()> {
    let threads = args.threads.max(1);
    let workers = WorkerThreads {
        begin: Barrier::new(threads),
        end: Barrier::new(threads),
        steps: AtomicU64::new(0),
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| while workers.works_once() {});
        }
        let done = follow(|steps| {
            ensure!(steps > 0, "the program received no work");
            workers.steps.store(steps, Ordering::Relaxed);
            workers.works_once();
            Ok(())
        });
        workers.steps.store(0, Ordering::Relaxed);
        workers.works_once();
        done
    })
}

/// Threads that work at the same time. All of them wait at a barrier before and after each work.
struct WorkerThreads {
    begin: Barrier,
    end: Barrier,
    /// Steps of each thread; 0 ends the threads.
    steps: AtomicU64,
}

impl WorkerThreads {
    /// Waits for the next work and executes this thread's steps. Returns false if the threads must
    /// end.
    fn works_once(&self) -> bool {
        self.begin.wait();
        let steps = self.steps.load(Ordering::Relaxed);
        if steps > 0 {
            compute(steps);
            self.end.wait();
        }
        steps > 0
    }
}

/// Reads the lines of standard input, and executes `work` with the number of each line, until the
/// input ends.
pub fn follow(mut work: impl FnMut(u64) -> Result<()>) -> Result<()> {
    let mut lines = std::io::stdin().lines();
    loop {
        print_line(READY)?;
        let Some(line) = lines
            .next()
            .transpose()
            .context("reading the work of the program")?
        else {
            return Ok(());
        };
        let number = line.trim().parse();
        work(number.context("the program expects a number")?)?;
        print_line(DONE)?;
    }
}

fn print_line(word: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{word}")?;
    Ok(out.flush()?)
}

/// Computes `steps` dependent multiplications.
pub fn compute(steps: u64) {
    let mut word = black_box(1_u64);
    let mut left = steps;
    while left > 0 {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        left -= 1;
    }
    black_box(word);
}

/// Measures the number of steps that one thread alone computes per millisecond on this machine,
/// from 2,000,000 steps.
pub fn steps_a_ms() -> f64 {
    compute(STEPS_MEASURED / 10);
    let begun = Instant::now();
    compute(STEPS_MEASURED);
    STEPS_MEASURED as f64 / (begun.elapsed().as_secs_f64() * 1e3)
}

/// Executes `work` while `at_once` threads start one short program after another. Returns the
/// result of `work` and the number of started programs.
pub fn beside_a_storm<T>(at_once: usize, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let (is_over, forked) = (AtomicBool::new(false), AtomicU64::new(0));
    let storm = || -> Result<()> {
        loop {
            let status = Command::new(SHORT_PROGRAM).status();
            let status = status.with_context(|| format!("starting {SHORT_PROGRAM}"))?;
            ensure!(status.success(), "{SHORT_PROGRAM} failed: {status}");
            forked.fetch_add(1, Ordering::Relaxed);
            if is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    };
    let done = thread::scope(|scope| {
        let storms: Vec<_> = (0..at_once).map(|_| scope.spawn(storm)).collect();
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        for storm in storms {
            storm.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        done
    })?;
    Ok((done, forked.into_inner()))
}

/// A running program that waits for its next work.
#[derive(Debug)]
pub struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts a program, and waits until it is ready.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.context("a program was started without pipes")?;
        let mut program = Self {
            child,
            input,
            output: BufReader::new(output),
        };
        program.expect(READY)?;
        Ok(program)
    }

    /// Starts a computing program with `threads` threads.
    pub fn worker(threads: usize) -> Result<Self> {
        let exe = std::env::current_exe().context("finding the executable of usher-bench")?;
        Self::start(Command::new(exe).args([WORKER, "--threads", &threads.to_string()]))
    }

    /// Starts the work that `line` describes, and returns before the work ends.
    pub fn start_work(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}").context("sending the work to a program")
    }

    /// Starts the work that `line` describes, and waits for its end.
    pub fn run(&mut self, line: &str) -> Result<()> {
        self.start_work(line)?;
        self.expect(DONE)?;
        self.expect(READY)
    }

    /// Waits until the program ends by itself.
    pub fn wait(mut self) {
        let _ = self.child.wait();
    }

    fn expect(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .context("reading the output of a program")?;
        let line = line.trim();
        ensure!(line == word, "a program wrote '{line}' instead of '{word}'");
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the work of one line in each program at the same time, and waits for all programs.
/// Returns the end time of each program in seconds from the start.
pub fn run(programs: &mut [Program], lines: &[String]) -> Result<Vec<f64>> {
    let begun = Instant::now();
    for (program, line) in programs.iter_mut().zip(lines) {
        program.start_work(line)?;
    }
    let ends: Result<Vec<f64>> = thread::scope(|scope| {
        let wait_for_end = |program: &mut Program| -> Result<f64> {
            program.expect(DONE)?;
            Ok(begun.elapsed().as_secs_f64())
        };
        let threads: Vec<_> = programs
            .iter_mut()
            .map(|program| scope.spawn(move || wait_for_end(program)))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            let lost = |_| {
                Err(anyhow::anyhow!(
                    "the thread that reads the output of a program failed"
                ))
            };
            thread.join().unwrap_or_else(lost)
        });
        joined.collect()
    });
    let ends = ends?;
    for program in programs {
        program.expect(READY)?;
    }
    Ok(ends)
}

/// Executes `work` while another thread sleeps and computes alternately. Returns the result of
/// `work`, and the delay of each wake-up of the other thread in milliseconds.
pub fn beside_a_sleeper<T>(steps_a_ms: f64, work: impl FnOnce() -> T) -> (T, Vec<f64>) {
    let stop = AtomicBool::new(false);
    let steps = (AWAKE_MS * steps_a_ms) as u64;
    let nap = || {
        let mut late_ms = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let asleep = Instant::now();
            thread::sleep(NAP);
            let late = asleep.elapsed().saturating_sub(NAP);
            late_ms.push(late.as_secs_f64() * 1e3);
            compute(steps);
        }
        late_ms
    };
    thread::scope(|scope| {
        let sleeper = scope.spawn(nap);
        let done = work();
        stop.store(true, Ordering::Relaxed);
        (done, sleeper.join().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storm_starts_programs_until_the_work_ends() {
        let ((), forked) = beside_a_storm(2, || Ok(())).unwrap();
        assert!(forked >= 2, "each thread starts one at least");
        assert!(beside_a_storm(1, || -> Result<()> { Err(anyhow!("no")) }).is_err());
    }

    fn shell(script: &str) -> Result<Program> {
        Program::start(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn programs_are_run_again_and_again() {
        let script = "echo ready; while read line; do echo done; echo ready; done";
        let mut programs = vec![shell(script).unwrap(), shell(script).unwrap()];
        let lines = vec!["1".to_owned(); 2];
        for _ in 0..2 {
            let ends = run(&mut programs, &lines).unwrap();
            assert_eq!(ends.len(), 2);
            assert!(ends.iter().all(|end| *end >= 0.0));
        }
        let one = run(&mut programs[..1], &lines[..1]).unwrap();
        assert_eq!(one.len(), 1);
    }

    #[test]
    fn an_unexpected_answer_of_a_program_is_an_error() {
        let dies = shell("exit 3").unwrap_err().to_string();
        assert_eq!(dies, "a program wrote '' instead of 'ready'");
        let mut programs = vec![shell("echo ready; read line; echo oops").unwrap()];
        let lost = run(&mut programs, &["1".to_owned()]).unwrap_err();
        assert_eq!(lost.to_string(), "a program wrote 'oops' instead of 'done'");
    }

    #[test]
    fn the_sleeper_ends_with_the_work() {
        let (done, late_ms) = beside_a_sleeper(1.0, || 7);
        assert_eq!(done, 7);
        assert!(late_ms.iter().all(|late| *late >= 0.0));
        assert!(steps_a_ms() > 0.0);
    }
}
