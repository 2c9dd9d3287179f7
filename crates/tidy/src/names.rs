// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules for names (CONTRIBUTING.md, "Names"): names that were replaced must not be used again, and
//! two crates of which the first depends on the second must not have public types of the same name.
//! Files of `crates/tidy` and CHANGELOG.md may contain replaced names. A file that is not Rust is
//! reported by another rule (`size.rs`).

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};

use crate::tokens::{each_word, is_word, tokens};
use crate::{Breach, File, Tree, c_lines};

/// Names of types that must not be used, because they do not state what the type is. Each name has
/// a list of crates in which it is allowed.
const TYPES: [(&str, &[&str]); 61] = [
    ("Account", &[]),
    ("Cast", &[]),
    ("Circle", &[]),
    ("Crew", &[]),
    ("Deal", &[]),
    ("Deed", &[]),
    ("Entrant", &[]),
    ("Few", &[]),
    ("Gate", &[]),
    ("Glance", &[]),
    ("Ground", &[]),
    // In these crates, a guest is a virtual machine, which is the field's term.
    ("Guest", &["lab", "usher", "usher-bench"]),
    ("Hall", &[]),
    ("Hands", &[]),
    ("Here", &[]),
    ("Horizon", &[]),
    ("Hurt", &[]),
    ("Known", &[]),
    ("Lanes", &[]),
    ("Late", &[]),
    ("Lesson", &[]),
    ("Look", &[]),
    ("Looked", &[]),
    ("Menu", &[]),
    ("Minder", &[]),
    ("Moment", &[]),
    ("Nest", &[]),
    ("News", &[]),
    ("Of", &[]),
    ("Ours", &[]),
    ("Outlook", &[]),
    ("Party", &[]),
    ("Patience", &[]),
    ("Player", &[]),
    ("Post", &[]),
    ("Rescue", &[]),
    ("Role", &[]),
    ("Rooms", &[]),
    ("Said", &[]),
    ("Scene", &[]),
    ("Shelf", &[]),
    ("Sight", &[]),
    ("Space", &[]),
    ("Spoilt", &[]),
    ("Stage", &[]),
    ("Standing", &[]),
    ("Stay", &[]),
    ("Tale", &[]),
    ("Taught", &[]),
    ("To", &[]),
    ("Told", &[]),
    ("Treatment", &[]),
    ("Trouble", &[]),
    ("Verdict", &[]),
    ("Voice", &[]),
    ("Ward", &[]),
    ("Weather", &[]),
    ("Wish", &[]),
    ("Words", &[]),
    ("Actors", &[]),
    ("Bell", &[]),
];

/// Other identifiers of Rust and C that must not be used.
const IDENTIFIERS: [&str; 48] = [
    "DEAF_NS",
    "HERE",
    "LOOKS_MAX",
    "MasterLives",
    "SPACES",
    "TASKS_LEFT",
    "USHER_TASKS_ERROR_LEFT",
    "at_work",
    "call_sibling",
    "come_back",
    "come_from",
    "come_to_wait",
    "deaf_ns",
    "enrol",
    "evict",
    "farness",
    "find_sharer",
    "follow_sleep",
    "forgive",
    "give_orders",
    "has_passed",
    "have_guests",
    "hears_from_ns",
    "hindmost",
    "hindmost_at",
    "invite",
    "is_crowd",
    "is_left_to_guests",
    "lay_out",
    "let_go",
    "look_after",
    "may_come",
    "not",
    "orders_given",
    "outlook",
    "party_of",
    "pass_by",
    "program_by_kin",
    "prolong",
    "put_back",
    "rang",
    "say_farewell",
    "show_rest",
    "strangers",
    "unlay",
    "usher_tasks_together",
    "wants_out",
    "weigh",
];

/// Former names of options, keys and environment variables, which must not occur in any file.
const SPELLINGS: [&str; 4] = [
    "--lead-ms",
    "USHER_SOON_DEAD",
    "USHER_TASKS_COMMON_UNASKED",
    "so manieth",
];

