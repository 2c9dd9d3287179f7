// SPDX-License-Identifier: GPL-2.0-only
//! The list of guests with a whole system (systemd, users, packages), and the checks that run in
//! each.
//!
//! Each guest is one test (`Trial`) on the host. It starts a virtual machine from the lab's image,
//! runs this test program in it with the names of the checks, and compares the document
//! `docs/hosts.md` with the guest's output. `make test` runs the short guests, `make lab` all.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use usher_lab::kernels::KernelChoice;
use usher_lab::systemd::{Guest, GuestKernel, Suite};
use usher_lab::{Clock, GuestEnd, IdleTime, Shape};

use crate::tree::Tree;
use crate::{IN_GUEST, REBOOTS};

/// Time limit for all checks of a guest on a busy host.
const TIMEOUT: Duration = Duration::from_secs(5400);
/// Debian packages that checks of containers need. Guests with these packages have a disk of their
/// own, which only `make lab` builds, because docker doubles the size of a disk.
const CONTAINER_PACKAGES: [&str; 3] = ["docker.io", "docker-cli", "uidmap"];
/// Machine of the guests: eight CPUs with four last-level caches.
const MACHINE: &str = "package:2 die:2 core:2 pu:1";

/// The checks of limits and weights, their machine, and the guest time per instruction: they
/// measure CPU time, which only a guest in virtual time divides exactly.
const SHARES: &[&str] = &["cgroups::"];
const SHARES_MACHINE: &str = "package:1 die:2 core:2 pu:1";
const SHARES_INSTRUCTION_NS: u32 = 8;

/// Prefixes of all checks except those that measure.
const ALL_CHECKS: &[&str] = &[
    "service::",
    "seats::",
    "limits::",
    "background::",
    "crash::",
    "users::",
    "sched::",
    "logout::",
    "containers::",
    "package::",
    "table::",
    "reboot::",
];

struct Boot {
    name: &'static str,
    suite: Suite,
    kernel: GuestKernel,
    /// Prefixes of the names of the checks that run.
    checks: &'static [&'static str],
}

/// Returns the guests of `make test` and of `make lab`. If no guest can run, each test prints the
/// reason.
pub fn all() -> Vec<Trial> {
    let boots = [
        Boot {
            name: "quick::trixie",
            suite: Suite::Trixie,
            kernel: GuestKernel::SchedExt(KernelChoice::Newest),
            checks: &[
                "service::",
                "seats::",
                "limits::",
                "background::",
                "crash::",
                "users::",
                "sched::the_service_holds_it",
            ],
        },
        Boot {
            name: "long::trixie",
            suite: Suite::Trixie,
            kernel: GuestKernel::SchedExt(KernelChoice::Newest),
            checks: ALL_CHECKS,
        },
        // The checks of this guest measure times; no other checks run in this guest.
        Boot {
            name: "long::kills",
            suite: Suite::Trixie,
            kernel: GuestKernel::SchedExt(KernelChoice::Newest),
            checks: &["kills::"],
        },
        Boot {
            name: "long::cgroups",
            suite: Suite::Trixie,
            kernel: GuestKernel::SchedExt(KernelChoice::Newest),
            checks: SHARES,
        },
        Boot {
            name: "long::trixie_stock",
            suite: Suite::Trixie,
            kernel: GuestKernel::Stock,
            checks: &["service::", "seats::", "limits::", "background::"],
        },
        Boot {
            name: "long::bookworm_stock",
            suite: Suite::Bookworm,
            kernel: GuestKernel::Stock,
            checks: &[
                "service::",
                "seats::",
                "limits::",
                "background::",
                "package::installs",
            ],
        },
    ];
    boots.into_iter().map(trial).collect()
}

fn trial(boot: Boot) -> Trial {
    let missing = usher_lab::systemd::missing();
    let Some(reason) = missing else {
        return Trial::test(boot.name, move || run(&boot));
    };
    // The skip is reported inside the test, because trials are made for `--list` too.
    Trial::test(boot.name, move || {
        usher_skip::skip!("{}: {reason}", boot.name);
        Ok(())
    })
}

