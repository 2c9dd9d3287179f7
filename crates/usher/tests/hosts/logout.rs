// SPDX-License-Identifier: GPL-2.0-only
//! The end of a login session.

use crate::shell::{Shell, root};
use crate::state::{Program, disjoint, start_service, wait_for};

/// A program that survives its session keeps its seat, and the daemon releases it.
pub fn programs_that_survive_stay_seated() {
    start_service();
    let mut alice = Shell::of("alice");
    let first = Program::launch(&mut alice, "nohup usher run", 2);
    let second = Program::start(&mut alice, 2);
    alice.run(&format!("usher attach {}", second.pid)).ok();
    let seats = disjoint(&[&first, &second]);
    drop(alice);
    wait_for("the session to close", || {
        let sessions = root("loginctl list-sessions --no-legend").ok();
        let open = |line: &str| line.contains("alice") && line.contains(" active ");
        (!sessions.lines().any(open)).then_some(())
    });
    assert!(first.lives() && second.lives());
    assert_eq!(disjoint(&[&first, &second]), seats);
    root("systemctl stop usher").ok();
    first.roams();
    second.roams();
}

/// The end of a user's manager ends the user's daemon, which releases all programs.
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
