// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest without a system daemon that a user's own daemon seats that user's programs,
//! and that the daemon of a second user gives no seats and names the first.

use crate::shell::Shell;
use crate::state::{Program, WORK};

/// Shell command that starts the user's unit with the policy that seats all programs.
pub const START: &str = "mkdir -p ~/.config/systemd/user/usher.service.d && \
    printf '[Service]\\nExecStart=\\nExecStart=/usr/local/bin/usher daemon --policy equal\\n' \
    >~/.config/systemd/user/usher.service.d/policy.conf && systemctl --user daemon-reload && \
    systemctl --user start usher";

/// Checks launched and attached programs, in a session and in a service of the user.
pub fn a_daemon_of_a_user_seats() {
    let mut alice = Shell::of("alice");
    alice.run(START).ok();
    let first = Program::launch(&mut alice, "usher run", 3);
    alice
        .run(&format!(
            "systemd-run --user --quiet --unit=ucalc usher run -- {WORK} 2"
        ))
        .ok();
    let second = Program::of_unit(&mut alice, "systemctl --user", "ucalc", 2);
    let third = Program::start(&mut alice, 2);
    let cgroup = third.cgroup();
    alice.run(&format!("usher attach {}", third.pid)).ok();
    crate::state::disjoint(&[&first, &second, &third]);
    assert_eq!(third.cgroup(), cgroup);
    alice.run("systemctl --user stop usher").ok();
    for program in [&first, &second, &third] {
        program.roams();
    }
}

/// Checks that the daemon of another user names the first daemon, and gives no seats.
pub fn a_second_daemon_abstains() {
    let (mut alice, mut bob) = (Shell::of("alice"), Shell::of("bob"));
    alice.run(START).ok();
    bob.run(START).ok();
    let first = Program::launch(&mut alice, "usher run", 2);
    let other = Program::launch(&mut alice, "usher run", 2);
    let second = Program::launch(&mut bob, "usher run", 2);
    crate::state::disjoint(&[&first, &other]);
    let status = bob.run("usher status").ok();
    assert!(status.contains("the daemon of user 1000"), "{status}");
    assert_eq!(second.mask(), Some(crate::state::everywhere()));
}
