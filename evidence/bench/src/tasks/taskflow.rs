// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds or downloads the headers of Taskflow, of which only Debian trixie and later releases have
//! a package.
//!
//! `apt-get` downloads the package from the mirror that this machine's apt uses, and checks
//! Debian's signature. `apt-get` uses separate lists and caches, so that the system does not
//! change. On amd64, a hash pins the version of the package. The package is unpacked into the
//! user's cache, but not installed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Debian's release that has the package.
const SUITE: &str = "trixie";
const PACKAGE: &str = "libtaskflow-cpp-dev";
const VERSION: &str = "3.9.0+ds-1+b1";
/// Hash of the package for amd64. On other architectures, only Debian's signature is checked.
const SHA256: &str = "458054132b620d60b4eff093b4bbe899dab539eb72624c26c450a60e60fdba61";
/// The header file that programs include.
const HEADER: &str = "taskflow/taskflow.hpp";
/// Debian's keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Returns the first include folder that exists: the given folder, the folder of an installed
/// package, the folder of an earlier download, or the folder of a new download.
///
/// # Errors
/// The given folder has no headers, or the download fails.
pub fn headers(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(folder) = given {
        let is_installed = folder.join(HEADER).is_file();
        ensure!(
            is_installed,
            "the directory {} has no {HEADER}",
            folder.display()
        );
        return Ok(folder.to_owned());
    }
    let installed = Path::new("/usr/include");
    if installed.join(HEADER).is_file() {
        return Ok(installed.to_owned());
    }
    let cache = cache_folder()?.join(format!("{PACKAGE}_{VERSION}"));
    let headers = cache.join("usr/include");
    if !headers.join(HEADER).is_file() {
        fetch(&cache).with_context(|| {
            format!(
                "the package {PACKAGE} {VERSION} of Debian {SUITE} cannot be fetched; name a \
                 directory with its headers by --taskflow"
            )
        })?;
    }
    Ok(headers)
}

/// The user's cache.
fn cache_folder() -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = base.filter(|path| path.is_absolute()).or_else(home);
    Ok(base
        .context("no cache directory is known, because neither XDG_CACHE_HOME nor HOME is set")?
        .join("usher"))
}

/// Downloads the package and unpacks it into the folder `into`. The folder is created under another
/// name and renamed when it is complete.
fn fetch(into: &Path) -> Result<()> {
    eprintln!("tasks: fetching the package {PACKAGE} {VERSION} from Debian {SUITE}, once");
    let scratch = tempfile::tempdir()?;
    let apt = AptDirectories::new(scratch.path())?;
    apt.get(&["--quiet", "update"])?;
    apt.get(&["--quiet", "download", &format!("{PACKAGE}={VERSION}")])?;
    let package = fs::read_dir(scratch.path())?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get downloaded nothing")?;
    let sum = output(Command::new("sha256sum").arg(&package))?;
    let sum = sum.split(' ').next().unwrap_or_default();
    ensure!(
        sum == SHA256 || !cfg!(target_arch = "x86_64"),
        "the package's SHA-256 is {sum}, not {SHA256}"
    );
    let unpacked = scratch.path().join("unpacked");
    output(
        Command::new("dpkg-deb")
            .arg("-x")
            .args([&package, &unpacked]),
    )?;
    fs::create_dir_all(into.parent().unwrap_or(into))?;
    // The temporary folder is in the same parent folder, because a rename works only within a file
    // system.
    let whole = into.with_extension("part");
    output(Command::new("cp").arg("-rT").args([&unpacked, &whole]))?;
    fs::rename(&whole, into).with_context(|| format!("making {}", into.display()))
}

/// Folders of an `apt-get` that uses only one package source.
struct AptDirectories<'a> {
    folder: &'a Path,
    options: Vec<String>,
}

impl<'a> AptDirectories<'a> {
    fn new(folder: &'a Path) -> Result<Self> {
        let mirror = mirror()?;
        let source = format!("deb [signed-by={KEYRING}] {mirror} {SUITE} main\n");
        fs::write(folder.join("sources.list"), source)?;
        for inside in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(inside))?;
        }
        let at = |what: &str, name: &str| format!("{what}={}", folder.join(name).display());
        let options = vec![
            at("Dir::Etc::sourcelist", "sources.list"),
            "Dir::Etc::sourceparts=-".to_owned(),
            at("Dir::State::lists", "lists"),
            at("Dir::Cache", "cache"),
            // Do not download translations of package descriptions.
            "Acquire::Languages=none".to_owned(),
            // Started by root, apt-get would download as another user, which cannot read this
            // folder.
            "APT::Sandbox::User=root".to_owned(),
        ];
        Ok(Self { folder, options })
    }

    fn get(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new("apt-get");
        for option in &self.options {
            command.args(["-o", option]);
        }
        output(command.args(words).current_dir(self.folder))
    }
}

/// Returns the mirror of Debian's main archive that this machine's apt uses.
fn mirror() -> Result<String> {
    let targets = output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(LABEL) $(COMPONENT) $(REPO_URI)",
        "Created-By: Packages",
    ]))?;
    mirror_in(&targets).context("the sources of apt on this machine contain no Debian archive")
}

fn mirror_in(targets: &str) -> Option<String> {
    let mut lines = targets.lines();
    let found = lines.find_map(|line| line.strip_prefix("Debian main "))?;
    Some(found.trim().to_owned())
}

fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("running {name}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let error = stderr.lines().find(|line| line.starts_with("E:"));
    let error = error.or(stderr.lines().last()).unwrap_or("no reason given");
    ensure!(output.status.success(), "{name}: {error}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_that_of_the_main_archive() {
        let targets = "Debian-Security main http://one/security/\nDebian main http://two/debian/\n\
                       Debian main http://three/\n";
        assert_eq!(mirror_in(targets).as_deref(), Some("http://two/debian/"));
        assert_eq!(mirror_in("Ubuntu main http://one/\n"), None);
    }

    #[test]
    fn a_folder_without_the_header_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = headers(Some(folder.path())).unwrap_err();
        assert!(error.to_string().contains("taskflow/taskflow.hpp"));
    }
}
