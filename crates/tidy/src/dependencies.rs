// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rule: the dependencies of the workspaces obey `deny.toml`. Their licences and sources are
//! allowed, and no crate is built in two versions, except for the exceptions that `deny.toml`
//! lists.
//!
//! `cargo deny` checks the same file, and also a database of vulnerabilities. Building `cargo deny`
//! takes minutes, and its database is not reachable from every machine. This check only needs the
//! output of `cargo metadata`, and takes time linear in the dependencies. A missing list in
//! `deny.toml` is an error. A crate without a licence is a breach.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, Node, Package, PackageId};
use spdx::{Expression, LicenseReq, ParseMode};
use toml::{Table, Value};

use crate::Breach;

const POLICY: &str = "deny.toml";

/// The licences, sources and second versions that `deny.toml` allows.
#[derive(Debug, Default)]
pub struct Policy {
    licences: BTreeSet<String>,
    /// Additional licences that are allowed for single crates, by the name of the crate.
    exceptions: BTreeMap<String, BTreeSet<String>>,
    registries: BTreeSet<String>,
    /// Pairs of a crate and a version, or the beginning of a version. Such a version may be built
    /// in addition to another version of the crate.
    second_versions: Vec<(String, String)>,
}

/// A crate of the dependency graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// The name of the crate.
    pub name: String,
    /// The version of the crate.
    pub version: String,
    /// The licence in the manifest of the crate.
    pub licence: Option<String>,
    /// The registry or repository of the crate; `None` for a crate of this workspace.
    pub source: Option<String>,
    /// Whether the build of the workspace without tests needs the crate.
    pub is_built: bool,
}

impl Policy {
    /// Reads the text of `deny.toml`.
    ///
    /// # Errors
    /// If the text is not TOML, or lacks a list that this check needs.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error| format!("{POLICY}: {error}"))?;
        let list = |section: &str, key: &str| {
            let found = table.get(section).and_then(|section| section.get(key));
            let found = found.and_then(Value::as_array);
            found.ok_or_else(|| format!("{POLICY}: the section [{section}] has no list '{key}'"))
        };
        let name = |entry: &Value| Some(entry.get("crate")?.as_str()?.to_owned());
        let exceptions = list("licenses", "exceptions")?.iter();
        let exceptions = exceptions.filter_map(|entry| {
            let allowed = entry.get("allow")?.as_array()?;
            Some((name(entry)?, words(allowed)))
        });
        let skipped = list("bans", "skip")?.iter().filter_map(name);
        let skipped = skipped.filter_map(|text| {
            let (name, version) = text.split_once('@')?;
            Some((name.to_owned(), version.to_owned()))
        });
        Ok(Self {
            licences: words(list("licenses", "allow")?),
            exceptions: exceptions.collect(),
            registries: words(list("sources", "allow-registry")?),
            second_versions: skipped.collect(),
        })
    }

    fn allows_licence(&self, of: &Dependency) -> Result<bool, String> {
        let stated = of
            .licence
            .as_deref()
            .ok_or("the package states no licence")?;
        let expression = Expression::parse_mode(stated, ParseMode::LAX)
            .map_err(|error| format!("'{stated}': {}", error.reason))?;
        let more = self.exceptions.get(&of.name);
        Ok(expression.evaluate(|requirement: &LicenseReq| {
            let name = requirement.to_string();
            self.licences.contains(&name) || more.is_some_and(|more| more.contains(&name))
        }))
    }

    fn allows_source(&self, source: &str) -> bool {
        let registry = source.strip_prefix("registry+");
        registry.is_some_and(|registry| self.registries.contains(registry))
    }

    fn allows_second(&self, of: &Dependency) -> bool {
        let mut allowed = self.second_versions.iter();
        allowed.any(|(name, version)| {
            let rest = of.version.strip_prefix(version.as_str());
            *name == of.name && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }
}

fn words(list: &[Value]) -> BTreeSet<String> {
    let words = list.iter().filter_map(Value::as_str);
    words.map(str::to_owned).collect()
}

/// Returns a breach for each dependency with a licence, a source or a second version that is not
/// allowed.
pub fn check(policy: &Policy, dependencies: &[Dependency]) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let mut breach = |of: &Dependency, what: String| {
        let what = format!("{} {}: {what}", of.name, of.version);
        breaches.push(Breach::new(POLICY, 0, what));
    };
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for one in dependencies {
        match policy.allows_licence(one) {
            Ok(true) => {}
            Ok(false) => {
                let stated = one.licence.as_deref().unwrap_or_default();
                breach(one, format!("the licence '{stated}' is not allowed"));
            }
            Err(reason) => breach(one, reason),
        }
        if let Some(source) = &one.source
            && !policy.allows_source(source)
        {
            breach(one, format!("the source '{source}' is not allowed"));
        }
        if one.is_built && !policy.allows_second(one) {
            let known = versions.entry(&one.name).or_default();
            known.insert(&one.version);
            if known.len() > 1 {
                breach(
                    one,
                    format!("the package is built in several versions: {known:?}"),
                );
            }
        }
    }
    breaches
}

