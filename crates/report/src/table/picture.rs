// SPDX-License-Identifier: MIT OR Apache-2.0
//! Curves and timelines drawn with characters for a terminal: a scalability curve in braille, and
//! the number of CPUs of each program over time.
//!
//! A curve has 24 to 72 columns and 16 rows. A timeline has one line per program, and as many
//! columns as the terminal, or 72 without a width, but at least 8 besides the names. Names are cut
//! to 16 characters. A timeline costs one pass over a program's spans per column.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Style as Ink};
use ratatui_core::symbols::Marker;
use ratatui_core::widgets::Widget;
use ratatui_widgets::chart::{Axis, Chart, Dataset, GraphType};
use usher_model::Curve;

use crate::data::{MixResult, RoundResult, SeatSpan, SpanMode};
use crate::figure::speed_up;
use crate::figure::svg::Scale;
use crate::table::TerminalStyle;
use crate::text;

/// Height of a curve in rows.
const HEIGHT: u16 = 16;
/// Upper limit of the width of a curve in columns, and the width of a timeline without a terminal.
const WIDTH: u16 = 72;

/// A curve in braille: speed-up against cores, with measured points as dots, the line between them,
/// and the ideal line. At most 72 columns wide.
pub fn curve(curve: &Curve, style: TerminalStyle) -> String {
    let point = |n: f64| Some((n, speed_up(curve, n)?));
    let measured: Vec<_> = curve
        .points()
        .iter()
        .filter_map(|p| point(p.cores))
        .collect();
    let cores = measured.last().map_or(1.0, |p| p.0).max(1.0);
    let (speeds, decimals) = round_axis(measured.iter().map(|p| p.1).fold(1.0, f64::max));
    let most = speeds.last().copied().unwrap_or(1.0);
    let end = cores.min(most);
    let ideal = [(0.0, 0.0), (end, end)];
    let chart = Chart::new(vec![
        line(&ideal, Color::DarkGray),
        line(&measured, Color::Cyan),
    ])
    .x_axis(
        Axis::default()
            .bounds([0.0, cores])
            .labels(core_labels(cores)),
    )
    .y_axis(
        Axis::default()
            .bounds([0.0, most])
            .labels(speeds.iter().map(|&s| text::number(s, decimals))),
    );
    let width = style.width.unwrap_or(WIDTH).clamp(24, WIDTH);
    let area = Rect::new(0, 0, width, HEIGHT);
    let mut buffer = Buffer::empty(area);
    chart.render(area, &mut buffer);
    mark(
        &mut buffer,
        measured.iter().map(|p| (p.0 / cores, p.1 / most)),
    );
    let drawn = text_of(&buffer, style);
    format!(
        "speed-up over one core\n{drawn}{:>width$}\n",
        "cores",
        width = width as usize
    )
}

fn line<'a>(data: &'a [(f64, f64)], color: Color) -> Dataset<'a> {
    Dataset::default()
        .data(data)
        .graph_type(GraphType::Line)
        .marker(Marker::Braille)
        .style(Ink::new().fg(color))
}

/// Round values from 0 to at least `most`, and their number of decimals.
fn round_axis(most: f64) -> (Vec<f64>, usize) {
    let (ticks, decimals) = Scale::new((0.0, most), (0.0, 1.0)).ticks(4);
    let step = ticks.get(1).copied().unwrap_or(most);
    let steps = (most / step - 1e-9).ceil() as u32;
    let values = (0..=steps).map(|i| f64::from(i) * step).collect();
    (values, decimals)
}

/// Equidistant labels, whole numbers if possible.
fn core_labels(cores: f64) -> Vec<String> {
    let whole = |parts: &u32| (cores / f64::from(*parts)).fract() == 0.0;
    let parts = [6, 5, 4, 3, 2].into_iter().find(whole).unwrap_or(1);
    let at = |i: u32| cores * f64::from(i) / f64::from(parts);
    (0..=parts).map(|i| text::short(at(i), 2)).collect()
}

