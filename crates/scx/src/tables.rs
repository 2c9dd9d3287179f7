// SPDX-License-Identifier: GPL-2.0-only
//! Sizes of the tables in the BPF programs. The programs are compiled twice: for machines with at
//! most 64 CPUs, where a CPU set is one word, and for machines with at most [`CPUS_MAX`] CPUs. A
//! small machine therefore pays neither memory nor instructions for the tables of a large machine.
//!
//! A size is selected by the highest CPU number. Both builds come from the same source, and differ
//! in the macro `CPUS_MAX` of `sets.h` only.

use usher_rules::select_cpu::CPUS_MAX;

use crate::object::Aligned;
use crate::{Kernel, ScxError};

/// Includes an object file of the build script.
macro_rules! object {
    ($name:literal) => {
        &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name)))
    };
}

static SCHED_SMALL: &Aligned<[u8]> = object!("sched-64.bpf.o");
static SCHED_LARGE: &Aligned<[u8]> = object!("sched-2048.bpf.o");
static COUNT_SMALL: &Aligned<[u8]> = object!("count-64.bpf.o");
static COUNT_LARGE: &Aligned<[u8]> = object!("count-2048.bpf.o");

/// Size of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableSize {
    /// CPU numbers below 64.
    Small,
    /// CPU numbers below [`CPUS_MAX`].
    Large,
}

impl TableSize {
    /// The sizes, in ascending order.
    pub const ALL: [Self; 2] = [Self::Small, Self::Large];

    /// Returns the smallest size that holds these CPU numbers.
    ///
    /// # Errors
    /// A CPU number is [`CPUS_MAX`] or higher.
    pub fn of(cpus: impl Iterator<Item = u32>) -> Result<Self, ScxError> {
        let last = cpus.max().unwrap_or(0);
        let mut sizes = Self::ALL.into_iter();
        let holds = sizes.find(|size| (last as usize) < size.cpus());
        holds.ok_or(ScxError::TooManyCpus {
            cpu: last,
            most: CPUS_MAX,
        })
    }

    /// Returns the number of CPUs that the tables hold: `CPUS_MAX` of the build.
    pub fn cpus(self) -> usize {
        match self {
            Self::Small => 64,
            Self::Large => CPUS_MAX,
        }
    }

    /// Returns the number of words of a CPU set: `CPU_WORDS` of the build.
    pub fn words(self) -> usize {
        self.cpus() / 64
    }

    /// Returns the programs of the scheduler.
    pub fn scheduler(self) -> &'static [u8] {
        match self {
            Self::Small => &SCHED_SMALL.0,
            Self::Large => &SCHED_LARGE.0,
        }
    }

    /// Returns the programs of the counter.
    pub fn counter(self) -> &'static [u8] {
        match self {
            Self::Small => &COUNT_SMALL.0,
            Self::Large => &COUNT_LARGE.0,
        }
    }
}

/// Checks that the tables hold the online CPUs of this machine.
///
/// # Errors
/// A CPU number is [`CPUS_MAX`] or higher, or the kernel's list of CPUs cannot be read.
pub fn check_cpu_numbers(kernel: &Kernel) -> Result<(), ScxError> {
    TableSize::of(kernel.online()?.iter()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn online_cpus_beyond_the_tables_are_refused_in_one_line() {
        let sys = tempfile::tempdir().unwrap();
        let cpu = sys.path().join("devices/system/cpu");
        std::fs::create_dir_all(&cpu).unwrap();
        for (online, refused) in [("0-2047", false), ("0-2048", true)] {
            std::fs::write(cpu.join("online"), online).unwrap();
            let error = check_cpu_numbers(&Kernel::at(sys.path())).err();
            let lines = error.map(|error| error.to_string().lines().count());
            assert_eq!(lines, refused.then_some(1), "{online}");
        }
    }

    #[test]
    fn smallest_size_that_holds_the_cpus_is_selected() {
        let of = |last: u32| TableSize::of([0, last].into_iter());
        for last in [0, 7, 63] {
            assert_eq!(of(last).unwrap(), TableSize::Small, "{last}");
        }
        for last in [64, 511, 512, 2047] {
            assert_eq!(of(last).unwrap(), TableSize::Large, "{last}");
        }
        let error = of(2048).unwrap_err().to_string();
        assert_eq!(
            error,
            "CPU 2048 is beyond the 2048 CPUs that the scheduler supports"
        );
    }
}
