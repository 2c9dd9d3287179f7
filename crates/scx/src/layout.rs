// SPDX-License-Identifier: GPL-2.0-only
//! The values of the maps, as `bpf/shared.h` has them; tests hold this against the compiled
//! programs.

use serde::{Deserialize, Serialize, Serializer};
use usher_rules::latency::{SLOTS, below};
use usher_rules::levels::LEVEL;
use usher_rules::when::MM_QUEUES_PER_LLC;

const MS: u64 = 1_000_000;

/// What the scheduler is to do; it may be told anew while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// How long a thread runs before the CPU asks who is next.
    pub slice_ns: u64,
    /// How long threads of one address space may follow one another.
    pub turn_ns: u64,
    /// How far they may get ahead of whoever waits, in virtual time.
    pub max_lag_ns: u64,
    /// Idle physical cores first, and no two on a core beside an idle one.
    pub smt: bool,
    /// Threads of one address space one after another.
    pub aggregate: bool,
    /// First come, first served, blind to SMT: to compare with.
    pub fifo: bool,
    /// With `fifo`: another program, which does that alone, to hold what ours costs against.
    #[serde(default)]
    pub minimal: bool,
    /// By the levels of Linux 2.6 instead of virtual time: to compare with.
    #[serde(default)]
    pub o1: bool,
    /// Seats are kept for the control loop. Nothing that the programs are told: without
    /// any that are given, nobody has one.
    #[serde(default = "yes")]
    pub seats: bool,
}

fn yes() -> bool {
    true
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            slice_ns: 3 * MS,
            turn_ns: 24 * MS,
            max_lag_ns: 24 * MS,
            smt: true,
            aggregate: true,
            fifo: false,
            minimal: false,
            o1: false,
            seats: true,
        }
    }
}

impl Settings {
    /// The order of Linux 2.6's O(1) scheduler, blind to SMT. With `aggregate`
    /// paper 4's cure: threads of the address space that runs are a level better.
    pub fn of_linux_26(aggregate: bool) -> Self {
        Self {
            turn_ns: u64::MAX,
            max_lag_ns: LEVEL,
            smt: false,
            aggregate,
            o1: true,
            seats: false,
            ..Self::default()
        }
    }

    /// One of the orders to compare with, which knows neither cores nor seats and
    /// stays as it was started.
    pub fn is_fixed(&self) -> bool {
        self.fifo || self.o1
    }

    /// `struct order`, on a machine of nodes that the kernel keeps apart, and of CPUs that lie
    /// in so many words of a set.
    pub(crate) fn order(&self, nodes: u64, cpu_words: u64) -> Vec<u8> {
        let flags = [self.fifo, self.o1].map(u32::from);
        let mut bytes: Vec<u8> = flags.into_iter().flat_map(u32::to_ne_bytes).collect();
        bytes.extend([nodes, cpu_words].into_iter().flat_map(u64::to_ne_bytes));
        bytes
    }

    /// `struct settings`.
    pub(crate) fn bytes(&self, llcs: u32) -> Vec<u8> {
        let long = [self.slice_ns, self.turn_ns, self.max_lag_ns];
        let flags = [self.smt, self.aggregate];
        let words = flags.map(u32::from).into_iter().chain([llcs, 0]);
        let mut bytes: Vec<u8> = long.iter().flat_map(|value| value.to_ne_bytes()).collect();
        bytes.extend(words.flat_map(u32::to_ne_bytes));
        bytes
    }
}

/// What the scheduler has done since it began, over all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Threads that began to run.
    pub switches: u64,
    /// User threads after ones of another address space on their CPU.
    pub space_switches: u64,
    /// Threads sent to an idle core.
    pub idle_cores: u64,
    /// Threads sent to an idle CPU of a core that works already.
    pub idle_threads: u64,
    /// Threads that waited for a turn, in the queues of address spaces.
    pub queued: u64,
    /// Slices given anew, for nobody waited.
    pub prolonged: u64,
    /// Slices given anew though somebody waited: the turn went on.
    pub turns_kept: u64,
    /// Threads taken from another LLC's queues.
    pub stolen: u64,
    /// Kicks of idle cores at threads that share one.
    pub pulls: u64,
    /// Running threads moved to an idle CPU.
    pub moved: u64,
    /// Threads that waited among the urgent ones.
    pub soon: u64,
    /// Threads preempted by urgent ones.
    pub preempted: u64,
    /// CPUs that guests had to give back.
    pub returned: u64,
    /// Threads sent to idle cores of other programs.
    pub borrowed: u64,
}

/// `struct cpu_tally`, with what keeps it apart from the next CPU's.
pub(crate) const CPU_TALLY_BYTES: usize = Tally::BYTES.next_multiple_of(64);

