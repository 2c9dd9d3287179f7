// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the test programs that load the scheduler as a shared library, and runs their tests.
//!
//! 1. Build the test programs of the crate `usher-rules` with cargo.
//! 2. Run each test once with the library without a mutation, and measure its time.
//! 3. Group the tests of a program into units: all tests that take less than 150 ms form one unit,
//!    and each other test is a unit of its own.
//! 4. For a mutant, run a unit with the mutant's library. A unit that takes longer than 10 s plus
//!    ten times its measured time is killed.
//!
//! A test program may use 4 GiB of address space. Two tests that take ten times as long as all
//! others together are skipped. In step 2, the time limit is 610 s per test; a test that fails
//! without a mutation is an error. The build has no time limit.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cargo_metadata::Message;

use super::{Error, Folders};

/// Crates and their test programs. An empty list selects all test programs of the crate.
const PROGRAMS: [(&str, &[&str]); 1] = [("usher-rules", &[])];
/// Test programs that are skipped, because they test headers that are not mutated.
const OTHERS: [&str; 5] = ["balance", "latency", "levels", "select_cpu", "share"];
/// The environment variable with the folder of the shared library. If it is set,
/// `crates/rules/build.rs` links that library.
const VARIABLE: &str = "USHER_HOST_SCHED";
/// All tests of a program that take less than this time run in one process.
const QUICK: Duration = Duration::from_millis(150);
/// Tests that are skipped, because they take ten times as long as all other tests together.
const SKIPPED: [&str; 2] = [
    "no_thread_starves_with_any_affinity",
    "no_thread_starves_with_any_weight",
];
/// Time limit of a unit, in addition to ten times its time without a mutation.
const LIMIT: Duration = Duration::from_secs(10);
/// Limit of the address space of a test program in KiB. Without it, a mutant could allocate all
/// memory of the machine.
const MEMORY_KIB: u32 = 4 << 20;

/// A unit: tests of one program that run in one process.
#[derive(Debug)]
pub struct Unit {
    /// Path of the test program.
    program: PathBuf,
    /// Name of the program, without the hash that cargo appends.
    pub name: String,
    /// Names of the tests.
    tests: Vec<String>,
    /// Time that the tests take without a mutation.
    took: Duration,
    /// Number of mutants that the tests have caught.
    caught: AtomicU32,
}

/// The result of running a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All tests passed.
    Passed,
    /// A test failed, or the program crashed.
    Failed(String),
    /// The time limit was exceeded.
    TimedOut,
}

/// Builds the test programs in a separate target folder, and measures the time of their tests.
///
/// # Errors
/// If the build fails, or if a test fails without a mutation.
pub fn build(folders: &Folders, library: &Path) -> Result<Vec<Unit>, Error> {
    let mut units = Vec::new();
    for (package, names) in PROGRAMS {
        for (name, program) in executables(folders, library, package, names)? {
            units.extend(measure(&name, &program, library)?);
        }
    }
    units.sort_by_key(|unit| unit.took);
    Ok(units)
}

fn executables(
    folders: &Folders,
    library: &Path,
    package: &str,
    names: &[&str],
) -> Result<Vec<(String, PathBuf)>, Error> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    command
        .current_dir(&folders.root)
        .args(["test", "--no-run", "--locked", "--package", package]);
    command.args(["--message-format", "json-render-diagnostics"]);
    command.arg("--target-dir").arg(folders.out.join("target"));
    for name in names {
        command.args(["--test", name]);
    }
    if names.is_empty() {
        command.args(["--lib", "--tests"]);
    }
    // Cargo passes this variable to `crates/rules/build.rs`, which makes the linker use the
    // scheduler's library.
    command.env(VARIABLE, library).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| Error::of("cargo", error))?;
    let stdout =
        child.stdout.take().into_iter().flat_map(|stdout| {
            Message::parse_stream(BufReader::new(stdout)).filter_map(Result::ok)
        });
    let mut found = Vec::new();
    for message in stdout {
        if let Message::CompilerArtifact(artifact) = message
            && let Some(program) = artifact.executable
            && artifact.profile.test
            && !OTHERS.contains(&artifact.target.name.as_str())
        {
            let name = format!("{package}/{}", artifact.target.name);
            found.push((name, program.into_std_path_buf()));
        }
    }
    let status = child.wait().map_err(|error| Error::of("cargo", error))?;
    if !status.success() || found.is_empty() {
        return Err(Error::of(format!("tests of {package}"), status));
    }
    Ok(found)
}

