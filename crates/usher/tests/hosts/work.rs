// SPDX-License-Identifier: GPL-2.0-only
//! The program that the checks launch: threads that compute now and then. The CPUs of
//! a guest take turns on one of the host's, so threads that never sleep slow everything.

use std::time::{Duration, Instant};

const BURST: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_millis(40);

/// Computes in so many threads until a signal ends the process.
pub fn run(threads: Option<String>) -> ! {
    let threads: usize = threads.and_then(|text| text.parse().ok()).unwrap_or(1);
    for _ in 1..threads {
        std::thread::spawn(|| compute());
    }
    compute()
}

fn compute() -> ! {
    loop {
        let begun = Instant::now();
        while begun.elapsed() < BURST {
            std::hint::spin_loop();
        }
        std::thread::park_timeout(PAUSE);
    }
}
