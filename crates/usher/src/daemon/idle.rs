// SPDX-License-Identifier: GPL-2.0-only
//! The end of a daemon that is no longer needed (`usher daemon --exit-when-idle`, which `usher run`
//! and `usher sched start` start).
//!
//! A thread checks whether the daemon is needed: once a second ([`QUERY_EVERY`]) while there is a
//! program and no scheduler, and every 200 ms ([`CHECK_EVERY`]) otherwise. The daemon ends when
//! it manages no program, and in addition one of these holds:
//!
//! - The scheduler was stopped on request or could not be started.
//! - No scheduler was requested, and the last program ended 5 s ago ([`LINGER`]). A script that runs
//!   one short program after another thus uses one daemon.
//! - No scheduler was requested, and no program was registered within 8 s ([`FIRST_REQUEST`]) of
//!   the start.
//!
//! When the kernel ended the scheduler, the daemon stays, so that `usher sched status` reports the
//! reason.
//!
//! The decision to end and the admission of a program exclude each other (`activity`): the client of
//! a refused program starts another daemon.
//!
//! Without a scheduler, the thread queries the number of managed programs from the control loop at
//! each check at least 1 s after the last use of the daemon. Such a query waits for
//! the answer without a time limit. An error of the query counts as a managed program. The thread
//! also empties the daemon's log when the log exceeds 1 MiB ([`LOG_BYTES_MAX`]).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use usher_host::engine::EngineHandle;

use super::activity::Activity;
use super::scheduler::SchedulerControl;

/// Time after the daemon's start in which a client must load a scheduler or a launcher must
/// register a program. In this time, launchers register their programs again after the keeper has
/// started the next daemon: they search for a daemon at least every 2 s.
const FIRST_REQUEST: Duration = Duration::from_secs(8);
/// Time without a program after which a daemon without a scheduler ends.
const LINGER: Duration = Duration::from_secs(5);
/// Pause between two checks.
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// Time from a request to the control loop that found a managed program to the next request.
const QUERY_EVERY: Duration = Duration::from_secs(1);
/// Upper limit of the daemon's log, plus the messages of one pause.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// Makes `ending` readable when the daemon is no longer needed.
///
/// # Errors
/// The thread cannot be started.
pub fn watch(
    engine: EngineHandle,
    scheduler: SchedulerControl,
    activity: Activity,
    ending: Arc<OwnedFd>,
) -> io::Result<()> {
    let started = Instant::now();
    let watching = move || {
        loop {
            bound_log(io::stderr());
            let is_query_due = activity.idle_for().is_some_and(|idle| idle >= QUERY_EVERY);
            let is_used =
                is_query_due && !scheduler.was_requested() && !manages_no_program(&engine);
            if is_used {
                activity.record_use();
            }
            if is_unneeded(&scheduler, started.elapsed(), activity.idle_for())
                && activity.end_if(|| manages_no_program(&engine))
            {
                break;
            }
            std::thread::sleep(match is_used {
                true => QUERY_EVERY,
                false => CHECK_EVERY,
            });
        }
        let _ = rustix::io::write(&ending, &1u64.to_ne_bytes());
    };
    let thread = std::thread::Builder::new().name("idle".to_owned());
    thread.spawn(watching).map(drop)
}

/// Returns whether no client needs the daemon for its scheduler or soon for a program, `age` after
/// the daemon's start and `idle` after the last use for a program.
fn is_unneeded(scheduler: &SchedulerControl, age: Duration, idle: Option<Duration>) -> bool {
    let is_idle = || idle.map_or(age > FIRST_REQUEST, |idle| idle > LINGER);
    scheduler.is_released() || (!scheduler.was_requested() && is_idle())
}

/// Returns whether the daemon manages no program.
pub fn manages_no_program(engine: &EngineHandle) -> bool {
    engine.program_count().is_ok_and(|count| count == 0)
}

/// Empties a log that is too long. Another stream than a regular file is left alone.
fn bound_log(log: impl std::os::fd::AsFd) {
    let Ok(stat) = rustix::fs::fstat(&log) else {
        return;
    };
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    if is_file && u64::try_from(stat.st_size).is_ok_and(|size| size > LOG_BYTES_MAX) {
        // An error is ignored, because the next check repeats the attempt.
        let _ = rustix::fs::ftruncate(&log, 0);
    }
}

#[cfg(test)]
mod tests {
    use usher_scx::{Kernel, Settings};

    use super::super::scheduler::SchedulerThread;
    use super::*;

    #[test]
    fn a_daemon_waits_for_the_first_request_and_ends_after_a_failed_start() {
        let dir = tempfile::tempdir().unwrap();
        let thread = SchedulerThread::start(dir.path(), Kernel::at(dir.path()), None).unwrap();
        let scheduler = thread.control();
        assert!(!is_unneeded(scheduler, Duration::ZERO, None));
        assert!(is_unneeded(scheduler, 2 * FIRST_REQUEST, None));
        scheduler.start(Settings::default()).unwrap_err();
        assert!(is_unneeded(scheduler, Duration::ZERO, None));
    }

    #[test]
    fn a_daemon_ends_a_while_after_its_last_program() {
        let dir = tempfile::tempdir().unwrap();
        let thread = SchedulerThread::start(dir.path(), Kernel::at(dir.path()), None).unwrap();
        let ends = |idle| is_unneeded(thread.control(), 10 * FIRST_REQUEST, Some(idle));
        assert!(!ends(Duration::ZERO));
        assert!(ends(2 * LINGER));
        assert!(LINGER + QUERY_EVERY < Duration::from_secs(10));
    }

    #[test]
    fn a_long_log_is_emptied() {
        let log = tempfile::tempfile().unwrap();
        let length = || log.metadata().unwrap().len();
        log.set_len(LOG_BYTES_MAX).unwrap();
        bound_log(&log);
        assert_eq!(length(), LOG_BYTES_MAX);
        log.set_len(LOG_BYTES_MAX + 1).unwrap();
        bound_log(&log);
        assert_eq!(length(), 0);
    }
}
