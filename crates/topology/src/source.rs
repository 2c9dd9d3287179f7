// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources of machines (this machine, an XML file of hwloc, a one-line description, a copy of
//! `/sys`), the parser of their names, and [`load`], which reads any of them. XML files and copies
//! of `/sys` are parsed in a child process (module `sandbox`), with its limits of 10 s of CPU time
//! and 1 GiB of memory. Descriptions are parsed in this process (module `synthetic`). This machine is read in this process, without a limit. An XML file has at most 64 MiB,
//! and a description at most 8,192 CPUs (module `synthetic`). Nothing is retried. Every result has
//! passed [`Topology::check`]; an error is one line with the source and the reason.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hwlocality::topology::builder::TopologyBuilder;
use usher_model::Topology;

use crate::error::excerpt;
use crate::{TopologyReadError, assemble, discover, sandbox, synthetic};

/// Maximum size of an XML file in bytes; hwloc's own files are below 1 MiB.
const XML_MAX_BYTES: u64 = 64 << 20;

/// The source of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The machine that this process runs on.
    ThisMachine,
    /// An XML file written by hwloc (`lstopo machine.xml`), version 1 or 2.
    Xml(PathBuf),
    /// One line in hwloc's synthetic syntax: `package:4 die:2 core:6 pu:1`.
    Synthetic(String),
    /// A directory with a copy of a machine's `/sys` and `/proc`, as
    /// `hwloc-gather-topology` makes it.
    Capture(PathBuf),
}

impl Source {
    /// Parses `SPEC|FILE.xml|DIR`. A directory is a copy of `/sys`, any other file is XML, and
    /// other text is a description.
    ///
    /// # Errors
    /// Returns an error if the text is neither an existing file or directory nor a valid
    /// description.
    pub fn parse(text: &str) -> Result<Self, TopologyReadError> {
        let path = Path::new(text);
        if path.is_dir() {
            return Ok(Self::Capture(path.to_owned()));
        }
        if !text.is_empty() && path.exists() {
            return Ok(Self::Xml(path.to_owned()));
        }
        if looks_like_a_path(text) {
            return Err(TopologyReadError::File {
                path: PathBuf::from(excerpt(text)),
                reason: "the file or directory does not exist".to_owned(),
            });
        }
        match synthetic::check(text) {
            Ok(()) => Ok(Self::Synthetic(text.to_owned())),
            Err(reason) if text.contains(':') => Err(TopologyReadError::Synthetic {
                text: excerpt(text),
                reason,
            }),
            Err(reason) => Err(TopologyReadError::UnknownSource {
                text: excerpt(text),
                reason: format!(
                    "no such file exists, and the text is no description of a machine: {reason}"
                ),
            }),
        }
    }

    /// Returns the error of a source that cannot be read.
    fn error(&self, reason: String) -> TopologyReadError {
        match self {
            Self::ThisMachine => TopologyReadError::ThisMachine { reason },
            Self::Synthetic(text) => TopologyReadError::Synthetic {
                text: excerpt(text),
                reason,
            },
            Self::Xml(path) | Self::Capture(path) => TopologyReadError::File {
                path: path.clone(),
                reason,
            },
        }
    }
}

fn looks_like_a_path(text: &str) -> bool {
    let xml = Path::new(text)
        .extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("xml"));
    xml || (text.contains('/') && !text.contains(':'))
}

impl FromStr for Source {
    type Err = TopologyReadError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisMachine => f.write_str("this machine"),
            Self::Synthetic(text) => f.write_str(text),
            Self::Xml(path) | Self::Capture(path) => path.display().fmt(f),
        }
    }
}

