// SPDX-License-Identifier: MIT OR Apache-2.0
//! Texts of the system's errors as users see them, without the number that Rust appends.

/// Removes Rust's " (os error 13)" from the system's messages, wherever they are in the text.
pub fn without_error_number(text: &str) -> String {
    const NUMBER: &str = " (os error ";
    let mut message = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(NUMBER) {
        message.push_str(before);
        rest = match after.split_once(')') {
            Some((number, tail)) if number.bytes().all(|byte| byte.is_ascii_digit()) => tail,
            _ => {
                message.push_str(NUMBER);
                after
            }
        };
    }
    message + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_errors_are_removed() {
        let error = std::io::Error::from_raw_os_error(13).to_string();
        assert_eq!(without_error_number(&error), "Permission denied");
        let two = format!("{error}; then {error}!");
        assert_eq!(
            without_error_number(&two),
            "Permission denied; then Permission denied!"
        );
        assert_eq!(without_error_number("a (os error x)"), "a (os error x)");
    }
}
