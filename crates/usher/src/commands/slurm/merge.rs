// SPDX-License-Identifier: GPL-2.0-only
//! `usher slurm merge`: merges the records of jobs into the table of the controller.
//!
//! 1. Lock and read the table; a table that cannot be read is an error, and is not replaced.
//! 2. Read each record, in the order of the paths. A record that violates a rule is skipped, and
//!    reported in one line.
//! 3. Replace the table, and the file of advice beside it, atomically.
//! 4. With `--remove`, remove the files of the merged records.
//!
//! A record that was merged before counts once. The exit status is 0 if records were skipped.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use schemars::JsonSchema;
use serde_derive::Serialize;
use usher_report::text as words;
use usher_store::jobs::{
    Added, JobMerge, JobRecord, JobTable, RECORD_BYTES_MAX, TABLE_BYTES_MAX, advice,
};

use super::files::{self, Trust};
use crate::failure::{self, Outcome};
use crate::output::Output;

/// Maximum number of records of one call.
const RECORDS_MAX: usize = 100_000;

/// Merges the records of jobs into a table
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A record that was merged before counts once. A malformed record is skipped, and reported on
the standard error. Records must belong to root or to you, and be writable by their owner
alone. The advice for job_submit.lua is written beside the table, with the suffix .advice.

Examples:
  usher slurm merge /srv/usher/records --into /var/lib/usher/jobs.json
  usher slurm merge --remove /srv/usher/records --into /var/lib/usher/jobs.json")]
pub struct Args {
    /// Records, and directories whose files *.json are records
    #[arg(required = true, value_name = "DIR|FILE")]
    records: Vec<PathBuf>,
    /// The table, which is created if it is missing
    #[arg(long, value_name = "TABLE")]
    into: PathBuf,
    /// Remove the files of merged records
    #[arg(long)]
    remove: bool,
}

/// The effect of a merge.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct MergeAnswer {
    /// Number of records that were merged.
    merged: usize,
    /// Number of records that had been merged before.
    known: usize,
    /// Number of records that are older than the oldest record that the table still knows.
    too_old: usize,
    /// Number of files that were skipped, because they violate a rule.
    skipped: usize,
    /// Number of the oldest kinds of jobs and profiles that were dropped, because the table was
    /// full.
    dropped: usize,
    /// Number of kinds of jobs in the table.
    jobs: usize,
}

/// Runs the command.
pub fn run(args: &Args, out: Output) -> Outcome {
    let _lock = files::lock(&args.into)?;
    let mut table = table(&args.into, true)?;
    let mut merge = JobMerge::new(&mut table);
    let mut answer = MergeAnswer::default();
    let mut merged = Vec::new();
    let now_s = files::now_s();
    for path in paths(&args.records, &mut answer) {
        let read = files::read(&path, RECORD_BYTES_MAX, Trust::RootOrSelf);
        match read.and_then(|text| Ok(JobRecord::read(&text, now_s)?)) {
            Ok(record) => {
                match merge.add(&record) {
                    Added::New => answer.merged += 1,
                    Added::Known => answer.known += 1,
                    Added::TooOld => answer.too_old += 1,
                }
                merged.push(path);
            }
            Err(error) => skip(&path, &error, &mut answer),
        }
    }
    answer.dropped = merge.finish();
    answer.jobs = table.summaries().len();
    let text = table.write()?;
    if text.len() as u64 > TABLE_BYTES_MAX {
        bail!(
            "writing '{}': the table would have more than {TABLE_BYTES_MAX} bytes; begin a new table",
            args.into.display()
        );
    }
    files::replace(&args.into, &text)?;
    files::replace(&advice_path(&args.into), &advice(&table))?;
    if args.remove {
        for path in &merged {
            remove(path)?;
        }
    }
    out.answer(&answer, || answer.text())?;
    Ok(0)
}

impl MergeAnswer {
    fn text(&self) -> String {
        let mut text = format!(
            "merged {}, {} known, {} skipped",
            words::count(self.merged, "record"),
            self.known,
            self.skipped
        );
        if self.too_old > 0 {
            text.push_str(&format!(", {} too old", self.too_old));
        }
        if self.dropped > 0 {
            text.push_str(&format!("; the table is full: {} dropped", self.dropped));
        }
        let jobs = match self.jobs {
            1 => "1 kind of job".to_owned(),
            jobs => format!("{jobs} kinds of jobs"),
        };
        format!("{text}; the table has {jobs}")
    }
}

/// Returns the file of advice of a table.
fn advice_path(table: &Path) -> PathBuf {
    let mut name = table.as_os_str().to_owned();
    name.push(".advice");
    PathBuf::from(name)
}

/// Reads a table; an empty table if the file is missing and `may_be_missing`.
///
/// # Errors
/// The file cannot be read, or is no table.
pub(super) fn table(path: &Path, may_be_missing: bool) -> anyhow::Result<JobTable> {
    let doing = || format!("reading the table '{}'", path.display());
    if may_be_missing
        && fs::symlink_metadata(path).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    {
        return Ok(JobTable::new());
    }
    let text = files::read(path, TABLE_BYTES_MAX, Trust::Anyone).with_context(doing)?;
    JobTable::read(&text).with_context(doing)
}

fn skip(path: &Path, error: &anyhow::Error, answer: &mut MergeAnswer) {
    answer.skipped += 1;
    let why = failure::line(error);
    failure::print_error(&format!("skipped the record '{}': {why}", path.display()));
}

/// Removes a file. A file that is already gone is no error.
fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing '{}'", path.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the paths of all records, sorted. A path that cannot be read is skipped.
fn paths(given: &[PathBuf], answer: &mut MergeAnswer) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for path in given {
        if !path.is_dir() {
            all.push(path.clone());
            continue;
        }
        let listed = fs::read_dir(path).and_then(|dir| {
            dir.map(|entry| Ok(entry?.path()))
                .collect::<std::io::Result<Vec<PathBuf>>>()
        });
        match listed {
            Ok(files) => {
                let is_record = |file: &PathBuf| {
                    let name = file.file_name().unwrap_or_default().as_encoded_bytes();
                    name.ends_with(b".json") && !name.starts_with(b".")
                };
                all.extend(files.into_iter().filter(is_record));
            }
            Err(error) => skip(path, &error.into(), answer),
        }
    }
    all.sort();
    all.dedup();
    if all.len() > RECORDS_MAX {
        let later = all.len() - RECORDS_MAX;
        failure::print_error(&format!(
            "{later} records were not read, because one call reads at most {RECORDS_MAX}; repeat \
             the command with --remove"
        ));
        all.truncate(RECORDS_MAX);
    }
    all
}
