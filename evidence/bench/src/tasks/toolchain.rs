// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the C++ programs of the other task runtimes from sources that this program contains,
//! and records the runtimes' versions. A program that cannot be compiled is left out and listed
//! with the reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::contestants::Program;
use super::taskflow;

const SOURCES: [(&str, &str); 7] = [
    ("workload.h", include_str!("peers/workload.h")),
    ("workload.c", include_str!("peers/workload.c")),
    ("cholesky.h", include_str!("peers/cholesky.h")),
    ("peer.h", include_str!("peers/peer.h")),
    ("onetbb.cpp", include_str!("peers/onetbb.cpp")),
    ("taskflow.cpp", include_str!("peers/taskflow.cpp")),
    ("openmp.cpp", include_str!("peers/openmp.cpp")),
];

/// Compiler options of the workload's C file, which are the same as in `build.rs`. Without
/// `-march=native`, the work of a task is the same machine code in the Rust program and in the C++
/// programs.
const C_FLAGS: [&str; 8] = [
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-ffunction-sections",
    "-fdata-sections",
    "-falign-functions=64",
    "-falign-loops=64",
    "-c",
];
const CXX_FLAGS: [&str; 5] = ["-std=c++20", "-O3", "-march=native", "-pthread", "-I."];

/// Programs that run the workload.
#[derive(Debug, Default)]
pub struct Programs {
    /// Paths of the programs.
    pub paths: BTreeMap<Program, PathBuf>,
    /// Names and versions of the runtimes, as the programs print them.
    pub versions: Vec<String>,
    /// Programs that could not be compiled, with the reasons.
    pub missing: Vec<String>,
}

/// Compiles the wanted programs in a folder. A program that cannot be compiled is added to
/// [`Programs::missing`] with the reason.
///
/// # Errors
/// The folder is not writable, or there is no C compiler.
pub fn build(
    folder: &Path,
    wanted: &[Program],
    taskflow_folder: Option<&Path>,
) -> Result<Programs> {
    let mut programs = Programs::default();
    programs
        .paths
        .insert(Program::Own, std::env::current_exe()?);
    let foreign = wanted.iter().filter(|&&program| program != Program::Own);
    if foreign.clone().next().is_none() {
        return Ok(programs);
    }
    for (name, text) in SOURCES {
        fs::write(folder.join(name), text)
            .with_context(|| format!("writing the source file {name} into {}", folder.display()))?;
    }
    let object = ["workload.c", "-o", "workload.o"];
    compile(folder, "cc", C_FLAGS.into_iter().chain(object))?;
    for &program in foreign {
        match build_one(folder, program, taskflow_folder) {
            Ok((path, version)) => {
                programs.paths.insert(program, path);
                programs.versions.push(version);
            }
            Err(error) => programs.missing.push(format!("{error:#}")),
        }
    }
    Ok(programs)
}

fn build_one(
    folder: &Path,
    program: Program,
    taskflow_folder: Option<&Path>,
) -> Result<(PathBuf, String)> {
    let (name, compiler, source, more): (_, _, _, Vec<String>) = match program {
        Program::Own => bail!("Usher's program is part of usher-bench and is not built here"),
        Program::OneTbb => ("onetbb", "g++", "onetbb.cpp", vec!["-ltbb".into()]),
        Program::GnuOpenMp => ("gnu-openmp", "g++", "openmp.cpp", vec!["-fopenmp".into()]),
        Program::LlvmOpenMp => (
            "llvm-openmp",
            "clang++",
            "openmp.cpp",
            vec!["-fopenmp".into()],
        ),
        Program::Taskflow => {
            let headers =
                taskflow::headers(taskflow_folder).context("the runtime Taskflow is left out")?;
            let include = format!("-I{}", headers.display());
            ("taskflow", "g++", "taskflow.cpp", vec![include])
        }
    };
    eprintln!("tasks: compiling {source} with {compiler}");
    let words = [source, "workload.o", "-o", name];
    let words = CXX_FLAGS.into_iter().chain(words);
    compile(
        folder,
        compiler,
        words.chain(more.iter().map(String::as_str)),
    )
    .with_context(|| {
        format!(
            "the runtime {name} is left out (scripts/setup bench installs its compiler and library)"
        )
    })?;
    let path = folder.join(name);
    let output = Command::new(&path).arg("version").output();
    let output = output.with_context(|| format!("running {}", path.display()))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(
        output.status.success(),
        "the program {name} does not print its version"
    );
    Ok((path, version))
}

fn compile<'a>(folder: &Path, compiler: &str, words: impl Iterator<Item = &'a str>) -> Result<()> {
    let output = Command::new(compiler)
        .args(words)
        .current_dir(folder)
        .output()
        .with_context(|| format!("the compiler {compiler} is not installed"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let error = stderr.lines().find(|line| line.contains("error"));
    let error = error.or(stderr.lines().next()).unwrap_or("no reason given");
    ensure!(output.status.success(), "{compiler}: {error}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::contestants::{
        Contestant, FORK_JOIN, LOOPS, SPAWNING_PEERS, TOKENS, WAVEFRONT_PEERS,
    };

    /// Compiles the peers that have their libraries installed. Each program checks its own results.
    #[test]
    fn peers_do_what_they_should_in_every_form() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = [Program::OneTbb, Program::GnuOpenMp, Program::LlvmOpenMp];
        let programs = build(folder.path(), &wanted, None).unwrap();
        for missing in &programs.missing {
            eprintln!("not tested: {missing}");
        }
        let run = |one: &Contestant, workload: &str| {
            let Some(path) = programs.paths.get(&one.program) else {
                return;
            };
            for threads in ["1", "2"] {
                let mut command = Command::new(path);
                command.args([one.form, threads, "0", "2"]);
                let output = command.args(workload.split(' ')).output().unwrap();
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{}: {stderr}", one.label);
            }
        };
        let is_foreign = |one: &&Contestant| one.program != Program::Own;
        for one in WAVEFRONT_PEERS
            .iter()
            .chain(&SPAWNING_PEERS)
            .chain(&TOKENS)
            .filter(is_foreign)
        {
            run(one, "wavefront 20 12 4 empty compute:9 memory:192");
        }
        FORK_JOIN
            .iter()
            .filter(is_foreign)
            .for_each(|one| run(one, "fib 12"));
        for one in LOOPS.iter().filter(is_foreign) {
            run(one, "loop 5000 for-equal:3 for-ramp:3 sum-cluster:3");
        }
    }
}
