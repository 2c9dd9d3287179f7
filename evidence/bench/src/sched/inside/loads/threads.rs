// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hidden command `sched-load`: a program with many threads, or the server of
//! [`super::requests`]. The program follows the protocol of [`crate::sched::inside::programs`]; a
//! line of its input is the seed of the random times.
//!
//! - `burn`: one thread uses CPU time. The line is the CPU time in milliseconds instead of a seed.
//! - `spin`: all threads repeatedly compute, and wait for one another by spinning.
//! - `pools`: a pool of threads, each of which has a pool of the same size. The threads of an inner
//!   pool repeatedly compute and wait for one another, then the leaders of all inner pools wait for
//!   one another. All of these waits sleep.
//! - `serve`: the server; its input is ignored.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::burn::{TimeRange, burn, random};
use super::requests;
use crate::sched::inside::programs;

/// Name of the hidden command.
pub const COMMAND: &str = "sched-load";

/// Kind of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadKind {
    /// Uses CPU time on one thread.
    Burn,
    /// Threads that wait for one another by spinning.
    Spin,
    /// A pool of pools of threads.
    Pools,
    /// A server.
    Serve,
}

impl LoadKind {
    /// Name of the kind on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Burn => "burn",
            Self::Spin => "spin",
            Self::Pools => "pools",
            Self::Serve => "serve",
        }
    }
}

/// Arguments of the hidden command.
#[derive(Debug, Clone, clap::Args)]
pub struct LoadArgs {
    /// What the program does
    kind: LoadKind,
    /// Number of threads, for 'pools' the size of each pool
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Socket of the server
    #[arg(long, required_if_eq("kind", "serve"))]
    socket: Option<PathBuf>,
}

/// Number of times that the threads of `spin` wait for one another.
const SPINS: usize = 40;
/// CPU time of a thread of `spin` between two waits.
const SPIN_WORK: TimeRange = TimeRange {
    from_us: 500,
    to_us: 1_500,
};
/// Number of times that the inner pools of `pools` compute.
const POOL_ROUNDS: usize = 20;
/// CPU time of a thread of an inner pool per round.
const POOL_WORK: TimeRange = TimeRange {
    from_us: 300,
    to_us: 1_300,
};

/// Runs the program until its input ends.
pub fn run(args: &LoadArgs) -> Result<()> {
    let threads = args.threads.max(1);
    match args.kind {
        LoadKind::Burn => programs::follow(|ms| {
            burn(Duration::from_millis(ms));
            Ok(())
        }),
        LoadKind::Spin => programs::follow(|seed| {
            spin(threads, seed, SPINS);
            Ok(())
        }),
        LoadKind::Pools => programs::follow(|seed| {
            pools(threads, seed, POOL_ROUNDS);
            Ok(())
        }),
        LoadKind::Serve => {
            let socket = args.socket.as_deref().context("--socket is missing")?;
            let listener = UnixListener::bind(socket);
            let listener = listener.with_context(|| format!("binding {}", socket.display()))?;
            thread::spawn(move || requests::serve(&listener));
            programs::follow(|_| Ok(()))
        }
    }
}

/// A barrier at which threads spin.
#[derive(Debug, Default)]
struct SpinBarrier {
    arrived: AtomicUsize,
}

impl SpinBarrier {
    /// Waits until `threads` threads have called this method `round` times, counted from 1.
    fn wait(&self, threads: usize, round: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < threads * round {
            std::hint::spin_loop();
        }
    }
}

/// Runs the threads of `spin`.
fn spin(threads: usize, seed: u64, rounds: usize) {
    let barrier = SpinBarrier::default();
    let work = |thread: usize| {
        let mut random = random(seed, thread);
        for round in 1..=rounds {
            burn(SPIN_WORK.draw(&mut random));
            barrier.wait(threads, round);
        }
    };
    thread::scope(|scope| {
        for thread in 1..threads {
            let work = &work;
            scope.spawn(move || work(thread));
        }
        work(0);
    });
}

/// Runs the pools of `pools`. Returns the number of tasks that ran.
fn pools(size: usize, seed: u64, rounds: usize) -> usize {
    let leaders = Barrier::new(size);
    let inner: Vec<Barrier> = (0..size).map(|_| Barrier::new(size)).collect();
    let tasks = AtomicUsize::new(0);
    let work = |pool: usize, member: usize| {
        let mut random = random(seed, pool * size + member);
        for _ in 0..rounds {
            burn(POOL_WORK.draw(&mut random));
            tasks.fetch_add(1, Ordering::Relaxed);
            if inner[pool].wait().is_leader() {
                leaders.wait();
            }
            inner[pool].wait();
        }
    };
    thread::scope(|scope| {
        for pool in 0..size {
            let work = &work;
            scope.spawn(move || {
                thread::scope(|scope| {
                    for member in 1..size {
                        scope.spawn(move || work(pool, member));
                    }
                    work(pool, 0);
                });
            });
        }
    });
    tasks.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: LoadArgs,
    }

    #[test]
    fn only_a_server_needs_a_socket() {
        let args = |words: &[&str]| {
            let words = ["sched-load"].iter().chain(words);
            <Line as clap::Parser>::try_parse_from(words).map(|line| line.args)
        };
        assert!(args(&["serve"]).is_err());
        let served = args(&["serve", "--socket", "/x"]).unwrap();
        assert_eq!(served.socket, Some(PathBuf::from("/x")));
        let spin = args(&["spin", "--threads", "2"]).unwrap();
        assert_eq!((spin.kind, spin.threads), (LoadKind::Spin, 2));
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for kind in LoadKind::value_variants() {
            assert_eq!(kind.to_possible_value().unwrap().get_name(), kind.name());
        }
    }

    #[test]
    fn each_member_of_each_pool_computes_in_each_round() {
        assert_eq!(pools(2, 1, 3), 12);
        assert_eq!(pools(1, 1, 1), 1);
    }

    #[test]
    fn threads_leave_the_spin_barrier_together() {
        let barrier = SpinBarrier::default();
        let before = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    before.fetch_add(1, Ordering::SeqCst);
                    barrier.wait(2, 1);
                    assert_eq!(before.load(Ordering::SeqCst), 2);
                });
            }
        });
        spin(2, 1, 2);
    }

    #[test]
    fn a_server_without_a_folder_is_an_error() {
        let args = LoadArgs {
            kind: LoadKind::Serve,
            threads: 1,
            socket: Some(PathBuf::from("/nonexistent/socket")),
        };
        let error = run(&args).unwrap_err().to_string();
        assert_eq!(error, "binding /nonexistent/socket");
    }
}
