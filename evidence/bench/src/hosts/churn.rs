// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `churn`: Usher gives seats to chains of short-lived threads and processes (`chains`),
//! changes the seats and releases the programs, by affinity masks. One second after each release,
//! no thread may have the mask of a seat. The CPU time that Usher uses in the second after a
//! release is limited by a bar: 2 % of a CPU.
//!
//! Kinds of chains: threads or processes, programs that were launched or attached, and lifetimes of
//! 0.1, 0.5, 2 and 10 ms. Each kind is measured in a process of its own (`cycle`). The deadline is
//! 60 s, plus 8 s for each release of one program. If a kind exceeds it, that process is killed,
//! its programs end, and the kind's row shows a failure.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::chains::Link;
use super::cycle::KIND;
use crate::bars::{Bar, Part, Table};
use crate::processes::end_within;

/// Lifetimes of the links of a chain, in microseconds.
const LIFETIMES_US: [u64; 4] = [100, 500, 2_000, 10_000];
/// Kinds of chains. Processes are measured twice: launched, with a cgroup that lists them, and
/// attached, without such a cgroup. Threads need no second kind, because their process always lists
/// them.
const KINDS: [(Link, Admission); 3] = [
    (Link::Thread, Admission::Attached),
    (Link::Process, Admission::Launched),
    (Link::Process, Admission::Attached),
];
/// Time that each release adds to the deadline of a kind: two changes of seats, the release and the
/// second after the release, on a loaded machine.
const RELEASE_MAX: Duration = Duration::from_secs(8);
/// Time that the start and the end of a kind add to its deadline.
const OVERHEAD_MAX: Duration = Duration::from_secs(60);

/// Options of the part.
#[derive(Debug, Clone, clap::Args)]
pub struct ChurnArgs {
    /// Release programs of each kind of chain this many times; 1,000 by default, or 40 with --quick
    #[arg(long)]
    pub releases: Option<usize>,
    /// Run this many programs of ten chains at a time; they are released in turn
    #[arg(long, default_value_t = 4)]
    pub at_once: usize,
    /// Run the chains with this `usher-bench`; needed if this program is built with a sanitizer
    #[arg(long, value_name = "FILE")]
    pub chains_by: Option<std::path::PathBuf>,
}

/// The way in which a program's management begins (admission).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// The program already runs when it is admitted. It has no cgroup of its own.
    Attached,
    /// The program is admitted before it runs. It has a cgroup of its own if a cgroup can be
    /// created.
    Launched,
}

/// The result of one kind of chain.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChurnResult {
    /// Kind of the links.
    pub link: Link,
    /// The way in which the programs were admitted.
    pub home: Admission,
    /// Lifetime of a link in microseconds.
    pub lifetime_us: u64,
    /// Number of completed releases.
    pub releases: usize,
    /// Number of releases after which, one second later, a thread still had the mask of a seat.
    pub narrowed: usize,
    /// Number of releases after which a chain made no progress.
    pub stalled: usize,
    /// Share in per cent of the chains in which the last link before a release had started with the
    /// mask of the seat.
    pub seated_percent: f64,
    /// Number of links that all chains of one program start per second.
    pub links_per_s: f64,
    /// Time from a release to the start of the last link with the mask of a seat, in ms: median and
    /// maximum over the releases.
    pub free_after_ms: [f64; 2],
    /// CPU time that Usher spent in the second after a release, in % of a CPU.
    pub release_cpu_percent: f64,
    /// CPU time of Usher per change of a seat, in milliseconds.
    pub seat_cpu_ms: f64,
    /// CPU time of Usher per program over the whole run, in % of a CPU.
    pub cpu_percent: f64,
    /// The error because of which the kind is not complete.
    pub error: Option<String>,
}

impl ChurnResult {
    /// Returns a row without results.
    pub fn new(link: Link, home: Admission, lifetime_us: u64) -> Self {
        Self {
            link,
            home,
            lifetime_us,
            releases: 0,
            narrowed: 0,
            stalled: 0,
            seated_percent: 0.0,
            links_per_s: 0.0,
            free_after_ms: [0.0; 2],
            release_cpu_percent: 0.0,
            seat_cpu_ms: 0.0,
            cpu_percent: 0.0,
            error: None,
        }
    }

    fn cells(&self) -> Vec<String> {
        let link = match (self.link, self.home) {
            (Link::Thread, Admission::Attached) => "threads",
            (Link::Thread, Admission::Launched) => "threads of one process in a cgroup",
            (Link::Process, Admission::Attached) => "processes",
            (Link::Process, Admission::Launched) => "processes in a cgroup",
        };
        vec![
            link.to_owned(),
            format!("{}", self.lifetime_us as f64 / 1e3),
            format!("{:.0}", self.links_per_s),
            format!("{:.0}", self.seated_percent),
            self.releases.to_string(),
            self.narrowed.to_string(),
            format!("{:.0}", self.free_after_ms[0]),
            format!("{:.0}", self.free_after_ms[1]),
            format!("{:.2}", self.release_cpu_percent),
            format!("{:.1}", self.seat_cpu_ms),
            self.error.clone().unwrap_or_default(),
        ]
    }
}

