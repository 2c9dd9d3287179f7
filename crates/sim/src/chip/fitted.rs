// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the paper does not tell about chip and decoder: the parameters that are
//! fitted, one set for all cells of its tables and both modes.

use serde::{Deserialize, Serialize};

use super::engine::Chip;
use super::memory::{Caches, Mode, Timing};

/// The paper's clock of the cores.
pub const CLOCK_HZ: f64 = 333e6;
/// Table 3: cycles that a dispatch takes, first come first served and by groups.
pub const DISPATCH_CYCLES: (u64, u64) = (1578, 1816);

/// Parameters that are not facts. The default was found by a search
/// (`examples/fit_chip.rs`) and, for the last steps, by hand (`docs/chip.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fitted {
    /// Macroblocks of a task. Implied by Table 3: cores x cycles x busy share over
    /// mean cycles of a task is 2,400 tasks a WVGA frame, in both columns.
    pub grain: u32,
    /// Work of a macroblock through all stages, in cycles.
    pub macroblock_cycles: u64,
    /// Size of the stages' code.
    pub code_percent: u64,
    /// What each core has for each stage's scratch, in bytes.
    pub workspace_bytes: u32,
    /// Stack of a core that each macroblock writes, in bytes.
    pub stack_bytes: u32,
    /// How often each line of it is written for a macroblock and stage.
    pub stack_writes: u32,
    /// Tables that all cores and stages share, in bytes.
    pub tables_bytes: u32,
    /// Buffers for what stages hand on (state, differences, predictions) that a row of
    /// macroblocks has, each for a task; who is to fill one waits until it has been used.
    pub slots: u32,
    /// Tasks by which the reconstruction of the row above must be ahead of where a
    /// row goes on; 0: only each stage of the row's own stage above.
    pub lead: u32,
    /// What the stages of the front half tell one another about a macroblock, in
    /// bytes.
    pub state_bytes: u32,
    /// What the parser hands over of a macroblock (syntax, coefficients), in bytes.
    pub parsed_bytes: u32,
    /// On the board, a word that misses the second level comes after so many cycles,
    /// ahead of the rest of its line (the paper's 200 are its simulator's).
    pub first_word_cycles: u64,
    /// Memory is busy with a line of 256 bytes, in cycles.
    pub line_busy_cycles: u64,
    /// What another row of a memory bank adds, in cycles.
    pub row_cycles: u64,
    /// Stores of a core that may be under way.
    pub write_buffer: usize,
    /// Part of a dispatch under the lock.
    pub locked_percent: u64,
}

impl Default for Fitted {
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

impl Fitted {
    /// The chip of the paper's tables with so many cores and such a second level,
    /// where a dispatch costs `dispatch_cycles`.
    pub fn chip(&self, cores: usize, l2_bytes: usize, dispatch_cycles: u64, mode: Mode) -> Chip {
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
