// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest that programs of several users, launched and attached, get disjoint seats
//! along cache boundaries and stay in the cgroups of their units, and that a refused attach changes
//! nothing.

use crate::shell::{Shell, root};
use crate::state::{Program, WORK, disjoint, start_service, wait_for};

/// Checks programs that two users launch in their sessions and that a service of root launches.
/// Programs of users stay below their slices; the program of the service stays in the service.
pub fn three_users_get_disjoint_caches() {
    start_service();
    let (mut alice, mut bob) = (Shell::of("alice"), Shell::of("bob"));
    let first = Program::launch(&mut alice, "usher run --name a", 3);
    let second = Program::launch(&mut bob, "usher run --name b", 2);
    let mut system = Shell::of("root");
    system
        .run(&format!(
            "systemd-run --quiet --unit=calc usher run --name c -- {WORK} 2"
        ))
        .ok();
    let third = Program::of_unit(&mut system, "systemctl", "calc", 2);
    disjoint(&[&first, &second, &third]);
    for (program, part) in [
        (&first, "user.slice/user-1000.slice/"),
        (&second, "user.slice/user-1001.slice/"),
        (&third, "system.slice/calc.service"),
    ] {
        let cgroup = program.cgroup();
        assert!(
            cgroup.to_string_lossy().contains(part),
            "{} is not in {part}",
            cgroup.display()
        );
    }
    root("systemctl stop calc").ok();
    third.ends();
    disjoint(&[&first, &second]);
    root("systemctl stop usher").ok();
    first.roams();
    second.roams();
}

/// Checks attached programs of a session, of a user's service and of a system service.
pub fn attached_programs_stay_in_their_units() {
    start_service();
    let mut alice = Shell::of("alice");
    let mut system = Shell::of("root");
    let session = Program::start(&mut alice, 3);
    alice
        .run(&format!("systemd-run --user --quiet --unit=ucalc {WORK} 2"))
        .ok();
    let user = Program::of_unit(&mut alice, "systemctl --user", "ucalc", 2);
    system
        .run(&format!(
            "systemd-run --quiet --unit=calc -p CPUQuota=250% {WORK} 2"
        ))
        .ok();
    let service = Program::of_unit(&mut system, "systemctl", "calc", 2);
    let programs = [&session, &user, &service];
    let before = programs.map(Program::cgroup);
    for round in 0..2 {
        for program in [&session, &user] {
            let answer = alice.run(&format!("usher attach {}", program.pid));
            assert_eq!(answer.status, 0, "round {round}: {}", answer.text);
        }
        system.run(&format!("usher attach {}", service.pid)).ok();
        disjoint(&programs);
        assert_eq!(programs.map(Program::cgroup), before);
        let tasks = system.run("systemctl show -P TasksCurrent calc").ok();
        assert_eq!(tasks, "2\n");
        for program in [&session, &user] {
            alice.run(&format!("usher detach {}", program.pid)).ok();
            program.roams();
        }
        system.run(&format!("usher detach {}", service.pid)).ok();
        service.roams();
        assert_eq!(programs.map(Program::cgroup), before);
    }
    system.run("systemctl stop calc").ok();
    service.ends();
    alice.run("systemctl --user stop ucalc").ok();
    user.ends();
}

/// Checks attaches of another user's process, of init, and of a process that does not exist.
pub fn a_refused_attach_changes_nothing() {
    start_service();
    let (mut alice, mut bob) = (Shell::of("alice"), Shell::of("bob"));
    let program = Program::start(&mut alice, 2);
    let (mask, cgroup) = (program.mask(), program.cgroup());
    for pid in [program.pid, 1, 999_999] {
        bob.run(&format!("usher attach {pid} 2>&1")).refused();
    }
    assert_eq!((program.mask(), program.cgroup()), (mask, cgroup));
    wait_for("the daemon to have no programs", || {
        let programs = crate::state::status()["programs"].as_array()?.len();
        (programs == 0).then_some(())
    });
}
