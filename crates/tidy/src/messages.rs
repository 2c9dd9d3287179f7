// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages and help texts of a Rust file, for the reading test.
//!
//! Two parts of a file are texts for users: doc comments of types from which clap derives options
//! or commands, and string literals in prose. Other string literals (SQL, shell commands, markup,
//! test data, reasons of lints) are recognised by their context or their content and left out. The
//! recognition is a heuristic: a text that a user reads may be left out, if it has few words.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::File;
use crate::tokens::{is_punct, marks_a_test, tokens};

/// Traits of clap that make help texts of doc comments.
const CLAP: [&str; 4] = ["Args", "Parser", "Subcommand", "ValueEnum"];
/// Attributes with texts for users.
const ATTRIBUTES: [&str; 5] = ["arg", "clap", "command", "error", "value"];
/// Words in an attribute of clap that keep the doc comment out of the help.
const WITHOUT_HELP: [&str; 4] = ["flatten", "hide", "skip", "subcommand"];
/// Macros and functions with literals that users do not see.
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
/// Signs of shell commands, markup, code and data.
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
/// Words of prose that a text must have.
const WORDS_MIN: usize = 3;
/// Indented lines that continue a paragraph have at least this indentation.
const HANGING_MIN: usize = 6;

/// Messages and paragraphs of help, each in one line, with their line in the file.
pub fn messages(file: &File) -> Vec<(usize, String)> {
    // A file that is not Rust breaks other rules.
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
            // The comment on the file.
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

/// Reads an attribute; returns whether it derives a trait of clap.
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

/// The doc comments of the fields or variants in the braces of a type of clap.
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

/// The text of a string literal; `None` for other literals.
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

/// Blank lines end a paragraph, and a line with little indentation begins one: an example, or a
/// row of a table.
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

/// Whether the text has enough words of prose and no sign of code.
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
