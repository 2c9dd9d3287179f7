// SPDX-License-Identifier: GPL-2.0-only
//! Generates and checks the table of `docs/hosts.md`. The table states for each feature whether it
//! works: for root and a user, with the system's and a user's daemon, in a session, a service and
//! containers.
//!
//! 1. For each daemon, user and environment, a helper (`hosts cells`) tries all features there and
//!    prints one result per feature.
//! 2. [`every_cell`] prints the table, with the messages of refused commands below it.
//! 3. The check fails if a feature that must work in an environment (`must_work`) does not.
//!
//! A helper that ends without results counts as a failure of all its features. The commands have no
//! time limit here; the guest has one.

use std::fmt::Write as _;

use crate::cells::{CELL, FEATURES};
use crate::containers::{Delegation, Runtime};
use crate::shell::Shell;
use crate::state::{fresh, start_service};
use crate::users::START;

/// Prefix of each line of the document `docs/hosts.md` in the output of a guest.
pub const LINE: &str = "docs/hosts.md: ";
const CELLS: &str = "/usr/local/lib/usher-lab/hosts cells";

/// The environment in which Usher is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Session,
    Service,
    Container(Runtime),
}

impl Place {
    /// Returns the columns of the table for an account. There is no column of rootless podman for
    /// root.
    fn all(account: &str) -> Vec<Self> {
        let runtimes = Runtime::ALL.into_iter();
        let runtimes = runtimes.filter(|&one| account != "root" || one != Runtime::RootlessPodman);
        let containers = runtimes.map(Self::Container);
        [Self::Session, Self::Service]
            .into_iter()
            .chain(containers)
            .collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Service => "service",
            Self::Container(runtime) => runtime.name(),
        }
    }
}

/// The results for one user in one environment, by feature.
type Column = Vec<String>;

/// Fills and prints the table, and fails if a feature that must work does not.
pub fn every_cell() {
    let mut notes: Vec<String> = Vec::new();
    let mut text = String::from(HEAD);
    let mut broken = Vec::new();
    let _delegation = Delegation::new();
    for daemon in ["system", "user"] {
        fresh();
        if daemon == "system" {
            start_service();
        }
        let mut columns = Vec::new();
        for user in ["root", "alice"] {
            let mut shell = Shell::of(user);
            if daemon == "user" {
                shell.run(START).ok();
            }
            for place in Place::all(user) {
                let column = column(&mut shell, user, place);
                broken.extend(must_work(daemon, user, place, &column));
                columns.push(column);
            }
            if daemon == "user" {
                shell.run("systemctl --user stop usher").ok();
            }
        }
        write_table(&mut text, daemon, &columns, &mut notes);
    }
    text.push_str(
        "\n## Messages of refused commands\n\nA command that Usher refuses with one of these messages \
         changes nothing. ` / ` separates the lines\nof a message.\n\n",
    );
    for (at, note) in notes.iter().enumerate() {
        writeln!(text, "{}. `{note}`", at + 1).unwrap();
    }
    // Ends the line that the test harness has begun.
    println!();
    for line in text.lines() {
        println!("{LINE}{line}");
    }
    assert!(broken.is_empty(), "cells that must work: {broken:#?}");
}

const HEAD: &str = "\
<!-- SPDX-License-Identifier: MIT OR Apache-2.0 -->
# Usher under systemd

