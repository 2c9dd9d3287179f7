// SPDX-License-Identifier: MIT OR Apache-2.0
//! Timeline of seats as SVG: CPUs from top to bottom, grouped by last-level-cache domain and
//! package; time from left to right.
//!
//! 1. `layout.rs` divides the round into blocks of adjacent CPUs with the same programs.
//! 2. A block of one program is drawn as a rectangle. A block of several programs is drawn as one
//!    band per program, or as one grey rectangle if the bands would be lower than 2 pixels
//!    ([`BAND_MIN`]).
//! 3. Notes of the policy become numbered marks above the rows; notes closer than 36 pixels share a
//!    mark.
//!
//! Lengths are in CSS pixels. The rows have a total height of 440 ([`ROWS_HEIGHT`]), but each row
//! at least 1 and at most 28. A timeline of more than 440 CPUs is therefore higher. The cost is
//! that of the layout, plus the number of blocks and notes.

use maud::{Markup, html};

use crate::data::{Lender, MixResult, PolicyResult, RoundResult, SpanMode};
use crate::figure::svg::{FigureWidth, Scale, c, in_both_widths, program_class, text_width};
use crate::layout::{Layout, Occupant, Row, TimelineBlock, layout};
use crate::text;

/// Space for the labels of the rows.
const LEFT_WIDE: f64 = 118.0;
const LEFT_NARROW: f64 = 78.0;
const RIGHT: f64 = 12.0;
/// Space above the rows, whether or not there are marks.
const TOP: f64 = 26.0;
const TOP_BARE: f64 = 4.0;
const BOTTOM: f64 = 40.0;
/// Minimum height of a domain with two lines of label.
const TWO_LINES: f64 = 30.0;
const DOMAIN_GAP: f64 = 5.0;
const PACKAGE_GAP: f64 = 12.0;
/// Total height of the rows, before the minimum heights are applied.
const ROWS_HEIGHT: f64 = 440.0;
const ROW_MIN: f64 = 1.0;
const ROW_MAX: f64 = 28.0;
/// Minimum height of a band with a label.
const LABEL_MIN: f64 = 10.5;
/// Minimum height of the band of a program that shares its CPUs; programs whose bands would be
/// lower are drawn together.
const BAND_MIN: f64 = 2.0;
/// Distance below which two notes share a mark.
const MARK_WIDTH: f64 = 36.0;

/// Draws the timeline of one round. All policies of a mix get the same time axis, up to
/// `seconds_max`, so that their timelines are comparable. For a round without spans, returns a
/// sentence instead of a figure.
pub fn timeline(
    mix: &MixResult,
    policy: &PolicyResult,
    round: &RoundResult,
    seconds_max: f64,
) -> Markup {
    let layout = layout(mix, round);
    if layout.blocks.is_empty() {
        return html! { p.empty { "No seats were recorded under the policy " (policy.label) "." } };
    }
    let what = format!("Seats over time under {}", policy.label);
    in_both_widths(|width| draw_round(mix, round, &layout, &what, (seconds_max, width)))
}

fn draw_round(
    mix: &MixResult,
    round: &RoundResult,
    layout: &Layout,
    what: &str,
    (seconds_max, width): (f64, FigureWidth),
) -> Markup {
    let marked = !round.notes.is_empty();
    let axes = TimelineAxes::new(&layout.rows, seconds_max, marked, width);
    html! {
        svg class=(width.class()) role="img" aria-label=(what)
            viewBox={ "0 0 " (c(width.pixels())) " " (c(axes.height)) } {
            (domains(mix, &layout.rows, &axes))
            (time_axis(&axes))
            @for block in &layout.blocks { (draw(layout, block, &axes)) }
            (marks(round, &axes))
        }
    }
}

/// Coordinates of rows and times.
struct TimelineAxes {
    x: Scale,
    tops: Vec<f64>,
    row: f64,
    height: f64,
    figure_width: FigureWidth,
    left: f64,
    right: f64,
}

