// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rust files as token trees, and searches in them. The rules use tokens instead of a syntax tree,
//! because tokens include the content of macros (`proptest!`, `macro_rules!`). In contrast to a
//! search in the text, they exclude comments and strings. A search takes time in proportion to the
//! tokens times the depth of their nesting. A file that is not Rust is an error.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::File;

/// Returns the tokens of a Rust file.
///
/// # Errors
/// If the file is not Rust. The error is that of the lexer.
pub fn tokens(file: &File) -> Result<TokenStream, String> {
    file.text
        .parse()
        .map_err(|error: proc_macro2::LexError| format!("the file is not Rust: {error}"))
}

/// A function with a body.
#[derive(Debug, Clone)]
pub struct Function {
    /// The name of the function.
    pub name: String,
    /// The line of the word `fn`, from 1.
    pub line: usize,
    /// The number of lines from `fn` to the closing brace.
    pub lines: usize,
    /// The tokens between the braces.
    pub body: TokenStream,
}

/// Returns all functions with a body, including functions in macros and in other functions.
pub fn functions(stream: TokenStream) -> Vec<Function> {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut found = Vec::new();
    for (at, tree) in trees.iter().enumerate() {
        if let (true, Some(TokenTree::Ident(name))) = (is_word(tree, "fn"), trees.get(at + 1))
            && let Some(body) = body(&trees[at + 2..])
        {
            let line = tree.span().start().line;
            found.push(Function {
                name: name.to_string(),
                line,
                lines: body.span_close().end().line + 1 - line,
                body: body.stream(),
            });
        }
        if let TokenTree::Group(group) = tree {
            found.extend(functions(group.stream()));
        }
    }
    found
}

/// Returns the body that follows a function's name; `None` for a declaration.
fn body(rest: &[TokenTree]) -> Option<&Group> {
    rest.iter()
        .take_while(|tree| !matches!(tree, TokenTree::Punct(p) if p.as_char() == ';'))
        .find_map(|tree| match tree {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group),
            _ => None,
        })
}

/// Returns the bodies of modules and functions with the attribute `#[cfg(test)]` or `#[test]`.
pub fn test_code(stream: TokenStream) -> Vec<Group> {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut found = Vec::new();
    let mut marked = false;
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                let attribute = at > 0 && is_punct(&trees[at - 1], '#');
                marked |= attribute && marks_a_test(group);
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                match std::mem::take(&mut marked) {
                    true => found.push(group.clone()),
                    false => found.extend(test_code(group.stream())),
                }
            }
            TokenTree::Punct(p) if p.as_char() == ';' => marked = false,
            _ => {}
        }
    }
    found
}

/// Returns whether an attribute is `#[cfg(test)]` or `#[test]`.
pub fn marks_a_test(attribute: &Group) -> bool {
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    text == "test" || text == "cfg(test)"
}

/// Calls `see` for each identifier, with its line and the tokens that precede it in the same group.
pub fn each_word(stream: TokenStream, see: &mut impl FnMut(&str, usize, &[TokenTree])) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Ident(word) => {
                see(&word.to_string(), word.span().start().line, &trees[..at]);
            }
            TokenTree::Group(group) => each_word(group.stream(), see),
            _ => {}
        }
    }
}

/// Returns whether the token is the identifier or keyword `word`.
pub fn is_word(tree: &TokenTree, word: &str) -> bool {
    matches!(tree, TokenTree::Ident(ident) if ident == word)
}

/// Returns whether the token is the punctuation `sign`.
pub fn is_punct(tree: &TokenTree, sign: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> TokenStream {
        text.parse().unwrap()
    }

    #[test]
    fn finds_functions_wherever_they_stand() {
        let text = "trait T { fn declared(&self); fn given(&self) {} }\n\
                    proptest! { fn in_macro(a in 0..3u8) {\n\n} }\n\
                    fn outer() -> fn(u8) -> u8 {\n fn inner(x: u8) -> u8 { x }\n inner\n}\n";
        let found: Vec<(String, usize, usize)> = functions(parse(text))
            .into_iter()
            .map(|f| (f.name, f.line, f.lines))
            .collect();
        let expected = [
            ("given", 1, 1),
            ("in_macro", 2, 3),
            ("outer", 5, 4),
            ("inner", 6, 1),
        ];
        assert_eq!(
            found,
            expected.map(|(name, line, lines)| (name.to_owned(), line, lines))
        );
    }

    #[test]
    fn tells_test_code_from_the_rest() {
        let text = "fn a() { one } #[cfg(test)] mod t { two } #[cfg(test)] use x::y; \
                    mod m { #[test] fn b() { three } fn c() { four } } #[cfg(not(test))] fn d() { five }";
        let bodies: Vec<String> = test_code(parse(text))
            .iter()
            .map(|group| group.stream().to_string())
            .collect();
        assert_eq!(bodies, ["two", "three"]);
    }
}
