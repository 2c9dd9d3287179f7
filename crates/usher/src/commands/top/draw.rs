// SPDX-License-Identifier: GPL-2.0-only
//! Draws the view of `usher top` into a buffer: the notes (`notes`), the CPUs with the letters of their
//! programs, the table with sparklines (`table`), a line with the keys, and the help (`help`). A picture
//! of any size can be drawn, including 0 x 0.

mod help;
mod table;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthStr;
use usher_model::{CpuSet, Topology};

use self::help::help;
use self::table::table;
use super::key_line;
use super::notes;
use super::view::{Mode, Row, View, letter};
use crate::api::Program_mode;
use crate::output;

/// Maximum number of lines for the CPUs.
const CPU_LINES_MAX: usize = 6;

/// Least height of a picture with a line for the CPUs, and with an empty line above the table.
const HEIGHT_WITH_CPUS: usize = 7;
const HEIGHT_WITH_SPACE: usize = 10;

/// Style of titles.
pub const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
/// Style of details.
pub const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws the view.
pub fn draw(view: &View, topology: &Topology, area: Rect) -> Buffer {
    let mut picture = Buffer::empty(area);
    let mut lines = Lines {
        picture: &mut picture,
        area,
        y: 0,
    };
    let bottom = usize::from(area.height).saturating_sub(1);
    let cpus = match usize::from(area.height) >= HEIGHT_WITH_CPUS {
        true => cpus(view, topology, lines.width()),
        false => Vec::new(),
    };
    let rows = view.rows();
    let below = cpus.len() + usize::from(has_space(area)) + table_lines(&rows, area);
    notes::draw(view, &mut lines, bottom.saturating_sub(below));
    for line in cpus {
        lines.line(&line, Style::new().fg(Color::Cyan));
    }
    lines.y += usize::from(has_space(area));
    table(view, &rows, &mut lines, bottom);
    lines.y = bottom;
    lines.line(&key_line::text(view, lines.width()), REVERSED);
    if view.mode == Mode::Help {
        help(&mut picture, area);
    }
    picture
}

/// The lines of a picture, from the top to the bottom.
pub struct Lines<'a> {
    picture: &'a mut Buffer,
    area: Rect,
    y: usize,
}

impl Lines<'_> {
    /// Writes a line, shortened to the width.
    pub fn line(&mut self, text: &str, style: Style) {
        self.part(0, text, style);
        self.y += 1;
    }

    /// The width in columns.
    pub fn width(&self) -> usize {
        self.area.width.into()
    }

    /// Writes a text at a column of the present line.
    fn part(&mut self, x: usize, text: &str, style: Style) {
        let (width, height) = (usize::from(self.area.width), usize::from(self.area.height));
        if x >= width || self.y >= height {
            return;
        }
        let text = output::cut(text, width - x);
        // Both fit in 16 bits: they are inside the area.
        self.picture
            .set_stringn(x as u16, self.y as u16, text, width - x, style);
    }

    fn styled(&mut self, style: Style) {
        let line = Rect::new(0, self.y.min(u16::MAX.into()) as u16, self.area.width, 1);
        self.picture.set_style(line.intersection(self.area), style);
    }
}

/// Returns whether a line above the table is empty.
fn has_space(area: Rect) -> bool {
    usize::from(area.height) >= HEIGHT_WITH_SPACE
}

/// Returns the number of lines that the table gets before the notes: the titles, and a row for each
/// program, at most in half of the picture.
fn table_lines(rows: &[Row], area: Rect) -> usize {
    let most = usize::from(area.height / 2).max(1);
    rows.len().clamp(1, most) + 1
}

