// SPDX-License-Identifier: GPL-2.0-only
//! Usher on hosts with systemd: the installed programs, used by root and by two
//! ordinary users in login sessions and services of their own.
//!
//! On the host the tests of this program are boots of guests. In a guest the same
//! program is installed at `/usr/local/lib/usher-lab/hosts`; its tests are checks there.
//! It is also the program that the checks launch: `hosts work THREADS`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod background;
mod boots;
mod crash;
mod limits;
mod seats;
mod service;
mod shell;
mod state;
mod tree;
mod users;
mod work;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Set in guests.
const IN_GUEST: &str = "USHER_HOSTS_GUEST";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some("work") {
        work::run(words.next());
    }
    let arguments = Arguments::from_args();
    let trials = match std::env::var_os(IN_GUEST) {
        Some(_) => checks(),
        None => boots::all(),
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn checks() -> Vec<Trial> {
    let trial = |&(name, check): &(&'static str, fn())| {
        Trial::test(name, move || {
            state::fresh();
            check();
            Ok(())
        })
    };
    CHECKS.iter().map(trial).collect()
}

const CHECKS: &[(&str, fn())] = &[
    (
        "service::starts_answers_and_stops",
        service::starts_answers_and_stops,
    ),
    (
        "service::a_restart_keeps_programs",
        service::a_restart_keeps_programs,
    ),
    (
        "seats::three_users_get_disjoint_caches",
        seats::three_users_get_disjoint_caches,
    ),
    (
        "seats::attached_programs_stay_in_their_units",
        seats::attached_programs_stay_in_their_units,
    ),
    (
        "seats::a_refused_attach_changes_nothing",
        seats::a_refused_attach_changes_nothing,
    ),
    ("limits::programs_keep_quotas", limits::programs_keep_quotas),
    (
        "background::yields_to_all_others",
        background::yields_to_all_others,
    ),
    (
        "crash::a_killed_daemon_seats_again",
        crash::a_killed_daemon_seats_again,
    ),
    (
        "crash::a_killed_unit_undoes_all",
        crash::a_killed_unit_undoes_all,
    ),
    (
        "users::a_daemon_of_a_user_seats",
        users::a_daemon_of_a_user_seats,
    ),
    (
        "users::a_second_daemon_abstains",
        users::a_second_daemon_abstains,
    ),
];
