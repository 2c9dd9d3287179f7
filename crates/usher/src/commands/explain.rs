// SPDX-License-Identifier: GPL-2.0-only
//! `usher explain`: requests from each daemon that listens the reasons for the present plan and the
//! predicted cost of its alternatives, and prints them for one program or for all.
//!
//! Requires a daemon. The command makes up to three calls to each daemon, each with the time limit of
//! `client`, and computes nothing itself. A program is selected as described in `crate::cli::target`;
//! a word that selects no program, or programs of several daemons, is an error with exit status 125.

use std::path::Path;

use anyhow::Context;

use crate::answers::{DaemonExplanation, ExplainAnswer};
use crate::api;
use crate::cli::options::Global;
use crate::cli::target::{self, Selection, Target};
use crate::client::{Daemon, Daemons};
use crate::failure::{self, Outcome};
use crate::output::{self, FAINT, GOOD, Output, STRONG, shown};

/// Explains why each program got its CPUs (its seat), and what alternatives would cost
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
{}

ANTT is the mean of the predicted turnaround times of all programs, each relative to the
program's time alone on the best number of CPUs. Usher chooses the seats with the least ANTT.
Predictions use the scalability curve of each program (progress per second for each
number of cores); the output contains the source and the confidence of each curve.

Examples:
  usher explain              the seats of all programs
  usher explain x264         one program, with its curve
  usher explain 4711         the program to which process 4711 belongs
  usher explain 3 --json", target::HELP))]
pub struct Args {
    /// Name, number or pid of a program; by default all programs
    #[arg(value_name = "PROGRAM", value_parser = Target::parser(), allow_negative_numbers = true)]
    program: Option<Target>,
}

/// Requests the explanations from the daemons and prints them.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let dir = global.runtime_dir.as_deref();
    let (mut explanations, mut errors) = (Vec::new(), Vec::new());
    match &args.program {
        Some(target) => explanations.push(explain_program(target, dir)?),
        None => {
            let daemons = Daemons::query(dir)?;
            errors.extend(daemons.errors);
            let answered = daemons.answered.into_iter();
            for explained in answered.map(|mut one| explain(&mut one.daemon, None)) {
                match explained {
                    Ok(explanation) => explanations.push(explanation),
                    Err(error) => errors.push(error),
                }
            }
        }
    }
    let mut explanations = explanations.into_iter();
    let Some(first) = explanations.next() else {
        return failure::combine(errors.into_iter().map(Err));
    };
    let answer = ExplainAnswer {
        first,
        other_daemons: explanations.collect(),
    };
    let printed = out.answer(&answer, || texts(&answer, args.program.is_some(), out));
    failure::combine(errors.into_iter().map(Err).chain([printed]))
}

/// Requests the explanation of the programs that the word selects, from their daemon.
fn explain_program(target: &Target, dir: Option<&Path>) -> anyhow::Result<DaemonExplanation> {
    let daemons = Daemons::query_all(dir)?;
    let found = target::find_all(std::slice::from_ref(target), daemons.answered)?;
    // A single word selects programs of exactly one daemon.
    let mut found = found.into_iter();
    let Selection {
        mut daemon,
        programs,
    } = found
        .next()
        .with_context(|| format!("no managed program has the {target}"))?;
    // The daemon finds a single program by its number, and several programs by their name.
    let word = match &programs[..] {
        [one] => one.id.to_string(),
        _ => programs[0].name.clone(),
    };
    explain(&mut daemon, Some(word))
}

fn explain(daemon: &mut Daemon, program: Option<String>) -> anyhow::Result<DaemonExplanation> {
    Ok(DaemonExplanation {
        reply: daemon.explain(program)?,
        runtime_dir: daemon.dir().to_owned(),
    })
}

