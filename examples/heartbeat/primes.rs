// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts primes on several threads and reports its progress, one beat per thousand numbers.
//!
//! ```sh
//! cargo build --release --package usher-heartbeat --example primes
//! usher run -- target/release/examples/primes 2 20000000
//! ```

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use usher_heartbeat::Heartbeat;

const PIECE: u32 = 1000;
const LIMIT_MAX: u32 = 2_000_000_000;

fn is_prime(number: u32) -> bool {
    let mut divisors = (2..).take_while(|&divisor: &u32| divisor <= number / divisor);
    number >= 2 && !divisors.any(|divisor| number.is_multiple_of(divisor))
}

/// Returns the number of primes below the limit.
fn count(threads: usize, limit: u32, heart: &Heartbeat) -> u32 {
    let next = AtomicU32::new(0);
    let primes = AtomicU32::new(0);
    let work = || {
        loop {
            let first = next.fetch_add(PIECE, Ordering::Relaxed);
            if first >= limit {
                return;
            }
            let piece = first..limit.min(first + PIECE);
            let found = piece.filter(|&number| is_prime(number)).count();
            primes.fetch_add(found as u32, Ordering::Relaxed);
            heart.beat(1);
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    primes.into_inner()
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u32| match arguments.next() {
        Some(text) => text.parse().ok(),
        None => Some(default),
    };
    let (Some(threads @ 1..=256), Some(limit @ 1..=LIMIT_MAX)) = (number(2), number(10_000_000))
    else {
        eprintln!("usage: primes [THREADS (1..256) [LIMIT (1..{LIMIT_MAX})]]");
        return ExitCode::from(2);
    };
    let heart = Heartbeat::from_env();
    heart.describe("thousand numbers", 0.0, "primes");
    let primes = count(threads as usize, limit, &heart);
    println!("{primes} primes below {limit}");
    ExitCode::SUCCESS
}
