// SPDX-License-Identifier: GPL-2.0-only
//! Installs, uses, upgrades, removes and purges the Debian packages in a guest. After the purge, no
//! file may be left outside home directories, logs, caches, and the state of apt, dpkg and systemd.
//! Also records a session with the installed package for `docs/guest-session.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::session_log::Log;
use crate::shell::{Shell, root};
use crate::state::{Program, disjoint, own_cgroups, status, wait_for};

const DEBS: &str = "/usr/local/lib/usher-lab/debs";
const NEWER_DEBS: &str = "/usr/local/lib/usher-lab/newer-debs";
/// Command of apt. Documents and manual pages are included, which the image leaves out for all
/// packages.
const APT: &str = "DEBIAN_FRONTEND=noninteractive apt-get --yes -qq -o Dpkg::Use-Pty=0 \
    -o Dpkg::Options::='--path-include=/usr/share/doc/*' \
    -o Dpkg::Options::='--path-include=/usr/share/man/*'";
const NAMES: &str = "usher libusher-tasks0 libusher-tasks-dev usher-dev";
/// Directories whose files are not compared: state of apt, dpkg and systemd; logs; home
/// directories.
const OTHERS: &str = "-path /home -o -path /root -o -path /var/log -o -path /var/cache -o \
    -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /etc/ld.so.cache -o \
    -path '/var/tmp/messages-*' -o -path '*/systemd-private-*'";

/// Hides the installed programs and units while it lives, because they take precedence over those
/// of the packages.
struct HiddenInstallation;

impl HiddenInstallation {
    const DIRS: [&str; 2] = ["/usr/local/bin", "/usr/local/lib/systemd"];

    fn new() -> Self {
        for dir in Self::DIRS {
            root(&format!("mount -t tmpfs -o mode=755 tmpfs {dir}")).ok();
        }
        // Removes files that the hidden service has left.
        root("rm -rf /var/lib/usher /run/usher; systemctl daemon-reload").ok();
        Self
    }
}

impl Drop for HiddenInstallation {
    fn drop(&mut self) {
        for dir in Self::DIRS {
            root(&format!("umount {dir}"));
        }
        root("systemctl daemon-reload");
    }
}

/// Returns every file that a package may have left.
fn files() -> BTreeSet<String> {
    let found = root(&format!("find / -xdev \\( {OTHERS} \\) -prune -o -print"));
    found.text.lines().map(str::to_owned).collect()
}

/// Configures the service to seat all programs.
fn seat_all() {
    let dir = "/run/systemd/system/usher.service.d";
    fs::create_dir_all(dir).unwrap();
    let lines = "[Service]\nExecStart=\nExecStart=/usr/bin/usher daemon --policy equal \
                 --runtime-dir /run/usher --store /var/lib/usher/profiles.db\n";
    fs::write(format!("{dir}/policy.conf"), lines).unwrap();
}

/// Checks all four packages: the service is enabled and runs, an upgrade keeps programs, removal
/// releases them, and a purge leaves nothing.
pub fn installs_upgrades_and_purges() {
    let _hidden = HiddenInstallation::new();
    seat_all();
    let before = files();
    root(&format!("{APT} install {DEBS}/*.deb")).ok();
    for verb in ["is-enabled", "is-active"] {
        root(&format!("systemctl {verb} usher")).ok();
    }
    for file in [
        "/usr/share/man/man1/usher-run.1.gz",
        "/usr/share/bash-completion/completions/usher",
        "/usr/share/doc/usher/examples/mixes/main.toml",
        "/usr/lib/systemd/user/usher.service",
        "/usr/include/usher_heartbeat.h",
        "/usr/include/usher_tasks.h",
        "/usr/include/usher_tasks_loops.h",
        "/usr/include/usher_tasks_fork.h",
        "/usr/include/usher_tasks_depend.h",
        "/usr/include/usher_tasks_graph.h",
        "/usr/include/usher_tasks_wait.h",
        "/usr/include/usher_tasks.hpp",
        "/usr/include/usher_tasks_fftw.h",
        "/usr/include/usher_tasks_jxl.h",
        "/usr/include/usher_tasks_openexr.hpp",
    ] {
        assert!(Path::new(file).exists(), "{file}");
    }
    let (mut system, mut alice) = (Shell::of("root"), Shell::of("alice"));
    for shell in [&mut system, &mut alice] {
        shell.run("usher run -- true").ok();
        assert_eq!(shell.run("usher run -- sh -c 'exit 7'").status, 7);
        shell.run("usher status").ok();
    }
    let programs = [2, 3].map(|threads| Program::launch(&mut alice, "usher run", threads));
    disjoint(&[&programs[0], &programs[1]]);
    upgrade();
    wait_for("the new daemon to manage the programs", || {
        let count = status()["programs"].as_array()?.len();
        (count == 2).then_some(())
    });
    disjoint(&[&programs[0], &programs[1]]);
    root(&format!("{APT} remove usher")).ok();
    programs.iter().for_each(Program::roams);
    assert!(programs.iter().all(Program::lives));
    assert!(!Path::new("/usr/bin/usher").exists());
    assert!(Path::new("/var/lib/usher/profiles.db").exists());
    drop(programs);
    root(&format!("{APT} purge {NAMES}")).ok();
    is_clean(&before);
}

