// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated machine and workloads of paper 3a: each figure with its source (published, Linux
//! 2.4.4, assumed, or fitted), and the placements of structures that are compared. Fitted figures
//! have one value for both workloads.

use serde::Serialize;
use usher_cache::{Geometry, GeometryError};
use usher_tasks::color::{ColorError, Coloring};

use crate::kernel::{BLOCK_BYTES, STRUCTURE_BYTES};
use crate::workload::{Chat, Web, Workload};

/// Source of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Source {
    /// Paper 3a, or its authors' longer paper (USENIX 2002).
    Paper,
    /// The source code of Linux 2.4.4.
    Linux,
    /// Descriptions of the benchmark or the program.
    Description,
    /// Not published; assumed.
    Assumed,
    /// Fitted to published lock times, misses and the web's gain on one CPU, with one value for
    /// both workloads. No other gain was used.
    Fitted,
}

impl Source {
    /// Name of the source.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Linux => "Linux 2.4.4",
            Self::Description => "descriptions",
            Self::Assumed => "assumed",
            Self::Fitted => "fitted",
        }
    }
}

/// A machine and its kernel; times in cycles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SmpMachine {
    /// Cycles per microsecond.
    pub clock_mhz: u64,
    /// Size of a CPU's second-level cache.
    pub l2_bytes: usize,
    /// Its associativity.
    pub l2_ways: usize,
    /// Line size.
    pub line_bytes: usize,
    /// Size of the memory that contains task structures and other data at random addresses.
    pub memory_bytes: usize,
    /// Access to a line in the second level.
    pub hit_cycles: u64,
    /// Access to a line in memory or in another CPU's cache.
    pub miss_cycles: u64,
    /// Instructions of the walk per structure.
    pub visit_cycles: u64,
    /// Instructions of a decision besides the walk, under the lock.
    pub decision_cycles: u64,
    /// Instructions of a wakeup, under the lock.
    pub wake_cycles: u64,
    /// Switch of stack and address space after a decision.
    pub switch_cycles: u64,
    /// An operation of a task without its misses, +-25 % at random.
    pub operation_cycles: u64,
    /// Private lines that a task writes in an operation.
    pub own_lines: usize,
    /// Bytes that contain the private lines.
    pub own_bytes: usize,
    /// Common lines of code and data that an operation reads.
    pub common_lines: usize,
    /// Bytes that contain the common lines.
    pub common_bytes: usize,
    /// Period of the tick.
    pub tick_us: u64,
}

/// A figure of the machine with its source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parameter {
    /// Name of the figure.
    pub name: &'static str,
    /// Its value with the unit.
    pub value: String,
    /// Its source.
    pub source: Source,
}

impl SmpMachine {
    /// The paper's server: Pentium III Xeon 550 MHz with 1 MB of second-level cache each.
    pub const PAPER: Self = Self {
        clock_mhz: 550,
        l2_bytes: 1 << 20,
        l2_ways: 4,
        line_bytes: 32,
        memory_bytes: 896 << 20,
        hit_cycles: 14,
        miss_cycles: 68,
        visit_cycles: 20,
        decision_cycles: 400,
        wake_cycles: 300,
        switch_cycles: 1_000,
        operation_cycles: 24_000,
        own_lines: 64,
        own_bytes: 4096,
        common_lines: 96,
        common_bytes: 128 << 10,
        tick_us: 10_000,
    };

    /// Geometry of a second-level cache.
    ///
    /// # Errors
    /// The geometry is invalid.
    pub fn geometry(&self) -> Result<Geometry, GeometryError> {
        Geometry::new(self.l2_bytes, self.l2_ways, self.line_bytes)
    }

    /// Converts cycles to nanoseconds.
    pub fn ns(&self, cycles: u64) -> u64 {
        cycles * 1_000 / self.clock_mhz
    }

    /// Converts nanoseconds to cycles, rounded up.
    pub fn cycles(&self, ns: u64) -> u64 {
        (ns * self.clock_mhz).div_ceil(1_000)
    }

