// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts unpinned programs (programs that pin no threads) at random times. Seats therefore change
//! continuously while the programs that pin their threads run. The unpinned programs are named
//! `visitor-N`.
//!
//! - At most two unpinned programs run at a time.
//! - Each program computes for 0.5 s to 3 s, with one or two threads.
//! - After each start, a random pause of at most 3 s follows. If two programs run at the end of the
//!   pause, the next start waits until one of them ends.
//! - A program that runs for longer than 60 s is killed and counts as failed. A program that cannot
//!   be started, or that ends with an error, counts as failed, too.
//!
//! A thread checks these conditions every 20 ms. The random numbers are determined by a seed.

use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::observer::VISITOR;
use super::programs::Programs;
use crate::processes::usher;

/// Maximum number of unpinned programs at a time.
const AT_ONCE_MAX: usize = 2;
/// Longest random pause after a start, in seconds.
const PAUSE_MAX_S: f64 = 3.0;
/// Interval of checks for unpinned programs that have ended or are due.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Time limit of an unpinned program.
const LIFETIME_MAX: Duration = Duration::from_secs(60);

/// Handle of the thread that starts the unpinned programs.
#[derive(Debug)]
pub struct UnpinnedPrograms {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<UnpinnedResults>,
}

/// Number of unpinned programs, including those that could not be started, and their failures.
#[derive(Debug, Clone, Default)]
pub struct UnpinnedResults {
    pub count: usize,
    pub failures: Vec<String>,
}

struct UnpinnedProgram {
    child: Child,
    since: Instant,
}

impl UnpinnedPrograms {
    /// Begins to start unpinned programs.
    pub fn start(
        binary: &Path,
        runtime: &Path,
        programs: Arc<Programs>,
        seed: u64,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let (binary, runtime) = (binary.to_owned(), runtime.to_owned());
        let thread = std::thread::Builder::new()
            .name("visitors".to_owned())
            .spawn(move || start_and_reap(&binary, &runtime, &programs, seed, &stopped))?;
        Ok(Self { stop, thread })
    }

    /// Stops the starts, and waits until the last unpinned programs have ended: at most about 60 s.
    pub fn stop(self) -> UnpinnedResults {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn start_and_reap(
    binary: &Path,
    runtime: &Path,
    programs: &Programs,
    seed: u64,
    stop: &AtomicBool,
) -> UnpinnedResults {
    let mut random = oorandom::Rand64::new(u128::from(seed));
    let mut visits = UnpinnedResults::default();
    let mut present: Vec<UnpinnedProgram> = Vec::new();
    let mut next = Instant::now();
    loop {
        present.retain_mut(|visitor| !has_ended(visitor, &mut visits.failures));
        let stops = stop.load(Ordering::Relaxed);
        if stops && present.is_empty() {
            return visits;
        }
        if !stops && Instant::now() >= next && present.len() < AT_ONCE_MAX {
            let seconds = 0.5 + 2.5 * random.rand_float();
            let threads = 1 + random.rand_range(0..2) as usize;
            visits.count += 1;
            let name = format!("{VISITOR}-{}", visits.count);
            let mut command = usher(binary, runtime);
            command.args(["run", "--name", &name, "--"]);
            command.args(programs.visitor(seconds, threads));
            command.stdout(Stdio::null()).stderr(Stdio::null());
            match command.spawn() {
                Ok(child) => present.push(UnpinnedProgram {
                    child,
                    since: Instant::now(),
                }),
                Err(error) => visits.failures.push(format!("{name}: {error}")),
            }
            next = Instant::now() + Duration::from_secs_f64(PAUSE_MAX_S * random.rand_float());
        }
        sleep(CHECK_EVERY);
    }
}

/// Returns whether an unpinned program has ended. A program that exceeds its time limit is killed.
fn has_ended(visitor: &mut UnpinnedProgram, failures: &mut Vec<String>) -> bool {
    match visitor.child.try_wait() {
        Ok(None) if visitor.since.elapsed() > LIFETIME_MAX => {
            let _ = visitor.child.kill();
            let _ = visitor.child.wait();
            failures.push("a program that pins no threads did not end".to_owned());
            true
        }
        Ok(None) => false,
        Ok(Some(status)) if status.success() => true,
        Ok(Some(status)) => {
            failures.push(format!(
                "a program that pins no threads ended with {status}"
            ));
            true
        }
        Err(error) => {
            failures.push(error.to_string());
            true
        }
    }
}
