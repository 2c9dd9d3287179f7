// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bound on the nesting depth of TOML texts that users write: at most 64 open brackets and
//! braces. The check prevents a stack overflow in crate toml, which parses inline tables
//! recursively without a bound.
//!
//! The time is linear in the length of the text; the check ends at the 65th open bracket.

use toml_parser::Source;
use toml_parser::lexer::TokenKind;

/// Maximum number of brackets and braces that may be open at the same time. Usher's own files nest
/// at most five deep.
const DEPTH_MAX: usize = 64;

/// Returns the reason for which a TOML text must not be parsed, or `None` if parsing is safe. Crate
/// toml parses the inline tables of a malformed text recursively, without a bound, and overflows
/// the stack.
///
/// As in the toml parser, a bracket or brace is open until the closing bracket of its kind follows.
/// Brackets in strings and comments are ignored.
pub fn nesting_error(toml: &str) -> Option<&'static str> {
    let mut open = Vec::new();
    for token in Source::new(toml).lex() {
        match token.kind() {
            TokenKind::LeftCurlyBracket => open.push(TokenKind::RightCurlyBracket),
            TokenKind::LeftSquareBracket => open.push(TokenKind::RightSquareBracket),
            close if open.last() == Some(&close) => {
                open.pop();
            }
            _ => {}
        }
        if open.len() > DEPTH_MAX {
            return Some(
                "the text nests more than 64 brackets: close the arrays and inline tables",
            );
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_deep_nesting_but_not_many_tables() {
        assert_eq!(nesting_error(&"a = {}\n".repeat(1000)), None);
        assert_eq!(nesting_error(&"[[a]]\nb = [[1], [2]]\n".repeat(1000)), None);
        assert!(nesting_error(&"a = {".repeat(1000)).is_some());
    }

    #[test]
    fn ignores_brackets_in_comments_and_strings() {
        assert_eq!(nesting_error(&"a = '{' # {\n".repeat(1000)), None);
        for line in ["a = { # }\n", "a = { b = '}'\n", "a = {[}"] {
            assert!(nesting_error(&line.repeat(1000)).is_some(), "{line}");
        }
    }
}
