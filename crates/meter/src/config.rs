// SPDX-License-Identifier: MIT OR Apache-2.0
//! Configuration of the meter: the roots of `/proc` and `/sys`, whether BPF may be used, and the
//! services that the meter ignores. The kernel truncates names of processes to 15 bytes; the names
//! of services are compared in this form. At most 1024 services can be configured.

use std::path::PathBuf;

/// The names of services that always run. The use by these services counts neither as foreground
/// nor as background. A part of this use is caused by other programs. The rest is small but steady:
/// if it counted as foreground, background work would never run.
pub const SERVICES: [&str; 32] = [
    "NetworkManager",
    "Xorg",
    "Xwayland",
    "accounts-daemon",
    "at-spi2-registr",
    "avahi-daemon",
    "chronyd",
    "cron",
    "dbus-broker",
    "dbus-daemon",
    "gnome-shell",
    "irqbalance",
    "kwin_wayland",
    "kwin_x11",
    "mutter",
    "pipewire",
    "pipewire-pulse",
    "plasmashell",
    "polkitd",
    "pulseaudio",
    "rsyslogd",
    "rtkit-daemon",
    "sway",
    "systemd-journal",
    "systemd-logind",
    "systemd-network",
    "systemd-oomd",
    "systemd-resolve",
    "systemd-timesyn",
    "systemd-udevd",
    "upowerd",
    "wireplumber",
];

/// Configuration of the meter.
#[derive(Debug, Clone)]
pub struct MeterConfig {
    /// The mount point of procfs.
    pub proc: PathBuf,
    /// The mount point of sysfs.
    pub sys: PathBuf,
    /// Whether BPF may be used; `false` forces the fallback.
    pub bpf: bool,
    /// Names of always-on services as in `/proc/PID/comm`; longer names are truncated to 15
    /// bytes, as the kernel does.
    pub ignore: Vec<String>,
    /// Foreground use of a device causes a notification if background work has used the device
    /// within this time before, in nanoseconds.
    pub recent_ns: u64,
}

impl Default for MeterConfig {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            bpf: true,
            ignore: SERVICES.map(str::to_owned).to_vec(),
            recent_ns: 100_000_000,
        }
    }
}
