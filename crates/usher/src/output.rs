// SPDX-License-Identifier: GPL-2.0-only
//! Standard output of all commands: text or JSON, colour, files of reports, and the filter against
//! control characters. The module `layout` aligns columns and wraps lines.
//!
//! Names of programs are foreign text. [`shown`] escapes control characters, characters without
//! width and changes of text direction, so that a name can neither move the cursor nor imitate
//! another name. [`Output::text`] filters once more and lets only line ends, tabs and, if colour is
//! on, styles pass.
//!
//! A text is built and filtered as a whole, in linear time, and written at once. A file of a report
//! that cannot be written is removed, and the other files are still written. An error of the write
//! is returned; a closed reader is handled in `failure`.

mod json;
mod layout;
mod shell;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

pub use layout::{columns, columns_within, columns_wrapped, cut, entry, wrapped};
pub use shell::quoted;

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Color {
    /// On terminals, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The output settings of this process: JSON or text, with or without colour.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// JSON instead of text.
    pub json: bool,
    /// Whether text may be coloured.
    pub color: bool,
}

impl Output {
    /// Determines the use of colour: from the option, then NO_COLOR, CLICOLOR_FORCE and CLICOLOR,
    /// then from whether standard output is a terminal.
    pub fn new(json: bool, color: Color) -> Self {
        let color = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never
            }
        };
        Self { json, color }
    }

    /// Returns whether standard output is a terminal.
    pub fn is_terminal(self) -> bool {
        io::stdout().is_terminal()
    }

    /// Returns the number of columns; 80 without a terminal.
    pub fn width(self) -> usize {
        let size = rustix::termios::tcgetwinsize(io::stdout());
        let columns = size.map_or(0, |size| usize::from(size.ws_col));
        if columns == 0 { 80 } else { columns }
    }

    /// Returns the width to which text is shortened: the number of columns of a terminal, or no
    /// limit for pipes and files.
    pub fn text_width(self) -> usize {
        match self.is_terminal() {
            true => self.width(),
            false => usize::MAX,
        }
    }

    /// Prints text, with a line end if it lacks one. Control characters that are neither line ends,
    /// tabs nor styles are written as escapes; see [`shown`].
    pub fn text(self, text: &str) -> anyhow::Result<()> {
        let end = if text.ends_with('\n') || text.is_empty() {
            ""
        } else {
            "\n"
        };
        write_out(&format!("{}{end}", filtered(text, self.color)))
    }

    /// Prints a value as one JSON document, indented for a terminal.
    pub fn json(self, value: &impl Serialize) -> anyhow::Result<()> {
        self.text(&json::document(value, self.is_terminal())?)
    }

    /// Prints JSON if requested, else the text.
    pub fn answer(
        self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        match self.json {
            true => self.json(value),
            false => self.text(&text()),
        }
    }

    /// Returns the text in a style if colour is on.
    pub fn paint(self, style: anstyle::Style, text: &str) -> String {
        match self.color {
            true => format!("{style}{text}{style:#}"),
            false => text.to_owned(),
        }
    }
}

fn write_out(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("writing to standard output")
}

/// Writes a line by one call, so that it does not mix with lines that other processes write to the
/// same file.
pub fn write_line(to: &mut impl Write, line: &str) -> io::Result<()> {
    to.write_all(format!("{line}\n").as_bytes())
}

/// Returns whether the locale supports more than ASCII.
pub fn speaks_unicode() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    locale.is_none_or(|name| {
        let name = name.to_ascii_lowercase();
        name.contains("utf-8") || name.contains("utf8") || name == "c" || name == "posix"
    })
}

/// Emphasised text.
pub const STRONG: anstyle::Style = anstyle::Style::new().bold();
/// Less important text.
pub const FAINT: anstyle::Style = anstyle::Style::new().dimmed();
/// A good state.
pub const GOOD: anstyle::Style = anstyle::AnsiColor::Green.on_default();
/// A missing feature.
pub const LACKING: anstyle::Style = anstyle::AnsiColor::Yellow.on_default();

/// Makes a foreign text, such as the name of a program, safe for a terminal. Control characters (C0
/// and C1) could move the cursor. Characters that change the direction of text or have no width
/// could make two names appear equal. Both are written as escapes.
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    text.chars().for_each(|c| push_shown(&mut shown, c));
    shown
}

/// Returns the items that a user means by a name: those with this name, or else those whose name
/// [`shown`] prints so, as in `usher status`.
pub fn named<'a, T>(items: &'a [T], name: impl Fn(&T) -> &str, wanted: &str) -> Vec<&'a T> {
    let all = |is_meant: &dyn Fn(&str) -> bool| -> Vec<&'a T> {
        items.iter().filter(|item| is_meant(name(item))).collect()
    };
    let exact = all(&|name| name == wanted);
    match exact.is_empty() {
        // A table does not show blanks at the ends of a name.
        true => all(&|name| shown(name).trim() == wanted.trim()),
        false => exact,
    }
}

fn push_shown(to: &mut String, c: char) {
    match c {
        c if c.is_control() => to.extend(c.escape_debug()),
        c if is_invisible(c) => to.extend(c.escape_unicode()),
        c => to.push(c),
    }
}

