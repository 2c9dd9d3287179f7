// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs of the part `pinning` that pin their threads: by OpenMP, Open MPI, hwloc-bind,
//! taskset or system calls. This module compiles them once per part, builds their command lines,
//! and checks whether the needed compilers and tools are installed. Compilers have no time limit.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use usher_model::CpuSet;

/// The means by which a program pins its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PinningMethod {
    /// GNU OpenMP with `OMP_PROC_BIND`.
    Gnu { spread: bool },
    /// LLVM OpenMP with `OMP_PROC_BIND`.
    Llvm { spread: bool },
    /// Open MPI: two processes, each bound to a core.
    Mpi,
    /// A program started by `hwloc-bind`.
    HwlocBind,
    /// A shell that starts a program by `taskset`.
    Taskset,
    /// A program that calls `sched_setaffinity` for each of two threads.
    Own,
}

impl PinningMethod {
    /// All methods, in the order of the runs.
    pub const ALL: [Self; 8] = [
        Self::Gnu { spread: false },
        Self::Llvm { spread: false },
        Self::Mpi,
        Self::Taskset,
        Self::Gnu { spread: true },
        Self::Llvm { spread: true },
        Self::HwlocBind,
        Self::Own,
    ];

    /// Name of the method in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gnu { spread: false } => "GNU OpenMP, OMP_PROC_BIND=close",
            Self::Gnu { spread: true } => "GNU OpenMP, OMP_PROC_BIND=spread",
            Self::Llvm { spread: false } => "LLVM OpenMP, OMP_PROC_BIND=close",
            Self::Llvm { spread: true } => "LLVM OpenMP, OMP_PROC_BIND=spread",
            Self::Mpi => "Open MPI, --bind-to core",
            Self::HwlocBind => "hwloc-bind",
            Self::Taskset => "taskset called by the program",
            Self::Own => "sched_setaffinity called by each thread",
        }
    }
}

/// The folder with the compiled programs.
#[derive(Debug)]
pub struct Programs {
    dir: PathBuf,
    cpus: Vec<u32>,
}

/// Time for which a program waits before it creates its threads, and the time for which it then
/// works.
#[derive(Debug, Clone, Copy)]
pub struct ProgramTimes {
    pub wait_s: f64,
    pub work_s: f64,
}

impl Programs {
    /// Compiles the programs that all methods need into a folder.
    ///
    /// # Errors
    /// There is no C compiler.
    pub fn compile(dir: &Path, usable: &CpuSet) -> Result<Self> {
        let sources = [
            ("omp.c", include_str!("omp.c")),
            ("spin.c", include_str!("spin.c")),
        ];
        for (name, text) in sources {
            std::fs::write(dir.join(name), text)?;
        }
        let programs = Self {
            dir: dir.to_owned(),
            cpus: usable.iter().collect(),
        };
        programs
            .cc("cc", "spin.c", "spin", "-pthread")
            .context("compiling the programs that pin no threads")?;
        Ok(programs)
    }

    /// Compiles the programs of one method unless they exist, and checks its tools.
    ///
    /// # Errors
    /// A compiler or a tool is not installed; the error names it.
    pub fn prepare(&self, kind: PinningMethod) -> Result<()> {
        match kind {
            PinningMethod::Gnu { .. } => self.cc("gcc", "omp.c", "gnu", "-fopenmp"),
            PinningMethod::Llvm { .. } => self.cc("clang", "omp.c", "llvm", "-fopenmp"),
            PinningMethod::Mpi => is_installed("mpirun", "--version"),
            PinningMethod::HwlocBind => is_installed("hwloc-bind", "--version"),
            PinningMethod::Taskset => is_installed("taskset", "--version"),
            PinningMethod::Own => Ok(()),
        }
    }

    /// Returns the command line and environment of a program of a method. The number of the run,
    /// `turn`, selects the CPUs to which threads are pinned.
    pub fn command(
        &self,
        kind: PinningMethod,
        turn: usize,
        length: ProgramTimes,
    ) -> (Vec<String>, Vec<Setting>) {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let cpu = |nth: usize| self.cpus[nth % self.cpus.len()].to_string();
        let (wait, work) = (length.wait_s.to_string(), length.work_s.to_string());
        let spin = format!("{} {work} 1", path("spin"));
        let text = match kind {
            PinningMethod::Gnu { .. } => format!("{} {wait} {work}", path("gnu")),
            PinningMethod::Llvm { .. } => format!("{} {wait} {work}", path("llvm")),
            PinningMethod::Mpi => format!("mpirun -np 2 --bind-to core {spin}"),
            PinningMethod::HwlocBind => {
                format!("hwloc-bind pu:{} -- {spin}", turn % self.cpus.len())
            }
            PinningMethod::Taskset => {
                let script = format!("sleep {wait}; taskset -c {} {spin}; exit $?", cpu(turn));
                return (["sh", "-c", &script].map(str::to_owned).to_vec(), vec![]);
            }
            PinningMethod::Own => {
                format!("{} {work} 2 {} {}", path("spin"), cpu(turn), cpu(turn + 1))
            }
        };
        let bind = match kind {
            PinningMethod::Gnu { spread: true } | PinningMethod::Llvm { spread: true } => "spread",
            _ => "close",
        };
        let settings = match kind {
            PinningMethod::Gnu { .. } | PinningMethod::Llvm { .. } => {
                vec![("OMP_PROC_BIND", bind), ("OMP_PLACES", "cores")]
            }
            PinningMethod::Mpi => vec![
                ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
                ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ],
            _ => vec![],
        };
        (text.split(' ').map(str::to_owned).collect(), settings)
    }

    /// Returns the command line of a program that pins no threads.
    pub fn visitor(&self, seconds: f64, threads: usize) -> Vec<String> {
        let spin = self.dir.join("spin").display().to_string();
        vec![spin, seconds.to_string(), threads.to_string()]
    }

    fn cc(&self, compiler: &str, source: &str, program: &str, option: &str) -> Result<()> {
        let output = Command::new(compiler)
            .args(["-O1", option, "-o", program, source])
            .current_dir(&self.dir)
            .output()
            .with_context(|| format!("the compiler {compiler} is not installed"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let first = stderr.lines().next().unwrap_or_default();
        ensure!(output.status.success(), "{compiler} {option}: {first}");
        Ok(())
    }
}

/// An environment variable and its value.
pub type Setting = (&'static str, &'static str);

/// Checks that a tool can be run.
///
/// # Errors
/// The tool is not installed.
pub fn is_installed(tool: &str, option: &str) -> Result<()> {
    let mut command = Command::new(tool);
    command.arg(option).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status();
    status.with_context(|| format!("the program {tool} is not installed"))?;
    Ok(())
}
