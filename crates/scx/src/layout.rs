// SPDX-License-Identifier: GPL-2.0-only
//! Converts the values of the BPF maps, in the layout of `bpf/shared.h`, to and from Rust types:
//! settings, counters, the state of a thread, and the report of the scheduler's end. The values are
//! bytes in the byte order of this machine. Tests compare the fields with the compiled programs
//! (`shared`). The sizes are compared when a map is opened. Each conversion takes time in
//! proportion to the size of the value.
//!
//! A value that is shorter than its type panics; the size check when a map is opened excludes such
//! values. Numbers of an unknown reason become [`Why::Unknown`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use usher_rules::latency::{SLOTS, below};
use usher_rules::run_queue::MM_QUEUES_PER_LLC;

use crate::machine::Tables;

const MS: u64 = 1_000_000;

/// Settings of the scheduler. All settings except `fifo` may change while the scheduler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Settings {
    /// Length of a slice.
    pub slice_ns: u64,
    /// Longest turn of an address space.
    pub turn_ns: u64,
    /// Largest virtual time by which an address space may get ahead of waiting threads.
    pub max_lag_ns: u64,
    /// Prefer CPUs of idle cores, and do not let two threads share a core while another core is
    /// idle.
    pub smt: bool,
    /// Run threads of one address space one after another.
    pub aggregate: bool,
    /// Run the variant with FIFO order and without knowledge of SMT, which serves for comparison.
    pub fifo: bool,
    /// Let the control loop keep soft seats. Only user space uses this flag; the BPF programs see
    /// only the seats.
    #[serde(default = "yes")]
    pub seats: bool,
}

/// Default of [`Settings::seats`].
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
            seats: true,
        }
    }
}

impl Settings {
    /// Returns the bytes of `struct variant`. `nodes` is the bitmask of the nodes for which the
    /// kernel keeps separate idle masks.
    pub(crate) fn variant(&self, tables: &Tables, nodes: u64) -> Vec<u8> {
        let flags = [u32::from(self.fifo), tables.classes];
        let mut bytes: Vec<u8> = flags.into_iter().flat_map(u32::to_ne_bytes).collect();
        // FIFO order has one queue for all CPUs.
        let isolates = tables.isolates && !self.fifo;
        let words = [nodes, tables.cpu_words, isolates.into()];
        bytes.extend(words.into_iter().flat_map(u64::to_ne_bytes));
        bytes
    }

    /// Returns the bytes of `struct settings`.
    pub(crate) fn bytes(&self, llcs: u32) -> Vec<u8> {
        let long = [self.slice_ns, self.turn_ns, self.max_lag_ns];
        let flags = [self.smt, self.aggregate];
        let words = flags.map(u32::from).into_iter().chain([llcs, 0]);
        let mut bytes: Vec<u8> = long.iter().flat_map(|value| value.to_ne_bytes()).collect();
        bytes.extend(words.flat_map(u32::to_ne_bytes));
        bytes
    }
}

/// Counters since the start of the scheduler, summed over all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Tally {
    /// Threads that started to run.
    pub switches: u64,
    /// Switches to a user thread after a thread of another address space on the same CPU.
    pub space_switches: u64,
    /// Threads placed on an idle core.
    pub idle_cores: u64,
    /// Threads placed on an idle CPU of a busy core.
    pub idle_threads: u64,
    /// Threads enqueued in the queues of address spaces.
    pub queued: u64,
    /// Slices extended because no other thread was runnable on the CPU.
    pub prolonged: u64,
    /// Slices extended although threads waited, within a turn.
    pub turns_kept: u64,
    /// Threads taken from another LLC's queues.
    pub stolen: u64,
    /// Threads pulled from a shared core by an idle core.
    pub pulls: u64,
    /// Running threads moved to an idle CPU.
    pub moved: u64,
    /// Threads enqueued in the urgent queues.
    pub soon: u64,
    /// Threads preempted by urgent threads.
    pub preempted: u64,
    /// CPUs reclaimed from borrowers.
    pub returned: u64,
    /// Threads placed on idle CPUs outside their seats.
    pub borrowed: u64,
}

/// Size of `struct cpu_tally`, aligned to cache lines.
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

    /// Returns the difference to an earlier reading.
    #[must_use]
    pub fn since(mut self, mut before: Self) -> Self {
        for (sum, earlier) in self.figures().into_iter().zip(before.figures()) {
            *sum = sum.saturating_sub(*earlier);
        }
        self
    }
}

