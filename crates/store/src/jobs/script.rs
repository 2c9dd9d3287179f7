// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hash of a job's script. `job_submit.lua` computes the same hash in Lua 5.1 to 5.4 without
//! modules, where numbers may be doubles. The hash therefore uses only sums, products and
//! remainders below 2^53: two polynomials modulo the prime 2^44 - 17, and the length.
//!
//! The hash distinguishes different scripts with high probability. It is not cryptographic: a user
//! can make two scripts of equal hash. Advice by the hash of a script therefore never changes a job
//! of another user.

/// Maximum length of a script in bytes. Longer scripts have no hash, because the controller computes
/// the hash while it holds its locks.
pub const SCRIPT_BYTES_MAX: usize = 64 << 10;

const MODULUS: u64 = (1 << 44) - 17;
const FACTORS: [u64; 2] = [257, 263];

/// Returns the hash of a script, such as `12-3481-93711`; `None` if the script is empty or too long.
pub fn script_hash(script: &[u8]) -> Option<String> {
    if script.is_empty() || script.len() > SCRIPT_BYTES_MAX {
        return None;
    }
    let [a, b] = FACTORS.map(|factor| {
        let step = |hash: u64, &byte: &u8| (hash * factor + u64::from(byte)) % MODULUS;
        script.iter().fold(0, step)
    });
    Some(format!("{}-{a}-{b}", script.len()))
}

/// Returns whether a text has the form of a hash.
pub(super) fn is_hash(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let digits =
        |part: &&str| (1..=14).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
    parts.len() == 3 && parts.iter().all(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_submission_script() {
        // "a": 97; "ab": 97 * 257 + 98 and 97 * 263 + 98.
        assert_eq!(script_hash(b"a").unwrap(), "1-97-97");
        assert_eq!(script_hash(b"ab").unwrap(), "2-25027-25609");
        let long = script_hash(&[255; SCRIPT_BYTES_MAX]).unwrap();
        assert!(is_hash(&long), "{long}");
    }

    #[test]
    fn long_and_empty_scripts_have_no_hash() {
        assert_eq!(script_hash(&[0; SCRIPT_BYTES_MAX + 1]), None);
        assert_eq!(script_hash(b""), None);
        for text in ["", "1-2", "1-2-3-4", "a-1-2", "1--2", "-1-2-3"] {
            assert!(!is_hash(text), "{text}");
        }
    }
}
