// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the meter is set up.

use std::path::PathBuf;

/// Services that are always on: what they use is neither foreground nor
/// background. Their use follows from what others do, or is so small and so
/// steady that background work would never run beside it.
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

/// How the meter is set up.
#[derive(Debug, Clone)]
pub struct MeterConfig {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// Whether BPF may be used; `false` forces the fallback.
    pub bpf: bool,
    /// Names of always-on services as in `/proc/PID/comm`: at most 15 bytes,
    /// longer ones are cut as the kernel cuts them.
    pub ignore: Vec<String>,
    /// The bell rings when foreground work uses a device that background work
    /// used this recently, in nanoseconds.
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
