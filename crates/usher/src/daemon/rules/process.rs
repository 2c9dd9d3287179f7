// SPDX-License-Identifier: GPL-2.0-only
//! The properties of a process that the conditions of rules compare: executable, command line,
//! cgroup, unit and user.
//!
//! A property that cannot be read matches no condition about it, because the process has ended or
//! belongs to another user. At most 64 KiB of a command line are read.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use usher_host::engine::ReviewedProcess;

/// Upper limit of the bytes of a command line that are compared.
const COMMAND_BYTES_MAX: u64 = 64 * 1024;
/// Suffix that the kernel appends to the path of an executable that was removed or replaced.
const DELETED: &[u8] = b" (deleted)";
/// Ends of the names of systemd units that contain processes.
const UNIT_ENDS: [&str; 2] = [".service", ".scope"];

/// The properties of a process that conditions of rules compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchedProcess {
    /// Path of the executable.
    pub executable: Option<PathBuf>,
    /// The words of the command line, joined by blanks.
    pub command: String,
    /// Path of the cgroup in the hierarchy of cgroup v2, or else in that of systemd.
    pub cgroup: String,
    /// Real user id.
    pub uid: u32,
}

impl MatchedProcess {
    /// Reads the properties of a program that is about to be managed. `argv` is its command line;
    /// it is empty for a program that runs already.
    pub fn of_arrival(arriving: &ReviewedProcess<'_>, argv: &[OsString]) -> Self {
        let dir = dir(Path::new("/proc"), arriving.pid);
        Self {
            executable: match arriving.held {
                true => arriving.executable.map(Path::to_owned),
                false => executable(&dir),
            },
            command: match argv.is_empty() {
                true => command(&dir),
                false => joined(argv.iter().map(|word| word.to_string_lossy())),
            },
            cgroup: cgroup(&dir),
            uid: arriving.uid,
        }
    }

    /// Reads the properties of a running process of this user.
    pub fn of_running(proc_root: &Path, pid: i32, uid: u32) -> Self {
        let dir = dir(proc_root, pid);
        Self {
            executable: executable(&dir),
            command: command(&dir),
            cgroup: cgroup(&dir),
            uid,
        }
    }

    /// Returns the name of the systemd unit that contains the process: the innermost service or
    /// scope.
    pub fn unit(&self) -> Option<&str> {
        let is_unit = |part: &&str| UNIT_ENDS.iter().any(|end| part.ends_with(end));
        self.cgroup.rsplit('/').find(is_unit)
    }
}

fn dir(proc_root: &Path, pid: i32) -> PathBuf {
    proc_root.join(pid.to_string())
}

fn executable(dir: &Path) -> Option<PathBuf> {
    let path = std::fs::read_link(dir.join("exe")).ok()?;
    let mut bytes = path.into_os_string().into_vec();
    if bytes.ends_with(DELETED) {
        bytes.truncate(bytes.len() - DELETED.len());
    }
    Some(OsString::from_vec(bytes).into())
}

fn command(dir: &Path) -> String {
    let mut line = Vec::new();
    let file = File::open(dir.join("cmdline"));
    let _ = file.map(|file| file.take(COMMAND_BYTES_MAX).read_to_end(&mut line));
    let line = line.strip_suffix(&[0]).unwrap_or(&line);
    joined(line.split(|&byte| byte == 0).map(String::from_utf8_lossy))
}

fn joined<S: AsRef<str>>(words: impl Iterator<Item = S>) -> String {
    let words: Vec<S> = words.collect();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    words.join(" ")
}

/// Returns the cgroup of a process; empty if it cannot be read.
fn cgroup(dir: &Path) -> String {
    let text = std::fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
    let of = |controllers: &str| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.split_once(':')
                .filter(|(names, _)| *names == controllers)
        })
    };
    // In a mixed hierarchy of version 1, systemd has a tree of its own.
    let unified = of("").filter(|(_, path)| *path != "/");
    let found = unified.or_else(|| of("name=systemd")).or_else(|| of(""));
    found.map_or_else(String::new, |(_, path)| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn read(cgroup: &str) -> MatchedProcess {
        let proc = tempfile::tempdir().unwrap();
        let dir = proc.path().join("7");
        std::fs::create_dir(&dir).unwrap();
        symlink("/opt/x y/tool (deleted)", dir.join("exe")).unwrap();
        std::fs::write(dir.join("cmdline"), b"tool\0-a\0b c\0").unwrap();
        std::fs::write(dir.join("cgroup"), cgroup).unwrap();
        MatchedProcess::of_running(proc.path(), 7, 1000)
    }

    #[test]
    fn properties_come_from_procfs() {
        let process = read("0::/user.slice/user@1000.service/app.slice/x.scope/sub\n");
        assert_eq!(process.executable, Some("/opt/x y/tool".into()));
        assert_eq!(process.command, "tool -a b c");
        assert_eq!(process.unit(), Some("x.scope"));
        let mixed = read("3:cpu:/a\n1:name=systemd:/system.slice/b.service\n0::/\n");
        assert_eq!(mixed.unit(), Some("b.service"));
        assert_eq!(read("0::/\n").unit(), None);
        let gone = MatchedProcess::of_running(Path::new("/none"), 7, 0);
        assert_eq!((gone.executable, gone.command.as_str()), (None, ""));
    }
}