/// Serialises a histogram up to the last slot that is not 0.
pub(crate) fn without_last_zeros<S: Serializer>(counts: &[u64], to: S) -> Result<S::Ok, S::Error> {
    let end = counts.iter().rposition(|&count| count > 0);
    to.collect_seq(&counts[..end.map_or(0, |last| last + 1)])
}

/// Counters of a seat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SeatTally {
    /// CPU time of the seat's threads on the CPUs of the seat.
    pub home_ns: u64,
    /// CPU time of the seat's threads on other CPUs, as borrowers.
    pub guest_ns: u64,
    /// Preemptions of borrowers by threads of this seat.
    pub returns: u64,
    /// Histogram of the latency from such a preemption until the preempting thread ran, in
    /// nanoseconds, with four slots per power of two.
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

    /// Returns the difference to an earlier reading.
    #[must_use]
    pub fn since(mut self, mut before: Self) -> Self {
        for (sum, earlier) in self.figures().zip(before.figures()) {
            *sum = sum.saturating_sub(*earlier);
        }
        self
    }

    /// Returns the latency in nanoseconds that the fraction `share` of the preemptions does not
    /// reach; `None` without preemptions.
    pub fn return_below_ns(&self, share: f64) -> Option<u64> {
        below(&self.return_latency, share)
    }
}

/// Reason for the CPU on which a thread runs, or for its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The thread existed before the scheduler.
    Unknown,
    /// The thread may run on no other CPU.
    OnlyHere,
    /// All CPUs of its core were idle.
    IdleCore,
    /// Its CPU was idle, but another hardware thread of the core was busy.
    IdleThread,
    /// The CPU is a preferred CPU, which the thread has reclaimed from a borrower.
    Returned,
    /// The thread comes from the queue of its address space.
    Turn,
    /// The thread comes from the urgent queue, because its bursts are short.
    Urgent,
    /// The CPU has taken the thread from a queue of another LLC.
    Stolen,
    /// No other thread was runnable on the CPU.
    Alone,
    /// The scheduler runs all threads in FIFO order.
    Fifo,
    /// A cgroup of the thread has used up its quota (`cpu.max`).
    Throttled,
    /// The core was idle, and is faster than the core on which the thread ran before.
    FasterCore,
    /// The thread may run on isolated CPUs only.
    Isolated,
}

/// The reasons in the order of `enum why`.
pub(crate) const WHYS: [Why; 13] = [
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
    Why::Throttled,
    Why::FasterCore,
    Why::Isolated,
];

/// Reason for the LLC of a thread when it last woke, or started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The thread has neither started nor woken under the scheduler.
    Unknown,
    /// The thread is new, and the load of its parent's LLC was low enough.
    NewNear,
    /// The thread is new and started in an LLC with a lower load than that of its parent.
    NewIdlest,
    /// The thread woke, and found a CPU in its LLC.
    SameLlc,
    /// The thread woke, and found a CPU in another LLC of its node.
    SameNode,
    /// The thread woke, and found a CPU only in another node.
    OtherNode,
    /// The thread woke, and exchanges data with the thread that woke it.
    Waker,
    /// The thread woke, and found no CPU.
    Waits,
}

/// The reasons in the order of `enum placement`.
pub(crate) const PLACEMENTS: [Placement; 8] = [
    Placement::Unknown,
    Placement::NewNear,
    Placement::NewIdlest,
    Placement::SameLlc,
    Placement::SameNode,
    Placement::OtherNode,
    Placement::Waker,
    Placement::Waits,
];

/// Queue in which a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Queue {
    /// The urgent queue of an LLC.
    Urgent {
        /// Number of the LLC, as in the topology.
        llc: u32,
    },
    /// The queue of the thread's address space, which other address spaces may share.
    AddressSpace {
        /// Number of the LLC, as in the topology.
        llc: u32,
        /// Index of the queue in the LLC.
        queue: u32,
    },
    /// The park queue of a cgroup that has used up its quota.
    Throttled {
        /// Number of the cgroup.
        cgroup: u64,
    },
}