    /// All figures, for a table.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.known().into_iter().chain(self.chosen()).collect()
    }

    fn cycles_shown(&self, cycles: u64) -> String {
        format!("{cycles} cycles ({} ns)", self.ns(cycles))
    }

    /// Figures from a source.
    fn known(&self) -> [Parameter; 6] {
        use Source::{Linux, Paper};
        let l2 = format!(
            "{} KiB, {}-way, LRU, one per CPU",
            self.l2_bytes >> 10,
            self.l2_ways
        );
        let block = BLOCK_BYTES >> 10;
        let tick_ms = self.tick_us / 1_000;
        [
            of("clock", format!("{} MHz", self.clock_mhz), Paper),
            of("second-level cache", l2, Paper),
            of("line", format!("{} B", self.line_bytes), Paper),
            of(
                "task structures",
                format!("at the start of blocks of {block} KiB, fields at 0x20..=0x3f"),
                Paper,
            ),
            of(
                "decisions, wake-ups",
                "schedule(), goodness(), reschedule_idle()".to_owned(),
                Linux,
            ),
            of(
                "tick",
                format!(
                    "{tick_ms} ms; a quantum has 6 ticks; the goodness bonus for the same CPU is 15"
                ),
                Linux,
            ),
        ]
    }

    /// Assumed and fitted figures.
    fn chosen(&self) -> [Parameter; 13] {
        use Source::{Assumed, Fitted};
        let cycles = |n| self.cycles_shown(n);
        let own = format!("{} lines of {} B", self.own_lines, self.own_bytes);
        let common = format!(
            "{} lines of {} KiB",
            self.common_lines,
            self.common_bytes >> 10
        );
        let places = format!("random blocks in {} MiB of memory", self.memory_bytes >> 20);
        [
            of("addresses of the structures", places, Assumed),
            of(
                "access to a line in the second-level cache",
                cycles(self.hit_cycles),
                Assumed,
            ),
            of(
                "access to a line in memory or in another CPU's cache",
                cycles(self.miss_cycles),
                Fitted,
            ),
            of(
                "instructions to visit a structure",
                cycles(self.visit_cycles),
                Assumed,
            ),
            of(
                "instructions of a decision without its walk",
                cycles(self.decision_cycles),
                Assumed,
            ),
            of(
                "instructions of a wake-up",
                cycles(self.wake_cycles),
                Assumed,
            ),
            of(
                "switch to another task",
                cycles(self.switch_cycles),
                Assumed,
            ),
            of(
                "operation of a task without cache misses",
                cycles(self.operation_cycles),
                Fitted,
            ),
            of("task cache lines that an operation writes", own, Assumed),
            of("shared lines that an operation reads", common, Assumed),
            of(
                "chat load: messages that a member may send before it must receive",
                CHAT_AHEAD.to_string(),
                Fitted,
            ),
            of(
                "web load: operations of half a request",
                WEB_OPERATIONS.to_string(),
                Fitted,
            ),
            of(
                "web load: time of the client",
                format!("{} us", WEB_NETWORK_NS / 1_000),
                Assumed,
            ),
        ]
    }
}

fn of(name: &'static str, value: String, source: Source) -> Parameter {
    Parameter {
        name,
        value,
        source,
    }
}

/// Maximum number of messages by which a member of the chat may be ahead of the messages it has
/// received.
pub const CHAT_AHEAD: u64 = 4;
/// Operations of half a request.
pub const WEB_OPERATIONS: u32 = 6;
/// Time from a process's reply to the client's next data.
pub const WEB_NETWORK_NS: u64 = 300_000;

/// The two workloads of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadKind {
    /// WebBench: 256 processes of Apache 1.3.
    Web,
    /// The chat: 30 rooms of 20 members of 4 threads.
    Chat,
}

impl WorkloadKind {
    /// Both workloads.
    pub const ALL: [Self; 2] = [Self::Web, Self::Chat];

    /// Name of the workload.
    pub fn name(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Chat => "chat",
        }
    }

    /// Number of units that are simulated before counting starts, long enough for several turns of
    /// every task.
    pub fn warm(self) -> u64 {
        match self {
            Self::Web => 2_560,
            // The initial messages before members wait for others are 48,000.
            Self::Chat => 100_000,
        }
    }

    /// Unit of the count.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Web => "requests",
            Self::Chat => "messages",
        }
    }

    /// The tasks in their initial state.
    pub fn workload(self) -> Box<dyn Workload> {
        match self {
            Self::Web => Box::new(Web::new(256, WEB_OPERATIONS, WEB_NETWORK_NS)),
            Self::Chat => Box::new(Chat::new(30, 20, CHAT_AHEAD)),
        }
    }
}

/// Position of a structure in its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Colors {
    /// At the start, as in Linux.
    Plain,
    /// At a multiple of 64 bytes: (address >> 13) mod this number of lines.
    Modulo(usize),
    /// As placed by [`Coloring`] with this number of colours.
    Colored(usize),
}

impl Colors {
    /// The default number of colours of `usher-tasks`: the number of 64-byte lines equals the
    /// number of sets of a first-level cache of 32 KiB with 8 ways.
    pub const DEFAULT: Self = Self::Colored(64);
    /// The plain remainder with the same number of colours.
    pub const MODULO: Self = Self::Modulo(64);

    /// Name of the placement.
    pub fn name(self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Modulo(colors) => format!("(address >> 13) mod {colors}"),
            Self::Colored(colors) => format!("Coloring, {colors} colours"),
        }
    }

    /// The function from a block's address to its structure's address.
    ///
    /// # Errors
    /// A structure would exceed its block.
    pub fn placer(self) -> Result<impl Fn(u64) -> u64, ColorError> {
        let colors = match self {
            Self::Plain => 1,
            Self::Modulo(colors) | Self::Colored(colors) => colors,
        };
        let coloring = Coloring::new(BLOCK_BYTES, STRUCTURE_BYTES, colors)?;
        let shift = move |base: u64| match self {
            Self::Plain => 0,
            Self::Modulo(_) => base / BLOCK_BYTES as u64 % colors as u64 * 64,
            Self::Colored(_) => coloring.shift(base as usize) as u64,
        };
        Ok(move |base| base + shift(base))
    }
}
