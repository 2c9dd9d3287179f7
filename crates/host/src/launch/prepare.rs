// SPDX-License-Identifier: MIT OR Apache-2.0
//! Describes a launch ([`LaunchSpec`]), and converts this description to the arguments of `exec`
//! ([`PreparedExec`]).
//!
//! The parent makes this conversion before the fork, because the child must not allocate or lock
//! between fork and exec: it prepares the strings, the candidate paths and the descriptors. As in
//! `execvp`, the command is searched in `PATH`, and the shell runs a file of unknown format, such
//! as a script without `#!`. The search costs one check per directory of `PATH`. The conversion
//! opens the files of redirected streams, and thereby creates or truncates output files.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr;

use super::LaunchError;

/// The target of a standard stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Stream {
    /// The launcher's stream.
    #[default]
    Inherit,
    /// `/dev/null`.
    Null,
    /// A file; created, and truncated when written to.
    File(PathBuf),
    /// A file to which output is appended; as standard input, it is read from its start.
    Append(PathBuf),
}

/// A program to launch.
#[derive(Debug, Clone, Default)]
pub struct LaunchSpec {
    /// The command and its arguments; the command is searched in `PATH`.
    pub argv: Vec<OsString>,
    /// Working directory; `None` for the launcher's directory.
    pub cwd: Option<PathBuf>,
    /// Changes to the launcher's environment; `None` removes a variable.
    pub env: BTreeMap<OsString, Option<OsString>>,
    /// Standard input.
    pub stdin: Stream,
    /// Standard output.
    pub stdout: Stream,
    /// Standard error.
    pub stderr: Stream,
    /// Names of variables that get the number of threads with which the child is started
    /// ([`HeldChild::start_with_threads`](super::HeldChild::start_with_threads)).
    pub thread_variables: Vec<&'static str>,
    /// Whether the program gets a new session and process group. With the kernel's autogroups,
    /// sessions get equal shares of CPU time, independently of their numbers of threads, and nice
    /// values have an effect only within a session. A new session has no terminal.
    pub new_session: bool,
}

/// Environment variables that set the size of the thread pools of common runtimes. The second
/// element lists the variables that the runtime reads if the first one is not set. oneTBB documents
/// no such variable; it reads the affinity mask.
const THREAD_POOLS: [(&str, &[&str]); 6] = [
    ("OMP_NUM_THREADS", &[]),
    (
        "OPENBLAS_NUM_THREADS",
        &["GOTO_NUM_THREADS", "OMP_NUM_THREADS"],
    ),
    ("MKL_NUM_THREADS", &["OMP_NUM_THREADS"]),
    ("BLIS_NUM_THREADS", &["OMP_NUM_THREADS"]),
    ("RAYON_NUM_THREADS", &["RAYON_RS_NUM_CPUS"]),
    ("GOMAXPROCS", &[]),
];

/// The longest decimal number of threads, in bytes, with the terminating zero byte.
const NUMBER_BYTES: usize = 11;

impl LaunchSpec {
    /// Creates a launch with the launcher's streams, environment and directory.
    pub fn new(argv: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// Sets an environment variable of the program.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.insert(name.into(), Some(value.into()));
        self
    }

    /// Sets the path of the heartbeat page, in the variable of [`usher_heartbeat`].
    #[must_use]
    pub fn heartbeat(self, page: &Path) -> Self {
        self.env("USHER_HEARTBEAT", page)
    }

    /// Adds Usher's OMPT tool to the tools that an OpenMP runtime loads.
    #[must_use]
    pub fn ompt_tool(self, library: &Path) -> Self {
        let mut list = library.as_os_str().to_owned();
        let given = self.variable("OMP_TOOL_LIBRARIES");
        if let Some(given) = given.filter(|given| !given.is_empty()) {
            list.push(":");
            list.push(given);
        }
        self.env("OMP_TOOL_LIBRARIES", list)
    }

    /// Lists the variables for the number of threads of common runtimes in
    /// [`Self::thread_variables`]. Variables that the user has set are left out, and variables that
    /// would take precedence over a variable of the user.
    #[must_use]
    pub fn thread_hints(mut self) -> Self {
        let is_free = |name: &&str| self.variable(name).is_none();
        let free = THREAD_POOLS
            .iter()
            .filter(|(name, others)| is_free(name) && others.iter().all(is_free));
        self.thread_variables = free.map(|&(name, _)| name).collect();
        self
    }

    /// Sets [`Self::thread_variables`] to this number.
    #[must_use]
    pub fn threads(mut self, threads: u32) -> Self {
        for name in std::mem::take(&mut self.thread_variables) {
            self = self.env(name, threads.to_string());
        }
        self
    }

