// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest that CPU quotas of a user's slice and of a service also limit the programs
//! that Usher launches from them.

use crate::shell::{Shell, root};
use crate::state::{Program, WORK, disjoint, start_service};

/// Checks the quota of the user's slice for a launched program, and the quota of a service for a
/// program that the service launches.
pub fn programs_keep_quotas() {
    start_service();
    root("systemctl set-property --runtime user-1000.slice CPUQuota=150% TasksMax=100").ok();
    let mut alice = Shell::of("alice");
    let launched = Program::launch(&mut alice, "usher run", 2);
    let mut system = Shell::of("root");
    system
        .run(&format!(
            "systemd-run --quiet --unit=calc -p CPUQuota=50% usher run -- {WORK} 2"
        ))
        .ok();
    let service = Program::of_unit(&mut system, "systemctl", "calc", 2);
    disjoint(&[&launched, &service]);
    for (program, quota) in [(&launched, "150000 100000"), (&service, "50000 100000")] {
        let found = program.limit("cpu.max", |text| !text.starts_with("max"));
        assert_eq!(found.as_deref(), Some(quota));
    }
    assert!(launched.limit("pids.max", |text| text == "100").is_some());
    let tasks = root("systemctl show -P TasksCurrent calc").ok();
    assert!(tasks.trim().parse::<u32>().unwrap() >= 2, "{tasks}");
    root("systemctl stop calc").ok();
    service.ends();
    root("systemctl set-property --runtime user-1000.slice CPUQuota= TasksMax=infinity").ok();
}
