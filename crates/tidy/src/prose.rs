// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rule: comments, documents and messages use certain words never or rarely, and documents have few
//! long sentences (CONTRIBUTING.md, "Text").
//!
//! 1. Extract the prose of each file, and assign it to an area: documents, messages, or the
//!    comments of a crate.
//! 2. Report each word for people, such as `nobody`: threads, queues and programs are things.
//! 3. In each area of at least 2,000 words, count the uses of each further group of words
//!    (`GROUPS`). These words are ordinary English, so all uses are reported only if there are more
//!    uses per 1,000 words than the group's limit.
//! 4. Report the sentences of documents with more than 35 words, if they are more than 9 % of the
//!    sentences.
//!
//! The comments and documents of rayon-core, ripgrep and scx_lavd are below the same limits.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use crate::tokens::tokens;
use crate::{Breach, File, Tree, c_lines};

/// A group of words, with the limit of its uses.
struct Group {
    name: &'static str,
    /// Maximum number of uses per 1,000 words of an area.
    limit: f64,
    /// Returns whether a text in lower case that begins with these words begins with a use of the
    /// group.
    starts: fn(&[&str]) -> bool,
}

const PEOPLE: [&str; 8] = [
    "who",
    "whom",
    "whoever",
    "somebody",
    "someone",
    "nobody",
    "anybody",
    "everybody",
];
const SPEECH: [&str; 9] = [
    "tell", "tells", "told", "say", "says", "said", "ask", "asks", "asked",
];
const LOOKS: [&str; 4] = ["look", "looks", "looked", "looking"];

/// Minimum number of words of an area for which rates are checked.
const WORDS_MIN: usize = 2_000;
/// A sentence of a document is long if it has more words than this.
const SENTENCE_WORDS_MAX: usize = 35;
/// Maximum share of long sentences in the sentences of all documents.
const LONG_SENTENCES_MAX: f64 = 0.09;

const GROUPS: [Group; 5] = [
    Group {
        name: "of things",
        limit: 0.5,
        starts: |words| words[0] == "whose",
    },
    Group {
        name: "tell, say, ask",
        limit: 0.8,
        starts: |words| SPEECH.contains(&words[0]),
    },
    Group {
        name: "look",
        limit: 0.8,
        starts: |words| LOOKS.contains(&words[0]),
    },
    Group {
        name: "one as a pronoun",
        limit: 0.7,
        starts: |words| {
            matches!(
                words,
                ["ones", ..]
                    | [
                        "the" | "that" | "this" | "each" | "no" | "another",
                        "one",
                        ..
                    ]
                    | ["one", "that" | "which", ..]
            )
        },
    },
    Group {
        name: "so many, that long",
        limit: 0.5,
        starts: |words| {
            matches!(
                words,
                [
                    "so" | "that" | "as",
                    "many" | "long" | "often" | "much" | "far",
                    ..
                ]
            )
        },
    },
];

/// The kind of text that contains a line of prose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A Markdown file.
    Document,
    /// A string literal of at least four words, outside of tests. Help texts count as comments,
    /// because they are doc comments.
    Message,
    /// A comment of Rust or C.
    Comment,
}

/// A line of prose with its position. Code in the text is between backticks.
#[derive(Debug, Clone)]
pub struct Line<'a> {
    /// The file.
    pub path: &'a str,
    /// The line, from 1.
    pub number: usize,
    /// The text.
    pub text: String,
}

/// Returns a breach for each word for people, for each use of a group of words that an area uses
/// too often, and for each long sentence if documents have too many.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let mut areas: BTreeMap<String, Vec<Line<'_>>> = BTreeMap::new();
    for file in &tree.files {
        for (area, lines) in prose_of(file) {
            areas.entry(area).or_default().extend(lines);
        }
    }
    let mut breaches = Vec::new();
    for (area, lines) in &areas {
        breaches.extend(lines.iter().flat_map(words_for_people));
        let words: usize = lines
            .iter()
            .map(|line| words(&without_code(&line.text)).len())
            .sum();
        if words >= WORDS_MIN {
            let groups = GROUPS.iter();
            breaches.extend(groups.flat_map(|group| too_frequent(group, area, lines, words)));
        }
    }
    let documents = areas.get(DOCUMENTS).map_or(&[][..], Vec::as_slice);
    breaches.extend(long_sentences(documents));
    breaches
}