impl TimelineAxes {
    fn new(rows: &[Row], seconds_max: f64, marked: bool, figure_width: FigureWidth) -> Self {
        let left = figure_width.pick(LEFT_WIDE, LEFT_NARROW);
        let right = figure_width.pixels() - RIGHT;
        let row = (ROWS_HEIGHT / rows.len().max(1) as f64).clamp(ROW_MIN, ROW_MAX);
        let mut y = if marked { TOP } else { TOP_BARE };
        let mut tops = Vec::new();
        for (i, here) in rows.iter().enumerate() {
            let before = i.checked_sub(1).map(|b| rows[b]);
            y += match before {
                Some(b) if b.package != here.package => PACKAGE_GAP,
                Some(b) if b.domain != here.domain => (row * 0.6).min(DOMAIN_GAP),
                _ => 0.0,
            };
            tops.push(y);
            y += row;
        }
        Self {
            x: Scale::new((0.0, seconds_max), (left, right)),
            figure_width,
            left,
            right,
            tops,
            row,
            height: y + BOTTOM,
        }
    }

    fn span(&self, first: usize, last: usize) -> (f64, f64) {
        let top = self.tops[first];
        (top, self.tops[last] + self.row - top)
    }

    fn bottom(&self) -> f64 {
        self.height - BOTTOM
    }
}

/// Background and label of every domain.
fn domains(mix: &MixResult, rows: &[Row], axes: &TimelineAxes) -> Markup {
    let mut starts: Vec<usize> = vec![0];
    starts.extend((1..rows.len()).filter(|&i| rows[i].domain != rows[i - 1].domain));
    let ends = starts.iter().skip(1).copied().chain([rows.len()]);
    let groups: Vec<_> = starts.iter().copied().zip(ends.map(|e| e - 1)).collect();
    let mut free_from = f64::NEG_INFINITY;
    let mut labelled = Vec::new();
    for &(first, last) in &groups {
        let (top, height) = axes.span(first, last);
        let middle = top + height / 2.0;
        let half = if height >= TWO_LINES { 15.0 } else { 7.0 };
        labelled.push(middle - 7.0 >= free_from);
        if middle - 7.0 >= free_from {
            free_from = middle + half;
        }
    }
    html! {
        @for ((first, last), labelled) in groups.into_iter().zip(labelled) {
            @let (top, height) = axes.span(first, last);
            rect.lane x=(c(axes.left)) y=(c(top)) width=(c(axes.right - axes.left)) height=(c(height)) {}
            @if labelled { (domain_label(mix, rows[first], (top, height), axes.figure_width)) }
            @if axes.row >= 14.0 && last > first {
                @for (i, row) in rows.iter().enumerate().take(last + 1).skip(first) {
                    text.small.end x=(c(axes.left - 6.0)) y=(c(axes.tops[i] + axes.row / 2.0 + 4.0)) {
                        (row.cpu)
                    }
                }
            }
        }
    }
}

fn domain_label(
    mix: &MixResult,
    row: Row,
    (top, height): (f64, f64),
    width: FigureWidth,
) -> Markup {
    let domain = &mix.machine.topology.domains[row.domain];
    let name = match domain.llc {
        Some(cache) => format!("L{} {}", cache.level, row.domain),
        None => format!("domain {}", row.domain),
    };
    let package = match mix.machine.topology.packages.len() {
        2.. if width == FigureWidth::Wide => format!("pkg {}, ", row.package),
        _ => String::new(),
    };
    let cpus = text::cut(&format!("CPU {}", domain.cpus), width.pick(16, 9));
    let middle = top + height / 2.0;
    html! {
        @if height >= TWO_LINES {
            text.label x="0" y=(c(middle - 3.0)) { (package) (name) }
            text.small x="0" y=(c(middle + 11.0)) { (cpus) }
        } @else {
            text.small x="0" y=(c(middle + 4.0)) { (package) (name) }
        }
    }
}

fn time_axis(axes: &TimelineAxes) -> Markup {
    let (ticks, decimals) = axes.x.ticks(axes.figure_width.pick(8, 4));
    let base = axes.bottom();
    html! {
        @for tick in ticks {
            @let x = c(axes.x.at(tick));
            line.grid x1=(x) x2=(x) y1=(c(axes.tops[0])) y2=(c(base + 5.0)) {}
            text.small.mid x=(x) y=(c(base + 18.0)) { (text::number(tick, decimals)) }
        }
        text.small.mid x=(c((axes.left + axes.right) / 2.0)) y=(c(base + 34.0)) { "seconds since the start of the round" }
    }
}