/// Runs each test of a program alone, measures its time, and groups the tests into units.
fn measure(name: &str, program: &Path, library: &Path) -> Result<Vec<Unit>, Error> {
    let list = command(program, library)
        .args(["--list", "--format", "terse"])
        .output();
    let list = list.map_err(|error| Error::of(name, error))?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let tests = tests.filter(|test| !SKIPPED.contains(test));
    let unit = |tests: Vec<String>, took| Unit {
        program: program.to_owned(),
        name: name.to_owned(),
        tests,
        took,
        caught: AtomicU32::new(0),
    };
    let mut units = Vec::new();
    let mut quick = unit(Vec::new(), Duration::ZERO);
    for test in tests {
        let mut one = unit(vec![test.to_owned()], Duration::from_secs(60));
        let begin = Instant::now();
        let end = one.run(library)?;
        one.took = begin.elapsed();
        if end != End::Passed {
            return Err(Error(format!(
                "{name}: {test} fails without a mutation: {end:?}"
            )));
        }
        if one.took < QUICK {
            quick.tests.append(&mut one.tests);
            quick.took += one.took;
        } else {
            units.push(one);
        }
    }
    if !quick.tests.is_empty() {
        units.push(quick);
    }
    Ok(units)
}

fn command(program: &Path, library: &Path) -> Command {
    let mut command = Command::new("sh");
    let limits = format!("ulimit -c 0; ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"");
    command.args(["-c", &limits]).arg(program);
    command.env("LD_LIBRARY_PATH", library);
    // Property tests use the same random cases for all mutants, and do not minimise or store
    // failures.
    command.envs(BTreeMap::from([
        ("PROPTEST_RNG_SEED", "1"),
        ("PROPTEST_MAX_SHRINK_ITERS", "0"),
        ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true"),
    ]));
    command
}

impl Unit {
    /// Returns the time of the unit divided by the number of caught mutants plus 1. Units with low
    /// costs run first.
    pub fn cost(&self) -> Duration {
        self.took / (self.caught.load(Ordering::Relaxed) + 1)
    }

    /// Counts a caught mutant.
    pub fn count_caught(&self) {
        self.caught.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs the tests of the unit with the library in the folder `library`.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn run(&self, library: &Path) -> Result<End, Error> {
        let failed = |error| Error::of(self.program.display(), error);
        let mut command = command(&self.program, library);
        command
            .args(["--exact", "--test-threads", "1"])
            .args(&self.tests);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(failed)?;
        let mut stdout = child.stdout.take();
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            let read = stdout.as_mut().map(|stdout| stdout.read_to_end(&mut text));
            drop(read);
            String::from_utf8_lossy(&text).into_owned()
        });
        let is_over = wait(&mut child, LIMIT + 10 * self.took).map_err(failed)?;
        let text = reader.join().unwrap_or_default();
        let status = child.wait().map_err(failed)?;
        Ok(match (is_over, status.success()) {
            (false, _) => End::TimedOut,
            (true, true) => End::Passed,
            (true, false) => End::Failed(self.culprit(&text)),
        })
    }

    /// Returns the name of the first test that has not passed, from the output of the program.
    fn culprit(&self, output: &str) -> String {
        let mut running = output.lines().filter_map(|line| line.strip_prefix("test "));
        let failed = running.find(|line| !line.ends_with(" ok"));
        let test = failed.and_then(|line| line.split(' ').next());
        format!("{} {}", self.name, test.unwrap_or("?"))
    }
}

/// Waits for the end of a process, and kills the process after the limit. Returns whether the
/// process has ended by itself.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<bool> {
    let begin = Instant::now();
    while child.try_wait()?.is_none() {
        if begin.elapsed() > limit {
            child.kill()?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    Ok(true)
}
