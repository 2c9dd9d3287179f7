// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rule: at most five files of a crate use one another in a circle. In a circle, each file uses the
//! next file, directly or through other files of the circle.
//!
//! 1. Each file is a module. The uses of a module are the paths in its file, outside of tests, that
//!    begin with `crate`, `self`, `super` or the name of a child module.
//! 2. A path leads to the module with the longest module path that is a prefix of the path. If that
//!    module re-exports the next name of the path, the path continues at the re-exported item, up
//!    to eight times.
//! 3. A re-export alone is no use, because the module itself does not need the item. It is a use if
//!    the same file also names the item outside of re-exports.
//! 4. The modules and their uses form a graph. The circles are the strongly connected components of
//!    the graph (Tarjan's algorithm; here at most quadratic in the number of modules of a crate).
//!
//! Limit: uses through names from glob imports and from macros are not found.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::tokens::{is_punct, is_word, test_code, tokens};
use crate::{Breach, File, Tree};

/// Maximum number of files in a circle.
const FILES_MAX: usize = 5;
/// Maximum number of re-exports that are followed for a path.
const REEXPORTS_MAX: usize = 8;

type ModulePath = Vec<String>;

/// Returns a breach for each circle of more than five files.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let circles = circles(tree).into_iter();
    let larger = circles.filter(|circle| circle.len() > FILES_MAX);
    let breach = |circle: Vec<&str>| {
        let what = format!(
            "{} files form a cycle of uses, but a cycle may have at most {FILES_MAX} files: {}",
            circle.len(),
            circle.join(", ")
        );
        Breach::new(circle[0], 0, what)
    };
    larger.map(breach).collect()
}

/// Returns all circles of at least two files, each as the sorted paths of its files.
pub fn circles(tree: &Tree) -> Vec<Vec<&str>> {
    let mut crates: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
    for file in tree.rust() {
        if let Some((root, _)) = file.path.split_once("/src/") {
            crates.entry(root).or_default().push(file);
        }
    }
    crates
        .into_iter()
        .flat_map(|(root, files)| circles_of_crate(root, &files))
        .collect()
}

/// The uses and re-exports of a module that has a file of its own.
#[derive(Default)]
struct Module {
    uses: BTreeSet<ModulePath>,
    /// Names that the module re-exports, with the paths of the re-exported items.
    reexports: BTreeMap<String, ModulePath>,
}

fn circles_of_crate<'a>(root: &str, files: &[&'a File]) -> Vec<Vec<&'a str>> {
    let mut paths = BTreeMap::new();
    for file in files {
        // If a crate has `lib.rs` and `main.rs`, only `lib.rs` is the root module: the program uses
        // nothing of the crate except the library.
        paths.entry(module_path(root, &file.path)).or_insert(*file);
    }
    let modules: BTreeMap<&ModulePath, Module> = paths
        .iter()
        .map(|(path, file)| (path, read(file, path, &paths)))
        .collect();
    let numbers: BTreeMap<&ModulePath, usize> = paths.keys().zip(0..).collect();
    let edges: Vec<BTreeSet<usize>> = modules
        .iter()
        .map(|(path, module)| {
            let targets = module.uses.iter().map(|used| resolve(used, &modules, 0));
            let targets = targets.filter(|target| target != *path);
            targets
                .filter_map(|target| numbers.get(&target).copied())
                .collect()
        })
        .collect();
    let names: Vec<&str> = paths.values().map(|file| file.path.as_str()).collect();
    components(&edges)
        .into_iter()
        .filter(|component| component.len() > 1)
        .map(|component| {
            let mut circle: Vec<&str> = component.into_iter().map(|at| names[at]).collect();
            circle.sort_unstable();
            circle
        })
        .collect()
}

