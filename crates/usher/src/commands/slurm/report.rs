// SPDX-License-Identifier: GPL-2.0-only
//! `usher slurm report`: prints the jobs of a table with their requested, used and useful CPUs, and
//! the CPU hours of each user that no program could use. Both lists begin with the largest loss.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde_derive::Serialize;
use usher_report::text as words;
use usher_store::jobs::{JobSummary, unescape};

use super::merge;
use crate::failure::Outcome;
use crate::output::{self, Output, STRONG};

/// Prints jobs with their requested, used and useful CPUs, and the CPU hours lost per user
#[derive(Debug, clap::Args)]
#[command(after_help = "\
USED is the mean number of busy CPUs. USEFUL is the least number of CPUs with 90 % of the best
speed of the job's programs. LOST is the time of the requested CPUs beyond the useful ones.

Examples:
  usher slurm report /var/lib/usher/jobs.json
  usher slurm report /var/lib/usher/jobs.json --user alice
  usher slurm report /var/lib/usher/jobs.json --json | jq '.users[0]'")]
pub struct Args {
    /// The table that `usher slurm merge` has written
    #[arg(value_name = "TABLE")]
    table: PathBuf,
    /// Print only the jobs of this user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

/// The jobs of a table.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SlurmReport {
    /// The kinds of jobs, the largest loss first.
    jobs: Vec<ReportedJob>,
    /// The users, the largest loss first.
    users: Vec<ReportedUser>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ReportedJob {
    /// Name of the user.
    user: String,
    /// Name of the job.
    name: String,
    /// Hash of the job's script.
    script: Option<String>,
    /// The kind of machine.
    machine: String,
    /// Names of the programs with a profile.
    programs: Vec<String>,
    /// Number of records of these jobs. A job on several nodes has one record for each node.
    runs: u32,
    /// Number of requested CPUs of a node.
    requested_cpus: u32,
    /// Mean number of busy CPUs; null if unknown.
    used_cpus: Option<f64>,
    /// The least number of CPUs with 90 % of the best measured speed; null if unknown.
    useful_cpus: Option<u32>,
    /// The largest number of CPUs with a measured speed; null if unknown.
    measured_to_cpus: Option<u32>,
    /// Requested CPU time in hours.
    requested_cpu_hours: f64,
    /// CPU time of the requested CPUs beyond the useful CPUs, in hours; 0 if the useful CPUs are
    /// unknown.
    lost_cpu_hours: f64,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct ReportedUser {
    /// Name of the user.
    user: String,
    /// Number of records of this user's jobs.
    runs: u32,
    /// Requested CPU time in hours.
    requested_cpu_hours: f64,
    /// CPU time of the requested CPUs beyond the useful CPUs, in hours.
    lost_cpu_hours: f64,
}

/// Runs the command.
pub fn run(args: &Args, out: Output) -> Outcome {
    let table = merge::table(&args.table, false)?;
    let summaries = table.summaries();
    let jobs = summaries.iter().map(ReportedJob::new);
    let is_chosen = |job: &ReportedJob| args.user.as_ref().is_none_or(|user| job.user == *user);
    let report = SlurmReport::new(jobs.filter(is_chosen).collect());
    out.answer(&report, || report.text(out))?;
    Ok(0)
}

/// Returns a name as text; bytes that are no UTF-8 are replaced.
fn name(escaped: &str) -> String {
    let bytes = unescape(escaped).unwrap_or_else(|| escaped.as_bytes().to_vec());
    String::from_utf8_lossy(&bytes).into_owned()
}

impl ReportedJob {
    fn new(job: &JobSummary) -> Self {
        Self {
            user: name(&job.user),
            name: name(&job.name),
            script: job.script.clone(),
            machine: job.machine.clone(),
            programs: job.programs.clone(),
            runs: job.runs,
            requested_cpus: job.requested_cpus,
            used_cpus: job.used_cpus,
            useful_cpus: job.useful.map(|cpus| cpus.useful),
            measured_to_cpus: job.useful.map(|cpus| cpus.measured_to),
            requested_cpu_hours: job.requested_cpu_s() / 3600.0,
            lost_cpu_hours: job.lost_cpu_s() / 3600.0,
        }
    }

    fn row(&self) -> Vec<String> {
        let useful = self
            .useful_cpus
            .map_or(words::NONE.to_owned(), |cpus| cpus.to_string());
        vec![
            output::shown(&self.user),
            output::shown(&self.name),
            self.runs.to_string(),
            self.requested_cpus.to_string(),
            words::number(self.used_cpus, 1),
            useful,
            format!("{:.1}", self.requested_cpu_hours),
            format!("{:.1}", self.lost_cpu_hours),
            output::shown(&self.machine),
        ]
    }
}

impl SlurmReport {
    fn new(mut jobs: Vec<ReportedJob>) -> Self {
        let mut users: BTreeMap<&str, ReportedUser> = BTreeMap::new();
        for job in &jobs {
            let user = users.entry(&job.user).or_default();
            user.user.clone_from(&job.user);
            user.runs = user.runs.saturating_add(job.runs);
            user.requested_cpu_hours += job.requested_cpu_hours;
            user.lost_cpu_hours += job.lost_cpu_hours;
        }
        let mut users: Vec<ReportedUser> = users.into_values().collect();
        users.sort_by(|a, b| b.lost_cpu_hours.total_cmp(&a.lost_cpu_hours));
        jobs.sort_by(|a, b| b.lost_cpu_hours.total_cmp(&a.lost_cpu_hours));
        Self { jobs, users }
    }

    fn text(&self, out: Output) -> String {
        if self.jobs.is_empty() {
            return "the table has no such jobs".to_owned();
        }
        let head = |titles: &[&str]| {
            titles
                .iter()
                .map(|title| out.paint(STRONG, title))
                .collect()
        };
        let titles = [
            "USER",
            "JOB",
            "RUNS",
            "REQUESTED",
            "USED",
            "USEFUL",
            "CPU HOURS",
            "LOST",
            "MACHINE",
        ];
        let rows = self.jobs.iter().map(ReportedJob::row);
        let jobs: Vec<Vec<String>> = std::iter::once(head(&titles)).chain(rows).collect();
        let row = |user: &ReportedUser| {
            vec![
                output::shown(&user.user),
                user.runs.to_string(),
                format!("{:.1}", user.requested_cpu_hours),
                format!("{:.1}", user.lost_cpu_hours),
                words::percent(
                    user.lost_cpu_hours / user.requested_cpu_hours.max(f64::MIN_POSITIVE),
                ),
            ]
        };
        let titles = ["USER", "RUNS", "CPU HOURS", "LOST", "SHARE"];
        let rows = self.users.iter().map(row);
        let users: Vec<Vec<String>> = std::iter::once(head(&titles)).chain(rows).collect();
        format!("{}\n{}", output::columns(&jobs), output::columns(&users))
    }
}
