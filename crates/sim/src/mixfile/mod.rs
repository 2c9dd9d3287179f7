// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads sim files. A sim file is a TOML file that describes a simulated mix: machine, kernel,
//! programs, arrivals and protocol. `docs/sim-mix-file.md` documents the format.
//!
//! 1. The text is parsed to the tables of module `raw`.
//! 2. Module `check` validates the values, and resolves presets and defaults.
//! 3. The result is a [`SimMix`], or a [`SimMixError`] with file, line and reason.
//!
//! A file has at most [`PROGRAMS_MAX`] programs, copies included, and at most as many random
//! arrivals. Text that is nested too deeply is rejected before it is parsed. The first error is
//! returned. Reading takes quadratic time in the number of programs, because their names are
//! compared in pairs.

mod check;
mod raw;

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;

use self::raw::{RawArrivals, RawMix};
use crate::campaign::Scheduler;
use crate::kernel::Kernel;
use crate::machine::Costs;
use crate::parsec::ParsecTraits;
use crate::script::Script;
use crate::slurm_node::SlurmNode;

/// Maximum number of programs of a file, including copies. Also the maximum number of random
/// arrivals, which count separately. It is more than the number of CPUs of the largest machine that
/// can be described.
pub const PROGRAMS_MAX: usize = 10_000;
/// Maximum number of programs and copies per CPU, without random arrivals. Programs that arrive at
/// different times count as simultaneous. With more programs, seats would have no effect.
pub const PROGRAMS_PER_CPU_MAX: usize = 16;

/// Names of the machines with known costs, by processor.
pub const MACHINES: [&str; 3] = ["opteron-6172", "xeon-e5-2695v2", "xeon-phi-7210"];

/// A mix, as its sim file describes it.
#[derive(Debug, Clone)]
pub struct SimMix {
    /// Path of the sim file.
    pub path: PathBuf,
    /// Title of the mix.
    pub title: String,
    /// Description of the mix.
    pub description: String,
    /// The machine: an argument of `usher topo --from`, or "this". A relative path is relative to
    /// the folder of the sim file.
    pub machine: String,
    /// Name of the preset of the costs, with a note if the file overrides some of them.
    pub cost_preset: String,
    /// The costs of the hardware.
    pub costs: Costs,
    /// The kernel.
    pub kernel: Kernel,
    /// How the mix is run.
    pub protocol: SimProtocol,
    /// The programs; their names are unique.
    pub programs: Vec<SimProgram>,
    /// Random arrivals, if the file defines any.
    pub arrivals: Option<PoissonArrivals>,
}

/// How a mix is run. Options of the command line take precedence over these values.
#[derive(Debug, Clone, PartialEq)]
pub struct SimProtocol {
    /// Schedulers, in the order of the output.
    pub policies: Vec<Scheduler>,
    /// Minimum number of completions of every repeating program.
    pub repetitions: u32,
    /// Number of runs of each scheduler, each with its own seed.
    pub rounds: u32,
    /// Seed of the random number generators.
    pub seed: u64,
    /// Maximum virtual length of a run in seconds.
    pub max_seconds: f64,
    /// Number of events after which a run fails.
    pub events_max: u64,
    /// Settings of the schedulers `oversubscribe` and `gang`.
    pub node: SlurmNode,
}

/// A program of a mix.
#[derive(Debug, Clone)]
pub struct SimProgram {
    /// Name of the program in the mix.
    pub name: String,
    /// The steps of the program.
    pub body: ProgramBody,
    /// Weight of the program's NTT in the mean; greater than 0.
    pub weight: f64,
    /// Number of CPUs that the program requests as a job of Slurm; `None`: all CPUs.
    pub cpus: Option<u32>,
    /// Whether the policy `usher` has a profile of the program.
    pub known: bool,
    /// Whether the program restarts each time that it ends.
    pub repeats: bool,
    /// Number of copies.
    pub copies: u32,
    /// Time of arrival in virtual seconds.
    pub at_s: f64,
    /// Whether the program arrives at `at_s`. If not, it is only a program that random arrivals
    /// draw.
    pub resident: bool,
}

