// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest how Usher works with programs in containers of podman, rootless podman and
//! docker: inside the container, and by an attach from outside.
//!
//! Each container has a cpuset of four CPUs and a CPU quota. An attached program must get its seat
//! within the cpuset, keep its cgroup, and have its former state after the detach.

use std::fs;
use std::path::{Path, PathBuf};

use usher_model::CpuSet;

use crate::shell::{Shell, ShellOutput, root};
use crate::state::{Program, WORK, disjoint, start_service, wait_for};

/// Options for the limits of each container, in the syntax of podman and docker, and the mount of
/// the guest's programs.
const OPTIONS: &str = "run --rm --network=none --name box --cpuset-cpus=0-3 --cpus=2 \
    --volume=/usr:/usr:ro --volume=/usr/local:/usr/local:ro";
/// Storage driver without overlay file systems, which are a module of the guest's kernel; the guest
/// has no modules.
const PODMAN: &str = "podman --storage-driver=vfs";
/// Settings without bridges and netfilter, which are also modules of the guest's kernel.
const DOCKER_SETTINGS: &str = r#"{
    "storage-driver": "vfs", "bridge": "none", "iptables": false, "ip6tables": false,
    "ip-forward": false
}"#;

/// A program that runs containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    Podman,
    Docker,
    Nspawn,
    /// podman without root; the user alice is root inside the container.
    RootlessPodman,
}

impl Runtime {
    pub const ALL: [Self; 4] = [
        Self::Podman,
        Self::Docker,
        Self::Nspawn,
        Self::RootlessPodman,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Docker => "docker",
            Self::Nspawn => "nspawn",
            Self::RootlessPodman => "rootless podman",
        }
    }

    /// Returns the account that starts the container.
    fn user(self) -> &'static str {
        match self {
            Self::RootlessPodman => "alice",
            _ => "root",
        }
    }

    /// Runs a command in a container to its end.
    pub fn run(self, command: &str) -> ShellOutput {
        let mut shell = Shell::of(self.user());
        let line = self.command_line(&mut shell, command);
        shell.run(&format!("{line} </dev/null"))
    }

    /// Prepares a container of podman with these options, but without the limits of the other checks,
    /// and returns the command line that runs a command in it.
    pub fn limited(shell: &mut Shell, options: &str, command: &str) -> String {
        let rootfs = rootfs(shell);
        format!(
            "{PODMAN} --cgroup-manager=systemd run --rm --network=none --volume=/usr:/usr:ro --volume=/usr/local:/usr/local:ro \
             {options} --rootfs {rootfs} {command}"
        )
    }

    /// Prepares a container and returns the command line that runs a command in it.
    fn command_line(self, shell: &mut Shell, command: &str) -> String {
        match self {
            Self::Podman | Self::RootlessPodman => {
                let rootfs = rootfs(shell);
                format!("{PODMAN} {OPTIONS} --rootfs {rootfs} {command}")
            }
            Self::Docker => {
                start_docker(shell);
                format!("docker {OPTIONS} box {command}")
            }
            Self::Nspawn => format!(
                "systemd-nspawn --quiet --register=no --as-pid2 --volatile=yes --directory=/ \
                 --bind-ro=/usr/local --property=AllowedCPUs=0-3 --property=CPUQuota=200% \
                 --machine=box {command}"
            ),
        }
    }
}

/// Makes a folder with the guest's own programs as the root file system of a container.
fn rootfs(shell: &mut Shell) -> String {
    let made = shell.run(
        "box=~/box && mkdir -p $box/{proc,sys,dev,tmp,run,etc,usr,root,var/lib} && \
         ln -sfn usr/bin $box/bin && ln -sfn usr/lib $box/lib && \
         ln -sfn usr/lib64 $box/lib64 && ln -sfn usr/sbin $box/sbin && \
         chmod 1777 $box/tmp && cp /etc/passwd /etc/group $box/etc && echo $box",
    );
    made.ok().trim().to_owned()
}

/// Starts docker, which [`fresh`](crate::state::fresh) stops, and imports the folder as an image.
fn start_docker(shell: &mut Shell) {
    fs::create_dir_all("/etc/docker").unwrap();
    fs::write("/etc/docker/daemon.json", DOCKER_SETTINGS).unwrap();
    let started = "systemctl start docker || { journalctl -u docker -o cat -n 9; exit 1; }";
    root(started).ok();
    let rootfs = rootfs(shell);
    root(&format!(
        "docker image inspect box >/dev/null 2>&1 || tar -C {rootfs} -c . | docker import - box"
    ))
    .ok();
}

