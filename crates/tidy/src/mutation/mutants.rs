// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the mutants of a C source, which are copies of the source in which one operator is
//! replaced by its opposite.
//!
//! 1. Divide the source into tokens.
//! 2. For each operator, decide by the preceding token whether the operator is binary or unary, and
//!    find the replacement in the table of binary or unary operators.
//! 3. Record the function, the text of the line and the column, which identify the mutant even if
//!    other lines of the file change.
//!
//! The decision in step 2 is a heuristic that recognises casts and pointer types by the names of
//! types. The time is at most quadratic in the size of the source, which has at most 800 lines.

use super::c_tokens::{Kind, Token, tokens};

/// Class of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A comparison.
    Relational,
    /// A calculation.
    Arithmetic,
    /// `&&`, `||`, `!`.
    Boolean,
    /// Bits of a flag, a mask or a set.
    Bitwise,
}

/// A mutant: a position and a replaced operator. File, function, line, column and occurrence
/// identify the mutant, and do not change when other lines of the file change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutant {
    /// Path of the file, relative to the root of the repository.
    pub file: String,
    /// Name of the function, macro or structure that contains the operator.
    pub function: String,
    /// The text of the source line, without leading and trailing blanks.
    pub line: String,
    /// Column of the operator in `line`, counted from 1.
    pub column: usize,
    /// Number of this line among the lines with the same text in the function, from 1.
    pub occurrence: usize,
    /// The operator.
    pub from: &'static str,
    /// The replacement; if it is empty, the operator is removed.
    pub to: &'static str,
    /// Byte offset of the operator in the file.
    pub start: usize,
    /// Line number of the operator, for messages.
    pub number: usize,
}

impl Mutant {
    /// Returns the mutated source.
    pub fn apply(&self, source: &str) -> String {
        let end = self.start + self.from.len();
        // A blank in place of a removed operator separates the tokens before and after it.
        let to = if self.to.is_empty() { " " } else { self.to };
        [&source[..self.start], to, &source[end..]].concat()
    }

    /// Returns the class of the operator.
    pub fn class(&self) -> Class {
        match self.from {
            "<" | "<=" | ">" | ">=" | "==" | "!=" => Class::Relational,
            "&&" | "||" | "!" => Class::Boolean,
            "&" | "|" | "^" | "~" | "<<" | ">>" | "&=" | "|=" | "^=" | "<<=" | ">>=" => {
                Class::Bitwise
            }
            _ => Class::Arithmetic,
        }
    }

    /// Returns the text that describes the change.
    pub fn change(&self) -> String {
        match self.to {
            "" => format!("`{}` removed", self.from),
            to => format!("`{}` to `{to}`", self.from),
        }
    }
}

impl std::fmt::Display for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let change = self.change();
        write!(
            f,
            "{}:{}: {}: column {} of `{}`: {change}",
            self.file, self.number, self.function, self.column, self.line
        )
    }
}

/// Operators that follow an operand, with their replacements.
const BINARY: [(&str, &str); 30] = [
    ("<", ">="),
    ("<=", ">"),
    (">", "<="),
    (">=", "<"),
    ("==", "!="),
    ("!=", "=="),
    ("&&", "||"),
    ("||", "&&"),
    ("+", "-"),
    ("-", "+"),
    ("*", "/"),
    ("/", "*"),
    ("%", "/"),
    ("++", "--"),
    ("--", "++"),
    ("+=", "-="),
    ("-=", "+="),
    ("*=", "/="),
    ("/=", "*="),
    ("%=", "/="),
    ("&", "|"),
    ("|", "&"),
    ("^", "|"),
    ("<<", ">>"),
    (">>", "<<"),
    ("&=", "|="),
    ("|=", "&="),
    ("^=", "|="),
    ("<<=", ">>="),
    (">>=", "<<="),
];

/// Operators that precede their operand, with their replacements. `*` and `&` are missing, because
/// as unary operators they concern pointers.
const UNARY: [(&str, &str); 5] = [("!", ""), ("~", ""), ("-", ""), ("++", "--"), ("--", "++")];

