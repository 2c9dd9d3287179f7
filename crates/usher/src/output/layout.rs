// SPDX-License-Identifier: GPL-2.0-only
//! Layout of texts for terminals: columns, entries with a hanging indent, and wrapped lines. Widths are
//! those on a terminal, without escape sequences.

use unicode_width::UnicodeWidthStr;

/// Returns a line `mark name  text`, with the text wrapped beside the name.
pub fn entry(mark: &str, name_width: usize, name: &str, text: &str, width: usize) -> String {
    let room = width.saturating_sub(name_width + 4).max(20);
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last().map_or(0, |line| visible(line));
        match lines.last_mut() {
            Some(last) if line > 0 && line + 1 + visible(word) > room => {
                let _ = last;
                lines.push(word.to_owned());
            }
            Some(last) => {
                if line > 0 {
                    last.push(' ');
                }
                last.push_str(word);
            }
            None => {}
        }
    }
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        let head = match at {
            0 => format!("{mark} {name:name_width$}  "),
            _ => " ".repeat(name_width + 4),
        };
        out.push_str(format!("{head}{line}").trim_end());
        out.push('\n');
    }
    out
}

/// Returns the number of visible characters, without escape sequences.
fn visible(text: &str) -> usize {
    anstream::adapter::strip_str(text).to_string().width()
}

/// Returns columns of text, left-aligned, two spaces apart, without trailing spaces. Widths are
/// those on a terminal, without escape sequences.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|i| {
            rows.iter()
                .filter_map(|row| row.get(i))
                .map(|t| visible(t))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, &room) in row.iter().zip(&widths) {
            let pad = room.saturating_sub(visible(cell)) + 2;
            line.push_str(cell);
            line.push_str(&" ".repeat(pad));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Returns columns as [`columns`] does, no line wider than `width`. The last column is shortened to
/// the room that the other columns leave, at least [`LAST_WIDTH_MIN`]. If the room is too small, the
/// last column is left out, then the columns `optional`, in this order. If the lines are still too
/// wide, they are cut.
pub fn columns_within(rows: &[Vec<String>], width: usize, optional: &[usize]) -> String {
    let fits = |rows: &[Vec<String>]| {
        let text = columns(rows);
        text.lines()
            .all(|line| visible(line) <= width)
            .then_some(text)
    };
    let last = rows
        .iter()
        .map(Vec::len)
        .max()
        .unwrap_or(0)
        .saturating_sub(1);
    let without = |dropped: &[usize]| -> Vec<Vec<String>> {
        let keep = |row: &Vec<String>| {
            let cells = row.iter().enumerate();
            let cells = cells.filter(|(at, _)| !dropped.contains(at));
            cells.map(|(_, cell)| cell.clone()).collect()
        };
        rows.iter().map(keep).collect()
    };
    let head = columns(&without(&[last]));
    let head = head.lines().map(visible).max().unwrap_or(0);
    let room = width.saturating_sub(head + 2);
    if room >= LAST_WIDTH_MIN {
        let mut shortened = rows.to_vec();
        for row in &mut shortened {
            if let Some(cell) = row.get_mut(last) {
                *cell = cut(cell, room);
            }
        }
        // Trailing spaces of shorter rows do not count.
        if let Some(text) = fits(&shortened) {
            return text;
        }
    }
    let mut dropped = vec![last];
    let mut present = without(&dropped);
    for &column in optional {
        if let Some(text) = fits(&present) {
            return text;
        }
        dropped.push(column);
        present = without(&dropped);
    }
    let text = columns(&present);
    let lines = text.lines().map(|line| cut(line, width) + "\n");
    lines.collect()
}

/// Returns columns as [`columns`] does. Lines are at most `width` wide, unless a word of the last
/// column is wider. The last column is wrapped beside the others. If less than [`WRAPPED_WIDTH_MIN`]
/// columns are left for it, it follows each row on lines of its own, and its title is left out.
pub fn columns_wrapped(rows: &[Vec<String>], width: usize) -> String {
    let heads: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            row.split_last()
                .map_or_else(Vec::new, |(_, head)| head.to_vec())
        })
        .collect();
    let heads = columns(&heads);
    let head_width = heads.lines().map(visible).max().unwrap_or(0) + 2;
    let room = width.saturating_sub(head_width);
    let is_beside = room >= WRAPPED_WIDTH_MIN;
    let mut text = String::new();
    for (at, (head, row)) in heads.lines().zip(rows).enumerate() {
        let last = row.last().map_or("", String::as_str);
        if is_beside {
            let wrapped = wrapped(last, room);
            let mut beside = format!("{head}{}", " ".repeat(head_width - visible(head)));
            for line in wrapped.split('\n') {
                text.push_str(format!("{beside}{line}").trim_end());
                text.push('\n');
                beside = " ".repeat(head_width);
            }
            continue;
        }
        text.push_str(&cut(head, width));
        text.push('\n');
        let wrapped = wrapped(last, width.saturating_sub(2));
        let below = wrapped.lines().filter(|_| at > 0);
        text.extend(below.map(|line| format!("  {line}\n")));
    }
    text
}