/// Returns the module path of a file. `src/a/b.rs` and `src/a/b/mod.rs` are the module `a::b`;
/// `lib.rs` and `main.rs` are the root module, with an empty path.
fn module_path(root: &str, path: &str) -> ModulePath {
    let inside = path.trim_start_matches(root).trim_start_matches("/src/");
    let inside = inside.trim_end_matches(".rs");
    let mut parts: ModulePath = inside.split('/').map(str::to_owned).collect();
    let is_root = parts.len() == 1 && ["lib", "main"].contains(&parts[0].as_str());
    if is_root || parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// Returns the module to which a path leads.
fn resolve(path: &ModulePath, modules: &BTreeMap<&ModulePath, Module>, depth: usize) -> ModulePath {
    let known = (0..=path.len())
        .rev()
        .find(|&end| modules.contains_key(&path[..end].to_vec()));
    let end = known.unwrap_or(0);
    let module = path[..end].to_vec();
    let next = path
        .get(end)
        .and_then(|name| modules.get(&module)?.reexports.get(name));
    match next {
        Some(target) if depth < REEXPORTS_MAX => {
            let mut target = target.clone();
            target.extend_from_slice(&path[end + 1..]);
            resolve(&target, modules, depth + 1)
        }
        _ => module,
    }
}

/// Returns the uses and re-exports of a file.
fn read(file: &File, path: &ModulePath, all: &BTreeMap<ModulePath, &File>) -> Module {
    let mut module = Module::default();
    // If the file is not Rust, another rule reports it.
    let Ok(stream) = tokens(file) else {
        return module;
    };
    let tests: Vec<usize> = test_code(stream.clone())
        .iter()
        .map(|group| group.span_open().start().line)
        .collect();
    let absolute = |segments: &[String]| absolute(segments, path, all);
    let mut named = BTreeSet::new();
    each_path(stream, &tests, &mut |segments, is_reexport| {
        if !is_reexport {
            named.extend(segments.first().cloned());
        }
        if segments.len() == 1 {
            return;
        }
        let Some(target) = absolute(segments) else {
            return;
        };
        match (is_reexport, target.last()) {
            (true, Some(name)) => {
                module.reexports.insert(name.clone(), target.clone());
            }
            _ => {
                module.uses.insert(target);
            }
        }
    });
    let reexports = module.reexports.iter();
    let named = reexports.filter(|(name, _)| named.contains(*name));
    module.uses.extend(named.map(|(_, target)| target.clone()));
    module
}

/// Converts a path to a path from the root of the crate. Returns `None` for a path into another
/// crate.
fn absolute(
    segments: &[String],
    here: &ModulePath,
    all: &BTreeMap<ModulePath, &File>,
) -> Option<ModulePath> {
    let mut base = here.clone();
    let mut rest = segments;
    match segments.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|segment| segment == "super") {
                base.pop()?;
                rest = &rest[1..];
            }
        }
        child => {
            base.push(child.to_owned());
            let is_child = all.contains_key(&base);
            base.pop();
            if !is_child {
                return None;
            }
        }
    }
    base.extend_from_slice(rest);
    Some(base)
}

/// Calls `see` for each path and name outside of tests. The second argument states whether a
/// re-export contains the path.
fn each_path(stream: TokenStream, tests: &[usize], see: &mut impl FnMut(&[String], bool)) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        if is_word(tree, "use") {
            let end = (at..trees.len()).find(|&end| is_punct(&trees[end], ';'));
            let end = end.unwrap_or(trees.len());
            let is_reexport = is_public(&trees[..at]);
            each_use(&trees[at + 1..end], &[], &mut |path| see(path, is_reexport));
            at = end;
        } else if let TokenTree::Group(group) = tree {
            if !tests.contains(&group.span_open().start().line) {
                each_path(group.stream(), tests, see);
            }
        } else if let TokenTree::Ident(first) = tree {
            // A name of a definition, a method or a field is no use of another item.
            let is_own = at > 0 && is_own_name(&trees[at - 1]);
            let mut path = vec![first.to_string()];
            while let [colon, other, TokenTree::Ident(next), ..] = &trees[at + 1..]
                && is_punct(colon, ':')
                && is_punct(other, ':')
            {
                path.push(next.to_string());
                at += 3;
            }
            if !is_own {
                see(&path, false);
            }
        }
        at += 1;
    }
}

/// Returns whether the name after this token is the name of a definition, a method or a field.
fn is_own_name(before: &TokenTree) -> bool {
    is_punct(before, '.') || ["mod", "fn"].iter().any(|word| is_word(before, word))
}

/// Returns whether `pub` or `pub(…)` precedes a `use`.
fn is_public(before: &[TokenTree]) -> bool {
    match before {
        [.., word, TokenTree::Group(_)] | [.., word] => is_word(word, "pub"),
        [] => false,
    }
}

