// SPDX-License-Identifier: MIT OR Apache-2.0
//! Selects random sentences and files for a reading test, in which a reader without knowledge of
//! the project counts the sentences that need a second reading. The same seed selects the same
//! sample of the same tree.
//!
//! A sample has 20 files, and by default 20 sentences of each kind. If fewer exist, all are
//! selected. Files have at least 50 lines, and sentences at least 4 words.

use crate::messages::messages;
use crate::prose::{self, Kind};
use crate::{File, Tree};

/// Number of sentences of each kind, and of files, in a sample.
pub const SAMPLE: usize = 20;
/// Minimum number of lines of a file in a sample. The next constant is the minimum number of words
/// of a sentence.
const FILE_LINES_MIN: usize = 50;
const SENTENCE_WORDS_MIN: usize = 4;

/// A sentence with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    /// `FILE:LINE` of the paragraph that contains the sentence.
    pub place: String,
    /// The text, in one line.
    pub text: String,
}

/// Returns `size` random sentences of one kind, without repetition.
pub fn sentences(tree: &Tree, kind: Kind, seed: u64, size: usize) -> Vec<Sentence> {
    let all = tree.files.iter().flat_map(|file| match kind {
        Kind::Message if file.has_extension("rs") => messages_of(file),
        _ => sentences_of(file, kind),
    });
    draw(all.collect(), seed, size)
}

/// Returns the sentences of the messages and help texts of a file.
fn messages_of(file: &File) -> Vec<Sentence> {
    if file.is_test() || file.path.contains("/rig/") {
        return Vec::new();
    }
    let sentence = |(line, text): (usize, String)| {
        let place = format!("{}:{line}", file.path);
        divide(&text).into_iter().map(move |text| Sentence {
            place: place.clone(),
            text,
        })
    };
    messages(file).into_iter().flat_map(sentence).collect()
}

/// Returns random source files without repetition. Tests are never selected.
pub fn files(tree: &Tree, seed: u64) -> Vec<&str> {
    let is_source = |file: &&File| {
        let is_code = ["rs", "c", "h"].iter().any(|e| file.has_extension(e));
        is_code && file.crate_name().is_some() && !file.is_test()
    };
    let long = |file: &&File| file.text.lines().count() >= FILE_LINES_MIN;
    let files = tree.files.iter().filter(is_source).filter(long);
    draw(files.map(|file| file.path.as_str()).collect(), seed, SAMPLE)
}

/// Joins the lines of each paragraph, and divides the paragraph into sentences.
fn sentences_of(file: &File, kind: Kind) -> Vec<Sentence> {
    let mut found = Vec::new();
    let mut paragraph = String::new();
    let (mut first, mut last) = (0, 0);
    let mut end = |first: usize, paragraph: &mut String| {
        let place = format!("{}:{first}", file.path);
        let parts = divide(paragraph).into_iter();
        found.extend(parts.map(|text| Sentence {
            place: place.clone(),
            text,
        }));
        paragraph.clear();
    };
    for line in prose::lines(file, kind) {
        let goes_on = line.number <= last + 1 && kind != Kind::Message;
        if !goes_on || line.text.trim().is_empty() {
            end(first, &mut paragraph);
        }
        if paragraph.is_empty() {
            first = line.number;
        }
        paragraph.push_str(line.text.trim());
        if !paragraph.is_empty() {
            paragraph.push(' ');
        }
        last = line.number;
    }
    end(first, &mut paragraph);
    found
}

fn divide(paragraph: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut words: Vec<&str> = Vec::new();
    let all = paragraph.split_whitespace().map(Some).chain([None]);
    for word in all {
        words.extend(word);
        if word.is_none_or(|word| word.ends_with(['.', '!', '?'])) {
            if words.len() >= SENTENCE_WORDS_MIN {
                sentences.push(words.join(" "));
            }
            words.clear();
        }
    }
    sentences
}

/// Returns `size` random elements without repetition: the first elements of a Fisher-Yates shuffle
/// with random numbers of SplitMix64. Takes time linear in the length of `all`.
pub fn draw<T>(mut all: Vec<T>, mut seed: u64, size: usize) -> Vec<T> {
    let mut next = || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let count = all.len().min(size);
    for at in 0..count {
        let rest = (all.len() - at) as u64;
        // `rest` is at most the length of a vector, so the number fits into a `usize`.
        let other = at + (next() % rest) as usize;
        all.swap(at, other);
    }
    all.truncate(count);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_paragraphs_into_sentences() {
        let text = "//! One sentence has\n//! two lines. A second one stands here.\n\n\
                    // Too short.\nfn f() {}\n// The comment has no full stop\n";
        let tree = Tree::of(&[("crates/a/src/a.rs", text)]);
        let mut found = sentences(&tree, Kind::Comment, 1, SAMPLE);
        found.sort_by(|a, b| a.text.cmp(&b.text));
        let texts: Vec<&str> = found.iter().map(|s| s.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "A second one stands here.",
                "One sentence has two lines.",
                "The comment has no full stop"
            ]
        );
        assert_eq!(found[1].place, "crates/a/src/a.rs:1");
    }

    #[test]
    fn a_seed_draws_the_same_without_repetition() {
        let all: Vec<u32> = (0..100).collect();
        let mut drawn = draw(all.clone(), 7, SAMPLE);
        assert_eq!(drawn, draw(all.clone(), 7, SAMPLE));
        assert_ne!(drawn, draw(all, 8, SAMPLE));
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), SAMPLE);
    }
}
