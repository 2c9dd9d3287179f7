// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest what happens to managed programs and to a user's daemon at the end of a login
//! session, with and without lingering.

use crate::shell::{Shell, root};
use crate::state::{Program, disjoint, start_service, wait_for};

/// Checks that a program that survives its session keeps its seat, and that the daemon can release
/// it.
pub fn programs_that_survive_stay_seated() {
    start_service();
    let mut alice = Shell::of("alice");
    let first = Program::launch(&mut alice, "nohup usher run", 2);
    let second = Program::start(&mut alice, 2);
    alice.run(&format!("usher attach {}", second.pid)).ok();
    let seats = disjoint(&[&first, &second]);
    log_out(alice);
    assert!(first.lives() && second.lives());
    assert_eq!(disjoint(&[&first, &second]), seats);
    root("systemctl stop usher").ok();
    first.roams();
    second.roams();
}

/// Ends a session of alice, and waits until logind has removed the session.
pub fn log_out(alice: Shell) {
    drop(alice);
    wait_for("the session to close", || {
        let sessions = root("loginctl list-sessions --no-legend").ok();
        let open = |line: &str| line.contains("alice") && line.contains(" active ");
        (!sessions.lines().any(open)).then_some(())
    });
}

fn manager_is_active() -> bool {
    root("systemctl is-active user@1000.service").text == "active\n"
}

/// Waits until logind has stopped the service manager of another user, after a later logout. logind
/// stops a manager without sessions and lingering some seconds after the logout.
fn managers_without_programs_end() {
    let mut bob = Shell::of("bob");
    bob.run("true").ok();
    drop(bob);
    wait_for("bob's manager to end", || {
        let state = root("systemctl is-active user@1001.service");
        (state.text == "inactive\n").then_some(())
    });
}

/// Waits for the end of every process of alice, the manager and the daemon included.
fn all_ends() {
    wait_for("every process of the user to end", || {
        root("pgrep -u alice").text.is_empty().then_some(())
    });
    assert!(!manager_is_active());
}

/// Checks that a program that survives its session keeps the user's manager, and with it the
/// daemon. Manager and daemon end after the last program, and release attached programs.
pub fn a_users_daemon_lives_as_long_as_its_programs() {
    let mut alice = Shell::of("alice");
    alice.run(crate::users::START).ok();
    let first = Program::launch(&mut alice, "nohup usher run", 2);
    let second = Program::launch(&mut alice, "nohup usher run", 2);
    let seats = disjoint(&[&first, &second]);
    log_out(alice);
    managers_without_programs_end();
    assert!(manager_is_active());
    assert_eq!(disjoint(&[&first, &second]), seats);
    drop((first, second));
    all_ends();
}

/// Checks that with lingering, a launched service keeps its seat after the logout.
pub fn a_lingering_user_keeps_daemon_and_seats() {
    root("loginctl enable-linger alice").ok();
    let mut alice = Shell::of("alice");
    alice.run(crate::users::START).ok();
    let work = crate::state::WORK;
    for unit in ["ucalc1", "ucalc2"] {
        let run = format!("systemd-run --user --quiet --unit={unit} usher run -- {work} 2");
        alice.run(&run).ok();
    }
    let programs =
        ["ucalc1", "ucalc2"].map(|unit| Program::of_unit(&mut alice, "systemctl --user", unit, 2));
    let seats = disjoint(&[&programs[0], &programs[1]]);
    log_out(alice);
    managers_without_programs_end();
    assert!(manager_is_active());
    assert_eq!(disjoint(&[&programs[0], &programs[1]]), seats);
    root("loginctl disable-linger alice").ok();
    all_ends();
}

/// Checks that the end of a user's manager ends the user's daemon, which releases all programs.
pub fn a_users_daemon_releases_on_exit() {
    let mut alice = Shell::of("alice");
    alice.run(crate::users::START).ok();
    let first = Program::launch(&mut alice, "nohup usher run", 2);
    let second = Program::launch(&mut alice, "nohup usher run", 2);
    disjoint(&[&first, &second]);
    drop(alice);
    root("systemctl stop user@1000.service").ok();
    for program in [&first, &second] {
        wait_for("a program to be released or ended", || {
            let roams = program.mask() == Some(crate::state::everywhere());
            (roams || !program.lives()).then_some(())
        });
    }
}
