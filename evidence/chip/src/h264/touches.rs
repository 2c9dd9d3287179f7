// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records the memory accesses of each stage of the H.264 decoder for a macroblock, with the
//! addresses of `Layout`.
//!
//! Each stage reads and writes the pixels, vectors, modes and states that the same stage of a real
//! decoder needs, and also its code and scratch memory. The table in the header of `h264` lists the
//! accesses. Limit: the values of pixels are not computed.

use super::layout::{
    DESCRIPTOR_BYTES, DIFFERENCE_BYTES, DISPATCHER_CODE_BYTES, INFO_BYTES, Layout, MARGIN,
    POOL_BYTES, PREDICTION_BYTES, Planes, STRENGTH_BYTES,
};
use crate::graph::{AccessKind, TaskAccess};

/// Recorder of the accesses of a task.
pub(super) struct AccessRecorder<'a> {
    layout: &'a Layout,
    stage: u32,
    pub accesses: Vec<TaskAccess>,
}

impl<'a> AccessRecorder<'a> {
    pub fn new(layout: &'a Layout, stage: u32) -> Self {
        Self {
            layout,
            stage,
            accesses: Vec::new(),
        }
    }

    /// Records the accesses of the dispatcher at the start of a task.
    pub fn begin(&mut self, number: u64) {
        let layout = self.layout;
        let descriptor = layout.descriptors + number * u64::from(DESCRIPTOR_BYTES);
        self.row(
            AccessKind::Fetch,
            layout.dispatcher_code,
            DISPATCHER_CODE_BYTES,
        );
        self.row(AccessKind::Load, layout.pool, POOL_BYTES / 2);
        self.row(AccessKind::Store, layout.pool, POOL_BYTES / 2);
        self.row(AccessKind::Load, descriptor, DESCRIPTOR_BYTES);
    }

    fn row(&mut self, kind: AccessKind, address: u64, bytes: u32) {
        self.accesses.push(TaskAccess::row(kind, address, bytes));
    }

    /// Records accesses to a rectangle of pixels that starts at (x, y), which may be in the margin.
    fn pixels(
        &mut self,
        kind: AccessKind,
        plane: u64,
        stride: u64,
        from: (i64, i64),
        size: (u32, u32),
    ) {
        // The chroma planes have half of the luma planes' width, height and margin.
        let margin = (MARGIN * stride / self.layout.current.stride) as i64;
        let place = (from.1 + margin) * stride as i64 + from.0 + margin;
        self.accesses.push(TaskAccess {
            rows: size.1,
            stride: stride as u32,
            ..TaskAccess::row(kind, plane + place.max(0) as u64, size.0)
        });
    }

    fn luma(&mut self, kind: AccessKind, planes: Planes, from: (i64, i64), size: (u32, u32)) {
        self.pixels(kind, planes.luma, planes.stride, from, size);
    }

    fn chroma(&mut self, kind: AccessKind, planes: Planes, from: (i64, i64), size: (u32, u32)) {
        for plane in planes.chroma {
            self.pixels(kind, plane, planes.stride / 2, from, size);
        }
    }

    /// Records an access to an array with `each` bytes per macroblock: `bytes` bytes, starting at
    /// `offset` in the data of the macroblock.
    fn of(
        &mut self,
        kind: AccessKind,
        array: u64,
        at: u64,
        each: u32,
        (offset, bytes): (u32, u32),
    ) {
        let address = array + at * u64::from(each) + u64::from(offset);
        self.row(kind, address, bytes);
    }

    /// Records the accesses to code, tables, stack and scratch memory, with the work of the stage.
    fn code(&mut self) {
        let (layout, stage) = (self.layout, self.stage as usize);
        let half = layout.workspace_bytes / 2;
        let scratch = u64::from(layout.stack_bytes + self.stage * layout.workspace_bytes);
        let cycles = layout.work_cycles[stage];
        let parts = [
            (
                AccessKind::Fetch,
                layout.code[stage],
                layout.code_bytes[stage],
                1,
            ),
            (AccessKind::Load, layout.tables, layout.tables_bytes, 1),
            (
                AccessKind::Store,
                0,
                layout.stack_bytes,
                layout.stack_writes,
            ),
            (AccessKind::Load, scratch, half, 1),
            (AccessKind::Store, scratch + u64::from(half), half, 1),
        ];
        for (number, (kind, address, bytes, rows)) in parts.into_iter().enumerate() {
            self.accesses.push(TaskAccess {
                private: number >= 2,
                cycles: cycles / parts.len() as u32,
                rows,
                ..TaskAccess::row(kind, address, bytes)
            });
        }
    }

