// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rule: each crate has a layer, and its dependencies are in lower layers: values <- observe,
//! decide, act <- control <- host <- programs. The crate `policy`, which decides, depends only on
//! the values and on crates for arithmetic and text. Dependencies of tests may also be in the same
//! layer. The time is linear in the number of dependencies in the manifests.

use std::collections::BTreeMap;

use crate::{Breach, Tree};

/// Each crate with its layer. A crate depends only on crates of lower layers. The crates of
/// `evidence/` are above all crates of `crates/`, because the product must build without
/// `evidence/`.
const LAYERS: [(&str, u32); 28] = [
    ("model", 0),
    ("heartbeat", 0),
    ("topology", 1),
    ("probe", 1),
    ("meter", 1),
    ("rules", 1),
    ("scx", 2),
    ("policy", 1),
    ("act", 1),
    ("store", 1),
    ("report", 1),
    ("cache", 1),
    ("lab", 2),
    ("ompt", 1),
    ("tasks", 2),
    ("tasks-capi", 3),
    ("rayon-core", 3),
    ("control", 2),
    ("learn", 2),
    ("host", 3),
    ("sim", 3),
    ("usher", 4),
    ("fuzz", 4),
    ("skip", 0),
    ("tidy", 0),
    ("chip", 5),
    ("coloring", 5),
    ("bench", 6),
];

/// All crates on which `policy` may depend: the values, crates for arithmetic, and crates that
/// convert values to text and back without accessing files.
const POLICY_MAY_USE: [&str; 6] = [
    "usher-model",
    "pathfinding",
    "schemars",
    "serde",
    "serde_json",
    "thiserror",
];

/// Returns a breach for each crate without a layer, for each dependency that is not in a lower
/// layer, and for each further dependency of `policy`.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let layers = BTreeMap::from(LAYERS);
    let mut breaches = Vec::new();
    for folder in tree.crates() {
        let path = format!("{folder}/Cargo.toml");
        let name = folder.rsplit('/').next().unwrap_or(folder);
        let Some(&layer) = layers.get(name) else {
            let what = format!("give {name} a layer in crates/tidy/src/layers.rs");
            breaches.push(Breach::new(&path, 0, what));
            continue;
        };
        let manifest = tree.get(&path).map_or("", |file| file.text.as_str());
        let manifest: toml::Table = match manifest.parse() {
            Ok(table) => table,
            Err(error) => {
                breaches.push(Breach::new(
                    &path,
                    0,
                    format!("the file is not TOML: {error}"),
                ));
                continue;
            }
        };
        for (section, at_most) in [
            ("dependencies", layer.checked_sub(1)),
            ("build-dependencies", layer.checked_sub(1)),
            ("dev-dependencies", Some(layer)),
        ] {
            let used = manifest.get(section).and_then(toml::Value::as_table);
            for used in used.into_iter().flat_map(|table| table.keys()) {
                let wrong = upward(&layers, used, at_most).or_else(|| {
                    let impure = name == "policy"
                        && section == "dependencies"
                        && !POLICY_MAY_USE.contains(&used.as_str());
                    impure.then(|| {
                        format!("the crate policy only decides: remove its dependency on {used}")
                    })
                });
                breaches.extend(wrong.map(|what| Breach::new(&path, 0, what)));
            }
        }
    }
    breaches
}

fn upward(layers: &BTreeMap<&str, u32>, used: &str, at_most: Option<u32>) -> Option<String> {
    let of_ours = match used {
        "usher" => used,
        _ => used.strip_prefix("usher-")?,
    };
    match layers.get(of_ours) {
        Some(&layer) if at_most.is_some_and(|most| layer <= most) => None,
        Some(_) => Some(format!("the dependency {used} is not in a lower layer")),
        None => Some(format!(
            "the dependency {used} has no layer in crates/tidy/src/layers.rs"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, manifest: &str) -> Vec<String> {
        let path = format!("crates/{name}/Cargo.toml");
        let breaches = check(&Tree::of(&[(&path, manifest)]));
        breaches.into_iter().map(|breach| breach.what).collect()
    }

    #[test]
    fn arrows_point_down() {
        let none: [&str; 0] = [];
        let down = "[dependencies]\nusher-model.workspace = true\nlibc = \"1\"\n";
        assert_eq!(found("probe", down), none);
        let beside = "[dev-dependencies]\nusher-topology.workspace = true\n";
        assert_eq!(found("probe", beside), none);
        let up = "[dependencies]\nusher-host = { path = \"x\" }\n";
        assert_eq!(
            found("probe", up),
            ["the dependency usher-host is not in a lower layer"]
        );
        let level = "[build-dependencies]\nusher-act.workspace = true\n";
        assert_eq!(
            found("probe", level),
            ["the dependency usher-act is not in a lower layer"]
        );
        let evidence = "[dev-dependencies]\nusher-chip.workspace = true\n";
        assert_eq!(
            found("usher", evidence),
            ["the dependency usher-chip is not in a lower layer"]
        );
        let value = "[dependencies]\nusher-heartbeat.workspace = true\n";
        assert_eq!(
            found("model", value),
            ["the dependency usher-heartbeat is not in a lower layer"]
        );
    }

    #[test]
    fn policy_knows_the_values_alone() {
        let impure = "[dependencies]\nusher-model.workspace = true\nlibc = \"0.2\"\n\
                      [dev-dependencies]\nproptest = \"1\"\n";
        let drop = "the crate policy only decides: remove its dependency on libc";
        assert_eq!(found("policy", impure), [drop]);
    }

    #[test]
    fn every_crate_has_a_layer() {
        let layer = "give new a layer in crates/tidy/src/layers.rs";
        assert_eq!(found("new", ""), [layer]);
        let unknown = "the dependency usher-new has no layer in crates/tidy/src/layers.rs";
        assert_eq!(
            found("host", "[dependencies]\nusher-new = \"1\""),
            [unknown]
        );
        assert!(found("host", "[dependencies")[0].starts_with("the file is not TOML"));
    }
}
