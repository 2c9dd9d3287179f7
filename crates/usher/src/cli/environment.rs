// SPDX-License-Identifier: GPL-2.0-only
//! Reports environment variables `USHER_…` that no program of Usher reads: a misspelt or outdated
//! variable, in a shell or a unit, would otherwise have no effect and no message.
//!
//! A name is known if it is in [`OWN`], or begins with an entry of [`OTHERS`]. Each unknown
//! variable leads to one warning, in alphabetical order, with the closest name of [`OWN`] if there
//! is a similar one. A name that is not UTF-8 is ignored.

use std::ffi::OsString;

use crate::output::shown;

/// The beginning of the names.
const PREFIX: &str = "USHER_";

/// Variables that `usher` itself reads or sets.
const OWN: [&str; 7] = [
    "USHER_CLAIM_NAME",
    "USHER_HEARTBEAT",
    "USHER_OMPT",
    "USHER_RUN",
    "USHER_RUNTIME_DIR",
    "USHER_SHORT_LIFE_COUNT",
    "USHER_STORE",
];

/// Beginnings of the variables that Usher's build, tests and benchmarks read.
const OTHERS: [&str; 17] = [
    "USHER_BENCH_",
    "USHER_CALLS_",
    "USHER_CLANG",
    "USHER_EXAMPLE_",
    "USHER_FUZZ_",
    "USHER_HOSTS_",
    "USHER_HOST_SCHED",
    "USHER_KILL_",
    "USHER_LAB_",
    "USHER_METER_",
    "USHER_OUT",
    "USHER_RULES_",
    "USHER_SANDBOX_TEST",
    "USHER_SHORT_RUNS",
    "USHER_SKIPPED",
    "USHER_SOAK_",
    "USHER_TEST_",
];

/// Returns a warning for each unknown variable.
pub fn warnings(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<String> {
    let names = variables.into_iter().map(|(name, _)| name);
    let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    names.retain(|name| name.starts_with(PREFIX) && !is_known(name));
    names.sort();
    names.iter().map(|name| warning(name)).collect()
}

fn is_known(name: &str) -> bool {
    OWN.contains(&name) || OTHERS.iter().any(|other| name.starts_with(other))
}

fn warning(name: &str) -> String {
    let hint = match usher_model::closest_name(name, OWN) {
        Some(close) => format!("a similar variable exists: {close}"),
        None => "'man usher' lists the variables".to_owned(),
    };
    format!(
        "the environment variable {} is unknown and has no effect; {hint}",
        shown(name)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unknown_variable_gets_a_warning_with_the_closest_name() {
        let warnings = |names: &[&str]| {
            let variable = |name: &&str| (OsString::from(name), OsString::from("x"));
            super::warnings(names.iter().map(variable))
        };
        assert!(warnings(&OWN).is_empty());
        assert!(warnings(&["USHERS", "HOME", "USHER_SKIPPED", "USHER_LAB_CACHE"]).is_empty());
        assert!(
            warnings(&["USHER_BENCH_KILLS", "USHER_EXAMPLE_DATA", "USHER_SOAK_SEED"]).is_empty()
        );
        let unknown = "is unknown and has no effect";
        let unlisted = format!("{unknown}; 'man usher' lists the variables");
        let close = format!("{unknown}; a similar variable exists: USHER_STORE");
        assert_eq!(
            warnings(&["USHER_STOER", "USHER_RUNTIME_DIRECTORY", "USHER_BOGUS"]),
            [
                format!("the environment variable USHER_BOGUS {unlisted}"),
                format!("the environment variable USHER_RUNTIME_DIRECTORY {unlisted}"),
                format!("the environment variable USHER_STOER {close}"),
            ]
        );
    }
}
