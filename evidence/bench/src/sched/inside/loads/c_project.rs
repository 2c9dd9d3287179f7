// SPDX-License-Identifier: MIT OR Apache-2.0
//! A generated C project, which `make -j` compiles and links. The files contain functions with
//! loops and no includes, so that the compiler itself takes most of the time. The project is in a
//! temporary folder of the guest, which is in memory.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

/// Number of C files. The functions of each file have the same text, apart from constants.
const FILES: usize = 16;
const FUNCTIONS: usize = 12;
const MAKEFILE: &str = "program: $(patsubst %.c,%.o,$(wildcard *.c))
\tcc -o $@ $^
%.o: %.c
\tcc -O1 -c -o $@ $<
";

/// A project in a folder that is removed when the value is dropped.
#[derive(Debug)]
pub struct CProject {
    folder: TempDir,
}

impl CProject {
    /// Generates the project.
    pub fn generate() -> Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for a C project")?;
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).with_context(|| format!("writing {name}"))
        };
        write("Makefile", MAKEFILE)?;
        for file in 0..FILES {
            write(&format!("file{file}.c"), &source(file))?;
        }
        Ok(Self { folder })
    }

    /// Removes the results of the last build, and builds the project with `jobs` jobs.
    ///
    /// # Errors
    /// `make` or the compiler is missing or fails.
    pub fn build(&self, jobs: usize) -> Result<()> {
        clean(self.folder.path())?;
        let output = self.make(jobs).output().context("running make")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "make fails: {}",
            stderr.trim().lines().next_back().unwrap_or("no message")
        );
        Ok(())
    }

    fn make(&self, jobs: usize) -> Command {
        let mut command = Command::new("make");
        command.args(["-s", "-j", &jobs.to_string(), "-C"]);
        command.arg(self.folder.path()).stdin(Stdio::null());
        command
    }
}

/// Builds of a project, one after another, until [`RepeatedBuild::end`] is called.
#[derive(Debug)]
pub struct RepeatedBuild<'a> {
    project: &'a CProject,
    jobs: usize,
    state: Mutex<BuildState>,
}

#[derive(Debug, Default)]
struct BuildState {
    is_over: bool,
    /// Process group of the running `make`.
    group: Option<Pid>,
}

impl<'a> RepeatedBuild<'a> {
    /// Returns builds with `jobs` jobs, which do not run yet.
    pub fn new(project: &'a CProject, jobs: usize) -> Self {
        Self {
            project,
            jobs,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, BuildState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Builds until another thread calls [`Self::end`].
    ///
    /// # Errors
    /// A build fails before that call.
    pub fn run(&self) -> Result<()> {
        loop {
            clean(self.project.folder.path())?;
            let mut state = self.state();
            if state.is_over {
                return Ok(());
            }
            let mut make = self.project.make(self.jobs);
            let make = make.stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = make.process_group(0).spawn().context("running make")?;
            state.group = Pid::from_raw(child.id().cast_signed());
            drop(state);
            let status = child.wait().context("waiting for make")?;
            let mut state = self.state();
            state.group = None;
            ensure!(status.success() || state.is_over, "make fails: {status}");
        }
    }

    /// Kills the running build. No other build starts.
    pub fn end(&self) {
        let mut state = self.state();
        state.is_over = true;
        if let Some(group) = state.group {
            // The group may have ended just now.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Returns the text of a C file. File 0 has the main function.
fn source(file: usize) -> String {
    let mut text = String::new();
    for n in 0..FUNCTIONS {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "unsigned f{file}_{n}(unsigned *a, unsigned x) {{
\tunsigned s = {n};
\tfor (unsigned i = 0; i < x; i++) {{
\t\ta[i % 64] = a[(i + {n}) % 64] * {file}u + s;
\t\tif (a[i % 64] % {} == 0) s ^= i << {}; else s += a[i % 64] / (i + 1);
\t}}
\treturn s;
}}",
            n + 3,
            n % 7
        );
    }
    if file == 0 {
        text.push_str("int main(void) { unsigned a[64] = {1}; return f0_0(a, 9) & 1; }\n");
    }
    text
}

/// Removes the program and the object files of a project.
fn clean(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_object = path.extension().is_some_and(|extension| extension == "o");
        if is_object || path.file_name().is_some_and(|name| name == "program") {
            fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_remain_when_results_are_removed() {
        let project = CProject::generate().unwrap();
        let folder = project.folder.path();
        for name in ["file0.o", "program"] {
            fs::write(folder.join(name), "").unwrap();
        }
        clean(folder).unwrap();
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names.len(), FILES + 1);
        assert_eq!(names[0], "Makefile");
        assert!(names[1..].iter().all(|name| name.ends_with(".c")));
    }

    #[test]
    fn repeated_builds_end() {
        let project = CProject::generate().unwrap();
        let builds = RepeatedBuild::new(&project, 1);
        builds.end();
        builds.run().unwrap();
        let builds = RepeatedBuild::new(&project, 1);
        std::thread::scope(|scope| {
            let running = scope.spawn(|| builds.run());
            while builds.state().group.is_none() && !running.is_finished() {
                std::thread::yield_now();
            }
            builds.end();
            running.join().unwrap().unwrap();
        });
    }

    #[test]
    fn only_the_first_file_has_a_main_function() {
        assert!(source(0).contains("int main"));
        assert!(!source(1).contains("int main"));
        assert_eq!(source(1).matches("unsigned f1_").count(), FUNCTIONS);
    }
}
