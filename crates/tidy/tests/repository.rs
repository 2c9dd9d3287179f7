// SPDX-License-Identifier: MIT OR Apache-2.0
//! Applies every rule of this crate to this repository, and prints each breach with file and line.

use std::path::Path;

use usher_tidy::{Breach, RULES, Tree};

#[test]
fn the_repository_keeps_its_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = Tree::read(&root).unwrap();
    assert!(
        tree.crates().contains(&"crates/tidy"),
        "{} is not the root",
        root.display()
    );
    let breaches: Vec<String> = RULES
        .iter()
        .flat_map(|(name, rule)| {
            let mut breaches = rule(&tree);
            breaches.sort();
            let show = move |breach: Breach| format!("[{name}] {breach}");
            breaches.into_iter().map(show)
        })
        .collect();
    assert!(breaches.is_empty(), "\n{}\n", breaches.join("\n"));
}

#[test]
fn subjects_of_commits_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    match usher_tidy::subjects::too_long(&root) {
        Ok(subjects) => assert!(subjects.is_empty(), "\n{}\n", subjects.join("\n")),
        Err(reason) => usher_skip::skip!("no history of commits: {}", reason.0),
    }
}

/// Prints all circles of files of a crate (visible with `--nocapture`). The rule `circles::check`
/// limits their size.
#[test]
fn prints_files_that_use_one_another_in_circles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = Tree::read(&root).unwrap();
    for circle in usher_tidy::circles::circles(&tree) {
        println!("{} files: {}", circle.len(), circle.join(", "));
    }
}
