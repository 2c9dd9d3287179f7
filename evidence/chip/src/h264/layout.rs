// SPDX-License-Identifier: MIT OR Apache-2.0
//! Assigns addresses to the data that the tasks of the H.264 decoder access: planes of pixels with
//! margins, data per macroblock, buffers between stages, code and private memory. Addresses start
//! at 0, and each array is aligned to a page.

use super::STAGES;
use crate::fitted::FittedParameters;

/// Share of each stage in the work for a macroblock, in per cent.
pub(super) const WORK_PERCENT: [u64; STAGES] = [5, 15, 30, 8, 17, 7, 12, 6];
/// Code size of each stage in lines of 64 bytes, before scaling by
/// [`FittedParameters::code_percent`](crate::FittedParameters::code_percent).
pub(super) const CODE_LINES: [u64; STAGES] = [48, 64, 96, 48, 88, 56, 72, 56];
/// Sizes in bytes of the dispatcher's code, of its tables, and of the descriptor of a task.
pub(super) const DISPATCHER_CODE_BYTES: u32 = 1024;
pub(super) const POOL_BYTES: u32 = 512;
pub(super) const DESCRIPTOR_BYTES: u32 = 64;
/// Sizes in bytes per macroblock: vectors and modes, differences of 16 bits, predicted pixels,
/// boundary strengths.
pub(super) const INFO_BYTES: u32 = 128;
pub(super) const DIFFERENCE_BYTES: u32 = 768;
pub(super) const PREDICTION_BYTES: u32 = 384;
pub(super) const STRENGTH_BYTES: u32 = 128;
/// Number of rows of macroblocks that have buffers of their own for differences and predictions.
/// Row `n + BUFFER_ROWS` uses the buffers of row `n` again.
pub(super) const BUFFER_ROWS: u32 = 10;
/// Margin on each side of a plane, in pixels.
pub(super) const MARGIN: u64 = 32;
/// Maximum length of a motion vector in each direction, in pixels.
pub(super) const VECTOR_MAX: u64 = 8;

/// A picture: three consecutive planes of pixels, one for luma and two for chroma.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planes {
    pub luma: u64,
    /// Addresses of the two chroma planes.
    pub chroma: [u64; 2],
    pub stride: u64,
}

/// Addresses of all data of a frame.
#[derive(Debug)]
pub(super) struct Layout {
    pub columns: u32,
    pub rows: u32,
    pub number: u64,
    pub code: [u64; STAGES],
    pub code_bytes: [u32; STAGES],
    pub dispatcher_code: u64,
    pub pool: u64,
    pub descriptors: u64,
    pub parsed: u64,
    pub parsed_bytes: u32,
    pub infos: u64,
    pub differences: u64,
    pub predictions: u64,
    pub strengths: u64,
    pub states: u64,
    pub state_bytes: u32,
    pub workspace_bytes: u32,
    pub stack_bytes: u32,
    pub stack_writes: u32,
    pub tables: u64,
    pub tables_bytes: u32,
    pub grain: u32,
    pub slots: u32,
    pub current: Planes,
    pub before: Planes,
    pub work_cycles: [u32; STAGES],
}

/// Allocator of page-aligned addresses, starting at 0.
struct Allocator(u64);

impl Allocator {
    fn take(&mut self, bytes: u64) -> u64 {
        let here = self.0;
        self.0 += bytes.next_multiple_of(4096);
        here
    }

    fn planes(&mut self, columns: u32, rows: u32) -> Planes {
        let stride = 16 * u64::from(columns) + 2 * MARGIN;
        let height = 16 * u64::from(rows) + 2 * MARGIN;
        let luma = self.take(stride * height);
        let chroma = [0; 2].map(|_| self.take(stride * height / 4));
        Planes {
            luma,
            chroma,
            stride,
        }
    }
}

impl Layout {
    pub fn new(columns: u32, rows: u32, number: u64, fitted: &FittedParameters) -> Self {
        let mut free = Allocator(0);
        let code_bytes = CODE_LINES.map(|lines| (lines * fitted.code_percent / 100 * 64) as u32);
        let code = code_bytes.map(|bytes| free.take(u64::from(bytes)));
        let dispatcher_code = free.take(DISPATCHER_CODE_BYTES.into());
        let pool = free.take(POOL_BYTES.into());
        let count = u64::from(columns) * u64::from(rows);
        let mut each = |bytes: u32| free.take(count * u64::from(bytes));
        let descriptors = each(DESCRIPTOR_BYTES * STAGES as u32);
        let parsed = each(fitted.parsed_bytes);
        let strengths = each(STRENGTH_BYTES);
        let infos = each(INFO_BYTES);
        let buffers = u64::from(BUFFER_ROWS * fitted.slots.max(1) * fitted.grain.max(1));
        let states = free.take(buffers * u64::from(fitted.state_bytes));
        let differences = free.take(buffers * u64::from(DIFFERENCE_BYTES));
        let predictions = free.take(buffers * u64::from(PREDICTION_BYTES));
        let tables = free.take(fitted.tables_bytes.into());
        let planes = [0; 2].map(|_| free.planes(columns, rows));
        Self {
            columns,
            rows,
            number,
            code,
            code_bytes,
            dispatcher_code,
            pool,
            descriptors,
            parsed,
            parsed_bytes: fitted.parsed_bytes,
            infos,
            differences,
            predictions,
            strengths,
            states,
            state_bytes: fitted.state_bytes,
            workspace_bytes: fitted.workspace_bytes,
            stack_bytes: fitted.stack_bytes,
            stack_writes: fitted.stack_writes,
            tables,
            tables_bytes: fitted.tables_bytes,
            grain: fitted.grain.max(1),
            slots: fitted.slots.max(1),
            current: planes[(number % 2) as usize],
            before: planes[((number + 1) % 2) as usize],
            work_cycles: WORK_PERCENT
                .map(|percent| (fitted.macroblock_cycles * percent / 100) as u32),
        }
    }

    /// Returns the index of a macroblock in the frame.
    pub fn at(&self, column: u32, row: u32) -> u64 {
        u64::from(row) * u64::from(self.columns) + u64::from(column)
    }

    /// Returns the index of a macroblock in the buffers between stages.
    pub fn buffer(&self, column: u32, row: u32) -> u64 {
        let slot = column / self.grain % self.slots;
        let place = (row % BUFFER_ROWS * self.slots + slot) * self.grain + column % self.grain;
        u64::from(place)
    }

    /// Returns the random motion vector of a macroblock, in pixels.
    pub fn vector(&self, column: u32, row: u32) -> (i64, i64) {
        let seed = (self.number << 40) | (u64::from(row) << 20) | u64::from(column);
        let mut dice = oorandom::Rand64::new(u128::from(seed));
        let mut one = || dice.rand_range(0..2 * VECTOR_MAX + 1) as i64 - VECTOR_MAX as i64;
        (one(), one())
    }
}
