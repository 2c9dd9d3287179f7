// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules for documents: the code map in ARCHITECTURE.md lists every crate and no other folder,
//! every link within the repository has an existing target, every `make` target in code of a
//! document exists, and the contents of the book in `docs/` list each of its pages once. Links to the network are not checked. A link into a document costs a parse of
//! that document.

use std::collections::BTreeSet;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use crate::{Breach, File, Tree};

const MAP: &str = "ARCHITECTURE.md";
/// The table of contents of the book.
const CONTENTS: &str = "docs/SUMMARY.md";

/// Returns a breach for each crate that ARCHITECTURE.md does not name, and for each folder of a
/// crate that it names and that does not exist. In a tree without `evidence/`, folders in
/// `evidence/` are not checked.
pub fn check_code_map(tree: &Tree) -> Vec<Breach> {
    let Some(map) = tree.get(MAP) else {
        return vec![Breach::new(MAP, 0, "is missing")];
    };
    let named: BTreeSet<&str> = ["crates/", "evidence/"]
        .into_iter()
        .flat_map(|workspace| map.text.match_indices(workspace))
        .filter_map(|(at, workspace)| {
            let name = first_word(&map.text[at + workspace.len()..]);
            let end = at + workspace.len() + name.len();
            (!name.is_empty()).then(|| &map.text[at..end])
        })
        .collect();
    let crates: BTreeSet<&str> = tree.crates().into_iter().collect();
    let forgotten = crates
        .difference(&named)
        .map(|name| format!("the code map lacks {name}"));
    let has_evidence = tree.holds("evidence");
    let invented = named
        .difference(&crates)
        .filter(|name| has_evidence || !name.starts_with("evidence/"))
        .map(|name| format!("the directory {name} does not exist"));
    forgotten
        .chain(invented)
        .map(|what| Breach::new(MAP, 0, what))
        .collect()
}

fn first_word(text: &str) -> &str {
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'))
        .unwrap_or(text.len());
    &text[..end]
}

/// Returns a breach for each link of a Markdown file without a target, and for each `make` target
/// in a Markdown file that the Makefile does not have.
pub fn check_links(tree: &Tree) -> Vec<Breach> {
    let makefile = tree.get("Makefile").map_or("", |file| file.text.as_str());
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', '#', '.']))
        .filter_map(|line| line.split_once(':'))
        .flat_map(|(targets, _)| targets.split_whitespace())
        .collect();
    let mut breaches = Vec::new();
    for file in tree.files.iter().filter(|file| file.has_extension("md")) {
        let page = Page::read(file);
        for (line, link) in &page.links {
            if let Some(what) = broken(tree, file, link) {
                breaches.push(Breach::new(&file.path, *line, what));
            }
        }
        for (line, target) in &page.made {
            if !targets.contains(target.as_str()) {
                let what = format!("the Makefile has no target {target}");
                breaches.push(Breach::new(&file.path, *line, what));
            }
        }
    }
    breaches
}

/// Returns a breach for each page of `docs/` that its table of contents does not list exactly once.
pub fn check_contents(tree: &Tree) -> Vec<Breach> {
    let Some(contents) = tree.get(CONTENTS) else {
        return vec![Breach::new(CONTENTS, 0, "is missing")];
    };
    let listed = Page::read(contents).links;
    let times = |path: &str| {
        let is_page = |(_, link): &&(usize, String)| path.strip_prefix("docs/") == Some(link);
        listed.iter().filter(is_page).count()
    };
    (tree.files.iter())
        .filter(|file| file.path.starts_with("docs/") && file.has_extension("md"))
        .filter(|file| file.path != CONTENTS && times(&file.path) != 1)
        .map(|file| {
            let what = format!("lists {} {} times", file.path, times(&file.path));
            Breach::new(CONTENTS, 0, what)
        })
        .collect()
}

/// The links, `make` targets and headings of a Markdown file.
#[derive(Default)]
struct Page {
    /// The line and the destination of each link.
    links: Vec<(usize, String)>,
    /// The line and the target of each `make TARGET` in code.
    made: Vec<(usize, String)>,
    /// The anchors of the headings.
    anchors: BTreeSet<String>,
}

impl Page {
    fn read(file: &File) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        let mut in_code_block = false;
        for (event, range) in Parser::new(&file.text).into_offset_iter() {
            let line = file.text[..range.start].matches('\n').count() + 1;
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors
                        .extend(heading.take().map(|text| anchor(&text)));
                }
                Event::Start(Tag::CodeBlock(_)) => in_code_block = true,
                Event::End(TagEnd::CodeBlock) => in_code_block = false,
                Event::Text(text) if in_code_block => page.note_made(line, &text),
                Event::Code(text) => {
                    page.note_made(line, &text);
                    heading
                        .iter_mut()
                        .for_each(|heading| heading.push_str(&text));
                }
                Event::Text(text) => {
                    heading
                        .iter_mut()
                        .for_each(|heading| heading.push_str(&text));
                }
                _ => {}
            }
        }
        page
    }

    fn note_made(&mut self, first: usize, code: &str) {
        for (line, text) in (first..).zip(code.lines()) {
            let command = text.trim_start_matches(['$', ' ']);
            let Some(rest) = command.strip_prefix("make ") else {
                continue;
            };
            let target = rest
                .split_whitespace()
                .find(|word| !word.starts_with('-') && !word.contains('='));
            self.made
                .extend(target.map(|target| (line, target.to_owned())));
        }
    }
}

