// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extracts the messages and help texts of a Rust file, for the reading test (CONTRIBUTING.md,
//! "Text").
//!
//! 1. Walk over the tokens of the file, except tests.
//! 2. Take the doc comments of types from which clap derives options or commands.
//! 3. Take string literals, except arguments of macros and functions of which users do not see the
//!    texts (`INTERNAL`).
//! 4. Divide the texts into paragraphs.
//! 5. Drop paragraphs with fewer than three words or with signs of SQL, shell commands, markup or
//!    data.
//!
//! Steps 3 and 5 are heuristics, so a short text for users may be missing. The time is linear in
//! the size of the file.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::File;
use crate::tokens::{is_punct, marks_a_test, tokens};

/// Traits of clap whose derive macros convert doc comments to help texts.
const CLAP: [&str; 4] = ["Args", "Parser", "Subcommand", "ValueEnum"];
/// Attributes that contain texts for users.
const ATTRIBUTES: [&str; 5] = ["arg", "clap", "command", "error", "value"];
/// Words in an attribute of clap that exclude the item's doc comment from the help.
const WITHOUT_HELP: [&str; 4] = ["flatten", "hide", "skip", "subcommand"];
/// Macros and functions of which the string literals are not shown to users.
const INTERNAL: [&str; 13] = [
    "arg",
    "args",
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "execute",
    "execute_batch",
    "expect",
    "matches",
    "prepare",
    "query_row",
    "unreachable",
];
const SQL: [&str; 9] = [
    "ALTER", "BEGIN", "CREATE", "DELETE", "DROP", "INSERT", "PRAGMA", "SELECT", "UPDATE",
];
/// Substrings of shell commands, markup, code and data. A text with such a substring is no prose.
const CODE: [&str; 16] = [
    "#!/",
    "$(",
    "&&",
    "; do",
    "; then",
    "/dev/null",
    " | ",
    "=\"",
    "</",
    "<b",
    "\":",
    "{{",
    "();",
    " = \"",
    "$1",
    "\\d",
];
/// Minimum number of words of a text.
const WORDS_MIN: usize = 3;
/// Minimum indentation of a line that continues a paragraph. A line with less indentation is an
/// example or a row of a table.
const HANGING_MIN: usize = 6;

/// Returns each message and each paragraph of a help text as one line of text, with its line number
/// in the file.
pub fn messages(file: &File) -> Vec<(usize, String)> {
    // If the file is not Rust, another rule reports it.
    let Ok(stream) = tokens(file) else {
        return Vec::new();
    };
    let mut texts = Vec::new();
    walk(stream, &mut texts);
    let paragraphs = texts
        .into_iter()
        .flat_map(|(line, text)| paragraphs(&text).into_iter().map(move |part| (line, part)));
    paragraphs.filter(|(_, text)| is_prose(text)).collect()
}

/// Collects the texts outside of tests, depth first.
fn walk(stream: TokenStream, found: &mut Vec<(usize, String)>) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut docs = Docs::default();
    let (mut is_test, mut is_clap) = (false, false);
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Literal(literal) => {
                let text = unescaped(&literal.to_string());
                found.extend(text.map(|text| (literal.span().start().line, text)));
            }
            TokenTree::Group(group) if at > 0 && is_punct(&trees[at - 1], '#') => {
                is_test |= marks_a_test(group);
                is_clap |= attribute(group, &mut docs, found);
            }
            // This group is the doc comment of the file.
            TokenTree::Group(_) if at > 1 && is_punct(&trees[at - 2], '#') => {}
            TokenTree::Group(group) => {
                let is_body = group.delimiter() == Delimiter::Brace;
                if is_body && std::mem::take(&mut is_test) || is_internal(&trees[..at]) {
                    continue;
                }
                if is_body && std::mem::take(&mut is_clap) {
                    found.extend(docs.take());
                    help(group.stream(), found);
                }
                walk(group.stream(), found);
                docs = Docs::default();
            }
            TokenTree::Punct(sign) if sign.as_char() == ';' => {
                (is_test, is_clap, docs) = (false, false, Docs::default());
            }
            _ => {}
        }
    }
}

/// Reads an attribute, and returns whether it derives one of the traits [`CLAP`].
fn attribute(group: &Group, docs: &mut Docs, found: &mut Vec<(usize, String)>) -> bool {
    let text = group.stream().to_string();
    let name: String = text.chars().take_while(|c| c.is_alphanumeric()).collect();
    match name.as_str() {
        "doc" => docs.push(group),
        "derive" => return words(&text).any(|word| CLAP.contains(&word)),
        _ if ATTRIBUTES.contains(&name.as_str()) => walk(group.stream(), found),
        _ => {}
    }
    false
}

/// Collects the doc comments of the fields or variants of a type that derives a trait of clap.
fn help(stream: TokenStream, found: &mut Vec<(usize, String)>) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut docs = Docs::default();
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Group(group) if at > 0 && is_punct(&trees[at - 1], '#') => {
                let text = group.stream().to_string();
                if text.starts_with("doc") {
                    docs.push(group);
                } else if words(&text).any(|word| WITHOUT_HELP.contains(&word)) {
                    docs.is_hidden = true;
                }
            }
            TokenTree::Punct(sign) if sign.as_char() == ',' => found.extend(docs.take()),
            _ => {}
        }
    }
    found.extend(docs.take());
}

/// The lines of a doc comment.
#[derive(Default)]
struct Docs {
    line: usize,
    text: String,
    is_hidden: bool,
}

impl Docs {
    fn push(&mut self, attribute: &Group) {
        if self.text.is_empty() {
            self.line = attribute.span_open().start().line;
        }
        let literal = attribute.stream().into_iter().last();
        let line = literal.and_then(|literal| unescaped(&literal.to_string()));
        self.text.push_str(line.unwrap_or_default().trim());
        self.text.push('\n');
    }

