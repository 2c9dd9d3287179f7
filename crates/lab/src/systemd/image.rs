// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the disk of a Debian release with systemd. `make-image.sh` builds a disk once, and the
//! disk is cached under a name that depends on the script and on the packages. If the script or the
//! packages change, a new disk is built. The build has no time limit and is not retried. Missing
//! tools and a host that is not x86-64 or lacks root's rights are errors.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;

use crate::LabError;
use crate::apt::{run, system_archive};
use crate::cache::LabCache;

/// The script that builds a disk.
const SCRIPT: &str = include_str!("make-image.sh");
/// Kind of disks in the cache.
const KIND: &str = "systemd-images";
/// The kernel's name for the partition with the root file system. The script writes the
/// corresponding signature to the disk.
pub(super) const ROOT: &str = "PARTUUID=75736872-01";
/// Programs that are needed to build and boot a disk.
const TOOLS: [(&str, &str); 3] = [
    ("mmdebstrap", "--version"),
    ("mke2fs", "-V"),
    ("qemu-system-x86_64", "--version"),
];

/// A release of Debian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Debian 12: systemd 252, Linux 6.1.
    Bookworm,
    /// Debian 13: systemd 257, Linux 6.12.
    Trixie,
}

impl Suite {
    /// Returns the code name of the release.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the reason why guests with systemd cannot run on this host; `None` if they can.
pub fn missing() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the host is not an x86-64 machine".to_owned());
    }
    if !rustix::process::geteuid().is_root() {
        return Some("building the disk of the guest requires root".to_owned());
    }
    let lacks = |(tool, option): &&(&str, &str)| Command::new(tool).arg(option).output().is_err();
    let (tool, _) = TOOLS.iter().find(lacks)?;
    Some(format!("{tool} cannot be run; run scripts/setup lab"))
}

/// Builds the disk of a release with additional packages if it is not cached. Returns the disk's
/// path.
///
/// # Errors
/// If a tool or package is missing, or if the archive is not reachable.
pub fn prepare(cache: &LabCache, suite: Suite, packages: &[String]) -> Result<PathBuf, LabError> {
    if let Some(what) = missing() {
        let remedy = "guests with systemd cannot run on this host".to_owned();
        return Err(LabError::Missing { what, remedy });
    }
    let dir = cache.get_or_add(KIND, &name(suite, packages), |into| {
        eprintln!("lab: building a guest disk with {suite} and systemd");
        let archive = system_archive()?;
        let doing = format!("building a guest disk with {suite}");
        let mut bash = Command::new("bash");
        bash.args(["-c", SCRIPT, "make-image.sh", suite.name(), &archive]);
        run(&doing, bash.arg(into).args(packages)).map(drop)
    })?;
    Ok(dir.join("disk"))
}

/// Returns the name of a disk in the cache. The name contains a hash of the script and of the
/// packages, so that a change of the script or the packages leads to a new disk.
fn name(suite: Suite, packages: &[String]) -> String {
    let mut hasher = DefaultHasher::new();
    (SCRIPT, packages).hash(&mut hasher);
    format!("{suite}-{:016x}", hasher.finish())
}
