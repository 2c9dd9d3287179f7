// SPDX-License-Identifier: GPL-2.0-only
//! The paths that commands and daemon share: runtime directory, socket, profile store and
//! thresholds of background work. Also creates and checks the runtime directory, checks the length
//! of socket paths (at most 107 bytes), and reads the thresholds.
//!
//! Each path is the given option, else an environment variable, else a default that depends on the
//! user (root: `/run/usher`; others: the XDG directories, or a directory in `/tmp`). clap reads the
//! variables of options.
//!
//! - A runtime directory to which other users can write is rejected, with the remedy in the error.
//!   The check covers the directory itself, but not the directories above it.
//! - Thresholds without an option come from the file beside the profile store. A missing or
//!   unreadable file leads to the published thresholds; any other error is returned.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use usher_policy::background::Thresholds;

use crate::failure;

/// The socket's name in the runtime directory.
pub const SOCKET: &str = "usher.varlink";
/// The socket's name of a scheduler that runs without a daemon.
pub const FOREGROUND_SOCKET: &str = "sched.varlink";
/// Environment variable that names the runtime directory; it takes precedence over the default
/// directories.
pub const RUNTIME_DIR: &str = "USHER_RUNTIME_DIR";

/// The system's runtime directory, which root's daemon uses.
const SYSTEM: &str = "/run/usher";

/// Returns the directory of the socket and journal of a daemon of this user: the given one, else
/// `/run/usher` for root, else `$XDG_RUNTIME_DIR/usher`, else `/run/user/UID/usher` if logind has
/// made its parent, else a directory of the user's own in /tmp. Another user may have created the
/// directory in /tmp; [`is_safe`] checks this.
pub fn own_dir(given: Option<&Path>) -> PathBuf {
    if let Some(dir) = given {
        return dir.to_owned();
    }
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return SYSTEM.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() => Path::new(&dir).join("usher"),
        _ => {
            let run = PathBuf::from(format!("/run/user/{}", uid.as_raw()));
            match is_safe(&run) {
                true => run.join("usher"),
                false => format!("/tmp/usher-{}", uid.as_raw()).into(),
            }
        }
    }
}

/// Returns the path by which Usher starts itself. After an upgrade, this is the new executable. If
/// the executable was deleted, it is the link in `/proc` to the deleted file.
///
/// # Errors
/// `/proc` is not mounted.
pub fn own_executable() -> anyhow::Result<PathBuf> {
    const LINK: &str = "/proc/self/exe";
    let exe = std::env::current_exe().context("finding Usher's own executable")?;
    if exe.exists() {
        return Ok(exe);
    }
    // The kernel adds this suffix to the path of a deleted file.
    let replaced = exe.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    let replaced = replaced.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    let replaced = replaced.filter(|path| path.is_file());
    Ok(replaced.unwrap_or_else(|| LINK.into()))
}

/// Returns whether only this user and root can write to the directory.
pub fn is_safe(dir: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(dir).is_ok_and(|meta| {
        meta.is_dir() && [own, 0].contains(&meta.uid()) && meta.mode() & 0o022 == 0
    })
}

/// Returns why the journals in a runtime directory are not used, and no journal is written there:
/// as [`problem`], and if root owns the directory of another user's process.
pub fn journal_problem(dir: &Path) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    let is_foreign = fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() != own);
    match is_foreign {
        true => Some(unused(dir, "another user owns it")),
        false => problem(dir),
    }
}

/// Returns why a runtime directory is not used: it is no directory, other users can write to it, or
/// this user may not access its parent. `None` if it is used, or does not exist yet.
pub fn problem(dir: &Path) -> Option<String> {
    let reason = match fs::symlink_metadata(dir) {
        Ok(_) if is_safe(dir) => return None,
        Ok(meta) if meta.is_dir() => "another user owns it or may write to it",
        Ok(_) => "it is not a directory",
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            "this user may not access the directory that contains it"
        }
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            "a part of its path is not a directory"
        }
        Err(_) => return None,
    };
    Some(unused(dir, reason))
}

fn unused(dir: &Path, reason: &str) -> String {
    format!(
        "Usher does not use the runtime directory '{}', because {reason}; {}",
        dir.display(),
        other_dir_remedy()
    )
}

/// Returns the advice to use another runtime directory.
pub fn other_dir_remedy() -> String {
    format!("set {RUNTIME_DIR} or --runtime-dir to another directory")
}

