// SPDX-License-Identifier: MIT OR Apache-2.0
//! Test of the baseline schedulers (`src/bpf`) in a guest of the lab. Each baseline runs many
//! threads, which migrate between CPUs, and the kernel must report no error. Under the O(1)
//! schedulers, each of three loops must get at least half of its fair share of a CPU. After the end
//! of the program that loaded the baseline, the kernel's own scheduler must run again. This test
//! program is also the init process of the guest.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io;
use std::process::ExitCode;

use usher_lab::{GuestEnd, Streams, Vm};

/// Shell script that runs in the guest, with the path of usher-bench as its argument.
const CHECK: &str = r#"
    set -e
    state() { cat /sys/kernel/sched_ext/"$1"; }
    reaches() {
        for _ in $(seq 600); do [ "$(state state)" = "$1" ] && return; sleep 0.1; done
        echo "the scheduler is not $1" >&2; exit 1
    }
    pairs() {
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
    }
    # CPU time in ticks of 10 ms.
    ran() { set -- $(cat /proc/"$1"/stat); echo $((${14} + ${15})); }
    # Waits until each loop has run for $1 ticks; `had`: their CPU times.
    until_each_ran() {
        for _ in $(seq 3000); do
            had=""; least=1000000
            for loop in $pids; do
                its=$(ran $loop); had="$had $its"
                [ $its -ge $least ] || least=$its
            done
            [ $least -lt $1 ] || return 0
            sleep 0.1
        done
        echo "the loops ran for$had ticks only" >&2; exit 1
    }
    loops() {
        pids=""
        for loop in 1 2 3; do taskset -c 1 sh -c 'while :; do :; done' & pids="$pids $!"; done
        until_each_ran 10
        before=$had
        most=0
        for its in $before; do [ $its -le $most ] || most=$its; done
        until_each_ran $((most + 150))
        kill -KILL $pids
        wait $pids || true
        # The start of the loops does not count: the first began earlier.
        set -- $had $before
        least=1000000; sum=0
        for its in $(($1 - $4)) $(($2 - $5)) $(($3 - $6)); do
            sum=$((sum + its)); [ $its -ge $least ] || least=$its
        done
        echo "the loops ran for $sum ticks, one of them for $least"
        [ $((least * 6)) -ge $sum ]
    }
    for baseline in minimal-fifo:minimal_fifo o1-plain:o1 o1-aggregate:o1; do
        "$0" sched-baseline ${baseline%:*} & pid=$!
        reaches enabled
        [ "$(state root/ops)" = ${baseline#*:} ]
        pairs
        # The minimal FIFO does not promise it.
        [ ${baseline#*:} != o1 ] || loops
        [ "$(state state)" = enabled ]
        kill -INT $pid
        wait $pid
        reaches disabled
    done
    ! dmesg | grep -E 'sched_ext.*(error|stall)|rcu.*stall|BUG:'
"#;

fn main() -> ExitCode {
    usher_lab::become_guest();
    let name = "baselines_run_many_threads_and_divide_a_cpu";
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
