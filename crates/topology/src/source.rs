// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources of machines (this machine, an XML file of hwloc, a one-line description, a copy of
//! `/sys`), the parser of their names, and [`load`], which reads any of them. XML files and copies
//! of `/sys` are parsed in a child process (module `sandbox`), with its limits of 10 s of CPU time
//! and 1 GiB of memory. Descriptions are parsed in this process (module `synthetic`). This machine is
//! read in this process, without a limit. An XML file has at most 64 MiB, and a description at most
//! 8,192 CPUs (module `synthetic`). Nothing is retried. Every result has
//! passed [`Topology::check`]; an error is one line with the source and the reason.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hwlocality::topology::builder::TopologyBuilder;
use usher_model::{CpuSet, Topology};

use crate::assemble::HwlocFacts;
use crate::capture::{self, CaptureKind};
use crate::error::{escaped, excerpt};
use crate::{TopologyReadError, assemble, capacity, discover, file, sandbox, synthetic, xml};

/// Maximum size of an XML file in bytes; hwloc's own files are below 1 MiB.
const XML_BYTES_MAX: u64 = 64 << 20;

/// The source of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The machine that this process runs on.
    ThisMachine,
    /// An XML file written by hwloc (`lstopo machine.xml`), version 1, 2 or 3.
    Xml(PathBuf),
    /// One line in hwloc's synthetic syntax: `package:4 die:2 core:6 pu:1`.
    Synthetic(String),
    /// A directory with a copy of a machine's `/sys` and `/proc`, as
    /// `hwloc-gather-topology` makes it, or the results of cpuid, as `hwloc-gather-cpuid` writes
    /// them.
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
        let missing = match fs::metadata(path) {
            Ok(about) if about.is_dir() => return Ok(Self::Capture(path.to_owned())),
            Ok(_) => return Ok(Self::Xml(path.to_owned())),
            Err(why) => missing(path, why),
        };
        if let Some(reason) = missing {
            return Err(TopologyReadError::File {
                path: PathBuf::from(excerpt(text)),
                reason,
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
                    "no such file exists, and the text is not a description of a machine: {reason}"
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

/// Returns the reason why there is no file, for a text that is a path; `None` for other texts. A text
/// is a path if it looks like one, or if a symbolic link has this name.
fn missing(path: &Path, why: io::Error) -> Option<String> {
    if let Ok(target) = fs::read_link(path) {
        return Some(match why.kind() {
            io::ErrorKind::NotFound => format!(
                "the symbolic link leads to '{}', which does not exist",
                excerpt(&target.to_string_lossy())
            ),
            _ => reason(&why),
        });
    }
    let text = path.to_string_lossy();
    let xml = path
        .extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("xml"));
    let has_folder = text.contains('/');
    match why.kind() {
        io::ErrorKind::NotFound if xml || (has_folder && !text.contains(':')) => {
            Some("the file or directory does not exist".to_owned())
        }
        io::ErrorKind::NotFound => None,
        _ => (xml || has_folder).then(|| reason(&why)),
    }
}

/// The reason of an error without its number, such as "Permission denied".
fn reason(why: &io::Error) -> String {
    usher_model::without_error_number(&why.to_string())
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

/// A machine with the CPUs that its description excludes from use.
#[derive(Debug, Clone, PartialEq)]
pub struct DescribedMachine {
    /// The machine with all online CPUs.
    pub topology: Topology,
    /// CPUs that exist and are offline; not part of the topology.
    pub offline: CpuSet,
    /// Online CPUs that the cgroup of the described process excludes; part of the topology.
    pub disallowed: CpuSet,
    /// Values of the description that were ignored. One line each, with the name of the file and
    /// the reason.
    pub notes: Vec<String>,
}

impl DescribedMachine {
    /// Returns the machine with the CPUs that a plan may use.
    ///
    /// # Errors
    /// Returns an error if the cgroup excludes all CPUs.
    pub fn usable(&self) -> Result<Topology, TopologyReadError> {
        if self.disallowed.is_empty() {
            return Ok(self.topology.clone());
        }
        let allowed = self.topology.all_cpus().minus(&self.disallowed);
        Ok(self.topology.restrict(&allowed)?)
    }
}

/// Reads the machine with all online CPUs, including CPUs that this process may not use. For
/// planning on this machine, restrict the result with [`Topology::restrict`] to
/// [`usable_cpus`](crate::usable_cpus).
///
/// XML files and copies of `/sys` are parsed in a child process, so that no input can crash this
/// process.
///
/// # Errors
/// Returns one line with the source and the reason.
pub fn load(source: Source) -> Result<Topology, TopologyReadError> {
    Ok(describe(source)?.topology)
}

/// Reads the machine as [`load`] does, and the CPUs that its description excludes from use. For a
/// copy of `/sys` and an XML file, these are the CPUs that are offline, and the CPUs outside of the
/// cgroup in which the description was made.
///
/// # Errors
/// As [`load`].
pub fn describe(source: Source) -> Result<DescribedMachine, TopologyReadError> {
    let mut machine = match &source {
        Source::ThisMachine => this_machine(),
        Source::Xml(path) => xml(path),
        Source::Synthetic(text) => described(text),
        Source::Capture(path) => capture(path),
    }
    .map_err(|reason| source.error(reason))?;
    machine.topology.check()?;
    let name = match &source {
        Source::Synthetic(text) => format!("the description '{}'", excerpt(text)),
        other => escaped(&other.to_string()),
    };
    for note in &mut machine.notes {
        *note = format!("{name}: {note}");
    }
    Ok(machine)
}

/// Assembles the facts.
fn assembled(mut facts: HwlocFacts) -> DescribedMachine {
    DescribedMachine {
        offline: std::mem::take(&mut facts.offline),
        disallowed: std::mem::take(&mut facts.disallowed),
        notes: std::mem::take(&mut facts.notes),
        topology: assemble::topology(facts),
    }
}

fn this_machine() -> Result<DescribedMachine, String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "this machine".to_owned(), |name| name.trim().to_owned());
    let (hwloc, facts) = discover::load(TopologyBuilder::new(), name, Some(Path::new("/")))?;
    if !hwloc.is_this_system() {
        let reason = "an environment variable (HWLOC_XMLFILE, HWLOC_SYNTHETIC, HWLOC_FSROOT or \
                      HWLOC_THISSYSTEM) makes hwloc describe another machine; unset the \
                      variable, or name that machine with --from";
        return Err(reason.to_owned());
    }
    Ok(assembled(facts))
}

fn xml(path: &Path) -> Result<DescribedMachine, String> {
    let not_xml = "the file is not an XML file written by hwloc (to write one: lstopo machine.xml)";
    let text = String::from_utf8(file::read(path, XML_BYTES_MAX)?).map_err(|_| not_xml)?;
    if !text.contains("<topology") || text.contains('\0') {
        return Err(not_xml.to_owned());
    }
    apart(&[], || {
        let survey = xml::survey(&text)?;
        if survey.version >= 2 {
            return xml::facts(&survey, last_name(path));
        }
        let (kinds, notes) = survey.kinds();
        drop(survey);
        let builder = TopologyBuilder::new().from_xml(&text);
        let builder = builder.map_err(|_| not_xml.to_owned())?;
        let (_, mut facts) = discover::load(builder, last_name(path), None)?;
        facts.kinds = kinds;
        facts.notes = notes;
        xml::note_unrated(&mut facts);
        Ok(facts)
    })
}

fn described(text: &str) -> Result<DescribedMachine, String> {
    Ok(assembled(synthetic::facts(text)?))
}

fn capture(path: &Path) -> Result<DescribedMachine, String> {
    let root = fs::canonicalize(path).map_err(|why| why.to_string())?;
    let kind = capture::check(&root)?;
    let root = root
        .to_str()
        .ok_or("the name of the file is not valid UTF-8")?
        .to_owned();
    let is_cpuid = kind == CaptureKind::Cpuid;
    // Restricts hwloc to reading files: otherwise it would add results of this machine's cpuid.
    let (variable, components) = match is_cpuid {
        true => ("HWLOC_CPUID_PATH", "x86,stop"),
        false => ("HWLOC_FSROOT", "linux,stop"),
    };
    let environment = [
        (variable, root.as_str()),
        ("HWLOC_THISSYSTEM", "0"),
        ("HWLOC_COMPONENTS", components),
    ];
    apart(&environment, || {
        let builder = TopologyBuilder::new();
        let files = (!is_cpuid).then(|| Path::new(&root));
        let (_, mut facts) = discover::load(builder, last_name(path), files)?;
        if let Some(root) = files {
            facts.notes = capture::offline_notes(root);
            capacity::damage::remove(&mut facts, root);
        }
        Ok(facts)
    })
}

/// Loads a machine in a child process, which isolates foreign input.
fn apart(
    environment: &[(&str, &str)],
    facts: impl FnOnce() -> Result<HwlocFacts, String>,
) -> Result<DescribedMachine, String> {
    // Uses hwloc's own XML reader without plug-ins: the result does not depend on installed
    // software, and no library is loaded into a forked child.
    let fixed = [
        ("HWLOC_LIBXML", "0"),
        ("HWLOC_PLUGINS_PATH", "/nonexistent"),
    ];
    let environment: Vec<_> = fixed.iter().chain(environment).copied().collect();
    let (topology, offline, disallowed, notes) = sandbox::run(&environment, || {
        let machine = assembled(facts()?);
        let DescribedMachine {
            topology,
            offline,
            disallowed,
            notes,
        } = machine;
        Ok((topology, offline, disallowed, notes))
    })?;
    Ok(DescribedMachine {
        topology,
        offline,
        disallowed,
        notes,
    })
}

fn last_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}
