// SPDX-License-Identifier: GPL-2.0-only
//! How to get a kernel with sched_ext on the distribution of this host, for `usher doctor`.
//!
//! The distribution comes from `os-release` (`ID`, `VERSION_ID`, `VERSION_CODENAME`). docs/sched.md
//! has the table of distributions with its sources. For other distributions, there is no advice.

use std::fs;
use std::path::Path;

/// Returns the advice for this host; `root` is the root of its file system.
pub fn advice(root: &Path) -> Option<&'static str> {
    let files = ["etc/os-release", "usr/lib/os-release"].into_iter();
    let text = files.filter_map(|file| fs::read_to_string(root.join(file)).ok());
    advice_for(&text.into_iter().next()?)
}

fn advice_for(os_release: &str) -> Option<&'static str> {
    let value = |key: &str| {
        let mut lines = os_release.lines();
        let found = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_default().trim_matches(['"', '\''])
    };
    let version = value("VERSION_ID").split('.').next();
    let major = version.and_then(|major| major.parse::<u32>().ok());
    match (value("ID"), major) {
        ("debian", Some(13)) => Some(
            "the kernel of Debian 13 was built without sched_ext: add the suite trixie-backports, \
             and install its kernel with 'apt install -t trixie-backports linux-image-amd64'",
        ),
        ("debian", Some(..13)) => Some(
            "no kernel of this Debian release has sched_ext: upgrade to Debian 13 with the kernel \
             of trixie-backports",
        ),
        ("debian", _) => Some("install the newest kernel with 'apt install linux-image-amd64'"),
        ("ubuntu", Some(..25)) => Some(
            "kernels with sched_ext are in Ubuntu 25.04 and newer: upgrade with 'do-release-upgrade'",
        ),
        ("ubuntu", _) => Some("install the newest kernel with 'apt install linux-generic'"),
        ("fedora", _) => Some(
            "kernels of Fedora have sched_ext since Linux 6.12: install the newest one with 'dnf \
             upgrade kernel'",
        ),
        ("arch", _) => Some("install the newest kernel with 'pacman -Syu linux'"),
        ("opensuse-tumbleweed", _) => Some("install the newest kernel with 'zypper dup'"),
        ("nixos", _) => Some("set boot.kernelPackages = pkgs.linuxPackages_latest"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_package_of_each_known_distribution() {
        for (text, part) in [
            (
                "ID=debian\nVERSION_ID=\"13\"\n",
                "-t trixie-backports linux-image-amd64",
            ),
            ("ID=debian\nVERSION_ID=\"12\"\n", "upgrade to Debian 13"),
            (
                "ID=debian\nVERSION_CODENAME=forky\n",
                "apt install linux-image-amd64",
            ),
            (
                "NAME=\"Ubuntu\"\nID=ubuntu\nVERSION_ID=\"24.04\"\n",
                "do-release-upgrade",
            ),
            ("ID=ubuntu\nVERSION_ID=\"25.10\"\n", "linux-generic"),
            ("ID=fedora\nVERSION_ID=41\n", "dnf upgrade kernel"),
            ("ID=arch\n", "pacman -Syu linux"),
            (
                "ID=\"opensuse-tumbleweed\"\nVERSION_ID=\"20261101\"\n",
                "zypper dup",
            ),
            ("ID=nixos\nVERSION_ID=\"25.11\"\n", "linuxPackages_latest"),
        ] {
            let advice = advice_for(text).unwrap_or_default();
            assert!(advice.contains(part), "{text}: {advice}");
        }
        assert_eq!(advice_for("ID=slackware\nVERSION_ID=15\n"), None);
        assert_eq!(advice_for(""), None);
    }

    #[test]
    fn reads_the_file_of_the_host() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(advice(root.path()), None);
        let folder = root.path().join("usr/lib");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("os-release"), "ID=arch\n").unwrap();
        assert!(advice(root.path()).is_some());
    }
}
