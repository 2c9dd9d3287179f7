// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rule: the workspace of `evidence/` has the same settings, and the same versions of common
//! dependencies, as the workspace of the product.
//!
//! With other settings or versions, the evidence would measure other code than the product ships,
//! and a common target folder would contain two builds of each dependency. Settings of single
//! packages are compared only if both workspaces have them. A missing or malformed file is a
//! breach.

use std::collections::BTreeMap;

use toml::{Table, Value};

use crate::{Breach, Tree};

const PRODUCT: &str = "Cargo.toml";
const EVIDENCE: &str = "evidence/Cargo.toml";
const PRODUCT_LOCK: &str = "Cargo.lock";
const EVIDENCE_LOCK: &str = "evidence/Cargo.lock";
/// The key in a profile that applies to all packages outside the workspace.
const EVERY_PACKAGE: &str = "*";

/// Returns a breach for each setting and version that differs between the workspaces. A tree
/// without `evidence/` has no breaches.
pub fn check(tree: &Tree) -> Vec<Breach> {
    if tree.get(EVIDENCE).is_none() {
        return Vec::new();
    }
    let settings = both(tree, PRODUCT, EVIDENCE, differing_settings);
    let versions = both(tree, PRODUCT_LOCK, EVIDENCE_LOCK, differing_versions);
    settings.into_iter().chain(versions).collect()
}

fn both(
    tree: &Tree,
    product: &str,
    evidence: &str,
    differing: fn(&Table, &Table) -> Vec<String>,
) -> Vec<Breach> {
    let read = |path: &str| -> Result<Table, Breach> {
        let file = tree.get(path);
        let file = file.ok_or_else(|| Breach::new(path, 0, "is missing"))?;
        let table = file.text.parse();
        table.map_err(|error| Breach::new(path, 0, format!("is not TOML: {error}")))
    };
    match (read(product), read(evidence)) {
        (Ok(product_table), Ok(evidence_table)) => differing(&product_table, &evidence_table)
            .into_iter()
            .map(|what| Breach::new(evidence, 0, format!("{what} differs from {product}")))
            .collect(),
        (one, other) => [one.err(), other.err()].into_iter().flatten().collect(),
    }
}

fn differing_settings(product: &Table, evidence: &Table) -> Vec<String> {
    let mut found = Vec::new();
    for path in [
        vec!["workspace", "package"],
        vec!["workspace", "lints"],
        vec!["workspace", "resolver"],
    ] {
        if at(product, &path) != at(evidence, &path) {
            found.push(path.join("."));
        }
    }
    let dependencies = ["workspace", "dependencies"];
    let is_own = |name: &str| name.starts_with("usher-");
    found.extend(differing(product, evidence, &dependencies, is_own));
    let profiles = at(evidence, &["profile"]).and_then(Value::as_table);
    for profile in profiles.into_iter().flat_map(Table::keys) {
        let here = ["profile", profile.as_str()];
        let packages = [&here[..], &["package"]].concat();
        let both = [product, evidence].map(|table| without_packages(at(table, &here)));
        if both[0] != both[1] {
            found.push(here.join("."));
        }
        found.extend(differing(product, evidence, &packages, |_| false));
    }
    found
}

/// Returns the keys of the table at `path` that have different values in the two workspaces.
fn differing(
    product: &Table,
    evidence: &Table,
    path: &[&str],
    is_exempt: impl Fn(&str) -> bool,
) -> Vec<String> {
    let tables = [product, evidence].map(|table| at(table, path).and_then(Value::as_table));
    let [Some(product), Some(evidence)] = tables else {
        return Vec::new();
    };
    let differs = |(name, value): &(&String, &Value)| {
        !is_exempt(name) && product.get(*name).is_some_and(|other| other != *value)
    };
    let names = evidence.iter().filter(differs);
    names
        .map(|(name, _)| format!("{}.{name}", path.join(".")))
        .collect()
}

fn at<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter()
        .try_fold(table.get(*first)?, |value, key| value.get(key))
}

/// Returns the settings of a profile without the settings for single packages.
fn without_packages(profile: Option<&Value>) -> Option<Table> {
    let mut table = profile?.as_table()?.clone();
    if let Some(packages) = table.get_mut("package").and_then(Value::as_table_mut) {
        packages.retain(|name, _| name == EVERY_PACKAGE);
    }
    let is_empty = |packages: &Value| packages.as_table().is_some_and(Table::is_empty);
    if table.get("package").is_some_and(is_empty) {
        table.remove("package");
    }
    Some(table)
}

