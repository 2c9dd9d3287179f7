// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inputs of real programs: source trees to search and to build, and a box of water for GROMACS.
//! If the sources of Linux are not installed, 60,000 files (2,000 in small runs) with random words
//! are generated from a fixed seed. The sources of zlib must be in cargo's directory. Trees can be
//! dropped from the page cache.
//!
//! No command has a time limit. An error of a command is returned.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::keeper::must;
use crate::background::load::forget;

const LINUX: &str = "/usr/src/linux-source-6.1.tar.xz";
const LINUX_DIR: &str = "linux-source-6.1";

/// Creates a directory tree to search in `dir`: a copy of `given`, or else the installed sources of
/// Linux (only three folders if `small`), or else generated files. Returns the tree and its
/// description.
pub fn tree(dir: &Path, given: Option<&Path>, small: bool) -> Result<(PathBuf, String)> {
    let target = dir.join("tree");
    let words = |path: &Path| path.display().to_string();
    if let Some(given) = given {
        must(&["cp", "-r", &words(given), &words(&target)])?;
        return Ok((target, words(given)));
    }
    fs::create_dir_all(&target)?;
    if Path::new(LINUX).exists() {
        let parts: &[&str] = if small {
            &["kernel", "mm", "net"]
        } else {
            &[""]
        };
        let parts: Vec<String> = parts
            .iter()
            .map(|part| format!("{LINUX_DIR}/{part}"))
            .collect();
        let to = words(&target);
        let mut command = vec!["tar", "-xJf", LINUX, "-C", &to];
        command.extend(parts.iter().map(String::as_str));
        must(&command)?;
        let which = if small {
            "the directories kernel, mm and net of Linux 6.1"
        } else {
            "Linux 6.1"
        };
        return Ok((target, which.to_owned()));
    }
    generate(&target, if small { 2_000 } else { 60_000 })?;
    Ok((target, "a generated directory tree".to_owned()))
}

/// Path of the script that creates the input of `gmx mdrun`, relative to the current folder.
const PREPARE: &str = "examples/programs/prepare";

const WATER: &str = "water.tpr";

/// Returns a box of water as input of `gmx mdrun`. The file is created in `dir` unless it exists.
pub fn water(dir: &Path) -> Result<PathBuf> {
    let made = dir.join(WATER);
    if !made.exists() {
        anyhow::ensure!(
            Path::new(PREPARE).exists(),
            "gmx has no input: run this in the directory that contains {PREPARE}, or name a file \
             with --tpr"
        );
        let folder = format!("USHER_EXAMPLE_DATA={}", dir.display());
        must(&["env", &folder, PREPARE, WATER])?;
    }
    Ok(made)
}

/// Creates text files with random words; their sizes are similar to those of source files.
fn generate(dir: &Path, files: u64) -> Result<()> {
    let mut rng = oorandom::Rand64::new(7);
    for i in 0..files {
        let folder = dir.join(format!("d{}", i / 100));
        fs::create_dir_all(&folder)?;
        let words = 200 + rng.rand_range(0..4_000);
        let text: String = (0..words)
            .map(|n| {
                format!(
                    "w{:x}{}",
                    rng.rand_range(0..1 << 20),
                    if n % 10 == 9 { "\n" } else { " " }
                )
            })
            .collect();
        fs::write(folder.join(format!("f{i}.c")), text)?;
    }
    Ok(())
}

/// Drops all files below a directory from the page cache. Names and inodes
/// stay cached.
pub fn forget_tree(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            forget_tree(&entry.path())?;
        } else if kind.is_file() {
            forget(&fs::File::open(entry.path())?)?;
        }
    }
    Ok(())
}

/// Copies the sources of zlib, which a foreground builds, from the pinned crate `libbpf-sys`.
pub fn zlib(dir: &Path) -> Result<PathBuf> {
    let target = dir.join("zlib");
    if target.join("Makefile").exists() {
        return Ok(target);
    }
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let sources = home
        .context("cargo's directory is not known, because neither CARGO_HOME nor HOME is set")?
        .join("registry/src");
    let found = crates_in(&sources)
        .into_iter()
        .find(|path| path.join("zlib/configure").exists());
    let Some(found) = found else {
        bail!(
            "the sources of libbpf-sys are not below {}: run 'cargo fetch'",
            sources.display()
        );
    };
    must(&[
        "cp",
        "-r",
        &found.join("zlib").display().to_string(),
        &target.display().to_string(),
    ])?;
    let configure = format!(
        "cd '{}' && ./configure --static >/dev/null",
        target.display()
    );
    must(&["sh", "-c", &configure])?;
    Ok(target)
}

fn crates_in(sources: &Path) -> Vec<PathBuf> {
    let listed = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let all = listed(sources)
        .into_iter()
        .flat_map(|registry| listed(&registry));
    let named = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("libbpf-sys-"))
    };
    all.filter(named).collect()
}
