// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the sample of a reading test: CONTRIBUTING.md, "Text".
//!
//! ```sh
//! cargo run -p usher-tidy --example reading_sample -- SEED
//! ```

use std::path::Path;
use std::process::ExitCode;

use usher_tidy::prose::Kind;
use usher_tidy::{Tree, sample};

fn main() -> ExitCode {
    let seed = std::env::args().nth(1).map(|word| word.parse::<u64>());
    let Some(Ok(seed)) = seed else {
        eprintln!("usage: reading_sample SEED");
        return ExitCode::from(2);
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = match Tree::read(&root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("{}: {error}", root.display());
            return ExitCode::FAILURE;
        }
    };
    println!("seed {seed}");
    let kinds = [
        ("Documents", Kind::Document),
        ("Help and messages", Kind::Message),
        ("Comments", Kind::Comment),
    ];
    for (name, kind) in kinds {
        println!("\n{name}");
        for (number, sentence) in (1..).zip(sample::sentences(&tree, kind, seed)) {
            println!("{number:2}. {}\n    {}", sentence.text, sentence.place);
        }
    }
    println!("\nFiles");
    for (number, path) in (1..).zip(sample::files(&tree, seed)) {
        println!("{number:2}. {path}");
    }
    ExitCode::SUCCESS
}