/// Configures users' service managers to have the controller `cpuset`, which rootless podman
/// requires for a cpuset. By default systemd delegates only `cpu`, `memory` and `pids`.
pub struct Delegation;

impl Delegation {
    const DIR: &str = "/run/systemd/system/user@.service.d";

    pub fn new() -> Self {
        fs::create_dir_all(Self::DIR).unwrap();
        let lines = "[Service]\nDelegate=cpu cpuset io memory pids\n";
        fs::write(format!("{}/delegate.conf", Self::DIR), lines).unwrap();
        Self::renew();
        Self
    }

    /// Ends the user's service manager. The next login starts a service manager with the new
    /// configuration.
    fn renew() {
        root("systemctl daemon-reload; systemctl stop user@1000.service");
    }
}

impl Drop for Delegation {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Self::DIR);
        Self::renew();
    }
}

/// Checks that `usher run` and `usher bg` work in a container and pass on the exit status of the
/// program.
pub fn run_and_bg_work_inside() {
    let _delegation = Delegation::new();
    for runtime in Runtime::ALL {
        for usher in ["run", "bg"] {
            let answer = runtime.run(&format!("/usr/local/bin/usher {usher} -- sh -c 'exit 7'"));
            let name = runtime.name();
            assert_eq!(answer.status, 7, "{usher} in {name}: {}", answer.text);
        }
    }
}

/// Checks that `usher sched` is refused in a container, because the scheduler belongs to the host.
pub fn sched_is_refused_in_one_line() {
    let _delegation = Delegation::new();
    for runtime in Runtime::ALL {
        let answer = runtime.run("/usr/local/bin/usher sched start");
        let line = answer.refused();
        assert!(line.contains("CAP_BPF"), "{}: {line}", runtime.name());
    }
}

/// The state of a container's program before an attach, which a detach must restore.
#[derive(Debug, PartialEq, Eq)]
struct ContainerState {
    cgroup: PathBuf,
    cpuset: Option<String>,
    quota: Option<String>,
    mask: Option<CpuSet>,
    priority: (i32, i32),
}

impl ContainerState {
    fn of(program: &Program) -> Self {
        Self {
            cgroup: program.cgroup(),
            cpuset: program.limit("cpuset.cpus.effective", |_| true),
            quota: program.limit("cpu.max", |text| !text.starts_with("max")),
            mask: program.mask(),
            priority: program.priority(),
        }
    }
}

/// Checks that a container's program that is attached from outside keeps the container's cgroup and
/// limits, and gets a seat within the container's cpuset. After a detach its former state is
/// restored.
pub fn attach_from_outside_keeps_the_cgroup() {
    let _delegation = Delegation::new();
    start_service();
    let mut system = Shell::of("root");
    let other = Program::start(&mut system, 2);
    system.run(&format!("usher attach {}", other.pid)).ok();
    for runtime in Runtime::ALL {
        let mut shell = Shell::of(runtime.user());
        let line = runtime.command_line(&mut shell, &format!("{WORK} 3"));
        let runner = shell.start(&line);
        let payload = wait_for(&format!("the payload of {}", runtime.name()), || {
            let found = root("pgrep -x -f '/usr/local/lib/usher-lab/hosts work 3'");
            let pid = found.text.trim().parse().ok()?;
            Some(Program { pid })
        });
        payload.has_threads(3);
        let before = ContainerState::of(&payload);
        let allowed: CpuSet = "0-3".parse().unwrap();
        assert_eq!(before.mask.as_ref(), Some(&allowed), "{before:?}");
        assert_eq!(before.quota.as_deref(), Some("200000 100000"));
        shell.run(&format!("usher attach {}", payload.pid)).ok();
        let seats = disjoint(&[&payload, &other]);
        assert!(seats[0].is_subset(&allowed), "{}", seats[0]);
        assert_eq!(payload.cgroup(), before.cgroup);
        shell.run(&format!("usher detach {}", payload.pid)).ok();
        wait_for("the payload's state before the attach", || {
            (ContainerState::of(&payload) == before).then_some(())
        });
        drop(payload);
        wait_for("the container to end", || {
            (!Path::new(&format!("/proc/{runner}")).exists()).then_some(())
        });
    }
}