/// Returns the anchor that a Markdown viewer creates for a heading.
fn anchor(heading: &str) -> String {
    heading
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c => c.is_alphanumeric().then_some(c),
        })
        .collect()
}

/// Returns what is wrong with a link of a file; `None` if the target exists. Links to the network
/// are not checked.
fn broken(tree: &Tree, from: &File, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
    let path = match path {
        "" => from.path.clone(),
        _ => resolve(&from.path, path),
    };
    if !tree.holds(&path) {
        return Some(format!("the target of the link {link} does not exist"));
    }
    let page = tree.get(&path).filter(|file| file.has_extension("md"))?;
    let known = fragment.is_empty() || Page::read(page).anchors.contains(fragment);
    (!known).then(|| format!("{path} has no heading #{fragment}"))
}

/// Converts a path relative to the folder of the file `from` to a path relative to the root.
fn resolve(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches_of(rule: crate::Rule, files: &[(&str, &str)]) -> Vec<String> {
        let breaches = rule(&Tree::of(files));
        breaches.iter().map(Breach::to_string).collect()
    }

    #[test]
    fn the_map_shows_every_crate_and_no_other() {
        let crates = [("crates/a/Cargo.toml", ""), ("evidence/b/Cargo.toml", "")];
        let with = |map| breaches_of(check_code_map, &[(MAP, map), crates[0], crates[1]]);
        assert_eq!(
            with("`crates/a`, evidence/b/src/lib.rs in crates/ and evidence/"),
            [""; 0]
        );
        assert_eq!(
            with("`crates/a`, evidence/d and crates/c."),
            [
                "ARCHITECTURE.md: the code map lacks evidence/b",
                "ARCHITECTURE.md: the directory crates/c does not exist",
                "ARCHITECTURE.md: the directory evidence/d does not exist"
            ]
        );
        let product_alone = [(MAP, "crates/a and evidence/b"), crates[0]];
        assert_eq!(breaches_of(check_code_map, &product_alone), [""; 0]);
        assert_eq!(
            breaches_of(check_code_map, &crates),
            ["ARCHITECTURE.md: is missing"]
        );
    }

    #[test]
    fn the_contents_list_every_page_once() {
        let pages = [("docs/a.md", ""), ("docs/b/c.md", ""), ("docs/d.toml", "")];
        let with = |contents| {
            let files = [&[(CONTENTS, contents)], &pages[..]].concat();
            breaches_of(check_contents, &files)
        };
        assert_eq!(with("- [A](a.md)\n  - [C](b/c.md)\n"), [""; 0]);
        assert_eq!(
            with("[A](a.md)\n[A](a.md)\n"),
            [
                "docs/SUMMARY.md: lists docs/a.md 2 times",
                "docs/SUMMARY.md: lists docs/b/c.md 0 times"
            ]
        );
        assert_eq!(
            breaches_of(check_contents, &pages),
            ["docs/SUMMARY.md: is missing"]
        );
    }

    #[test]
    fn links_lead_somewhere() {
        let page = "# Top `usher run`\n[a](b.md#what-it-is) [c](../Makefile) [d](#top-usher-run)\n\
                    [web](https://example.org/x) [e](img/)\n\n[bad](gone.md)\n![bad](x.png)\n\
                    [bad](b.md#no)\n[r]\n\n[r]: lost.md\n\n```\n[code](nowhere.md)\n```\n";
        let files = [
            ("docs/a.md", page),
            ("docs/b.md", "## What it is?\n"),
            ("docs/img/one.svg", ""),
            ("Makefile", ""),
        ];
        assert_eq!(
            breaches_of(check_links, &files),
            [
                "docs/a.md:5: the target of the link gone.md does not exist",
                "docs/a.md:6: the target of the link x.png does not exist",
                "docs/a.md:7: docs/b.md has no heading #no",
                "docs/a.md:8: the target of the link lost.md does not exist",
            ]
        );
    }

    #[test]
    fn make_targets_exist() {
        let make = "# notes: none\n.PHONY: ghost\nrun test: setup\n\tdeep: no\ninstall: ;\n";
        let page = "`make run` then `make install PREFIX=x` and make nonsense\n\n\
                    ```sh\n$ make test\nmake -j2 ghost\n```\n";
        let found = breaches_of(check_links, &[("Makefile", make), ("README.md", page)]);
        assert_eq!(found, ["README.md:5: the Makefile has no target ghost"]);
    }
}
