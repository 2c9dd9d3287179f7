// SPDX-License-Identifier: MIT OR Apache-2.0
//! The identity of a program, the *profile key*: runs with the same key share a profile. The key
//! consists of the identity of the executable and the shape of the arguments.
//!
//! *Executable*: the GNU build id of an ELF file (`build-id:…`). The compilers of all distributions
//! write a build id, and a rebuild changes it. A file without a build id (a script, a stripped
//! binary) is identified by a BLAKE3 hash of its content (`hash:…`).
//!
//! *Shape of the arguments*: one word per argument, joined by blanks:
//!
//! | argument | word |
//! |---|---|
//! | begins with `-` or `+` | itself |
//! | follows `-o`, `--out…`: an output, which exists from the second run on | `out` |
//! | a whole number below 64: often a thread count | itself |
//! | a larger whole number | `number:2^k`, the power of two not above it |
//! | a file of 64 KiB or more | `file:2^k`, the power of two not above its bytes |
//! | a smaller file (scripts, decks, configurations, logs), or one that does not exist yet | its name without the directory |
//! | a directory, or another existing path | `dir`, `device` |
//! | longer than 64 bytes, or with blanks in it | `word:` and its hash |
//! | anything else | itself |
//!
//! The environment variables that set the number of threads or how threads wait
//! ([`THREAD_VARIABLES`]) precede the words, because runs with two and with eight threads have
//! different scalability curves.
//!
//! Bounds, because the owner of the files may try to keep Usher busy:
//!
//! - of a command line and of an environment, 1 MiB is read each ([`COMMAND_BYTES_MAX`]);
//! - the shape contains at most 4,096 arguments ([`ARGUMENTS_MAX`]), and costs at most two `stat`s
//!   per argument;
//! - for the build id, at most 2 MiB are read and kept in memory, of at most 64 note segments
//!   (module `build_id`);
//! - at most 16 MiB of a file without a build id are hashed ([`HASHED_BYTES_MAX`]).
//!
//! An executable that cannot be read, or is no regular file, is an error. An operand that cannot be
//! read becomes a word of the key.
//!
//! Consequences:
//!
//! - Two Python scripts have different keys. Two encodings of files of similar size with the same
//!   options have the same key. The existence of the log of an earlier run does not change the key.
//! - If a run leaves a large file behind under an option not listed above, the second run has
//!   another key than the first. All later runs have the key of the second.
//! - A script that is launched by its own name has the hash of the script as the key's executable.
//!   A script that is attached while it runs has the interpreter as its executable and the script
//!   as an operand. The same script therefore has two keys.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use usher_model::ProgramKey;

use crate::build_id::build_id;
use crate::error::{ProbeError, is_gone};
use crate::process::live_dir;

/// Environment variables that are part of a program's identity. They set the number of threads and
/// ranks, and whether threads spin while they wait.
pub const THREAD_VARIABLES: [&str; 19] = [
    "BLIS_NUM_THREADS",
    "GOMAXPROCS",
    "GOMP_SPINCOUNT",
    "GOTO_NUM_THREADS",
    "JULIA_NUM_THREADS",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMPI_COMM_WORLD_SIZE",
    "OMP_DYNAMIC",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_THREAD_LIMIT",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
    "PMI_SIZE",
    "RAYON_NUM_THREADS",
    "RAYON_RS_NUM_CPUS",
    "TBB_NUM_THREADS",
];

/// Files below this size are identified by name.
const SMALL_FILE_BYTES: u64 = 64 * 1024;
/// Longer words, in bytes, are replaced by a hash.
const LONG_WORD_BYTES: usize = 64;
/// Files up to this size are hashed completely. Of a larger file, its size is hashed, and one half
/// of this number of bytes from its beginning and one half from its end.
const HASHED_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of bytes of a command line or an environment that are read.
const COMMAND_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of arguments in the shape.
const ARGUMENTS_MAX: usize = 4096;
/// Whole numbers below this value are kept as words.
const SMALL_NUMBER: u64 = 64;

