// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles a copy of the scheduler's C sources into a shared library, which the tests load. In
//! other builds, `crates/rules/build.rs` links the scheduler into the tests statically.
//!
//! 1. Copy the sources into a folder.
//! 2. Write a mutated header into the copy.
//! 3. Compile the two translation units that include the header. A unit that does not include it is
//!    taken from the library without a mutation.
//! 4. Compare the object code with that of the library without a mutation, and link the units.
//!
//! A source that the compiler rejects is a result ([`Compiled::Rejected`]). A compiler or linker
//! that cannot be started is an error, and so is a failed link. The compiler has no time limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Error;

/// Name of the library for the linker; `crates/rules/build.rs` uses the same name.
const NAME: &str = "usher_host_sched";
/// Folders with the scheduler's sources.
const SOURCES: [&str; 2] = ["crates/rules/src", "crates/scx/src/bpf"];
/// Translation units in `crates/rules/src`. They include the headers of the folders [`SOURCES`].
const UNITS: [&str; 2] = ["host/host.c", "rules.c"];
/// Options of the compiler; `crates/rules/build.rs` uses the same options.
const FLAGS: [&str; 4] = ["-g0", "-w", "-fPIC", "-fno-strict-aliasing"];

/// Level of optimisation of a compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// No optimisation. The tests run with this level, because compilation takes a tenth of the
    /// time.
    None,
    /// The level of the build. Only at this level, a mutant that is equivalent to the original
    /// often has equal object code.
    Full,
}

impl Level {
    fn flag(self) -> &'static str {
        match self {
            Self::None => "-O0",
            Self::Full => "-O2",
        }
    }
}

/// A copy of the sources, and the library that is compiled from the copy.
#[derive(Debug)]
pub struct Library {
    folder: PathBuf,
}

/// Result of a compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compiled {
    /// The compiler rejects the source.
    Rejected,
    /// At level `Full`: the object code is equal to that of the original, and no library was
    /// created.
    Equal,
    /// The library was created. At level `Full`, its object code differs from that of the original.
    Different,
}

impl Library {
    /// Copies the sources of a repository into a folder.
    ///
    /// # Errors
    /// If a file cannot be copied.
    pub fn new(root: &Path, folder: &Path) -> Result<Self, Error> {
        for source in SOURCES {
            copy(&root.join(source), &folder.join(source))?;
        }
        let folder = folder.to_owned();
        Ok(Self { folder })
    }

    /// Returns the folder of the library, for `LD_LIBRARY_PATH`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Replaces a source file of the copy.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, file: &str, text: &str) -> Result<(), Error> {
        let path = self.folder.join(file);
        fs::write(&path, text).map_err(|error| Error::of(path.display(), error))
    }

    /// Compiles the copy. `original` is the library without a mutation, which must be compiled
    /// before, and the path of the mutated file. A unit that does not include the mutated file is
    /// taken from that library.
    ///
    /// # Errors
    /// If the compiler or the linker cannot be started, or if the linker fails.
    pub fn compile(
        &self,
        level: Level,
        original: Option<(&Self, &str)>,
    ) -> Result<Compiled, Error> {
        let mut objects = Vec::new();
        let mut is_equal = original.is_some();
        for unit in UNITS {
            let object = self.object(unit, level);
            let in_scx = original.is_some_and(|(_, file)| file.starts_with(SOURCES[1]));
            if let (Some((original, _)), true) = (original, in_scx && unit == "rules.c") {
                objects.push(original.object(unit, level));
                continue;
            }
            if !self.compile_unit(unit, level, &object)? {
                return Ok(Compiled::Rejected);
            }
            if let Some((original, _)) = original {
                is_equal &= read(&object)? == read(&original.object(unit, level))?;
            }
            objects.push(object);
        }
        if is_equal && level == Level::Full {
            return Ok(Compiled::Equal);
        }
        let mut command = Command::new(compiler());
        let library = self.folder.join(format!("lib{NAME}.so"));
        command.arg("-shared").arg("-o").arg(library).args(objects);
        match command.status() {
            Ok(status) if status.success() => Ok(Compiled::Different),
            Ok(status) => Err(Error::of("linker", status)),
            Err(error) => Err(Error::of(compiler(), error)),
        }
    }

    fn object(&self, unit: &str, level: Level) -> PathBuf {
        let name = format!("{}{}.o", unit.replace('/', "_"), level.flag());
        self.folder.join(name)
    }

    fn compile_unit(&self, unit: &str, level: Level, object: &Path) -> Result<bool, Error> {
        let mut command = Command::new(compiler());
        command.current_dir(&self.folder);
        command.arg(level.flag()).args(FLAGS);
        command.args(["-I", "crates/rules/src/bpf", "-I", "crates/rules/src/host"]);
        command.args(["-I", SOURCES[1], "-c"]);
        command
            .arg(Path::new(SOURCES[0]).join(unit))
            .arg("-o")
            .arg(object);
        let output = command
            .output()
            .map_err(|error| Error::of(compiler(), error))?;
        Ok(output.status.success())
    }
}

/// Returns the command of the compiler: the environment variable `CC`, or clang, which compiles
/// faster than gcc.
fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "clang".to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|error| Error::of(path.display(), error))
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let failed = |path: &Path, error| Error::of(path.display(), error);
    fs::create_dir_all(to).map_err(|error| failed(to, error))?;
    for entry in fs::read_dir(from).map_err(|error| failed(from, error))? {
        let entry = entry.map_err(|error| failed(from, error))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy(&source, &target)?;
        } else {
            fs::copy(&source, &target).map_err(|error| failed(&source, error))?;
        }
    }
    Ok(())
}