fn upgrade() {
    let before = status()["pid"].clone();
    root(&format!("{APT} install {NEWER_DEBS}/*.deb")).ok();
    let versions = root(&format!("dpkg-query -W -f '${{Version}}\\n' {NAMES}")).ok();
    assert!(
        versions.lines().all(|line| line.ends_with("+1")),
        "{versions}"
    );
    root("systemctl is-enabled usher").ok();
    assert_ne!(status()["pid"], before);
}

/// Checks that nothing is left outside home directories.
fn is_clean(before: &BTreeSet<String>) {
    let after = files();
    let left: Vec<_> = after.difference(before).collect();
    let lost: Vec<_> = before.difference(&after).collect();
    assert!(
        left.is_empty() && lost.is_empty(),
        "{left:?}, lost: {lost:?}"
    );
    assert!(!Path::new("/run/usher").exists());
    assert_eq!(root("pgrep -x usher; pgrep -x usher-keeper").text, "");
    wait_for("cgroups to be removed", || {
        own_cgroups().is_empty().then_some(())
    });
}

/// Runs one session of root and alice with the package, and records it for `docs/guest-session.md`.
pub fn session_from_installation_to_purge() {
    let _hidden = HiddenInstallation::new();
    let before = files();
    let mut log = Log::new(HEAD);
    let mut system = Shell::of("root");
    let begun = root("date +%s").ok();
    system.run("export DEBIAN_FRONTEND=noninteractive").ok();
    install(&mut log, &mut system);
    let mut alice = Shell::of("alice");
    alice.run("ln -sf /usr/local/lib/usher-lab/hosts calc").ok();
    let programs = use_it(&mut log, &mut alice);
    kill_daemon(&mut log, &mut system, &mut alice, &programs);
    log.text("The systemd journal shows the messages of all daemons:");
    let journal = "journalctl -u usher -o cat --no-pager --since";
    log.run(&mut system, &format!("{journal} @{}", begun.trim()));
    log.title("Logout");
    log.text("After alice's logout, programs that were started with `nohup` keep their seats:");
    crate::logout::log_out(alice);
    wait_for("the programs to be managed again", || {
        let count = status()["programs"].as_array()?.len();
        let is_settled = !root("usher status").text.contains("arriving");
        (count == 3 && is_settled).then_some(())
    });
    log.run(&mut system, "usher status");
    log.title("Purge");
    log.run(
        &mut system,
        "rm -r /etc/systemd/system/usher.service.d && systemctl daemon-reload",
    );
    log.run(&mut system, "apt-get --yes purge usher");
    log.text("After the purge, the programs of alice run on all CPUs:");
    for program in &programs[..2] {
        program.roams();
        log.run(&mut system, &format!("taskset -cp {}", program.pid));
    }
    drop(programs);
    log.text("After the purge, no file of Usher is left outside home folders:");
    log.run(
        &mut system,
        "find / -xdev -name '*usher*' -not -path '/home/*' -not -path '/usr/local/*'",
    );
    log.run(&mut system, "ls -d /run/usher");
    log.print();
    fs::remove_file("/home/alice/calc").unwrap();
    is_clean(&before);
}

const HEAD: &str = "\
<!-- SPDX-License-Identifier: MIT OR Apache-2.0 -->
# A session with Usher on Debian