    /// Returns the value that an environment variable will have in the program.
    fn variable(&self, name: &str) -> Option<OsString> {
        match self.env.get(OsStr::new(name)) {
            Some(change) => change.clone(),
            None => std::env::var_os(name),
        }
    }

    /// Returns the file that `exec` will execute.
    ///
    /// # Errors
    /// The command is empty, not found in `PATH`, or not an executable file.
    pub fn resolve(&self) -> Result<PathBuf, LaunchError> {
        let program = self.argv.first().ok_or(LaunchError::NoCommand)?;
        let mut refused = libc::ENOENT;
        for candidate in self.candidates(program) {
            match executable(&self.in_cwd(&candidate)) {
                Ok(()) => return Ok(candidate),
                Err(libc::EACCES) => refused = libc::EACCES,
                Err(_) => {}
            }
        }
        let source = std::io::Error::from_raw_os_error(refused);
        Err(LaunchError::from_exec(program.clone(), source))
    }

    fn in_cwd(&self, path: &Path) -> PathBuf {
        self.cwd
            .as_ref()
            .map_or_else(|| path.to_owned(), |cwd| cwd.join(path))
    }

    /// Returns the paths that `exec` tries, in order.
    fn candidates(&self, program: &OsStr) -> Vec<PathBuf> {
        if program.as_bytes().contains(&b'/') {
            return vec![PathBuf::from(program)];
        }
        let path = self
            .variable("PATH")
            .unwrap_or_else(|| "/usr/bin:/bin".into());
        let folder = |dir: PathBuf| match dir.as_os_str().is_empty() {
            true => Path::new(".").join(program),
            false => dir.join(program),
        };
        std::env::split_paths(&path).map(folder).collect()
    }

    fn environment(&self) -> BTreeMap<OsString, OsString> {
        let mut all: BTreeMap<_, _> = std::env::vars_os().collect();
        for (name, change) in &self.env {
            match change {
                Some(value) => all.insert(name.clone(), value.clone()),
                None => all.remove(name),
            };
        }
        all
    }
}

fn executable(path: &Path) -> Result<(), i32> {
    let meta = path
        .metadata()
        .map_err(|e| e.raw_os_error().unwrap_or(libc::ENOENT))?;
    let may = rustix::fs::access(path, rustix::fs::Access::EXEC_OK);
    match meta.is_file() && may.is_ok() {
        true => Ok(()),
        false => Err(libc::EACCES),
    }
}

/// A [`LaunchSpec`] in the form that `exec` takes. The pointers refer to strings of the same
/// struct. The pointers stay valid when the struct is moved, because the buffers of the strings are
/// on the heap.
pub(super) struct PreparedExec {
    pub program: OsString,
    pub paths: Vec<CString>,
    pub cwd: Option<CString>,
    pub new_session: bool,
    streams: [Option<OwnedFd>; 3],
    argv: Argv,
    /// The arguments for a file of unknown format, which the shell runs: `/bin/sh`, an entry for
    /// the file's path, and the rest of argv.
    shell_argv: Argv,
    envp: Argv,
    /// The variables that get the number of threads, as `NAME=` with room for the number.
    thread_variables: Vec<Vec<u8>>,
    /// The environment with `thread_variables`; empty until the number is known.
    envp_with_threads: Vec<*const libc::c_char>,
}

/// Strings and the null-terminated array of pointers to them.
struct Argv {
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl Argv {
    fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|s| s.as_ptr());
        let pointers = pointers.chain([ptr::null()]).collect();
        Self {
            _strings: strings,
            pointers,
        }
    }
}

