// SPDX-License-Identifier: MIT OR Apache-2.0
//! Divides lines of C into code and block comments, so that rules about comments can be applied to
//! C. String literals that contain comment marks are not recognised. A call takes time linear in
//! the length of the line.

/// Returns the code and the comments of a line. `in_comment` states whether the line begins inside
/// a comment. The function sets it to whether the next line begins inside a comment.
pub(crate) fn divide(line: &str, in_comment: &mut bool) -> (String, String) {
    let (mut code, mut comments, mut rest) = (String::new(), String::new(), line);
    loop {
        let end = if *in_comment { "*/" } else { "/*" };
        let (part, after) = match rest.split_once(end) {
            Some((part, after)) => (part, Some(after)),
            None => (rest, None),
        };
        let into = if *in_comment {
            &mut comments
        } else {
            &mut code
        };
        into.push_str(part);
        into.push(' ');
        let Some(after) = after else {
            return (code, comments);
        };
        *in_comment = !*in_comment;
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::divide;

    #[test]
    fn divides_lines_into_code_and_comments() {
        let spaced = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut in_comment = false;
        let mut parts = |line| {
            let (code, comments) = divide(line, &mut in_comment);
            (spaced(&code), spaced(&comments))
        };
        let expected = |code: &str, comments: &str| (code.to_owned(), comments.to_owned());
        assert_eq!(
            parts("a; /* one */ b; /* two"),
            expected("a; b;", "one two")
        );
        assert_eq!(parts(" * three"), expected("", "* three"));
        assert_eq!(parts("four */ c;"), expected("c;", "four"));
        assert_eq!(parts("d;"), expected("d;", ""));
    }
}
