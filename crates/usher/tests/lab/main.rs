// SPDX-License-Identifier: GPL-2.0-only
//! Tests of Usher on other machines, in guests of the lab. The guests have many CPUs, hardware
//! threads, caches, a real cgroup v2 without a manager, and a kernel with sched_ext.
//!
//! On the host, each test of this program boots a guest and runs the same program in the guest,
//! where its tests are the checks. The program is also the init process of the guest's kernel.
//! `quick::` boots are part of `make test`, all boots are part of `make lab`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod background;
mod boots;
#[path = "../common/mod.rs"]
mod common;
mod crash;
mod hotplug;
mod large;
mod load;
mod machine;
mod meter;
mod placement;
mod quotas;
mod sched;
mod sched_daemon;
mod sched_life;
mod seats;
mod soak;
mod soak_cgroups;
mod softly;
mod stress;
mod weights;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Environment variable that contains, in a guest, the description of its machine.
const MACHINE: &str = "USHER_LAB_MACHINE";

fn main() -> ExitCode {
    usher_lab::become_guest();
    let arguments = Arguments::from_args();
    let trials = match std::env::var(MACHINE) {
        Ok(machine) => checks(&machine),
        Err(_) => boots::all(),
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns the checks of a guest.
fn checks(machine: &str) -> Vec<Trial> {
    let described = machine.to_owned();
    let is_the_one = Trial::test("machine::matches_its_description", move || {
        machine::matches_its_description(&described);
        Ok(())
    });
    let others = CHECKS.iter().map(|&(name, check)| {
        Trial::test(name, move || {
            check();
            Ok(())
        })
    });
    [is_the_one].into_iter().chain(others).collect()
}

type Check = (&'static str, fn());

const CHECKS: &[Check] = &[
    ("large::late_cpus_come_online", large::late_cpus_come_online),
    (
        "large::cpu_numbers_above_63_select_the_large_build",
        large::cpu_numbers_above_63_select_the_large_build,
    ),
    (
        "machine::has_features_that_no_container_has",
        machine::has_features_that_no_container_has,
    ),
    (
        "seats::are_disjoint_and_aligned_to_caches",
        seats::are_disjoint_and_aligned_to_caches,
    ),
    (
        "hotplug::seats_follow_online_cpus",
        hotplug::seats_follow_online_cpus,
    ),
    (
        "hotplug::cpus_that_come_later_are_used",
        hotplug::cpus_that_come_later_are_used,
    ),
    (
        "crash::a_killed_daemon_is_replaced",
        crash::a_killed_daemon_is_replaced,
    ),
    (
        "crash::without_a_keeper_launchers_undo",
        crash::without_a_keeper_launchers_undo,
    ),
    (
        "meter::counts_switches_and_wakeups",
        meter::counts_switches_and_wakeups,
    ),
    (
        "meter::times_a_core_that_is_shared",
        meter::times_a_core_that_is_shared,
    ),
    (
        "meter::counts_migrations_by_distance",
        meter::counts_migrations_by_distance,
    ),
    (
        "sched::runs_many_threads_and_ends",
        sched::runs_many_threads_and_ends,
    ),
    (
        "sched::new_threads_are_divided_among_packages",
        placement::new_threads_are_divided_among_packages,
    ),
    ("sched::leaves_a_shared_core", sched::leaves_a_shared_core),
    (
        "sched::more_address_spaces_than_queues_all_run",
        sched::more_address_spaces_than_queues_all_run,
    ),
    (
        "sched::a_sleeper_beside_many_threads_does_not_starve",
        sched::a_sleeper_beside_many_threads_does_not_starve,
    ),
    (
        "sched::threads_waiting_for_another_cpu_block_no_queue",
        sched::threads_waiting_for_another_cpu_block_no_queue,
    ),
    (
        "sched::the_surplus_thread_rotates_among_llcs",
        sched::the_surplus_thread_rotates_among_llcs,
    ),
    ("sched::follows_the_cpus", sched::follows_the_cpus),
    (
        "sched::ends_with_its_daemon",
        sched_daemon::ends_with_its_daemon,
    ),
    (
        "sched::runs_in_the_daemon_that_listens",
        sched_daemon::runs_in_the_daemon_that_listens,
    ),
    (
        "sched::runs_in_the_foreground_without_a_daemon",
        sched_daemon::runs_in_the_foreground_without_a_daemon,
    ),
    (
        "sched::the_daemon_closes_its_callers_files",
        sched_daemon::the_daemon_closes_its_callers_files,
    ),
    (
        "sched::reports_that_the_kernel_ended_it",
        sched_daemon::reports_that_the_kernel_ended_it,
    ),
    (
        "sched::the_foreground_prints_the_kernels_reason_once",
        sched_daemon::the_foreground_prints_the_kernels_reason_once,
    ),
    (
        "sched::two_starts_at_once_load_one_scheduler",
        sched_daemon::two_starts_at_once_load_one_scheduler,
    ),
    (
        "life::a_realtime_thread_delays_no_other_thread",
        sched_life::a_realtime_thread_delays_no_other_thread,
    ),
    (
        "life::a_stopped_daemon_leaves_the_host_usable",
        sched_life::a_stopped_daemon_leaves_the_host_usable,
    ),
    (
        "life::the_configuration_file_starts_it",
        sched_life::the_configuration_file_starts_it,
    ),
    (
        "sched::first_come_first_served_uses_idle_cpus",
        sched::first_come_first_served_uses_idle_cpus,
    ),
    (
        "sched::keeps_seats_and_lends_them",
        softly::keeps_seats_and_lends_them,
    ),
    (
        "sched::exchanged_seats_starve_no_thread",
        softly::exchanged_seats_starve_no_thread,
    ),
    (
        "sched::many_threads_stay_in_their_seat",
        softly::many_threads_stay_in_their_seat,
    ),
    ("weights::divide_a_cpu", weights::divide_a_cpu),
    ("quotas::limit_a_loop", quotas::limit_a_loop),
    (
        "stress::switches_yields_and_changes_of_policy",
        stress::switches_yields_and_changes_of_policy,
    ),
    ("stress::forks", stress::forks),
    ("stress::affinities", stress::affinities),
    (
        "stress::cpus_that_come_and_go",
        stress::cpus_that_come_and_go,
    ),
    (
        "stress::fifty_starts_and_ends",
        stress::fifty_starts_and_ends,
    ),
    ("soak::random_events", soak::random_events),
    (
        "softly::a_killed_daemon_leaves_no_seats",
        softly::a_killed_daemon_leaves_no_seats,
    ),
    (
        "background::is_frozen_and_continues",
        background::is_frozen_and_continues,
    ),
    (
        "background::is_thawed_when_all_die",
        background::is_thawed_when_all_die,
    ),
];
