// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `mix`: measures paper 4's figures (address-space switches, run lengths, wake-up delays)
//! with ordinary programs: PostgreSQL, a parallel make and three virtual machines of Java run at
//! the same time, beside a thread that mostly sleeps.
//!
//! The part has no bars, because the results depend on the program versions that are installed on
//! the host, and because Java compiles code while it runs. If a program is not installed on the
//! host, the part is not measured. The compiler `javac` has no time limit.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::lab::GuestResults;
use super::messages::GuestLoad;
use super::sample_names::MIX as NAME;
use super::spaces;
use crate::bars::Part;

const TITLE: &str = "PostgreSQL, make and Java virtual machines beside a thread that mostly sleeps";

/// The programs, in the order in which they start.
const PROGRAMS: [&str; 5] = ["postgres", "make", "jvm", "jvm", "jvm"];
const PROGRAM: &str = include_str!("program.sh");
const SLEEPERS_JAVA: &str = include_str!("Crowd.java");

/// Commands that must be on the path, with their Debian packages. scripts/packages/bench.txt lists
/// the same packages.
const NEEDED: [(&str, &str); 4] = [
    ("make", "make"),
    ("cc", "gcc"),
    ("java", "default-jdk-headless"),
    ("javac", "default-jdk-headless"),
];
/// Debian's folder with a subfolder for each installed version of the PostgreSQL server, which is
/// not on the path. The wrapper command on the path may exist without a server.
const SERVERS: &str = "/usr/lib/postgresql";

/// Prepares the programs in the folder of results, and returns the load.
///
/// # Errors
/// A program is not installed.
pub fn load(folder: &Path) -> Result<GuestLoad> {
    let missing = NEEDED.iter().find(|(program, _)| !is_installed(program));
    if let Some((program, package)) = missing {
        bail!("the program '{program}' is missing: install the package {package}");
    }
    if !has_server(Path::new(SERVERS)) {
        bail!("{SERVERS} contains no PostgreSQL server: install the package postgresql");
    }
    let folder = folder.join(NAME);
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    for (name, text) in [("program.sh", PROGRAM), ("Crowd.java", SLEEPERS_JAVA)] {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    let compiled = Command::new("javac")
        .arg("Crowd.java")
        .current_dir(&folder)
        .stdin(Stdio::null())
        .output()
        .context("running javac")?;
    ensure!(
        compiled.status.success(),
        "javac fails to compile Crowd.java: {}",
        String::from_utf8_lossy(&compiled.stderr).trim()
    );
    let folder = fs::canonicalize(&folder).context("finding the directory of the results")?;
    let folder = folder.display().to_string();
    let command = |kind: &str| {
        let script = format!("{folder}/program.sh");
        ["sh", &script, kind, &folder].map(str::to_owned).to_vec()
    };
    Ok(GuestLoad::Mix {
        commands: PROGRAMS.map(command).to_vec(),
    })
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn has_server(servers: &Path) -> bool {
    let versions = fs::read_dir(servers).into_iter().flatten().flatten();
    let mut programs = versions.map(|version| version.path().join("bin/initdb"));
    programs.any(|program| program.is_file())
}

/// Computes the part from the samples of the guest. The part has no bars; the parts `spaces` and
/// `erlang` have bars for the same figures.
pub fn part(measured: &GuestResults, note: String) -> Result<Part> {
    let mut part = spaces::shown(NAME, TITLE, measured)?;
    part.notes = vec![
        note,
        "The load runs on two CPUs: a PostgreSQL server with four reading clients, a make of six \
         files with three compilers at a time, and three Java virtual machines with two threads \
         each; their start-up is not counted. Beside the load runs the sleeper of the part \
         'spaces', a thread that mostly sleeps."
            .to_owned(),
        "Java compiles while it runs, so the same programs are faster for a scheduler that is \
         measured later, and end times and counts are comparable only roughly. CPUs are idle at \
         times, so the figure of a run is an upper bound."
            .to_owned(),
    ];
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;
    use crate::sched::schedulers::ComparedScheduler;

    #[test]
    fn schedulers_are_shown_beside_one_another() {
        let one = |scheduler, spaces| sample(scheduler, NAME, 5, [2 * spaces, spaces]);
        let measured = GuestResults {
            samples: vec![
                one(ComparedScheduler::Eevdf, 100),
                one(ComparedScheduler::Usher, 50),
            ],
            left_out: vec![],
        };
        let part = part(&measured, String::new()).unwrap();
        assert_eq!(part.tables[0].rows[1][..3], ["usher", "100", "50"]);
        assert!(part.bars.is_empty() && part.name == NAME);
    }

    #[test]
    fn missing_programs_are_named() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program"));
        let servers = tempfile::tempdir().unwrap();
        let bin = servers.path().join("15/bin");
        fs::create_dir_all(&bin).unwrap();
        assert!(!has_server(servers.path()));
        fs::write(bin.join("initdb"), "").unwrap();
        assert!(has_server(servers.path()));
    }
}
