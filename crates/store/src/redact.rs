// SPDX-License-Identifier: MIT OR Apache-2.0
//! Removes possible secrets from arguments before they are stored.
//!
//! A command line may contain a password: `--password=x`, `-px`, or a word that follows an option.
//! The store needs arguments only to distinguish commands. Each word is handled on its own. The
//! parts that cannot be a valuable secret are kept, and the rest is replaced by a short hash:
//!
//! | word | stored as |
//! |---|---|
//! | a number, `number:2^k`, `file:2^k`, `word:HASH`, `dir`, `device`, `out` | itself |
//! | `--name`, `-x`, `-x8` | itself |
//! | `--name=value`, `NAME=value` | the name, and the value by these rules |
//! | `-xyz` | `-x` and the hash of the rest |
//! | anything else | `word:` and its hash |
//!
//! A number has at most four characters, a name at most 40. The cost is linear in the length of the
//! arguments. The hash has 32 bits, which is enough to distinguish the arguments of one program.
//! The hash does not protect a password that is in a short list of guesses. Therefore only the
//! owner may read the store. A redacted word is not changed by another redaction, so that the store
//! also finds keys from its own listing.

/// Hashes a word to eight hexadecimal digits.
fn hashed(word: &str) -> String {
    let hash = blake3::hash(word.as_bytes());
    hash.to_hex().as_str()[..8].to_owned()
}

/// Redacts arguments that are separated by single blanks.
pub(crate) fn redact(arguments: &str) -> String {
    let words: Vec<String> = arguments.split(' ').map(word).collect();
    words.join(" ")
}

fn word(word: &str) -> String {
    if let Some((name, value)) = word.split_once('=')
        && is_name(name.trim_start_matches('-'))
    {
        return format!("{name}={}", value_of(value));
    }
    match word.strip_prefix("--") {
        Some(name) if is_name(name) => return word.to_owned(),
        _ => {}
    }
    let mut chars = word.chars();
    match (chars.next(), chars.next(), chars.as_str()) {
        (Some('-' | '+'), Some(letter), rest) if letter.is_ascii_alphanumeric() => {
            if rest.is_empty() || is_number(rest) || is_hash(rest.strip_prefix('~')) {
                word.to_owned()
            } else {
                format!("{}~{}", &word[..2], hashed(rest))
            }
        }
        _ => value_of(word),
    }
}

/// Common words that are kept, because they are no secrets.
const PLAIN: [&str; 16] = [
    "", "-", "--", "dir", "device", "out", "true", "false", "on", "off", "yes", "no", "active",
    "passive", "close", "spread",
];

fn value_of(value: &str) -> String {
    let kept = ["number:2^", "file:2^"];
    let bucket = kept
        .iter()
        .any(|kind| is_number_of(value.strip_prefix(kind)));
    if PLAIN.contains(&value) || is_number(value) || bucket || is_hash(value.strip_prefix("word:"))
    {
        return value.to_owned();
    }
    format!("word:{}", hashed(value))
}

fn is_number_of(text: Option<&str>) -> bool {
    text.is_some_and(is_number)
}

/// Returns whether the text is a small number or a list of small numbers, such as thread counts or
/// sizes. Longer numbers may be card or telephone numbers.
fn is_number(text: &str) -> bool {
    (1..=4).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || b",.x".contains(&b))
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && text.len() <= 40
}

fn is_hash(text: Option<&str>) -> bool {
    text.is_some_and(|text| {
        [8, 16].contains(&text.len())
            && text
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn removes_secrets_and_keeps_thread_counts() {
        let stored = redact("--password=hunter2 -phunter2 --token hunter2 hunter2 NAME=hunter2");
        assert!(!stored.contains("hunter2"), "{stored}");
        assert!(stored.starts_with("--password=word:") && stored.contains(" -p~"));
        let plain = "OMP_NUM_THREADS=8 --threads=2 -p 4 -j8 -9 +w dir file:2^16 number:2^20 out";
        assert_eq!(redact(plain), plain);
        assert_ne!(redact("one.py"), redact("two.py"));
    }

    proptest! {
        #[test]
        fn redacting_twice_changes_nothing(arguments in "[ -~]{0,80}|(-{0,2}[a-z]{1,5}=?[a-f0-9~:]{0,20} ?){0,6}") {
            let once = redact(&arguments);
            prop_assert_eq!(redact(&once), once);
        }

        #[test]
        fn no_word_of_letters_is_kept(word in "[a-z]{6,30}") {
            prop_assume!(!PLAIN.contains(&word.as_str()));
            for text in [word.clone(), format!("-p{word}"), format!("--x={word}"), format!("/a/{word}")] {
                prop_assert!(!redact(&text).contains(&word));
            }
        }
    }
}