impl Tally {
    pub(crate) const BYTES: usize = 14 * 8;

    fn figures(&mut self) -> [&mut u64; 14] {
        [
            &mut self.switches,
            &mut self.space_switches,
            &mut self.idle_cores,
            &mut self.idle_threads,
            &mut self.queued,
            &mut self.prolonged,
            &mut self.turns_kept,
            &mut self.stolen,
            &mut self.pulls,
            &mut self.moved,
            &mut self.soon,
            &mut self.preempted,
            &mut self.returned,
            &mut self.borrowed,
        ]
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for (sum, word) in self.figures().into_iter().zip(words(bytes)) {
            *sum += word;
        }
    }

    /// What has come since an earlier look.
    #[must_use]
    pub fn since(mut self, mut before: Self) -> Self {
        for (sum, earlier) in self.figures().into_iter().zip(before.figures()) {
            *sum = sum.saturating_sub(*earlier);
        }
        self
    }
}

/// Counts by slot, up to the last that is not 0: whoever reads them need not scroll.
pub(crate) fn without_last_zeros<S: Serializer>(counts: &[u64], to: S) -> Result<S::Ok, S::Error> {
    let end = counts.iter().rposition(|&count| count > 0);
    to.collect_seq(&counts[..end.map_or(0, |last| last + 1)])
}

/// What became of a program's seat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SeatTally {
    /// CPU time of its threads on its own CPUs.
    pub home_ns: u64,
    /// CPU time of its threads on others'.
    pub guest_ns: u64,
    /// Threads that had one of their CPUs back from a guest.
    pub returns: u64,
    /// How many of these ran after so many nanoseconds, four counts to a power of two.
    #[serde(serialize_with = "without_last_zeros")]
    pub return_latency: Vec<u64>,
}

impl Default for SeatTally {
    fn default() -> Self {
        Self {
            home_ns: 0,
            guest_ns: 0,
            returns: 0,
            return_latency: vec![0; SLOTS],
        }
    }
}

impl SeatTally {
    pub(crate) const BYTES: usize = 3 * 8 + SLOTS * 8;

    fn figures(&mut self) -> impl Iterator<Item = &mut u64> {
        let first = [&mut self.home_ns, &mut self.guest_ns, &mut self.returns];
        first.into_iter().chain(&mut self.return_latency)
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for (sum, word) in self.figures().zip(words(bytes)) {
            *sum += word;
        }
    }

    /// What has come since an earlier look.
    #[must_use]
    pub fn since(mut self, mut before: Self) -> Self {
        for (sum, earlier) in self.figures().zip(before.figures()) {
            *sum = sum.saturating_sub(*earlier);
        }
        self
    }

    /// A time within which that share of returns was over; `None`: there were none.
    pub fn return_below_ns(&self, share: f64) -> Option<u64> {
        below(&self.return_latency, share)
    }
}

/// Why a thread is where it runs, or waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// It was there before the scheduler was.
    Unknown,
    /// It may run nowhere else.
    OnlyHere,
    /// The core was idle.
    IdleCore,
    /// The CPU was idle, another thread of its core was not.
    IdleThread,
    /// A CPU of its program's that a guest had.
    Returned,
    /// The turn of its address space.
    Turn,
    /// It wakes for moments only, and waits among those that do.
    Urgent,
    /// Taken over from another LLC.
    Stolen,
    /// Nobody else wanted the CPU.
    Alone,
    /// First come, first served.
    Fifo,
    /// Its level's, as in Linux 2.6.
    Level,
}

/// By the numbers of `enum why`.
pub(crate) const WHYS: [Why; 11] = [
    Why::Unknown,
    Why::OnlyHere,
    Why::IdleCore,
    Why::IdleThread,
    Why::Returned,
    Why::Turn,
    Why::Urgent,
    Why::Stolen,
    Why::Alone,
    Why::Fifo,
    Why::Level,
];

/// Where a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queue {
    /// Among the urgent ones of this LLC.
    Urgent {
        /// Its number, as topology discovery has it.
        llc: u32,
    },
    /// In a queue of its address space in this LLC.
    AddressSpace {
        /// Its number, as topology discovery has it.
        llc: u32,
        /// Which of the queues.
        queue: u32,
    },
}

/// What the scheduler knows of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadState {
    /// The CPU that it last ran on.
    pub cpu: u32,
    /// How it came there.
    pub why: Why,
    /// Where it waits, if it does.
    pub waits: Option<Queue>,
    /// It is served before others; of one that sleeps, as it was when it last ran.
    pub urgent: bool,
    /// How long it runs before it sleeps, on average, as of when it last woke.
    pub burst_average_ns: u64,
    /// How far ahead of the others it was when it last ran or woke, in virtual time.
    pub lag_ns: i64,
    /// The cgroup that gives it a seat.
    pub seat: Option<u64>,
    /// It may run on none of its seat's CPUs, so that it has none.
    pub kept_from_seat: bool,
    /// What the `cpu.weight` of its cgroups makes of its weight, in per cent.
    pub group_weight: u32,
}

