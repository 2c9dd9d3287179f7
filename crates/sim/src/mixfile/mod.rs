// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading a file that describes a mix to simulate: machine, kernel, programs,
//! arrivals, protocol. What may stand in it is in `docs/sim-mix-file.md`.

mod check;
mod raw;

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;

use self::raw::{RawArrivals, RawMix};
use crate::campaign::Scheduler;
use crate::kernel::Kernel;
use crate::machine::Costs;
use crate::parsec::Traits;
use crate::script::Script;

/// Programs that a file may ask for in all, copies and arrivals included: more
/// than the largest machine that can be described has CPUs.
pub const PROGRAMS_MAX: usize = 10_000;
/// Programs that may be there at once for every CPU of the machine: beyond that
/// nobody could be given a seat in any sense.
pub const PROGRAMS_A_CPU_MAX: usize = 16;

/// The machines whose costs are known, by the name of their processor.
pub const MACHINES: [&str; 3] = ["opteron-6172", "xeon-e5-2695v2", "xeon-phi-7210"];

/// A mix as its file says.
#[derive(Debug, Clone)]
pub struct SimMix {
    /// The file.
    pub path: PathBuf,
    /// The mix's name.
    pub title: String,
    /// What it is for.
    pub description: String,
    /// The machine: what `usher topo --from` takes, or "this". A relative path
    /// starts from the file's folder.
    pub machine: String,
    /// The machine whose costs these are, and whether some were changed.
    pub like: String,
    /// What its hardware costs.
    pub costs: Costs,
    /// Its kernel.
    pub kernel: Kernel,
    /// How it is run.
    pub protocol: SimProtocol,
    /// The programs; their names are unique.
    pub programs: Vec<SimProgram>,
    /// Programs that come by chance.
    pub arrivals: Option<Arrivals>,
}

/// How a mix is run, unless the command line says otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct SimProtocol {
    /// Schedulers, in the order in which they are shown.
    pub against: Vec<Scheduler>,
    /// Every program that repeats completes at least so many.
    pub repetitions: u32,
    /// Runs of each scheduler, each with a seed of its own.
    pub rounds: u32,
    /// Everything random comes from it.
    pub seed: u64,
    /// A run ends after so many virtual seconds.
    pub max_seconds: f64,
    /// A run fails after so many events.
    pub events_max: u64,
}

/// A program of a mix.
#[derive(Debug, Clone)]
pub struct SimProgram {
    /// Its name in the mix.
    pub name: String,
    /// What it does.
    pub body: Body,
    /// Weight of its NTT in the mean, > 0.
    pub weight: f64,
    /// Whether `usher` has a profile of it.
    pub known: bool,
    /// Whether it starts again whenever it ends.
    pub repeats: bool,
    /// How many of it there are.
    pub copies: u32,
    /// When it comes, in virtual seconds.
    pub at_s: f64,
    /// Whether it is there without arrivals, or only drawn by those.
    pub resident: bool,
}

/// What a program does.
#[derive(Debug, Clone)]
pub enum Body {
    /// Traits, whose script depends on the number of threads.
    Traits {
        /// For people: where the traits are from.
        from: String,
        /// The traits.
        traits: Box<Traits>,
        /// Whether they are given for another machine ([`Traits::on`]).
        elsewhere: bool,
        /// Threads of each parallel stage; `None`: the machine's cores.
        threads: Option<u32>,
        /// Sequential work in seconds on one core.
        seconds: f64,
    },
    /// Threads, step by step.
    Script(Box<Script>),
}

/// Programs that come by chance: a Poisson process.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrivals {
    /// How many come in a second, on average.
    pub rate_per_s: f64,
    /// Places in `programs` of those that are drawn, evenly.
    pub programs: Vec<usize>,
    /// No more come after so many.
    pub count: usize,
    /// No more come after so many virtual seconds.
    pub seconds: f64,
    /// Mean of the exponentially distributed time that each stays, repeating
    /// its work; `None`: until it has done its work once.
    pub stay_s: Option<f64>,
}

