// SPDX-License-Identifier: GPL-2.0-only
//! Draws the help of `usher top` in a frame.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::widgets::Widget;
use ratatui_widgets::block::Block;
use ratatui_widgets::clear::Clear;
use unicode_width::UnicodeWidthStr;

/// The lines of the help.
const HELP: [&str; 13] = [
    "q, Ctrl-C      quit",
    "s, < >         sort by the next, previous column",
    "r              reverse the order",
    "/              filter by name, user or command",
    "Esc            clear the filter",
    "Up, Down, j k  select a program",
    "Space          update now",
    "Ctrl-Z         suspend",
    "",
    "CPUs: [ab] is an LLC domain; the letter is that",
    "of the program whose seat contains the CPU.",
    "HISTORY: the rate of progress at each update,",
    "or busy CPUs if progress is unknown.",
];

/// Draws the help over the middle of the picture.
pub fn help(picture: &mut Buffer, area: Rect) {
    let width = HELP.iter().map(|line| line.width()).max().unwrap_or(0) as u16 + 4;
    let height = HELP.len() as u16 + 2;
    let (x, y) = (
        area.width.saturating_sub(width) / 2,
        area.height.saturating_sub(height) / 2,
    );
    let frame = Rect::new(x, y, width, height).intersection(area);
    Clear.render(frame, picture);
    let block = Block::bordered().title(" usher top ");
    let inner = block.inner(frame);
    block.render(frame, picture);
    for (line, y) in HELP.iter().zip(inner.top()..inner.bottom()) {
        let width = usize::from(inner.width);
        picture.set_stringn(inner.x + 1, y, line, width.saturating_sub(1), Style::new());
    }
}
