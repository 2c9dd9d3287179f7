// SPDX-License-Identifier: MIT OR Apache-2.0
//! Test in a guest of the lab: the minimal FIFO scheduler runs many threads, which move from CPU to
//! CPU, without a fault. The kernel's own scheduler takes over when the program ends. This program
//! is also the init process of the guest's kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io;
use std::process::ExitCode;

use usher_lab::{GuestEnd, Streams, Vm};

/// Runs in the guest with the path of usher-bench as its argument.
const CHECK: &str = r#"
    state() { cat /sys/kernel/sched_ext/"$1"; }
    reaches() {
        for _ in $(seq 600); do [ "$(state state)" = "$1" ] && return; sleep 0.1; done
        echo "the scheduler is not $1" >&2; exit 1
    }
    set -e
    "$0" sched-minimal-fifo & pid=$!
    reaches enabled
    [ "$(state root/ops)" = minimal_fifo ]
    pipes=""
    for pair in $(seq 8); do
        for round in $(seq 40); do echo $round; done | {
            reader=$(sh -c 'echo $PPID')
            while read -r round; do
                # The reader moves from CPU to CPU.
                [ $((round % 4)) != 0 ] || taskset -cp $((round / 4 % 2)) "$reader" >/dev/null
            done
        } &
        pipes="$pipes $!"
    done
    wait $pipes
    [ "$(state state)" = enabled ]
    kill -INT $pid
    wait $pid
    reaches disabled
    ! dmesg | grep -E 'sched_ext.*(error|stall)|rcu.*stall|BUG:'
"#;

fn main() -> ExitCode {
    usher_lab::become_guest();
    let name = "minimal_fifo_runs_many_threads";
    println!("\nrunning 1 test");
    let command = ["sh", "-c", CHECK, env!("CARGO_BIN_EXE_usher-bench")].map(str::to_owned);
    let outcome = Vm::new("core:2").unwrap().run(
        &command,
        &mut Streams {
            out: &mut io::stdout(),
            err: &mut io::stderr(),
            console: None,
            interrupt: None,
        },
    );
    let end = outcome.map(|outcome| outcome.end);
    let passed = matches!(end, Ok(GuestEnd::Exited { status: 0 }));
    let (verdict, result) = match passed {
        true => ("ok", "ok. 1 passed; 0 failed"),
        false => ("FAILED", "FAILED. 0 passed; 1 failed"),
    };
    println!("test {name} ... {verdict}");
    if !passed {
        eprintln!("{end:?}");
    }
    println!("\ntest result: {result}");
    ExitCode::from(u8::from(!passed))
}
