// SPDX-License-Identifier: MIT OR Apache-2.0
//! Free parameters of chip and decoder, which the paper does not give. One fitted set serves all
//! cells of its tables and both modes.

use serde::{Deserialize, Serialize};

use crate::engine::Chip;
use crate::memory::{Caches, MissModel, Timing};

/// Clock of the cores in the paper.
pub const CLOCK_HZ: f64 = 333e6;
/// Table 3: cycles of a dispatch, first come first served and by groups.
pub const DISPATCH_CYCLES: (u64, u64) = (1578, 1816);

/// Values of the free parameters. The default was found by a search (`examples/fit_chip.rs`) with
/// the last steps by hand (`docs/chip.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FittedParameters {
    /// Macroblocks per task. Table 3 implies it: cores x cycles x busy share over mean cycles of a
    /// task is 2,400 tasks per WVGA frame, in both columns.
    pub grain: u32,
    /// Work of a macroblock through all stages, in cycles.
    pub macroblock_cycles: u64,
    /// Scale of the size of the stages' code, in per cent.
    pub code_percent: u64,
    /// Scratch memory of each core for each stage, in bytes.
    pub workspace_bytes: u32,
    /// Stack bytes that each macroblock writes.
    pub stack_bytes: u32,
    /// Number of writes to each line of the stack per macroblock and stage.
    pub stack_writes: u32,
    /// Tables shared by all cores and stages, in bytes.
    pub tables_bytes: u32,
    /// Buffers per row of macroblocks for the results that stages pass on (state, differences,
    /// predictions), each for one task. A task that fills a buffer waits until its previous content
    /// has been used.
    pub slots: u32,
    /// Number of tasks by which the reconstruction of the row above must be ahead before a row
    /// continues; 0: a stage waits only for the same stage of the row above.
    pub lead: u32,
    /// State that the stages of the front half exchange per macroblock, in bytes.
    pub state_bytes: u32,
    /// Parser output per macroblock (syntax, coefficients), in bytes.
    pub parsed_bytes: u32,
    /// Latency of a word that misses the second level on the board, in cycles; the word arrives
    /// ahead of the rest of its line (the paper's 200 cycles are those of its simulator).
    pub first_word_cycles: u64,
    /// Time for which memory is busy with a line of 256 bytes, in cycles.
    pub line_busy_cycles: u64,
    /// Additional time for opening another row of a memory bank, in cycles.
    pub row_cycles: u64,
    /// Maximum number of outstanding stores of a core.
    pub write_buffer: usize,
    /// Part of a dispatch under the lock, in per cent.
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
    /// The chip of the paper's tables with this number of cores, second-level size and cost of a
    /// dispatch.
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
                // Section 5.1.
                l1_miss_cycles: 10,
                l2_miss_cycles: 200,
                first_word_cycles: self.first_word_cycles,
                // One cycle of the second level's clock, 166 MHz (Table 1).
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
