// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bound on the nesting of texts that users write.

/// Braces that may be open at the same time. No file of Usher's nests deeper than
/// five.
const DEPTH_MAX: usize = 64;

/// Why a TOML text must not be given to its parser: crate toml parses the inline
/// tables of a malformed text recursively, without a bound, and overflows the stack.
///
/// Braces in strings and comments count, too, which errs on the safe side.
pub fn too_deep(toml: &str) -> Option<&'static str> {
    let mut depth = 0_usize;
    let mut deepest = 0;
    for byte in toml.bytes() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    (deepest > DEPTH_MAX).then_some("more than 64 braces are open: close inline tables")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_tables_beside_one_another_are_fine_and_nested_ones_are_not() {
        assert_eq!(too_deep(&"a = {}\n".repeat(1000)), None);
        assert!(too_deep(&"a = {".repeat(1000)).is_some());
    }
}