    fn take(&mut self) -> Option<(usize, String)> {
        let docs = std::mem::take(self);
        (!docs.is_hidden && !docs.text.is_empty()).then_some((docs.line, docs.text))
    }
}

fn is_internal(before: &[TokenTree]) -> bool {
    let name = match before {
        [.., TokenTree::Ident(name), sign] if is_punct(sign, '!') => name,
        [.., TokenTree::Ident(name)] => name,
        _ => return false,
    };
    INTERNAL.contains(&name.to_string().as_str())
}

/// Returns the text of a string literal; `None` for another literal.
fn unescaped(literal: &str) -> Option<String> {
    if let Some(raw) = literal.strip_prefix('r') {
        let raw = raw.trim_matches('#').strip_prefix('"')?;
        return raw.strip_suffix('"').map(str::to_owned);
    }
    let quoted = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::new();
    let mut chars = quoted.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some('\n')) => while chars.next_if(|c| c.is_whitespace()).is_some() {},
            ('\\', Some('n')) => {
                chars.next();
                text.push('\n');
            }
            ('\\', Some('"' | '\\' | '\'')) => text.extend(chars.next()),
            _ => text.push(c),
        }
    }
    Some(text)
}

/// Divides a text into paragraphs. A blank line ends a paragraph. An indented line with less than
/// [`HANGING_MIN`] blanks begins a paragraph, because it is an example or a row of a table.
fn paragraphs(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut was_indented = false;
    for line in text.lines() {
        let indentation = line.len() - line.trim_start().len();
        let is_row = (1..HANGING_MIN).contains(&indentation);
        let begins = is_row || was_indented && indentation == 0 || line.trim().is_empty();
        was_indented = indentation > 0;
        if begins {
            found.push(String::new());
        }
        if let Some(last) = found.last_mut() {
            let joint = if last.is_empty() { "" } else { " " };
            last.push_str(joint);
            last.push_str(line.trim());
        }
    }
    found.retain(|paragraph| !paragraph.is_empty());
    found
}

/// Returns whether the text has at least [`WORDS_MIN`] words and none of the substrings [`CODE`].
fn is_prose(text: &str) -> bool {
    if CODE.iter().any(|sign| text.contains(sign)) || text.contains("SPDX") {
        return false;
    }
    if text.split_whitespace().any(|word| SQL.contains(&word)) || text.starts_with('<') {
        return false;
    }
    let all = text.split_whitespace().count();
    let is_word = |word: &&str| {
        let word = word.trim_end_matches([',', '.', ':', ';', ')']);
        word.len() > 1 && word.chars().all(|c| c.is_lowercase() || c == '\'')
    };
    let prose = text.split_whitespace().filter(is_word).count();
    prose >= WORDS_MIN && 2 * prose >= all
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(usize, String)> {
        let mut tree = crate::Tree::of(&[("crates/a/src/a.rs", text)]);
        messages(&tree.files.remove(0))
    }

    #[test]
    fn finds_messages_and_joins_their_lines() {
        let text = "#[error(\"reading the file {path} failed: {error}\")]\nstruct E;\n\
                    fn f() { bail!(\"the daemon \\\n    does not listen\"); }\n\
                    fn g() { bail!(\"too short\"); }\n";
        let expected = [
            (1, "reading the file {path} failed: {error}"),
            (3, "the daemon does not listen"),
        ];
        assert_eq!(of(text), expected.map(|(at, text)| (at, text.to_owned())));
    }

    #[test]
    fn leaves_out_literals_that_users_do_not_read() {
        for literal in [
            "SELECT name from runs where id is not null",
            "while sleep inf; do wait for it; done",
            "<svg width='10'> this is a picture",
            "<p class=\\\"x\\\">this is markup</p>",
            "{{\\\"name\\\": this is data}}",
            "grep the lines of a file | sort",
            "a.b c.d e.f 1 2 3",
        ] {
            assert_eq!(of(&format!("fn f() {{ run(\"{literal}\"); }}")), []);
        }
        for code in [
            "fn f() { x.expect(\"the lock is never poisoned\"); }",
            "fn f() { assert!(x, \"the lock is never poisoned\"); }",
            "#[allow(dead_code, reason = \"only the tests use it\")] fn f() {}",
            "/// A comment on the function.\nfn f() {}",
            "//! A comment on the whole file.\nfn f() {}",
            "#[cfg(test)] mod t { const T: &str = \"this text is for a test\"; }",
        ] {
            assert_eq!(of(code), [], "{code}");
        }
    }

    #[test]
    fn finds_help_in_comments_of_clap() {
        let text = "/// Runs a program on its own\n/// CPUs.\n#[derive(Debug, clap::Args)]\n\
                    struct Args {\n/// Limit the number of CPUs\n#[arg(long)]\ncpus: u32,\n\
                    /// The options of every command\n#[command(flatten)]\nglobal: Global,\n}\n\
                    /// This type has no help text.\nstruct Other {\n/// Nor has this field.\na: u8\n}\n";
        let expected = [
            (1, "Runs a program on its own CPUs."),
            (5, "Limit the number of CPUs"),
        ];
        assert_eq!(of(text), expected.map(|(at, text)| (at, text.to_owned())));
    }

    #[test]
    fn divides_help_into_paragraphs_and_rows() {
        let text = "Two lines are\none paragraph.\n\nColumns:\n  seat   the CPUs\n         of it\n\
                    The end.";
        assert_eq!(
            paragraphs(text),
            [
                "Two lines are one paragraph.",
                "Columns:",
                "seat   the CPUs of it",
                "The end."
            ]
        );
    }
}
