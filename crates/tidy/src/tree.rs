// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the files of a repository once for all rules: the content of text files, and the paths of
//! other files. Folders with build outputs and measurements are left out. Symbolic links are not
//! followed. All text files are in memory, without a limit of their size. The first file that
//! cannot be read is an error. A search for a path takes time linear in the number of files.

use std::fs;
use std::io;
use std::path::Path;

/// Folders that are left out: build outputs, measurements and the data of git.
const SKIPPED: [&str; 5] = [".git", "target", "evidence/target", "out", "examples/data"];
/// Folders of the two workspaces, which contain a folder for each crate.
const WORKSPACES: [&str; 2] = ["crates/", "evidence/"];

/// A text file.
#[derive(Debug, Clone)]
pub struct File {
    /// The path of the file relative to the root, with `/` as separator.
    pub path: String,
    /// The content of the file.
    pub text: String,
}

impl File {
    /// Returns whether the name of the file ends with a dot and `extension`.
    pub fn has_extension(&self, extension: &str) -> bool {
        self.path
            .rsplit_once('.')
            .is_some_and(|(_, last)| last == extension)
    }

    /// Returns the name of the file's crate, which is the name of the crate's folder in `crates/`
    /// or `evidence/`.
    pub fn crate_name(&self) -> Option<&str> {
        self.crate_folder()?.rsplit('/').next()
    }

    /// Returns the folder of the file's crate, such as `crates/model`.
    pub fn crate_folder(&self) -> Option<&str> {
        WORKSPACES.iter().find_map(|workspace| {
            let (name, _) = self.path.strip_prefix(workspace)?.split_once('/')?;
            Some(&self.path[..workspace.len() + name.len()])
        })
    }

    /// Returns whether the file is an integration test or a benchmark.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.contains("/benches/")
    }

    /// Returns the lines of the file with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

/// The files of a repository. Files that are not UTF-8 are listed without their content.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    /// The text files, sorted by path.
    pub files: Vec<File>,
    /// The paths of the other files.
    pub others: Vec<String>,
}

impl Tree {
    /// Reads all files below a folder, except the folders that are left out.
    ///
    /// # Errors
    /// If a folder or a file cannot be read.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_folder(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        tree.others.sort();
        Ok(tree)
    }

    /// Creates a tree of files with these paths and contents, for tests of rules.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        Self {
            files: files.iter().map(file).collect(),
            others: Vec::new(),
        }
    }

    fn read_folder(&mut self, root: &Path, inside: &str) -> io::Result<()> {
        for entry in fs::read_dir(root.join(inside))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = match inside {
                "" => name.clone(),
                _ => format!("{inside}/{name}"),
            };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !SKIPPED.contains(&path.as_str()) {
                    self.read_folder(root, &path)?;
                }
            } else if kind.is_file() && path != ".git" {
                match String::from_utf8(fs::read(entry.path())?) {
                    Ok(text) => self.files.push(File { path, text }),
                    Err(_) => self.others.push(path),
                }
            }
        }
        Ok(())
    }

    /// Returns the Rust files.
    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.has_extension("rs"))
    }

    /// Returns the text file with this path.
    pub fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Returns whether a file or a folder with this path exists.
    pub fn holds(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let below = |file: &str| {
            file.strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        path.is_empty()
            || self.files.iter().any(|file| below(&file.path))
            || self.others.iter().any(|other| below(other))
    }

    /// Returns the folders of the crates, which are the folders of `crates/` and `evidence/` with a
    /// manifest, sorted by path.
    pub fn crates(&self) -> Vec<&str> {
        let manifest = |file: &'_ File| file.path.ends_with("/Cargo.toml");
        let mut names: Vec<&str> = self
            .files
            .iter()
            .filter(|file| manifest(file) && file.path.matches('/').count() == 2)
            .filter_map(File::crate_folder)
            .collect();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_crates_files_and_folders() {
        let tree = Tree::of(&[
            ("Cargo.toml", ""),
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", "one\ntwo"),
            ("crates/b/Cargo.toml", ""),
            ("crates/b/sub/x/Cargo.toml", ""),
            ("evidence/Cargo.toml", ""),
            ("evidence/c/Cargo.toml", ""),
        ]);
        assert_eq!(tree.crates(), ["crates/a", "crates/b", "evidence/c"]);
        assert_eq!(tree.files[5].crate_name(), None);
        assert_eq!(tree.files[6].crate_name(), Some("c"));
        assert!(tree.holds("crates/a/src") && tree.holds("crates/a/src/") && tree.holds(""));
        assert!(!tree.holds("crates/a/s") && !tree.holds("crates/c"));
        let lib = tree.get("crates/a/src/lib.rs").unwrap();
        assert_eq!(lib.lines().last(), Some((2, "two")));
        assert!(lib.has_extension("rs") && !lib.is_test());
    }

    #[test]
    fn reads_a_folder_without_build_outputs() {
        let root = std::env::temp_dir().join(format!("usher-tidy-{}", std::process::id()));
        for (path, content) in [
            ("target/x.rs", b"fn x() {}".as_slice()),
            ("crates/a/target/y.rs", b"fn y() {}"),
            ("data/blob", b"\xff\xfe"),
            (".ci/run", b"#!/bin/sh"),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let tree = Tree::read(&root);
        fs::remove_dir_all(&root).unwrap();
        let tree = tree.unwrap();
        let paths: Vec<&str> = tree.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, [".ci/run", "crates/a/target/y.rs"]);
        assert_eq!(tree.others, ["data/blob"]);
    }
}