/// Calls `see` for each path of a `use` with nested groups. Renaming by `as` is ignored.
fn each_use(trees: &[TokenTree], before: &[String], see: &mut impl FnMut(&[String])) {
    let parts = trees.split(|tree| is_punct(tree, ','));
    for part in parts.filter(|part| !part.is_empty()) {
        let mut path = before.to_vec();
        let mut is_group = false;
        for tree in part {
            match tree {
                TokenTree::Ident(word) if word == "as" => break,
                TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    each_use(&inner, &path, see);
                    is_group = true;
                }
                _ => {}
            }
        }
        if !is_group {
            see(&path);
        }
    }
}

/// Returns the strongly connected components of a graph, by Tarjan's algorithm.
fn components(edges: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let mut search = Search {
        edges,
        order: vec![None; edges.len()],
        lowest: vec![0; edges.len()],
        stack: Vec::new(),
        found: Vec::new(),
        next: 0,
    };
    for node in 0..edges.len() {
        if search.order[node].is_none() {
            search.visit(node);
        }
    }
    search.found
}

struct Search<'a> {
    edges: &'a [BTreeSet<usize>],
    order: Vec<Option<usize>>,
    lowest: Vec<usize>,
    stack: Vec<usize>,
    found: Vec<Vec<usize>>,
    next: usize,
}

impl Search<'_> {
    fn visit(&mut self, node: usize) {
        self.order[node] = Some(self.next);
        self.lowest[node] = self.next;
        self.next += 1;
        self.stack.push(node);
        for &target in &self.edges[node] {
            match self.order[target] {
                None => {
                    self.visit(target);
                    self.lowest[node] = self.lowest[node].min(self.lowest[target]);
                }
                Some(order) if self.stack.contains(&target) => {
                    self.lowest[node] = self.lowest[node].min(order);
                }
                Some(_) => {}
            }
        }
        if self.order[node] == Some(self.lowest[node]) {
            let from = self.stack.iter().position(|&other| other == node);
            let component = self.stack.split_off(from.unwrap_or(self.stack.len()));
            self.found.push(component);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_circles_through_imports_paths_and_reexports() {
        let tree = Tree::of(&[
            ("crates/x/src/lib.rs", "mod a; mod b; mod c; pub use c::C;"),
            ("crates/x/src/a.rs", "use crate::b::{self, B as Other};"),
            (
                "crates/x/src/b/mod.rs",
                "mod d; fn f() { let _ = crate::C::new(); }",
            ),
            ("crates/x/src/b/d.rs", "use super::B;"),
            ("crates/x/src/c.rs", "fn f() -> super::a::A { g() }"),
        ]);
        let expected = vec![
            "crates/x/src/a.rs",
            "crates/x/src/b/mod.rs",
            "crates/x/src/c.rs",
        ];
        assert_eq!(circles(&tree), [expected]);
        assert_eq!(check(&tree), []);
    }

    #[test]
    fn leaves_tests_and_facades_alone() {
        let tree = Tree::of(&[
            (
                "crates/x/src/lib.rs",
                "mod a; mod b; pub use a::A; pub(crate) use b::B;",
            ),
            ("crates/x/src/a.rs", "use crate::b::B;"),
            (
                "crates/x/src/b.rs",
                "#[cfg(test)] mod tests { use crate::a::A; }",
            ),
        ]);
        assert_eq!(circles(&tree), Vec::<Vec<&str>>::new());
    }

    #[test]
    fn counts_a_reexport_that_the_file_uses_itself() {
        let facade = |body: &str| {
            let lib = format!("mod a; mod b; pub use a::A; pub use b::B; {body}");
            let tree = Tree::of(&[
                ("crates/x/src/lib.rs", &lib),
                ("crates/x/src/a.rs", "use crate::T;"),
                ("crates/x/src/b.rs", "fn b(x: u8) { x.A(); }"),
            ]);
            circles(&tree).len()
        };
        assert_eq!(facade("pub trait T {}"), 0);
        assert_eq!(facade("pub trait T { fn new() -> A; }"), 1);
        assert_eq!(facade("pub trait T { fn A(); } fn f(x: u8) { x.B(); }"), 0);
    }

    #[test]
    fn rejects_circles_of_more_files_than_allowed() {
        let names = ["a", "b", "c", "d", "e", "f"];
        let file = |at: usize| {
            let path = format!("crates/x/src/{}.rs", names[at]);
            (path, format!("use crate::{}::X;", names[(at + 1) % 6]))
        };
        let files: Vec<(String, String)> = (0..6).map(file).collect();
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        let tree = Tree::of(&files);
        assert_eq!(check(&tree).len(), 1);
        assert_eq!(check(&Tree::of(&files[..5])).len(), 0);
    }
}