const DOCUMENTS: &str = "documents";
const MESSAGES: &str = "messages";

/// Returns the prose of a file, with the area of each part.
fn prose_of(file: &File) -> Vec<(String, Vec<Line<'_>>)> {
    let areas = [
        (DOCUMENTS.to_owned(), Kind::Document),
        (MESSAGES.to_owned(), Kind::Message),
        (area(&file.path), Kind::Comment),
    ];
    let lines = areas.map(|(area, kind)| (area, lines(file, kind)));
    lines
        .into_iter()
        .filter(|(_, lines)| !lines.is_empty())
        .collect()
}

/// Returns the prose of one kind in a file.
pub fn lines(file: &File, kind: Kind) -> Vec<Line<'_>> {
    let is_code = ["rs", "c", "h", "cpp"]
        .iter()
        .any(|e| file.has_extension(e));
    let is_others = file.path.starts_with("LICENSES/");
    match kind {
        Kind::Document if file.has_extension("md") && !is_others => document(file),
        Kind::Message if is_code && !file.path.contains("/tests/") => messages(file),
        Kind::Comment if is_code => comments(file),
        _ => Vec::new(),
    }
}

/// Returns the area of the comments of a file: BPF programs and their headers, a crate, or a folder
/// of the root.
fn area(path: &str) -> String {
    let mut parts = path.split('/');
    let first = parts.next().unwrap_or(path);
    if path.contains("/bpf/") {
        "BPF and its headers".to_owned()
    } else if let ("crates" | "evidence", Some(name)) = (first, parts.next()) {
        format!("{first}/{name}")
    } else {
        first.to_owned()
    }
}

/// Returns the lines of comments.
fn comments(file: &File) -> Vec<Line<'_>> {
    let is_c = !file.has_extension("rs");
    let mut in_block = false;
    let mut lines = Vec::new();
    for (number, line) in file.lines() {
        let mut text = String::new();
        if in_block || is_c && line.contains("/*") {
            text = c_lines::divide(line, &mut in_block).1;
        } else if let Some(comment) = line_comment(line) {
            text.push_str(comment.trim_start_matches(['/', '!']));
        }
        if !text.is_empty() && !text.contains("SPDX") {
            lines.push(Line {
                path: &file.path,
                number,
                text,
            });
        }
    }
    lines
}

/// Returns the text after `//`, unless the `//` is part of a network address.
fn line_comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("//")
        .or_else(|| line.split_once(" // ").map(|(_, comment)| comment))
}

/// Returns the string literals of at least four words outside of tests and comments.
fn messages(file: &File) -> Vec<Line<'_>> {
    let mut literals = Vec::new();
    if file.has_extension("rs") {
        // If the file is not Rust, another rule reports it.
        if let Ok(stream) = tokens(file) {
            literals_of(stream, &mut literals);
        }
        let tests = file.lines().find(|(_, line)| line.trim() == "#[cfg(test)]");
        let tests = tests.map_or(usize::MAX, |(number, _)| number);
        literals.retain(|&(number, _)| number < tests);
        // The lexer converts doc comments to attributes with string literals, which are no
        // messages.
        let comments: BTreeSet<usize> = file
            .lines()
            .filter(|(_, line)| line.trim_start().starts_with("//"))
            .map(|(number, _)| number)
            .collect();
        literals.retain(|(number, _)| !comments.contains(number));
    } else {
        let code = file
            .lines()
            .filter(|(_, line)| !line.trim_start().starts_with("//"));
        for (number, line) in code {
            // Every second part of the line is between quotes, because messages in C have no
            // escaped quotes.
            let between = line.split('"').skip(1).step_by(2);
            literals.extend(between.map(|text| (number, text.to_owned())));
        }
    }
    literals.retain(|(_, text)| text.split_whitespace().count() >= 4);
    let line = |(number, text): (usize, String)| Line {
        path: &file.path,
        number,
        text: text.replace("\\n", ". "),
    };
    literals.into_iter().map(line).collect()
}

