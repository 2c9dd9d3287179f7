// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the sample of a reading test: CONTRIBUTING.md, "Text".
//!
//! ```sh
//! cargo run -p usher-tidy --example reading_sample -- SEED
//! cargo run -p usher-tidy --example reading_sample -- SEED --messages 100
//! ```
//!
//! The sample consists of sentences of documents, messages and comments, and of names of files.
//! `SEED` determines the random selection. With `--messages N` the sample consists of N sentences
//! of messages and help texts of `crates/` instead.

use std::path::Path;
use std::process::ExitCode;

use usher_tidy::Tree;
use usher_tidy::prose::Kind;
use usher_tidy::sample::{self, SAMPLE, Sentence};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let parsed = match words[..] {
        [seed] => (seed.parse().ok(), Some(None)),
        [seed, "--messages", size] => (seed.parse().ok(), size.parse().ok().map(Some)),
        _ => (None, None),
    };
    let (Some(seed), Some(messages)) = parsed else {
        eprintln!("usage: reading_sample SEED [--messages N]");
        return ExitCode::from(2);
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut tree = match Tree::read(&root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("{}: {error}", root.display());
            return ExitCode::FAILURE;
        }
    };
    println!("seed {seed}");
    if let Some(size) = messages {
        tree.files.retain(|file| file.path.starts_with("crates/"));
        print(&sample::sentences(&tree, Kind::Message, seed, size));
    } else {
        print_all(&tree, seed);
    }
    ExitCode::SUCCESS
}

fn print(sentences: &[Sentence]) {
    for (number, sentence) in (1..).zip(sentences) {
        println!("{number:2}. {}\n    {}", sentence.text, sentence.place);
    }
}

fn print_all(tree: &Tree, seed: u64) {
    let kinds = [
        ("Documents", Kind::Document),
        ("Help and messages", Kind::Message),
        ("Comments", Kind::Comment),
    ];
    for (name, kind) in kinds {
        println!("\n{name}");
        print(&sample::sentences(tree, kind, seed, SAMPLE));
    }
    println!("\nFiles");
    for (number, path) in (1..).zip(sample::files(tree, seed)) {
        println!("{number:2}. {path}");
    }
}
