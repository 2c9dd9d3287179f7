// SPDX-License-Identifier: GPL-2.0-only
//! The guests, and the checks that run in each.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use usher_lab::kernels::Wanted;
use usher_lab::systemd::{Guest, GuestKernel, Suite};
use usher_lab::{End, Shape};

use crate::tree::Tree;
use crate::{CHECKS, IN_GUEST, REBOOTS};

/// For all checks of a guest on a busy host.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// Eight CPUs with four last-level caches.
const MACHINE: &str = "package:2 die:2 core:2 pu:1";

struct Boot {
    name: &'static str,
    suite: Suite,
    kernel: GuestKernel,
    /// Beginnings of the names of checks.
    checks: &'static [&'static str],
}

/// The guests of `make test`, and those of `make lab`. Where none can run, each test
/// prints why and passes nothing else on.
pub fn all() -> Vec<Trial> {
    let boots = [
        Boot {
            name: "quick::trixie",
            suite: Suite::Trixie,
            kernel: GuestKernel::SchedExt(Wanted::Newest),
            checks: &[
                "service::",
                "seats::",
                "limits::",
                "background::",
                "crash::",
                "users::",
            ],
        },
        Boot {
            name: "long::trixie",
            suite: Suite::Trixie,
            kernel: GuestKernel::SchedExt(Wanted::Newest),
            checks: &[""],
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
    // Trials are made for `--list` too; only a run that selects this one reports it.
    Trial::test(boot.name, move || {
        usher_skip::skip!("{}: {reason}", boot.name);
        Ok(())
    })
}

fn run(boot: &Boot) -> Result<(), Failed> {
    let tree = Tree::install()?;
    let only = std::env::var("USHER_HOSTS_ONLY");
    let chosen: Vec<&str> = match &only {
        Ok(only) => only.split(',').collect(),
        Err(_) => boot.checks.to_vec(),
    };
    let no_packages = crate::tree::no_packages();
    if let Some(reason) = &no_packages {
        usher_skip::skip!("checks of packages: {reason}");
    }
    let is_chosen = |name: &str| {
        let is_possible = no_packages.is_none() || !needs_packages(name);
        is_possible && chosen.iter().any(|part| name.starts_with(part))
    };
    if CHECKS
        .iter()
        .any(|(name, _)| needs_packages(name) && is_chosen(name))
    {
        tree.add_packages()?;
    }
    let mut job = vec!["/usr/bin/env".to_owned(), format!("{IN_GUEST}=1")];
    if is_chosen(crate::AFTER_REBOOT.0) {
        job.push(format!("{REBOOTS}=1"));
    }
    job.push("/usr/local/lib/usher-lab/hosts".to_owned());
    job.push("--test-threads=1".to_owned());
    let names = crate::checks();
    let names = names.iter().map(|check| check.name().to_owned());
    let skipped = names.filter(|name| !is_chosen(name));
    job.extend(skipped.flat_map(|name| ["--skip".to_owned(), name]));
    let guest = Guest {
        suite: boot.suite,
        kernel: boot.kernel.clone(),
        shape: Shape::parse(MACHINE)?,
        tree: tree.prefix(),
        job,
        timeout: TIMEOUT,
        cache: std::env::var_os("USHER_LAB_CACHE").map(Into::into),
    };
    println!("== {} on {MACHINE}", boot.name);
    let mut output = Output::default();
    let outcome = guest.run(&mut output)?;
    println!(
        "== up in {} ms, checked in {} ms",
        outcome.boot_ms, outcome.ran_ms
    );
    let compared = output.compare();
    match outcome.end {
        End::Exited { status: 0 } => compared,
        end => Err(Failed::from(format!(
            "{end:?} on {}\n{}",
            outcome.kernel, outcome.console
        ))),
    }
}

/// Whether a check installs the Debian packages.
fn needs_packages(name: &str) -> bool {
    name.starts_with("package::")
}

/// Prints the output of a guest and collects `docs/hosts.md` and `docs/guest-session.md`.
#[derive(Default)]
struct Output {
    table: String,
    session: String,
}

impl Write for Output {
    /// The lab writes whole lines.
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

impl Output {
    /// Writes the documents. Fails where the table has changed: each session has other
    /// numbers.
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