fn run(boot: &Boot) -> Result<(), Failed> {
    let tree = Tree::install()?;
    let chosen = chosen(boot);
    if chosen.iter().any(|name| needs_packages(name)) {
        tree.add_packages()?;
    }
    let has_containers = chosen.iter().any(|name| needs_containers(name));
    let packages: &[&str] = match has_containers {
        true => &CONTAINER_PACKAGES,
        false => &[],
    };
    let (machine, clock) = match boot.checks {
        SHARES => {
            let (ns, idle) = (SHARES_INSTRUCTION_NS, IdleTime::Waits);
            (SHARES_MACHINE, Clock::Instructions { ns, idle })
        }
        _ => (MACHINE, Clock::Host),
    };
    let guest = Guest {
        suite: boot.suite,
        packages: packages.iter().map(|&name| name.to_owned()).collect(),
        kernel: boot.kernel.clone(),
        shape: Shape::parse(machine)?,
        clock,
        tree: tree.prefix(),
        job: job(&chosen),
        timeout: TIMEOUT,
        cache: std::env::var_os("USHER_LAB_CACHE").map(Into::into),
    };
    println!("== {} on {machine}", boot.name);
    let mut output = GuestOutput::default();
    let outcome = guest.run(&mut output)?;
    println!(
        "== up in {} ms, checked in {} ms",
        outcome.boot_ms, outcome.ran_ms
    );
    let compared = output.compare();
    match outcome.end {
        GuestEnd::Exited { status: 0 } => compared,
        end => Err(Failed::from(format!(
            "{end:?} on {}\n{}",
            outcome.kernel, outcome.console
        ))),
    }
}

/// Returns the names of the checks of a boot: those chosen by the environment variable, else the
/// boot's own.
fn chosen(boot: &Boot) -> Vec<String> {
    let only = std::env::var("USHER_HOSTS_ONLY");
    let parts: Vec<&str> = match &only {
        Ok(only) => only.split(',').collect(),
        Err(_) => boot.checks.to_vec(),
    };
    let no_packages = crate::tree::no_packages();
    if let Some(reason) = &no_packages {
        usher_skip::skip!("checks of packages: {reason}");
    }
    let checks = crate::checks();
    let names = checks.iter().map(|check| check.name().to_owned());
    let is_chosen = |name: &String| {
        let is_possible = no_packages.is_none() || !needs_packages(name);
        is_possible && parts.iter().any(|part| name.starts_with(part))
    };
    names.filter(is_chosen).collect()
}

/// Returns the command that runs these checks in the guest.
fn job(chosen: &[String]) -> Vec<String> {
    let mut job = vec!["/usr/bin/env".to_owned(), format!("{IN_GUEST}=1")];
    if chosen.iter().any(|name| name == crate::AFTER_REBOOT.0) {
        job.push(format!("{REBOOTS}=1"));
    }
    job.push("/usr/local/lib/usher-lab/hosts".to_owned());
    job.push("--test-threads=1".to_owned());
    let names = crate::checks();
    let names = names.iter().map(|check| check.name().to_owned());
    let skipped = names.filter(|name| !chosen.contains(name));
    job.extend(skipped.flat_map(|name| ["--skip".to_owned(), name]));
    job
}

/// Returns whether a check installs the Debian packages.
fn needs_packages(name: &str) -> bool {
    name.starts_with("package::")
}

/// Returns whether a check runs docker or rootless podman.
fn needs_containers(name: &str) -> bool {
    name.starts_with("containers::") || name.starts_with("table::")
}

/// Prints the output of a guest and collects `docs/hosts.md` and `docs/guest-session.md`.
#[derive(Default)]
struct GuestOutput {
    table: String,
    session: String,
}

impl Write for GuestOutput {
    /// Writes one line: the lab passes whole lines.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let table = text.strip_prefix(crate::table::LINE);
        let session = text.strip_prefix(crate::package::LINE);
        match (table, session) {
            (Some(row), _) => self.table.push_str(row),
            (_, Some(line)) => self.session.push_str(line),
            _ => print!("{text}"),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stdout().flush()
    }
}

impl GuestOutput {
    /// Writes the documents. Fails if the table has changed. A changed session is no failure,
    /// because its figures differ each time.
    fn compare(&self) -> Result<(), Failed> {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        if !self.session.is_empty() {
            std::fs::write(docs.join("guest-session.md"), &self.session)?;
        }
        let path = docs.join("hosts.md");
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        if self.table.is_empty() || self.table == known {
            return Ok(());
        }
        std::fs::write(&path, &self.table)?;
        Err(Failed::from(
            "docs/hosts.md has changed: review the difference and commit it",
        ))
    }
}