/// Draws one block: a rectangle for a single program, or a pale band for each program that shares
/// the CPUs.
fn draw(layout: &Layout, block: &TimelineBlock, axes: &TimelineAxes) -> Markup {
    let (top, height) = axes.span(block.first, block.last);
    let (left, right) = (axes.x.at(block.start_s), axes.x.at(block.end_s));
    let band = height / block.occupants.len() as f64;
    let cpus = cpu_range(layout, block);
    if band < BAND_MIN && all_share(block) {
        let area = Rectangle {
            left,
            top,
            width: right - left,
            height,
        };
        return shared_area(layout, block, &area, &cpus);
    }
    let shared_label = shared_label(block, band, height, right - left);
    html! {
        @for (i, occupant) in block.occupants.iter().enumerate() {
            @let area = Rectangle { left, top: top + i as f64 * band, width: right - left, height: band };
            g {
                title { (tooltip(layout, block, occupant, &cpus)) }
                (fill(occupant, block.occupants.len() > 1, &area))
            }
            (label(layout, occupant, &area))
        }
        @if let Some(shared_label) = shared_label {
            text.small.mid.over x=(c((left + right) / 2.0)) y=(c(top + height / 2.0 + 4.0)) { (shared_label) }
        }
    }
}

fn all_share(block: &TimelineBlock) -> bool {
    block.occupants.iter().all(|o| o.mode == SpanMode::Shared)
}

/// Draws one grey, hatched rectangle for a block with too many programs for one band each.
fn shared_area(layout: &Layout, block: &TimelineBlock, area: &Rectangle, cpus: &str) -> Markup {
    let names = block
        .occupants
        .iter()
        .filter_map(|o| layout.names.get(o.program));
    let names: Vec<String> = names.cloned().collect();
    html! {
        rect.throng x=(c(area.left)) y=(c(area.top)) width=(c(area.width.max(0.5))) height=(c(area.height)) {}
        rect.hatch x=(c(area.left)) y=(c(area.top)) width=(c(area.width.max(0.5))) height=(c(area.height)) {
            title { "shared by " (text::list(&names)) "\nCPU " (cpus) "\n" (text::seconds(block.start_s)) " to " (text::seconds(block.end_s)) }
        }
    }
}

/// The common label of bands that are too thin for their own labels.
fn shared_label(block: &TimelineBlock, band: f64, height: f64, width: f64) -> Option<String> {
    let text = format!(
        "{} share these CPUs",
        text::count(block.occupants.len(), "program")
    );
    let fits = height >= 16.0 && width >= text_width(&text, 11.0) + 12.0;
    (all_share(block) && block.occupants.len() > 1 && band < LABEL_MIN && fits).then_some(text)
}