/// Draws a dot for each point, given as shares of the axes, in the character cell of the line at
/// that point. A braille cell is 2 dots wide and 4 high.
fn mark(buffer: &mut Buffer, points: impl Iterator<Item = (f64, f64)>) {
    let area = buffer.area;
    let corner = area.positions().find(|&p| buffer[p].symbol() == "└");
    let Some(corner) = corner else {
        return;
    };
    let (columns, rows) = (area.width - corner.x - 1, corner.y);
    let cell = |share: f64, dots: u16, each: u16| {
        let last = f64::from(dots * each).max(1.0) - 1.0;
        (share.clamp(0.0, 1.0) * last).round() as u16 / each
    };
    for (x, y) in points {
        let at = (corner.x + 1 + cell(x, columns, 2), cell(1.0 - y, rows, 4));
        buffer[at].set_symbol("●").set_fg(Color::Cyan);
    }
}

/// Returns the buffer's lines with ANSI sequences for the colours used here.
fn text_of(buffer: &Buffer, style: TerminalStyle) -> String {
    let mut out = String::new();
    for y in buffer.area.rows() {
        let mut line = String::new();
        let mut ink = Color::Reset;
        for x in y.columns() {
            let cell = &buffer[(x.x, x.y)];
            if style.colour && cell.fg != ink {
                ink = cell.fg;
                line.push_str(escape(ink));
            }
            line.push_str(cell.symbol());
        }
        out.push_str(line.trim_end());
        if style.colour && ink != Color::Reset {
            out.push_str(escape(Color::Reset));
        }
        out.push('\n');
    }
    out
}

fn escape(color: Color) -> &'static str {
    match color {
        Color::Cyan => "\u{1b}[36m",
        Color::DarkGray => "\u{1b}[90m",
        _ => "\u{1b}[0m",
    }
}

/// Draws the seats of a round, one line per program: the number of CPUs over time, in eighths of
/// the machine. `░` means that the program shared CPUs, `·` that it had none.
pub fn seats(mix: &MixResult, round: &RoundResult, style: TerminalStyle) -> String {
    let length = round.length_s();
    if length <= 0.0 {
        return "No seats were recorded for this round.\n".to_owned();
    }
    let names = mix.programs.iter().map(|p| text::cut(&p.name, 16));
    let margin = names.clone().map(|n| n.chars().count()).max().unwrap_or(0);
    let columns = (style.width.unwrap_or(WIDTH) as usize)
        .saturating_sub(margin + 1)
        .max(8);
    let all = mix.machine.topology.cpus.len().max(1);
    let mut out = String::new();
    for (program, name) in mix.programs.iter().zip(names) {
        let spans: Vec<_> = round
            .timeline
            .iter()
            .filter(|s| s.program == program.name)
            .collect();
        let moment = |i: usize| (i as f64 + 0.5) / columns as f64 * length;
        let line: String = (0..columns)
            .map(|i| glyph(&spans, moment(i), all))
            .collect();
        out.push_str(&format!("{name:margin$} {line}\n"));
    }
    let end = text::seconds(length);
    let middle = columns.saturating_sub(end.chars().count() + 1);
    out.push_str(&format!("{:margin$} 0{:middle$}{end}\n", "", ""));
    out
}

fn glyph(spans: &[&SeatSpan], at: f64, all: usize) -> char {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let now = || spans.iter().filter(|s| s.start_s <= at && at < s.end_s);
    if now().any(|s| s.mode == SpanMode::Shared) {
        return '░';
    }
    let seated = now().filter(|s| s.mode == SpanMode::Seated);
    let cpus = seated.fold(usher_model::CpuSet::new(), |set, s| set.or(&s.cpus));
    match cpus.len() {
        0 => '·',
        n => BARS[(n * 8).div_ceil(all).clamp(1, 8) - 1],
    }
}
