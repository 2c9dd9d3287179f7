// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machines of the guests. Parts with the same machine run in the same guest.

use clap::ValueEnum;
use usher_lab::Clock;

use super::lab::{GuestMachine, VIRTUAL};

/// Machine with two CPUs, for loads with more threads than CPUs.
pub const TWO: GuestMachine = GuestMachine {
    name: "two",
    topology: "core:2",
    cpus_off: "",
    append: "",
    clock: VIRTUAL,
};
/// Machine with two CPUs in the real time of the emulator.
pub const PLAIN: GuestMachine = GuestMachine {
    name: "plain",
    clock: Clock::Host,
    ..TWO
};
/// Machine with two CPUs for the part `mix`. The part has a machine of its own, because its
/// programs use CPU time even between measurements.
pub const MIX: GuestMachine = GuestMachine { name: "mix", ..TWO };
/// Kernel parameter: the CPUs have their ticks at different times. The emulator runs each CPU until
/// the next timer of any CPU. With this parameter, a CPU therefore receives interrupts of other
/// CPUs sooner, as on hardware.
const TICKS_APART: &str = "skew_tick=1";
/// Machine with two cores of two hardware threads each.
pub const THREADS: GuestMachine = GuestMachine {
    name: "threads",
    topology: "core:2 pu:2",
    append: TICKS_APART,
    ..TWO
};
/// Machine with 48 cores in 8 dies, for programs with seats.
pub const MANY_CPUS: GuestMachine = GuestMachine {
    name: "many",
    topology: "package:4 die:2 core:6",
    append: TICKS_APART,
    ..TWO
};
/// Machine with one CPU online and one CPU offline. The affinity masks of threads contain both
/// CPUs; with a mask of a single CPU, the scheduler would execute other code.
pub const ONE: GuestMachine = GuestMachine {
    name: "one",
    cpus_off: "1",
    ..TWO
};
/// Machine with 8 CPUs (four cores with SMT) in one LLC.
pub const EIGHT: GuestMachine = GuestMachine {
    name: "eight",
    topology: "core:4 pu:2",
    append: TICKS_APART,
    ..TWO
};
/// Machine with 48 CPUs (24 cores with SMT) in four LLCs.
pub const FORTY_EIGHT: GuestMachine = GuestMachine {
    name: "forty-eight",
    topology: "package:2 die:2 core:6 pu:2",
    append: TICKS_APART,
    ..TWO
};
/// Machine with 8 CPUs (four cores with SMT) in two LLCs, for all schedulers. With one LLC,
/// cache-aware load balancing would have no effect.
pub const TWO_LLCS: GuestMachine = GuestMachine {
    name: "two-llcs",
    topology: "package:1 die:2 core:2 pu:2",
    append: TICKS_APART,
    ..TWO
};
/// Number of CPUs of the guest of the parts `latency`, `conservation` and `peers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GuestCpus {
    /// One CPU
    #[value(name = "1")]
    One,
    /// Four cores with SMT, in two LLCs
    #[value(name = "8")]
    Eight,
    /// 24 cores with SMT, in four LLCs
    #[value(name = "48")]
    FortyEight,
}

impl GuestCpus {
    /// Name of the machine.
    pub fn machine(self) -> &'static str {
        match self {
            Self::One => ONE.name,
            Self::Eight => TWO_LLCS.name,
            Self::FortyEight => FORTY_EIGHT.name,
        }
    }

    /// Number of CPUs.
    pub fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Eight => 8,
            Self::FortyEight => 48,
        }
    }
}

/// All guest machines.
pub const MACHINES: [GuestMachine; 9] = [
    TWO,
    PLAIN,
    MIX,
    THREADS,
    MANY_CPUS,
    ONE,
    EIGHT,
    FORTY_EIGHT,
    TWO_LLCS,
];
