// SPDX-License-Identifier: GPL-2.0-only
//! `usher status`: requests the state of each daemon that listens (the system's, the user's own),
//! and prints the seat, the progress and the loans of each program. Also holds formats of numbers
//! and durations that other commands use.
//!
//! Requires a daemon. The command makes one call to each daemon, and one more for each pid that
//! selects a program (`crate::cli::target`). The time limit is that of `client`, 10 s for each read
//! and write. If one of several daemons does not answer, the command prints the states of the
//! others, and the exit status is 125.

mod headline;

use std::path::Path;

pub use headline::headline;
use usher_model::ProgressSource;

use crate::answers::{DaemonState, StatusAnswer};
use crate::api::{self, Program_mode};
use crate::cli::options::Global;
use crate::cli::target::{self, Target};
use crate::client::{Daemons, QueriedDaemon};
use crate::failure::{self, Outcome};
use crate::output::{self, FAINT, LACKING, Output, STRONG, shown};
use crate::peer::users::UserNames;

/// Shows the CPUs (the seat) and the progress of each managed program
#[derive(Debug, clap::Args)]
#[command(after_help = "\
SEATS     the CPUs that the program may use. +N are borrowed CPUs, which other programs lend or
          which no seat contains; -N are CPUs lent to other programs. 'in turn': programs take
          turns on all CPUs; only one of them runs at a time, and the others are stopped.
          'quota': the CPU time that the program's cgroups allow. 'pinned threads': the program
          set the affinity of its threads and gets no seat. Background work: the resource for
          which it is stopped, or the share of the last ten seconds in which it could run.
NTT       predicted turnaround time relative to running alone on the best number of CPUs; 1.0
          is undisturbed; the last line shows the mean over all programs (ANTT)
BUSY      number of CPUs that the program keeps busy
TIME      CPU time of the program, in minutes and seconds
PROGRESS  work per second over the last 10 s, with its source and confidence. The sources
          are, best first: heartbeat, repetitions, ompt, instructions, bytes, cpu-time (which
          shows only demand).
JOB       the job and the step of a batch system such as Slurm, if a program belongs to one
COMMAND   the command line; only the program's user and root can see it

If your daemon and the system's run, the command shows both, one after the other. --runtime-dir
selects one of them.

On a terminal, COMMAND is shortened, and columns are left out, so that no line is too long.

Examples:
  usher status
  usher status x264 4711         only these programs
  usher status --json | jq '.programs[] | {name, cpus}'
  watch -n1 usher status")]
pub struct Args {
    /// Show only the programs with these names, numbers or pids; by default, all programs
    #[arg(value_name = "PROGRAM", value_parser = Target::parser(), allow_negative_numbers = true)]
    programs: Vec<Target>,
}

/// Requests the states from the daemons and prints them.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let mut daemons = Daemons::query(global.runtime_dir.as_deref())?;
    let found = target::filter_programs(&args.programs, &mut daemons.answered);
    if let Err(error) = found {
        // A daemon that did not answer may manage the program.
        return failure::combine(daemons.errors.into_iter().chain([error]).map(Err));
    }
    let answer = answer(&daemons.answered);
    let is_filtered = !args.programs.is_empty();
    let printed = out.answer(&answer, || texts(&answer, is_filtered, out));
    failure::combine(daemons.errors.into_iter().map(Err).chain([printed]))
}

/// Returns the answer with the states of all daemons, at least one.
pub fn answer(daemons: &[QueriedDaemon]) -> StatusAnswer {
    let state = |one: &QueriedDaemon| DaemonState {
        state: one.state.clone(),
        runtime_dir: one.daemon.dir().to_owned(),
    };
    StatusAnswer {
        first: state(&daemons[0]),
        other_daemons: daemons[1..].iter().map(state).collect(),
    }
}