/// Why a file was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimMixError {
    /// It could not be read.
    #[error("reading the mix '{path}': {reason}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// Something in it is not as it should be.
    #[error("{path}:{line}: {reason}")]
    Wrong {
        /// The file.
        path: String,
        /// Which line, from 1.
        line: usize,
        /// The program and the key, and what is wrong with it.
        reason: String,
    },
}

impl SimMix {
    /// Reads a mix.
    ///
    /// # Errors
    /// The file cannot be read; a key is unknown, missing or makes no sense.
    pub fn read(path: &Path) -> Result<Self, SimMixError> {
        let text = std::fs::read_to_string(path).map_err(|error| SimMixError::Read {
            path: path.display().to_string(),
            reason: error.to_string(),
        })?;
        Self::parse(path, &text)
    }

    /// Reads a mix from text; `path` says where it stands.
    ///
    /// # Errors
    /// A key is unknown, missing or makes no sense.
    pub fn parse(path: &Path, text: &str) -> Result<Self, SimMixError> {
        let source = Source { path, text };
        if let Some(reason) = usher_model::nesting_error(text) {
            return Err(source.refused(&serde::de::Error::custom(reason)));
        }
        let raw: RawMix = toml::from_str(text).map_err(|error| source.refused(&error))?;
        let (like, costs) = source.costs(&raw.machine)?;
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
            like,
            costs,
            kernel: source.kernel(raw.kernel)?,
            protocol: source.protocol(raw.protocol)?,
            arrivals: arrivals.transpose()?,
            programs: programs.into_iter().map(|(_, program)| program).collect(),
        })
    }

    /// The machine's description: a file or folder beside the mix, or what it
    /// says itself.
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

/// A file being read.
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

    /// What the parser says, in one line.
    fn refused(&self, error: &toml::de::Error) -> SimMixError {
        let said = error.message().lines().next().unwrap_or_default();
        self.wrong(&error.span().unwrap_or(0..0), said)
    }

    /// The line of a table on which a key stands, or its first. The parser says
    /// where a table's heading is; its keys follow until the next heading.
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
                let reason = format!("two programs are called '{}'", program.name);
                return Err(self.wrong(span, format!("{reason}; use `name`, or `copies`")));
            }
        }
        let copies: usize = all.iter().map(|(_, p)| p.copies as usize).sum();
        if copies > PROGRAMS_MAX {
            let reason = format!("{copies} programs, the most is {PROGRAMS_MAX}");
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
    ) -> Result<Arrivals, SimMixError> {
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
            ("stay_s", raw.stay_s),
        ];
        for (key, amount) in amounts {
            if let Some(amount) = amount.filter(|&x| !(x.is_finite() && x > 0.0)) {
                return wrong(key, format!("must be a positive number, not {amount}"));
            }
        }
        let expected = match (raw.count, raw.seconds) {
            (None, None) => return wrong("rate_per_s", "say `count` or `seconds`, too".into()),
            (Some(0), _) => return wrong("count", "must be 1 or more".into()),
            (Some(count), _) => f64::from(count),
            (None, Some(seconds)) => seconds * raw.rate_per_s,
        };
        if expected > PROGRAMS_MAX as f64 {
            return wrong(
                "rate_per_s",
                format!("{expected:.0} programs, the most is {PROGRAMS_MAX}"),
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
                    format!("no program '{name}'; there are {known}"),
                );
            };
            programs[at].1.resident = false;
            drawn.push(at);
        }
        if drawn.is_empty() {
            return wrong("programs", "names no program".into());
        }
        Ok(Arrivals {
            rate_per_s: raw.rate_per_s,
            programs: drawn,
            count: raw.count.map_or(PROGRAMS_MAX, |count| count as usize),
            seconds: raw.seconds.unwrap_or(f64::INFINITY),
            stay_s: raw.stay_s,
        })
    }
}