/// Returns the directory of root's daemon, which holds the scheduler: the given one, else the
/// default.
pub fn sched_dir(given: Option<&Path>) -> PathBuf {
    given.map_or_else(|| SYSTEM.into(), Path::to_owned)
}

/// Makes a runtime directory; root's is readable for all users.
///
/// # Errors
/// The directory cannot be made, or other users may write to it.
pub fn make_dir(dir: &Path) -> anyhow::Result<()> {
    let euid = rustix::process::geteuid();
    let mode = if euid.is_root() { 0o755 } else { 0o700 };
    let is_new = fs::symlink_metadata(dir).is_err();
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(dir);
    // Restores permissions that the umask removed.
    let made = made.and_then(|()| match is_new {
        true => fs::set_permissions(dir, Permissions::from_mode(mode)),
        false => Ok(()),
    });
    if let Err(error) = made {
        if let Some(problem) = problem(dir) {
            bail!(problem);
        }
        let (dir, remedy) = (dir.display(), other_dir_remedy());
        bail!("making the runtime directory '{dir}': {error}; {remedy}");
    }
    let meta = fs::symlink_metadata(dir)
        .with_context(|| format!("examining the runtime directory '{}'", dir.display()))?;
    if !meta.is_dir() || meta.uid() != euid.as_raw() {
        bail!(
            "the runtime directory '{}' is not a directory owned by user {}; {}",
            dir.display(),
            euid.as_raw(),
            other_dir_remedy()
        );
    }
    if meta.mode() & 0o022 != 0 {
        bail!(
            "other users may write to the runtime directory '{}' and replace its files; remove \
             their write permission (chmod go-w), or {}",
            dir.display(),
            other_dir_remedy()
        );
    }
    Ok(())
}

/// Returns the sockets on which a daemon may listen for this user, in the order to try: the
/// system's, which plans for all users, then the user's own.
pub fn sockets(given: Option<&Path>) -> Vec<PathBuf> {
    let mut dirs = vec![own_dir(given)];
    let is_named = given.is_some() || std::env::var_os(RUNTIME_DIR).is_some();
    if !is_named {
        dirs.insert(0, SYSTEM.into());
        dirs.dedup();
    }
    dirs.iter().map(|dir| dir.join(SOCKET)).collect()
}

/// Returns the paths of [`sockets`] as a text: `A or B`.
pub fn socket_list(given: Option<&Path>) -> String {
    let paths = sockets(given);
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(" or ")
}

/// Upper limit of the length of a socket's path: the kernel's `sun_path` with its final NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The remedy for a runtime directory with a path that is too long for its sockets.
pub const SHORTER_DIR: &str =
    "name a directory with a shorter path by --runtime-dir or USHER_RUNTIME_DIR";

/// Rejects a path that is too long for a Unix socket.
///
/// # Errors
/// The length, the limit and the given remedy.
pub fn check_socket_path(path: &Path, remedy: &str) -> io::Result<()> {
    let length = path.as_os_str().len();
    if length <= SOCKET_PATH_BYTES_MAX {
        return Ok(());
    }
    let reason = format!(
        "the path has {length} bytes, but the path of a Unix socket can have at most \
         {SOCKET_PATH_BYTES_MAX}: {remedy}"
    );
    Err(io::Error::new(ErrorKind::InvalidInput, reason))
}

/// Returns the file of the profile store: the given one, else by the XDG rules.
pub fn store_path(given: Option<&Path>) -> PathBuf {
    if let Some(path) = given {
        return path.to_owned();
    }
    if rustix::process::geteuid().is_root() {
        return "/var/lib/usher/profiles.db".into();
    }
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let data = absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .unwrap_or_else(|| own_dir(None));
    data.join("usher/profiles.db")
}

/// Returns the file with this machine's thresholds for background work, which `usher bench
/// calibrate` writes: beside the profile store.
pub fn thresholds_path(store: &Path) -> PathBuf {
    store.with_file_name("thresholds.toml")
}

