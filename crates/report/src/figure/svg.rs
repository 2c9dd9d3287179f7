// SPDX-License-Identifier: MIT OR Apache-2.0
//! Common parts of figures: axes, coordinates, colour classes.
//!
//! Figures are generated without a plotting library, because a figure takes its colours from the
//! page (light, dark, print), contains tooltips, and uses hatching. All coordinates are in CSS
//! pixels, rounded to a tenth of a pixel. Values outside an axis are drawn at its end, and NaN at
//! its start. Programs have 16 colours, and policies without a fixed colour three; further programs
//! and policies repeat the colours.

use maud::{Markup, html};

use crate::data::{MixResult, PolicyRole};

/// The two widths of a figure. A page contains each figure in both widths and displays the one that
/// fits the window, so that texts keep their size on a phone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureWidth {
    /// For windows of more than 700 CSS pixels.
    Wide,
    /// For phones: fits a window of 390 CSS pixels.
    Narrow,
}

impl FigureWidth {
    /// Width of the figure in CSS pixels.
    pub fn pixels(self) -> f64 {
        match self {
            Self::Wide => 1040.0,
            Self::Narrow => 358.0,
        }
    }

    /// The class of the `svg` element.
    pub fn class(self) -> &'static str {
        match self {
            Self::Wide => "figure wide",
            Self::Narrow => "figure narrow",
        }
    }

    /// Selects a value by width.
    pub fn pick<T>(self, wide: T, narrow: T) -> T {
        match self {
            Self::Wide => wide,
            Self::Narrow => narrow,
        }
    }
}

/// Draws a figure in both widths.
pub fn in_both_widths(draw: impl Fn(FigureWidth) -> Markup) -> Markup {
    html! { (draw(FigureWidth::Wide)) (draw(FigureWidth::Narrow)) }
}

/// Maps values linearly to coordinates.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    from: (f64, f64),
    to: (f64, f64),
}

impl Scale {
    /// Maps the range `from` to the range `to`. If `from` is empty, nearly empty or not finite, the
    /// range 0..1 replaces it.
    pub fn new(from: (f64, f64), to: (f64, f64)) -> Self {
        let least = 1e-9 * from.0.abs().max(from.1.abs()).max(1e-200);
        let sane = (from.1 - from.0).is_finite() && from.1 - from.0 > least;
        let from = if sane { from } else { (0.0, 1.0) };
        Self { from, to }
    }

    /// Returns the coordinates of the ends of the range.
    pub fn ends(&self) -> (f64, f64) {
        self.to
    }

    /// The coordinate of a value, clamped to the figure.
    pub fn at(&self, value: f64) -> f64 {
        let share = (value - self.from.0) / (self.from.1 - self.from.0);
        let share = if share.is_nan() { 0.0 } else { share };
        self.to.0 + share.clamp(0.0, 1.0) * (self.to.1 - self.to.0)
    }

    /// Returns about `wanted` round values for an axis, and their number of decimals.
    pub fn ticks(&self, wanted: usize) -> (Vec<f64>, usize) {
        let step = round_step((self.from.1 - self.from.0) / wanted.max(1) as f64);
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        let first = (self.from.0 / step - 1e-9).ceil() as i64;
        let last = (self.from.1 / step + 1e-9).floor() as i64;
        ((first..=last).map(|i| i as f64 * step).collect(), decimals)
    }
}

/// Rounds up to 1, 2 or 5 times a power of ten.
fn round_step(raw: f64) -> f64 {
    let power = 10_f64.powf(raw.log10().floor());
    let digit = raw / power;
    let round = [1.0, 2.0, 5.0].into_iter().find(|&d| d >= digit - 1e-9);
    round.unwrap_or(10.0) * power
}

/// A coordinate as text with one decimal, a tenth of a pixel.
pub fn c(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// The points attribute of a polyline.
pub fn points(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let pairs: Vec<String> = points
        .into_iter()
        .map(|(x, y)| format!("{},{}", c(x), c(y)))
        .collect();
    pairs.join(" ")
}

/// Estimates the width of a text at a font size; the estimate is slightly too wide rather than too
/// narrow.
pub fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.58
}

/// The colour class of the program with this index.
pub fn program_class(index: usize) -> String {
    format!("p{}", index % 16)
}

/// Returns the colour class of a policy. The baseline is grey, Usher's policies have fixed colours,
/// and other policies get the remaining colours in order.
pub fn policy_class(mix: &MixResult, name: &str) -> String {
    let role = mix.policy(name).map(|p| p.role);
    match (role, name) {
        (Some(PolicyRole::Baseline), _) => return "q0".to_owned(),
        (Some(PolicyRole::BaselineAgain), _) => return "q1".to_owned(),
        (_, "equal") => return "q2".to_owned(),
        (_, "casas") => return "q3".to_owned(),
        (_, "usher") => return "q4".to_owned(),
        _ => {}
    }
    let known = |name: &str| ["equal", "casas", "usher"].contains(&name);
    let others = mix
        .policies
        .iter()
        .filter(|p| p.role == PolicyRole::Candidate && !known(&p.name));
    let index = others.take_while(|p| p.name != name).count();
    format!("q{}", 5 + index % 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let (ticks, decimals) = Scale::new((0.0, 2.3), (0.0, 100.0)).ticks(5);
        assert_eq!((ticks, decimals), (vec![0.0, 0.5, 1.0, 1.5, 2.0], 1));
        let (ticks, decimals) = Scale::new((0.0, 187.0), (0.0, 100.0)).ticks(4);
        assert_eq!((ticks, decimals), (vec![0.0, 50.0, 100.0, 150.0], 0));
    }

    #[test]
    fn coordinates_stay_within_the_figure() {
        for range in [
            (0.0, 0.0),
            (f64::NAN, 1.0),
            (0.0, f64::INFINITY),
            (1.0, 2.0),
            (0.0, f64::MIN_POSITIVE),
            (1.0, 1.0 + f64::EPSILON),
            (-f64::MAX, f64::MAX),
            (0.0, f64::MAX),
        ] {
            let scale = Scale::new(range, (10.0, 20.0));
            for value in [f64::NAN, f64::INFINITY, -1e300, 1.5] {
                assert!((10.0..=20.0).contains(&scale.at(value)));
            }
            assert!((1..20).contains(&scale.ticks(5).0.len()));
        }
    }
}