    /// Records an access to the vectors and modes of a macroblock, if the macroblock is in the
    /// frame.
    fn info(&mut self, kind: AccessKind, column: i64, row: i64) {
        let layout = self.layout;
        let inside = (0..i64::from(layout.columns)).contains(&column)
            && (0..i64::from(layout.rows)).contains(&row);
        if inside {
            let at = layout.at(column as u32, row as u32);
            self.of(kind, layout.infos, at, INFO_BYTES, (0, INFO_BYTES));
        }
    }

    /// Records an access to the state of a macroblock that the stages of the front half pass to one
    /// another.
    fn state(&mut self, kind: AccessKind, buffer: u64) {
        let bytes = self.layout.state_bytes;
        self.of(kind, self.layout.states, buffer, bytes, (0, bytes));
    }

    pub fn macroblock(&mut self, column: u32, row: u32) {
        self.code();
        match self.stage {
            0 | 3 => self.states(column, row),
            1 | 2 => self.predict(column, row),
            _ => self.write_pixels(column, row),
        }
    }

    /// Records the accesses of the stages for vectors and strengths.
    fn states(&mut self, column: u32, row: u32) {
        use AccessKind::{Load, Store};
        let layout = self.layout;
        let (x, y, at) = (i64::from(column), i64::from(row), layout.at(column, row));
        for (dx, dy) in [(0, 0), (-1, 0), (0, -1)] {
            self.info(Load, x + dx, y + dy);
        }
        if self.stage == 0 {
            let (syntax, whole) = (layout.parsed_bytes / 4, layout.parsed_bytes);
            self.info(Load, x + 1, y - 1);
            self.of(Load, layout.parsed, at, whole, (0, syntax));
            self.info(Store, x, y);
            self.state(Store, layout.buffer(column, row));
        } else {
            let whole = (0, STRENGTH_BYTES);
            self.of(Store, layout.strengths, at, STRENGTH_BYTES, whole);
        }
    }

    /// Records the accesses of the stages for residual and inter prediction.
    fn predict(&mut self, column: u32, row: u32) {
        use AccessKind::{Load, Store};
        let layout = self.layout;
        let (x, y, at) = (i64::from(column), i64::from(row), layout.at(column, row));
        let buffer = layout.buffer(column, row);
        self.state(Load, buffer);
        if self.stage == 1 {
            let (syntax, whole) = (layout.parsed_bytes / 4, layout.parsed_bytes);
            let coefficients = (syntax, whole - syntax);
            self.of(Load, layout.parsed, at, whole, coefficients);
            let whole = (0, DIFFERENCE_BYTES);
            self.of(Store, layout.differences, buffer, DIFFERENCE_BYTES, whole);
            return;
        }
        let (dx, dy) = layout.vector(column, row);
        let chroma = (8 * x + dx / 2, 8 * y + dy / 2);
        // Half-pixel interpolation reads six pixels in each direction. A block of 16 pixels
        // therefore needs 21 pixels.
        self.luma(
            Load,
            layout.before,
            (16 * x + dx - 2, 16 * y + dy - 2),
            (21, 21),
        );
        self.chroma(Load, layout.before, chroma, (9, 9));
        let whole = (0, PREDICTION_BYTES);
        self.of(Store, layout.predictions, buffer, PREDICTION_BYTES, whole);
    }

    /// Records the accesses of the stages for reconstruction and deblocking.
    fn write_pixels(&mut self, column: u32, row: u32) {
        use AccessKind::{Load, Store};
        let layout = self.layout;
        let (x, y, at) = (i64::from(column), i64::from(row), layout.at(column, row));
        let (current, differences) = (layout.current, layout.differences);
        let buffer = layout.buffer(column, row);
        if matches!(self.stage, 4 | 5) {
            self.state(Load, buffer);
        }
        match self.stage {
            4 => {
                self.of(Load, differences, buffer, DIFFERENCE_BYTES, (0, 512));
                self.of(Load, layout.predictions, buffer, PREDICTION_BYTES, (0, 256));
                self.luma(Load, current, (16 * x - 1, 16 * y - 1), (25, 1));
                self.luma(Store, current, (16 * x, 16 * y), (16, 16));
            }
            5 => {
                self.of(Load, differences, buffer, DIFFERENCE_BYTES, (512, 256));
                self.of(
                    Load,
                    layout.predictions,
                    buffer,
                    PREDICTION_BYTES,
                    (256, 128),
                );
                self.chroma(Load, current, (8 * x - 1, 8 * y - 1), (9, 1));
                self.chroma(Store, current, (8 * x, 8 * y), (8, 8));
            }
            stage => {
                let whole = (0, STRENGTH_BYTES);
                self.of(Load, layout.strengths, at, STRENGTH_BYTES, whole);
                for kind in [Load, Store] {
                    match stage {
                        6 => self.luma(kind, current, (16 * x - 4, 16 * y - 4), (20, 20)),
                        _ => self.chroma(kind, current, (8 * x - 2, 8 * y - 2), (10, 10)),
                    }
                }
            }
        }
    }
}
