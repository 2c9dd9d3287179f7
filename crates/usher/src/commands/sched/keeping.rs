// SPDX-License-Identifier: GPL-2.0-only
//! Seats for the control loop to give, kept by the scheduler that runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use usher_host::engine::SoftSeats;
use usher_model::CpuSet;
use usher_scx::{Held, MapIds};

use super::record;

/// Usher's scheduler, if it is the one that runs.
#[derive(Debug)]
struct Keeping {
    dir: PathBuf,
}

/// The scheduler whose record is in this directory.
pub fn seats(dir: &Path) -> Arc<dyn SoftSeats> {
    Arc::new(Keeping {
        dir: dir.to_owned(),
    })
}

impl Keeping {
    fn maps(&self) -> Option<MapIds> {
        let record = record::of_running(&self.dir).ok()?;
        // One that is fixed serves in its order, whoever is at home.
        (!record.settings.is_fixed()).then_some(record.maps)
    }

    fn held(&self) -> Result<Held, String> {
        let maps = self.maps().ok_or("it does not run any more")?;
        Held::open(&maps).map_err(|error| error.to_string())
    }
}

impl SoftSeats for Keeping {
    fn running(&self) -> Option<u64> {
        // The kernel does not give a number again soon.
        self.maps().map(|maps| u64::from(maps.seats))
    }

    fn seat(&self, cgroup: u64, name: &str, cpus: &CpuSet) -> Result<(), String> {
        let seated = self.held()?.seat(cgroup, name, cpus);
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