/// Least width of a wrapped last column beside the others.
const WRAPPED_WIDTH_MIN: usize = 24;

/// Least width of a shortened last column.
const LAST_WIDTH_MIN: usize = 12;

/// Shortens a text to `width` columns; "…" marks a shortened text. A text that is shortened loses
/// its styles.
pub fn cut(text: &str, width: usize) -> String {
    if visible(text) <= width {
        return text.to_owned();
    }
    let plain = anstream::adapter::strip_str(text).to_string();
    let mut short = String::new();
    let mut used = 0;
    for c in plain.chars() {
        used += c.to_string().width();
        if used + 1 > width {
            break;
        }
        short.push(c);
    }
    if width > 0 {
        short.push('…');
    }
    short
}

/// Returns a text with lines of at most `width` columns, broken between words.
pub fn wrapped(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let used = lines.last().map_or(0, |line| visible(line));
        match lines.last_mut() {
            Some(last) if used == 0 => last.push_str(word),
            Some(last) if used + 1 + visible(word) <= width => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::GOOD;
    use super::*;

    #[test]
    fn the_last_column_is_shortened_to_the_width() {
        let rows: Vec<Vec<String>> = [
            ["ID", "NAME", "COMMAND"],
            ["1", "日本", "cc -c a_long_file_name.c"],
        ]
        .map(|row| row.map(str::to_owned).to_vec())
        .to_vec();
        let within = |width| columns_within(&rows, width, &[1, 0]);
        assert_eq!(within(80), columns(&rows));
        assert_eq!(within(24), "ID  NAME  COMMAND\n1   日本  cc -c a_long_…\n");
        assert_eq!(within(20), "ID  NAME\n1   日本\n");
        assert_eq!(within(5), "ID\n1\n");
        assert_eq!(columns_within(&rows, 1, &[1]), "…\n1\n");
    }

    #[test]
    fn the_last_column_is_wrapped_beside_or_below_the_others() {
        let rows: Vec<Vec<String>> = [
            ["CHOICE", "ANTT", "DESCRIPTION"],
            ["seats", "1.00", "the best seats for all of the programs"],
        ]
        .map(|row| row.map(str::to_owned).to_vec())
        .to_vec();
        assert_eq!(columns_wrapped(&rows, 80), columns(&rows));
        let beside = "CHOICE  ANTT  DESCRIPTION\n\
                      seats   1.00  the best seats for all\n              of the programs\n";
        assert_eq!(columns_wrapped(&rows, 38), beside);
        let below = "CHOICE  ANTT\nseats   1.00\n  the best seats for\n  all of the programs\n";
        assert_eq!(columns_wrapped(&rows, 22), below);
    }

    proptest! {
        #[test]
        fn wrapped_columns_fit_and_keep_each_word(
            cells in proptest::collection::vec("[a-z日]{0,5}( [a-z日]{1,5}){0,5}", 9),
            width in 12..120usize,
        ) {
            let rows: Vec<Vec<String>> = cells.chunks(3).map(<[String]>::to_vec).collect();
            let text = columns_wrapped(&rows, width);
            prop_assert!(text.lines().all(|line| visible(line) <= width), "{text}");
            for word in rows[1..].iter().flat_map(|row| row[2].split_whitespace()) {
                prop_assert!(text.contains(word), "{word} is missing: {text}");
            }
            let firsts = rows.iter().flat_map(|row| row[0].split_whitespace()).take_while(|_| width >= 100);
            for word in firsts {
                prop_assert!(text.contains(word), "{word} is missing: {text}");
            }
        }

        #[test]
        fn no_line_is_wider_than_the_width(
            cells in proptest::collection::vec("[a-z日]{0,30}", 12),
            width in 1..120usize,
        ) {
            let rows: Vec<Vec<String>> = cells.chunks(4).map(<[String]>::to_vec).collect();
            let text = columns_within(&rows, width, &[1, 2]);
            for line in text.lines() {
                prop_assert!(visible(line) <= width, "{line:?}");
            }
        }
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        assert_eq!(wrapped("one two three", 7), "one two\nthree");
        assert_eq!(wrapped("one", 1), "one");
    }

    #[test]
    fn columns_align_by_visible_width() {
        let wide =
            columns(&[["日本", "x"], ["abcd", "y"]].map(|row| row.map(str::to_owned).to_vec()));
        assert_eq!(wide, "日本  x\nabcd  y\n");
        let red = format!("{GOOD}ok{GOOD:#}");
        let rows = [
            vec![red.clone(), "a".into()],
            vec!["three".into(), "b".into()],
        ];
        assert_eq!(columns(&rows), format!("{red}     a\nthree  b\n"));
    }
}
