// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the mutation test of the scheduler's C headers (`make mutants`), which
//! `usher_tidy::mutation` describes and implements. Prints the results and the differences from the
//! list of known survivors. The exit status is 0 if there are no differences, 1 if there are
//! differences or an error, and 2 for a wrong option.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use usher_tidy::mutation::library::{Level, Library};
use usher_tidy::mutation::mutants::{Mutant, mutants};
use usher_tidy::mutation::options::{self, HELP, Options};
use usher_tidy::mutation::survivors::{self, Known};
use usher_tidy::mutation::{Error, FILES, Folders, LIST, programs, report, run};
use usher_tidy::sample;

fn main() -> ExitCode {
    let options = match options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("mutants: {error}; see --help");
            return ExitCode::from(2);
        }
    };
    if options.help {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match execute(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Tests the chosen mutants, and prints and stores the results. Returns whether the list of known
/// survivors agrees with the results.
fn execute(options: &Options) -> Result<bool, Error> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = fs::canonicalize(&root).map_err(|error| Error::of(root.display(), error))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), Into::into);
    let folders = Folders {
        out: root.join(target).join("mutants"),
        root,
    };
    let list = fs::read_to_string(folders.root.join(LIST));
    let known = survivors::read(&list.map_err(|error| Error::of(LIST, error))?)?;
    let all = mutants_of(&folders, options)?;
    let chosen = choose(options, &known, &all);
    if options.list {
        for mutant in &chosen {
            println!("{mutant}");
        }
        return Ok(true);
    }
    let original = Library::new(&folders.root, &folders.out.join("original"))?;
    original.compile(Level::None, None)?;
    original.compile(Level::Full, None)?;
    let units = programs::build(&folders, original.folder())?;
    eprintln!("{} mutants, {} groups of tests", chosen.len(), units.len());
    let tested = run::run(&folders, &original, &units, &chosen, options.jobs)?;
    let path = options.json.clone();
    let path = path.unwrap_or_else(|| folders.out.join("results.json"));
    fs::write(&path, format!("{:#}\n", report::json(&tested)))
        .map_err(|error| Error::of(path.display(), error))?;
    print!("{}", report::table(&tested));
    let differences = survivors::compare(&known, &all, &tested);
    let parts = [
        ("Survivors without a reason", &differences.unexplained),
        (
            "Entries of survivors.toml that do not survive",
            &differences.stale,
        ),
    ];
    for (what, entries) in parts.iter().filter(|(_, entries)| !entries.is_empty()) {
        println!("\n{what} ({LIST}):\n\n{}", entries.join("\n"));
    }
    Ok(parts.iter().all(|(_, entries)| entries.is_empty()))
}

/// Returns all mutants of the headers that `--only` selects.
fn mutants_of(folders: &Folders, options: &Options) -> Result<Vec<Mutant>, Error> {
    let is_selected = |file: &&&str| {
        options.only.is_empty() || options.only.iter().any(|end| file.ends_with(end.as_str()))
    };
    let mut all = Vec::new();
    for file in FILES.iter().filter(is_selected) {
        let source = fs::read_to_string(folders.root.join(file));
        all.extend(mutants(
            file,
            &source.map_err(|error| Error::of(file, error))?,
        ));
    }
    if all.is_empty() {
        return Err(Error(format!("--only: {:?} names no header", options.only)));
    }
    Ok(all)
}

/// Returns the mutants to test, which the other options select from `all`.
fn choose(options: &Options, known: &Known, all: &[Mutant]) -> Vec<Mutant> {
    let is_chosen = |mutant: &&Mutant| {
        (options.functions.is_empty() || options.functions.contains(&mutant.function))
            && (!options.known || survivors::is_known(known, mutant))
    };
    let chosen: Vec<Mutant> = all.iter().filter(is_chosen).cloned().collect();
    let Some(size) = options.sample else {
        return chosen;
    };
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = options
        .seed
        .unwrap_or(time.map_or(1, |time| time.as_secs()));
    println!("seed {seed}");
    sample::draw(chosen, seed, size)
}