/// Collects all string literals with their line numbers.
fn literals_of(stream: TokenStream, found: &mut Vec<(usize, String)>) {
    for tree in stream {
        match tree {
            TokenTree::Group(group) => literals_of(group.stream(), found),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.starts_with('"') {
                    found.push((literal.span().start().line, text));
                }
            }
            _ => {}
        }
    }
}

/// Returns the text of a Markdown file, without blocks of code, tables and the destinations of
/// links.
fn document(file: &File) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    let (mut code_block, mut table, mut new_block) = (false, false, true);
    let options = pulldown_cmark::Options::ENABLE_TABLES;
    for (event, range) in Parser::new_ext(&file.text, options).into_offset_iter() {
        let text = match event {
            Event::Start(Tag::CodeBlock(_)) => {
                code_block = true;
                continue;
            }
            Event::End(TagEnd::CodeBlock) => {
                code_block = false;
                continue;
            }
            Event::Start(Tag::Table(_)) => {
                table = true;
                continue;
            }
            Event::End(TagEnd::Table) => {
                table = false;
                continue;
            }
            Event::Start(Tag::Item) | Event::End(TagEnd::Paragraph | TagEnd::Heading(_)) => {
                new_block = true;
                end_sentence(lines.last_mut());
                continue;
            }
            Event::Text(text) if !code_block => text.into_string(),
            Event::Code(code) => format!("`{code}`"),
            _ => continue,
        };
        let number = file.text[..range.start].matches('\n').count() + 1;
        match lines.last_mut() {
            _ if table => {}
            Some(line) if line.number == number && !new_block => line.text.push_str(&text),
            _ => lines.push(Line {
                path: &file.path,
                number,
                text,
            }),
        }
        new_block = false;
    }
    end_sentence(lines.last_mut());
    lines
}

/// Appends a full stop to a paragraph that has no punctuation at its end, so that the next
/// paragraph begins a new sentence.
fn end_sentence(line: Option<&mut Line<'_>>) {
    if let Some(line) = line.filter(|line| !line.text.ends_with(['.', '!', '?'])) {
        line.text.push('.');
    }
}

/// Replaces each text between backticks by the word "code".
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join("code")
}

/// Returns the words of a text in lower case.
fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '\''))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

fn words_for_people(line: &Line<'_>) -> Vec<Breach> {
    words(&without_code(&line.text))
        .iter()
        .filter(|word| PEOPLE.contains(&word.as_str()))
        .map(|word| {
            let what = format!(
                "the word \"{word}\" is for people only: name the thread, program or queue"
            );
            Breach::new(line.path, line.number, what)
        })
        .collect()
}

