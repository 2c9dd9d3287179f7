// SPDX-License-Identifier: GPL-2.0-only
//! Implements the control loop's interface for soft seats (`SoftSeats`) on the scheduler of the
//! same daemon: writes seats, by the id of the program's cgroup, to the scheduler's BPF map.
//!
//! Each call opens the maps of the scheduler that runs at the time of the call. A restart of the
//! scheduler therefore needs no notification. [`SoftSeats::running`] returns another number after a
//! restart; the control loop then gives the seats again.
//!
//! A call costs a few system calls; `unseat_all` visits each seat. A call waits for no request to
//! the scheduler's thread. If the scheduler does not run, or a map cannot be written, the call
//! returns the reason.

use std::sync::Arc;

use usher_host::engine::SoftSeats;
use usher_model::CpuSet;
use usher_scx::{Kernel, SchedulerHandle};

use super::control::SchedulerControl;
use super::state::{Phase, SchedulerState};

/// The scheduler of this process.
#[derive(Debug)]
struct SoftSeatScheduler {
    kernel: Kernel,
    scheduler: SchedulerControl,
}

/// Returns an identity of the running scheduler that implements seats. Returns `None` if no
/// scheduler runs, if its seats are switched off, or if it runs in FIFO order, which ignores seats.
fn seat_keeper(state: Option<&SchedulerState>) -> Option<u64> {
    let state = state.filter(|state| state.state == Phase::Running)?;
    // The identity changes when the scheduler has lost its seats: after a restart (another map id,
    // which the kernel does not reuse soon), or after seats were switched off and on.
    let identity = u64::from(state.maps.seats) << 32 | u64::from(state.seats_since);
    let keeps_seats = state.settings.seats && !state.settings.fifo;
    keeps_seats.then_some(identity)
}

/// Returns the scheduler of this process for the control loop.
pub fn seats(kernel: Kernel, scheduler: SchedulerControl) -> Arc<dyn SoftSeats> {
    Arc::new(SoftSeatScheduler { kernel, scheduler })
}

impl SoftSeatScheduler {
    fn held(&self) -> Result<SchedulerHandle, String> {
        let state = self.scheduler.state();
        let running = state.filter(|state| state.state == Phase::Running);
        let running = running.ok_or("Usher's scheduler does not run")?;
        SchedulerHandle::open(&running.maps).map_err(|error| error.to_string())
    }
}

impl SoftSeats for SoftSeatScheduler {
    fn running(&self) -> Option<u64> {
        seat_keeper(self.scheduler.state().as_ref())
    }

    fn seat(&self, cgroup: u64, name: &str, cpus: &CpuSet) -> Result<(), String> {
        let seated = self.held()?.seat(&self.kernel, cgroup, name, cpus);
        seated.map_err(|error| error.to_string())
    }

    fn unseat(&self, cgroup: u64) -> Result<(), String> {
        let unseated = self.held()?.unseat(cgroup);
        unseated.map_err(|error| error.to_string())
    }

    fn unseat_all(&self) -> Result<(), String> {
        let unseated = self.held()?.unseat_all();
        unseated.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_scx::Settings;

    #[test]
    fn only_a_running_scheduler_with_seats_on_keeps_seats() {
        assert_eq!(seat_keeper(None), None);
        let mut state = SchedulerState::starting(&Settings::default());
        assert_eq!(seat_keeper(Some(&state)), None);
        state.state = Phase::Running;
        state.maps.seats = 7;
        assert_eq!(seat_keeper(Some(&state)), Some(7 << 32));
        state.seats_since = 3;
        assert_eq!(seat_keeper(Some(&state)), Some(7 << 32 | 3));
        state.settings.seats = false;
        assert_eq!(seat_keeper(Some(&state)), None);
        state.settings.seats = true;
        state.settings.fifo = true;
        assert_eq!(seat_keeper(Some(&state)), None);
        state.settings = Settings::default();
        assert_eq!(seat_keeper(Some(&state)), Some(7 << 32 | 3));
        state.end("stopped");
        assert_eq!(seat_keeper(Some(&state)), None);
    }
}