/// Formats the states of all daemons as text. With `is_filtered`, daemons without a selected program
/// are left out.
pub fn texts(answer: &StatusAnswer, is_filtered: bool, out: Output) -> String {
    if answer.other_daemons.is_empty() {
        return text(&answer.first.state, out);
    }
    let all = std::iter::once(&answer.first).chain(&answer.other_daemons);
    let shown = all.filter(|one| !is_filtered || !one.state.programs.is_empty());
    let texts = shown.map(|one| {
        let title = out.paint(STRONG, &daemon_title(&one.runtime_dir));
        format!("{title}\n{}", text(&one.state, out))
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// Returns the line above the output of a daemon, if several daemons listen.
pub fn daemon_title(runtime_dir: &Path) -> String {
    format!("daemon in {}:", shown(&runtime_dir.to_string_lossy()))
}

/// Formats the state as text.
pub fn text(state: &api::State, out: Output) -> String {
    let mut text = head(state, out);
    if state.programs.is_empty() {
        let line = match state.seating_forbidden {
            Some(_) => "the daemon manages no program",
            None => "'usher run -- CMD' or 'usher attach PID' adds a program",
        };
        text.push_str(&format!("{}\n", output::wrapped(line, out.text_width())));
        text.push_str(&warnings(state, out));
        return text;
    }
    text.push('\n');
    text.push_str(&table(state, out, out.text_width()));
    text.push_str(&copies(state, out));
    text.push_str(&warnings(state, out));
    // Without seats, the reason precedes the table.
    let seats = state.abstention.is_none();
    for note in state
        .notes
        .iter()
        .filter(|note| note.program.is_none() && seats)
    {
        let note = output::wrapped(&shown(&note.text), out.text_width());
        text.push_str(&format!("\n{note}\n"));
    }
    text
}

const HEAD: [&str; 11] = [
    "ID", "PROGRAM", "PID", "USER", "SEATS", "NTT", "BUSY", "TIME", "PROGRESS", "JOB", "COMMAND",
];
/// The column that is left out if no program belongs to a job of a batch system.
const JOB: usize = 9;
/// Columns that narrow terminals lack, the first to be left out first: USER, TIME, PID, NTT, BUSY,
/// PROGRESS.
const OPTIONAL: [usize; 6] = [3, 7, 2, 5, 6, 8];

/// Formats the table of programs in lines of at most `width` columns.
fn table(state: &api::State, out: Output, width: usize) -> String {
    let head = HEAD.map(|title| out.paint(STRONG, title));
    let mut users = UserNames::default();
    let rows = state
        .programs
        .iter()
        .map(|program| row(program, &mut users, width, out));
    let mut rows: Vec<Vec<String>> = std::iter::once(head.to_vec()).chain(rows).collect();
    if state.programs.iter().all(|program| program.job.is_none()) {
        rows.iter_mut().for_each(|row| drop(row.remove(JOB)));
    }
    output::columns_within(&rows, width, &OPTIONAL)
}

/// Formats the copies that launchers inside the programs started, on a line for each group.
fn copies(state: &api::State, out: Output) -> String {
    let of = |program: &api::Program| {
        let name = shown(&program.name);
        let sentences = crate::copies::sentences(program).into_iter();
        sentences.map(move |text| format!("{name}: {}", shown(&text)))
    };
    let lines = state.programs.iter().flat_map(of);
    let lines = lines.map(|line| format!("\n{}\n", output::wrapped(&line, out.text_width())));
    lines.collect()
}

fn warnings(state: &api::State, out: Output) -> String {
    let mark = out.paint(LACKING, "!");
    let warnings = state.warnings.iter();
    let width = out.text_width();
    let lines = warnings.map(|warning| {
        let warning = output::wrapped(&format!("{mark} {}", shown(warning)), width);
        format!("\n{warning}\n")
    });
    lines.collect()
}

fn head(state: &api::State, out: Output) -> String {
    let keeper = match state.keeper_pid {
        Some(pid) => format!("keeper {pid}"),
        None => "no keeper".to_owned(),
    };
    let headline = headline(state);
    let cpus = match state.seating_forbidden {
        Some(_) => String::new(),
        None => format!("CPUs {} assigned by {}, ", state.usable, state.acting),
    };
    let about = format!(
        "policy {}, {cpus}running for {}, daemon {}, {keeper}",
        state.policy,
        duration(state.uptime_seconds),
        state.pid
    );
    let scheduler = match &state.scheduler {
        Some(does) => {
            let line = output::wrapped(&format!("scheduler: {}", shown(does)), out.text_width());
            out.paint(FAINT, &line) + "\n"
        }
        None => String::new(),
    };
    let reason = state.abstention.as_ref().map(|why| reason(why, out));
    format!(
        "{}\n{}{}\n{scheduler}",
        out.paint(STRONG, &output::wrapped(&headline, out.text_width())),
        reason.unwrap_or_default(),
        out.paint(FAINT, &output::wrapped(&about, out.text_width()))
    )
}

/// Formats why programs have no seat, and the remedy, on a line each.
pub fn reason(why: &api::Abstention, out: Output) -> String {
    let lines = [
        ("reason", Some(&why.reason)),
        ("remedy", why.remedy.as_ref()),
    ];
    let lines = lines
        .iter()
        .filter_map(|(name, text)| Some((name, (*text)?)));
    let lines = lines.map(|(name, text)| {
        let text = shown(text);
        let name = format!("{name}:");
        output::entry(" ", name.len(), &name, &text, out.text_width())
    });
    lines.collect()
}

/// Width to which names are shortened on terminals with less than 100 columns, so that the seats are
/// visible.
const NARROW_NAME_WIDTH: usize = 20;

fn row(program: &api::Program, users: &mut UserNames, width: usize, out: Output) -> Vec<String> {
    let name = shown(&program.name);
    let name = match width < 100 {
        true => output::cut(&name, NARROW_NAME_WIDTH),
        false => name,
    };
    let ntt = program.ntt.map(|ntt| format!("{ntt:.2}"));
    vec![
        program.id.to_string(),
        name,
        program.pid.to_string(),
        shown(&users.name(program.uid)),
        seats(program),
        ntt.unwrap_or_else(|| "–".to_owned()),
        format!("{:.1}", program.busy_cpus),
        cpu_time(program.cpu_seconds),
        progress(program, out),
        shown(program.job.as_deref().unwrap_or("–")),
        shown(&program.command),
    ]
}

/// Formats how much progress the program makes, with its source.
fn progress(program: &api::Program, out: Output) -> String {
    match &program.progress {
        Some(p) => {
            let sure = format!("({}, {:.0} %)", p.source, p.confidence * 100.0);
            format!("{} {}", rate(p), out.paint(FAINT, &sure))
        }
        None => "–".to_owned(),
    }
}

/// Formats the CPUs that the program may use, and why it is stopped or restricted.
pub fn seats(program: &api::Program) -> String {
    let seats = match program.mode {
        Program_mode::arriving => "arriving".to_owned(),
        Program_mode::shared => format!("shared {}", program.cpus).trim_end().to_owned(),
        Program_mode::seated => program.cpus.clone(),
        Program_mode::turns => "in turn".to_owned(),
        Program_mode::background => "background".to_owned(),
    };
    let seats = match (program.stopped, &program.background) {
        (true, Some(background)) => format!("{seats} (stopped: {})", given_way(background)),
        (true, None) => format!("{seats} (stopped)"),
        (false, Some(background)) => format!("{seats} (may run {:.0} %)", background.share * 100.0),
        (false, None) => seats,
    };
    let seats = match program.cpu_quota {
        Some(quota) => format!("{seats} (quota {} CPUs)", significant(quota)),
        None => seats,
    };
    let seats = match &program.pinned_to {
        Some(cpus) => format!("{seats} (pinned threads to {cpus})"),
        None => seats,
    };
    let seats = match program.stopped_by_user {
        true => format!("{seats} (stopped by its user)"),
        false => seats,
    };
    let loans = [("+", &program.borrowed), ("-", &program.lent)];
    let loans = loans.iter().filter(|(_, cpus)| !cpus.is_empty());
    loans.fold(seats, |text, (sign, cpus)| format!("{text} {sign}{cpus}"))
}

/// Formats CPU time as `ps` does: 0:07, 12:34, 1:02:03.
pub fn cpu_time(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (hours, minutes, rest) = (whole / 3600, whole / 60 % 60, whole % 60);
    match hours {
        0 => format!("{minutes}:{rest:02}"),
        _ => format!("{hours}:{minutes:02}:{rest:02}"),
    }
}

/// Formats the resource because of which a background program is stopped.
fn given_way(background: &api::Background) -> String {
    shown(background.resource.as_deref().unwrap_or("others"))
}

/// Formats progress per second. Progress in CPU time, in nanoseconds per second, is formatted as a
/// number of CPUs.
pub fn rate(progress: &api::Progress) -> String {
    match progress.source == ProgressSource::CpuTime.to_string() {
        true => format!("{:.2} CPUs", progress.per_second * 1e-9),
        false => format!("{}/s", compact(progress.per_second)),
    }
}

/// Formats a number in about five characters: 0.012, 12.3, 4.56G.
pub fn compact(number: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(size, _)| number.abs() >= *size) {
        Some((size, unit)) => format!("{}{unit}", significant(number / size)),
        None => significant(number),
    }
}

fn significant(number: f64) -> String {
    match number.abs() {
        x if x >= 100.0 => format!("{number:.0}"),
        x if x >= 10.0 => format!("{number:.1}"),
        x if x >= 1.0 || x == 0.0 => format!("{number:.2}"),
        x if x >= 0.01 => format!("{number:.3}"),
        _ => format!("{number:.2e}"),
    }
}

/// Formats seconds: 12 s, 3 min 20 s, 4 h 05 min.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (hours, minutes, rest) = (whole / 3600, whole / 60 % 60, whole % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest} s"),
        (0, _) => format!("{minutes} min {rest:02} s"),
        _ => format!("{hours} h {minutes:02} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::view::tests::{program, state};

    #[test]
    fn long_names_do_not_hide_the_seats_on_narrow_terminals() {
        let name = "a-program-with-a-very-long-name-that-fills-the-whole-line-of-a-terminal";
        let state = state(vec![program(1, name, "0-3", 1.0)]);
        let out = Output {
            json: false,
            color: false,
        };
        let text = table(&state, out, 60);
        assert!(text.contains("SEATS") && text.contains("0-3"), "{text}");
        assert!(
            text.lines().all(|line| output::cut(line, 60) == line),
            "{text}"
        );
        assert!(table(&state, out, 200).contains(name));
    }

    #[test]
    fn jobs_have_a_column_only_if_a_program_belongs_to_one() {
        let out = Output {
            json: false,
            color: false,
        };
        let mut state = state(vec![program(1, "a", "0", 1.0), program(2, "b", "1", 1.0)]);
        assert!(!table(&state, out, usize::MAX).contains("JOB"));
        state.programs[1].job = Some("17.0".to_owned());
        let text = table(&state, out, usize::MAX);
        // The column is before that of the command, which has three words.
        let job = |line: &str| line.split_whitespace().rev().nth(3).map(str::to_owned);
        let jobs: Vec<_> = text.lines().skip(1).take(2).map(job).collect();
        let expected = ["–", "17.0"].map(|job| Some(job.to_owned()));
        assert_eq!(jobs, expected, "{text}");
        assert!(text.lines().next().unwrap().contains("JOB"), "{text}");
    }

    #[test]
    fn cpu_time_is_counted_in_cpus() {
        let actual = |source: ProgressSource| {
            rate(&api::Progress {
                total: 1.0,
                per_second: 433e6,
                source: source.to_string(),
                confidence: 0.1,
            })
        };
        assert_eq!(actual(ProgressSource::CpuTime), "0.43 CPUs");
        assert_eq!(actual(ProgressSource::Heartbeat), "433M/s");
    }

    #[test]
    fn numbers_are_short() {
        let short = [0.0, 0.00123, 0.375, 1.5, 42.42, 999.0, 1234.0, 5.6e9].map(compact);
        assert_eq!(
            short,
            [
                "0.00", "1.23e-3", "0.375", "1.50", "42.4", "999", "1.23k", "5.60G"
            ]
        );
        let times = [0.4, 61.0, 3600.0 * 4.0 + 300.0].map(duration);
        assert_eq!(times, ["0 s", "1 min 01 s", "4 h 05 min"]);
        let times = [0.4, 61.0, 3600.0 * 4.0 + 300.0].map(cpu_time);
        assert_eq!(times, ["0:00", "1:01", "4:05:00"]);
    }
}