/// The steps of a program.
#[derive(Debug, Clone)]
pub enum ProgramBody {
    /// Traits, from which a script is made for a number of threads.
    Traits {
        /// Description of the origin of the traits, for output.
        from: String,
        /// The traits.
        traits: Box<ParsecTraits>,
        /// Whether the traits refer to the reference machine, and must be adapted to this machine
        /// ([`ParsecTraits::adapted_to`]).
        elsewhere: bool,
        /// Number of threads of each parallel stage; `None`: the number of cores of the machine.
        threads: Option<u32>,
        /// Sequential work in seconds on one core.
        seconds: f64,
    },
    /// A script, which lists the steps of each group of threads.
    Script(Box<Script>),
}

/// Random arrivals: a Poisson process.
#[derive(Debug, Clone, PartialEq)]
pub struct PoissonArrivals {
    /// Mean number of arrivals per second.
    pub rate_per_s: f64,
    /// Indices in `programs` of the programs to draw, with equal probability.
    pub programs: Vec<usize>,
    /// Maximum number of arrivals.
    pub count: usize,
    /// Time in virtual seconds after which no program arrives.
    pub seconds: f64,
    /// Mean of the exponentially distributed lifetime, during which the program repeats its work;
    /// `None`: the program runs once.
    pub lifetime_s: Option<f64>,
}

/// Reason why a file was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimMixError {
    /// The file could not be read.
    #[error("reading the mix '{path}': {reason}")]
    Read {
        /// Path of the file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The content is invalid.
    #[error("{path}:{line}: {reason}")]
    Wrong {
        /// Path of the file.
        path: String,
        /// Number of the line, counted from 1.
        line: usize,
        /// The program, the key and the reason.
        reason: String,
    },
}

impl SimMix {
    /// Reads a mix from a file.
    ///
    /// # Errors
    /// The file cannot be read; a key is unknown, missing or invalid.
    pub fn read(path: &Path) -> Result<Self, SimMixError> {
        let text = std::fs::read_to_string(path).map_err(|error| SimMixError::Read {
            path: path.display().to_string(),
            reason: error.to_string(),
        })?;
        Self::parse(path, &text)
    }

    /// Reads a mix from text; `path` is its location.
    ///
    /// # Errors
    /// A key is unknown, missing or invalid.
    pub fn parse(path: &Path, text: &str) -> Result<Self, SimMixError> {
        let source = Source { path, text };
        if let Some(reason) = usher_model::nesting_error(text) {
            return Err(source.parse_error(&serde::de::Error::custom(reason)));
        }
        let raw: RawMix = toml::from_str(text).map_err(|error| source.parse_error(&error))?;
        let (cost_preset, costs) = source.costs(&raw.machine)?;
        let mut programs = raw.program.into_iter();
        let mut programs = programs.try_fold(Vec::new(), |mut all, program| {
            let (span, program) = (program.span(), program.into_inner());
            all.push((span.clone(), source.program(span, program)?));
            Ok(all)
        })?;
        source.check_programs(&programs)?;
        let arrivals = raw.arrivals.map(|raw| source.arrivals(raw, &mut programs));
        Ok(Self {
            path: path.to_owned(),
            title: raw.title.unwrap_or_else(|| file_stem(path)),
            description: raw.description.trim().to_owned(),
            machine: raw.machine.from.into_inner(),
            cost_preset,
            costs,
            kernel: source.kernel(raw.kernel)?,
            protocol: source.protocol(raw.protocol)?,
            arrivals: arrivals.transpose()?,
            programs: programs.into_iter().map(|(_, program)| program).collect(),
        })
    }

    /// Returns the source of the machine: the path of a file or folder, if `machine` names one
    /// relative to the sim file; otherwise `machine` itself.
    pub fn machine_source(&self) -> String {
        let beside = self.path.parent().map(|dir| dir.join(&self.machine));
        let found = beside.filter(|path| !self.machine.is_empty() && path.exists());
        found.map_or_else(
            || self.machine.clone(),
            |path| path.to_string_lossy().into_owned(),
        )
    }
}

fn file_stem(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}

