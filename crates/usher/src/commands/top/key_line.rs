// SPDX-License-Identifier: GPL-2.0-only
//! The last line of `usher top`: the keys, the column that sorts the rows, and the filter.
//!
//! A filter is always visible. Keys that do not fit beside it are left out, and of a long filter the
//! end is shown, where the user types.

use unicode_width::UnicodeWidthStr;

use super::view::{Mode, View};
use crate::output::shown;

/// Returns the text of the line for a width in columns.
pub fn text(view: &View, width: usize) -> String {
    let filter = shown(&view.filter);
    match view.mode {
        Mode::Filter => while_typing(&filter, width),
        _ => keys(view, &filter, width),
    }
}

/// Returns the line while the user types the filter.
fn while_typing(filter: &str, width: usize) -> String {
    let keys = "   Enter: keep   Esc: clear";
    let used = "filter: _".len();
    let has_room = used + filter.width() + keys.len() <= width;
    let filter = end_of(filter, width.saturating_sub(used));
    format!("filter: {filter}_{}", if has_room { keys } else { "" })
}

fn keys(view: &View, filter: &str, width: usize) -> String {
    let order = if view.reversed { " (reversed)" } else { "" };
    let sort = format!("s sort: {}{order}", view.sort.title());
    let shown_filter = match filter.is_empty() {
        true => "/ filter".to_owned(),
        false => format!("/ filter = {filter}"),
    };
    let shortest = format!("q quit  ? help  {shown_filter}");
    let longer = [
        format!("q quit  ? help  {sort}  r reverse  {shown_filter}"),
        format!("q quit  ? help  {sort}  {shown_filter}"),
    ];
    let fitting = longer.into_iter().find(|text| text.width() <= width);
    match fitting {
        Some(text) => text,
        None if shortest.width() <= width || filter.is_empty() => shortest,
        None => shown_filter,
    }
}

/// Returns the end of a text that fits in `width` columns; "…" marks a shortened text.
fn end_of(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut starts = text.char_indices().map(|(at, _)| at);
    let at = starts.find(|&at| text[at..].width() < width);
    format!("…{}", &text[at.unwrap_or(text.len())..])
}

#[cfg(test)]
mod tests {
    use super::super::keys::Key;
    use super::super::view::tests::{program, state};
    use super::*;

    fn view(keys: &str) -> View {
        let mut view = View::new(vec![state(vec![program(1, "encode", "0-3", 3.5)])]);
        keys.chars().for_each(|c| {
            view.key(Key::Char(c));
        });
        view
    }

    #[test]
    fn a_filter_is_visible_on_narrow_terminals() {
        let mut view_of_filter = view("/encode");
        assert_eq!(
            text(&view_of_filter, 60),
            "filter: encode_   Enter: keep   Esc: clear"
        );
        view_of_filter.key(Key::Enter);
        view_of_filter.key(Key::Char('s'));
        view_of_filter.key(Key::Char('r'));
        let line = text(&view_of_filter, 60);
        assert!(line.ends_with("/ filter = encode"), "{line}");
        let long = "/a filter that is longer than a line of sixty columns, up to here";
        let line = text(&view(long), 60);
        assert!(line.ends_with("up to here_"), "{line}");
        assert!(line.starts_with("filter: …"), "{line}");
        assert!(line.width() <= 60, "{line}");
    }
}
