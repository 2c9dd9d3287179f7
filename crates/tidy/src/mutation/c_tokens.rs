// SPDX-License-Identifier: MIT OR Apache-2.0
//! Divides a C source into tokens, for the mutation test.
//!
//! The lexer skips comments and preprocessor directives, except the replacement text of a
//! `#define`. It never fails: unknown characters become punctuation. The time is linear in the size
//! of the source.

/// Kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A name or a keyword.
    Word,
    /// A number, a string or a character.
    Literal,
    /// An operator or other punctuation.
    Punctuation,
}

/// A token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    /// The text of the token.
    pub text: &'a str,
    /// Byte offset of the token in the source.
    pub start: usize,
    /// The kind of the token.
    pub kind: Kind,
    /// Whether the token is part of the replacement text of a macro.
    pub is_macro: bool,
}

/// Operators and comment marks of more than one character, the longest first.
const PUNCTUATION: [&str; 25] = [
    "<<=", ">>=", "...", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=",
    "-=", "*=", "/=", "%=", "&=", "|=", "^=", "##", "/*", "//",
];

/// Returns the tokens of a source.
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut reader = Reader { source, at: 0 };
    let mut found = Vec::new();
    let mut in_macro = false;
    let mut begins_line = true;
    while let Some(next) = reader.rest().chars().next() {
        if next == '\n' {
            (in_macro, begins_line) = (false, true);
            reader.at += 1;
        } else if next.is_whitespace() {
            reader.at += next.len_utf8();
        } else if reader.rest().starts_with("\\\n") {
            reader.at += 2;
        } else if next == '#' && begins_line {
            in_macro = reader.skip_directive_head();
        } else if let Some(token) = reader.token(in_macro) {
            begins_line = false;
            found.push(token);
        }
    }
    found
}

struct Reader<'a> {
    source: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// Returns the next `length` bytes and skips them.
    fn take(&mut self, length: usize) -> &'a str {
        let text = &self.rest()[..length];
        self.at += length;
        text
    }

    fn word_length(&self) -> usize {
        let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        self.rest().find(is_end).unwrap_or(self.rest().len())
    }

    /// Skips the name and the parameters of a `#define` and returns true; skips another directive.
    fn skip_directive_head(&mut self) -> bool {
        self.take(1);
        self.skip_blanks();
        let length = self.word_length();
        if self.take(length) != "define" {
            let mut is_continued = true;
            while is_continued && !self.rest().is_empty() {
                let length = self.rest().find('\n').unwrap_or(self.rest().len());
                is_continued = self.take(length).ends_with('\\');
                if is_continued {
                    self.take(1);
                }
            }
            return false;
        }
        self.skip_blanks();
        let length = self.word_length();
        self.take(length);
        if self.rest().starts_with('(') {
            let length = self.rest().find(')').map_or(0, |end| end + 1);
            self.take(length);
        }
        true
    }

    fn skip_blanks(&mut self) {
        let blanks = self.rest().len() - self.rest().trim_start_matches([' ', '\t']).len();
        self.at += blanks;
    }

    /// Reads a token; `None` for a comment.
    fn token(&mut self, is_macro: bool) -> Option<Token<'a>> {
        let start = self.at;
        let rest = self.rest();
        let first = rest.chars().next()?;
        let (kind, length) = if first.is_ascii_digit() {
            let is_end = |c: char| !c.is_ascii_alphanumeric() && !"._'".contains(c);
            (Kind::Literal, rest.find(is_end).unwrap_or(rest.len()))
        } else if first.is_ascii_alphabetic() || first == '_' {
            (Kind::Word, self.word_length())
        } else if first == '"' || first == '\'' {
            (Kind::Literal, quoted_length(rest, first))
        } else {
            let longer = PUNCTUATION.iter().find(|text| rest.starts_with(**text));
            (
                Kind::Punctuation,
                longer.map_or(first.len_utf8(), |text| text.len()),
            )
        };
        let text = self.take(length);
        match text {
            "/*" => self.at = end_of(self.source, self.at, "*/") + 2,
            "//" => self.at = end_of(self.source, self.at, "\n"),
            _ => {
                return Some(Token {
                    text,
                    start,
                    kind,
                    is_macro,
                });
            }
        }
        self.at = self.at.min(self.source.len());
        None
    }
}

/// Returns the offset of the next `mark` at or after `from`; if there is none, the end of the
/// source.
fn end_of(source: &str, from: usize, mark: &str) -> usize {
    source[from..]
        .find(mark)
        .map_or(source.len(), |found| from + found)
}

fn quoted_length(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|token| token.text).collect()
    }

    #[test]
    fn reads_operators_as_long_as_possible() {
        assert_eq!(
            texts("a<<=b>>c->d"),
            ["a", "<<=", "b", ">>", "c", "->", "d"]
        );
        assert_eq!(texts("a+++b"), ["a", "++", "+", "b"]);
        assert_eq!(texts("x=0x1fULL&~y"), ["x", "=", "0x1fULL", "&", "~", "y"]);
    }

    #[test]
    fn skips_comments_strings_and_directives() {
        assert_eq!(texts("a /* b < c */ d // e + f\ng"), ["a", "d", "g"]);
        assert_eq!(
            texts(r#"f("a \" < b", '+')"#),
            ["f", "(", r#""a \" < b""#, ",", "'+'", ")"]
        );
        assert_eq!(texts("#include <a/b.h>\n#if A > \\\n B\nx\n#endif"), ["x"]);
        assert_eq!(texts("a /* never closed"), ["a"]);
    }

    #[test]
    fn reads_replacement_texts_of_macros() {
        let found = tokens("#define A(a, b) \\\n\t((a) + b)\nc + d\n#define GUARD\n");
        let in_macro: Vec<&str> = found
            .iter()
            .filter(|t| t.is_macro)
            .map(|t| t.text)
            .collect();
        assert_eq!(in_macro, ["(", "(", "a", ")", "+", "b", ")"]);
        let others: Vec<&str> = found
            .iter()
            .filter(|t| !t.is_macro)
            .map(|t| t.text)
            .collect();
        assert_eq!(others, ["c", "+", "d"]);
    }
}