/// Returns a breach for each use of a name that must not be used.
pub fn check_old(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let is_checked = |file: &&File| {
        let is_about_names = file.path.starts_with("crates/tidy/") || file.path == "CHANGELOG.md";
        !is_about_names
    };
    for file in tree.files.iter().filter(is_checked) {
        breaches.extend(old_identifiers(file));
        for (number, line) in file.lines() {
            let found = SPELLINGS.iter().filter(|spelling| line.contains(*spelling));
            breaches.extend(found.map(|spelling| {
                Breach::new(&file.path, number, format!("{spelling} was renamed"))
            }));
        }
    }
    breaches
}

fn old_identifiers(file: &File) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let mut add = |word: &str, line: usize| {
        let what = format!("the word {word} is not used any more: use the term of the field");
        breaches.push(Breach::new(&file.path, line, what));
    };
    if file.has_extension("rs") {
        let Ok(stream) = tokens(file) else {
            return Vec::new();
        };
        for defined in types(stream.clone()) {
            let name = TYPES.iter().find(|(name, _)| *name == defined.name);
            let allowed = |users: &[&str]| file.crate_name().is_some_and(|c| users.contains(&c));
            if name.is_some_and(|(_, users)| !allowed(users)) {
                add(&defined.name, defined.line);
            }
        }
        each_word(stream, &mut |word, line, _| {
            if IDENTIFIERS.contains(&word) && word != "not" {
                add(word, line);
            }
        });
    } else if ["c", "h"]
        .iter()
        .any(|extension| file.has_extension(extension))
    {
        let mut in_comment = false;
        for (number, line) in file.lines() {
            let code = c_code(line, &mut in_comment);
            let words = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            words
                .filter(|word| IDENTIFIERS.contains(word))
                .for_each(|word| add(word, number));
        }
    }
    breaches
}

/// Returns a line of C without comments and strings, because the names of [`IDENTIFIERS`] are
/// ordinary words there.
fn c_code(line: &str, in_comment: &mut bool) -> String {
    let (code, _) = c_lines::divide(line, in_comment);
    let code = code.split("//").next().unwrap_or_default();
    code.split('"').step_by(2).collect()
}

/// The definition of a type: its name and position.
struct Defined {
    name: String,
    line: usize,
    is_public: bool,
}

/// Returns all definitions of types, inside and outside of function bodies.
fn types(stream: TokenStream) -> Vec<Defined> {
    const KEYWORDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut found = Vec::new();
    for (at, tree) in trees.iter().enumerate() {
        if let TokenTree::Group(group) = tree {
            found.extend(types(group.stream()));
        }
        let is_definition = KEYWORDS.iter().any(|keyword| is_word(tree, keyword));
        if let (true, Some(TokenTree::Ident(name))) = (is_definition, trees.get(at + 1)) {
            found.push(Defined {
                name: name.to_string(),
                line: name.span().start().line,
                is_public: at > 0 && is_word(&trees[at - 1], "pub"),
            });
        }
    }
    found
}

/// Returns a breach for each pair of public types that have the same name, in two crates of which
/// the first depends on the second.
pub fn check_homonyms(tree: &Tree) -> Vec<Breach> {
    let dependencies = dependencies(tree);
    let mut defined: BTreeMap<String, BTreeMap<&str, (&str, usize)>> = BTreeMap::new();
    // Crates without a library are not checked, because no crate depends on them.
    let is_library = |file: &&File| {
        file.crate_folder()
            .is_some_and(|folder| tree.get(&format!("{folder}/src/lib.rs")).is_some())
    };
    let sources = tree.rust().filter(|file| file.path.contains("/src/"));
    for file in sources.filter(is_library) {
        let (Some(name), Ok(stream)) = (file.crate_name(), tokens(file)) else {
            continue;
        };
        for definition in types(stream).into_iter().filter(|found| found.is_public) {
            let crates = defined.entry(definition.name).or_default();
            crates.entry(name).or_insert((&file.path, definition.line));
        }
    }
    let mut breaches = Vec::new();
    for (name, crates) in &defined {
        for (user, (path, line)) in crates {
            let used = crates.keys().filter(|other| {
                dependencies
                    .get(user)
                    .is_some_and(|all| all.contains(**other))
            });
            breaches.extend(used.map(|other| {
                let what = format!(
                    "{name} is public here and in {other}, on which {user} depends: rename one \
                     of the two types"
                );
                Breach::new(path, *line, what)
            }));
        }
    }
    breaches
}