/// Returns the dependencies that `cargo metadata` reports.
pub fn of_metadata(metadata: &Metadata) -> Vec<Dependency> {
    let built = built(metadata);
    let resolved = metadata.packages.iter();
    let dependency = |package: &Package| Dependency {
        name: package.name.to_string(),
        version: package.version.to_string(),
        licence: package.license.clone(),
        source: package.source.as_ref().map(|source| source.repr.clone()),
        is_built: built.contains(&package.id),
    };
    resolved.map(dependency).collect()
}

/// Returns the crates of the workspace and all crates that they need directly or indirectly, except
/// crates that only tests need.
fn built(metadata: &Metadata) -> BTreeSet<PackageId> {
    let nodes = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
    let nodes: BTreeMap<&PackageId, &Node> = nodes.map(|node| (&node.id, node)).collect();
    let packages = metadata.packages.iter();
    let packages: BTreeMap<&PackageId, &Package> = packages.map(|one| (&one.id, one)).collect();
    let mut found: BTreeSet<PackageId> = BTreeSet::new();
    let mut next: Vec<PackageId> = metadata.workspace_members.clone();
    while let Some(id) = next.pop() {
        let (Some(node), Some(package)) = (nodes.get(&id), packages.get(&id)) else {
            continue;
        };
        if !found.insert(id) {
            continue;
        }
        let needed = node.deps.iter().filter(|dep| {
            let mut kinds = dep.dep_kinds.iter();
            let tested = kinds.all(|kind| kind.kind == DependencyKind::Development);
            let name = packages.get(&dep.pkg).map(|package| package.name.as_str());
            !tested && name.is_some_and(|name| is_enabled(node, package, name))
        });
        next.extend(needed.map(|dep| dep.pkg.clone()));
    }
    found
}

/// Returns whether the features of a package enable a dependency. The graph of `cargo metadata`
/// also contains optional dependencies that are not enabled, if a weak feature (`name?/feature`)
/// names them.
fn is_enabled(node: &Node, package: &Package, name: &str) -> bool {
    let mut declared = package.dependencies.iter().filter(|one| one.name == name);
    declared.any(|one| {
        let own = one.rename.as_deref().unwrap_or(&one.name);
        let enables = |text: &String| {
            let text = text.strip_prefix("dep:").unwrap_or(text);
            text == own
                || text
                    .strip_prefix(own)
                    .is_some_and(|rest| rest.starts_with('/'))
        };
        let mut features = node.features.iter();
        !one.optional
            || features.any(|feature| {
                let parts = package.features.get(feature.as_str());
                parts.is_some_and(|parts| parts.iter().any(enables))
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [licenses]
        allow = ["MIT", "Apache-2.0 WITH LLVM-exception"]
        exceptions = [{ crate = "own", allow = ["GPL-2.0-only"] }]
        [bans]
        skip = [{ crate = "syn@2", reason = "…" }]
        [sources]
        allow-registry = ["https://index"]
    "#;

    fn dependency(name: &str, version: &str, licence: &str) -> Dependency {
        Dependency {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: Some(licence.to_owned()),
            source: Some("registry+https://index".to_owned()),
            is_built: true,
        }
    }

    fn breaches(dependencies: &[Dependency]) -> Vec<String> {
        let policy = Policy::parse(TEXT).unwrap();
        let breaches = check(&policy, dependencies);
        breaches.into_iter().map(|breach| breach.what).collect()
    }

    #[test]
    fn a_licence_is_allowed_if_one_choice_of_it_is() {
        for allowed in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert_eq!(breaches(&[dependency("a", "1.0.0", allowed)]), [""; 0]);
        }
        for refused in ["GPL-2.0-only", "MIT AND GPL-2.0-only", "Apache-2.0", "none"] {
            assert_eq!(breaches(&[dependency("a", "1.0.0", refused)]).len(), 1);
        }
        assert_eq!(
            breaches(&[dependency("own", "1.0.0", "GPL-2.0-only")]),
            [""; 0]
        );
    }

    #[test]
    fn a_crate_without_a_licence_or_from_elsewhere_is_refused() {
        let mut one = dependency("a", "1.0.0", "MIT");
        one.licence = None;
        assert_eq!(
            breaches(&[one.clone()]),
            ["a 1.0.0: the package states no licence"]
        );
        one = dependency("a", "1.0.0", "MIT");
        one.source = Some("git+https://index".to_owned());
        assert_eq!(breaches(&[one.clone()]).len(), 1);
        one.source = None;
        assert_eq!(breaches(&[one]), [""; 0]);
    }

    #[test]
    fn two_versions_are_refused_unless_listed_or_only_for_tests() {
        let pair = |name| {
            [
                dependency(name, "2.0.1", "MIT"),
                dependency(name, "3.0.0", "MIT"),
            ]
        };
        assert_eq!(breaches(&pair("a")).len(), 1);
        assert_eq!(breaches(&pair("syn")), [""; 0]);
        let mut tested = pair("a");
        tested[0].is_built = false;
        assert_eq!(breaches(&tested), [""; 0]);
    }
}
