// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's Erlang, downloaded into the lab's cache and unpacked but not installed, and the program
//! (`big.erl`) that its virtual machines run in the parts `erlang` and `elapsed`. The program is
//! compiled into the folder of results.

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

/// An unpacked Erlang.
#[derive(Debug)]
pub struct Erlang {
    root: PathBuf,
    /// The folder of its programs.
    programs: PathBuf,
}

impl Erlang {
    /// Erlang from the lab's cache, downloaded if it is not there.
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

    /// Version as in the name of its runtime: `erts-13.1.5`.
    pub fn version(&self) -> String {
        let name = self.programs.parent().and_then(Path::file_name);
        name.unwrap_or_default().to_string_lossy().into_owned()
    }

    fn program(&self) -> PathBuf {
        self.programs.join("erlexec")
    }

    /// The environment that the script `erl` would set, with the path of the unpacked libraries.
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

    /// Compiles the benchmark into a folder.
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

    /// A load of `vms` virtual machines, one number after the other. Each has two schedulers and
    /// `processes` processes.
    pub fn load(&self, folder: &Path, vms: Vec<usize>, processes: usize) -> Result<GuestLoad> {
        let folder = folder.join("erlang");
        self.compile(&folder)?;
        let folder = fs::canonicalize(&folder).context("finding the directory of the results")?;
        let program = self.program().display().to_string();
        let path = folder.display().to_string();
        let processes = processes.to_string();
        // Without busy waiting: on shared CPUs it would take time from other threads.
        let words = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -noshell -boot start_clean";
        let command = [program.as_str()].into_iter().chain(words.split(' '));
        let run = ["-pa", &path, "-run", "big", "start", &processes];
        Ok(GuestLoad::Erlang {
            vms,
            command: command.chain(run).map(str::to_owned).collect(),
            environment: self.environment(),
            sleeper: false,
        })
    }
}