This page shows commands of root and of alice, an ordinary user, with their output. `make lab`
executes the commands in a guest (an emulated machine) with Debian 13, systemd 257, eight CPUs and
four last-level caches, and writes this page. The test program `calc work N` computes with N
threads, which pause from time to time.
";

fn install(log: &mut Log, system: &mut Shell) {
    log.title("Installation");
    log.run(system, &format!("apt-get --yes install {DEBS}/usher_*.deb"));
    log.run(system, "systemctl is-enabled usher");
    log.run(system, "systemctl is-active usher");
    log.text("The policy `equal` also gives seats to programs without a stored profile:");
    log.run(system, "mkdir /etc/systemd/system/usher.service.d");
    log.run(
        system,
        "printf '[Service]\\nExecStart=\\nExecStart=/usr/bin/usher daemon --policy equal \
         --runtime-dir /run/usher --store /var/lib/usher/profiles.db\\n' \
         >/etc/systemd/system/usher.service.d/policy.conf",
    );
    log.run(system, "systemctl daemon-reload");
    log.run(system, "systemctl restart usher");
}

/// Launches, attaches and detaches programs. Returns the two launched programs, and background
/// work.
fn use_it(log: &mut Log, alice: &mut Shell) -> [Program; 3] {
    log.title("Programs of alice");
    log.run(alice, "usher run -- sh -c 'exit 7'; echo $?");
    let launch = |log: &mut Log, alice: &mut Shell, line: &str, threads: usize| {
        let launcher = log.start(alice, line);
        Program::of_launcher(launcher, line, threads)
    };
    let first = "nohup usher run --name solver -- ./calc work 3";
    let first = launch(log, alice, first, 3);
    let second = "nohup usher run --name encoder -- ./calc work 2";
    let second = launch(log, alice, second, 2);
    disjoint(&[&first, &second]);
    log.run(alice, "usher status");
    log.run(alice, "usher explain solver");
    log.run(alice, &format!("taskset -cp {}", first.pid));
    log.run(alice, &format!("cat /proc/{}/cgroup", first.pid));
    log.text("Background work runs only while other programs leave CPUs idle:");
    let third = "nohup usher bg --name backup -- ./calc work 1";
    let third = launch(log, alice, third, 1);
    wait_for("background work to yield", || {
        let idle = third.limit("cpu.idle", |text| text == "1").is_some();
        (idle || third.priority().0 == 19).then_some(())
    });
    log.run(alice, "usher explain backup");
    log.text("An attached program stays in its cgroup:");
    let pid = log.start(alice, "./calc work 2");
    let attached = Program { pid };
    attached.has_threads(2);
    log.run(alice, &format!("usher attach {pid}"));
    attached.seat();
    log.run(alice, "usher status");
    log.run(alice, &format!("cat /proc/{pid}/cgroup"));
    log.run(alice, &format!("usher detach {pid}"));
    attached.roams();
    log.run(alice, &format!("taskset -cp {pid}"));
    let end = format!("kill -9 {pid}; wait {pid} 2>/dev/null; true");
    alice.run(&end).ok();
    log.text("`usher attach` refuses a process of another user:");
    log.run(alice, "usher attach 1");
    [first, second, third]
}

/// Kills the daemon, then the whole unit.
fn kill_daemon(log: &mut Log, system: &mut Shell, alice: &mut Shell, programs: &[Program; 3]) {
    log.title("Kills and restarts");
    let managed = |before: &serde_json::Value| {
        wait_for("the programs to be managed again", || {
            let state = status();
            let count = state["programs"].as_array()?.len();
            let is_settled = !root("usher status").text.contains("arriving");
            (state["pid"] != *before && count == 3 && is_settled).then_some(())
        });
        disjoint(&[&programs[0], &programs[1]]);
    };
    let before = status()["pid"].clone();
    log.text("After the daemon was killed, systemd starts the next daemon, with another keeper:");
    log.run(system, "kill -9 $(systemctl show -P MainPID usher)");
    managed(&before);
    log.run(alice, "usher status");
    let before = status()["pid"].clone();
    log.text("systemd restarts a daemon that is killed together with its keeper:");
    log.run(system, "systemctl kill -s KILL usher");
    managed(&before);
    log.run(alice, "usher status");
    let before = status()["pid"].clone();
    log.run(system, "systemctl restart usher");
    managed(&before);
}

/// Prefix of each line of the document `docs/guest-session.md` in the output of a guest.
pub use crate::session_log::LINE;