/// Reads the thresholds for background work from the given file. Without a given file, reads the
/// calibrated thresholds of this machine. If their file does not exist, or its permissions forbid
/// reading, returns the thresholds of paper 2.
///
/// # Errors
/// The file cannot be read, or has another format.
pub fn thresholds(given: Option<&Path>, store: &Path) -> anyhow::Result<Thresholds> {
    let path = given.map_or_else(|| thresholds_path(store), Path::to_owned);
    let text = match usher_topology::file::read_text(&path) {
        Ok(text) => text,
        Err(error) if given.is_none() && is_absent(error.kind()) => {
            return Ok(Thresholds::default());
        }
        // The default file may be in a home folder of another user (`HOME` after `sudo`): without
        // an explicit file, a missing permission is no error.
        Err(error) if given.is_none() && error.kind() == ErrorKind::PermissionDenied => {
            let path = path.display();
            failure::print_error(&format!(
                "the thresholds file {path} is not readable: using the published \
                 thresholds"
            ));
            return Ok(Thresholds::default());
        }
        Err(error) => {
            return Err(error).with_context(|| {
                format!(
                    "reading the thresholds of background work from {}",
                    path.display()
                )
            });
        }
    };
    if let Some(reason) = usher_model::nesting_error(&text) {
        bail!(
            "invalid thresholds of background work in {}: {reason}",
            path.display()
        );
    }
    toml::from_str(&text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = 1 + text
            .bytes()
            .take(start)
            .filter(|&byte| byte == b'\n')
            .count();
        let reason = error.message().lines().next().unwrap_or_default();
        anyhow!(
            "{}:{line}: invalid threshold of background work: {}",
            path.display(),
            usher_model::with_suggestion(reason)
        )
    })
}

/// Returns whether an error means that a file or one of its directories does not exist.
fn is_absent(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explicit_directory_has_precedence() {
        let given = Path::new("/x");
        assert_eq!(own_dir(Some(given)), given);
        assert_eq!(sockets(Some(given)), [PathBuf::from("/x/usher.varlink")]);
        assert_eq!(store_path(Some(given)), given);
    }

    #[test]
    fn the_system_daemon_is_tried_first_and_once() {
        let sockets = sockets(None);
        assert_eq!(
            sockets.first(),
            Some(&PathBuf::from("/run/usher/usher.varlink"))
        );
        assert!(sockets.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_rejected_with_the_limit() {
        let path = |length: usize| PathBuf::from("/".repeat(length));
        check_socket_path(&path(SOCKET_PATH_BYTES_MAX), SHORTER_DIR).unwrap();
        let error = check_socket_path(&path(SOCKET_PATH_BYTES_MAX + 1), SHORTER_DIR);
        let text = error.unwrap_err().to_string();
        assert!(text.starts_with("the path has 108 bytes"), "{text}");
        assert!(
            text.contains("at most 107: name a directory with a shorter path"),
            "{text}"
        );
        assert!(SHORTER_DIR.contains(RUNTIME_DIR));
        // The limit is the standard library's.
        let dir = tempfile::tempdir().unwrap();
        let name = |length: usize| "x".repeat(length - dir.path().as_os_str().len() - 1);
        let bind = |length| std::os::unix::net::UnixListener::bind(dir.path().join(name(length)));
        bind(SOCKET_PATH_BYTES_MAX).unwrap();
        assert!(bind(SOCKET_PATH_BYTES_MAX + 1).is_err());
    }

    #[test]
    fn thresholds_are_those_of_the_machine_and_shares() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("profiles.db");
        assert_eq!(thresholds(None, &store).unwrap(), Thresholds::default());
        let file = thresholds_path(&store);
        let own = Thresholds {
            cpu: 0.7,
            ..Thresholds::default()
        };
        std::fs::write(&file, toml::to_string(&own).unwrap()).unwrap();
        assert_eq!(thresholds(None, &store).unwrap(), own);
        std::fs::write(&file, "cpu = 7").unwrap();
        let error = format!("{:#}", thresholds(None, &store).unwrap_err());
        assert!(error.contains("thresholds.toml"), "{error}");
        std::fs::write(&file, "disk = 0.5\nnetwrok = 0.1\n").unwrap();
        let error = format!("{:#}", thresholds(None, &store).unwrap_err());
        let line = format!("{}:2: invalid threshold of background work", file.display());
        assert!(error.starts_with(&line), "{error}");
        assert!(
            error.ends_with("; a similar name exists: `network`") && !error.contains('\n'),
            "{error}"
        );
        assert!(thresholds(Some(&dir.path().join("none")), &store).is_err());
    }
}
