// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures as SVG: bars, curves, dot plots, ratios and timelines. Each function converts data of
//! [`crate::data`] to an element of a page or a standalone file; no plotting library is used.

mod bars;
mod curve;
mod dots;
mod ratio;
pub(crate) mod style;
pub(crate) mod svg;
mod timeline;

pub use bars::{antt, ntt};
pub use curve::{
    CurveFigure, curve_svg, full as curve_figure, measured_speed_up, panel as curve_panel, speed_up,
};
pub use dots::{Dot, DotRow, Dots, Series, dots};
pub use ratio::ratio;
pub use svg::{policy_class, program_class};
pub(crate) use timeline::sorted_notes;
pub use timeline::timeline;
