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
    /// Whether the program gets a new session and process group. With the kernel's autogroups,
    /// sessions get equal shares of CPU time, independently of their numbers of threads, and nice
    /// values have an effect only within a session. A new session has no terminal.
    pub new_session: bool,
}

/// Environment variables that set the size of the thread pools of common runtimes.
const THREAD_POOLS: [&str; 6] = [
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "GOMAXPROCS",
];

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

    /// Sets the number of threads of common runtimes, if the user has not set it. Usher does this
    /// only on request, because a thread pool that was sized for the first seat keeps its size when
    /// the program gets more CPUs.
    #[must_use]
    pub fn thread_hints(mut self, threads: usize) -> Self {
        for name in THREAD_POOLS {
            if self.variable(name).is_none() {
                self = self.env(name, threads.to_string());
            }
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
            envp: Argv::new(envp),
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
        self.envp.pointers.as_ptr()
    }

    /// Inserts the path of the file that `/bin/sh` runs, and returns the arguments. Only the child
    /// calls this function, on its copy of the struct.
    pub fn shell_argv(&mut self, path: usize) -> *const *const libc::c_char {
        self.shell_argv.pointers[1] = self.paths[path].as_ptr();
        self.shell_argv.pointers.as_ptr()
    }
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
