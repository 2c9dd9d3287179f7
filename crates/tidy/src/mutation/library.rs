// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler as a shared library. The tests load this library; in other builds
//! `crates/rules/build.rs` links the scheduler into them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Error;

/// Name for the linker, as in `crates/rules/build.rs`.
const NAME: &str = "usher_host_sched";
/// Folders that are compiled.
const SOURCES: [&str; 2] = ["crates/rules/src", "crates/scx/src/bpf"];
/// Translation units, in `crates/rules/src`, each with the headers of these folders.
const UNITS: [&str; 2] = ["host/host.c", "rules.c"];
/// As in `crates/rules/build.rs`.
const FLAGS: [&str; 4] = ["-g0", "-w", "-fPIC", "-fno-strict-aliasing"];

/// Level of optimisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Compiles in a tenth of the time. The tests run with this level.
    None,
    /// As in the build. Only this level shows equal object code, which makes a mutant equivalent.
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

/// A copy of the sources, and the library that is compiled from it.
#[derive(Debug)]
pub struct Library {
    folder: PathBuf,
}

/// Result of a compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compiled {
    /// The compiler rejects the source.
    Rejected,
    /// The object code is that of the original.
    Equal,
    /// The library has been created.
    Different,
}

impl Library {
    /// Copies the sources of a repository into a folder.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub fn new(root: &Path, folder: &Path) -> Result<Self, Error> {
        for source in SOURCES {
            copy(&root.join(source), &folder.join(source))?;
        }
        let folder = folder.to_owned();
        Ok(Self { folder })
    }

    /// Folder of the library, for `LD_LIBRARY_PATH`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a source file of the copy.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, file: &str, text: &str) -> Result<(), Error> {
        let path = self.folder.join(file);
        fs::write(&path, text).map_err(|error| Error::of(path.display(), error))
    }

    /// Compiles the copy. `original` is the library without a mutation, compiled before; a unit
    /// that does not use the mutated file is taken from there.
    ///
    /// # Errors
    /// The compiler or the linker cannot be run, or the linker fails.
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

/// The compiler: `CC`, or clang, which takes less time than gcc.
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
