// SPDX-License-Identifier: MIT OR Apache-2.0
//! A scalability curve as a table: one row per point with cores, rate, standard error, speed-up,
//! speed-up per core and busy CPUs. Rates are progress per second, errors and efficiencies per
//! cent. Missing values become "–".

use comfy_table::Cell;
use usher_model::Curve;

use crate::figure::measured_speed_up;
use crate::table::{TerminalStyle, lines, table};
use crate::text;

/// Headings of [`curve_rows`].
pub const CURVE_HEAD: [&str; 6] = [
    "cores",
    "progress/s",
    "error",
    "speed-up",
    "efficiency",
    "busy CPUs",
];

/// One row per point: cores, rate, relative standard error, speed-up over one core, speed-up per
/// core, mean busy CPUs. A single point has no speed-up.
pub fn curve_rows(curve: &Curve) -> Vec<[String; 6]> {
    let row = |p: &usher_model::CurvePoint| {
        let speed = measured_speed_up(curve, p.cores);
        [
            text::short(p.cores, 2),
            text::short(p.rate, 4),
            match p.relative_error > 0.0 {
                true => format!("{} %", text::number(p.relative_error * 100.0, 1)),
                false => text::NONE.to_owned(),
            },
            text::number(speed, 2),
            text::percent(speed.map(|s| s / p.cores)),
            text::number(p.busy_cpus, 2),
        ]
    };
    curve.points().iter().map(row).collect()
}

/// The curve as a table.
pub fn profile(curve: &Curve, style: TerminalStyle) -> String {
    let mut out = table(style, &CURVE_HEAD, 0..);
    for row in curve_rows(curve) {
        out.add_row(row.map(Cell::new));
    }
    lines(&out)
}
