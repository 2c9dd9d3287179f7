// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the sched_ext schedulers of other projects (peers) from crates.io. With the option
//! `--peers`, `cargo install` builds pinned versions into the cache of the lab; results of
//! different versions would not be comparable.
//!
//! A build takes 5 to 15 minutes of CPU time per peer and has no time limit. The builds share a
//! folder, which is removed when all peers are built. A peer that cannot be built is not compared, and
//! a note gives the reason.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use usher_lab::LabCache;

use super::lab;
use super::schedulers::{ComparedScheduler, Peer};

/// A crate with its pinned version, and the options with which its program is compared.
struct PeerCrate {
    name: &'static str,
    version: &'static str,
    variants: &'static [&'static [&'static str]],
}

/// Default options only.
const DEFAULT: &[&[&str]] = &[&[]];

/// All peers.
const PEERS: [PeerCrate; 5] = [
    PeerCrate {
        name: "scx_bpfland",
        version: "1.1.4",
        variants: DEFAULT,
    },
    PeerCrate {
        name: "scx_lavd",
        version: "1.1.4",
        variants: &[&[], &["--performance"]],
    },
    PeerCrate {
        name: "scx_layered",
        version: "1.1.4",
        // The program requires a specification of layers. This option selects its example.
        variants: &[&["--run-example"]],
    },
    PeerCrate {
        name: "scx_rusty",
        version: "1.1.4",
        variants: DEFAULT,
    },
    PeerCrate {
        name: "scx_cosmos",
        version: "1.1.7",
        variants: DEFAULT,
    },
];
/// Compiler of the peers' BPF programs, which is also the compiler of Usher's BPF programs.
const CLANG: &str = "clang-19";
/// Folder of the peers in the cache of the lab, and folder of the builds in it.
const FOLDER: &str = "peers";
const BUILDS: &str = "build";

/// The peers that could be built.
#[derive(Debug, Default)]
pub struct BuiltPeers {
    /// The peers, once for each variant of their options.
    pub schedulers: Vec<ComparedScheduler>,
    /// For each peer that could not be built, one line with its name and the reason.
    pub notes: Vec<String>,
}

/// Returns all peers. Peers that are not in the cache of the lab are built.
///
/// # Errors
/// The cache of the lab cannot be opened.
pub fn built() -> Result<BuiltPeers> {
    let cache = LabCache::open(lab::cache().as_deref())?;
    let folder = cache.root().join(FOLDER);
    let mut all = BuiltPeers::default();
    let were_present = PEERS.iter().all(|peer| peer.path(&folder).is_file());
    for peer in &PEERS {
        match peer.program(&folder) {
            Ok(program) => all.schedulers.extend(peer.schedulers(&program)),
            Err(error) => {
                eprintln!("sched: {error:#}");
                all.notes.push(format!("Not compared: {error:#}."));
            }
        }
    }
    if !were_present && all.notes.is_empty() {
        // A folder that cannot be removed only takes space.
        let _ = std::fs::remove_dir_all(folder.join(BUILDS));
    }
    Ok(all)
}

/// Names of the peers, for a note that they were not measured.
pub fn names() -> String {
    let names = PEERS.map(|peer| format!("{} {}", peer.name, peer.version));
    names.join(", ")
}

impl PeerCrate {
    /// Path of the built program.
    fn path(&self, folder: &Path) -> PathBuf {
        self.root(folder).join("bin").join(self.name)
    }

    fn root(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}-{}", self.name, self.version))
    }

    /// Returns the program of the peer. Builds the peer if it is not in the folder.
    fn program(&self, folder: &Path) -> Result<PathBuf> {
        let (root, program) = (self.root(folder), self.path(folder));
        if program.is_file() {
            return Ok(program);
        }
        let name = format!("{} {}", self.name, self.version);
        eprintln!(
            "sched: building the scheduler {name} (5 to 15 minutes of CPU time; kept in {})",
            root.display()
        );
        let output = Command::new("cargo")
            .args(["install", "--locked", "--quiet", "--version", self.version])
            .arg("--root")
            .arg(&root)
            .arg(self.name)
            .env("BPF_CLANG", CLANG)
            .env("CARGO_TARGET_DIR", folder.join(BUILDS))
            .stdin(Stdio::null())
            .output()
            .context("running cargo to build a peer scheduler")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success() && program.is_file(),
            "cargo cannot build the scheduler {name}: {}",
            reason(&stderr)
        );
        Ok(program)
    }

    /// Returns a scheduler for each variant.
    fn schedulers(&self, program: &Path) -> Vec<ComparedScheduler> {
        let variant = |options: &&[&str]| {
            ComparedScheduler::Peer(Peer {
                name: self.name.to_owned(),
                version: self.version.to_owned(),
                program: program.to_owned(),
                options: options.iter().map(|&option| option.to_owned()).collect(),
            })
        };
        self.variants.iter().map(variant).collect()
    }
}

/// Returns the first error message of cargo, or else its last line.
fn reason(stderr: &str) -> &str {
    let mut lines = stderr
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let first = lines.clone().find(|line| line.starts_with("error"));
    first.or(lines.next_back()).unwrap_or("no reason given")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_peer_is_not_built_again() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("scx_x-1/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("scx_x"), "").unwrap();
        let peer = PeerCrate {
            name: "scx_x",
            version: "1",
            variants: DEFAULT,
        };
        assert_eq!(peer.program(folder.path()).unwrap(), bin.join("scx_x"));
    }

    #[test]
    fn each_variant_is_a_scheduler() {
        let labels: Vec<String> = PEERS
            .iter()
            .flat_map(|peer| peer.schedulers(Path::new("x")))
            .map(|scheduler| scheduler.label())
            .collect();
        assert_eq!(labels.len(), 6);
        assert!(labels.contains(&"scx_lavd 1.1.4 --performance".to_owned()));
        assert!(labels.contains(&"scx_cosmos 1.1.7".to_owned()));
    }

    #[test]
    fn the_first_error_is_the_reason() {
        assert_eq!(
            reason("  Compiling x\nerror: no y\n\nerror: z\n"),
            "error: no y"
        );
        assert_eq!(reason("one\ntwo\n\n"), "two");
        assert_eq!(reason(""), "no reason given");
    }
}
