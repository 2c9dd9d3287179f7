// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `kills`: kills the daemon, the keeper and launchers by SIGKILL while programs have seats or
//! are demoted and frozen. All changes must be undone: within 1 s if a launcher, a keeper or a
//! daemon survives, and within 2 s by `usher undo`. Each wait for an undo ends after 10 s. A round
//! that fails counts as failed, and the next round begins.
//!
//! A round starts a daemon of root and three programs, in alternate rounds as root and as an
//! ordinary user: a launched program with a seat, an attached program with a seat, and background
//! work, which Usher demotes and freezes because other work uses all CPUs. Then the round kills one
//! of the following:
//! - **daemon**: the keeper undoes all changes and starts another daemon.
//! - **keeper**: the daemon starts another keeper.
//! - **both** (daemon and keeper): launchers undo the changes of their programs. A launcher of an
//!   ordinary user only thaws its program, because only root can read the journal of root's daemon
//!   and raise priorities. `usher undo`, which the systemd unit runs as `ExecStopPost=`, undoes all
//!   other changes.
//! - **launcher**: the daemon must still manage the programs. After that, daemon and keeper are
//!   killed, too, and `usher undo` undoes all changes.
//!
//! The benchmark runs `usher undo` in place of systemd. At the end of each round, a daemon is
//! started and ended by SIGTERM. After that, no process may have changed attributes, and no journal
//! may exist.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde::Serialize;

use super::attributes::is_held;
use super::kill_fixture::{self, KillFixture, kill, signal};
use crate::bars::{Bar, Part, Table};
use crate::processes::{runs, state_of, wait_for};

/// Time limit of the undo, after which the round fails.
const WATCH_MAX: Duration = Duration::from_secs(10);
const KINDS: [KilledProcess; 4] = [
    KilledProcess::Daemon,
    KilledProcess::Keeper,
    KilledProcess::Both,
    KilledProcess::Launcher,
];

/// The process that a round kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum KilledProcess {
    Daemon,
    Keeper,
    Both,
    Launcher,
}

/// Result of a round.
#[derive(Debug, Clone, Serialize)]
struct KillRound {
    kind: KilledProcess,
    as_user: bool,
    /// Time from the kill until a keeper, a daemon or a launcher has undone the changes.
    undone_ms: Option<f64>,
    /// Changes that still existed at the time limit, as text.
    left: Option<String>,
    /// Time until `usher undo`, which systemd would run, has undone the changes.
    undo_ms: Option<f64>,
    /// Number of processes that still have changed attributes after the next start and end of the
    /// daemon.
    changed: usize,
    /// Number of journals that exist after the next start and end of the daemon.
    journals: usize,
    /// The error because of which the round is not complete.
    error: Option<String>,
}

/// Checks that this machine can run the rounds.
///
/// # Errors
/// The benchmark does not run as root.
pub fn check() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the part kills requires root: run it as root, or give --only pinning,churn"
    );
    Ok(())
}

/// Runs `rounds` rounds.
pub fn run(usher: &Path, rounds: usize) -> Result<Part> {
    let _reaper = kill_fixture::reaper()?;
    let mut all = Vec::new();
    for at in 0..rounds {
        let kind = KINDS[at % KINDS.len()];
        let round = one(usher, kind, at / KINDS.len() % 2 == 1, at);
        if round.error.is_some() || round.left.is_some() || round.changed > 0 {
            eprintln!("kills: round {at}: {}", serde_json::to_string(&round)?);
        }
        all.push(round);
        if at % 20 == 19 {
            eprintln!("kills: finished {} of {rounds} rounds", at + 1);
        }
    }
    Ok(part(&all))
}

fn one(usher: &Path, kind: KilledProcess, as_user: bool, at: usize) -> KillRound {
    let mut round = KillRound {
        kind,
        as_user,
        undone_ms: None,
        left: None,
        undo_ms: None,
        changed: 0,
        journals: 0,
        error: None,
    };
    if let Err(error) = make(usher, &mut round, at) {
        round.error = Some(format!("{error:#}"));
    }
    round
}

fn make(usher: &Path, round: &mut KillRound, at: usize) -> Result<()> {
    let mut fixture = KillFixture::start(usher, round.as_user, at)?;
    let (daemon, keeper) = fixture.daemon_and_keeper()?;
    let all = [&fixture.launched[..], &fixture.without_launcher].concat();
    match round.kind {
        KilledProcess::Daemon => {
            kill(daemon);
            let died = Instant::now();
            fixture.end_hogs()?;
            watch(round, &fixture, died, &all);
            wait_for("the next daemon", WATCH_MAX, || fixture.status().is_some())?;
        }
        KilledProcess::Keeper => {
            kill(keeper);
            let died = Instant::now();
            let is_new = || {
                fixture
                    .daemon_and_keeper()
                    .is_ok_and(|(_, now)| now != keeper && runs(now))
            };
            wait_for("another keeper", WATCH_MAX, is_new)?;
            round.undone_ms = Some(died.elapsed().as_secs_f64() * 1e3);
            fixture.end_hogs()?;
        }
        KilledProcess::Both => {
            kill_both(daemon, keeper)?;
            let died = Instant::now();
            fixture.end_hogs()?;
            let launched = fixture.launched.clone();
            match round.as_user {
                true => watch_thaw(round, &fixture, died, &launched),
                false => watch(round, &fixture, died, &launched),
            }
            round.undo_ms = Some(undo(&fixture, &all)?);
        }
        KilledProcess::Launcher => {
            fixture.kill_launchers()?;
            let died = Instant::now();
            watch(round, &fixture, died, &all);
            kill_both(daemon, keeper)?;
            fixture.end_hogs()?;
            round.undo_ms = Some(undo(&fixture, &all)?);
        }
    }
    round.changed = fixture.start_again_and_end()?;
    round.journals = fixture.journals();
    Ok(())
}

