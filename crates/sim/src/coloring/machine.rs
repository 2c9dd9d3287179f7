// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated machine in figures: what is known of the paper's, and what is
//! assumed or fitted.

use serde::Serialize;
use usher_cache::{Geometry, GeometryError};
use usher_tasks::color::{ColorError, Coloring};

use super::kernel::{BLOCK_BYTES, STRUCTURE_BYTES};
use super::workload::{Chat, Web, Workload};

/// Where a figure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Source {
    /// Paper 3a, or its authors' longer text (USENIX 2002).
    Paper,
    /// The source text of Linux 2.4.4.
    Linux,
    /// Descriptions of the benchmark or of the program.
    Description,
    /// Nobody says; chosen.
    Assumed,
    /// Chosen so that published lock times, misses and the web's gain on one CPU come
    /// out; the same for both workloads. No other gain was looked at.
    Fitted,
}

impl Source {
    /// In words.
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

/// A machine and its kernel, in cycles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Machine {
    /// Cycles a microsecond.
    pub clock_mhz: u64,
    /// Bytes of a CPU's second level.
    pub l2_bytes: usize,
    /// Its ways.
    pub l2_ways: usize,
    /// Bytes of a line.
    pub line_bytes: usize,
    /// Bytes of memory that task structures and the rest lie in, at random.
    pub memory_bytes: usize,
    /// A line from the second level.
    pub hit_cycles: u64,
    /// A line from memory or another CPU.
    pub miss_cycles: u64,
    /// The walk's instructions for one structure.
    pub visit_cycles: u64,
    /// Instructions of a decision beside the walk, under the lock.
    pub decision_cycles: u64,
    /// Instructions of a wake-up, under the lock.
    pub wake_cycles: u64,
    /// The change of stacks and address spaces after a decision.
    pub switch_cycles: u64,
    /// An operation of a task, but for its misses, +-25 % at random.
    pub operation_cycles: u64,
    /// Lines of its own that a task touches in an operation, and writes to.
    pub own_lines: usize,
    /// Bytes that these lie in.
    pub own_bytes: usize,
    /// Lines of code and data of all that an operation reads.
    pub common_lines: usize,
    /// Bytes that these lie in.
    pub common_bytes: usize,
    /// Between two ticks.
    pub tick_us: u64,
}

/// A figure of the machine with its source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parameter {
    /// What it is.
    pub name: &'static str,
    /// How much, with its unit.
    pub value: String,
    /// Whence.
    pub source: Source,
}

impl Machine {
    /// The paper's server: Pentium III Xeon 550 MHz, 1 MB of second level each.
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

    /// The geometry of a second level.
    ///
    /// # Errors
    /// Where there is no such cache.
    pub fn geometry(&self) -> Result<Geometry, GeometryError> {
        Geometry::new(self.l2_bytes, self.l2_ways, self.line_bytes)
    }

    /// Nanoseconds of so many cycles.
    pub fn ns(&self, cycles: u64) -> u64 {
        cycles * 1_000 / self.clock_mhz
    }

    /// Cycles of so many nanoseconds, rounded up.
    pub fn cycles(&self, ns: u64) -> u64 {
        (ns * self.clock_mhz).div_ceil(1_000)
    }