/// State of a thread in the scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ThreadState {
    /// CPU on which the thread last ran.
    pub cpu: u32,
    /// Reason for that CPU.
    pub why: Why,
    /// Queue in which the thread waits; `None` if it does not wait.
    pub waits: Option<Queue>,
    /// Whether the thread is urgent; for a sleeping thread, whether it was urgent when it last ran.
    pub urgent: bool,
    /// Average length of its bursts, as of the last wake-up.
    pub burst_average_ns: u64,
    /// Lag when the thread last ran or woke. It is positive if the thread was ahead of the waiting
    /// threads in virtual time.
    pub lag_ns: i64,
    /// Number of the cgroup with the thread's seat; `None` without a seat.
    pub seat: Option<u64>,
    /// Whether the seat does not apply, because the thread may run on none of the seat's CPUs.
    pub kept_from_seat: bool,
    /// Factor of its weight by the shares of its cgroups, in per cent.
    pub group_weight: u32,
    /// Reason for `placed_llc`.
    pub placed: Placement,
    /// LLC in which the thread last woke or started, as in the topology.
    pub placed_llc: u32,
    /// Capacity of the CPU on which the thread last ran, 1024 for the fastest CPUs. `None` if all
    /// CPUs have the same capacity, or the thread has not run.
    pub capacity: Option<u32>,
}

/// `QUEUES`, `QUEUES_PER_LLC` and `URGENT` of state.h.
pub(crate) const QUEUES: u32 = 0x1000;
/// `PARKED` of state.h.
pub(crate) const PARKED: u32 = 1;
pub(crate) const QUEUES_PER_LLC: u32 = 64;
pub(crate) const URGENT: u32 = MM_QUEUES_PER_LLC as u32;

/// `FACTOR_ONE` of share.h.
const FACTOR_ONE: u64 = 1 << 16;

impl ThreadState {
    pub(crate) const BYTES: usize = 31 * 8;

    pub(crate) fn read(bytes: &[u8]) -> Self {
        let long: Vec<u64> = words(bytes).collect();
        let [cgroup, seat] = [long[5], long[8]];
        let low = |word: u64| word as u32;
        let (queue, urgent) = (low(long[10]), long[10] >> 32 != 0);
        let (cpu, why) = (low(long[11]), (long[11] >> 32) as usize);
        let waits = queue.checked_sub(QUEUES).map(|at| {
            let (llc, queue) = (at / QUEUES_PER_LLC, at % QUEUES_PER_LLC);
            match queue {
                URGENT => Queue::Urgent { llc },
                _ => Queue::AddressSpace { llc, queue },
            }
        });
        let parked = (queue == PARKED).then_some(Queue::Throttled { cgroup: long[23] });
        Self {
            cpu,
            why: WHYS.get(why).copied().unwrap_or(Why::Unknown),
            waits: waits.or(parked),
            urgent,
            burst_average_ns: long[3],
            lag_ns: long[4] as i64,
            seat: (cgroup != 0).then_some(cgroup),
            kept_from_seat: cgroup != 0 && seat == 0,
            // 0 means that the factor has not been stored yet, because the thread has not run.
            group_weight: match long[12] >> 32 {
                0 => 100,
                factor => ((factor * 100 + FACTOR_ONE / 2) / FACTOR_ONE) as u32,
            },
            placed: PLACEMENTS
                .get(low(long[28]) as usize)
                .copied()
                .unwrap_or(Placement::Unknown),
            placed_llc: (long[28] >> 32) as u32,
            capacity: Some((long[29] >> 32) as u32).filter(|capacity| *capacity != 0),
        }
    }
}

/// Report of the end of the scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ending {
    /// Kind of the end: a value of `enum scx_exit_kind`.
    pub kind: u64,
    /// Exit code with the requested action, in the kernel's encoding.
    pub code: u64,
    /// The kernel's name for the kind.
    pub reason: String,
    /// The kernel's message.
    pub message: String,
    /// The kernel's dump of the CPUs and the waiting threads.
    pub dump: String,
}

/// Bit of the exit code by which the kernel requests a new scheduler, without an error:
/// SCX_ECODE_ACT_RESTART.
const RESTART: u64 = 1 << 48;
/// Lowest value of `enum scx_exit_kind` that is an error.
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

    /// Returns whether the kernel requests a new scheduler, because the machine has changed.
    pub fn asks_for_restart(&self) -> bool {
        !self.is_error() && self.code & RESTART != 0
    }

    /// Returns whether the scheduler ended because of an error.
    pub fn is_error(&self) -> bool {
        self.kind >= KIND_ERROR
    }
}

/// Returns the 64-bit words of a value. A remainder of less than 8 bytes is left out.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|chunk| {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    })
}

/// Converts a C string: returns the text before the first 0 byte.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_request_is_distinguished_from_error() {
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
    fn since_subtracts_earlier_counts() {
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
