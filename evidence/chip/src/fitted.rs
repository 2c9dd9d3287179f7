// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parameters of the chip and of the decoder that paper 5 does not give, with their fitted
//! values. One set of values applies to all cells of the paper's tables and to both cost models of
//! misses. [`FittedParameters::chip`] returns the chip that the paper's figures and these
//! parameters describe.

use serde::{Deserialize, Serialize};

use crate::engine::Chip;
use crate::memory::{Caches, MissModel, Timing};

/// Clock rate of the cores in the paper.
pub const CLOCK_HZ: f64 = 333e6;
/// Cycles of a dispatch in Table 3 of the paper: in first-come-first-served order, and by groups.
pub const DISPATCH_CYCLES: (u64, u64) = (1578, 1816);

/// Values of the free parameters. `examples/fit_chip.rs` found the default values; the last changes
/// were made by hand (`docs/chip.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FittedParameters {
    /// Number of macroblocks per task. The value follows from Table 3: cores x cycles x busy share
    /// / mean cycles of a task = 2,400 tasks per WVGA frame, in both columns.
    pub grain: u32,
    /// Work for a macroblock in all stages together, in cycles.
    pub macroblock_cycles: u64,
    /// Factor by which the code sizes of the stages are scaled, in per cent.
    pub code_percent: u64,
    /// Scratch memory that each core has for each stage, in bytes.
    pub workspace_bytes: u32,
    /// Bytes of the stack that the work for a macroblock writes.
    pub stack_bytes: u32,
    /// Number of writes to each line of the stack per macroblock and stage.
    pub stack_writes: u32,
    /// Size of the tables that all cores and stages read, in bytes.
    pub tables_bytes: u32,
    /// Number of buffers per row of macroblocks. A buffer contains the results that a task passes
    /// to later stages (state, differences, predictions). A task that fills a buffer waits until
    /// the previous content of the buffer has been used.
    pub slots: u32,
    /// Number of tasks by which the reconstruction of the row above must be ahead before a row
    /// continues. With 0, a stage waits only for the same stage of the row above.
    pub lead: u32,
    /// Bytes of state per macroblock that the stages of the front half pass to one another.
    pub state_bytes: u32,
    /// Parser output per macroblock (syntax, coefficients), in bytes.
    pub parsed_bytes: u32,
    /// Cycles until a requested word that misses the second-level cache arrives from memory, ahead
    /// of the rest of its line. This is the latency of the paper's board; the 200 cycles in the
    /// paper are those of its simulator.
    pub first_word_cycles: u64,
    /// Cycles for which memory is busy with a line of 256 bytes.
    pub line_busy_cycles: u64,
    /// Additional cycles for opening another row of a memory bank.
    pub row_cycles: u64,
    /// Maximum number of outstanding stores of a core.
    pub write_buffer: usize,
    /// Part of a dispatch during which the core holds the dispatcher's lock, in per cent.
    pub locked_percent: u64,
}

impl Default for FittedParameters {
    fn default() -> Self {
        Self {
            grain: 5,
            macroblock_cycles: 7000,
            code_percent: 95,
            workspace_bytes: 1536,
            stack_bytes: 1280,
            stack_writes: 8,
            tables_bytes: 3072,
            slots: 3,
            lead: 2,
            state_bytes: 128,
            parsed_bytes: 2304,
            first_word_cycles: 70,
            line_busy_cycles: 110,
            row_cycles: 12,
            write_buffer: 4,
            locked_percent: 60,
        }
    }
}

impl FittedParameters {
    /// Returns the chip of the paper's tables with the given number of cores, size of the
    /// second-level cache and cost of a dispatch.
    pub fn chip(
        &self,
        cores: usize,
        l2_bytes: usize,
        dispatch_cycles: u64,
        mode: MissModel,
    ) -> Chip {
        Chip {
            cores,
            caches: Caches::paper(l2_bytes),
            timing: Timing {
                // Value from section 5.1 of the paper.
                l1_miss_cycles: 10,
                l2_miss_cycles: 200,
                first_word_cycles: self.first_word_cycles,
                // One cycle of the second-level cache at its clock rate of 166 MHz (Table 1): two
                // cycles of a core.
                l2_busy_cycles: 2,
                line_busy_cycles: self.line_busy_cycles,
                row_cycles: self.row_cycles,
                write_buffer: self.write_buffer,
            },
            mode,
            dispatch_cycles,
            locked_cycles: dispatch_cycles * self.locked_percent / 100,
        }
    }
}
