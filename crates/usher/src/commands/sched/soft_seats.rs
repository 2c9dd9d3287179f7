// SPDX-License-Identifier: GPL-2.0-only
//! Implements the control loop's interface for soft seats (`SoftSeats`) on the running scheduler:
//! writes seats, by the id of the program's cgroup, to the scheduler's BPF map.
//!
//! Each call opens the maps of the scheduler that runs at that moment, so a restart of the
//! scheduler needs no notification. [`SoftSeats::running`] returns another number after a restart;
//! the control loop then gives the seats again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use usher_host::engine::SoftSeats;
use usher_model::CpuSet;
use usher_scx::{SchedulerHandle, Settings};

use super::record;

/// Usher's scheduler, if it is the running one.
#[derive(Debug)]
struct SoftSeatScheduler {
    dir: PathBuf,
}

/// Returns whether the scheduler keeps seats. One with a fixed order ignores them.
fn keeps_seats(settings: &Settings) -> bool {
    settings.seats && !settings.is_fixed()
}

/// Returns the scheduler with its record in this directory.
pub fn seats(dir: &Path) -> Arc<dyn SoftSeats> {
    Arc::new(SoftSeatScheduler {
        dir: dir.to_owned(),
    })
}

impl SoftSeatScheduler {
    fn held(&self) -> Result<SchedulerHandle, String> {
        let record = record::of_running(&self.dir).map_err(|error| error.to_string())?;
        SchedulerHandle::open(&record.maps).map_err(|error| error.to_string())
    }
}

impl SoftSeats for SoftSeatScheduler {
    fn running(&self) -> Option<u64> {
        let record = record::of_running(&self.dir).ok()?;
        // The kernel does not reuse a map id soon. Seats that were removed meanwhile have to be
        // given again.
        let which = u64::from(record.maps.seats) << 32 | u64::from(record.seats_since);
        keeps_seats(&record.settings).then_some(which)
    }

    fn seat(&self, cgroup: u64, name: &str, cpus: &CpuSet) -> Result<(), String> {
        let seated = self.held()?.seat(&super::kernel(), cgroup, name, cpus);
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
    use record::Phase;

    #[test]
    fn only_a_running_scheduler_with_seats_on_keeps_seats() {
        let dir = tempfile::tempdir().unwrap();
        let seats = seats(dir.path());
        assert_eq!(seats.running(), None);
        let mut held = record::RecordWriter::take(dir.path(), &Settings::default()).unwrap();
        assert_eq!(seats.running(), None);
        held.write(|record| {
            record.state = Phase::Running;
            record.maps.seats = 7;
        })
        .unwrap();
        assert_eq!(seats.running(), Some(7 << 32));
        held.write(|record| record.seats_since = 3).unwrap();
        assert_eq!(seats.running(), Some(7 << 32 | 3));
        held.write(|record| record.settings.seats = false).unwrap();
        assert_eq!(seats.running(), None);
        held.write(|record| record.settings = Settings::of_linux_26(false))
            .unwrap();
        assert_eq!(seats.running(), None);
        held.write(|record| record.settings = Settings::default())
            .unwrap();
        assert_eq!(seats.running(), Some(7 << 32 | 3));
        drop(held);
        assert_eq!(seats.running(), None);
    }
}