/// Returns a breach for each use of the group in an area, if there are more uses than the limit
/// allows.
fn too_frequent(group: &Group, area: &str, lines: &[Line<'_>], words_all: usize) -> Vec<Breach> {
    let mut uses = Vec::new();
    for line in lines {
        let words = words(&without_code(&line.text));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let starts = (0..words.len()).filter(|&at| (group.starts)(&words[at..]));
        uses.extend(starts.map(|at| (line, words[at].to_owned())));
    }
    let rate = 1000.0 * uses.len() as f64 / words_all as f64;
    if rate <= group.limit {
        return Vec::new();
    }
    let breach = |(line, word): (&Line<'_>, String)| {
        let what = format!(
            "the word \"{word}\" ({}) is too frequent: {rate:.1} uses per 1,000 words of {area}, \
             at most {} are allowed",
            group.name, group.limit
        );
        Breach::new(line.path, line.number, what)
    };
    uses.into_iter().map(breach).collect()
}

/// Returns a breach for each long sentence of documents, if their share is above the limit.
fn long_sentences(lines: &[Line<'_>]) -> Vec<Breach> {
    let (mut sentences, mut long) = (0, Vec::new());
    let (mut count, mut start): (usize, Option<(&str, usize)>) = (0, None);
    for line in lines {
        if start.is_none_or(|(path, _)| path != line.path) {
            (count, start) = (0, Some((line.path, line.number)));
        }
        for word in without_code(&line.text).split_whitespace() {
            count += 1;
            if word.ends_with(['.', '!', '?']) {
                if count > 3 {
                    sentences += 1;
                }
                if let (true, Some(at)) = (count > SENTENCE_WORDS_MAX, start) {
                    long.push((at, count));
                }
                (count, start) = (0, Some((line.path, line.number)));
            }
        }
    }
    if long.len() as f64 <= LONG_SENTENCES_MAX * f64::from(sentences) {
        return Vec::new();
    }
    let share = 100.0 * long.len() as f64 / f64::from(sentences);
    long.into_iter()
        .map(|((path, line), words)| {
            let what = format!(
                "a sentence has {words} words; {share:.0} % of the sentences are that long, at \
                 most {:.0} % may be",
                100.0 * LONG_SENTENCES_MAX
            );
            Breach::new(path, line, what)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let found = check(&Tree::of(files)).into_iter();
        found.map(|breach| (breach.path, breach.line)).collect()
    }

    #[test]
    fn rejects_words_for_people_wherever_prose_stands() {
        let rust =
            "fn a() {}\n/// The thread who runs.\nconst X: &str = \"nobody reads this text\";\n";
        assert_eq!(
            breaches(&[("crates/a/src/a.rs", rust)]),
            [
                ("crates/a/src/a.rs".to_owned(), 2),
                ("crates/a/src/a.rs".to_owned(), 3)
            ]
        );
        let c = "int a; /* Alone. */\n/* A task,\n * whom queue\n * is full. */\n// somebody\n";
        let lines: Vec<usize> = breaches(&[("crates/a/src/bpf/a.h", c)])
            .into_iter()
            .map(|(_, line)| line)
            .collect();
        assert_eq!(lines, [3, 5]);
        let document = "# Title\n\nA queue\nfor whom it may concern.\n";
        assert_eq!(
            breaches(&[("docs/a.md", document)]),
            [("docs/a.md".to_owned(), 4)]
        );
    }

    #[test]
    fn leaves_code_tests_and_other_words_alone() {
        let rust = "fn who() { run(\"who\"); }\n// The account `nobody` is whole.\n\
                    #[cfg(test)]\nmod tests { const X: &str = \"who is told of this\"; }\n";
        assert_eq!(breaches(&[("crates/a/src/a.rs", rust)]), []);
        let document = "```\nwho\n```\n\n| who | x |\n|---|---|\n| nobody | y |\n";
        assert_eq!(breaches(&[("docs/a.md", document)]), []);
        assert_eq!(breaches(&[("LICENSES/a.md", "who")]), []);
    }

    #[test]
    fn limits_the_rate_of_groups_in_large_areas() {
        let text = |uses: usize| {
            let uses = "// It is told.\n".repeat(uses);
            format!(
                "{uses}{}",
                "// Ten words of a comment in a row make text.\n".repeat(220)
            )
        };
        // Two uses in about 2,200 words are more than 0.8 uses per 1,000 words.
        assert_eq!(breaches(&[("crates/a/src/a.rs", &text(1))]), []);
        let lines: Vec<usize> = breaches(&[("crates/a/src/a.rs", &text(2))])
            .into_iter()
            .map(|(_, line)| line)
            .collect();
        assert_eq!(lines, [1, 2]);
    }

    #[test]
    fn finds_each_group() {
        let uses = |text: &str| -> Vec<&str> {
            let words = words(text);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            (0..words.len())
                .flat_map(|at| GROUPS.iter().map(move |group| (group, at)))
                .filter(|(group, at)| (group.starts)(&words[*at..]))
                .map(|(group, _)| group.name)
                .collect()
        };
        assert_eq!(
            uses("The ones asked looked as far."),
            [
                "one as a pronoun",
                "tell, say, ask",
                "look",
                "so many, that long"
            ]
        );
        assert_eq!(
            uses("One CPU, no longer one; as long"),
            ["so many, that long"]
        );
    }

    #[test]
    fn limits_the_share_of_long_sentences() {
        let long = format!("{}end. ", "word ".repeat(36));
        let short = "Four words stand here. ".repeat(9);
        assert_eq!(
            breaches(&[("docs/a.md", &format!("{long}{short}"))]),
            [("docs/a.md".to_owned(), 1)]
        );
        let short = "Four words stand here. ".repeat(12);
        assert_eq!(breaches(&[("docs/a.md", &format!("{long}{short}"))]), []);
    }
}
