// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program of chains: each thread or process lives for a moment and starts
//! the next one before it ends.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

/// The name of the hidden command.
pub const PROGRAM: &str = "hosts-chains";

/// What a chain consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Link {
    /// Threads of one process.
    Thread,
    /// Processes.
    Process,
}

/// The program.
#[derive(Debug, Clone, clap::Args)]
pub struct ChainsArgs {
    /// What a chain consists of
    pub link: Link,
    /// How long each link lives, in microseconds
    pub life_us: u64,
    /// Chains at a time
    #[arg(long, default_value_t = 10)]
    pub chains: usize,
}

/// Prints `ready` and lives until standard input ends.
pub fn run(args: &ChainsArgs) -> Result<()> {
    let life = Duration::from_micros(args.life_us);
    for _ in 0..args.chains {
        match args.link {
            Link::Thread => drop(std::thread::spawn(move || next_thread(life))),
            Link::Process => start_process_chain(life),
        }
    }
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn next_thread(life: Duration) {
    std::thread::sleep(life);
    // At a limit on threads the chain ends.
    let _ = std::thread::Builder::new().spawn(move || next_thread(life));
}

/// Starts a chain of processes. Each is an orphan from the moment that its parent
/// ends; all are in the process group of the first.
fn start_process_chain(life: Duration) {
    // SAFETY: this process has one thread; the child sleeps, forks and exits.
    if unsafe { libc::fork() } != 0 {
        return;
    }
    loop {
        std::thread::sleep(life);
        // SAFETY: as above.
        if unsafe { libc::fork() } != 0 {
            // SAFETY: ends a forked copy.
            unsafe { libc::_exit(0) };
        }
    }
}
