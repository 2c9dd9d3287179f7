// SPDX-License-Identifier: MIT OR Apache-2.0
//! The figures of the simulated machine and workloads of paper 3a, each with its source (published,
//! Linux 2.4.4, assumed, or fitted), and the compared positions of task structures in their blocks
//! ([`Colors`]). A fitted figure has the same value for both workloads.

use serde::Serialize;
use usher_cache::{Geometry, GeometryError};
use usher_tasks::color::{ColorError, Coloring};

use crate::kernel::{BLOCK_BYTES, STRUCTURE_BYTES};
use crate::workload::{Chat, Web, Workload};

/// Source of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Source {
    /// Paper 3a, or the longer paper of the same authors (USENIX 2002).
    Paper,
    /// The source code of Linux 2.4.4.
    Linux,
    /// Published descriptions of the benchmark or the program.
    Description,
    /// Not published; assumed.
    Assumed,
    /// Fitted to published lock times, cache misses, and the gain of the web workload on one CPU.
    /// No other published gain was used.
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

/// Figures of a machine and its kernel. Times are in cycles of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SmpMachine {
    /// Cycles per microsecond.
    pub clock_mhz: u64,
    /// Size of the second-level cache of each CPU in bytes.
    pub l2_bytes: usize,
    /// Number of ways of the second-level cache.
    pub l2_ways: usize,
    /// Size of a cache line in bytes.
    pub line_bytes: usize,
    /// Size in bytes of the memory in which task structures and other data have random addresses.
    pub memory_bytes: usize,
    /// Time of an access to a line in the second-level cache.
    pub hit_cycles: u64,
    /// Time of an access to a line in memory or in another CPU's cache.
    pub miss_cycles: u64,
    /// Time of the instructions of a walk per visited structure, without cache misses.
    pub visit_cycles: u64,
    /// Time of the instructions of a scheduling decision without its walk. The lock is held.
    pub decision_cycles: u64,
    /// Time of the instructions of a wakeup. The lock is held.
    pub wake_cycles: u64,
    /// Time of the switch of stack and address space after a decision.
    pub switch_cycles: u64,
    /// Mean time of an operation of a task without cache misses. Each operation varies at random by
    /// up to 25 %.
    pub operation_cycles: u64,
    /// Number of private cache lines that a task writes in an operation.
    pub own_lines: usize,
    /// Size in bytes of the private memory of a task that contains these lines.
    pub own_bytes: usize,
    /// Number of cache lines of common code and data that an operation reads.
    pub common_lines: usize,
    /// Size in bytes of the common code and data.
    pub common_bytes: usize,
    /// Period of the timer tick in microseconds.
    pub tick_us: u64,
}

/// A figure of the machine with its source, as a row of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parameter {
    /// Name of the figure.
    pub name: &'static str,
    /// Value of the figure, with the unit.
    pub value: String,
    /// Source of the figure.
    pub source: Source,
}

impl SmpMachine {
    /// The paper's server: Pentium III Xeon processors of 550 MHz, each with a second-level cache
    /// of 1 MB.
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

    /// Returns the geometry of a second-level cache.
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

