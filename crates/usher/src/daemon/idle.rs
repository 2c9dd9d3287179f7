// SPDX-License-Identifier: GPL-2.0-only
//! The end of a daemon that is no longer needed (`usher daemon --exit-when-idle`, which `usher
//! sched start` starts).
//!
//! A thread checks two conditions every 200 ms ([`CHECK_EVERY`]). The daemon ends when it manages
//! no program, and the scheduler was stopped on request or could not be started. If no scheduler
//! was requested within 30 s ([`FIRST_REQUEST`]) of the start, the second condition also holds.
//! When the kernel ended the scheduler, the daemon stays, so that `usher sched status` reports the
//! reason.
//!
//! Each check makes at most one request to the control loop, and waits for the answer without a
//! time limit. An error of the request counts as a managed program.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use usher_host::engine::EngineHandle;

use super::scheduler::SchedulerControl;

/// Time after the daemon's start in which a client must load a scheduler or a launcher must
/// register a program. In this time, launchers register their programs again after the keeper has
/// started the next daemon.
const FIRST_REQUEST: Duration = Duration::from_secs(30);
/// Pause between two checks.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// Makes `ending` readable when the daemon is no longer needed.
///
/// # Errors
/// The thread cannot be started.
pub fn watch(
    engine: EngineHandle,
    scheduler: SchedulerControl,
    ending: Arc<OwnedFd>,
) -> io::Result<()> {
    let started = Instant::now();
    let watching = move || {
        while !(is_unneeded(&scheduler, started.elapsed()) && manages_no_program(&engine)) {
            std::thread::sleep(CHECK_EVERY);
        }
        let _ = rustix::io::write(&ending, &1u64.to_ne_bytes());
    };
    let thread = std::thread::Builder::new().name("idle".to_owned());
    thread.spawn(watching).map(drop)
}

/// Returns whether no client needs the daemon for its scheduler, `age` after the daemon's start.
fn is_unneeded(scheduler: &SchedulerControl, age: Duration) -> bool {
    let never_started = || scheduler.state().is_none() && age > FIRST_REQUEST;
    scheduler.is_released() || never_started()
}

/// Returns whether the daemon manages no program.
pub fn manages_no_program(engine: &EngineHandle) -> bool {
    engine
        .status()
        .is_ok_and(|status| status.programs.is_empty())
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
        assert!(!is_unneeded(scheduler, Duration::ZERO));
        assert!(is_unneeded(scheduler, 2 * FIRST_REQUEST));
        scheduler.start(Settings::default()).unwrap_err();
        assert!(is_unneeded(scheduler, Duration::ZERO));
    }
}
