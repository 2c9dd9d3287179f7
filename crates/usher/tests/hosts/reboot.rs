// SPDX-License-Identifier: GPL-2.0-only
//! Reboots a guest while programs have seats, and checks that the enabled service runs afterwards
//! and that no state of the previous boot is left.

use std::fs;
use std::path::Path;

use crate::shell::{Shell, root};
use crate::state::{Program, own_cgroups, wait_for};

/// File that [`reboot`] creates and that exists after the reboot.
const MARK: &str = "/var/lib/usher-lab-rebooted";

/// Returns whether [`reboot`] has rebooted the guest.
pub fn is_done() -> bool {
    Path::new(MARK).exists()
}

/// Enables the service and reboots while programs have seats. Never returns.
pub fn reboot() -> ! {
    root("systemctl enable usher && systemctl start usher").ok();
    let mut alice = Shell::of("alice");
    let _program = Program::launch(&mut alice, "usher run", 2);
    fs::write(MARK, "").unwrap();
    root("systemctl reboot").ok();
    loop {
        std::thread::park();
    }
}

/// Checks that the enabled service runs, and that nothing is left of the previous boot.
pub fn the_enabled_service_runs_again() {
    wait_for("the service to run", || {
        let state = root("systemctl is-active usher");
        (state.text == "active\n").then_some(())
    });
    let state = crate::state::status();
    assert_eq!(state["programs"].as_array().unwrap().len(), 0, "{state}");
    assert_eq!(own_cgroups(), [""; 0]);
    let mut alice = Shell::of("alice");
    assert_eq!(alice.run("usher run -- sh -c 'exit 7'").status, 7);
}
