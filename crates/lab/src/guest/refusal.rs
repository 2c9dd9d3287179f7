// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error of a guest that cannot run its job: an exit status and a reason in one line, which the
//! guest reports to the host.

/// The exit status and the reason of a job that cannot be run.
#[derive(Debug)]
pub(super) struct Refusal(pub u8, pub String);

impl Refusal {
    pub fn because(doing: impl std::fmt::Display, why: impl Into<std::io::Error>) -> Self {
        Self(
            crate::OWN_FAILURE,
            format!("{doing}: {}", system_message(&why.into())),
        )
    }
}

/// Returns the system's message for an error, without the suffix " (os error 13)" that Rust adds.
pub(super) fn system_message(why: &std::io::Error) -> String {
    usher_model::without_error_number(&why.to_string())
}
