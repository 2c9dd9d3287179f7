// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reason why a guest cannot do its job: an exit status and one line of text for the host.

/// A job that cannot be done: exit status and reason.
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

/// The system's message without Rust's " (os error 13)".
pub(super) fn system_message(why: &std::io::Error) -> String {
    let text = why.to_string();
    text.split(" (os error ").next().unwrap_or(&text).to_owned()
}