/// Returns every mutant of a source.
pub fn mutants(file: &str, source: &str) -> Vec<Mutant> {
    let tokens = tokens(source);
    let functions = functions(&tokens, source);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let Some((from, to)) = replacement(&tokens, at) else {
            continue;
        };
        let begin = source[..token.start].rfind('\n').map_or(0, |end| end + 1);
        let text = source[begin..].lines().next().unwrap_or_default();
        let blanks = text.len() - text.trim_start().len();
        found.push(Mutant {
            file: file.to_owned(),
            function: functions[at].clone(),
            line: text.trim().to_owned(),
            column: token.start - begin - blanks + 1,
            occurrence: 1,
            from,
            to,
            start: token.start,
            number: source[..token.start].matches('\n').count() + 1,
        });
    }
    number_equal_lines(&mut found);
    found
}

/// Sets `occurrence`, which numbers equal lines of a function.
fn number_equal_lines(found: &mut [Mutant]) {
    for at in 0..found.len() {
        let (before, rest) = found.split_at_mut(at);
        let this = &mut rest[0];
        let same = |other: &&Mutant| {
            (&other.function, &other.line, other.column)
                == (&this.function, &this.line, this.column)
        };
        this.occurrence = before.iter().filter(same).count() + 1;
    }
}

fn replacement(tokens: &[Token<'_>], at: usize) -> Option<(&'static str, &'static str)> {
    let token = &tokens[at];
    if token.kind != Kind::Punctuation {
        return None;
    }
    let is_binary = ends_operand(tokens, at);
    let table: &[(&'static str, &'static str)] = if is_binary { &BINARY } else { &UNARY };
    table.iter().find(|(from, _)| *from == token.text).copied()
}

/// Keywords after which an operand begins.
const STATEMENTS: [&str; 5] = ["return", "case", "sizeof", "else", "do"];
/// Words that are names of types. Words that end with `_t` and words after `struct` are also names
/// of types.
const TYPES: [&str; 16] = [
    "void", "char", "short", "int", "long", "signed", "unsigned", "_Bool", "const", "volatile",
    "__u8", "__u16", "__u32", "__u64", "__s32", "__s64",
];

/// Returns whether the token `at` follows an operand. If it does not, an operator at this position
/// is unary, or is the `*` of a pointer type.
fn ends_operand(tokens: &[Token<'_>], at: usize) -> bool {
    let Some(before) = at.checked_sub(1) else {
        return false;
    };
    match tokens[before].kind {
        Kind::Literal => true,
        Kind::Word => !STATEMENTS.contains(&tokens[before].text) && !is_type(tokens, before),
        Kind::Punctuation => match tokens[before].text {
            ")" => !is_cast(tokens, before),
            "]" => true,
            "++" | "--" => ends_operand(tokens, before),
            _ => false,
        },
    }
}

fn is_type(tokens: &[Token<'_>], at: usize) -> bool {
    let is_tag = |before: &Token<'_>| ["struct", "enum", "union"].contains(&before.text);
    let text = tokens[at].text;
    let after_tag = at.checked_sub(1).is_some_and(|at| is_tag(&tokens[at]));
    TYPES.contains(&text) || text.ends_with("_t") || is_tag(&tokens[at]) || after_tag
}

/// Returns whether a closing parenthesis ends a cast, which contains only names of types and `*`.
fn is_cast(tokens: &[Token<'_>], close: usize) -> bool {
    let Some(open) = tokens[..close].iter().rposition(|t| t.text == "(") else {
        return false;
    };
    let is_call = open
        .checked_sub(1)
        .is_some_and(|at| tokens[at].kind == Kind::Word && !STATEMENTS.contains(&tokens[at].text));
    let is_part = |at: usize| tokens[at].text == "*" || is_type(tokens, at);
    open + 1 < close && !is_call && (open + 1..close).all(is_part)
}

/// Returns for each token the function, structure or macro that contains it.
fn functions(tokens: &[Token<'_>], source: &str) -> Vec<String> {
    let mut names = Vec::with_capacity(tokens.len());
    let mut depth = 0_usize;
    let mut begin = 0;
    let mut name = String::new();
    for (at, token) in tokens.iter().enumerate() {
        if token.is_macro {
            names.push(macro_of(source, token.start));
            if depth == 0 {
                begin = at + 1;
            }
            continue;
        }
        match token.text {
            "{" => {
                if depth == 0 {
                    name = declared(&tokens[begin..at]);
                }
                depth += 1;
            }
            "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    begin = at + 1;
                }
            }
            ";" if depth == 0 => begin = at + 1,
            _ => {}
        }
        names.push(if depth == 0 {
            String::new()
        } else {
            name.clone()
        });
    }
    names
}

/// Returns the name of the macro with the replacement text that contains the offset `start`.
fn macro_of(source: &str, start: usize) -> String {
    let define = source[..start].rfind("#define").unwrap_or(0);
    let text = source[define..].trim_start_matches("#define").trim_start();
    let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    format!("#define {}", text.split(is_end).next().unwrap_or_default())
}

/// Returns the name that a declaration declares. For a function, it is the last word before the
/// outermost parentheses. For a callback, it is the first argument of `BPF_PROG`. For a structure,
/// it is the last word.
fn declared(tokens: &[Token<'_>]) -> String {
    let mut depth = 0;
    let mut name = None;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "(" => {
                if depth == 0 && at > 0 && tokens[at - 1].kind == Kind::Word {
                    name = Some(if tokens[at - 1].text == "BPF_PROG" {
                        at + 1
                    } else {
                        at - 1
                    });
                }
                depth += 1;
            }
            ")" => depth -= 1,
            _ => {}
        }
    }
    let last = tokens.iter().rposition(|token| token.kind == Kind::Word);
    let found = name.or(last).and_then(|at| tokens.get(at));
    found.map_or(String::new(), |token| token.text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(source: &str) -> Vec<String> {
        let found = mutants("a.h", source);
        found.iter().map(|mutant| mutant.apply(source)).collect()
    }

    #[test]
    fn replaces_each_operator_once() {
        assert_eq!(
            changes("x = a < b && !c;"),
            ["x = a >= b && !c;", "x = a < b || !c;", "x = a < b &&  c;"]
        );
        assert_eq!(changes("a += b % 4;"), ["a -= b % 4;", "a += b / 4;"]);
        assert_eq!(changes("for (;; i++)"), ["for (;; i--)"]);
        assert_eq!(changes("return -1;"), ["return  1;"]);
        assert_eq!(changes("f(a) - g[1]"), ["f(a) + g[1]"]);
    }

    #[test]
    fn leaves_pointers_casts_and_declarations() {
        for source in [
            "struct a *b = &c;",
            "const void *a, **b;",
            "__u64 f(const struct a *b, __u32 *c) { *c = b->d; return *c; }",
            "(struct a *)&b;",
            "*(struct a *volatile *)&b->c = d;",
            "sizeof(*a);",
            "f(&a, *b);",
            "#define A B\n#include <a.h>\n#if A < 3\n#endif",
            "\"a < b\"; /* a < b */",
        ] {
            assert_eq!(changes(source), [""; 0], "{source}");
        }
        assert_eq!(changes("(__u32)a * b;"), ["(__u32)a / b;"]);
        assert_eq!(changes("a * sizeof(b) & c;").len(), 2);
        assert_eq!(changes("size_t x = (__s64)-y;"), ["size_t x = (__s64) y;"]);
        assert_eq!(changes("f(a) & b;"), ["f(a) | b;"]);
    }

    #[test]
    fn names_function_line_and_column() {
        let source = "#define M (A + 1)\nstruct s {\n\tint a[2 * 3];\n};\nOP(run)\n\
                      int BPF_PROG(run, int a)\n{\n\tif (a < 1)\n\t\treturn a - 1;\n\tif (a < 1)\n\
                      \t\treturn 0;\n}\nstatic __attribute__((noinline)) int\nlast(int (*f)(void))\n\
                      {\n\treturn 1 + f();\n}\n";
        let found = mutants("a.h", source);
        let keys: Vec<_> = found
            .iter()
            .map(|m| {
                (
                    m.function.as_str(),
                    m.line.as_str(),
                    m.column,
                    m.occurrence,
                    m.number,
                )
            })
            .collect();
        assert_eq!(
            keys,
            [
                ("#define M", "#define M (A + 1)", 14, 1, 1),
                ("s", "int a[2 * 3];", 9, 1, 3),
                ("run", "if (a < 1)", 7, 1, 8),
                ("run", "return a - 1;", 10, 1, 9),
                ("run", "if (a < 1)", 7, 2, 10),
                ("last", "return 1 + f();", 10, 1, 16),
            ]
        );
    }

    #[test]
    fn knows_the_class_of_every_operator() {
        let source = "a == b || c - d & e;";
        let found = mutants("a.h", source);
        let classes: Vec<Class> = found.iter().map(Mutant::class).collect();
        assert_eq!(
            classes,
            [
                Class::Relational,
                Class::Boolean,
                Class::Arithmetic,
                Class::Bitwise
            ]
        );
        assert_eq!(found[0].change(), "`==` to `!=`");
    }
}