/// Stops the daemon by SIGSTOP so that it cannot start another keeper, then kills the keeper and
/// the daemon.
fn kill_both(daemon: i32, keeper: i32) -> Result<()> {
    signal(daemon, Signal::STOP);
    wait_for("the orderly end of the daemon", WATCH_MAX, || {
        state_of(daemon) == Some('T')
    })?;
    kill(keeper);
    wait_for("the death of the keeper", WATCH_MAX, || !runs(keeper))?;
    kill(daemon);
    wait_for("the death of the daemon", WATCH_MAX, || !runs(daemon)).map(|_| ())
}

/// Waits until each of the processes has no changed attributes or is managed by a daemon.
fn watch(round: &mut KillRound, fixture: &KillFixture, died: Instant, pids: &[i32]) {
    watch_until(round, fixture, died, pids, || {
        fixture.are_free_or_managed(pids)
    });
}

/// Waits until none of the processes is frozen or stopped.
fn watch_thaw(round: &mut KillRound, fixture: &KillFixture, died: Instant, pids: &[i32]) {
    watch_until(round, fixture, died, pids, || {
        !pids.iter().any(|&pid| is_held(pid))
    });
}

fn watch_until(
    round: &mut KillRound,
    fixture: &KillFixture,
    died: Instant,
    pids: &[i32],
    is_right: impl FnMut() -> bool,
) {
    match wait_for("the undo", WATCH_MAX, is_right) {
        Ok(_) => round.undone_ms = Some(died.elapsed().as_secs_f64() * 1e3),
        Err(_) => round.left = Some(fixture.describe(&fixture.changed(pids))),
    }
}

/// Runs `usher undo`. Returns the time in ms until all changes are undone.
fn undo(fixture: &KillFixture, pids: &[i32]) -> Result<f64> {
    let begun = Instant::now();
    fixture.undo()?;
    let free = || fixture.changed(pids).is_empty();
    let waited = wait_for("the undo", WATCH_MAX, free);
    waited.with_context(|| fixture.describe(&fixture.changed(pids)))?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

fn part(rounds: &[KillRound]) -> Part {
    let mut part = Part::new("kills", "SIGKILL of the daemon, the keeper and launchers");
    let made = rounds.iter().filter(|round| round.error.is_none());
    let worst = |times: &[f64]| times.iter().copied().reduce(f64::max);
    let undone: Vec<f64> = rounds.iter().filter_map(|round| round.undone_ms).collect();
    let undo: Vec<f64> = rounds.iter().filter_map(|round| round.undo_ms).collect();
    let count = rounds.len();
    part.bars = vec![
        Bar::at_most(
            "slowest undo by the keeper, the daemon or a launcher",
            worst(&undone),
            1e3,
            "ms",
        ),
        Bar::none(
            format!("rounds not undone by the keeper, the daemon or a launcher, of {count}"),
            rounds.iter().filter(|round| round.left.is_some()).count(),
        ),
        Bar::at_most("slowest undo by `usher undo`", worst(&undo), 2e3, "ms"),
        Bar::none(
            format!(
                "processes still changed after the next start of the daemon, in {count} rounds"
            ),
            made.clone().map(|round| round.changed).sum(),
        ),
        Bar::none(
            format!("journals that remained after the next start of the daemon, in {count} rounds"),
            made.map(|round| round.journals).sum(),
        ),
        Bar::none(
            format!("rounds that failed with an error, of {count}"),
            rounds.iter().filter(|round| round.error.is_some()).count(),
        ),
    ];
    part.tables = vec![table(rounds)];
    part.notes = vec![
        "In each round a daemon of root manages a launched and an attached program, both with \
         seats, and background work that is demoted and frozen. After the death of the daemon \
         and the keeper, launchers of root undo all changes, and launchers of a user thaw their \
         programs. The benchmark runs `usher undo`, which systemd runs as ExecStopPost=."
            .to_owned(),
    ];
    let errors = rounds.iter().filter_map(|round| round.error.clone());
    part.notes.extend(errors.take(5));
    part.raw = serde_json::json!(rounds);
    part
}

fn table(rounds: &[KillRound]) -> Table {
    let head = [
        "killed",
        "programs of",
        "rounds",
        "undone (ms), median",
        "worst",
        "not undone",
        "`usher undo` (ms), median",
        "worst",
        "still changed after the next start",
    ];
    let row = |kind: KilledProcess, as_user: bool| {
        let own = || {
            let rounds = rounds.iter();
            rounds.filter(move |one| one.kind == kind && one.as_user == as_user)
        };
        let (undone, undone_max) = spread(own().filter_map(|one| one.undone_ms).collect());
        let (undo, undo_max) = spread(own().filter_map(|one| one.undo_ms).collect());
        vec![
            format!("{kind:?}").to_lowercase(),
            if as_user { "a user" } else { "root" }.to_owned(),
            own().count().to_string(),
            undone,
            undone_max,
            own().filter(|one| one.left.is_some()).count().to_string(),
            undo,
            undo_max,
            own().map(|one| one.changed).sum::<usize>().to_string(),
        ]
    };
    let rows = KINDS.map(|kind| [false, true].map(|as_user| row(kind, as_user)));
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.into_iter().flatten().collect(),
    }
}

/// Median and maximum of times in milliseconds, as text.
fn spread(mut times: Vec<f64>) -> (String, String) {
    times.sort_by(f64::total_cmp);
    let text = |time: Option<&f64>| time.map_or("-".to_owned(), |time| format!("{time:.0}"));
    (text(times.get(times.len() / 2)), text(times.last()))
}