This page shows in which environments each command of Usher works. `make lab` tries each command in
a guest and writes this page. The guest is an emulated machine with Debian 13, systemd 257, a kernel
with sched_ext, eight CPUs and four last-level caches. A number in a table refers to a message in
the section [Messages of refused commands](#messages-of-refused-commands): in that environment,
Usher refuses the command with that message.

In the head of each table, *root* and *user* are the caller of the command, and the second word is
the environment in which the command runs:

- *session* is a login session, *service* a transient service of the caller's systemd.
- *podman*, *docker* and *nspawn* are containers that root starts and in which the command runs as
  the caller.
- *rootless podman* is a container that the user starts and in which the command runs as root. The
  container's cpuset needs `Delegate=cpu cpuset io memory pids` in a drop-in of `user@.service`.

All containers have four CPUs and a CPU quota of two CPUs. A command in a container cannot connect
to the daemons of the host, so that `usher run` in a container starts a daemon in the container.
`usher attach` on the host gives a program in a container a seat on CPUs of the container. The
attached program stays in the cgroup of the container; `usher detach` restores its masks and
priorities.

`make lab` also tests seats, cgroup limits and background work under the stock kernels of Debian 12
(6.1) and Debian 13 (6.12), which have no sched_ext. RHEL 9 and its kernel 5.14 are untested.

A user's daemon (`systemctl --user start usher`) ends with the systemd of its user. logind keeps the
user's systemd while a process of one of the user's sessions lives. A program that was started with
`nohup` therefore keeps its seat after the user's logout. When the program ends, the user's daemon
and the user's systemd end, too. For a user with lingering (`loginctl enable-linger`), the user's
daemon and systemd continue to run after the logout, and the user's services keep their seats.

[A session with Usher](guest-session.md) shows commands of Usher with their output.
";

fn column(shell: &mut Shell, user: &str, place: Place) -> Column {
    let id = if user == "root" { 0 } else { 1000 };
    let inside = format!(
        "/usr/bin/env HOME=/tmp /usr/bin/setpriv --reuid {id} --regid {id} --clear-groups {CELLS}"
    );
    let answer = match place {
        Place::Session => shell.run(CELLS),
        Place::Service if user == "root" => shell.run(&format!(
            "systemd-run --quiet --wait --pipe --collect {CELLS}"
        )),
        Place::Service => shell.run(&format!(
            "systemd-run --user --quiet --wait --pipe --collect {CELLS}"
        )),
        Place::Container(Runtime::RootlessPodman) => {
            Runtime::RootlessPodman.run(&format!("/usr/bin/env HOME=/tmp {CELLS}"))
        }
        Place::Container(runtime) => runtime.run(&inside),
    };
    let verdict = |feature: &&str| {
        let begin = format!("{CELL}{feature}: ");
        let line = answer.text.lines().find_map(|line| line.split_once(&begin));
        let verdict = line.map(|(_, verdict)| verdict.trim().to_owned());
        verdict.unwrap_or_else(|| panic!("{user}, {place:?}: {}", answer.text))
    };
    FEATURES.iter().map(verdict).collect()
}

/// Returns the cells of a column that must work and do not.
fn must_work(daemon: &str, user: &str, place: Place, column: &Column) -> Vec<String> {
    let is_due = |feature: &str| match (place, feature) {
        (_, "sched") => user == "root" && daemon == "system" && place == Place::Session,
        (Place::Container(_), _) => matches!(feature, "run" | "bg"),
        _ => true,
    };
    let cells = FEATURES.iter().zip(column);
    let broken = cells.filter(|(feature, verdict)| is_due(feature) && *verdict != "works");
    let name = |(feature, verdict): (&&str, &String)| {
        format!(
            "{feature}, {user}, {daemon} daemon, {}: {verdict}",
            place.name()
        )
    };
    broken.map(name).collect()
}

fn write_table(text: &mut String, daemon: &str, columns: &[Column], notes: &mut Vec<String>) {
    let title = match daemon {
        "system" => "The system's daemon",
        _ => "The caller's daemon",
    };
    write!(text, "\n## {title}\n\n| feature |").unwrap();
    for (account, caller) in [("root", "root"), ("alice", "user")] {
        for place in Place::all(account) {
            write!(text, " {caller}, {} |", place.name()).unwrap();
        }
    }
    writeln!(text, "\n|---|{}", "---|".repeat(columns.len())).unwrap();
    for (at, feature) in FEATURES.iter().enumerate() {
        write!(text, "| `{feature}` |").unwrap();
        for column in columns {
            let cell = cell(&column[at], notes);
            write!(text, " {cell} |").unwrap();
        }
        text.push('\n');
    }
}

/// Formats a cell: `works`, or the number of a note.
fn cell(verdict: &str, notes: &mut Vec<String>) -> String {
    if verdict == "works" {
        return verdict.to_owned();
    }
    let known = notes.iter().position(|note| note == verdict);
    let at = known.unwrap_or_else(|| {
        notes.push(verdict.to_owned());
        notes.len() - 1
    });
    format!("[{}]", at + 1)
}