    /// Every figure, for a table.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.known().into_iter().chain(self.chosen()).collect()
    }

    fn cycles_shown(&self, cycles: u64) -> String {
        format!("{cycles} cycles ({} ns)", self.ns(cycles))
    }

    /// Figures that somebody says.
    fn known(&self) -> [Parameter; 6] {
        use Source::{Linux, Paper};
        let l2 = format!(
            "{} KiB, {}-way, LRU, one a CPU",
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
                format!("at the start of {block} KiB, fields at 0x20..=0x3f"),
                Paper,
            ),
            of(
                "decisions, wake-ups",
                "schedule(), goodness(), reschedule_idle()".to_owned(),
                Linux,
            ),
            of(
                "tick",
                format!("{tick_ms} ms; quantum 6 ticks; +15 for the same CPU"),
                Linux,
            ),
        ]
    }

    /// Figures that were chosen.
    fn chosen(&self) -> [Parameter; 13] {
        use Source::{Assumed, Fitted};
        let cycles = |n| self.cycles_shown(n);
        let own = format!("{} lines of {} B", self.own_lines, self.own_bytes);
        let common = format!(
            "{} lines of {} KiB",
            self.common_lines,
            self.common_bytes >> 10
        );
        let places = format!("random blocks of {} MiB", self.memory_bytes >> 20);
        [
            of("where structures lie", places, Assumed),
            of(
                "line from the second level",
                cycles(self.hit_cycles),
                Assumed,
            ),
            of(
                "line from memory or another CPU",
                cycles(self.miss_cycles),
                Fitted,
            ),
            of(
                "instructions of a visit",
                cycles(self.visit_cycles),
                Assumed,
            ),
            of(
                "of a decision beside its walk",
                cycles(self.decision_cycles),
                Assumed,
            ),
            of("of a wake-up", cycles(self.wake_cycles), Assumed),
            of("change of tasks", cycles(self.switch_cycles), Assumed),
            of(
                "operation of a task, without misses",
                cycles(self.operation_cycles),
                Fitted,
            ),
            of("own lines an operation writes", own, Assumed),
            of("common lines an operation reads", common, Assumed),
            of(
                "chat: messages a member is ahead",
                CHAT_AHEAD.to_string(),
                Fitted,
            ),
            of(
                "web: operations of half a request",
                WEB_OPERATIONS.to_string(),
                Fitted,
            ),
            of(
                "web: client's turn",
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

/// Messages that a member of the chat may be ahead of what it has heard.
pub const CHAT_AHEAD: u64 = 4;
/// Operations of half a request.
pub const WEB_OPERATIONS: u32 = 6;
/// From what a process sends to what comes back from its client.
pub const WEB_NETWORK_NS: u64 = 300_000;

/// The two workloads of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// WebBench: 256 processes of Apache 1.3.
    Web,
    /// The chat: 30 rooms of 20 members of 4 threads.
    Chat,
}

impl Load {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Web, Self::Chat];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Chat => "chat",
        }
    }

    /// Units to simulate before anything is counted: everybody has had some turns.
    pub fn warm(self) -> u64 {
        match self {
            Self::Web => 2_560,
            // What all say at the start before they have to hear others is 48,000.
            Self::Chat => 100_000,
        }
    }

    /// What is counted.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Web => "requests",
            Self::Chat => "messages",
        }
    }

    /// Its tasks, at their start.
    pub fn workload(self) -> Box<dyn Workload> {
        match self {
            Self::Web => Box::new(Web::new(256, WEB_OPERATIONS, WEB_NETWORK_NS)),
            Self::Chat => Box::new(Chat::new(30, 20, CHAT_AHEAD)),
        }
    }
}

/// Where in its block a structure stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Colors {
    /// At its start, as in Linux.
    Plain,
    /// (address >> 13) mod so many lines of 64 bytes from it.
    Modulo(usize),
    /// As [`Coloring`] has it, with so many colours.
    Ours(usize),
}

impl Colors {
    /// Colours of ours: as many lines of 64 bytes as there are sets in a first
    /// level of 32 KiB and 8 ways.
    pub const OURS: Self = Self::Ours(64);
    /// The plain remainder, as many.
    pub const MODULO: Self = Self::Modulo(64);

    /// What it is called.
    pub fn name(self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Modulo(colors) => format!("(address >> 13) mod {colors}"),
            Self::Ours(colors) => format!("Coloring, {colors} colours"),
        }
    }

    /// From a block's address to its structure's.
    ///
    /// # Errors
    /// Where a structure would not lie in its block.
    pub fn placer(self) -> Result<impl Fn(u64) -> u64, ColorError> {
        let colors = match self {
            Self::Plain => 1,
            Self::Modulo(colors) | Self::Ours(colors) => colors,
        };
        let coloring = Coloring::new(BLOCK_BYTES, STRUCTURE_BYTES, colors)?;
        let shift = move |base: u64| match self {
            Self::Plain => 0,
            Self::Modulo(_) => base / BLOCK_BYTES as u64 % colors as u64 * 64,
            Self::Ours(_) => coloring.shift(base as usize) as u64,
        };
        Ok(move |base| base + shift(base))
    }
}
