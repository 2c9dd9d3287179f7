// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of `usher bench sched`, as named on the command line.

use clap::ValueEnum;

/// The parts, in the order in which they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchedPart {
    /// Cost of a switch to another address space, on this machine
    Switches,
    /// Seven programs of two threads beside a thread that mostly sleeps (paper 4)
    Spaces,
    /// Erlang virtual machines with processes that exchange messages (paper 4)
    Erlang,
    /// The load of `erlang` in the real time of the emulator, in pairs of runs under EEVDF and
    /// Usher
    Elapsed,
    /// PostgreSQL, make and Java virtual machines beside a thread that mostly sleeps
    Mix,
    /// Two short and two long loops on two cores with two hardware threads each (paper 3b)
    Cores,
    /// Three programs with seats, by affinity masks and by soft seats (paper 1)
    Seats,
    /// Loops beside a program that continuously starts short programs
    ForkStorm,
    /// Instructions of a context switch
    Overhead,
    /// Instructions of a context switch on 8 CPUs with SMT, including the end and the start of idle
    /// time
    #[value(name = "overhead-8")]
    Overhead8,
    /// Instructions of a context switch on 48 CPUs with SMT, including the end and the start of
    /// idle time
    #[value(name = "overhead-48")]
    Overhead48,
    /// Wake-up latencies beside a parallel make and beside a fork storm
    Latency,
    /// Idle CPU time although threads wait, under random loads
    Conservation,
    /// Eight workloads under all schedulers; builds the peers
    Peers,
}