/// `QUEUES`, `QUEUES_EACH` and `URGENT` of state.h.
pub(crate) const QUEUES: u32 = 0x1000;
pub(crate) const QUEUES_EACH: u32 = 64;
pub(crate) const URGENT: u32 = MM_QUEUES_PER_LLC as u32;

impl ThreadState {
    pub(crate) const BYTES: usize = 10 * 8 + 6 * 4 + 8 * 8;

    pub(crate) fn read(bytes: &[u8]) -> Self {
        let long: Vec<u64> = words(bytes).collect();
        let [cgroup, seat] = [long[5], long[8]];
        let low = |word: u64| word as u32;
        let (queue, urgent) = (low(long[10]), long[10] >> 32 != 0);
        let (cpu, why) = (low(long[11]), (long[11] >> 32) as usize);
        let waits = queue.checked_sub(QUEUES).map(|at| {
            let (llc, queue) = (at / QUEUES_EACH, at % QUEUES_EACH);
            match queue {
                URGENT => Queue::Urgent { llc },
                _ => Queue::AddressSpace { llc, queue },
            }
        });
        Self {
            cpu,
            why: WHYS.get(why).copied().unwrap_or(Why::Unknown),
            waits,
            urgent,
            burst_average_ns: long[3],
            lag_ns: long[4] as i64,
            seat: (cgroup != 0).then_some(cgroup),
            kept_from_seat: cgroup != 0 && seat == 0,
            // Not weighed yet: it has not run.
            group_weight: match (long[12] >> 32) as u32 {
                0 => 100,
                percent => percent,
            },
        }
    }
}

/// How the kernel ended the scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ending {
    /// `enum scx_exit_kind`.
    pub kind: u64,
    /// What is to be done about it, in the kernel's numbers.
    pub code: u64,
    /// The kernel's word for the kind.
    pub reason: String,
    /// What it has to say.
    pub message: String,
    /// The state of the CPUs and of the threads that waited.
    pub dump: String,
}

/// SCX_ECODE_ACT_RESTART of the kernel: nothing was wrong, begin anew.
const RESTART: u64 = 1 << 48;
/// From here on the kernel calls it an error.
const KIND_ERROR: u64 = 1024;

impl Ending {
    pub(crate) const BYTES: usize = 16 + 128 + 1024;

    pub(crate) fn read(bytes: &[u8], dump: &[u8]) -> Self {
        let mut numbers = words(bytes);
        Self {
            kind: numbers.next().unwrap_or(0),
            code: numbers.next().unwrap_or(0),
            reason: text(&bytes[16..144]),
            message: text(&bytes[144..]),
            dump: text(dump),
        }
    }

    /// The machine has changed: a new scheduler knows the new one.
    pub fn asks_for_restart(&self) -> bool {
        !self.is_error() && self.code & RESTART != 0
    }

    /// Something went wrong.
    pub fn is_error(&self) -> bool {
        self.kind >= KIND_ERROR
    }
}

pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|chunk| {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    })
}

/// A C string.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_told_apart() {
        let ending = |kind: u64, code: u64| {
            let mut bytes = vec![0; Ending::BYTES];
            bytes[..8].copy_from_slice(&kind.to_ne_bytes());
            bytes[8..16].copy_from_slice(&code.to_ne_bytes());
            bytes[16..22].copy_from_slice(b"reason");
            Ending::read(&bytes, b"dump\0rest")
        };
        let stall = ending(1026, 0);
        assert!(stall.is_error() && !stall.asks_for_restart());
        assert_eq!(
            (stall.reason.as_str(), stall.dump.as_str()),
            ("reason", "dump")
        );
        assert!(ending(66, RESTART | 1 << 32).asks_for_restart());
        assert!(!ending(64, 0).asks_for_restart());
    }

    #[test]
    fn what_has_come_since_is_told() {
        let tally = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let mut tally = Tally::default();
            tally.add(&bytes);
            tally
        };
        let all: Vec<u64> = (10..24).collect();
        let since = tally(&all).since(tally(&[4, 4]));
        assert_eq!((since.switches, since.space_switches), (6, 7));
        assert_eq!(since.borrowed, 23);
        let seat = |home_ns, late| {
            let mut seat = SeatTally {
                home_ns,
                ..SeatTally::default()
            };
            seat.return_latency[9] = late;
            seat
        };
        assert_eq!(seat(9, 5).since(seat(4, 3)), seat(5, 2));
    }
}