/// Returns lines with one character per CPU, in the order of the LLC domains, which brackets
/// enclose: the letter of the program with this CPU in its seat, or a dot.
fn cpus(view: &View, topology: &Topology, width: usize) -> Vec<String> {
    let mut owners = std::collections::BTreeMap::new();
    for (at, program) in view.programs().enumerate() {
        let seated = matches!(program.mode, Program_mode::seated);
        let cpus = program.cpus.parse::<CpuSet>().unwrap_or_default();
        for cpu in cpus.iter().filter(|_| seated) {
            owners.insert(cpu, letter(at));
        }
    }
    let mut lines = Vec::new();
    let mut text = String::from("CPUs ");
    for domain in &topology.domains {
        let letters = domain
            .cpus
            .iter()
            .map(|cpu| owners.get(&cpu).copied().unwrap_or('·'));
        let domain: String = std::iter::once('[').chain(letters).chain([']']).collect();
        if text.width() + domain.width() > width && text.width() > 5 {
            lines.push(std::mem::replace(&mut text, " ".repeat(5)));
        }
        if lines.len() == CPU_LINES_MAX {
            return lines;
        }
        text.push_str(&domain);
    }
    lines.push(text);
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use usher_topology::Source;

    use super::super::keys::Key;
    use super::super::sort_key::SortKey;
    use super::super::view::tests::{program, state};
    use super::table::Column;
    use super::*;

    fn machine() -> Topology {
        let source = Source::parse("package:1 l3:2 core:4 pu:1").unwrap();
        usher_topology::load(source).unwrap()
    }

    fn sample() -> View {
        let mut view = View::new(vec![state(vec![
            program(1, "encode", "0-3", 3.5),
            program(2, "solver", "4-7", 0.5),
            program(3, "shared", "", 1.0),
        ])]);
        let faster = vec![
            program(1, "encode", "0-3", 7.0),
            program(2, "solver", "4-7", 0.5),
        ];
        view.update(vec![state(faster)]);
        view
    }

    fn lines(view: &View, width: u16, height: u16) -> Vec<String> {
        let picture = draw(view, &machine(), Rect::new(0, 0, width, height));
        let cells: Vec<&str> = picture.content.iter().map(|cell| cell.symbol()).collect();
        let lines = cells.chunks(width.into());
        lines
            .map(|line| line.concat().trim_end().to_owned())
            .collect()
    }

    #[test]
    fn sixty_columns_show_the_seats_and_the_history() {
        let lines = lines(&sample(), 60, 12);
        let text = lines.join("\n");
        assert!(text.contains("CPUs [aaaa][bbbb]"), "{text}");
        for part in ["PROGRAM", "SEATS", "BUSY", "HISTORY", "encode", "0-3", "▄█"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("COMMAND"), "{text}");
        assert!(lines[11].starts_with("q quit"), "{text}");
    }

    #[test]
    fn long_names_and_reasons_hide_no_seat_on_sixty_columns() {
        let name = "a-program-with-a-very-long-name-that-fills-the-whole-line-of-a-terminal";
        let mut all = state(vec![program(1, name, "0-3", 3.5)]);
        all.abstention = Some(crate::api::Abstention {
            cause: crate::api::Abstention_cause::measuring,
            reason: "Usher measures the progress of the programs without seats for a moment"
                .to_owned(),
            remedy: None,
            programs: Vec::new(),
        });
        let text = lines(&View::new(vec![all]), 60, 14).join("\n");
        for part in ["SEATS", " 0-3 ", "a-program-with-…", "for a moment"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    /// Returns a view of two programs with a reason, a remedy and two warnings.
    fn with_notes() -> View {
        let long = "is a text that fills more than one line of a terminal of sixty columns";
        let programs = vec![
            program(1, "encode", "0-3", 3.5),
            program(2, "solver", "4-7", 0.5),
        ];
        let mut all = state(programs);
        all.abstention = Some(crate::api::Abstention {
            cause: crate::api::Abstention_cause::measuring,
            reason: format!("the reason {long}"),
            remedy: Some(format!("the remedy {long}")),
            programs: Vec::new(),
        });
        all.warnings = vec![
            format!("the first warning {long}"),
            "the last warning".to_owned(),
        ];
        View::new(vec![all])
    }

    #[test]
    fn short_terminals_show_the_programs_and_the_number_of_notes() {
        for (width, height, count) in [
            (60, 8, "3 more notes: usher status"),
            (
                60,
                5,
                "ANTT 1.25 predicted, 1.50 if all programs sh… (4 more notes)",
            ),
            (20, 5, "5 notes"),
        ] {
            let lines = lines(&with_notes(), width, height);
            let text = lines.join("\n");
            for part in ["encode", "solver", "0-3", count] {
                assert!(text.contains(part), "{part}: {text}");
            }
            assert!(
                lines[usize::from(height) - 1].starts_with("q quit"),
                "{text}"
            );
        }
    }

    #[test]
    fn high_terminals_show_all_notes() {
        let text = lines(&with_notes(), 60, 24).join("\n");
        for part in [
            "the reason",
            "remedy: the",
            "! the first",
            "! the last",
            "solver",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("more note"), "{text}");
    }

    #[test]
    fn many_programs_leave_lines_to_the_notes() {
        let programs = (1..=60).map(|id| program(id, &format!("p{id}"), "", 1.0));
        let text = lines(&View::new(vec![state(programs.collect())]), 80, 24).join("\n");
        assert!(
            text.contains("ANTT 1.25") && text.contains("policy usher"),
            "{text}"
        );
    }

    #[test]
    fn wide_terminals_show_every_column() {
        for width in [200, 300] {
            let text = lines(&sample(), width, 12).join("\n");
            for column in Column::ALL {
                assert!(text.contains(column.title()), "{column:?}: {text}");
            }
            assert!(text.contains("/usr/bin/encode --input file"), "{text}");
        }
    }

    #[test]
    fn the_sorted_column_is_visible() {
        let mut view = sample();
        view.key(Key::Char('s'));
        for _ in &SortKey::ALL[1..] {
            let title = view.sort.title();
            let lines = lines(&view, 60, 12);
            let is_titles = |line: &&String| line.contains("PROGRAM");
            let titles = lines.iter().find(is_titles).unwrap();
            let mut titles = titles.split_whitespace();
            assert!(titles.any(|one| one == title), "{title}: {lines:?}");
            view.key(Key::Char('s'));
        }
    }

    #[test]
    fn the_selected_row_is_visible() {
        let programs = (1..=30).map(|id| program(id, &format!("p{id}"), "", 1.0));
        let mut view = View::new(vec![state(programs.collect())]);
        for _ in 0..25 {
            view.key(Key::Down);
        }
        let lines = lines(&view, 80, 15);
        assert!(
            lines
                .iter()
                .any(|line| line.contains("> ") && line.contains("p25")),
            "{lines:?}"
        );
        assert!(lines[14].starts_with("q quit"));
    }

    #[test]
    fn names_cannot_change_the_terminal() {
        let view = View::new(vec![state(vec![program(1, "a\x1b[2J", "0", 1.0)])]);
        let text = lines(&view, 100, 10).join("\n");
        assert!(text.contains("a\\u{1b}[2J"), "{text}");
    }

    #[test]
    fn the_help_and_the_filter_are_shown() {
        let mut view = sample();
        view.key(Key::Char('?'));
        assert!(
            lines(&view, 60, 24)
                .join("\n")
                .contains("reverse the order")
        );
        view.key(Key::Escape);
        "/sol".chars().for_each(|c| {
            view.key(Key::Char(c));
        });
        let text = lines(&view, 60, 24).join("\n");
        assert!(
            text.contains("filter: sol_") && !text.contains("encode"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn any_size_can_be_drawn(width in 0..320u16, height in 0..60u16, help: bool) {
            let mut view = sample();
            if help {
                view.key(Key::Char('?'));
            }
            let picture = draw(&view, &machine(), Rect::new(0, 0, width, height));
            prop_assert_eq!(picture.area, Rect::new(0, 0, width, height));
        }
    }
}
