// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures, as SVG.

mod bars;
mod curve;
mod dots;
mod ratio;
pub(crate) mod style;
pub(crate) mod svg;
mod timeline;

pub use bars::{antt, ntt};
pub use curve::{CurveFigure, curve_svg, panel as curve_panel, speed_up};
pub use dots::{Dot, DotRow, Dots, Series, dots};
pub use ratio::ratio;
pub use svg::{policy_class, program_class};
pub(crate) use timeline::sorted_notes;
pub use timeline::timeline;
