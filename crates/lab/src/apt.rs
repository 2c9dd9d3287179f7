// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fetches packages from Debian suites that this machine does not use. The machine's package lists,
//! sources and installed packages do not change.
//!
//! 1. Create a scratch directory with a separate configuration of apt. The settings for the access
//!    to archives (proxies, certificates, date checks) are copied from the system's configuration;
//!    hooks and pins are not copied.
//! 2. Find the address of the archive in the system's sources, and fetch the lists of the requested
//!    suites from it.
//! 3. Query, download and unpack packages by apt and dpkg-deb with this configuration.
//!
//! The programs have no time limit here; apt's own time limits and retries apply. A program that
//! fails is an error with its messages. The scratch directory is removed at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::LabError;

/// Keyring of Debian's archive, used if it exists.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A configuration of apt with separate package lists.
#[derive(Debug)]
pub(crate) struct Apt {
    dir: TempDir,
}

/// A package that the suites contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub name: String,
    pub version: String,
    pub bytes: u64,
}

impl Apt {
    /// Creates the configuration in `dir`, and fetches the package lists of these suites.
    ///
    /// # Errors
    /// If apt is missing, or if the archive does not contain the suites.
    pub fn with_suites(suites: &[&str], dir: TempDir) -> Result<Self, LabError> {
        let apt = Self { dir };
        let archive = system_archive()?;
        let settings = run(
            "reading apt's configuration",
            Command::new("apt-config").arg("dump"),
        )?;
        apt.write("apt.conf", &configuration(apt.dir.path(), &settings))?;
        apt.write(
            "lab.sources",
            &sources(&archive, suites, Path::new(KEYRING).exists()),
        )?;
        for folder in ["lists/partial", "cache/archives/partial", "none"] {
            let path = apt.path(folder);
            fs::create_dir_all(&path).map_err(LabError::file("making", path))?;
        }
        let doing = format!("fetching apt's package lists of {}", suites.join(" and "));
        run(
            &doing,
            apt.command("apt-get")
                .args(["-qq", "--error-on=any", "update"]),
        )?;
        Ok(apt)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), LabError> {
        let path = self.path(name);
        fs::write(&path, text).map_err(LabError::file("writing", path))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("APT_CONFIG", self.path("apt.conf"))
            .current_dir(self.dir.path());
        command
    }

    /// Returns the newest version of each package with a name that begins with `prefix` and ends
    /// with `suffix`.
    pub fn packages(&self, prefix: &str, suffix: &str) -> Result<Vec<Package>, LabError> {
        let doing = format!("querying apt for packages {prefix}*{suffix}");
        let names = run(&doing, self.command("apt-cache").args(["pkgnames", prefix]))?;
        let names: Vec<&str> = names
            .lines()
            .filter(|name| name.ends_with(suffix))
            .collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut show = self.command("apt-cache");
        // The exit status is ignored, because apt-cache show fails for names that occur only as
        // dependencies.
        let shown = show
            .args(["--no-all-versions", "show"])
            .args(names)
            .stderr(Stdio::null());
        let shown = shown.output().map_err(LabError::io(doing))?;
        Ok(stanzas(&String::from_utf8_lossy(&shown.stdout)))
    }

    /// Downloads packages and unpacks them into a directory.
    pub fn unpack(&self, packages: &[String], into: &Path) -> Result<(), LabError> {
        let doing = format!("downloading {}", packages.join(", "));
        let archives = self.path("cache/archives");
        let mut download = self.command("apt-get");
        run(
            &doing,
            download
                .args(["-qq", "download"])
                .args(packages)
                .current_dir(&archives),
        )?;
        unpack_all(&archives, into)
    }

