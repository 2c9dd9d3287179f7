// SPDX-License-Identifier: GPL-2.0-only
//! Tests of Usher on hosts with systemd: the installed programs, used by root and by two ordinary
//! users in login sessions and services of their own.
//!
//! On the host, each test of this program boots a guest. In a guest, the same program is installed
//! at `/usr/local/lib/usher-lab/hosts`, and its tests are the checks that run in the guest. The
//! checks launch the same program, too, as `hosts work THREADS`, `hosts spin THREADS` and `hosts cells`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod background;
mod boots;
mod cells;
mod cgroups;
mod containers;
mod crash;
mod kills;
mod limits;
mod logout;
mod package;
mod reboot;
mod sched;
mod seats;
mod service;
mod session_log;
mod shell;
mod state;
mod table;
mod tree;
mod users;
mod work;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Environment variable that is set in guests.
const IN_GUEST: &str = "USHER_HOSTS_GUEST";
/// Environment variable that is set in guests that are rebooted after the checks.
const REBOOTS: &str = "USHER_HOSTS_REBOOTS";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some("work") => work::run(words.next()),
        Some("spin") => work::spin(words.next()),
        Some("cells") => return cells::print(),
        _ => {}
    }
    let arguments = Arguments::from_args();
    if std::env::var_os(IN_GUEST).is_none() {
        return libtest_mimic::run(&arguments, boots::all()).exit_code();
    }
    if reboot::is_done() {
        return libtest_mimic::run(&arguments, vec![trial(&AFTER_REBOOT)]).exit_code();
    }
    let (last, checks): (Vec<_>, Vec<_>) = checks()
        .into_iter()
        .partition(|check| check.name() == AFTER_REBOOT.0);
    let conclusion = libtest_mimic::run(&arguments, checks);
    if !conclusion.has_failed() && !last.is_empty() && std::env::var_os(REBOOTS).is_some() {
        reboot::reboot();
    }
    conclusion.exit_code()
}

fn checks() -> Vec<Trial> {
    CHECKS.iter().chain([&AFTER_REBOOT]).map(trial).collect()
}

fn trial(&(name, check): &Check) -> Trial {
    Trial::test(name, move || {
        if !reboot::is_done() {
            state::fresh();
        }
        check();
        Ok(())
    })
}

type Check = (&'static str, fn());

/// The check that runs last, after a reboot.
const AFTER_REBOOT: Check = (
    "reboot::the_enabled_service_runs_again",
    reboot::the_enabled_service_runs_again,
);

const CHECKS: &[Check] = &[
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
        "crash::the_unit_undoes_all_by_itself",
        crash::the_unit_undoes_all_by_itself,
    ),
    (
        "crash::a_killed_unit_that_is_stopped_undoes_all",
        crash::a_killed_unit_that_is_stopped_undoes_all,
    ),
    (
        "users::a_daemon_of_a_user_seats",
        users::a_daemon_of_a_user_seats,
    ),
    (
        "users::a_second_daemon_abstains",
        users::a_second_daemon_abstains,
    ),
    ("sched::the_service_holds_it", sched::the_service_holds_it),
    (
        "sched::a_start_starts_the_service",
        sched::a_start_starts_the_service,
    ),
    (
        "sched::a_killed_service_unloads_it",
        sched::a_killed_service_unloads_it,
    ),
    (
        "sched::the_foreground_needs_no_service",
        sched::the_foreground_needs_no_service,
    ),
    (
        "logout::programs_that_survive_stay_seated",
        logout::programs_that_survive_stay_seated,
    ),
    (
        "logout::a_users_daemon_releases_on_exit",
        logout::a_users_daemon_releases_on_exit,
    ),
    (
        "logout::a_users_daemon_lives_as_long_as_its_programs",
        logout::a_users_daemon_lives_as_long_as_its_programs,
    ),
    (
        "logout::a_lingering_user_keeps_daemon_and_seats",
        logout::a_lingering_user_keeps_daemon_and_seats,
    ),
    (
        "containers::run_and_bg_work_inside",
        containers::run_and_bg_work_inside,
    ),
    (
        "containers::sched_is_refused_in_one_line",
        containers::sched_is_refused_in_one_line,
    ),
    (
        "containers::attach_from_outside_keeps_the_cgroup",
        containers::attach_from_outside_keeps_the_cgroup,
    ),
    (
        "package::installs_upgrades_and_purges",
        package::installs_upgrades_and_purges,
    ),
    (
        "package::session_from_installation_to_purge",
        package::session_from_installation_to_purge,
    ),
    (
        "cgroups::limits_and_weights_hold_under_both_schedulers",
        cgroups::limits_and_weights_hold_under_both_schedulers,
    ),
    ("kills::rounds_undo_all", kills::rounds_undo_all),
    ("table::every_cell", table::every_cell),
];