/// Returns, for each crate of the tree, the crates of the tree on which it depends directly or
/// indirectly.
fn dependencies(tree: &Tree) -> BTreeMap<&str, BTreeSet<&str>> {
    let folders = tree.crates();
    let crates: Vec<&str> = folders
        .iter()
        .filter_map(|folder| folder.rsplit('/').next())
        .collect();
    let direct: BTreeMap<&str, BTreeSet<&str>> = folders
        .iter()
        .zip(&crates)
        .map(|(folder, name)| {
            let manifest = tree.get(&format!("{folder}/Cargo.toml"));
            let table: toml::Table = manifest
                .and_then(|file| file.text.parse().ok())
                .unwrap_or_default();
            let used = table.get("dependencies").and_then(toml::Value::as_table);
            let is_used = |other: &&&str| {
                used.is_some_and(|used| used.contains_key(&format!("usher-{other}")))
            };
            (*name, crates.iter().filter(is_used).copied().collect())
        })
        .collect();
    let mut all = direct.clone();
    for _ in 0..crates.len() {
        for name in &crates {
            let further: BTreeSet<&str> = all[name]
                .iter()
                .filter_map(|other| direct.get(other))
                .flatten()
                .copied()
                .collect();
            all.entry(name).or_default().extend(further);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(breaches: Vec<Breach>) -> Vec<(String, usize)> {
        breaches
            .into_iter()
            .map(|breach| (breach.path, breach.line))
            .collect()
    }

    #[test]
    fn rejects_names_that_were_given_up() {
        let rust =
            "struct Hall;\n// A Hall, not an outlook.\nfn f() { look_after(); }\nenum Guest {}\n";
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", rust),
            (
                "crates/lab/src/lib.rs",
                "pub struct Guest; impl Wish for Guest {}",
            ),
            (
                "crates/a/src/bpf/a.h",
                "__u32 far, not ; /* a\n * not this */\nx(\"not\");\n",
            ),
            ("docs/a.md", "Use `--lead-ms`, not this.\n"),
        ]);
        let expected = [
            ("crates/a/src/lib.rs", 1),
            ("crates/a/src/lib.rs", 4),
            ("crates/a/src/lib.rs", 3),
            ("crates/a/src/bpf/a.h", 1),
            ("docs/a.md", 1),
        ];
        assert_eq!(
            lines(check_old(&tree)),
            expected.map(|(path, line)| (path.to_owned(), line))
        );
    }

    #[test]
    fn rejects_public_homonyms_along_dependencies() {
        let uses = |name: &str| format!("[dependencies]\nusher-{name}.workspace = true\n");
        let (uses_a, uses_b) = (uses("a"), uses("b"));
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", ""),
            (
                "crates/a/src/lib.rs",
                "pub struct Plan; struct Row; pub enum Kind {}",
            ),
            ("crates/b/Cargo.toml", &uses_a),
            ("crates/b/src/lib.rs", "pub struct Row;"),
            ("crates/c/Cargo.toml", &uses_b),
            ("crates/c/src/lib.rs", "struct Kind;\npub type Plan = u8;\n"),
            ("evidence/d/Cargo.toml", ""),
            ("evidence/d/src/lib.rs", "pub struct Plan;"),
        ]);
        assert_eq!(
            lines(check_homonyms(&tree)),
            [("crates/c/src/lib.rs".to_owned(), 2)]
        );
    }
}
