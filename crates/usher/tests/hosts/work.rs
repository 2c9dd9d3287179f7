// SPDX-License-Identifier: GPL-2.0-only
//! The program that the checks launch: threads that compute at intervals. The threads sleep in
//! between, because the CPUs of a guest share one CPU of the host, and threads that never sleep
//! would slow down everything.

use std::time::{Duration, Instant};

const BURST: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_millis(40);

/// Computes in `threads` threads until a signal ends the process.
pub fn run(threads: Option<String>) -> ! {
    let threads: usize = threads.and_then(|text| text.parse().ok()).unwrap_or(1);
    for _ in 1..threads {
        std::thread::spawn(|| compute());
    }
    compute()
}

/// Computes without sleeps in `threads` threads until a signal ends the process.
pub fn spin(threads: Option<String>) -> ! {
    let threads: usize = threads.and_then(|text| text.parse().ok()).unwrap_or(1);
    let forever = || {
        // The emulator takes long for the instruction of `spin_loop`.
        for number in 0_u64.. {
            std::hint::black_box(number);
        }
        unreachable!("the counter has 64 bits")
    };
    for _ in 1..threads {
        std::thread::spawn(forever);
    }
    forever()
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