    /// Downloads a package of one of the suites, and all its dependencies that are not installed on
    /// this system. Unpacks all of these packages into a directory.
    pub fn unpack_with_needs(
        &self,
        package: &str,
        suite: &str,
        into: &Path,
    ) -> Result<(), LabError> {
        let doing = format!("downloading {package} of {suite} and its dependencies");
        let mut install = self.command("apt-get");
        install.args(["-t", suite]);
        install.args(["-qq", "--yes", "--no-install-recommends", "--download-only"]);
        install.args(["-o", "Debug::NoLocking=1", "install", package]);
        run(&doing, &mut install)?;
        unpack_all(&self.path("cache/archives"), into)
    }
}

fn unpack_all(archives: &Path, into: &Path) -> Result<(), LabError> {
    let entries = fs::read_dir(archives).map_err(LabError::file("reading", archives))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "deb") {
            let doing = format!("unpacking {}", path.display());
            run(&doing, Command::new("dpkg").arg("-x").arg(&path).arg(into))?;
            fs::remove_file(&path).map_err(LabError::file("removing", path))?;
        }
    }
    Ok(())
}

/// Returns the address of the archive from which this machine gets its packages.
///
/// # Errors
/// If apt is missing, or if its sources contain no Debian archive.
pub(crate) fn system_archive() -> Result<String, LabError> {
    // The command only prints the addresses of the lists. The lists themselves may be missing on
    // this machine.
    let lists = run(
        "querying apt for the archive that this machine uses",
        Command::new("apt-get").args(["update", "--print-uris"]),
    )?;
    let found = archive(&lists, &debian_release()?).map(str::to_owned);
    found.ok_or_else(|| LabError::Missing {
        what: "no archive in apt's sources has the component main of this Debian release"
            .to_owned(),
        remedy: "add Debian's archive to the sources of apt (/etc/apt/sources.list.d)".to_owned(),
    })
}

/// Returns the archive with the component main of `release`. If there is none, returns the archive
/// of the first suite that is not an update suite. The first word of a line is
/// `'ARCHIVE/dists/SUITE/main/…'`.
fn archive<'a>(lists: &'a str, release: &str) -> Option<&'a str> {
    let suites = lists.lines().filter_map(|line| {
        let uri = line.strip_prefix('\'')?.split('\'').next()?;
        let (archive, rest) = uri.split_once("/dists/")?;
        let (suite, list) = rest.split_once("/main/")?;
        list.starts_with("binary-").then_some((suite, archive))
    });
    let own = suites.clone().find(|(suite, _)| *suite == release);
    let plain = |(suite, _): &(&str, &str)| !suite.contains(['-', '/']);
    own.or_else(|| suites.clone().find(plain))
        .map(|(_, archive)| archive)
}

/// Returns the code name of the host's Debian release.
pub(crate) fn debian_release() -> Result<String, LabError> {
    let path = Path::new("/etc/os-release");
    let text = fs::read_to_string(path).map_err(LabError::file("reading", path))?;
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(|name| name.trim_matches('"').to_owned())
        .ok_or_else(|| LabError::Missing {
            what: format!("the file {} names no Debian release", path.display()),
            remedy: "the lab fetches its kernels from Debian's archive; run it on Debian"
                .to_owned(),
        })
}

/// Returns the text of the separate configuration: the system's settings for the access to
/// archives, and directories in the scratch directory.
fn configuration(dir: &Path, system: &str) -> String {
    let reaching = system
        .lines()
        .filter(|line| line.starts_with("Acquire::") && !line.starts_with("Acquire::IndexTargets"));
    let dir = dir.display();
    let own = format!(
        "Dir::Etc::Parts \"{dir}/none\";\n\
         Dir::Etc::Main \"/dev/null\";\n\
         Dir::Etc::SourceList \"{dir}/lab.sources\";\n\
         Dir::Etc::SourceParts \"{dir}/none\";\n\
         Dir::Etc::Preferences \"/dev/null\";\n\
         Dir::Etc::PreferencesParts \"{dir}/none\";\n\
         Dir::State::Lists \"{dir}/lists\";\n\
         Dir::Cache \"{dir}/cache\";\n\
         APT::Architecture \"amd64\";\n\
         APT::Architectures {{ \"amd64\"; }};\n\
         APT::Sandbox::User \"root\";\n\
         Acquire::Languages \"none\";\n"
    );
    reaching.fold(own, |text, line| format!("{text}{line}\n"))
}

