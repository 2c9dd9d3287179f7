// SPDX-License-Identifier: GPL-2.0-only
//! `usher slurm export`: writes the record of a job that has ended on this node. The epilog of the
//! node calls it (`integrations/slurm/epilog`).
//!
//! The profiles come from the profile store of the node. Names of users and jobs may be any bytes.
//! With `--dir`, the record is written under a name that contains only the node, the job and the
//! time, and replaces no other file.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context, bail};
use usher_store::jobs::{JobProgram, JobRecord, SCRIPT_BYTES_MAX, escape, script_hash};
use usher_store::{MachineKey, ProfileEntry, Store};

use super::files::{self, Trust};
use crate::cli::numbers::{number, whole};
use crate::cli::options::StoreArg;
use crate::failure::{self, Outcome};
use crate::output::{self, Output};
use crate::{machine, runtime};

/// Maximum length of a script file in bytes: the default limit of Slurm.
const SCRIPT_FILE_BYTES_MAX: u64 = 4 << 20;

/// Writes the record of a job that has ended on this node
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The record contains the profiles of the job's programs on this kind of machine. A program
without a profile counts as unmeasured; such a job gets no advice.

Examples:
  usher slurm export --job 1234 --user alice --name md --requested 48 --elapsed 600 md
  usher slurm export --job 1234 --user alice --name md --requested 48 --elapsed 600 \\
      --script job.sh --since 1764000000 --dir /srv/usher/records")]
pub struct Args {
    /// Number of the job
    #[arg(long, value_name = "ID", value_parser = whole::<u64>(1..=u64::MAX))]
    job: u64,
    /// Name of the user
    #[arg(long, value_name = "NAME")]
    user: OsString,
    /// Name of the job
    #[arg(long, value_name = "NAME")]
    name: OsString,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", default_value = "")]
    cluster: OsString,
    /// Name of this node; by default, the host name
    #[arg(long, value_name = "NAME")]
    node: Option<OsString>,
    /// The job's script, for its hash
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Number of CPUs that the job requested on this node
    #[arg(long, value_name = "CPUS", value_parser = whole::<u32>(1..=65_536))]
    requested: u32,
    /// CPU time that the job used on this node, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = number)]
    used: Option<f64>,
    /// Duration of the job in seconds
    #[arg(long, value_name = "SECONDS", value_parser = number)]
    elapsed: f64,
    /// End of the job in seconds since 1970; by default, now
    #[arg(long, value_name = "TIME", value_parser = whole::<i64>(0..=i64::MAX))]
    ended_at: Option<i64>,
    /// Also export all profiles that were measured at or after this time, in seconds since 1970
    #[arg(long, value_name = "TIME", value_parser = whole::<i64>(0..=i64::MAX))]
    since: Option<i64>,
    /// Write the record into this directory; by default, to the standard output
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArg,
    /// Programs of the job, by name or identifier of the profile
    #[arg(value_name = "NAME|ID")]
    programs: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Args, out: Output) -> Outcome {
    let now_s = files::now_s();
    let record = args.record(now_s)?;
    let text = record.write(now_s).context("writing the record")?;
    match &args.dir {
        None => out.text(&text)?,
        Some(dir) => {
            let time = record.ended_at_s;
            let node = record.node.replace('/', "%2F");
            let path = dir.join(format!("{node}-{}-{time}.json", record.job));
            if std::fs::symlink_metadata(&path).is_ok() {
                bail!("writing '{}': the file exists", path.display());
            }
            files::replace(&path, &text)?;
            let written = path.display().to_string();
            out.answer(&record, || format!("wrote {}", output::shown(&written)))?;
        }
    }
    Ok(0)
}

impl Args {
    fn record(&self, now_s: i64) -> anyhow::Result<JobRecord> {
        let topology = machine::usable_machine()?;
        let here = MachineKey::of(&topology);
        let cpus_per_core = topology.cpus.len().div_ceil(topology.cores.len().max(1));
        let cpus_per_core = u32::try_from(cpus_per_core).unwrap_or(1);
        let (entries, missing) = self.entries(&here)?;
        let (measured, bare): (Vec<_>, Vec<_>) = entries
            .into_iter()
            .partition(|entry| !entry.profile.points.is_empty());
        let (format, version) = JobRecord::format();
        let host = || rustix::system::uname().nodename().to_bytes().to_vec();
        let node = self.node.as_ref().map(|node| node.as_bytes().to_vec());
        Ok(JobRecord {
            format,
            version,
            cluster: escape(self.cluster.as_bytes()),
            node: escape(&node.unwrap_or_else(host)),
            job: self.job,
            user: escape(self.user.as_bytes()),
            name: escape(self.name.as_bytes()),
            script: self.script_hash()?,
            machine: here.as_str().to_owned(),
            cpus_per_core,
            requested_cpus: self.requested,
            used_cpu_s: self.used,
            elapsed_s: self.elapsed,
            ended_at_s: self.ended_at.unwrap_or(now_s),
            unmeasured: u32::try_from(missing + bare.len()).unwrap_or(u32::MAX),
            programs: (measured.iter())
                .map(|entry| JobProgram::new(entry, cpus_per_core))
                .collect(),
        })
    }

    /// Returns the profiles of the job on this kind of machine, and the number of named programs
    /// without a profile.
    fn entries(&self, here: &MachineKey) -> anyhow::Result<(Vec<ProfileEntry>, usize)> {
        let path = runtime::store_path(self.store.path.as_deref());
        let all = match Store::open_if_present(&path)? {
            Some(readable) => readable.store.list()?,
            None => Vec::new(),
        };
        let all = all.into_iter().filter(|entry| entry.machine == *here);
        let all: Vec<ProfileEntry> = all.collect();
        let named = |entry: &ProfileEntry, word: &String| {
            entry.id() == *word || entry.profile.name == *word
        };
        let is_missing = |word: &&String| !all.iter().any(|entry| named(entry, word));
        let missing = self.programs.iter().filter(is_missing).count();
        let chosen = |entry: &ProfileEntry| {
            self.since
                .is_some_and(|since_s| entry.profile.at_s >= since_s)
                || self.programs.iter().any(|word| named(entry, word))
        };
        Ok((all.into_iter().filter(chosen).collect(), missing))
    }

    fn script_hash(&self) -> anyhow::Result<Option<String>> {
        let Some(path) = &self.script else {
            return Ok(None);
        };
        let doing = || format!("reading the script '{}'", path.display());
        let script = files::read(path, SCRIPT_FILE_BYTES_MAX, Trust::Anyone).with_context(doing)?;
        if script.len() > SCRIPT_BYTES_MAX {
            failure::print_error(&format!(
                "the script has no hash, because it has more than {SCRIPT_BYTES_MAX} bytes"
            ));
        }
        Ok(script_hash(&script))
    }
}