fn texts(answer: &ExplainAnswer, one: bool, out: Output) -> String {
    if answer.other_daemons.is_empty() {
        return text(&answer.first.reply, one, out);
    }
    let all = std::iter::once(&answer.first).chain(&answer.other_daemons);
    let texts = all.map(|explained| {
        let title = super::status::daemon_title(&explained.runtime_dir);
        let title = out.paint(STRONG, &title);
        format!("{title}\n{}", text(&explained.reply, one, out))
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn text(answer: &api::Explain_Reply, one: bool, out: Output) -> String {
    let mut text = String::new();
    if !one {
        text.push_str(&alternatives(answer, out));
        text.push_str(&why_all(&answer.state, out));
    }
    for reason in &answer.reasons {
        text.push_str(&about(reason, one, out));
    }
    match text.is_empty() {
        true => "the daemon manages no program: there are no seats to explain\n".to_owned(),
        false => text,
    }
}

/// Formats the reason for the present seats, or for none, and the remedy.
fn why_all(state: &api::State, out: Output) -> String {
    let mut notes = state.notes.iter().filter(|note| note.program.is_none());
    match &state.abstention {
        // The note of a prediction contains more than the reason.
        Some(why) if !matches!(why.cause, api::Abstention_cause::gain) => {
            let headline = super::status::headline(state);
            let mut text = output::wrapped(&headline, out.text_width()) + "\n";
            text.push_str(&super::status::reason(why, out));
            text
        }
        _ => notes
            .by_ref()
            .map(|note| output::wrapped(&shown(&note.text), out.text_width()) + "\n")
            .collect(),
    }
}

fn alternatives(answer: &api::Explain_Reply, out: Output) -> String {
    if answer.alternatives.is_empty() {
        return String::new();
    }
    let best = answer
        .alternatives
        .iter()
        .filter_map(|a| a.antt)
        .reduce(f64::min);
    let head = ["CHOICE", "ANTT", "DESCRIPTION"].map(|title| out.paint(STRONG, title));
    let rows = answer.alternatives.iter().map(|a| {
        let antt = a.antt.map_or("–".to_owned(), |antt| format!("{antt:.2}"));
        let antt = match a.antt.is_some() && a.antt == best {
            true => out.paint(GOOD, &antt),
            false => antt,
        };
        vec![shown(&a.name), antt, shown(&a.why)]
    });
    let rows: Vec<Vec<String>> = std::iter::once(head.to_vec()).chain(rows).collect();
    format!("{}\n", output::columns_wrapped(&rows, out.text_width()))
}

fn about(reason: &api::Reason, with_curve: bool, out: Output) -> String {
    let program = &reason.program;
    let name = out.paint(STRONG, &shown(&program.name));
    let job = program.job.as_ref();
    let job = job.map_or_else(String::new, |job| format!(", job {}", shown(job)));
    let id = out.paint(
        FAINT,
        &format!("(program {}, process {}{job})", program.id, program.pid),
    );
    let mut text = format!("{name} {id}\n");
    let notes = reason.notes.iter();
    for line in [&reason.place, &reason.known].into_iter().chain(notes) {
        text.push_str(&indented(&shown(line), out.text_width()));
    }
    // With all programs, the common reason precedes them.
    let own = program
        .abstention
        .as_ref()
        .filter(|why| with_curve || matches!(why.cause, api::Abstention_cause::pinned));
    text.push_str(&own.map_or_else(String::new, |why| super::status::reason(why, out)));
    if with_curve && !reason.curve.is_empty() {
        let head = ["  CORES", "PROGRESS/S", "ERROR"].map(|title| out.paint(STRONG, title));
        let rows = reason.curve.iter().map(|point| {
            let error = format!("±{:.0} %", point.relative_error * 100.0);
            vec![
                format!("  {}", point.cores),
                super::status::compact(point.rate),
                error,
            ]
        });
        let rows: Vec<Vec<String>> = std::iter::once(head.to_vec()).chain(rows).collect();
        text.push_str(&output::columns(&rows));
    }
    text
}

/// Indents a text by two columns, in lines of at most `width` columns.
fn indented(text: &str, width: usize) -> String {
    let wrapped = output::wrapped(text, width.saturating_sub(2));
    wrapped.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reasons_are_wrapped_and_indented() {
        let text = "the profile of this program gives only cpu-time, which is no progress";
        let lines = indented(text, 40);
        assert!(lines.lines().count() > 1 && lines.lines().all(|line| line.len() <= 40));
        assert!(lines.lines().all(|line| line.starts_with("  ")));
        let words: Vec<&str> = lines.split_whitespace().collect();
        assert_eq!(words.join(" "), text);
        assert_eq!(indented(text, usize::MAX), format!("  {text}\n"));
    }
}
