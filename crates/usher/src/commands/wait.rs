// SPDX-License-Identifier: GPL-2.0-only
//! `usher wait`: returns when managed programs have ended.
//!
//! 1. With arguments, the command waits for the selected programs of all daemons that listen: the
//!    system's and the user's own (`crate::cli::target`). Without arguments, it waits until each of
//!    these daemons has once managed no program of this user; root waits for the programs of all
//!    users. If no daemon listens, it waits for one second for a daemon that is being started.
//! 2. For each program, the command opens a pidfd of the oldest living process. It polls the pidfds
//!    and the connections to the daemons.
//! 3. After each event, and at least once per second ([`CHECK_EVERY`]), the command requests the
//!    states from the daemons: the next oldest process takes the place of an ended one, and a program
//!    that is no longer listed has ended. A daemon without such a program is not queried again.
//! 4. A program that is no longer listed although its last known process lives was detached, which
//!    is an error.
//!
//! If a daemon with a watched program ends, the command fails, even if all known processes have
//! ended: a program may have other processes. An automatic daemon runs for 5 s after its last
//! program, so that the command receives the report of the program's end before the end of the
//! daemon. The wait itself has no time limit; SIGINT and SIGTERM end the command as any other.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::answers::{EndedProgram, WaitAnswer};
use crate::api::Program;
use crate::cli::options::Global;
use crate::cli::target::{self, Selection, Target};
use crate::client::{Daemon, DaemonError, Daemons, QueriedDaemon};
use crate::failure::Outcome;
use crate::output::{Output, shown};

/// Waits until managed programs have ended
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
Without arguments, the command waits until the daemon manages none of your programs (as root:
no program of any user). If no daemon runs, it waits for one second for a daemon that a
launcher starts, and then returns. If your daemon and the system's run, the command waits for the
programs of both. It waits only for programs; `usher run` returns the exit status of its program.

{}

Exit status: 0 if all programs have ended; 125 if a program was detached, if the daemon ended
before the programs, or if an argument selects no program.

Examples:
  usher wait && systemctl poweroff
  usher wait x264                  every program named x264 that runs now
  usher wait 4711 && notify-send done", target::HELP))]
pub struct Args {
    /// Names, numbers or pids of managed programs
    #[arg(value_name = "PROGRAM", value_parser = Target::parser(), allow_negative_numbers = true)]
    programs: Vec<Target>,
}

/// Upper limit of the time between two requests for the daemon's state.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Time for which the command waits for a daemon that a launcher or a keeper may be starting.
const DAEMON_START: Duration = Duration::from_secs(1);
/// Pause after the end of a process that the daemon still lists, and between two searches for a
/// daemon.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits for the programs.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let dir = global.runtime_dir.as_deref();
    let watches = match args.programs.is_empty() {
        true => watch_all(dir)?,
        false => {
            let daemons = Daemons::query_all(dir)?;
            let found = target::find_all(&args.programs, daemons.answered)?;
            let watch = |one: Selection| DaemonWatch::new(one.daemon, &one.programs, None);
            found.into_iter().map(watch).collect()
        }
    };
    let answer = WaitAnswer {
        ended: wait(watches)?,
    };
    out.answer(&answer, || answer.ended.iter().map(line).collect())?;
    Ok(0)
}