    /// Returns all figures, for a table.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.known().into_iter().chain(self.chosen()).collect()
    }

    fn cycles_shown(&self, cycles: u64) -> String {
        format!("{cycles} cycles ({} ns)", self.ns(cycles))
    }

    /// Returns the figures that are published in the paper or known from Linux 2.4.4.
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

    /// Returns the assumed and the fitted figures.
    fn chosen(&self) -> impl Iterator<Item = Parameter> {
        let memory_mib = self.memory_bytes >> 20;
        let places = format!("random blocks in {memory_mib} MiB of memory");
        let addresses = of("addresses of the structures", places, Source::Assumed);
        std::iter::once(addresses)
            .chain(self.times())
            .chain(self.lines_of_an_operation())
            .chain(workload_figures())
    }

    /// Returns the assumed and fitted times: of memory accesses, of the scheduler and of
    /// operations.
    fn times(&self) -> [Parameter; 7] {
        use Source::{Assumed, Fitted};
        let times = [
            (
                "access to a line in the second-level cache",
                self.hit_cycles,
                Assumed,
            ),
            (
                "access to a line in memory or in another CPU's cache",
                self.miss_cycles,
                Fitted,
            ),
            (
                "instructions to visit a structure",
                self.visit_cycles,
                Assumed,
            ),
            (
                "instructions of a decision without its walk",
                self.decision_cycles,
                Assumed,
            ),
            ("instructions of a wake-up", self.wake_cycles, Assumed),
            ("switch to another task", self.switch_cycles, Assumed),
            (
                "operation of a task without cache misses",
                self.operation_cycles,
                Fitted,
            ),
        ];
        times.map(|(name, cycles, source)| of(name, self.cycles_shown(cycles), source))
    }

    /// Returns the assumed numbers of cache lines that an operation of a task accesses.
    fn lines_of_an_operation(&self) -> [Parameter; 2] {
        let own = format!("{} lines of {} B", self.own_lines, self.own_bytes);
        let common_kib = self.common_bytes >> 10;
        let common = format!("{} lines of {common_kib} KiB", self.common_lines);
        [
            of(
                "task cache lines that an operation writes",
                own,
                Source::Assumed,
            ),
            of(
                "shared lines that an operation reads",
                common,
                Source::Assumed,
            ),
        ]
    }
}

/// Returns the assumed and fitted figures of the workloads.
fn workload_figures() -> [Parameter; 3] {
    [
        of(
            "chat load: messages that a member may send before it must receive",
            CHAT_AHEAD.to_string(),
            Source::Fitted,
        ),
        of(
            "web load: operations of half a request",
            WEB_OPERATIONS.to_string(),
            Source::Fitted,
        ),
        of(
            "web load: time of the client",
            format!("{} us", WEB_NETWORK_NS / 1_000),
            Source::Assumed,
        ),
    ]
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
/// Number of operations of half a web request.
pub const WEB_OPERATIONS: u32 = 6;
/// Time in ns from the reply of a web process to the arrival of the client's next data.
pub const WEB_NETWORK_NS: u64 = 300_000;

/// The two workloads of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadKind {
    /// WebBench: 256 processes of Apache 1.3.
    Web,
    /// The chat: 30 rooms with 20 members each; a member has 4 threads.
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

    /// Number of units of work that are simulated before the counted period, in which each task
    /// runs several times.
    pub fn warm(self) -> u64 {
        match self {
            Self::Web => 2_560,
            // Before members wait for one another for the first time, they send 48,000 copies of
            // messages.
            Self::Chat => 100_000,
        }
    }

    /// Name of the unit of work.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Web => "requests",
            Self::Chat => "messages",
        }
    }

    /// Returns the workload in its initial state.
    pub fn workload(self) -> Box<dyn Workload> {
        match self {
            Self::Web => Box::new(Web::new(256, WEB_OPERATIONS, WEB_NETWORK_NS)),
            Self::Chat => Box::new(Chat::new(30, 20, CHAT_AHEAD)),
        }
    }
}

/// Position of a task structure in its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Colors {
    /// At the start of the block, as in Linux.
    Plain,
    /// At the offset 64 bytes x ((address of the block >> 13) mod the given number of lines).
    Modulo(usize),
    /// At the offset that [`Coloring`] computes with the given number of colours.
    Colored(usize),
}

impl Colors {
    /// Colouring with the default number of colours of `usher-tasks`: 64 lines of 64 bytes, which
    /// is the number of sets of a first-level cache of 32 KiB with 8 ways.
    pub const DEFAULT: Self = Self::Colored(64);
    /// The block address modulo the same number of lines, without a hash.
    pub const MODULO: Self = Self::Modulo(64);

    /// Name of the position.
    pub fn name(self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Modulo(colors) => format!("(address >> 13) mod {colors}"),
            Self::Colored(colors) => format!("Coloring, {colors} colours"),
        }
    }

    /// Returns the function that computes the address of a structure from the address of its block.
    ///
    /// # Errors
    /// A structure would extend beyond its block.
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
