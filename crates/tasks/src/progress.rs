// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports the tasks of a runtime as progress on the heartbeat page of the program.
//!
//! 1. `usher run` and other launchers create a page and set `USHER_HEARTBEAT`. Without the variable,
//!    or if the page cannot be used, nothing is reported.
//! 2. The observer ([`crate::follow`]) adds the new tasks to the page every 20 ms while workers run,
//!    before it sleeps, and at the end of the runtime. Workers only count in their own counters.
//! 3. The tasks of graphs, tokens, submissions and scopes are reported: a program has as many of
//!    them on one worker as on many, except that a broadcast counts as one task for each worker, and
//!    that the tasks of a serial scope are not counted. The chunks of parallel loops and the stolen
//!    functions of `join` depend on the workers, so they are not reported.
//! 4. A page has one unit of work. With the first report, an empty name of the unit becomes "tasks".
//!    If the program has named another unit, or has counted units without a name, it reports its
//!    progress itself, and the runtime reports nothing.
//!
//! If a program counts its own units without naming them after the first report, both are added.

use usher_heartbeat::Heartbeat;

/// The name of the unit on the page.
const UNIT: &str = "tasks";

/// The report of one runtime.
#[derive(Debug)]
pub(crate) struct ProgressReport {
    heartbeat: Heartbeat,
    reported: u64,
}

impl ProgressReport {
    /// Returns a report on the page of this program; `None` if there is none.
    pub fn open() -> Option<Self> {
        let heartbeat = Heartbeat::from_env();
        heartbeat.is_active().then_some(Self {
            heartbeat,
            reported: 0,
        })
    }

    /// Reports that the runtime has run this number of tasks since its start.
    pub fn update(&mut self, tasks: u64) {
        let new = tasks - self.reported;
        if new == 0 {
            return;
        }
        self.reported = tasks;
        if self.owns_unit() {
            self.heartbeat.beat(new);
        }
    }

    /// Returns whether the unit of the page is a task. Names the unit if it has no name.
    fn owns_unit(&self) -> bool {
        let unit = self.heartbeat.unit();
        if unit.is_empty() && self.heartbeat.work() == 0 {
            self.heartbeat.name_unit(UNIT);
            return true;
        }
        unit == UNIT
    }
}