fn sources(archive: &str, suites: &[&str], keyring: bool) -> String {
    let signed = match keyring {
        true => format!("Signed-By: {KEYRING}\n"),
        false => String::new(),
    };
    let suites = suites.join(" ");
    format!("Types: deb\nURIs: {archive}\nSuites: {suites}\nComponents: main\n{signed}")
}

/// Parses the output of `apt-cache show`.
fn stanzas(text: &str) -> Vec<Package> {
    let field = |stanza: &str, name: &str| {
        let line = stanza
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map(str::to_owned)
    };
    let package = |stanza: &str| {
        Some(Package {
            name: field(stanza, "Package")?,
            version: field(stanza, "Version")?,
            bytes: field(stanza, "Size")?.parse().ok()?,
        })
    };
    text.split("\n\n").filter_map(package).collect()
}

/// Runs a program until it ends, and returns its standard output.
pub(crate) fn run(doing: &str, command: &mut Command) -> Result<String, LabError> {
    let output = command
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .output()
        .map_err(LabError::io(format!(
            "{doing}: running {:?}",
            command.get_program()
        )))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let message: Vec<&str> = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    Err(LabError::Tool {
        doing: doing.to_owned(),
        message: match message.is_empty() {
            true => output.status.to_string(),
            false => message.join("; "),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_is_the_one_of_main() {
        let lists = "'a:/0/dists/others/main/binary-amd64/Packages.xz' x 0 \n\
                     'a:/1/dists/stable/InRelease' x 0 \n\
                     'a:/2/dists/stable-security/main/binary-amd64/Packages.xz' x 0 \n\
                     'a:/3/dists/stable/contrib/binary-amd64/Packages.xz' x 0 \n\
                     'a:/4/dists/stable/main/dep11/icons.tar.gz' x 0 \n\
                     'a:/5/deb/dists/stable/main/binary-amd64/Packages.xz' x 0 \n";
        assert_eq!(archive(lists, "stable"), Some("a:/5/deb"));
        assert_eq!(archive(lists, "bookworm"), Some("a:/0"));
        let lists: Vec<&str> = lists.lines().skip(1).take(4).collect();
        assert_eq!(archive(&lists.join("\n"), "stable"), None);
    }

    #[test]
    fn access_settings_are_copied_and_hooks_are_not() {
        let system = "APT::Update::Post-Invoke:: \"rm x\";\nAcquire::http::Proxy \"p\";\n\
                      Acquire::IndexTargets::deb::DEP-11 \"\";\nDir::State::Lists \"l\";\n";
        let text = configuration(Path::new("/x"), system);
        assert!(text.ends_with("Acquire::http::Proxy \"p\";\n"), "{text}");
        assert!(
            !text.contains("Invoke") && !text.contains("DEP-11"),
            "{text}"
        );
        assert!(text.contains("Dir::State::Lists \"/x/lists\";"), "{text}");
    }

    #[test]
    fn parses_packages() {
        let text = "Package: a\nVersion: 1\nSize: 12\nDescription: b\n Size: 3\n\nPackage: c\n";
        let a = Package {
            name: "a".to_owned(),
            version: "1".to_owned(),
            bytes: 12,
        };
        assert_eq!(stanzas(text), [a]);
    }

    #[test]
    fn failure_is_one_line() {
        let mut command = Command::new("sh");
        let command = command.args(["-c", "echo a >&2; echo; echo b >&2; exit 3"]);
        let message = run("trying", command).unwrap_err().to_string();
        assert_eq!(message, "trying: a; b");
        let mut command = Command::new("false");
        assert_eq!(
            run("trying", &mut command).unwrap_err().to_string(),
            "trying: exit status: 1"
        );
    }
}