/// A command that is about to run, or the command of a running process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramCommand {
    /// The executable file.
    pub executable: PathBuf,
    /// The arguments, without the command's own name.
    pub arguments: Vec<OsString>,
    /// The directory that relative operands refer to.
    pub directory: PathBuf,
    /// The environment of the command; only [`THREAD_VARIABLES`] are used.
    pub environment: BTreeMap<OsString, OsString>,
}

/// Returns the command that a process runs.
///
/// # Errors
/// The process has ended, or belongs to another user.
pub fn command_of(proc_root: &Path, pid: i32) -> Result<ProgramCommand, ProbeError> {
    let dir = live_dir(proc_root, pid);
    let read = |name: &str| {
        let path = dir.join(name);
        read_at_most(&path, COMMAND_BYTES_MAX).map_err(|error| match is_gone(&error) {
            true => ProbeError::Gone { pid },
            false => ProbeError::read(&path, error),
        })
    };
    let variable = |entry: OsString| {
        let equals = entry.as_bytes().iter().position(|&b| b == b'=')?;
        let (name, value) = entry.as_bytes().split_at(equals);
        let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        Some((text(name), text(&value[1..])))
    };
    Ok(ProgramCommand {
        executable: dir.join("exe"),
        arguments: entries(&read("cmdline")?).skip(1).collect(),
        directory: dir.join("cwd"),
        environment: entries(&read("environ")?).filter_map(variable).collect(),
    })
}

/// Returns the words of the command line of a process, of which at most 1 MiB is read.
///
/// # Errors
/// The process has ended, or procfs cannot be read.
pub fn command_line_of(proc_root: &Path, pid: i32) -> Result<Vec<OsString>, ProbeError> {
    let path = live_dir(proc_root, pid).join("cmdline");
    match read_at_most(&path, COMMAND_BYTES_MAX) {
        Ok(line) => Ok(entries(&line).collect()),
        Err(error) if is_gone(&error) => Err(ProbeError::Gone { pid }),
        Err(error) => Err(ProbeError::read(&path, error)),
    }
}

/// Returns at most the first `bytes` bytes of a file.
fn read_at_most(path: &Path, bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(bytes).read_to_end(&mut content)?;
    Ok(content)
}

/// Returns the zero-terminated entries of `cmdline` or `environ`.
fn entries(bytes: &[u8]) -> impl Iterator<Item = OsString> {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    let parts = bytes.split(|&b| b == 0).map(<[u8]>::to_vec);
    parts.map(OsString::from_vec)
}

/// Returns the profile key of a command.
///
/// # Errors
/// The executable cannot be read. An operand that cannot be read is no error: the word itself
/// becomes part of the key.
pub fn identify(command: &ProgramCommand) -> Result<ProgramKey, ProbeError> {
    Ok(ProgramKey {
        executable: executable(&command.executable)?,
        arguments: shape(command),
    })
}

/// Returns the identity of an executable: its build id, or a hash of its content. The work is
/// bounded for any content, because the owner of the file may try to keep Usher busy.
fn executable(path: &Path) -> Result<String, ProbeError> {
    let failed = |error| ProbeError::read(path, error);
    let mut open = OpenOptions::new();
    let open = open
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = open.open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(std::io::Error::other(
            "the executable is not a regular file, so the program cannot be identified",
        )));
    }
    Ok(match build_id(&file) {
        Some(id) => format!("build-id:{}", hex(&id)),
        None => format!("hash:{}", hash_file(&file).map_err(failed)?),
    })
}

