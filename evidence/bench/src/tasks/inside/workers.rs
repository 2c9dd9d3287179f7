// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hidden command of the part `workers`: runs tasks that one thread outside the runtime registers,
//! and prints the CPU time of this process and the duration.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use usher_tasks::{Groups, Runtime};

use super::footprint::number;
use crate::machine::print_line;

/// Number of tasks that are registered between two waits.
const BATCH: u64 = 100_000;

/// Runs tasks on this number of workers. The first word is the number of workers, the second the
/// number of tasks.
pub fn run(words: &[String]) -> Result<()> {
    let (workers, tasks) = (number(words, 0)?, number(words, 1)?);
    let began = Instant::now();
    let ran = Arc::new(AtomicU64::new(0));
    let runtime = Runtime::new(workers as usize)?;
    for token in 0..tasks {
        let ran = Arc::clone(&ran);
        runtime.register(token, 0, Groups::NONE, move || {
            ran.fetch_add(1, Ordering::Relaxed);
        })?;
        if (token + 1) % BATCH == 0 {
            runtime.wait()?;
        }
    }
    runtime.wait()?;
    drop(runtime);
    let ran = ran.load(Ordering::Relaxed);
    ensure!(ran == tasks, "{ran} of {tasks} tasks ran");
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 * 1e-9;
    print_line(format_args!("cpu {cpu}"))?;
    print_line(format_args!("elapsed {}", began.elapsed().as_secs_f64()))
}
