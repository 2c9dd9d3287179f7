// SPDX-License-Identifier: GPL-2.0-only
//! Checks and converts the thread variables of a registration, such as `OMP_NUM_THREADS`
//! (`usher run --hints`).
//!
//! The names come from the launcher, and `usher status` prints them. A request has at most
//! [`VARIABLES_MAX`] names of capital letters, digits and underscores, of at most
//! [`NAME_BYTES_MAX`] bytes each. Numbers of threads and CPUs are from 1 to 2³² - 1.

use usher_host::engine::{HintRequest, ThreadHints};

use super::refusal::Refusal;
use crate::api;

/// Maximum number of variables of a program.
const VARIABLES_MAX: usize = 16;
/// Maximum length of the name of a variable in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Returns the request for variables of a program that is launched, or the variables with which it
/// was launched before.
///
/// # Errors
/// A name or a number is invalid.
pub fn request(
    hints: Option<api::HintRequest>,
    given: Option<api::ThreadHints>,
) -> Result<Option<HintRequest>, Refusal> {
    Ok(match (given, hints) {
        (Some(given), _) => Some(HintRequest::Given(ThreadHints {
            threads: positive("given_hints", given.threads)?,
            variables: names("given_hints", given.variables)?,
            from_copies: given.from_copies,
        })),
        (None, Some(hints)) => Some(HintRequest::Choose {
            cpus: positive("hints", hints.cpus)?,
            variables: names("hints", hints.variables)?,
            always: hints.always,
        }),
        (None, None) => None,
    })
}

/// Converts the variables that a launcher sets for a program.
pub fn to_api(hints: &ThreadHints) -> api::ThreadHints {
    api::ThreadHints {
        threads: hints.threads.into(),
        variables: hints.variables.clone(),
        from_copies: hints.from_copies,
    }
}

fn positive(argument: &'static str, number: i64) -> Result<u32, Refusal> {
    let valid = u32::try_from(number).ok().filter(|&number| number > 0);
    valid.ok_or_else(|| Refusal::BadArgument {
        argument,
        reason: format!("{number} is not a number from 1 to {}", u32::MAX),
    })
}

fn names(argument: &'static str, names: Vec<String>) -> Result<Vec<String>, Refusal> {
    let refused = |reason: String| Err(Refusal::BadArgument { argument, reason });
    if names.len() > VARIABLES_MAX {
        return refused(format!(
            "{} variables are given; at most {VARIABLES_MAX} are accepted",
            names.len()
        ));
    }
    let is_letter = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let is_name =
        |name: &str| (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_letter);
    match names.iter().find(|name| !is_name(name)) {
        Some(name) => refused(format!(
            "{name:?} is not the name of a variable: 1 to {NAME_BYTES_MAX} capital letters, digits \
             and underscores"
        )),
        None => Ok(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(variables: &[&str], cpus: i64) -> Result<Option<HintRequest>, String> {
        let hints = api::HintRequest {
            variables: variables.iter().map(ToString::to_string).collect(),
            always: false,
            cpus,
        };
        request(Some(hints), None).map_err(|refusal| match refusal {
            Refusal::BadArgument { argument, reason } => format!("{argument}: {reason}"),
            _ => String::new(),
        })
    }

    #[test]
    fn accepts_names_of_variables_and_positive_numbers() {
        let expected = HintRequest::Choose {
            variables: vec!["OMP_NUM_THREADS".to_owned()],
            always: false,
            cpus: 4,
        };
        assert_eq!(requested(&["OMP_NUM_THREADS"], 4), Ok(Some(expected)));
        assert!(request(None, None).is_ok_and(|request| request.is_none()));
    }

    #[test]
    fn rejects_invalid_names_and_numbers_with_the_rule() {
        let long = "A".repeat(65);
        for name in ["", "omp", "A=B", "\u{1b}[2J", &long] {
            let error = requested(&["OMP_NUM_THREADS", name], 4).unwrap_err();
            assert!(error.contains("is not the name of a variable"), "{error}");
        }
        let many = requested(&["A"; 17], 4).unwrap_err();
        assert_eq!(
            many,
            "hints: 17 variables are given; at most 16 are accepted"
        );
        for cpus in [0, -1, i64::MAX] {
            let error = requested(&["A"], cpus).unwrap_err();
            assert!(error.contains("is not a number from 1 to"), "{error}");
        }
    }
}