/// Returns the crates that have different versions in the two lock files.
fn differing_versions(product: &Table, evidence: &Table) -> Vec<String> {
    let product = versions(product);
    let differs = |(crate_, version): &(String, &str)| {
        let of_product = product.get(crate_);
        of_product.is_some_and(|of_product| of_product != version)
    };
    let evidence = versions(evidence).into_iter().filter(differs);
    evidence.map(|(crate_, _)| crate_).collect()
}

/// Returns the version of each crate in a lock file, by crate and compatible series, such as
/// `rand@0.9 (registry)`. A lock file has one version of each series.
fn versions(lock: &Table) -> BTreeMap<String, &str> {
    let mut versions = BTreeMap::new();
    let packages = lock.get("package").and_then(Value::as_array);
    for package in packages.into_iter().flatten() {
        let text = |key: &str| package.get(key).and_then(Value::as_str);
        if let (Some(name), Some(version)) = (text("name"), text("version")) {
            let numbers = if version.starts_with("0.") { 2 } else { 1 };
            let series: Vec<&str> = version.split('.').take(numbers).collect();
            // A crate of this repository that replaces a crate of the registry has a version of its
            // own.
            let origin = text("source").map_or("", |_| " (registry)");
            versions.insert(format!("{name}@{}{origin}", series.join(".")), version);
        }
    }
    versions
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "[[package]]\nname = \"serde\"\nversion = \"1.0.1\"\n";

    fn found(evidence: &str, lock: &str) -> Vec<String> {
        let product = "[workspace.dependencies]\nusher-model = { path = \"crates/model\" }\n\
                       serde = \"1\"\nlibc = \"0.2\"\n\
                       [workspace.lints.rust]\nmissing_docs = \"warn\"\n\
                       [profile.dev]\ndebug = false\n[profile.dev.package.usher-sim]\nopt-level = 1\n";
        let tree = Tree::of(&[
            (PRODUCT, product),
            (PRODUCT_LOCK, LOCK),
            (EVIDENCE, evidence),
            (EVIDENCE_LOCK, lock),
        ]);
        let breaches = check(&tree).into_iter();
        breaches.map(|breach| breach.to_string()).collect()
    }

    #[test]
    fn accepts_a_subset_and_further_crates() {
        let lints = "[workspace.lints.rust]\nmissing_docs = \"warn\"\n";
        let evidence = format!(
            "[workspace.dependencies]\nusher-model = {{ path = \"../crates/model\" }}\nserde = \"1\"\n\
             rayon = \"1\"\n{lints}[profile.dev]\ndebug = false\n\
             [profile.dev.package.usher-chip]\nopt-level = 1\n"
        );
        let more = format!(
            "{LOCK}[[package]]\nname = \"rayon\"\nversion = \"1.0.0\"\n[[package]]\nname = \"serde\"\nversion = \"0.9.0\"\n"
        );
        assert_eq!(found(&evidence, &more), [""; 0]);
        assert_eq!(check(&Tree::of(&[(PRODUCT, "")])), []);
    }

    #[test]
    fn crates_of_this_repository_are_not_compared_with_crates_of_the_registry() {
        let lock = |version: &str, source: &str| -> Table {
            let text = format!("[[package]]\nname = \"a\"\nversion = \"{version}\"\n{source}");
            text.parse().unwrap()
        };
        let source = "source = \"registry\"\n";
        let differing = |product, evidence| differing_versions(&product, &evidence).len();
        assert_eq!(differing(lock("1.9.9", ""), lock("1.2.0", source)), 0);
        assert_eq!(differing(lock("1.9.9", source), lock("1.2.0", source)), 1);
        assert_eq!(differing(lock("1.9.9", ""), lock("1.2.0", "")), 1);
    }

    #[test]
    fn rejects_other_settings_and_versions() {
        let evidence = "[workspace.dependencies]\nserde = \"2\"\n[profile.dev]\ndebug = false\n\
                        [profile.dev.package.\"*\"]\ndebug = true\n\
                        [profile.dev.package.usher-sim]\nopt-level = 2\n";
        let differs = |what: &str, from: &str| {
            let file = if from == PRODUCT {
                EVIDENCE
            } else {
                EVIDENCE_LOCK
            };
            format!("{file}: {what} differs from {from}")
        };
        assert_eq!(
            found(evidence, &LOCK.replace("1.0.1", "1.0.2")),
            [
                differs("workspace.lints", PRODUCT),
                differs("workspace.dependencies.serde", PRODUCT),
                differs("profile.dev", PRODUCT),
                differs("profile.dev.package.usher-sim", PRODUCT),
                differs("serde@1", PRODUCT_LOCK),
            ]
        );
        assert!(found("[workspace", LOCK)[0].contains("is not TOML"));
    }
}
