// SPDX-License-Identifier: MIT OR Apache-2.0
//! An engine on this machine, with files in a temporary directory, and processes for tests.

#![allow(dead_code)] // each test file uses only a part of this module

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use usher_act::ActConfig;
use usher_host::engine::{Engine, EngineConfig, ProgramStatus};
use usher_model::{CpuSet, Topology};
use usher_topology::{Source, load};

use super::{FirstCpuPolicy, allowed};

/// The user ID of root, which may make requests about all programs.
pub const ROOT: u32 = 0;

/// This machine, and a directory for the files of a test.
pub struct Bench {
    pub dir: TempDir,
    pub topology: Topology,
}

impl Bench {
    pub fn new() -> Self {
        let machine = load(Source::ThisMachine).unwrap();
        let usable = usher_topology::usable_cpus(Path::new("/")).unwrap();
        Self {
            dir: tempfile::tempdir().unwrap(),
            topology: machine.restrict(&usable).unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn config(&self) -> EngineConfig {
        EngineConfig::new(self.topology.clone(), ActConfig::new(self.path("run")))
    }

    pub fn engine(&self) -> Engine {
        Engine::start(self.config(), Box::new(FirstCpuPolicy)).unwrap()
    }

    pub fn first_cpu(&self) -> CpuSet {
        CpuSet::single(self.topology.all_cpus().first().unwrap())
    }
}

/// A process that does nothing, and ends when the value is dropped.
pub struct Idler(pub Child);

impl Idler {
    pub fn new() -> Self {
        let mut command = Command::new("cat");
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    pub fn allowed(&self) -> CpuSet {
        allowed(&self.pid().to_string()).unwrap()
    }
}

impl Drop for Idler {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub fn programs(engine: &Engine) -> Vec<ProgramStatus> {
    engine.status().unwrap().programs
}

/// Returns a command that uses this CPU time, independently of other programs.
pub fn busy(cpu_seconds: f64) -> [String; 3] {
    let code = format!("import time\nwhile time.process_time() < {cpu_seconds}: pass");
    ["python3".to_owned(), "-c".to_owned(), code]
}
