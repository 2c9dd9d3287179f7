// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rule: the crate `policy` uses no clock, file, environment variable, thread, random number or
//! hash-ordered iteration, so that a policy returns the same decisions for the same observations.
//! The rule searches the tokens of the crate for names of modules and types that provide these,
//! including its unit tests.

use proc_macro2::{TokenStream, TokenTree};

use crate::tokens::{each_word, is_punct, is_word, tokens};
use crate::{Breach, Tree};

const PURE: &str = "crates/policy/src/";

/// Modules of `std` that access the environment of the process.
const MODULES: [&str; 8] = ["time", "fs", "env", "thread", "net", "process", "io", "os"];

/// Names of types and crates that `policy` must not use, from any module.
const NAMES: [&str; 8] = [
    "HashMap",
    "HashSet",
    "RandomState",
    "DefaultHasher",
    "Instant",
    "SystemTime",
    "rand",
    "getrandom",
];

/// Returns a breach for each forbidden module or name in `policy`, including its unit tests.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for file in tree.rust().filter(|file| file.path.starts_with(PURE)) {
        let mut found = |word: &str, line| {
            let what = format!("the crate policy only decides: it must not use {word}");
            breaches.push(Breach::new(&file.path, line, what));
        };
        match tokens(file) {
            Ok(stream) => impure_words(stream, &mut found),
            Err(error) => found(&error, 0),
        }
    }
    breaches
}

fn impure_words(stream: TokenStream, found: &mut impl FnMut(&str, usize)) {
    each_word(stream.clone(), &mut |word, line, before| {
        let std_module = MODULES.contains(&word) && follows_std(before);
        if NAMES.contains(&word) || std_module {
            found(word, line);
        }
    });
    grouped_imports(stream, found);
}

fn follows_std(before: &[TokenTree]) -> bool {
    let [.., root, first, second] = before else {
        return false;
    };
    is_word(root, "std") && is_punct(first, ':') && is_punct(second, ':')
}

/// Calls `found` for the forbidden modules in a group, such as `fs` and `time` in
/// `std::{fs, time::Duration}`.
fn grouped_imports(stream: TokenStream, found: &mut impl FnMut(&str, usize)) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    for (at, tree) in trees.iter().enumerate() {
        let TokenTree::Group(group) = tree else {
            continue;
        };
        if !follows_std(&trees[..at]) {
            grouped_imports(group.stream(), found);
            continue;
        }
        let mut first = true;
        for inner in group.stream() {
            if let (true, TokenTree::Ident(word)) = (first, &inner)
                && MODULES.contains(&word.to_string().as_str())
            {
                found(&word.to_string(), word.span().start().line);
            }
            first = is_punct(&inner, ',');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(String, usize)> {
        let word = |what: String| what.rsplit(' ').next().unwrap_or_default().to_owned();
        check(&Tree::of(&[(path, text)]))
            .into_iter()
            .map(|breach| (word(breach.what), breach.line))
            .collect()
    }

    #[test]
    fn finds_what_reaches_outside() {
        for (text, words) in [
            ("use std::time::Duration;", ["time"].as_slice()),
            ("fn f() {\n std::fs::read(\"x\"); }", &["fs"]),
            (
                "use std::{collections::BTreeMap, env, thread::spawn};",
                &["env", "thread"],
            ),
            ("fn f(m: HashMap<u8, u8>) {}", &["HashMap"]),
            ("m! { let x = rand::random(); }", &["rand"]),
            ("fn f() { let t = Instant::now(); }", &["Instant"]),
        ] {
            let found: Vec<String> = found("crates/policy/src/a.rs", text)
                .into_iter()
                .map(|(word, _)| word)
                .collect();
            assert_eq!(found, words, "{text}");
        }
        let line = found("crates/policy/src/a.rs", "\n\nuse std::io;")[0].1;
        assert_eq!(line, 3);
    }

    #[test]
    fn lets_the_rest_be() {
        let pure = "//! std::time, HashMap\nuse std::{fmt, collections::BTreeMap};\n\
                    fn time(env: u8) -> &'static str { \"std::fs::read\" }";
        assert_eq!(found("crates/policy/src/a.rs", pure), []);
        assert_eq!(found("crates/probe/src/a.rs", "use std::fs;"), []);
        assert_eq!(found("crates/policy/tests/a.rs", "use std::fs;"), []);
    }
}
