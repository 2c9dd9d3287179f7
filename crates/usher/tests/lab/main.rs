// SPDX-License-Identifier: GPL-2.0-only
//! Usher on machines that this one is not: in guests of the lab, which have
//! many CPUs, hardware threads, caches, a real cgroup v2 without an owner, and
//! a kernel with sched_ext.
//!
//! This program is its own guest. On the host its tests are boots; each boots a
//! machine and runs this same program there, where its tests are checks. The
//! guest's kernel starts it, too. `quick::` boots are part of `make test`, all
//! of them of `make lab`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod background;
mod boots;
#[path = "../common/mod.rs"]
mod common;
mod crash;
mod hotplug;
mod load;
mod machine;
mod meter;
mod sched;
mod seats;
mod softly;
mod stress;
mod weights;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Tells the program in a guest which machine that was to be.
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

/// What is checked in a guest.
fn checks(machine: &str) -> Vec<Trial> {
    let described = machine.to_owned();
    let is_the_one = Trial::test("machine::is_the_one_described", move || {
        machine::is_the_one_described(&described);
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
    (
        "machine::has_what_usher_can_use",
        machine::has_what_usher_can_use,
    ),
    (
        "seats::lie_along_caches_and_apart",
        seats::lie_along_caches_and_apart,
    ),
    (
        "hotplug::seats_follow_the_cpus_there_are",
        hotplug::seats_follow_the_cpus_there_are,
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
        "meter::tells_migrations_by_distance",
        meter::tells_migrations_by_distance,
    ),
    (
        "sched::runs_a_crowd_and_lets_go",
        sched::runs_a_crowd_and_lets_go,
    ),
    ("sched::leaves_a_shared_core", sched::leaves_a_shared_core),
    (
        "sched::more_address_spaces_than_queues_all_run",
        sched::more_address_spaces_than_queues_all_run,
    ),
    (
        "sched::who_sleeps_beside_a_crowd_is_not_forgotten",
        sched::who_sleeps_beside_a_crowd_is_not_forgotten,
    ),
    (
        "sched::nobody_gives_way_to_a_crowd_that_waits_for_another_cpu",
        sched::nobody_gives_way_to_a_crowd_that_waits_for_another_cpu,
    ),
    (
        "sched::whoever_is_left_over_goes_round",
        sched::whoever_is_left_over_goes_round,
    ),
    (
        "o1::serves_in_the_order_of_linux_26",
        sched::serves_in_the_order_of_linux_26,
    ),
    ("sched::follows_the_cpus", sched::follows_the_cpus),
    ("sched::ends_with_its_holder", sched::ends_with_its_holder),
    (
        "sched::its_holder_leaves_its_caller",
        sched::its_holder_leaves_its_caller,
    ),
    (
        "sched::tells_that_the_kernel_ended_it",
        sched::tells_that_the_kernel_ended_it,
    ),
    (
        "sched::first_come_first_served_knows_idle_cpus",
        sched::first_come_first_served_knows_idle_cpus,
    ),
    (
        "sched::the_least_there_can_be_runs_a_crowd",
        sched::the_least_there_can_be_runs_a_crowd,
    ),
    (
        "sched::keeps_seats_and_lends_them",
        softly::keeps_seats_and_lends_them,
    ),
    (
        "sched::exchanged_seats_leave_nobody_behind",
        softly::exchanged_seats_leave_nobody_behind,
    ),
    (
        "sched::a_crowd_is_kept_to_its_seat",
        softly::a_crowd_is_kept_to_its_seat,
    ),
    ("weights::divide_a_cpu", weights::divide_a_cpu),
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
    (
        "softly::a_killed_daemon_leaves_no_seats",
        softly::a_killed_daemon_leaves_no_seats,
    ),
    (
        "background::is_frozen_and_goes_on",
        background::is_frozen_and_goes_on,
    ),
    (
        "background::is_thawed_when_all_die",
        background::is_thawed_when_all_die,
    ),
];
