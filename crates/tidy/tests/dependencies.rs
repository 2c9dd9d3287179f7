// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that the dependencies of the two workspaces obey `deny.toml`. `cargo metadata` lists the
//! dependencies, and `usher_tidy::dependencies` checks them.

use std::path::Path;

use cargo_metadata::MetadataCommand;
use usher_tidy::dependencies::{Policy, check, of_metadata};

#[test]
fn crates_of_others_keep_the_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let policy = std::fs::read_to_string(root.join("deny.toml")).unwrap();
    let policy = Policy::parse(&policy).unwrap();
    let options = ["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
    for manifest in ["Cargo.toml", "evidence/Cargo.toml"].map(|path| root.join(path)) {
        if !manifest.exists() {
            continue; // a checkout without the evidence
        }
        let metadata = MetadataCommand::new()
            .manifest_path(&manifest)
            .other_options(options.map(str::to_owned))
            .exec()
            .unwrap();
        let dependencies = of_metadata(&metadata);
        assert!(dependencies.len() > 100, "{} crates", dependencies.len());
        let breaches = check(&policy, &dependencies);
        let breaches: Vec<String> = breaches.iter().map(ToString::to_string).collect();
        assert!(breaches.is_empty(), "\n{}\n", breaches.join("\n"));
    }
}