struct Rectangle {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

/// Fills the rectangle of a program. Hatching marks time in which several programs share the CPUs;
/// dots mark borrowed CPUs.
fn fill(occupant: &Occupant, has_others: bool, area: &Rectangle) -> Markup {
    let is_shared = occupant.mode == SpanMode::Shared && has_others;
    let mode = match (occupant.mode, &occupant.lender) {
        (SpanMode::Frozen, _) => "frozen",
        (SpanMode::Shared, _) => "pale",
        (SpanMode::Seated | SpanMode::InTurn, _) => "solid",
    };
    let class = format!("{} {mode}", program_class(occupant.program));
    let (x, y) = (c(area.left), c(area.top));
    // Leaves a small gap between neighbouring rectangles, unless the row is too thin for a gap.
    let trim = if area.height >= 4.0 { 0.6 } else { 0.0 };
    let (w, h) = (c(area.width.max(0.5)), c((area.height - trim).max(0.5)));
    html! {
        rect class=(class) x=(x) y=(y) width=(w) height=(h) {}
        @if is_shared {
            rect.hatch x=(x) y=(y) width=(w) height=(h) {}
        }
        @if occupant.lender.is_some() {
            rect.dotted x=(x) y=(y) width=(w) height=(h) {}
        }
    }
}

fn label(layout: &Layout, occupant: &Occupant, area: &Rectangle) -> Markup {
    let key = text::key(occupant.program);
    let full = match layout.names.get(occupant.program) {
        Some(name) => format!("{key} {}", text::cut(name, 24)),
        None => key.clone(),
    };
    let room = area.width - 8.0;
    let shown = match area.height {
        h if h < LABEL_MIN => None,
        h if h >= 13.0 && text_width(&full, 11.0) <= room => Some(full),
        _ if text_width(&key, 11.0) <= room => Some(key),
        _ => None,
    };
    let ink = match (occupant.mode, &occupant.lender) {
        (SpanMode::Seated, None) | (SpanMode::InTurn, _) => "ink",
        (SpanMode::Seated, Some(_)) => "halo",
        _ => "over",
    };
    let class = format!("small {ink} {}", program_class(occupant.program));
    let y = area.top + area.height / 2.0 + 3.8;
    html! {
        @if let Some(shown) = shown {
            text class=(class) x=(c(area.left + 4.0)) y=(c(y)) { (shown) }
        }
    }
}

fn cpu_range(layout: &Layout, block: &TimelineBlock) -> String {
    let rows = &layout.rows[block.first..=block.last];
    let set: usher_model::CpuSet = rows.iter().map(|row| row.cpu).collect();
    set.to_string()
}

fn tooltip(layout: &Layout, block: &TimelineBlock, occupant: &Occupant, cpus: &str) -> String {
    let name = |i: usize| layout.names.get(i).map_or("?", String::as_str);
    let how = match (occupant.mode, &occupant.lender) {
        (SpanMode::Frozen, _) => "stopped".to_owned(),
        (SpanMode::InTurn, _) => "in turn".to_owned(),
        (SpanMode::Shared, _) => match block.occupants.len() {
            1 => "unmanaged".to_owned(),
            n => format!(
                "unmanaged, shares CPUs with {}",
                text::count(n - 1, "other")
            ),
        },
        (SpanMode::Seated, None) => "seated".to_owned(),
        (SpanMode::Seated, Some(Lender::Program(owner))) => {
            format!("on CPUs borrowed from {owner}")
        }
        (SpanMode::Seated, Some(Lender::Unowned)) => "borrowed, unowned".to_owned(),
    };
    format!(
        "{}: {how}\nCPU {cpus}\n{} to {}",
        name(occupant.program),
        text::seconds(block.start_s),
        text::seconds(block.end_s)
    )
}

/// Numbered marks at the policy's notes; notes close to one another share a mark.
fn marks(round: &RoundResult, axes: &TimelineAxes) -> Markup {
    let mut groups: Vec<(f64, usize, usize)> = Vec::new();
    for (i, note) in sorted_notes(round).into_iter().enumerate() {
        let x = axes.x.at(note.0);
        match groups.last_mut() {
            Some(group) if x - group.0 < MARK_WIDTH => group.2 = i + 1,
            _ => groups.push((x, i + 1, i + 1)),
        }
    }
    html! {
        @for (x, first, last) in groups {
            @let text = if first == last { first.to_string() } else { format!("{first}\u{2013}{last}") };
            @let half = 6.0_f64.max(text_width(&text, 10.0) / 2.0 + 3.0);
            @let middle = x.min(axes.right - half);
            line.mark x1=(c(x)) x2=(c(x)) y1="16" y2=(c(axes.bottom())) {}
            rect.mark x=(c(middle - half)) y="3" width=(c(2.0 * half)) height="14" rx="7" {}
            text.marktext x=(c(middle)) y="13.6" { (text) }
        }
    }
}

/// A round's notes by time; notes without a time come first.
pub(crate) fn sorted_notes(round: &RoundResult) -> Vec<&(f64, String)> {
    let mut notes: Vec<_> = round.notes.iter().collect();
    let at = |note: &(f64, String)| if note.0.is_finite() { note.0 } else { 0.0 };
    notes.sort_by(|a, b| at(a).total_cmp(&at(b)));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_of_thin_bands_names_the_number_of_programs_once() {
        let occupant = |program| Occupant {
            program,
            mode: SpanMode::Shared,
            lender: None,
        };
        let block = TimelineBlock {
            first: 0,
            last: 0,
            start_s: 0.0,
            end_s: 1.0,
            occupants: (0..3).map(occupant).collect(),
        };
        let label = shared_label(&block, 8.0, 24.0, 800.0);
        assert_eq!(label.as_deref(), Some("3 programs share these CPUs"));
    }
}