/// The text of a sim file and its path.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn wrong(&self, span: &Range<usize>, reason: impl Into<String>) -> SimMixError {
        let before = self.text.as_bytes().iter().take(span.start);
        SimMixError::Wrong {
            path: self.path.display().to_string(),
            line: 1 + before.filter(|&&byte| byte == b'\n').count(),
            reason: reason.into(),
        }
    }

    /// Converts an error of the TOML parser to an error with a one-line reason.
    fn parse_error(&self, error: &toml::de::Error) -> SimMixError {
        let message = error.message().lines().next().unwrap_or_default();
        self.wrong(
            &error.span().unwrap_or(0..0),
            usher_model::with_suggestion(message),
        )
    }

    /// Returns the position of a key in a table, or that of the table's heading if the key is not
    /// found. The parser reports only the position of the heading; the keys of the table follow
    /// until the next heading.
    fn line_of(&self, table: &Range<usize>, key: &str) -> Range<usize> {
        let lines = self.text.get(table.start..).unwrap_or_default();
        let mut at = table.start;
        for (number, line) in lines.split_inclusive('\n').enumerate() {
            if number > 0 && line.trim_start().starts_with('[') {
                break;
            }
            let rest = line.trim_start().strip_prefix(key);
            if rest.is_some_and(|rest| rest.trim_start().starts_with(['=', '.'])) {
                return at..at;
            }
            at += line.len();
        }
        table.clone()
    }

    fn check_programs(&self, all: &[(Range<usize>, SimProgram)]) -> Result<(), SimMixError> {
        for (at, (span, program)) in all.iter().enumerate() {
            if all[..at]
                .iter()
                .any(|(_, other)| other.name == program.name)
            {
                let reason = format!("two programs have the name '{}'", program.name);
                return Err(self.wrong(
                    span,
                    format!("{reason}; give each program its own `name`, or use `copies`"),
                ));
            }
        }
        let copies: usize = all.iter().map(|(_, p)| p.copies as usize).sum();
        if copies > PROGRAMS_MAX {
            let reason = format!("the file has {copies} programs; the maximum is {PROGRAMS_MAX}");
            return Err(self.wrong(&(0..0), reason));
        }
        match all.is_empty() {
            true => Err(self.wrong(&(0..0), "a mix needs at least one [[program]]")),
            false => Ok(()),
        }
    }

    fn arrivals(
        &self,
        raw: Spanned<RawArrivals>,
        programs: &mut [(Range<usize>, SimProgram)],
    ) -> Result<PoissonArrivals, SimMixError> {
        let (span, raw) = (raw.span(), raw.into_inner());
        let wrong = |key: &str, reason: String| {
            Err(self.wrong(
                &self.line_of(&span, key),
                format!("arrivals.{key}: {reason}"),
            ))
        };
        let amounts = [
            ("rate_per_s", Some(raw.rate_per_s)),
            ("seconds", raw.seconds),
            ("lifetime_s", raw.lifetime_s),
        ];
        for (key, amount) in amounts {
            if let Some(amount) = amount.filter(|&x| !(x.is_finite() && x > 0.0)) {
                return wrong(key, format!("must be a positive number, not {amount}"));
            }
        }
        let expected = match (raw.count, raw.seconds) {
            (None, None) => return wrong("rate_per_s", "needs `count` or `seconds`".into()),
            (Some(0), _) => return wrong("count", "must be 1 or more".into()),
            (Some(count), _) => f64::from(count),
            (None, Some(seconds)) => seconds * raw.rate_per_s,
        };
        if expected > PROGRAMS_MAX as f64 {
            return wrong(
                "rate_per_s",
                format!(
                    "{expected:.0} programs are expected to arrive; the maximum is {PROGRAMS_MAX}"
                ),
            );
        }
        let names = raw
            .programs
            .unwrap_or_else(|| programs.iter().map(|(_, p)| p.name.clone()).collect());
        let mut drawn = Vec::new();
        for name in &names {
            let Some(at) = programs.iter().position(|(_, p)| p.name == *name) else {
                let known: Vec<&str> = programs.iter().map(|(_, p)| p.name.as_str()).collect();
                let known = known.join(", ");
                return wrong(
                    "programs",
                    format!("the file has no program '{name}'; its programs are {known}"),
                );
            };
            programs[at].1.resident = false;
            drawn.push(at);
        }
        if drawn.is_empty() {
            return wrong("programs", "the list of programs is empty".into());
        }
        Ok(PoissonArrivals {
            rate_per_s: raw.rate_per_s,
            programs: drawn,
            count: raw.count.map_or(PROGRAMS_MAX, |count| count as usize),
            seconds: raw.seconds.unwrap_or(f64::INFINITY),
            lifetime_s: raw.lifetime_s,
        })
    }
}
