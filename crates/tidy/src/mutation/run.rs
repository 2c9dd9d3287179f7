// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles each mutant and runs the tests with it, in several threads.
//!
//! 1. Each thread has a copy of the sources, and takes the next mutant that no thread has taken.
//! 2. The thread writes the mutated header and compiles the library without optimisation.
//! 3. The thread runs the units of tests with the library in order of increasing cost, until a test
//!    fails.
//! 4. If all tests pass, the thread compiles the library with optimisation. If the object code is
//!    equal to that of the original, the mutant is equivalent to the original; otherwise it is a
//!    survivor.
//! 5. The thread restores the header.
//!
//! The caller sets the number of threads, 2 by default. An error ends only its thread. The other
//! threads test the remaining mutants, and then the first error is returned instead of the results.
//! Progress is printed at most every 30 s per thread.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::library::{Compiled, Level, Library};
use super::mutants::Mutant;
use super::programs::{End, Unit};
use super::{Error, Folders};

/// The result of testing a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The mutant does not compile.
    Rejected,
    /// The compiler creates the same object code as for the original.
    Equal,
    /// This test failed, crashed or exceeded its time limit.
    Caught(String),
    /// All tests passed.
    Survived,
}

/// A mutant and the result of testing it.
#[derive(Debug, Clone)]
pub struct Tested {
    /// The mutant.
    pub mutant: Mutant,
    /// The result of the test.
    pub outcome: Outcome,
}

/// Interval at which a thread prints the progress.
const PROGRESS: Duration = Duration::from_secs(30);

/// Tests all mutants.
///
/// # Errors
/// If a file cannot be copied or written, or if a program cannot be started.
pub fn run(
    folders: &Folders,
    original: &Library,
    units: &[Unit],
    mutants: &[Mutant],
    jobs: usize,
) -> Result<Vec<Tested>, Error> {
    let sources = sources(folders, mutants)?;
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    let began = Instant::now();
    let work = |job: usize| -> Result<(), Error> {
        let folder = folders
            .out
            .join(format!("job-{}-{job}", std::process::id()));
        let library = Library::new(&folders.root, &folder)?;
        let mut reported = Instant::now();
        while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
            let source = &sources[&mutant.file];
            library.write(&mutant.file, &mutant.apply(source))?;
            let outcome = test(&library, original, units, mutant)?;
            library.write(&mutant.file, source)?;
            if outcome == Outcome::Survived {
                eprintln!("survived: {mutant}");
            }
            let Ok(mut found) = found.lock() else { break };
            found.push(Tested {
                mutant: mutant.clone(),
                outcome,
            });
            if reported.elapsed() > PROGRESS {
                reported = Instant::now();
                progress(&found, mutants.len(), began.elapsed());
            }
        }
        // An error is ignored, because the folder's name contains the process number, so another
        // run does not use the folder.
        drop(fs::remove_dir_all(&folder));
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let jobs: Vec<_> = (0..jobs)
            .map(|job| scope.spawn(move || work(job)))
            .collect();
        let ends = jobs.into_iter().map(|job| match job.join() {
            Ok(end) => end,
            Err(_) => Err(Error("a job of the mutation test panicked".to_owned())),
        });
        ends.collect::<Result<(), Error>>()
    })?;
    let mut found = found.into_inner().unwrap_or_default();
    found.sort_by(|a, b| (&a.mutant.file, a.mutant.start).cmp(&(&b.mutant.file, b.mutant.start)));
    Ok(found)
}

fn sources(folders: &Folders, mutants: &[Mutant]) -> Result<BTreeMap<String, String>, Error> {
    let mut sources = BTreeMap::new();
    for mutant in mutants {
        if !sources.contains_key(&mutant.file) {
            let path = folders.root.join(&mutant.file);
            let text = fs::read_to_string(&path);
            let text = text.map_err(|error| Error::of(path.display(), error))?;
            sources.insert(mutant.file.clone(), text);
        }
    }
    Ok(sources)
}

fn test(
    library: &Library,
    original: &Library,
    units: &[Unit],
    mutant: &Mutant,
) -> Result<Outcome, Error> {
    let original = Some((original, mutant.file.as_str()));
    if library.compile(Level::None, original)? == Compiled::Rejected {
        return Ok(Outcome::Rejected);
    }
    let outcome = run_tests(library, units)?;
    if outcome == Outcome::Survived && library.compile(Level::Full, original)? == Compiled::Equal {
        return Ok(Outcome::Equal);
    }
    Ok(outcome)
}

fn run_tests(library: &Library, units: &[Unit]) -> Result<Outcome, Error> {
    let mut units: Vec<&Unit> = units.iter().collect();
    // Units that take little time and have caught many mutants run first, which shortens the time
    // until a test fails.
    units.sort_by_key(|unit| unit.cost());
    for unit in units {
        let test = match unit.run(library.folder())? {
            End::Passed => continue,
            End::Failed(test) => test,
            End::TimedOut => format!("{} (time limit)", unit.name),
        };
        unit.count_caught();
        return Ok(Outcome::Caught(test));
    }
    Ok(Outcome::Survived)
}

fn progress(found: &[Tested], all: usize, took: Duration) {
    let survived = found
        .iter()
        .filter(|tested| tested.outcome == Outcome::Survived);
    eprintln!(
        "{} of {all} mutants in {} s, {} survived",
        found.len(),
        took.as_secs(),
        survived.count()
    );
}
