// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rule: a source file has at most 800 lines, and a Rust function at most 70 lines.
//!
//! The file `crates/tidy/exceptions.txt` lists larger files and functions with their sizes:
//! `PATH LINES` or `PATH::FUNCTION LINES`. Sizes in the list can only decrease: if a file or
//! function has become smaller, its number must be lowered, and if it is within the limits, its
//! line must be deleted.

use std::collections::BTreeMap;

use crate::tokens::{functions, tokens};
use crate::{Breach, Tree};

/// Maximum number of lines of a file.
pub const FILE_LINES: usize = 800;
/// Maximum number of lines of a function, from `fn` to its closing brace.
pub const FUNCTION_LINES: usize = 70;
/// The file with the exceptions.
pub const EXCEPTIONS: &str = "crates/tidy/exceptions.txt";

const SOURCES: [&str; 6] = ["rs", "c", "h", "py", "sh", "awk"];

/// Returns a breach for each file and function that is too long, and for each exception that is too
/// high or not needed.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let (mut allowed, mut breaches) = exceptions(tree);
    for (thing, size) in sizes(tree, &mut breaches) {
        match allowed.remove(&thing) {
            Some((_, limit)) if size.lines == limit => {}
            Some((line, limit)) if size.lines < limit => breaches.push(Breach::new(
                EXCEPTIONS,
                line,
                format!(
                    "{thing} now has only {} lines: lower its {limit} in the list of exceptions",
                    size.lines
                ),
            )),
            None if size.lines <= size.limit => {}
            _ => breaches.push(Breach::new(
                &size.path,
                size.line,
                format!(
                    "{thing} has {} lines, more than {}: split it",
                    size.lines, size.limit
                ),
            )),
        }
    }
    let gone = |(thing, (line, _)): (String, (usize, usize))| {
        Breach::new(
            EXCEPTIONS,
            line,
            format!("{thing} does not exist any more: delete its line in the list of exceptions"),
        )
    };
    breaches.extend(allowed.into_iter().map(gone));
    breaches
}

struct Size {
    path: String,
    line: usize,
    lines: usize,
    limit: usize,
}

/// Returns the size of each file, and of the largest function of each name in each file.
fn sizes(tree: &Tree, breaches: &mut Vec<Breach>) -> BTreeMap<String, Size> {
    let mut sizes = BTreeMap::new();
    for file in &tree.files {
        if !SOURCES
            .iter()
            .any(|extension| file.has_extension(extension))
        {
            continue;
        }
        let path = file.path.clone();
        let size = Size {
            path: path.clone(),
            line: 0,
            lines: file.text.lines().count(),
            limit: FILE_LINES,
        };
        sizes.insert(path, size);
    }
    for file in tree.rust() {
        let stream = match tokens(file) {
            Ok(stream) => stream,
            Err(error) => {
                breaches.push(Breach::new(&file.path, 0, error));
                continue;
            }
        };
        for function in functions(stream) {
            let size = Size {
                path: file.path.clone(),
                line: function.line,
                lines: function.lines,
                limit: FUNCTION_LINES,
            };
            let name = format!("{}::{}", file.path, function.name);
            if sizes
                .get(&name)
                .is_none_or(|other| other.lines < size.lines)
            {
                sizes.insert(name, size);
            }
        }
    }
    sizes
}

/// Returns the exceptions, each with its line number and its allowed size, and a breach for each
/// exception that is not needed because its size is within the limits.
fn exceptions(tree: &Tree) -> (BTreeMap<String, (usize, usize)>, Vec<Breach>) {
    let mut allowed = BTreeMap::new();
    let mut breaches = Vec::new();
    let file = tree.get(EXCEPTIONS);
    let lines = file.into_iter().flat_map(|file| file.lines());
    for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let parsed = line
            .split_once(' ')
            .and_then(|(thing, lines)| Some((thing, lines.parse::<usize>().ok()?)));
        let Some((thing, lines)) = parsed else {
            let what = "the line is not `PATH LINES` or `PATH::FUNCTION LINES`";
            breaches.push(Breach::new(EXCEPTIONS, number, what));
            continue;
        };
        let limit = match thing.contains("::") {
            true => FUNCTION_LINES,
            false => FILE_LINES,
        };
        if lines <= limit {
            let what = format!(
                "{thing} needs no exception any more: delete its line in the list of exceptions"
            );
            breaches.push(Breach::new(EXCEPTIONS, number, what));
        }
        allowed.insert(thing.to_owned(), (number, lines));
    }
    (allowed, breaches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{{}}}\n", "\n".repeat(lines - 1))
    }

    fn found(exceptions: &str) -> Vec<String> {
        let long = function("long", 71) + &function("fits", 70);
        let (huge, full) = ("\n".repeat(801), "\n".repeat(800));
        let tree = Tree::of(&[
            (EXCEPTIONS, exceptions),
            ("a.rs", &long),
            ("b.h", &huge),
            ("c.py", &full),
            ("d.txt", &huge),
        ]);
        check(&tree).iter().map(Breach::to_string).collect()
    }

    #[test]
    fn says_what_is_too_long() {
        let long = "a.rs:1: a.rs::long has 71 lines, more than 70: split it";
        let huge = "b.h: b.h has 801 lines, more than 800: split it";
        assert_eq!(found("# none\n"), [long, huge]);
        assert_eq!(found("a.rs::long 71\n"), [huge]);
    }

    #[test]
    fn the_exceptions_only_shrink() {
        let breaches = |exceptions: &str| found(&format!("{exceptions}\nb.h 801\na.rs::long 71"));
        assert_eq!(breaches(""), [""; 0]);
        let gone = format!(
            "{EXCEPTIONS}:1: x.rs 900 does not exist any more: delete its line in the list of \
             exceptions"
        );
        assert_eq!(breaches("x.rs 900"), [gone.replace("x.rs 900", "x.rs")]);
        let lower = format!(
            "{EXCEPTIONS}:1: a.rs::long now has only 71 lines: lower its 80 in the list of \
             exceptions"
        );
        assert_eq!(found("a.rs::long 80\nb.h 801"), [lower]);
        let grown = "b.h: b.h has 801 lines, more than 800: split it";
        let needless = format!(
            "{EXCEPTIONS}:1: a.rs::fits needs no exception any more: delete its line in the list \
             of exceptions"
        );
        assert_eq!(
            found("a.rs::fits 70\na.rs::long 71"),
            [needless.as_str(), grown]
        );
    }
}
