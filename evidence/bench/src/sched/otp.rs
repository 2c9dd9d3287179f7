// SPDX-License-Identifier: MIT OR Apache-2.0
//! Provides Erlang for the parts `erlang` and `elapsed`. Debian's packages are downloaded into the
//! cache of the lab and unpacked there, but not installed. The program of the virtual machines
//! (`big.erl`) is compiled into the folder of results.
//!
//! The download and the compiler have no time limit here. After an error, the parts are not
//! measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use usher_lab::LabCache;

use super::lab::cache;
use super::messages::GuestLoad;

const PACKAGE: &str = "erlang-base";
const BIG: &str = include_str!("big.erl");

/// Size of a virtual machine of Erlang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmSize {
    /// Number of scheduler threads.
    pub schedulers: usize,
    /// Number of Erlang processes.
    pub processes: usize,
}

impl VmSize {
    /// Returns the size in paper 4: two scheduler threads, as the paper's machine has two cores.
    pub fn of_paper(processes: usize) -> Self {
        Self {
            schedulers: 2,
            processes,
        }
    }
}

/// An unpacked installation of Erlang.
#[derive(Debug)]
pub struct Erlang {
    root: PathBuf,
    /// Folder with the executables of Erlang.
    programs: PathBuf,
}

impl Erlang {
    /// Returns the Erlang in the cache of the lab. On the first call, downloads and unpacks it.
    pub fn fetched() -> Result<Self> {
        let cache = LabCache::open(cache().as_deref())?;
        let root = usher_lab::packages::unpacked(&cache, PACKAGE)?;
        let home = root.join("usr/lib/erlang");
        let entries = fs::read_dir(&home).with_context(|| format!("reading {}", home.display()))?;
        let runtime = entries.flatten().map(|entry| entry.path()).find(|path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with("erts-")
        });
        let runtime = runtime.with_context(|| {
            format!(
                "the directory {} contains no Erlang runtime",
                home.display()
            )
        })?;
        Ok(Self {
            programs: runtime.join("bin"),
            root,
        })
    }

    /// Version of Erlang, taken from the name of the runtime's folder: `erts-13.1.5`.
    pub fn version(&self) -> String {
        let name = self.programs.parent().and_then(Path::file_name);
        name.unwrap_or_default().to_string_lossy().into_owned()
    }

    fn program(&self) -> PathBuf {
        self.programs.join("erlexec")
    }

    /// Returns the environment that the script `erl` would set, with the path of the unpacked
    /// libraries.
    fn environment(&self) -> BTreeMap<String, String> {
        let home = self.root.join("usr/lib/erlang");
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
        let libraries = libraries.map(|dir| self.root.join(dir).display().to_string());
        let all = [
            ("ROOTDIR", home.display().to_string()),
            ("BINDIR", self.programs.display().to_string()),
            ("EMU", "beam".to_owned()),
            ("PROGNAME", "erl".to_owned()),
            ("LD_LIBRARY_PATH", libraries.join(":")),
        ];
        all.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Compiles the program `big.erl` into a folder.
    fn compile(&self, into: &Path) -> Result<()> {
        fs::create_dir_all(into).with_context(|| format!("making {}", into.display()))?;
        let source = into.join("big.erl");
        fs::write(&source, BIG).with_context(|| format!("writing {}", source.display()))?;
        let compile = "case compile:file(\"big.erl\") of {ok, _} -> halt(0); _ -> halt(1) end.";
        let output = Command::new(self.program())
            .args(["-noshell", "-boot", "start_clean", "-eval", compile])
            .envs(self.environment())
            .current_dir(into)
            .stdin(Stdio::null())
            .output()
            .context("starting Erlang")?;
        ensure!(
            output.status.success(),
            "the Erlang compiler fails on {}: {}",
            source.display(),
            String::from_utf8_lossy(&output.stdout).trim()
        );
        Ok(())
    }

    /// Returns a load with each of the numbers `vms` of virtual machines.
    pub fn load(&self, folder: &Path, vms: Vec<usize>, size: VmSize) -> Result<GuestLoad> {
        let folder = folder.join("erlang");
        self.compile(&folder)?;
        let folder = fs::canonicalize(&folder).context("finding the directory of the results")?;
        let program = self.program().display().to_string();
        let path = folder.display().to_string();
        let processes = size.processes.to_string();
        let schedulers = format!("+S {0}:{0}", size.schedulers);
        // The options switch off busy waiting of Erlang's scheduler threads, which would take CPU
        // time from other threads.
        let words = "+sbwt none +sbwtdcpu none +sbwtdio none -noshell -boot start_clean";
        let words = schedulers.split(' ').chain(words.split(' '));
        let command = [program.as_str()].into_iter().chain(words);
        let run = ["-pa", &path, "-run", "big", "start", &processes];
        Ok(GuestLoad::Erlang {
            vms,
            command: command.chain(run).map(str::to_owned).collect(),
            environment: self.environment(),
            sleeper: false,
            of_peers: false,
        })
    }
}