/// Returns the daemons that listen, with the programs of this user.
fn watch_all(dir: Option<&Path>) -> anyhow::Result<Vec<DaemonWatch>> {
    let own = rustix::process::geteuid().as_raw();
    let began = Instant::now();
    loop {
        match Daemons::query_all(dir) {
            Ok(daemons) => {
                let watch = |one: QueriedDaemon| {
                    DaemonWatch::new(one.daemon, &one.state.programs, Some(own))
                };
                return Ok(daemons.answered.into_iter().map(watch).collect());
            }
            Err(error) if DaemonError::is_lasting(&error) => return Err(error),
            Err(error) if began.elapsed() >= DAEMON_START => {
                return match Daemon::problem(dir) {
                    // Without a daemon, no program is managed.
                    None => Ok(Vec::new()),
                    // The error states why the daemon cannot be used.
                    Some(_) => Err(error),
                };
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Waits until each daemon has no watched program. Returns the ended programs in the order of their
/// ends.
fn wait(mut watches: Vec<DaemonWatch>) -> anyhow::Result<Vec<EndedProgram>> {
    let mut ended = Vec::new();
    loop {
        watches.retain(|one| !one.watched.is_empty());
        if watches.is_empty() {
            return Ok(ended);
        }
        sleep(&watches)?;
        for one in &mut watches {
            ended.extend(one.check()?);
        }
    }
}

/// Waits for the end of a process or of a daemon, at most for [`CHECK_EVERY`].
fn sleep(watches: &[DaemonWatch]) -> anyhow::Result<()> {
    let watched = || watches.iter().flat_map(|one| one.watched.values());
    if watched().any(Watched::has_ended) {
        // The daemon has not noticed the end yet, or has begun to handle it.
        std::thread::sleep(PAUSE);
        return Ok(());
    }
    let pidfds = watched().filter_map(|one| one.pidfd.as_ref());
    let pidfds = pidfds.map(AsFd::as_fd);
    let daemons = watches.iter().map(|one| one.daemon.as_fd());
    let polled = pidfds.chain(daemons);
    let mut fds: Vec<PollFd<'_>> = polled
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let timeout = Timespec::try_from(CHECK_EVERY)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn line(program: &EndedProgram) -> String {
    format!(
        "{} (program {}) has ended\n",
        shown(&program.name),
        program.id
    )
}

/// A program and its oldest living process.
struct Watched {
    program: Program,
    /// `None` if the process had ended before its pidfd could be opened.
    pidfd: Option<OwnedFd>,
}

/// The watched programs of a daemon.
struct DaemonWatch {
    daemon: Daemon,
    watched: BTreeMap<i64, Watched>,
    /// The user whose programs are watched when they appear; `None`: only the programs of the start.
    follows: Option<u32>,
}

impl DaemonWatch {
    fn new(daemon: Daemon, programs: &[Program], follows: Option<u32>) -> Self {
        let followed = programs.iter().filter(|one| is_followed(follows, one));
        let watched = followed.map(|program| (program.id, Watched::new(program.clone())));
        Self {
            watched: watched.collect(),
            daemon,
            follows,
        }
    }

    /// Requests the state from the daemon. Returns the programs that have ended.
    fn check(&mut self) -> anyhow::Result<Vec<EndedProgram>> {
        match self.daemon.status() {
            Ok(state) => self.update(&state.programs),
            Err(_) if self.daemon.is_gone() => bail!(self.daemon_ended()),
            Err(error) => Err(error.context("waiting for programs")),
        }
    }

    /// Describes what is known of the programs after the end of the daemon.
    fn daemon_ended(&self) -> String {
        let one = |watched: &Watched| {
            let (name, pid) = (shown(&watched.program.name), watched.program.pid);
            match watched.has_ended() {
                true => format!("process {pid} of {name} has ended, others may run"),
                false => format!("{name} (process {pid}) still runs"),
            }
        };
        let known: Vec<String> = self.watched.values().map(one).collect();
        format!(
            "the daemon ended before the programs for which this command waits: {}",
            known.join("; ")
        )
    }

    fn update(&mut self, programs: &[Program]) -> anyhow::Result<Vec<EndedProgram>> {
        let mut ended = Vec::new();
        let listed: BTreeMap<i64, &Program> = programs.iter().map(|one| (one.id, one)).collect();
        let gone: Vec<i64> = self.watched.keys().copied().collect();
        for id in gone.into_iter().filter(|id| !listed.contains_key(id)) {
            let Some(watched) = self.watched.remove(&id) else {
                continue;
            };
            if !watched.has_ended() {
                bail!(
                    "{} (program {id}) was detached before its end; process {} still runs",
                    shown(&watched.program.name),
                    watched.program.pid
                );
            }
            ended.push(EndedProgram {
                id,
                name: watched.program.name,
                runtime_dir: self.daemon.dir().to_owned(),
            });
        }
        for (&id, &program) in &listed {
            let known = self.watched.get(&id);
            let is_new = known.is_none_or(|known| known.program.pid != program.pid);
            let is_wanted = known.is_some() || self.follows.is_some();
            if is_new && is_wanted && is_followed(self.follows, program) {
                self.watched.insert(id, Watched::new(program.clone()));
            }
        }
        Ok(ended)
    }
}

impl Watched {
    fn new(program: Program) -> Self {
        let pid = i32::try_from(program.pid).ok().and_then(Pid::from_raw);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { program, pidfd }
    }

    /// Returns whether the process has ended.
    fn has_ended(&self) -> bool {
        let Some(pidfd) = &self.pidfd else {
            return true;
        };
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

/// Returns whether a wait for all programs of a user includes this program. Root waits for all
/// users.
fn is_followed(user: Option<u32>, program: &Program) -> bool {
    user.is_none_or(|uid| uid == 0 || i64::from(uid) == program.uid)
}
