// SPDX-License-Identifier: GPL-2.0-only
//! Recognises processes of Usher that must not be attached: launchers, daemons, keepers, and the
//! commands that request an attach.
//!
//! A launcher that gets the seat or the priority of a program could no longer undo the changes to
//! its program in time. Usher's own executable counts, and each executable with the name `usher`,
//! because several versions may run. Commands that only compute, such as `usher sim`, may be
//! attached.
//!
//! A check reads the executable's link and the command line of one process. A process that cannot
//! be read counts as no process of Usher. A process can change its own command line, so the check
//! prevents mistakes and is no protection against a malicious process.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use usher_host::engine::EngineError;

/// Global options with a value in the next word.
const OPTIONS_WITH_VALUE: [&[u8]; 2] = [b"--runtime-dir", b"--color"];

/// Checks that a process is none of Usher that must not be attached.
///
/// # Errors
/// What the process does for Usher.
pub fn check(pid: i32) -> Result<(), EngineError> {
    match role(Path::new("/proc"), pid) {
        Some(what) => Err(EngineError::Own { pid, what }),
        None => Ok(()),
    }
}

/// Returns what a process of Usher does; `None` for every other process, and for commands of Usher
/// that may be attached.
fn role(proc_root: &Path, pid: i32) -> Option<&'static str> {
    let dir = proc_root.join(pid.to_string());
    if !is_usher(proc_root, &dir) {
        return None;
    }
    let line = fs::read(dir.join("cmdline")).ok()?;
    let words = line.split(|&byte| byte == 0).skip(1);
    match command(words)? {
        b"run" | b"bg" => Some(
            "a command of Usher that runs or regulates another program: give the pid of that \
             program",
        ),
        b"daemon" => Some("a daemon of Usher"),
        b"keeper" => Some("a keeper of Usher"),
        b"sched" => Some("the process that holds Usher's scheduler"),
        b"profile" | b"mix" => Some("a measurement of Usher, which assigns CPUs itself"),
        b"attach" | b"detach" | b"wait" | b"status" | b"top" | b"explain" | b"undo" => {
            Some("a command of Usher")
        }
        _ => None,
    }
}

/// Returns whether a process executes this program, or another version of it.
fn is_usher(proc_root: &Path, dir: &Path) -> bool {
    let of = |dir: &Path| fs::metadata(dir.join("exe")).map(|meta| (meta.dev(), meta.ino()));
    let is_same = match (of(&proc_root.join("self")), of(dir)) {
        (Ok(own), Ok(theirs)) => own == theirs,
        _ => false,
    };
    let is_named = || {
        let path = fs::read_link(dir.join("exe")).ok()?;
        let name = path.file_name()?.as_bytes().to_owned();
        // The kernel appends this to the name of a file that was replaced by a new version.
        let name = name.strip_suffix(b" (deleted)").unwrap_or(&name);
        Some(name == b"usher")
    };
    is_same || is_named() == Some(true)
}

/// Returns the first word that is neither an option nor the value of an option.
fn command<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    loop {
        let word = words.next()?;
        if OPTIONS_WITH_VALUE.contains(&word) {
            words.next();
        } else if !word.starts_with(b"-") {
            return Some(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Returns the role of a process with this executable and command line.
    fn role_of(executable: &str, line: &str) -> Option<&'static str> {
        let proc = tempfile::tempdir().unwrap();
        let dir = proc.path().join("7");
        fs::create_dir(&dir).unwrap();
        symlink(executable, dir.join("exe")).unwrap();
        fs::write(dir.join("cmdline"), line.replace(' ', "\0")).unwrap();
        role(proc.path(), 7)
    }

    #[test]
    fn launchers_daemons_keepers_and_requests_have_a_role() {
        let usher = "/opt/x/usher";
        for (line, part) in [
            ("usher run -- make", "another program"),
            ("usher --runtime-dir daemon bg make", "another program"),
            ("usher --runtime-dir=/x --json daemon", "daemon"),
            ("usher keeper 1 2", "keeper"),
            ("usher attach 7", "a command of Usher"),
        ] {
            let role = role_of(usher, line);
            assert!(role.is_some_and(|role| role.contains(part)), "{line}");
        }
        assert!(role_of("/opt/x/usher (deleted)", "usher run x").is_some());
    }

    #[test]
    fn other_programs_and_computing_commands_have_none() {
        assert_eq!(role_of("/usr/bin/make", "usher run x"), None);
        assert_eq!(role_of("/usr/bin/usher", "usher sim run"), None);
        assert_eq!(role_of("/usr/bin/usher", "usher"), None);
        assert_eq!(role_of("/usr/bin/usher", ""), None);
    }
}
