// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the sched_ext schedulers of other projects (peers) from crates.io. With the option
//! `--peers`, `cargo install` builds pinned versions into the cache of the lab; results of
//! different versions would not be comparable.
//!
//! A build takes about 5 minutes of CPU time per peer and has no time limit. A failed build ends
//! the run before the first measurement.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use usher_lab::LabCache;

use super::lab;
use super::schedulers::{ComparedScheduler, Peer};

/// Crates with their pinned versions.
const PEERS: [(&str, &str); 2] = [("scx_bpfland", "1.1.4"), ("scx_rusty", "1.1.4")];
/// Compiler of the peers' BPF programs, which is also the compiler of Usher's BPF programs.
const CLANG: &str = "clang-19";

/// Returns all peers. Peers that are not in the cache of the lab are built.
///
/// # Errors
/// A peer cannot be built; the error is one line with the peer's name and the last line of cargo's
/// output.
pub fn built() -> Result<Vec<ComparedScheduler>> {
    let cache = LabCache::open(lab::cache().as_deref())?;
    let peer = |&(name, version): &(&str, &str)| {
        Ok(ComparedScheduler::Peer(Peer {
            name: name.to_owned(),
            version: version.to_owned(),
            program: program(cache.root(), name, version)?,
        }))
    };
    PEERS.iter().map(peer).collect()
}

/// Names of the peers, for a note that they were not measured.
pub fn names() -> String {
    let names = PEERS.map(|(name, version)| format!("{name} {version}"));
    names.join(" and ")
}

fn program(cache: &Path, name: &str, version: &str) -> Result<PathBuf> {
    let root = cache.join("peers").join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if program.is_file() {
        return Ok(program);
    }
    eprintln!(
        "sched: building the scheduler {name} {version} (5 minutes of CPU time; kept in {})",
        root.display()
    );
    let output = Command::new("cargo")
        .args([
            "install",
            "--locked",
            "--quiet",
            "--version",
            version,
            "--root",
        ])
        .arg(&root)
        .arg(name)
        .env("BPF_CLANG", CLANG)
        .stdin(Stdio::null())
        .output()
        .context("running cargo to build a peer scheduler")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rfind(|line| !line.trim().is_empty());
    ensure!(
        output.status.success() && program.is_file(),
        "cargo cannot build the scheduler {name} {version}: {}",
        last.unwrap_or("no reason given").trim()
    );
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_peer_is_not_built_again() {
        let cache = tempfile::tempdir().unwrap();
        let bin = cache.path().join("peers/scx_x-1/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("scx_x"), "").unwrap();
        let found = program(cache.path(), "scx_x", "1").unwrap();
        assert_eq!(found, bin.join("scx_x"));
    }
}
