// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rule: a `main.rs` only connects modules, so it has at most 40 lines without blank lines and
//! comments.

use crate::{Breach, File, Tree};

/// Maximum number of lines of a `main.rs`, without blank lines and comments.
pub const MAIN_LINES: usize = 40;

/// Returns a breach for each `main.rs` with more lines than allowed.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let mains = tree
        .rust()
        .filter(|file| file.crate_name().is_some() && file.path.ends_with("/src/main.rs"));
    mains
        .filter_map(|file| {
            let lines = code_lines(file);
            let what = format!(
                "the file has {lines} lines of code, more than {MAIN_LINES}: main only connects \
                 modules"
            );
            (lines > MAIN_LINES).then(|| Breach::new(&file.path, 0, what))
        })
        .collect()
}

fn code_lines(file: &File) -> usize {
    let code = |line: &str| !line.is_empty() && !line.starts_with("//");
    file.lines().filter(|(_, line)| code(line.trim())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_only_wires() {
        let comments = "// why\n\n".repeat(50);
        let wires = comments + &"call();\n".repeat(MAIN_LINES);
        let does = format!("{wires}more();\n");
        let tree = Tree::of(&[
            ("crates/a/src/main.rs", &wires),
            ("crates/b/src/main.rs", &does),
            ("crates/b/src/lib.rs", &does),
        ]);
        let paths: Vec<String> = check(&tree).into_iter().map(|breach| breach.path).collect();
        assert_eq!(paths, ["crates/b/src/main.rs"]);
    }
}