impl PreparedExec {
    pub fn new(spec: &LaunchSpec) -> Result<Self, LaunchError> {
        let program = spec.argv.first().ok_or(LaunchError::NoCommand)?.clone();
        let c = |what: &str, text: Vec<u8>| {
            CString::new(text).map_err(|_| LaunchError::Nul {
                program: program.clone(),
                what: what.to_owned(),
            })
        };
        let argv = (spec.argv.iter())
            .map(|arg| c("an argument", arg.as_bytes().to_vec()))
            .collect::<Result<Vec<_>, _>>()?;
        let paths = (spec.candidates(&program).into_iter())
            .map(|path| c("the command", path.into_os_string().into_vec()))
            .collect::<Result<Vec<_>, _>>()?;
        let thread_variables: Vec<Vec<u8>> = (spec.thread_variables.iter())
            .map(|name| [name.as_bytes(), b"=", &[0; NUMBER_BYTES]].concat())
            .collect();
        let mut envp = Vec::new();
        for (name, value) in spec.environment() {
            let mut pair = name.clone().into_vec();
            pair.push(b'=');
            pair.extend(value.as_bytes());
            envp.push(c(&format!("variable {}", name.display()), pair)?);
        }
        let cwd = (spec.cwd.as_ref())
            .map(|dir| c("the directory", dir.as_os_str().as_bytes().to_vec()))
            .transpose()?;
        let mut by_shell = vec![c("sh", b"/bin/sh".to_vec())?, CString::default()];
        by_shell.extend(argv.iter().skip(1).cloned());
        Ok(Self {
            streams: [
                open(&spec.stdin, "input")?,
                open(&spec.stdout, "output")?,
                open(&spec.stderr, "error")?,
            ],
            new_session: spec.new_session,
            argv: Argv::new(argv),
            shell_argv: Argv::new(by_shell),
            // The child must not allocate.
            envp_with_threads: Vec::with_capacity(envp.len() + thread_variables.len() + 1),
            envp: Argv::new(envp),
            thread_variables,
            program,
            paths,
            cwd,
        })
    }

    /// Returns the descriptor of standard stream `number`, if the stream is redirected.
    pub fn stream(&self, number: usize) -> Option<i32> {
        let fd = self.streams.get(number)?.as_ref()?;
        Some(fd.as_fd().as_raw_fd())
    }

    pub fn argv(&self) -> *const *const libc::c_char {
        self.argv.pointers.as_ptr()
    }

    pub fn envp(&self) -> *const *const libc::c_char {
        match self.envp_with_threads.is_empty() {
            true => self.envp.pointers.as_ptr(),
            false => self.envp_with_threads.as_ptr(),
        }
    }

    /// Sets the variables for the number of threads. Only the child calls this function, on its
    /// copy of the struct, at most once. The function does not allocate: the vector has room for
    /// all pointers.
    pub fn set_threads(&mut self, threads: u32) {
        let mut digits = [0; NUMBER_BYTES];
        let length = write_decimal(threads, &mut digits);
        let variables = self.envp.pointers.iter().copied();
        self.envp_with_threads
            .extend(variables.filter(|pointer| !pointer.is_null()));
        for variable in &mut self.thread_variables {
            let number = variable.len() - NUMBER_BYTES;
            for (to, &digit) in variable[number..].iter_mut().zip(&digits[..length]) {
                *to = digit;
            }
            self.envp_with_threads.push(variable.as_ptr().cast());
        }
        self.envp_with_threads.push(ptr::null());
    }

    /// Inserts the path of the file that `/bin/sh` runs, and returns the arguments. Only the child
    /// calls this function, on its copy of the struct.
    pub fn shell_argv(&mut self, path: usize) -> *const *const libc::c_char {
        self.shell_argv.pointers[1] = self.paths[path].as_ptr();
        self.shell_argv.pointers.as_ptr()
    }
}

/// Writes a decimal number to the beginning of the buffer and returns the number of digits.
fn write_decimal(number: u32, buffer: &mut [u8; NUMBER_BYTES]) -> usize {
    let count = number.checked_ilog10().map_or(1, |log| log as usize + 1);
    let mut rest = number;
    for digit in buffer[..count].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    count
}

fn open(stream: &Stream, name: &'static str) -> Result<Option<OwnedFd>, LaunchError> {
    let read = name == "input";
    let path = match stream {
        Stream::Inherit => return Ok(None),
        Stream::Null => Path::new("/dev/null"),
        Stream::File(path) | Stream::Append(path) => path,
    };
    let file = match (read, stream) {
        (true, _) => File::open(path),
        (_, Stream::Append(_)) => OpenOptions::new().append(true).create(true).open(path),
        _ => File::create(path),
    };
    let file = file.map_err(|source| LaunchError::Stream {
        stream: name,
        path: path.to_owned(),
        source,
    })?;
    Ok(Some(file.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_thread_pools_are_part_of_the_identity_of_a_program() {
        let pools = THREAD_POOLS.iter();
        let names = pools.flat_map(|(name, others)| others.iter().chain([name]));
        for name in names {
            assert!(usher_probe::THREAD_VARIABLES.contains(name), "{name}");
        }
    }

    #[test]
    fn numbers_are_written_as_decimals() {
        for number in [0, 1, 9, 10, 16, 99, 100, 65_536, u32::MAX] {
            let mut buffer = [0; NUMBER_BYTES];
            let length = write_decimal(number, &mut buffer);
            assert_eq!(buffer[..length], *number.to_string().as_bytes());
            assert!(length < NUMBER_BYTES, "the number ends with a zero byte");
        }
    }
}
