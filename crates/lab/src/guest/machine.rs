// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets up the guest as a Linux system: mounts the file systems of the kernel and cgroup v2 with
//! the usual controllers, starts the loopback interface, and takes CPUs offline. Also removes the
//! limit of locked memory. The first failed step refuses the job, and the guest then ends. Only the
//! host name is set without a check.

use std::ffi::CString;
use std::fs;
use std::path::Path;

use rustix::mount::MountFlags;
use rustix::process::{Resource, Rlimit};
use usher_model::CpuSet;

use super::refusal::Refusal;
use crate::job::GuestJob;

const CGROUPS: &str = "/sys/fs/cgroup";
/// The cgroup controllers that are enabled in the root cgroup, as on a machine with systemd.
const CONTROLLERS: &str = "+cpuset +cpu +io +memory +pids";
const CPUS: &str = "/sys/devices/system/cpu";

/// Mounts a file system.
pub(super) fn mount(
    source: &str,
    place: impl AsRef<Path>,
    kind: &str,
    data: &str,
) -> Result<(), Refusal> {
    let place = place.as_ref();
    let doing = || format!("mounting {kind} at {}", place.display());
    let data = CString::new(data).map_err(|why| Refusal::because(doing(), why))?;
    rustix::mount::mount(source, place, kind, MountFlags::empty(), data.as_c_str())
        .map_err(|why| Refusal::because(doing(), why))
}

/// Mounts `/proc`, `/sys` and `/dev`, which all further steps need.
pub(super) fn mount_first() -> Result<(), Refusal> {
    for (place, kind) in [("/proc", "proc"), ("/sys", "sysfs"), ("/dev", "devtmpfs")] {
        mount(kind, place, kind, "")?;
    }
    Ok(())
}

/// Returns the kernel's release.
pub(super) fn release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// Mounts the remaining file systems, starts the loopback interface, and takes the CPUs of the job
/// offline.
pub(super) fn arrange(job: &GuestJob) -> Result<(), Refusal> {
    for (place, kind, data) in [
        ("/dev/pts", "devpts", "mode=620,ptmxmode=666"),
        ("/dev/shm", "tmpfs", "mode=1777"),
        ("/dev/mqueue", "mqueue", ""),
    ] {
        fs::create_dir_all(place)
            .map_err(|why| Refusal::because(format!("making {place}"), why))?;
        mount(kind, place, kind, data)?;
    }
    for (place, kind, data) in [
        ("/sys/fs/bpf", "bpf", "mode=700"),
        (CGROUPS, "cgroup2", "nsdelegate,memory_recursiveprot"),
        ("/sys/kernel/debug", "debugfs", ""),
        ("/sys/kernel/tracing", "tracefs", ""),
    ] {
        mount(kind, place, kind, data)?;
    }
    for (name, target) in [
        ("fd", ""),
        ("stdin", "/0"),
        ("stdout", "/1"),
        ("stderr", "/2"),
    ] {
        let (from, to) = (
            format!("/proc/self/fd{target}"),
            Path::new("/dev").join(name),
        );
        std::os::unix::fs::symlink(&from, &to)
            .map_err(|why| Refusal::because(format!("making {}", to.display()), why))?;
    }
    write(
        &Path::new(CGROUPS).join("cgroup.subtree_control"),
        CONTROLLERS,
    )?;
    let _ = rustix::system::sethostname(b"usher-lab");
    loopback().map_err(|why| Refusal::because("bringing up the loopback interface", why))?;
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    rustix::process::setrlimit(Resource::Memlock, unlimited)
        .map_err(|why| Refusal::because("lifting the limit of locked memory", why))?;
    take_offline(&job.cpus_off)
}

fn write(path: &Path, text: &str) -> Result<(), Refusal> {
    fs::write(path, text)
        .map_err(|why| Refusal::because(format!("writing '{text}' to {}", path.display()), why))
}

fn take_offline(cpus: &CpuSet) -> Result<(), Refusal> {
    let mut paths = cpus
        .iter()
        .map(|cpu| Path::new(CPUS).join(format!("cpu{cpu}/online")));
    paths.try_for_each(|path| write(&path, "0"))
}

fn loopback() -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: an `ifreq` consists of numbers, for which 0 is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: `socket` is open, and `request` is a complete `ifreq` that exists during the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
