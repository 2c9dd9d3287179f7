// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prepares the mixes of `usher-bench here`: generated mixes, which need no other program, and
//! copies of the example mixes. Also finds the programs of a mix that are not installed.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use usher_host::launch::LaunchSpec;
use usher_host::mix::MixFile;

/// A program of a generated mix: its name, its work pattern, and whether it has only one thread.
type Generated = (&'static str, &'static str, bool);

/// The generated mixes: file name, title, programs.
const GENERATED: [(&str, &str, &[Generated]); 4] = [
    (
        "any-compute-compute",
        "Two programs that scale well",
        &[
            ("compute-1", "compute", false),
            ("compute-2", "compute", false),
        ],
    ),
    (
        "any-barriers-barriers",
        "Two programs that spin at barriers",
        &[
            ("barriers-1", "barriers", false),
            ("barriers-2", "barriers", false),
        ],
    ),
    (
        "any-barriers-memory",
        "A program that spins at barriers beside a memory-bound program",
        &[("barriers", "barriers", false), ("memory", "memory", false)],
    ),
    (
        "any-four",
        "Four programs of different kinds",
        &[
            ("compute", "compute", false),
            ("barriers", "barriers", false),
            ("memory", "memory", false),
            ("serial", "compute", true),
        ],
    ),
];

/// Returns the folder with the example mixes: `examples` below the current folder, or the folder in
/// which `make install` or the tarball stores the examples.
pub fn examples() -> Option<PathBuf> {
    let installed = std::env::current_exe().ok().and_then(|exe| {
        let prefix = exe.parent()?.parent()?;
        Some(prefix.join("share/doc/usher/examples"))
    });
    [Some(PathBuf::from("examples")), installed]
        .into_iter()
        .flatten()
        .find(|folder| folder.join("mixes").is_dir())
}

/// Writes all mixes to `folder/mixes`, and returns their files in the order in which they run. The
/// examples are copied, because their inputs are created beside them and the folder of installed
/// examples may be read-only.
pub fn prepare(folder: &Path, examples: Option<&Path>, threads: usize) -> Result<Vec<PathBuf>> {
    let mixes = folder.join("mixes");
    fs::create_dir_all(&mixes).with_context(|| format!("making {}", mixes.display()))?;
    let exe = std::env::current_exe().context("finding the path of this program")?;
    let mut files = Vec::new();
    for (name, title, programs) in GENERATED {
        let file = mixes.join(format!("{name}.toml"));
        fs::write(&file, generated(title, programs, &exe, threads))
            .with_context(|| format!("writing {}", file.display()))?;
        files.push(file);
    }
    if let Some(examples) = examples {
        files.extend(copy(&examples.join("mixes"), &mixes)?);
        copy(&examples.join("programs"), &folder.join("programs"))?;
    }
    files.retain(|file| file.extension().is_some_and(|end| end == "toml"));
    Ok(files)
}

fn generated(title: &str, programs: &[Generated], exe: &Path, threads: usize) -> String {
    let mut text = format!("title = \"{title}\"\n");
    for (name, kind, serial) in programs {
        let threads = if *serial { 1 } else { threads };
        let words = [
            &*exe.to_string_lossy(),
            super::PROGRAM,
            kind,
            "--threads",
            &threads.to_string(),
        ];
        let words = serde_json::json!(words);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[[program]]\nname = \"{name}\"\nclass = \"{kind}\"\nrun = {words}\n"
        );
    }
    text
}

/// Copies the files of a folder, and returns the copies by name.
fn copy(from: &Path, to: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
    let entries = fs::read_dir(from).with_context(|| format!("reading {}", from.display()))?;
    let mut copies = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let copy = to.join(entry.file_name());
            fs::copy(entry.path(), &copy).with_context(|| format!("writing {}", copy.display()))?;
            copies.push(copy);
        }
    }
    copies.sort();
    Ok(copies)
}

/// Returns the programs of a mix that are not on this machine, with the Debian packages that
/// contain them.
pub fn missing(mix: &MixFile) -> Vec<String> {
    let is_missing = |argv: &[std::ffi::OsString]| {
        let spec = LaunchSpec {
            cwd: Some(mix.dir.clone()),
            ..LaunchSpec::new(argv)
        };
        spec.resolve().is_err()
    };
    let programs = mix.programs.iter().filter(|p| is_missing(&p.argv));
    let names = programs.map(|program| match &program.package {
        Some(package) => format!("{} (package {package})", program.name),
        None => program.name.clone(),
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_mixes_are_valid_and_need_this_program_alone() {
        let folder = tempfile::tempdir().unwrap();
        let files = prepare(folder.path(), None, 96).unwrap();
        assert_eq!(files.len(), GENERATED.len());
        for file in files {
            let mix = MixFile::read(&file).unwrap();
            assert_eq!(missing(&mix), Vec::<String>::new());
            assert!(mix.programs.iter().any(|p| p.argv[4] == "96"));
        }
    }

    #[test]
    fn a_mix_with_a_missing_program_names_its_package() {
        let text = "[[program]]\nname = \"a\"\npackage = \"hen\"\nrun = [\"no-such-egg\"]\n\
                    [[program]]\nname = \"b\"\nrun = [\"true\"]\n";
        let mix = MixFile::parse(Path::new("mix.toml"), text).unwrap();
        assert_eq!(missing(&mix), ["a (package hen)"]);
    }

    #[test]
    fn examples_are_copied_with_their_programs() {
        let folder = tempfile::tempdir().unwrap();
        let examples = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"));
        let files = prepare(folder.path(), Some(examples), 2).unwrap();
        assert!(files.contains(&folder.path().join("mixes/main.toml")));
        assert!(folder.path().join("programs/prepare").is_file());
    }
}