/// The last filter before standard output. It escapes the same characters as [`shown`], except line
/// ends, tabs, and styles (`ESC [ digits m`) if colour is on. Foreign texts pass [`shown`] before
/// they become part of a text, so that this filter never sees their styles.
fn filtered(text: &str, styled: bool) -> String {
    let mut filtered = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let style = style_at(rest);
        let (kept, length) = match c {
            '\n' | '\t' => (true, 1),
            _ if styled && style > 0 => (true, style),
            c => (false, c.len_utf8()),
        };
        match kept {
            true => filtered.push_str(&rest[..length]),
            false => push_shown(&mut filtered, c),
        }
        rest = &rest[length..];
    }
    filtered
}

/// Returns the length of the style with which a text begins; 0 if there is none.
fn style_at(text: &str) -> usize {
    let Some(parameters) = text.strip_prefix("\x1b[") else {
        return 0;
    };
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';');
    match end {
        Some(end) if parameters[end..].starts_with('m') => "\x1b[m".len() + end,
        _ => 0,
    }
}

/// Format characters, separators of lines and paragraphs, tags.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Writes texts by file name into a directory. Returns the paths of the written files, and the
/// errors of the files that could not be written.
pub fn write_files<N: AsRef<Path>>(
    dir: &Path,
    files: impl IntoIterator<Item = (N, anyhow::Result<String>)>,
) -> (Vec<PathBuf>, Vec<anyhow::Error>) {
    let (mut written, mut unwritten) = (Vec::new(), Vec::new());
    for (name, text) in files {
        let path = dir.join(name);
        let outcome = text.and_then(|text| Ok(fs::write(&path, text)?));
        match outcome.with_context(|| format!("writing '{}'", path.display())) {
            Ok(()) => written.push(path),
            Err(error) => {
                // The file is removed, because a partial file is useless.
                let _ = fs::remove_file(&path);
                unwritten.push(error);
            }
        }
    }
    (written, unwritten)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Texts with many characters that must not reach a terminal.
    fn hostile() -> impl Strategy<Value = String> {
        let odd = prop_oneof![
            Just('\u{1b}'),
            Just('['),
            Just('m'),
            Just('\u{9b}'),
            proptest::char::range('\u{0}', '\u{9f}'),
            proptest::char::range('\u{2000}', '\u{206f}'),
            any::<char>(),
        ];
        proptest::collection::vec(odd, 0..40).prop_map(String::from_iter)
    }

    fn is_harmless(c: char) -> bool {
        !c.is_control() && !is_invisible(c)
    }

    #[test]
    fn a_line_is_written_by_one_call() {
        struct Calls(Vec<String>);
        impl Write for Calls {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(String::from_utf8_lossy(bytes).into_owned());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut calls = Calls(Vec::new());
        write_line(&mut calls, "usher: a line").unwrap();
        assert_eq!(calls.0, ["usher: a line\n"]);
    }

    proptest! {
        #[test]
        fn names_have_no_control_characters(text in hostile()) {
            prop_assert!(shown(&text).chars().all(is_harmless));
        }

        #[test]
        fn standard_output_keeps_only_line_ends_tabs_and_styles(text in hostile()) {
            let filtered = filtered(&text, true);
            let plain = anstream::adapter::strip_str(&filtered).to_string();
            let harmless = |text: &str| text.chars().all(|c| is_harmless(c) || "\n\t".contains(c));
            prop_assert!(harmless(&plain), "{plain:?}");
            prop_assert!(harmless(&super::filtered(&text, false)));
            prop_assert_eq!(super::filtered(&shown(&text), true), shown(&text));
        }
    }

    #[test]
    fn keeps_styles_and_escapes_other_sequences() {
        let red = format!("{LACKING}x{LACKING:#}\n");
        assert_eq!(filtered(&red, true), red);
        assert_eq!(filtered("\x1b[2J\x1b[1;31", true), "\\u{1b}[2J\\u{1b}[1;31");
    }

    #[test]
    fn escapes_control_characters_only() {
        let actual = shown("a\x1b]0;x\x07\r\n\u{9b}31m\u{7f}");
        assert_eq!(actual, "a\\u{1b}]0;x\\u{7}\\r\\n\\u{9b}31m\\u{7f}");
        let plain = "x264 – 'ß' \"\\ 日本";
        assert_eq!(shown(plain), plain);
    }

    #[test]
    fn a_name_is_accepted_as_it_is_shown() {
        let names = ["a\u{1b}[1m", "b\u{fffd}", " c ", "a", "a"];
        let is_found = |wanted: &str| named(&names, |name| name, wanted).len();
        for name in &names[..3] {
            assert_eq!(is_found(name), 1, "{name:?}");
            assert_eq!(is_found(&shown(name)), 1, "{name:?}");
        }
        assert_eq!((is_found("c"), is_found("a"), is_found("d")), (1, 2, 0));
        // An exact name has precedence over a name that is shown alike.
        let alike = ["x\u{1b}", "x\\u{1b}"];
        assert_eq!(named(&alike, |name| name, alike[1]), [&alike[1]]);
    }

    #[test]
    fn control_and_direction_characters_do_not_reach_a_terminal() {
        assert_eq!(shown("naïve 日本"), "naïve 日本");
        assert_eq!(shown("a\x1b[31m\u{9b}"), "a\\u{1b}[31m\\u{9b}");
        for bidi in ('\u{202a}'..='\u{202e}')
            .chain('\u{2066}'..='\u{2069}')
            .chain(['\u{200e}', '\u{200f}', '\u{200b}'])
        {
            let text = shown(&format!("x{bidi}y"));
            assert!(
                text.is_ascii() && text.contains(&format!("{:x}", u32::from(bidi))),
                "{text}"
            );
        }
    }
}