fn hash_file(mut file: &File) -> std::io::Result<String> {
    let size = file.metadata()?.len();
    let mut hasher = blake3::Hasher::new();
    file.rewind()?;
    if size <= HASHED_BYTES_MAX {
        // `take` also ends the reading of a file that grows during the reading.
        hasher.update_reader(file.take(HASHED_BYTES_MAX))?;
    } else {
        hasher.update(&size.to_le_bytes());
        hasher.update_reader(file.take(HASHED_BYTES_MAX / 2))?;
        file.seek(SeekFrom::Start(size - HASHED_BYTES_MAX / 2))?;
        hasher.update_reader(file.take(HASHED_BYTES_MAX / 2))?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sixteen hexadecimal digits of a hash: enough to distinguish the operands of one executable.
fn short_hash(bytes: &[u8]) -> String {
    let hash = blake3::hash(bytes);
    hex(&hash.as_bytes()[..8])
}

fn shape(command: &ProgramCommand) -> String {
    let variables = THREAD_VARIABLES.iter().filter_map(|&name| {
        let value = command.environment.get(OsStr::new(name))?;
        Some(format!("{name}={}", plain(value)))
    });
    let mut words: Vec<String> = variables.collect();
    let mut is_output = false;
    for argument in command.arguments.iter().take(ARGUMENTS_MAX) {
        words.push(match is_output {
            true => "out".to_owned(),
            false => word(argument, &command.directory),
        });
        is_output = names_output(argument);
    }
    words.join(" ")
}

fn names_output(option: &OsStr) -> bool {
    let option = option.as_bytes();
    option == b"-o" || (option.starts_with(b"--out") && !option.contains(&b'='))
}

fn word(argument: &OsStr, directory: &Path) -> String {
    if matches!(argument.as_bytes().first(), Some(b'-' | b'+')) {
        return plain(argument);
    }
    let number = argument.to_str().and_then(|text| text.parse::<u64>().ok());
    match number {
        Some(number) if number < SMALL_NUMBER => number.to_string(),
        Some(number) => format!("number:2^{}", number.ilog2()),
        None => named(argument, directory).unwrap_or_else(|| plain(argument)),
    }
}

/// Returns the word for an operand that is the path of an existing file, or may become one.
fn named(operand: &OsStr, directory: &Path) -> Option<String> {
    if operand.is_empty() {
        return None;
    }
    let path = directory.join(operand);
    let name = || path.file_name().map(plain);
    let Ok(meta) = std::fs::metadata(&path) else {
        return path.parent()?.is_dir().then(name)?;
    };
    let kind = meta.file_type();
    if kind.is_dir() {
        return Some("dir".to_owned());
    }
    if !kind.is_file() {
        return Some("device".to_owned());
    }
    match meta.len() {
        size if size < SMALL_FILE_BYTES => name(),
        size => Some(format!("file:2^{}", size.ilog2())),
    }
}

fn plain(word: &OsStr) -> String {
    let bytes = word.as_bytes();
    let odd = |b: &u8| b.is_ascii_whitespace() || b.is_ascii_control();
    match word.to_str() {
        Some(text) if bytes.len() <= LONG_WORD_BYTES && !bytes.iter().any(odd) => text.to_owned(),
        _ => format!("word:{}", short_hash(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(dir: &Path, arguments: &[&str]) -> ProgramCommand {
        ProgramCommand {
            executable: "/proc/self/exe".into(),
            arguments: arguments.iter().map(OsString::from).collect(),
            directory: dir.to_owned(),
            environment: BTreeMap::new(),
        }
    }

    #[test]
    fn the_shape_keeps_options_and_buckets_operands() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("a.bin"), vec![0; 70_000]).unwrap();
        std::fs::write(at("b.bin"), vec![0; 130_000]).unwrap();
        std::fs::create_dir(at("sub")).unwrap();
        let shape = |arguments: &[&str]| shape(&command(dir.path(), arguments));
        assert_eq!(
            shape(&["-9", "--threads=2", "a.bin"]),
            "-9 --threads=2 file:2^16"
        );
        assert_eq!(shape(&["a.bin"]), shape(&["b.bin"]));
        assert_ne!(shape(&["one.py"]), shape(&["two.py"]));
        let log = ["-g", "sub/run.log"];
        let before = shape(&log);
        std::fs::write(at("sub/run.log"), "the last run's").unwrap();
        assert_eq!(
            (shape(&log), before),
            ("-g run.log".into(), "-g run.log".into())
        );
        assert_eq!(shape(&["if=/dev/zero", "a/b"]), "if=/dev/zero a/b");
        assert_eq!(shape(&["sub", "/dev/null", "nosuch"]), "dir device nosuch");
        assert_eq!(shape(&["-p", "2", "1000"]), "-p 2 number:2^9");
        std::fs::write(at("new"), "x").unwrap();
        assert_eq!(shape(&["-o", "new"]), shape(&["-o", "absent"]));
        assert!(shape(&["-c", "import numpy; numpy.linalg.svd"]).starts_with("-c word:"));
        assert_eq!(shape(&["", "+WT2"]), " +WT2");
    }

    #[test]
    fn thread_counts_in_the_environment_are_part_of_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let mut two = command(dir.path(), &["x"]);
        two.environment.insert("HOME".into(), "/root".into());
        two.environment.insert("OMP_NUM_THREADS".into(), "2".into());
        assert_eq!(shape(&two), "OMP_NUM_THREADS=2 x");
    }

    #[test]
    fn elf_files_have_a_build_id_and_others_a_hash() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = command(dir.path(), &[]);
        command.executable = "/bin/ls".into();
        let key = identify(&command).unwrap().executable;
        assert!(key.starts_with("build-id:") && key.len() > 20, "{key}");
        let script = dir.path().join("script");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        command.executable = script.clone();
        let first = identify(&command).unwrap().executable;
        assert_eq!(
            first,
            format!("hash:{}", blake3::hash(b"#!/bin/sh\n").to_hex())
        );
        std::fs::write(&script, "#!/bin/sh\n\n").unwrap();
        assert_ne!(identify(&command).unwrap().executable, first);
        command.executable = dir.path().join("absent");
        let error = identify(&command).unwrap_err().to_string();
        assert!(error.contains("absent: No such file"), "{error}");
    }

    #[test]
    fn a_huge_sparse_file_is_identified_in_bounded_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = command(dir.path(), &[]);
        command.executable = dir.path().join("big");
        let file = File::create(&command.executable).unwrap();
        // The first size is the largest that the file system accepts; hashing such a file
        // completely would take hours.
        let sizes = [15_u64 << 40, 15 << 39, 1 << 43, 1 << 42];
        if !sizes.into_iter().any(|size| file.set_len(size).is_ok()) {
            usher_skip::skip!("this file system has no files of 4 TiB");
            return;
        }
        let key = identify(&command).unwrap().executable;
        assert!(key.starts_with("hash:"), "{key}");
        command.executable = "/dev/null".into();
        assert!(identify(&command).is_err());
    }

    #[test]
    fn a_running_process_has_the_key_of_the_command_that_started_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("/bin/sleep")
            .args(["1000"])
            .env_clear()
            .env("OMP_NUM_THREADS", "3")
            .current_dir(dir.path())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        // Polls, because the arguments appear shortly after the child's `exec`.
        let cmdline = format!("/proc/{pid}/cmdline");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while std::fs::read(&cmdline).unwrap().is_empty() {
            assert!(std::time::Instant::now() < deadline, "it never began");
        }
        let running = identify(&command_of(Path::new("/proc"), pid).unwrap()).unwrap();
        let mut started = command(dir.path(), &["1000"]);
        started.executable = "/bin/sleep".into();
        started
            .environment
            .insert("OMP_NUM_THREADS".into(), "3".into());
        let started = identify(&started).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(running, started);
        let gone = command_of(Path::new("/proc"), pid).unwrap_err();
        assert!(gone.is_gone());
    }

    proptest::proptest! {
        #[test]
        fn any_arguments_have_a_shape(arguments in proptest::collection::vec("\\PC{0,80}", 0..6)) {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let command = command(Path::new("/nowhere"), &arguments);
            let shape = shape(&command);
            let words = shape.split(' ').count();
            proptest::prop_assert_eq!(words, arguments.len().max(1));
            proptest::prop_assert!(!shape.contains(|c: char| c.is_control()));
        }
    }
}
