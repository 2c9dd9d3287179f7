// SPDX-License-Identifier: GPL-2.0-only
//! The notes above the table of `usher top`: the headline, the reason and the remedy, and warnings.
//!
//! The table has priority. The notes get the lines that the table, the CPUs and the keys leave. Notes
//! that do not fit are counted on the last of these lines.

use ratatui_core::style::{Color, Style};
use usher_report::text;

use super::draw::{FAINT, Lines, STRONG};
use super::view::View;
use crate::commands::status;
use crate::output::{self, shown};

/// Maximum number of lines of a note.
const NOTE_LINES_MAX: usize = 3;
/// Minimum width of a headline beside the number of the other notes.
const HEADLINE_WIDTH_MIN: usize = 20;

/// A text with its style, in lines of the width.
struct Note {
    lines: Vec<String>,
    style: Style,
}

impl Note {
    /// Wraps a text in at most [`NOTE_LINES_MAX`] lines.
    fn new(text: &str, style: Style, width: usize) -> Self {
        let lines = output::wrapped(text, width);
        let lines = lines.lines().map(str::to_owned).collect();
        let mut note = Self { lines, style };
        note.shorten(NOTE_LINES_MAX, width);
        note
    }

    /// Shortens the note to a number of lines; "…" marks the missing text.
    fn shorten(&mut self, limit: usize, width: usize) {
        if self.lines.len() > limit {
            let rest = self.lines.split_off(limit.saturating_sub(1)).join(" ");
            self.lines.push(output::cut(&rest, width));
            self.lines.truncate(limit);
        }
    }
}

/// Writes the notes in at most `room` lines.
pub fn draw(view: &View, lines: &mut Lines, room: usize) {
    let width = lines.width();
    let mut notes = notes(view, width);
    let (headline, count) = (notes[0].lines.join(" "), notes.len());
    let mut left = room;
    let mut drawn = 0;
    for (at, note) in notes.iter_mut().enumerate() {
        // If notes remain, the last line is that of their number.
        let limit = left - usize::from(left > 0 && at + 1 < count);
        if limit == 0 {
            break;
        }
        note.shorten(limit, width);
        note.lines
            .iter()
            .for_each(|line| lines.line(line, note.style));
        left -= note.lines.len();
        drawn += 1;
    }
    let hidden = count - drawn;
    if hidden > 0 && left > 0 {
        lines.line(&rest(&headline, drawn, hidden, width), STRONG);
    }
}

/// Returns the line with the number of the hidden notes. If not even the headline was drawn, the line
/// begins with it.
fn rest(headline: &str, drawn: usize, hidden: usize, width: usize) -> String {
    let more = |count: usize| text::count(count, "more note");
    if drawn > 0 {
        return format!("{}: usher status", more(hidden));
    }
    let suffix = format!(" ({})", more(hidden - 1));
    match width.checked_sub(suffix.len()) {
        Some(rest) if rest >= HEADLINE_WIDTH_MIN => output::cut(headline, rest) + &suffix,
        _ => text::count(hidden, "note"),
    }
}

/// Returns the notes, the most important first.
fn notes(view: &View, width: usize) -> Vec<Note> {
    let state = view.first();
    let headline = match view.is_waiting {
        true => "the daemon has ended; waiting for another daemon".to_owned(),
        false => status::headline(state),
    };
    let mut notes = vec![Note::new(&headline, STRONG, width)];
    let mut add = |text: &str, style| notes.push(Note::new(text, style, width));
    let reason = state.abstention.as_ref();
    match reason {
        Some(why) => add(&shown(&why.reason), FAINT),
        None => {
            let detail = format!(
                "policy {}, {}, running for {}",
                shown(&state.policy),
                text::count(view.programs().count(), "program"),
                status::duration(state.uptime_seconds)
            );
            add(&detail, FAINT);
        }
    }
    if let Some(remedy) = reason.and_then(|why| why.remedy.as_ref()) {
        add(&format!("remedy: {}", shown(remedy)), FAINT);
    }
    for warning in state.warnings.iter().rev() {
        add(
            &format!("! {}", shown(warning)),
            Style::new().fg(Color::Yellow),
        );
    }
    notes
}
