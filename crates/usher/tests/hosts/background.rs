// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest that background work of root and of users yields to all other programs, in
//! other login sessions too.

use crate::shell::Shell;
use crate::state::{Program, start_service, wait_for};

const SCHED_IDLE: i32 = 5;

/// Checks that background work has at least the effect of `nice -n 19`, also between login
/// sessions.
pub fn yields_to_all_others() {
    start_service();
    for user in ["root", "alice"] {
        let mut shell = Shell::of(user);
        let program = Program::launch(&mut shell, "usher bg", 2);
        wait_for(&format!("{user}'s background work to yield"), || {
            let (nice, policy) = program.priority();
            let idle = program.limit("cpu.idle", |text| text == "1").is_some();
            (idle || (nice == 19 && policy == SCHED_IDLE)).then_some(())
        });
    }
}
