// SPDX-License-Identifier: GPL-2.0-only
//! Programs in containers, which have a cpuset and a quota.

use std::fs;

use crate::shell::{Shell, root};
use crate::state::{Program, WORK, start_service, wait_for};

/// Makes a folder with which podman starts a container of the guest's own programs.
fn rootfs() -> &'static str {
    root(
        "mkdir -p /var/lib/box/{proc,sys,dev,tmp,run,etc,usr,root,var/lib} && \
         ln -sfn usr/bin /var/lib/box/bin && ln -sfn usr/lib /var/lib/box/lib && \
         ln -sfn usr/lib64 /var/lib/box/lib64 && ln -sfn usr/sbin /var/lib/box/sbin && \
         chmod 1777 /var/lib/box/tmp && cp /etc/passwd /etc/group /var/lib/box/etc",
    )
    .ok();
    "/var/lib/box"
}

/// The command line that runs a command in podman.
pub fn podman(command: &str) -> String {
    format!(
        "podman --storage-driver=vfs run --rm --network=none --name box --cpuset-cpus=0-3 --cpus=2 \
         --volume=/usr:/usr:ro --volume=/usr/local:/usr/local:ro --rootfs {} {command}",
        rootfs()
    )
}

/// The command line that runs a command in nspawn.
pub fn nspawn(command: &str) -> String {
    format!(
        "systemd-nspawn --quiet --register=no --as-pid2 --volatile=yes --directory=/ \
         --bind-ro=/usr/local --property=AllowedCPUs=0-3 --property=CPUQuota=200% \
         --machine=box {command}"
    )
}

/// Both commands pass the status of the program on.
pub fn run_and_bg_work_inside() {
    for container in [podman, nspawn] {
        for usher in ["run", "bg"] {
            let command = format!("/usr/local/bin/usher {usher} -- sh -c 'exit 7'");
            let answer = root(&container(&command));
            assert_eq!(answer.status, 7, "{usher}: {}", answer.text);
        }
    }
}

/// The scheduler is the host's.
pub fn sched_is_refused_in_one_line() {
    for container in [podman, nspawn] {
        let answer = root(&container("/usr/local/bin/usher sched start"));
        let line = answer.refused();
        assert!(line.contains("CAP_BPF"), "{line}");
    }
}

/// A payload that is attached from outside stays in the container's cgroup.
pub fn attach_from_outside_keeps_the_cgroup() {
    start_service();
    let mut system = Shell::of("root");
    for container in [podman, nspawn] {
        let line = container(&format!("{WORK} 2"));
        let runner = system.start(&line);
        let program = wait_for("the payload", || {
            let found = root("pgrep -x -f '/usr/local/lib/usher-lab/hosts work 2'");
            let pid = found.text.trim().parse().ok()?;
            Some(Program { pid })
        });
        let cgroup = program.cgroup();
        let cpuset = fs::read_to_string(cgroup.join("cpuset.cpus.effective")).ok();
        system.run(&format!("usher attach {}", program.pid)).ok();
        assert_eq!(program.cgroup(), cgroup);
        system.run(&format!("usher detach {}", program.pid)).ok();
        assert_eq!(program.cgroup(), cgroup);
        let after = fs::read_to_string(cgroup.join("cpuset.cpus.effective")).ok();
        assert_eq!(after, cpuset);
        drop(program);
        wait_for("the container to end", || {
            (!std::path::Path::new(&format!("/proc/{runner}")).exists()).then_some(())
        });
    }
}