const HEAD: [&str; 11] = [
    "chains of",
    "sleep (ms)",
    "links/s",
    "links in the seat (%)",
    "releases",
    "narrow masks 1 s after a release",
    "all masks restored after (ms), median",
    "worst",
    "CPU time after a release (% of a CPU in 1 s)",
    "CPU time per change of seat (ms)",
    "failure",
];

/// Measures every kind of chain.
pub fn run(args: &ChurnArgs, quick: bool) -> Result<Part> {
    let releases = args.releases.unwrap_or(if quick { 40 } else { 1_000 });
    let mut rows = Vec::new();
    for (link, home) in KINDS {
        for lifetime_us in LIFETIMES_US {
            let row = run_kind(link, home, lifetime_us, releases, args)?;
            eprintln!("churn: {}", serde_json::to_string(&row)?);
            rows.push(row);
        }
    }
    Ok(part(&rows, releases, args.at_once))
}

fn part(rows: &[ChurnResult], releases: usize, at_once: usize) -> Part {
    let mut part = Part::new("churn", "Programs with short-lived threads and processes");
    let narrowed = rows.iter().map(|row| row.narrowed).sum();
    let is_failed =
        |row: &&ChurnResult| row.error.is_some() || row.stalled > 0 || row.releases < releases;
    let worst = rows.iter().map(|row| row.release_cpu_percent);
    part.bars = vec![
        Bar::none(
            format!(
                "narrow masks 1 s after a release, in {releases} releases of each kind of program"
            ),
            narrowed,
        ),
        Bar::at_most(
            "CPU time in the second after a release, worst kind of program",
            worst.fold(0.0, f64::max),
            2.0,
            "% of a CPU",
        ),
        Bar::none(
            "kinds of programs of which a run did not finish or a chain stopped",
            rows.iter().filter(is_failed).count(),
        ),
    ];
    part.tables = vec![Table {
        head: HEAD.map(str::to_owned).to_vec(),
        rows: rows.iter().map(ChurnResult::cells).collect(),
    }];
    part.notes = vec![format!(
        "Each program has ten chains. The links of a chain are short-lived threads or processes: \
         each link starts the next link and ends. {at_once} programs run at a time, attached to \
         one actuator. Each program goes through three steps repeatedly: a seat on the first \
         CPU, a seat on the last CPU, the release. Each link reports whether it started with the mask of a seat."
    )];
    part.raw = serde_json::json!(rows);
    part
}

/// Measures one kind in a process of its own.
fn run_kind(
    link: Link,
    home: Admission,
    lifetime_us: u64,
    releases: usize,
    args: &ChurnArgs,
) -> Result<ChurnResult> {
    let exe = std::env::current_exe()?;
    let mut command = Command::new(&exe);
    command.args([KIND, &name(link), &name(home), &lifetime_us.to_string()]);
    command.arg(releases.to_string());
    command.args(["--at-once", &args.at_once.to_string()]);
    command
        .arg("--chains-by")
        .arg(args.chains_by.as_deref().unwrap_or(&exe));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .context("starting the program of a kind of chain")?;
    let rounds = releases.div_ceil(args.at_once.max(1)) as u32;
    let limit = OVERHEAD_MAX + RELEASE_MAX * rounds;
    let has_ended = end_within(&mut child, limit)?.is_some();
    let failed = |error: String| ChurnResult {
        error: Some(error),
        ..ChurnResult::new(link, home, lifetime_us)
    };
    if !has_ended {
        child.kill()?;
        child.wait()?;
        return Ok(failed(format!(
            "the program did not finish within {} s",
            limit.as_secs()
        )));
    }
    let mut text = String::new();
    let mut out = child.stdout.take().context("its standard output")?;
    out.read_to_string(&mut text)?;
    let row = serde_json::from_str(&text);
    Ok(row.unwrap_or_else(|_| failed("the program ended without a result".to_owned())))
}

/// Returns the name of a value on the command line.
pub fn name(value: impl ValueEnum) -> String {
    let word = value.to_possible_value();
    word.map_or_else(String::new, |word| word.get_name().to_owned())
}

/// Checks that `--chains-by` names a file.
///
/// # Errors
/// The path is not a file.
pub fn check(args: &ChurnArgs) -> Result<()> {
    let Some(path) = &args.chains_by else {
        return Ok(());
    };
    let shown = Path::display(path);
    anyhow::ensure!(
        path.is_file(),
        "--chains-by {shown}: the path is not a file; name an `usher-bench` program"
    );
    Ok(())
}
