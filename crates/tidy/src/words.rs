// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules for texts that must not occur in the tree: marks of unfinished work, attributes that
//! switch tests off, paths that exist only on one machine, and calls of `sleep` in tests. Each rule
//! reads every line of the tree once. Licences and files that cargo writes are not checked.

use crate::tokens::{Function, each_word, functions, test_code, tokens};
use crate::{Breach, File, Tree};

// The words are written in two parts, so that this file does not contain them.
const UNFINISHED: [&str; 3] = [
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("HA", "CK"),
];
const REMINDER: &str = concat!("TO", "DO");
const MACROS: [&str; 2] = [concat!("to", "do!"), concat!("unimple", "mented!")];
const IGNORE: &str = concat!("#[ig", "nore");
const MACHINE_PATHS: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/tmp", "/wt"),
    concat!("/ro", "ot/"),
];

/// Returns false for texts of licences and for files that cargo writes.
fn is_ours(file: &File) -> bool {
    !file.path.starts_with("LICENSES/") && !file.path.ends_with("Cargo.lock")
}

/// Returns a breach for each mark of unfinished work and for each test that is switched off.
pub fn check_words(tree: &Tree) -> Vec<Breach> {
    let words = UNFINISHED.iter().chain([&REMINDER]);
    let mut breaches = Vec::new();
    for file in tree.files.iter().filter(|file| is_ours(file)) {
        for (number, line) in file.lines() {
            let unfinished = words.clone().filter(|word| holds_word(line, word));
            let code = file.has_extension("rs");
            let switched = MACROS
                .iter()
                .chain([&IGNORE])
                .filter(|text| code && line.contains(*text));
            breaches.extend(unfinished.chain(switched).map(|word| {
                let what = format!("the comment contains {word}: finish the work, or remove it");
                Breach::new(&file.path, number, what)
            }));
        }
    }
    breaches
}

/// Returns a breach for each path that exists only on the author's machine.
pub fn check_paths(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for file in tree.files.iter().filter(|file| is_ours(file)) {
        for (number, line) in file.lines() {
            let found = MACHINE_PATHS.iter().filter(|path| holds_path(line, path));
            breaches.extend(found.map(|path| {
                let what = format!("the path {path} exists only on one machine");
                Breach::new(&file.path, number, what)
            }));
        }
    }
    breaches
}

/// Returns a breach for each test that sleeps instead of waiting for a state.
///
/// A test may sleep between two checks of a state, in a function with a `deadline` after which it
/// stops waiting. The programs that tests run (`tests/rig`) may sleep.
pub fn check_sleeps(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for file in tree
        .rust()
        .filter(|file| !file.path.contains("/tests/rig/"))
    {
        let Ok(stream) = tokens(file) else { continue };
        let functions = functions(stream.clone());
        let code = match file.is_test() {
            true => vec![stream],
            false => test_code(stream).iter().map(|g| g.stream()).collect(),
        };
        for stream in code {
            each_word(stream, &mut |word, line, _| {
                if word == "sleep" && !polls(&functions, line) {
                    let what = "the test sleeps: wait for the state instead, with a deadline";
                    breaches.push(Breach::new(&file.path, line, what));
                }
            });
        }
    }
    breaches
}

/// Returns whether the innermost function around the line contains the word `deadline`.
fn polls(functions: &[Function], line: usize) -> bool {
    let around = functions
        .iter()
        .filter(|f| (f.line..f.line + f.lines).contains(&line));
    let innermost = around.max_by_key(|f| f.line);
    let mut deadline = false;
    if let Some(function) = innermost {
        each_word(function.body.clone(), &mut |word, _, _| {
            deadline |= word == "deadline";
        });
    }
    deadline
}

/// Returns whether the line contains the word, not as part of a longer word.
fn holds_word(line: &str, word: &str) -> bool {
    let part_of_a_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(part_of_a_word)
            && !line[at + word.len()..].starts_with(part_of_a_word)
    })
}

/// Returns whether the line contains the path, not as part of a longer path.
fn holds_path(line: &str, path: &str) -> bool {
    let part_of_a_path = |c: char| c.is_alphanumeric() || "._-/}".contains(c);
    line.match_indices(path)
        .any(|(at, _)| !line[..at].ends_with(part_of_a_path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: crate::Rule, path: &str, text: &str) -> Vec<usize> {
        let breaches = rule(&Tree::of(&[(path, text)]));
        breaches.into_iter().map(|breach| breach.line).collect()
    }

    #[test]
    fn finds_unfinished_business() {
        let [fix, x, hack] = UNFINISHED;
        let text = format!("ok\n// {fix}: later\n{x}\n\"{hack}\"\n{REMINDER}(me)\n");
        assert_eq!(lines(check_words, "a.py", &text), [2, 3, 4, 5]);
        let text = format!("{IGNORE}]\n{}()\n{}(\"x\")\n", MACROS[0], MACROS[1]);
        assert_eq!(lines(check_words, "a.rs", &text), [1, 2, 3]);
        let fine = format!("mktemp {x}{x} {hack}ER {x}_ no_{fix}");
        assert_eq!(lines(check_words, "a.sh", &fine), [0; 0]);
        assert_eq!(lines(check_words, "LICENSES/a.txt", fix), [0; 0]);
    }

    #[test]
    fn finds_paths_of_one_machine() {
        let [work, tree, root] = MACHINE_PATHS;
        let text = format!("cd {work}x\n'{tree}/a'\n{root}.cargo\nx=({work})\n");
        assert_eq!(lines(check_paths, "a.md", &text), [1, 2, 3, 4]);
        let fine = format!("target{work}a $DIR{root} ${{D}}{work}\n");
        assert_eq!(lines(check_paths, "a.md", &fine), [0; 0]);
    }

    #[test]
    fn finds_tests_that_sleep() {
        let test = "fn a() { thread::sleep(MS) }\n#[cfg(test)] mod t {\n fn b() { sleep(MS) } }";
        assert_eq!(lines(check_sleeps, "crates/a/src/lib.rs", test), [3]);
        assert_eq!(lines(check_sleeps, "crates/a/tests/b.rs", test), [1, 3]);
        assert_eq!(
            lines(check_sleeps, "crates/a/tests/rig/main.rs", test),
            [0; 0]
        );
        let fine = "#[test] fn a() { run(\"sleep 1\"); /* sleep */ }";
        assert_eq!(lines(check_sleeps, "crates/a/tests/b.rs", fine), [0; 0]);
        let polls = "fn until() { let deadline = soon(); while now() < deadline { sleep(MS) } }\n\
                     fn a() { let deadline = 1; fn b() {\n sleep(MS) } }";
        assert_eq!(lines(check_sleeps, "crates/a/tests/b.rs", polls), [3]);
    }
}