/// Reads the machine with all online CPUs, including CPUs that this process may not use. For
/// planning on this machine, restrict the result with [`Topology::restrict`] to
/// [`usable_cpus`](crate::usable_cpus).
///
/// Foreign input is parsed in a child process, so that no input can crash this process.
///
/// # Errors
/// Returns one line with the source and the reason.
pub fn load(source: Source) -> Result<Topology, TopologyReadError> {
    let topology = match &source {
        Source::ThisMachine => this_machine(),
        Source::Xml(path) => xml(path),
        Source::Synthetic(text) => described(text),
        Source::Capture(path) => capture(path),
    }
    .map_err(|reason| source.error(reason))?;
    topology.check()?;
    Ok(topology)
}

fn this_machine() -> Result<Topology, String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "this machine".to_owned(), |name| name.trim().to_owned());
    let (hwloc, parts) = discover::load(TopologyBuilder::new(), name, Some(Path::new("/")))?;
    if !hwloc.is_this_system() {
        let reason = "an environment variable (HWLOC_XMLFILE, HWLOC_SYNTHETIC, HWLOC_FSROOT or \
                      HWLOC_THISSYSTEM) makes hwloc describe another machine; unset the \
                      variable, or name that machine with --from";
        return Err(reason.to_owned());
    }
    Ok(assemble::topology(parts))
}

fn xml(path: &Path) -> Result<Topology, String> {
    let about = fs::metadata(path).map_err(|why| why.to_string())?;
    if !about.is_file() {
        return Err("the path is not a regular file".to_owned());
    }
    if about.len() > XML_MAX_BYTES {
        return Err(format!(
            "the file has {} bytes; the maximum is {XML_MAX_BYTES}",
            about.len()
        ));
    }
    let bytes = fs::read(path).map_err(|why| why.to_string())?;
    let not_xml = "the file is not an XML file written by hwloc (to write one: lstopo machine.xml)";
    let text = String::from_utf8(bytes).map_err(|_| not_xml.to_owned())?;
    if !text.contains("<topology") || text.contains('\0') {
        return Err(not_xml.to_owned());
    }
    apart(&[], last_name(path), None, || {
        TopologyBuilder::new()
            .from_xml(&text)
            .map_err(|_| not_xml.to_owned())
    })
}

fn described(text: &str) -> Result<Topology, String> {
    Ok(assemble::topology(synthetic::facts(text)?))
}

fn capture(path: &Path) -> Result<Topology, String> {
    let root = fs::canonicalize(path).map_err(|why| why.to_string())?;
    if !root.join("sys/devices/system/cpu").is_dir() {
        return Err(
            "the directory is no copy of a machine's /sys, because it has no \
             sys/devices/system/cpu (to make a copy: hwloc-gather-topology)"
                .to_owned(),
        );
    }
    let root = root
        .to_str()
        .ok_or("the name of the file is not valid UTF-8")?
        .to_owned();
    // Restricts hwloc to reading files: otherwise it would add results of this machine's cpuid.
    let environment = [
        ("HWLOC_FSROOT", root.as_str()),
        ("HWLOC_THISSYSTEM", "0"),
        ("HWLOC_COMPONENTS", "linux,stop"),
    ];
    apart(
        &environment,
        last_name(path),
        Some(Path::new(&root)),
        || Ok(TopologyBuilder::new()),
    )
}

/// Loads a machine in a child process, which isolates foreign input.
fn apart(
    environment: &[(&str, &str)],
    name: String,
    root: Option<&Path>,
    builder: impl FnOnce() -> Result<TopologyBuilder, String>,
) -> Result<Topology, String> {
    // Uses hwloc's own XML reader without plug-ins: the result does not depend on installed
    // software, and no library is loaded into a forked child.
    let fixed = [
        ("HWLOC_LIBXML", "0"),
        ("HWLOC_PLUGINS_PATH", "/nonexistent"),
    ];
    let environment: Vec<_> = fixed.iter().chain(environment).copied().collect();
    sandbox::run(&environment, || {
        let (_, parts) = discover::load(builder()?, name, root)?;
        Ok(assemble::topology(parts))
    })
}

fn last_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}
