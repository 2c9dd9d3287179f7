// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks of styled text, which can be placed side by side, stacked and framed. Blocks are rendered
//! as plain text or with ANSI colours. A text that does not fit is truncated in titles; other lines
//! may exceed the width, if a single word or block is wider. A character counts as one column;
//! beyond six programs, colours repeat.

/// Style of a piece of text when colours are enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Strong,
    Faint,
    /// A program's colour, by index in the legend.
    Seat(usize),
}

/// ANSI colours that are distinguishable on dark and light backgrounds.
const SEAT_COLOURS: [&str; 6] = ["32", "33", "34", "35", "36", "31"];

/// A line of pieces of text, each with a style.
#[derive(Debug, Clone, Default)]
pub(super) struct Line(Vec<(Style, String)>);

impl Line {
    pub(super) fn new(style: Style, text: impl Into<String>) -> Self {
        Self(vec![(style, text.into())])
    }

    pub(super) fn push(&mut self, style: Style, text: impl Into<String>) {
        self.0.push((style, text.into()));
    }

    pub(super) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Number of columns of the line.
    pub(super) fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// The line, padded with blanks.
    fn padded(mut self, width: usize) -> Self {
        let missing = width.saturating_sub(self.width());
        self.push(Style::Plain, " ".repeat(missing));
        self
    }

    /// Returns the line truncated to a width; `mark` shows the truncation.
    pub(super) fn cut(self, width: usize, mark: &str) -> Self {
        if self.width() <= width {
            return self;
        }
        let mut left = width.saturating_sub(mark.chars().count());
        let mut short = Self::default();
        for (style, text) in self.0 {
            let text: String = text.chars().take(left).collect();
            left -= text.chars().count();
            short.push(style, text);
        }
        short.push(Style::Faint, mark);
        short
    }

    fn render(&self, colour: bool) -> String {
        if !colour {
            let plain: String = self.0.iter().map(|(_, text)| text.as_str()).collect();
            return plain.trim_end().to_owned();
        }
        let piece = |(style, text): &(Style, String)| match style {
            _ if text.trim().is_empty() => text.clone(),
            Style::Plain => text.clone(),
            Style::Strong => format!("\x1b[1m{text}\x1b[0m"),
            Style::Faint => format!("\x1b[2m{text}\x1b[0m"),
            Style::Seat(seat) => {
                let code = SEAT_COLOURS[seat % SEAT_COLOURS.len()];
                format!("\x1b[1;{code}m{text}\x1b[0m")
            }
        };
        let line: String = self.0.iter().map(piece).collect();
        line.trim_end().to_owned()
    }
}

/// The characters of frames.
#[derive(Debug, Clone, Copy)]
pub(super) struct Glyphs {
    /// Top left, top right, bottom left, bottom right, horizontal, vertical.
    frame: [&'static str; 6],
    /// Separator of facts on one line.
    pub(super) dot: &'static str,
    /// Multiplication sign after a number.
    pub(super) times: &'static str,
    /// Mark of truncated text.
    pub(super) more: &'static str,
}

pub(super) const UNICODE: Glyphs = Glyphs {
    frame: ["╭", "╮", "╰", "╯", "─", "│"],
    dot: " · ",
    times: "×",
    more: "…",
};

pub(super) const ASCII: Glyphs = Glyphs {
    frame: ["+", "+", "+", "+", "-", "|"],
    dot: ", ",
    times: "x",
    more: "...",
};

/// A stack of lines.
#[derive(Debug, Clone, Default)]
pub(super) struct Block(pub(super) Vec<Line>);

impl Block {
    pub(super) fn width(&self) -> usize {
        self.0.iter().map(Line::width).max().unwrap_or(0)
    }

    pub(super) fn below(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Pads the lines of the block to a minimum width.
    pub(super) fn widened(mut self, width: usize) -> Self {
        self.0 = self.0.into_iter().map(|line| line.padded(width)).collect();
        self
    }

    fn beside(self, gap: usize, other: Self) -> Self {
        let (left, height) = (self.width(), self.0.len().max(other.0.len()));
        let mut right = other.0.into_iter();
        let mut lines = self.0;
        lines.resize(height, Line::default());
        let join = |line: Line| {
            let mut line = line.padded(left + gap);
            line.append(right.next().unwrap_or_default());
            line
        };
        Self(lines.into_iter().map(join).collect())
    }

    /// Frames the block with a minimum width and a title in the top edge; the title may widen the
    /// frame up to `width_max`.
    pub(super) fn framed(
        self,
        title: Line,
        width_min: usize,
        width_max: usize,
        glyphs: &Glyphs,
    ) -> Self {
        let [top_left, top_right, bottom_left, bottom_right, across, down] = glyphs.frame;
        let edges = 4;
        let title = title.cut(width_max.saturating_sub(edges + 2), glyphs.more);
        let inner = self
            .width()
            .max(title.width() + 2)
            .max(width_min.saturating_sub(edges));
        let mut top = Line::new(Style::Faint, format!("{top_left}{across} "));
        let filler = inner - title.width() - 1;
        top.append(title);
        top.push(
            Style::Faint,
            format!(" {}{top_right}", across.repeat(filler)),
        );
        let mut lines = vec![top];
        for line in self.0 {
            let mut row = Line::new(Style::Faint, format!("{down} "));
            row.append(line.padded(inner));
            row.push(Style::Faint, format!(" {down}"));
            lines.push(row);
        }
        let bottom = format!("{bottom_left}{}{bottom_right}", across.repeat(inner + 2));
        lines.push(Line::new(Style::Faint, bottom));
        Self(lines)
    }

    pub(super) fn render(&self, colour: bool) -> String {
        self.0
            .iter()
            .map(|line| line.render(colour) + "\n")
            .collect()
    }
}

/// Places blocks side by side within the width, and continues in further rows.
pub(super) fn flow(blocks: Vec<Block>, width: usize, gap: usize) -> Block {
    let mut rows = Block::default();
    let mut row: Option<Block> = None;
    for block in blocks {
        row = Some(match row.take() {
            Some(left) if left.width() + gap + block.width() <= width => left.beside(gap, block),
            Some(full) => {
                rows.below(full);
                block
            }
            None => block,
        });
    }
    rows.below(row.unwrap_or_default());
    rows
}

/// Breaks a text after separators into lines of at most `width` columns. A word that is longer than
/// a line is not broken.
pub(super) fn wrap(text: &str, separator: char, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(separator) {
        let last = lines.len() - 1;
        let length = lines[last].chars().count() + word.trim_end().chars().count();
        if !lines[last].is_empty() && length > width {
            lines.push(word.trim_start().to_owned());
        } else {
            lines[last].push_str(word);
        }
    }
    lines
}
